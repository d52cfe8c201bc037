"""How many GPUs each job gets so that the sum of the jobs' values is greatest: a multiple-choice knapsack, exactly.

The recurrence of the paper is P[j][c] = max over g of value[j][g] + P[j-1][c-g], with J x K x G additions. Most of them
cannot affect the answer, and they can be found before the recurrence starts:

**Grid.** Job j's gain d_j(e) is its value with e GPUs more than its smallest size, less the value there. Gains are
rounded, step by step, to whole multiples of a power of two; the sum of a best choice has about 2^51 of them. From here
on every relevant number is an integer below 2^53 in a float64: all sums are exact, the order of jobs does not matter,
and ties are exact. The total is off by half a unit per GPU at most.

**Price.** With R GPUs left above the smallest sizes and any price p >= 0 per GPU,

    sum d_j(e_j)  =  L(p) - sum loss_j(e_j) - p (R - sum e_j),        L(p) = p R + sum max_e (d_j(e) - p e)

where loss_j(e) = max_e' (d_j(e') - p e') - (d_j(e) - p e) >= 0. So a best choice is one of least loss plus p times the
GPUs left over, and the smallest p at which the jobs want at most R is found by bisection. If a choice is known for
which this is ``gap``, no option and no partial choice of more loss than that is part of a best choice (fixing by
reduced cost). The best choices at price p, one of which is the **base**, have loss 0.

**Three ways on.** (1) Earlier jobs take larger options of loss 0 first; if this uses up R, as it always does for
concave tables, the choice is complete. (2) ``_narrow`` lowers the gap: it tries other options near the base, for the
jobs with the cheapest ones first (after Pisinger's core), with bounded effort. (3) ``_trace`` solves the recurrence
over the remaining options without noting which was best, and reads the choice off the stages afterwards; stages that
would take too much memory are computed again from every n-th one.

Only options that are part of no best choice are cut, so all three ways give the same answer.

Source:
    Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020, arXiv:2006.13878 (the problem; the recurrence as
    in the Voda scheduler's re-implementation). Pisinger, A minimal algorithm for the multiple-choice knapsack problem,
    EJOR 83 (1995) (core and bounds). Differs: fewer sums for the same answer; the rule for ties is ours.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from brim.compiled import internal, njit
from brim.core.arrays import FloatArray, IntArray
from brim.errors import InvariantError

_GRID_BITS: Final = 51
"""A best gain is below 2^51 units and L(p) below 2^53, up to which float64 is exact for integers."""
_SMALL: Final = 2.0**-900
"""Gains this small relative to the largest value count as 0; they are lost in any sum with it."""
_NARROW_CELLS: Final = 4_000_000
"""Additions spent on lowering the gap, a few milliseconds at most; ours."""
_NARROW_REACH: Final = 512
"""GPUs by which a partial choice may differ from the one at price p while the gap is lowered; ours."""
_ROWS_CELLS: Final = 4_000_000
"""Cells of the recurrence kept at a time, 32 MB; with more, rows are computed twice."""


class Options(NamedTuple):
    """Sizes that may be chosen (O of them), grouped by job, ascending.

    Attributes:
        first: Index of each job's first option, and the end of the last job's options (J + 1,).
        gpus: GPUs above the job's smallest size (O,).
        gain: Gain over the smallest size, units (O,).
    """

    first: IntArray
    gpus: IntArray
    gain: FloatArray


class Priced(NamedTuple):
    """The same options relative to the base, a choice that is best at the price.

    Attributes:
        first: As in ``Options`` (J + 1,).
        gpus: GPUs more than in the base, possibly negative (O,).
        loss: Loss at the price, units, >= 0; the base's is 0 (O,).
        base: GPUs above the smallest size in the base (J,).
        near: Least loss of the options other than the base's (J,).
        slack: GPUs that the base leaves over.
    """

    first: IntArray
    gpus: IntArray
    loss: FloatArray
    base: IntArray
    near: FloatArray
    slack: int


class Stages(NamedTuple):
    """The recurrence over the C options left of the N jobs that still have two or more.

    Stage n is the least loss of jobs n.. for each number of GPUs more than the base; at stage N no choice is left.

    Attributes:
        first: Index of each job's first option, and the end of the last job's options (N + 1,).
        gpus: GPUs more than in the base, ascending within a job (C,).
        loss: Loss, units (C,).
        low: Fewest GPUs of each stage that can be part of a best choice (N + 1,).
        high: Most such GPUs (N + 1,).
    """

    first: IntArray
    gpus: IntArray
    loss: FloatArray
    low: IntArray
    high: IntArray


def best_sizes(value_JG: FloatArray, capacity: int) -> IntArray | None:
    """GPUs for each job that maximise the total value, exactly.

    Ties: the fewest GPUs in total; then most for the first job, then most for the second, and so on. Totals tie if they
    are equal after rounding to 2^-51 of a bound on the gain over the smallest sizes, once per GPU at most.

    Time is about that of reading the table as long as few options compete at the margin, and O(J x K x G) at worst,
    when almost all are tied. Memory is O(J x G), plus 32 MB or O(K sqrt J) at worst.

    Args:
        value_JG: Value of giving job j exactly g GPUs, any unit, shape (J, G + 1); column 0 is no GPUs. -inf where
            (j, g) is not allowed. The values need be neither monotone nor concave.
        capacity: K, GPUs to give away in all.

    Returns:
        GPUs of each job (J,), or None where no allowed choice for every job fits.

    Raises:
        InvariantError: The table has NaN or +inf, no columns, or ``capacity`` is negative.

    Source:
        See the module.
    """
    value_JG = _checked(value_JG, capacity)
    allowed_JG = value_JG > -np.inf
    if not allowed_JG.any(axis=1).all():
        return None
    least_J = allowed_JG.argmax(axis=1)
    spare = capacity - int(least_J.sum())
    if spare < 0:
        return None
    options = _list_options(value_JG, least_J, spare)
    pick_J, price = _bid(options, spare)
    sizes_J: IntArray = least_J + options.gpus[pick_J]
    if price > 0:
        priced = _to_losses(options, pick_J, price, spare)
        sizes_J = least_J + priced.base + _beside_base(priced, price)
    return sizes_J


def _checked(value_JG: FloatArray, capacity: int) -> FloatArray:
    """Check the arguments and return a copy scaled to magnitudes of about 1, so that differences cannot overflow."""
    value_JG = np.asarray(value_JG, dtype=np.float64, order="C")
    if value_JG.ndim != 2 or not value_JG.shape[1]:
        raise InvariantError(f"value table: found shape {value_JG.shape}, expected (J, G + 1)")
    if capacity < 0:
        raise InvariantError(f"capacity: found {capacity} GPUs, expected 0 or more")
    bad_JG = ~(value_JG < np.inf)
    if bad_JG.any():
        row, column = np.argwhere(bad_JG)[0].tolist()
        raise InvariantError(
            f"value table, job row {row}, column {column}: found {value_JG[row, column]}, expected a number or -inf"
        )
    largest = float(np.max(np.abs(value_JG), initial=0.0, where=value_JG > -np.inf))
    return value_JG * 2.0 ** min(-math.frexp(largest)[1], 1000)


def _beside_base(priced: Priced, price: float) -> IntArray:
    """GPUs more than in the base, for each job of the best choice (J,)."""
    gap = price * priced.slack
    more_J = np.zeros(len(priced.base), np.int64)
    if gap == 0:  # the base is best and, among best choices, gives earlier jobs the most
        return more_J
    close_J = np.flatnonzero(priced.near <= gap)
    gap = _narrow(priced, close_J[np.argsort(priced.near[close_J], kind="stable")], price)
    open_N = np.flatnonzero(priced.near <= gap)
    if len(open_N):
        stages = _stages(priced, open_N, price, gap)
        more_J[open_N] = _trace(stages, price, priced.slack, gap, _rows_apart(stages))
    return more_J


def _stages(priced: Priced, open_N: IntArray, price: float, gap: float) -> Stages:
    """Keep the options within the gap, and the part of each stage that is reachable within it."""
    kept_O = priced.loss <= gap
    kept_J = np.diff(np.concatenate(([0], np.cumsum(kept_O)))[priced.first])
    is_open_J = np.zeros(len(kept_J), np.bool_)
    is_open_J[open_N] = True
    kept_O &= np.repeat(is_open_J, np.diff(priced.first))
    first = np.concatenate(([0], np.cumsum(kept_J[open_N])))
    gpus = priced.gpus[kept_O]
    fewest_N, most_N = gpus[first[:-1]], gpus[first[1:] - 1]
    fewest_before, most_before = (np.concatenate(([0], np.cumsum(each))) for each in (fewest_N, most_N))
    wanted = priced.slack - int(gap // price)
    return Stages(
        first, gpus, priced.loss[kept_O],
        np.maximum(fewest_before[-1] - fewest_before, wanted - most_before),
        np.minimum(most_before[-1] - most_before, priced.slack - fewest_before),
    )


def _rows_apart(stages: Stages) -> int:
    """Number of stages kept at a time: all, or about sqrt N if all would take too much memory."""
    num_stages = len(stages.low)
    if num_stages * int((stages.high - stages.low).max() + 1) <= _ROWS_CELLS:
        return num_stages
    return math.isqrt(num_stages) + 1


@njit
def _list_options(value_JG: FloatArray, least_J: IntArray, spare: int) -> Options:
    """List the sizes that fit beside the smallest sizes of all other jobs and are worth more than every smaller one."""
    num_jobs, width = value_JG.shape
    first = np.zeros(num_jobs + 1, np.int64)
    gpus = np.empty(value_JG.size, np.int64)
    gain = np.empty(value_JG.size)
    count, total, per_gpu = 0, 0.0, 0.0
    for j in range(num_jobs):
        least = least_J[j]
        best = -np.inf
        for g in range(least, min(width, least + spare + 1)):
            if value_JG[j, g] > best:
                best = value_JG[j, g]
                gpus[count] = g - least
                gain[count] = best - value_JG[j, least]
                per_gpu = max(per_gpu, gain[count] / max(g - least, 1))
                count += 1
        total += gain[count - 1]
        first[j + 1] = count
    scale = 2.0 ** (_GRID_BITS - math.frexp(max(min(total, per_gpu * spare), _SMALL))[1])
    for j in range(num_jobs):
        before, units = 0.0, 0.0
        for o in range(first[j], first[j + 1]):
            units += math.floor((gain[o] - before) * scale + 0.5)
            before = gain[o]
            gain[o] = units
    return Options(first, gpus[:count], gain[:count])


@njit
def _bid(options: Options, spare: int) -> tuple[IntArray, float]:
    """Least whole price at which all jobs together want at most ``spare`` GPUs, and each job's option there (J,).

    A job wants the smallest of its best options. This never grows with the price, so every step of the bisection leaves
    fewer options to examine.
    """
    first, gpus, gain = options.first, options.gpus, options.gain
    num_jobs = len(first) - 1
    low, high = first[:-1].copy(), first[1:] - 1
    pick = low.copy()
    too_low, enough = -1.0, 2.0**_GRID_BITS
    price = 0.0
    while enough - too_low > 1:
        wanted = 0
        for j in range(num_jobs):
            at, best = low[j], gain[low[j]] - price * gpus[low[j]]
            for o in range(low[j] + 1, high[j] + 1):
                worth = gain[o] - price * gpus[o]
                if worth > best:
                    at, best = o, worth
            pick[j] = at
            wanted += gpus[at]
        if wanted <= spare:
            enough = price
            low, pick = pick, low
        else:
            too_low = price
            high, pick = pick, high
        price = math.floor((too_low + enough) / 2)
    return low, enough


@njit
def _to_losses(options: Options, pick_J: IntArray, price: float, spare: int) -> Priced:
    """Compute losses at the price; from ``pick_J`` on, earlier jobs take larger options of loss 0 while GPUs last."""
    first = options.first
    more, loss = np.empty_like(options.gpus), np.empty_like(options.gain)
    base, near = np.empty_like(pick_J), np.empty(len(pick_J))
    slack = spare
    for j in range(len(pick_J)):
        slack -= options.gpus[pick_J[j]]
    for j in range(len(pick_J)):
        at = pick_J[j]
        start = options.gpus[at]
        best = options.gain[at] - price * start
        for o in range(first[j], first[j + 1]):
            loss[o] = best - (options.gain[o] - price * options.gpus[o])
            if loss[o] == 0 and options.gpus[o] - start <= slack:
                at = o
        base[j] = options.gpus[at]
        slack -= base[j] - start
        near[j] = np.inf
        for o in range(first[j], first[j + 1]):
            more[o] = options.gpus[o] - base[j]
            if o != at:
                near[j] = min(near[j], loss[o])
    return Priced(first, more, loss, base, near, slack)


@internal
def _relax(target: FloatArray, source: FloatArray, loss: float) -> None:
    """Set each element of ``target`` to ``source`` plus the loss where that is less; the compiler vectorises it."""
    for i in range(len(target)):
        cost = source[i] + loss
        target[i] = cost if cost < target[i] else target[i]


@njit
def _narrow(priced: Priced, order: IntArray, price: float) -> float:
    """Return a gap that some choice attains: the best found by trying options of the jobs in ``order``, up to a limit.

    ``cost[_NARROW_REACH + d]`` is the least loss found so far of a choice with d GPUs more than the base.
    """
    gap = price * priced.slack
    cost = np.full(2 * _NARROW_REACH + 1, np.inf)
    cost[_NARROW_REACH] = 0.0
    before = cost.copy()
    low, high, cells = _NARROW_REACH, _NARROW_REACH, 0
    for j in order:
        if priced.near[j] > gap or cells > _NARROW_CELLS:
            break
        for i in range(len(cost)):
            before[i] = cost[i]
        old_low, old_high = low, high
        for o in range(priced.first[j], priced.first[j + 1]):
            more = priced.gpus[o]
            begin, end = max(old_low + more, 0), min(old_high + more, len(cost) - 1)
            if more != 0 and priced.loss[o] <= gap and begin <= end:
                _relax(cost[begin : end + 1], before[begin - more : end + 1 - more], priced.loss[o])
                low, high, cells = min(low, begin), max(high, end), cells + end + 1 - begin
        for i in range(low, min(high, _NARROW_REACH + priced.slack) + 1):
            gap = min(gap, cost[i] + price * (priced.slack - (i - _NARROW_REACH)))
        while cost[low] > gap:
            low += 1
        while cost[high] > gap:
            high -= 1
    return gap


@njit
def _trace(stages: Stages, price: float, slack: int, gap: float, apart: int) -> IntArray:
    """GPUs more than in the base for each job of the recurrence (N,): the best choice by the rule for ties."""
    num_jobs = len(stages.first) - 1
    num_blocks = (num_jobs + apart - 1) // apart
    width = (stages.high - stages.low).max() + 1
    rows, kept = np.empty((apart + 1, width)), np.empty((num_blocks + 1, width))
    begin, end = np.zeros(num_jobs + 1, np.int64), np.zeros(num_jobs + 1, np.int64)
    kept[num_blocks, 0] = 0.0
    for block in range(num_blocks - 1, 0, -1):
        _solve_block(stages, gap, block * apart, rows, kept[block + 1], begin, end)
        for i in range(width):
            kept[block, i] = rows[0, i]
    more_N = np.empty(num_jobs, np.int64)
    left, least = 0, np.inf
    for block in range(num_blocks):
        _solve_block(stages, gap, block * apart, rows, kept[block + 1], begin, end)
        if block == 0:
            for d in range(begin[0], min(end[0], slack) + 1):
                cost = rows[0, d - stages.low[0]] + price * (slack - d)
                if cost < least:
                    left, least = d, cost
        left = _read_block(stages, block * apart, rows, begin, end, left, more_N)
    return more_N


@internal
def _read_block(
    stages: Stages, bottom: int, rows: FloatArray, begin: IntArray, end: IntArray, left: int, more_N: IntArray
) -> int:
    """Write the block's part of the choice with ``left`` GPUs more than the base; return the GPUs left for the next."""
    for n in range(bottom, min(bottom + len(rows) - 1, len(more_N))):
        cost, after = rows[n - bottom, left - stages.low[n]], rows[n - bottom + 1]
        found = False
        for o in range(stages.first[n + 1] - 1, stages.first[n] - 1, -1):
            rest = left - stages.gpus[o]
            if begin[n + 1] <= rest <= end[n + 1] and after[rest - stages.low[n + 1]] + stages.loss[o] == cost:
                more_N[n], left, found = stages.gpus[o], rest, True
                break
        if not found:
            raise InvariantError("knapsack: found a stage without its best option, expected one")
    return left


