"""The journal: every event and every decision, one JSON line each, and its replay.

Replaying the events of a journal through the engine gives the same decision lines, byte for byte; the tests use this to
show that the twin and the live driver decide alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any, Final

from brim.core.actions import ACTIONS, Action
from brim.core.events import Event, JobSpec, Kind, Report, Sample
from brim.core.setting import Rank, Setting
from brim.core.trace import NONE
from brim.engine.round import RoundResult
from brim.errors import InvariantError

if TYPE_CHECKING:
    from brim.engine.scheduler import Scheduler

SCHEMA = 2
_SPEC_DEFAULTS: Final = {field.name: field.default for field in fields(JobSpec) if field.default is not MISSING}


class Journal:
    """Collects lines in memory and writes each line to ``sink``, if one is given."""

    def __init__(self, sink: Any = None) -> None:
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
        self.lines.append(line)
        if self._sink is not None:
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
    if event.setting is not None:
        record["setting"] = setting_record(event.setting)
    if event.report is not None:
        record["report"] = {key: value for key, value in asdict(event.report).items() if not _is_nan(value)}
    return record


def decision_record(result: RoundResult) -> dict[str, Any]:
    """Return a decision as plain data; ``waits`` maps each job id to [reason code, blocker id]."""
    actions = [action_record(action) for action in result.plan.actions]
    waits = {
        str(job): [why, blocker]
        for job, why, blocker in zip(
            result.job.tolist(), result.why.tolist(), result.blocker.tolist(), strict=True
        )
        if why
    }
    record: dict[str, Any] = {"t": result.plan.time_ms, "d": actions, "waits": waits}
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
        report = Report(**{"samples_done": math.nan, "samples_per_s": math.nan} | report | {"seen": seen})
    return Event(
        record["t"], Kind[record["e"]], record.get("job", NONE), record.get("node", NONE),
        spec, record.get("held", False), report=report,
        setting=read_setting(record["setting"]) if "setting" in record else None, gpu=record.get("gpu", NONE),
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def replay(lines: Iterable[str], scheduler: Scheduler) -> Iterator[tuple[str, str]]:
    """Feed a journal's events to a fresh scheduler and decide again wherever the journal decided.

    Yields:
        (line of the journal, line decided now) for every decision.

    Raises:
        InvariantError: a line is neither an event nor a decision.
    """
    for line in lines:
        record = json.loads(line)
        if "e" in record:
            scheduler.observe(read_event(record))
        elif "d" in record:
            again = decision_record(scheduler.decide(record["t"]))
            yield line.rstrip("\n"), json.dumps(again, separators=(",", ":"), sort_keys=True)
        else:
            raise InvariantError(f"journal line is neither an event nor a decision: {line[:80]}")
