"""``brim profile -- python script.py``: measure the steps, memory, loader and all-reduce of one training script."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brim.cli.options import JsonOption, OutputOption, output_of, waiting
from brim.cli.outputs import check_outputs, console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from brim.cli.profiling import Profile

_PYTHON = re.compile(r"python[0-9.]*")

app = typer.Typer()


@app.command(context_settings={"allow_interspersed_args": False})
def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="-- [python] SCRIPT.py [ARGS]...", help="A script that uses brim.train.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; by default SCRIPT.toml.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", metavar="SIZES",
            help="Local batch sizes, such as 16-1024; by default up to the GPU's memory limit.",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks", metavar="NUMBERS",
            help="Numbers of ranks, such as 1,2; by default up to the number of GPUs, or 1,2.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Longest time to wait for the script's next step.")
    ] = 300.0,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Measure a training script on this machine (step times, memory, loader, all-reduce) and write a profile."""
    from brim.errors import ConfigError
    from brim.gang.processes import ended_by_signals
    from brim.replacing import replacing
    from brim.train.tools.profile.gang import Script, ScriptError

    wanted = output_of(output, as_json)
    python, words = _command(command)
    batches, sizes = _batches(batch), _ranks(ranks)
    if not 0 < timeout < float("inf"):
        raise ConfigError(f"--timeout: found {timeout:g}, expected a number of seconds above 0")
    target = out or Path(f"{Path(words[0]).stem}.toml")
    check_outputs({"--out": target}, [word for word in words if Path(word).is_file()])
    _check_torch(python)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="brim-profile-") as folder:
        script = Script(python=python, words=words, folder=Path(folder), timeout_s=timeout)
        try:
            found = _measure(script, sizes, batches)
        except ScriptError as error:
            sys.stderr.write(error.stderr)
            raise typer.Exit(error.exit_code) from None
    from brim.cli.profiling import as_toml

    text = as_toml(found)
    with replacing(target) as part:
        part.write_text(text, encoding="utf-8")
    if wanted == "json":
        import json
        import tomllib

        print(json.dumps({"schema": 1, "file": str(target), "profile": tomllib.loads(text)}, indent=2, default=str))
    else:
        _print(found, target)


def _check_torch(python: str) -> None:
    """Refuse an interpreter without PyTorch, before its ranks fail one by one.

    Raises:
        ConfigError: brim's own interpreter, which runs the launcher, or the script's has no PyTorch.
    """
    import subprocess

    from brim.errors import ConfigError

    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for interpreter in dict.fromkeys((sys.executable, python)):
        try:
            missing = subprocess.run([interpreter, "-c", look], check=False, capture_output=True).returncode
        except OSError as error:
            raise ConfigError(f"{interpreter}: cannot be run: {error.strerror}") from None
        if missing:
            raise ConfigError(f"brim profile needs PyTorch, and {interpreter} has none: pip install 'brim[train]'")


def _measure(script: Any, sizes: tuple[int, ...] | None, batches: tuple[int, int] | None) -> Profile:
    from brim.cli.profiling import measure

    with waiting(f"measuring {script.words[0]}"):
        return measure(script, sizes, batches)


def _command(words: list[str]) -> tuple[str, tuple[str, ...]]:
    """Return the interpreter, and the script with its arguments.

    Raises:
        ConfigError: the script does not exist.
    """
    from brim.errors import ConfigError
    from brim.train.tools.profile.gang import interpreter

    python = "python"
    if _PYTHON.fullmatch(Path(words[0]).name):
        python, words = words[0], words[1:]
    if not words or words[0].startswith("-"):
        found = repr(words[0]) if words else "nothing"
        raise ConfigError(f"expected a script, found {found}; usage: brim profile -- python script.py [args]")
    if not Path(words[0]).is_file():
        raise ConfigError(f"{words[0]}: no such file")
    return interpreter(python), tuple(words)


def _batches(text: str | None) -> tuple[int, int] | None:
    from brim.errors import ConfigError, shown

    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})", text, re.ASCII)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"--batch: found {shown(text)}, expected the smallest and the largest batch, such as 16-1024")
    return int(match[1]), int(match[2])


def _ranks(text: str | None) -> tuple[int, ...] | None:
    from brim.errors import ConfigError, shown

    if text is None:
        return None
    words = text.split(",")
    if not all(re.fullmatch(r"[1-9][0-9]{0,3}", word, re.ASCII) and int(word).bit_count() == 1 for word in words):
        raise ConfigError(f"--ranks: found {shown(text)}, expected powers of two such as 1,2,4")
    return tuple(sorted({1, *map(int, words)}))


# --- the table


def _print(found: Profile, target: Path) -> None:
    screen = console()
    screen.print(_steps_table(found))
    for line in (_limit(found), _loader(found), *_exchange(found), _fit(found)):
        screen.print(line, markup=False, soft_wrap=True)
    print(target)


def _steps_table(found: Profile) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    header = found.header
    title = f"{escape(found.name)} on {escape(header.device_name)}, torch {header.torch}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    power = any(row.power_w is not None for row in found.steps)
    memory = "memory" if header.gpus else "resident"
    for name in ("ranks", "local batch", "step", "samples/s", "loader wait", memory, *(["power"] if power else [])):
        table.add_column(name, justify="right")
    for row in found.steps:
        watts = [] if not power else ["-" if row.power_w is None else f"{row.power_w:.0f} W"]
        table.add_row(
            str(row.ranks), f"{row.local_batch:,}", _ms(row.step_s), f"{row.samples_per_s:,.0f}",
            _ms(row.loader_wait_s), f"{row.memory_bytes / 2**20:,.0f} MiB", *watts,
        )  # fmt: skip
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms"


def _limit(found: Profile) -> str:
    largest = max(row.local_batch for row in found.steps if row.ranks == 1)
    why = "where the range ended" if found.batch_max_fits else "more did not fit the memory"
    return f"largest local batch: {largest:,} ({why})"


def _loader(found: Profile) -> str:
    rates = ", ".join(f"{rate:,.0f} with {workers}" for workers, rate in found.supply.items())
    return f"loader, samples/s by processes: {rates}"


def _exchange(found: Profile) -> Iterator[str]:
    times = found.exchange
    if times is None:
        return
    for gpus, seconds in zip(times.gpus_K, times.packed_s_KS, strict=True):
        few, many = (f"{size / 2**20:,.0f} MiB {_ms(at)}" for size, at in
                     ((times.bytes_S[0], seconds[0]), (times.bytes_S[-1], seconds[-1])))  # fmt: skip
        yield f"all-reduce on {gpus} ranks: {few} to {many}"


def _fit(found: Profile) -> str:
    fitted = found.fitted
    return (
        f"step-time model: off by {fitted.residual:.1%} over {fitted.points} points ({fitted.status}); measured in "
        f"{found.took_s:.0f} s"
    )
