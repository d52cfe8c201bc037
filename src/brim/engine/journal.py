"""The journal: every event and every decision, one JSON line each, and two ways back from it.

``recover`` applies the recorded events and decisions to a fresh scheduler without deciding anything: what a controller
does after a restart. ``replay`` decides again wherever the journal decided: the lines are the same, byte for byte,
which shows that the twin and the controller decide alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from brim.core.actions import ACTIONS, Action, Plan, plan_of
from brim.core.arrays import IntArray
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.setting import Rank, Setting
from brim.core.trace import NONE
from brim.engine.round import RoundResult
from brim.errors import ConfigError, InvariantError

if TYPE_CHECKING:
    from brim.engine.scheduler import Scheduler

_FLAGS: Final = ("only_fills", "settled", "settled_padding")
_SHOWN: Final = 80
"""Characters of a line that an error shows."""
_SPEC_DEFAULTS: Final = {field.name: field.default for field in fields(JobSpec) if field.default is not MISSING}
_REPORT_DEFAULTS: Final = {"batch": NONE, "sizes": (), "samples_max": NONE}
"""What is left out of a report beside what is not a number."""


class RecordedDecision(NamedTuple):
    """What a round changed: all that is applied to the state without deciding again.

    Attributes:
        plan: Its plan.
        memory: What parts remember, by socket as (job ids, values).
        only_fills: See ``RoundResult``.
        settled: See ``RoundResult``.
        settled_padding: See ``RoundResult``.
    """

    plan: Plan
    memory: Mapping[str, tuple[IntArray, IntArray]]
    only_fills: bool
    settled: bool
    settled_padding: bool

    @classmethod
    def of(cls, result: RoundResult) -> RecordedDecision:
        """Return what a round changes."""
        memory = {socket: (result.job, values) for socket, values in result.memory.items()}
        return cls(result.plan, memory, result.only_fills, result.settled, result.settled_padding)


class Sink(Protocol):
    """Where lines go: a text file, or a store."""

    def write(self, text: str, /) -> object:
        """Append text."""
        ...


class Journal:
    """Records lines. With a ``sink`` each line goes there and none is kept; without one ``lines`` has them all."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.lines: list[str] = []
        self._sink = sink

    def event(self, event: Event) -> None:
        """Record an event."""
        self._write(event_record(event))

    def decision(self, result: RoundResult) -> None:
        """Record the plan, reasons and memo of a round."""
        self._write(decision_record(result))

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), sort_keys=True)
        if self._sink is None:
            self.lines.append(line)
        else:
            self._sink.write(line + "\n")


def event_record(event: Event) -> dict[str, Any]:
    """Return an event as plain data, without absent fields."""
    record: dict[str, Any] = {"t": event.time_ms, "e": event.kind.name}
    if event.job != NONE:
        record["job"] = event.job
    if event.node != NONE:
        record["node"] = event.node
    if event.gpu != NONE:
        record["gpu"] = event.gpu
    if event.spec is not None:
        record["spec"] = {key: value for key, value in asdict(event.spec).items() if value != _SPEC_DEFAULTS.get(key)}
        record["held"] = event.held
    if event.user:
        record["user"] = event.user
    if event.setting is not None:
        record["setting"] = setting_record(event.setting)
    if event.report is not None:
        record["report"] = {
            key: value for key, value in asdict(event.report).items()
            if not _is_nan(value) and value != _REPORT_DEFAULTS.get(key)
        }
    return record


def decision_record(result: RoundResult) -> dict[str, Any]:
    """Return a decision as plain data; ``waits`` maps each job id to [reason code, blocker id]."""
    actions = [action_record(action) for action in result.plan]
    waits = {
        str(job): [why, blocker]
        for job, why, blocker in zip(
            result.job.tolist(), result.why.tolist(), result.blocker.tolist(), strict=True
        )
        if why
    }
    record: dict[str, Any] = {"t": result.plan.time_ms, "d": actions, "waits": waits}
    record |= {name: True for name in _FLAGS if getattr(result, name)}
    if result.memory:
        record["memory"] = {
            socket: dict(zip(map(str, result.job.tolist()), memory.tolist(), strict=True))
            for socket, memory in result.memory.items()
        }
    return record


def action_record(action: Action) -> dict[str, Any]:
    """Return an action as plain data, without fields that have their default."""
    record: dict[str, Any] = {"do": type(action).__name__.lower()}
    for field in fields(action):
        value = getattr(action, field.name)
        if value != field.default:
            record[field.name] = setting_record(value) if isinstance(value, Setting) else value
    return record


