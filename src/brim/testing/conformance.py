"""``check_policy`` tries a policy on random situations and shows the smallest one that breaks a rule."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from brim.core.cluster import Cluster
from brim.core.snapshot import Snapshot
from brim.core.tables import Grants
from brim.core.trace import Trace, trace_of
from brim.engine.journal import Journal
from brim.errors import BrimError, ConfigError, InvariantError, PlanError
from brim.policies.sockets import Policy
from brim.policies.source_lines import own_lines
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import Truth
from brim.sim.twin import ReplaySettings, replay
from brim.testing import rules
from brim.testing.builders import Job, names_of, small_trace
from brim.testing.elastic import ToyTruth
from brim.testing.rules import PolicyViolation
from brim.testing.text import describe_jobs
from brim.units import MS_PER_H

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from brim.core.replay import Replay

CaseT = TypeVar("CaseT")

BUDGET_CPU_S: Final = 600
"""CPU time limit of a whole check: 10 minutes, ours. It does not end a part that never returns."""
LOADS: Final = 10
"""Situations in which a policy that is loaded anew is compared: a file may take a second to load. Ours."""
_PATIENCE: Final = 10
"""A policy may take this many times the serial time of a trace, restarts included, to finish it."""
_ROUNDS_PER_JOB: Final = 60
"""Rounds on events allowed per job: a few are enough for a sound policy, and thrashing exceeds any limit."""


class BudgetSpentError(BrimError):
    """A check ended before it had tried every situation; the situations it tried broke no rule."""


class _SpentError(BrimError):
    """Ends a replay when the budget is spent."""


class Budget(Protocol):
    """The budget of a check."""

    def spend(self) -> None:
        """Called in every round; raises when nothing is left."""
        ...


def _pointing_at_its_parts(check: Callable[..., None]) -> Callable[..., None]:
    """Add the lines of the policy's own parts to a violation: one of them breaks the rule."""

    @functools.wraps(check)
    def pointing(policy: Policy, **options: Any) -> None:
        try:
            check(policy, **options)
        except PolicyViolation as found:
            raise PolicyViolation(found.rule, found.what, found.case, own_lines(policy)) from found.__cause__

    return pointing


@_pointing_at_its_parts
def check_policy(
    policy: Policy, *, examples: int = 100, seed: int = 0, load: Callable[[], Policy] | None = None
) -> None:
    """Run the rules of ``rules.RULES`` on random snapshots and short replays.

    Args:
        policy: The policy to check.
        examples: Number of random snapshots, and of random replays.
        seed: The same seed tries the same situations.
        load: Loads the policy anew, to find what its file or module keeps between replays; None not to look for that.

    Raises:
        PolicyViolation: with the rule's name and a description of the smallest situation found that breaks it.
        BudgetSpentError: no rule was broken, but the policy is too slow to try all situations.
        ConfigError: the ``hypothesis`` package is missing.

    Example:
        >>> from brim.policies.presets import PRESETS
        >>> check_policy(PRESETS["fifo"], examples=5)
    """
    try:
        import hypothesis  # noqa: F401, PLC0415 - a development dependency, needed only for checks
    except ImportError:
        raise ConfigError("checking a policy needs the package hypothesis: pip install 'brim[check]'") from None
    from hypothesis import strategies as st  # noqa: PLC0415

    from brim.testing import strategies  # noqa: PLC0415

    clusters = strategies.clusters(groups_max=2, nodes_max=2, gpus_max=3)
    elastic = policy.changes_running
    snapshots = clusters.flatmap(
        lambda cluster: strategies.snapshots(cluster=cluster, jobs_max=8, elastic_too=elastic)
    )
    search = _Search(policy, examples, seed)
    search.run(lambda snapshot: rules.check_decision(snapshot, policy), snapshots)
    cases = clusters.flatmap(
        lambda cluster: st.tuples(st.just(cluster), strategies.traces(cluster, jobs_max=6), strategies.overheads())
    )
    search.run(lambda case: check_replays(policy, *case, budget=search), cases)
    if elastic:
        toys = clusters.flatmap(
            lambda cluster: st.tuples(
                st.just(cluster), strategies.elastic_jobs_of(cluster, jobs_max=6), strategies.overheads()
            )
        )
        search.run(lambda case: check_elastic_replays(policy, *case, budget=search), toys)
    if load is not None:
        telling = snapshots.filter(lambda snapshot: bool(snapshot.jobs.waits.sum() > 1))
        search.run(lambda snapshot: rules.check_afresh(snapshot, policy, load), telling, most=LOADS)


def check_elastic_replays(
    policy: Policy, cluster: Cluster, jobs: Sequence[Job], overheads: Overheads, *, budget: Budget | None = None
) -> None:
    """Run every rule about whole replays on jobs whose speed follows a formula of their GPUs and batch.

    Raises:
        PolicyViolation: a rule is broken.
    """
    trace = small_trace(*jobs)
    limits = dict(zip(names_of(jobs), jobs, strict=True))
    check_replays(policy, cluster, trace, overheads, lambda trace: ToyTruth(trace, limits), budget=budget)