@internal
def _solve_block(
    stages: Stages, gap: float, bottom: int, rows: FloatArray, above: FloatArray, begin: IntArray, end: IntArray
) -> None:
    """Compute the stages from ``bottom`` on into ``rows``, below the stage ``above``; cut ends beyond the gap."""
    top = min(bottom + len(rows) - 1, len(stages.first) - 1)
    for i in range(end[top] - begin[top] + 1):
        rows[top - bottom, begin[top] - stages.low[top] + i] = above[begin[top] - stages.low[top] + i]
    for n in range(top - 1, bottom - 1, -1):
        target, source = rows[n - bottom], rows[n - bottom + 1]
        first, last = stages.first[n], stages.first[n + 1] - 1
        low, source_low = stages.low[n], stages.low[n + 1]
        begin[n] = max(low, begin[n + 1] + stages.gpus[first])
        end[n] = min(stages.high[n], end[n + 1] + stages.gpus[last])
        for i in range(begin[n] - low, end[n] - low + 1):
            target[i] = np.inf
        for o in range(first, last + 1):
            more = stages.gpus[o]
            lo, hi = max(begin[n], begin[n + 1] + more), min(end[n], end[n + 1] + more) + 1
            if lo < hi:
                _relax(target[lo - low : hi - low], source[lo - more - source_low : hi - more - source_low],
                       stages.loss[o])
        while begin[n] < end[n] and target[begin[n] - low] > gap:
            begin[n] += 1
        while begin[n] < end[n] and target[end[n] - low] > gap:
            end[n] -= 1
