"""``brim profile -- python script.py``: steps, memory, loader and exchange of one training script, into a file."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brim.cli.options import check_writable, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from brim.live.profile import Profile

_PYTHON = re.compile(r"python[0-9.]*")


def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="-- [python] SCRIPT.py [ARGS]...", help="A script that uses brim.train.")
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; by default the script's name with .toml.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="Local batches, such as 16-1024; by default up to the memory limit of a GPU."),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="Ranks, such as 1,2; by default up to the GPUs, or 1,2 without one.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Longest wait for the script's next step, in s.")] = 300.0,
) -> None:
    """Measure a training script on this machine: step times, memory, loader, exchange; writes a profile library."""
    from brim.errors import ConfigError
    from brim.reports.files import replacing
    from brim.train.profile.gang import Script, ScriptError

    python, words = _command(command)
    batches, sizes = _batches(batch), _ranks(ranks)
    if not timeout > 0:
        raise ConfigError(f"--timeout: found {timeout:g}, expected more than 0 seconds")
    target = output or Path(f"{Path(words[0]).stem}.toml")
    check_writable(target)
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="brim-profile-") as folder:
        script = Script(python=python, words=words, folder=Path(folder), timeout_s=timeout)
        try:
            found = _measure(script, sizes, batches)
        except ScriptError as error:
            sys.stderr.write(error.said)
            raise typer.Exit(error.exit_code) from None
    from brim.live.profile import as_toml

    try:
        with replacing(target) as part:
            part.write_text(as_toml(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from None
    _print(found, target)


def _measure(script: Any, sizes: tuple[int, ...] | None, batches: tuple[int, int] | None) -> Profile:
    from brim.live.profile import measure

    with waiting(f"measuring {script.words[0]}"):
        return measure(script, sizes, batches)


def _command(words: list[str]) -> tuple[str, tuple[str, ...]]:
    """The interpreter, and the script with its arguments.

    Raises:
        ConfigError: there is no such script.
    """
    from brim.errors import ConfigError
    from brim.train.profile.gang import interpreter

    python = "python"
    if _PYTHON.fullmatch(Path(words[0]).name):
        python, words = words[0], words[1:]
    if not words or words[0].startswith("-"):
        found = repr(words[0]) if words else "nothing"
        raise ConfigError(f"found {found} where a script should be, expected: brim profile -- python script.py [args]")
    if not Path(words[0]).is_file():
        raise ConfigError(f"{words[0]}: found no such file, expected a Python script that uses brim.train")
    return interpreter(python), tuple(words)


def _batches(text: str | None) -> tuple[int, int] | None:
    from brim.errors import ConfigError

    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})", text, re.ASCII)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"--batch: found {text!r}, expected the smallest and the largest batch, such as 16-1024")
    return int(match[1]), int(match[2])


def _ranks(text: str | None) -> tuple[int, ...] | None:
    from brim.errors import ConfigError

    if text is None:
        return None
    words = text.split(",")
    if not all(re.fullmatch(r"[1-9][0-9]{0,3}", word, re.ASCII) and int(word).bit_count() == 1 for word in words):
        raise ConfigError(f"--ranks: found {text!r}, expected powers of two such as 1,2,4")
    return tuple(sorted({1, *map(int, words)}))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end us as Ctrl-C does, so that ranks and files go, too."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# --- the table


def _print(found: Profile, target: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_steps_table(found))
    for line in (_limit(found), _loader(found), *_exchange(found), _fit(found)):
        console.print(line, markup=False, soft_wrap=True)
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