def check_replays(
    policy: Policy, cluster: Cluster, trace: Trace, overheads: Overheads, truth_of: Callable[[Trace], Truth] = Rigid,
    *, budget: Budget | None = None,
) -> None:
    """Run every rule about whole replays on one case.

    Args:
        policy: The policy to check.
        cluster: The cluster of the replay.
        trace: The submitted jobs.
        overheads: Costs of changes.
        truth_of: Makes the truth of the trace, and of the same trace in another order.
        budget: Ends the check when it is spent, None for no limit.

    Raises:
        PolicyViolation: a rule is broken.
    """
    settings = ReplaySettings(overheads=overheads, gap_ms=0)
    journals = Journal(), Journal()
    first = _bounded(policy, trace, truth_of(trace), cluster, settings, journals[0], budget)
    again = _bounded(policy, trace, truth_of(trace), cluster, settings, journals[1], budget)
    rules.check_never_shared(first)
    rules.check_one_place(first)
    rules.check_same(rules.SAME_SEED, "replayed twice", first, again)
    if journals[0].lines != journals[1].lines:
        raise PolicyViolation(
            rules.SAME_SEED, "replayed twice, it decided differently", describe_jobs(trace, str(cluster))
        )
    other = trace_of(**rules.permuted(trace, seed=len(trace)))
    rules.check_same(
        rules.ORDER_FREE, "with the rows, users and types of the trace in another order", first,
        _bounded(policy, other, truth_of(other), cluster, settings, Journal(), budget),
    )


def _bounded(
    policy: Policy, trace: Trace, truth: Truth, cluster: Cluster, settings: ReplaySettings, journal: Journal,
    budget: Budget | None,
) -> Replay:
    """Replay, check the grants of every round, and give up when the replay does not end."""
    cost = settings.overheads
    each_ms = cost.start_ms + cost.save_ms + cost.restart_ms
    serial_ms = int(truth.run_ms.sum() + np.maximum(trace.after_ms, 0).sum()) + len(trace) * each_ms
    latest_ms = trace.span_ms + _PATIENCE * serial_ms + MS_PER_H
    case = describe_jobs(trace, str(cluster))
    rounds = _ROUNDS_PER_JOB * len(trace) + (latest_ms // policy.period_ms if policy.period_ms else 0)
    count = 0

    def check(snapshot: Snapshot, grants: Grants) -> None:
        rules.check_grants(snapshot, grants, resizes=policy.changes_running)

    def note(snapshot: Snapshot, grants: Grants) -> None:
        nonlocal count
        check(snapshot, grants)
        if budget is not None:
            budget.spend()
        count += 1
        if snapshot.now_ms > latest_ms or count > rounds:
            waiting = ", ".join(trace.job_id[job] for job in snapshot.jobs.id.tolist())
            raise PolicyViolation(
                rules.ENDS, f"after {count} rounds and {snapshot.now_ms / 1000:g} s jobs have not ended: {waiting}",
                case,
            )

    try:
        return replay(trace, cluster, rules.watched(policy, note, check), settings, truth=truth, journal=journal)
    except PlanError as error:
        raise PolicyViolation(rules.rule_of(error), str(error), case) from error
    except InvariantError as error:
        if "nothing will happen" not in str(error):
            raise  # a defect of brim, not of the policy
        raise PolicyViolation(rules.ENDS, str(error), case) from error


class _Search:
    """Looks for the smallest failing situation, within one budget for all searches."""

    def __init__(self, policy: Policy, examples: int, seed: int) -> None:
        self._policy, self._examples, self._seed = policy, examples, seed
        self._until_s = time.process_time() + BUDGET_CPU_S
        self._tried = 0
        self._found: PolicyViolation | None = None

    def spend(self) -> None:
        """See ``Budget``."""
        if time.process_time() > self._until_s:
            raise _SpentError

    def run(self, check: Callable[[CaseT], None], cases: SearchStrategy[CaseT], most: int | None = None) -> None:
        """Try random cases, at most ``most``, and raise the violation of the smallest case that fails."""
        import hypothesis  # noqa: PLC0415

        explain = hypothesis.Phase.explain  # traces every line, for notes that are not shown: half of a search or more

        @hypothesis.seed(self._seed)
        @hypothesis.settings(
            max_examples=min(self._examples, most or self._examples), deadline=None, database=None,
            verbosity=hypothesis.Verbosity.quiet, report_multiple_bugs=False, print_blob=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[phase for phase in hypothesis.settings().phases if phase is not explain],
        )
        @hypothesis.given(cases)
        def search(case: CaseT) -> None:
            self._try(check, case)

        try:
            search()
        except hypothesis.errors.Flaky as flaky:
            if self._found is None:
                raise PolicyViolation(rules.PURE, f"the same situation failed once and not again: {flaky}") from None
            if not self._is_spent():
                raise PolicyViolation(
                    rules.PURE, "the same situation gave two decisions; one of them breaks the rule "
                    f"{self._found.rule!r}: {self._found.what}", self._found.case,
                ) from None
            raise self._found from None  # the budget ended before the smallest case was found
        if self._is_spent():
            raise BudgetSpentError(
                f"policy {self._policy.name!r}: the check used up its {BUDGET_CPU_S} s of CPU time after {self._tried} "
                "situations, which broke no rule: try fewer with --examples, or make its rounds faster or fewer"
            )

    def _try(self, check: Callable[[CaseT], None], case: CaseT) -> None:
        if self._is_spent():
            return
        try:
            check(case)
        except PolicyViolation as violation:
            self._found = violation
            raise
        except _SpentError:
            return
        self._tried += 1

    def _is_spent(self) -> bool:
        return time.process_time() > self._until_s
