"""What the jobs of the callback tests train, and what they do to themselves at a given step."""

import gc
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from brim.gang.client import send_request
from brim.gang.messages import PreemptRequest, ResizeRequest, StatusRequest, StopRequest, TuneSettings
from brim.train.membership.supervisor_client import SupervisorClient

SAMPLES = 44


def events():
    """What to do after which step: "7=preempt,9=kill"; only rank 0 does it."""
    pairs = (word.split("=") for word in os.environ.get("EVENTS", "").split(",") if word)
    return {int(step): what for step, what in pairs} if os.environ.get("RANK", "0") == "0" else {}


def after(step, out):
    """Do what is due after this step, and wait until it is done; an answer goes to ``out``."""
    what = events().get(step)
    if what == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what is not None:
        message = {
            "preempt": PreemptRequest(), "stop": StopRequest(), "resize": ResizeRequest(4),
            "tune": TuneSettings(global_batch=64),
        }[what]  # fmt: skip
        while not all(rank["state"] == "joined" for rank in _status()["ranks"]):
            time.sleep(0.01)
        before = _status()["command"]
        answer = send_request(os.environ["BRIM_CONTROL"], message)
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / f"answer-{what}").write_text(answer.detail)
        (client,) = (each for each in gc.get_objects() if isinstance(each, SupervisorClient))
        while before < (newest := _status()["command"]) and client.newest_command < newest:  # a thread reads it
            time.sleep(0.01)


def _status():
    return send_request(os.environ["BRIM_CONTROL"], StatusRequest()).status


def net():
    """Weights that depend on nothing, and dropout."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 3))


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


def say(out, module, steps, first):
    """What the test compares."""
    bits = b"".join(tensor.detach().numpy().tobytes() for tensor in module.state_dict().values())
    said = {"bits": hashlib.sha256(bits).hexdigest(), "steps": steps, "first": first}
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / f"said-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(said))
    sys.stdout.flush()