def read_action(record: dict[str, Any]) -> Action:
    """Read an action back: the inverse of ``action_record``."""
    given: dict[str, Any] = {key: value for key, value in record.items() if key != "do"}
    if "setting" in given:
        given["setting"] = read_setting(given["setting"])
    return _ACTION_OF[record["do"]](**given)


_ACTION_OF: Final[dict[str, type[Action]]] = {kind.__name__.lower(): kind for kind in ACTIONS}


def setting_record(setting: Setting) -> dict[str, Any]:
    """Return a setting as plain data; the batch is left out where there is none."""
    record: dict[str, Any] = {"ranks": [list(rank) for rank in setting.ranks]}
    if setting.batch != NONE:
        record["batch"] = setting.batch
    if setting.revocable:
        record["revocable"] = True
    return record


def read_setting(record: dict[str, Any]) -> Setting:
    """Read a setting back: the inverse of ``setting_record``."""
    return Setting(
        tuple(Rank(*rank) for rank in record["ranks"]), record.get("batch", NONE), record.get("revocable", False)
    )


def read_event(record: dict[str, Any]) -> Event:
    """Read an event back: the inverse of ``event_record``."""
    spec, report = record.get("spec"), record.get("report")
    if spec:
        spec = JobSpec(**spec | {"sizes": tuple(spec.get("sizes", ()))})
    if report:
        seen = tuple(Sample(*sample) for sample in report["seen"])
        named = {"seen": seen, "sizes": tuple(report.get("sizes", ()))}
        report = Report(**{"samples_done": math.nan, "samples_per_s": math.nan} | report | named)
    return Event(
        record["t"], Kind[record["e"]], record.get("job", NONE), record.get("node", NONE),
        spec, record.get("held", False), report=report,
        setting=read_setting(record["setting"]) if "setting" in record else None, gpu=record.get("gpu", NONE),
        user=record.get("user", ""),
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def read_decision(record: dict[str, Any]) -> RecordedDecision:
    """Read a decision back."""
    plan = plan_of(record["t"], [read_action(action) for action in record["d"]])
    memory = {
        socket: (np.array(list(map(int, values)), dtype=np.int64), np.array(list(values.values()), dtype=np.int64))
        for socket, values in record.get("memory", {}).items()
    }
    return RecordedDecision(plan, memory, **{name: record.get(name, False) for name in _FLAGS})


def recover(lines: Iterable[str], scheduler: Scheduler) -> int:
    """Bring a fresh scheduler into the state that a journal ends in, without deciding anything.

    A last line that was cut off, by the end of the process that wrote it, counts as not written. The scheduler's own
    journal records nothing of this: it goes on where the lines end. Lines that follow a saved state are applied to a
    scheduler that was restored from it.

    Returns:
        How many lines were applied.

    Raises:
        InvariantError: a line before the last cannot be read, or is neither an event nor a decision.
    """
    applied = 0
    journal, scheduler.journal = scheduler.journal, None
    try:
        for _, entry in _entries(lines):
            if isinstance(entry, Event):
                scheduler.observe(entry)
            else:
                scheduler.fold(entry)
            applied += 1
    finally:
        scheduler.journal = journal
    return applied


def replay(lines: Iterable[str], scheduler: Scheduler) -> Iterator[tuple[str, str]]:
    """Feed a journal's events to a fresh scheduler and decide again wherever the journal decided.

    A last line that was cut off counts as not written.

    Yields:
        (line of the journal, line decided now) for every decision.

    Raises:
        InvariantError: a line before the last cannot be read, or is neither an event nor a decision.
    """
    for line, entry in _entries(lines):
        if isinstance(entry, Event):
            scheduler.observe(entry)
        else:
            again = decision_record(scheduler.decide(entry.plan.time_ms))
            yield line.rstrip("\n"), json.dumps(again, separators=(",", ":"), sort_keys=True)


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, Event | RecordedDecision]]:
    """Read the lines of a journal: each with its event or decision, without a last line that was cut off."""
    cut_off = ""
    for number, line in enumerate(lines, 1):
        if cut_off:
            raise InvariantError(f"journal line {number - 1} cannot be read: {cut_off[:_SHOWN]}")
        try:
            record = json.loads(line)
        except ValueError:
            cut_off = line or " "
            continue
        if not isinstance(record, dict) or not ("e" in record or "d" in record):
            raise InvariantError(f"journal line {number} is neither an event nor a decision: {line[:_SHOWN]}")
        try:
            entry = read_event(record) if "e" in record else read_decision(record)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, ConfigError) as error:
            raise InvariantError(f"journal line {number} cannot be read: {line[:_SHOWN]}") from error
        yield line, entry
