"""A stand-in for NVIDIA's library: what it says is in a file, a line for each GPU."""

import os
import shutil
import subprocess

import pytest

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { char uuid[96]; unsigned long long used; unsigned util, power, pids[16], num; } Gpu;
static Gpu gpus[8];
static unsigned num;
static void look(void) {
    char line[512]; FILE *file = fopen(getenv("STAND_IN_NVML"), "r");
    num = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "hang", 4)) for (;;) sleep(1);
        Gpu *gpu = &gpus[num++]; gpu->num = 0;
        char *word = strtok(line, " \n"); strcpy(gpu->uuid, word);
        gpu->used = strtoull(strtok(NULL, " \n"), NULL, 10) << 20;
        gpu->util = atoi(strtok(NULL, " \n")); gpu->power = atoi(strtok(NULL, " \n"));
        while ((word = strtok(NULL, " \n"))) gpu->pids[gpu->num++] = atoi(word);
    }
    if (file) fclose(file);
}
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stand-in error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { look(); *count = num; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) { *gpu = &gpus[index]; return 0; }
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    const char *name = getenv("STAND_IN_GPU");
    strncpy(text, name ? name : "NVIDIA Stand-In", length);
    return 0;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) { strncpy(text, gpu->uuid, length); return 0; }
int nvmlDeviceGetMemoryInfo(Gpu *gpu, unsigned long long *memory) {
    memory[0] = 80ull << 30; memory[1] = memory[0] - gpu->used; memory[2] = gpu->used;
    return gpu->util == 999 ? 15 : 0;  /* 15: the GPU is lost */
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *rates) { rates[0] = gpu->util; rates[1] = 0; return 0; }
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *power) { *power = gpu->power; return gpu->power ? 0 : 3; }
int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *energy) {
    *energy = gpu->power * 1000ull;  /* mJ: a counter that shows the power's digits */
    return getenv("STAND_IN_ENERGY") ? 0 : 3;
}
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Info;
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Info *infos) {
    unsigned room = *count; *count = gpu->num;
    if (room < gpu->num) return 7;  /* too small */
    for (unsigned n = 0; n < gpu->num; n++) { Info info = {gpu->pids[n], 1 << 20, 0, 0}; infos[n] = info; }
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Info *infos) { *count = 0; return 0; }
"""


def build(folder):
    """Build the library in a folder, for LD_LIBRARY_PATH; the name of every GPU is in STAND_IN_GPU."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the stand-in libnvidia-ml.so.1 with")
    pytest.importorskip("pynvml", reason="nvidia-ml-py (extra live) is not installed")
    (folder / "nvml.c").write_text(LIBRARY)
    words = ["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"]
    subprocess.run(words, check=True)


class Rack:
    """What the stand-in says of two GPUs."""

    def __init__(self, path):
        self.path = path
        self.set()

    def set(self, first=(450, 0, 70_000), second=(450, 0, 70_000)):
        lines = [f"GPU-{name} {' '.join(map(str, words))}" for name, words in (("a", first), ("b", second))]
        self.write("\n".join(lines))

    def write(self, text):
        part = self.path.with_suffix(".part")
        part.write_text(text)
        os.replace(part, self.path)
