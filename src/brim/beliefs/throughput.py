"""The time of one step on given nodes and GPUs: a model of seven parameters, and its fit to observations.

Computing is affine in the local batch, exchanging gradients grows with the logarithm of the number of GPUs, and an
exponent says how much of the exchange hides behind the computing. Times are seconds, batches samples, one job's
parameters the last axis of an array (..., P), P = len(PARAMETERS). M observations.

Source:
    Qiao et al., Pollux, OSDI 2021, section 3.2. Differs: there the exchange grows by ``beta * (k - 2)``. Trained on 1
    to 4 GPUs of the six applications its authors measured, that misses the step times on 8 and 16 GPUs by 35 % on the
    mean, ``beta * log2(k - 1)`` by 11 % (tests/realdata/test_throughput.py). The two agree on 2 and 3 GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.errors import ConfigError

PARAMETERS: Final = ("alpha_c", "beta_c", "alpha_r", "beta_r", "alpha_n", "beta_n", "gamma")
"""Columns: computing (s, s per sample of the local batch), exchange inside one node (s, s per doubling of peers),
across nodes (the same), overlap (1: none, 10: nearly all hidden)."""
ALPHA_C, BETA_C, ALPHA_R, BETA_R, ALPHA_N, BETA_N, GAMMA = range(len(PARAMETERS))

GAMMA_MAX: Final = 10.0
"""Largest exponent: close enough to full overlap. Pollux (OSDI 2021)."""
GAMMA_TYPICAL: Final = 2.0
"""Overlap assumed without observations: the median of Pollux's six applications (1.0 to 2.8)."""


def grad_s(parameters: FloatArray, local_batch: FloatArray | IntArray | float) -> FloatArray:
    """Seconds to compute the gradient of one local batch; parameters (..., P) broadcast against the batches."""
    computing: FloatArray = parameters[..., ALPHA_C] + parameters[..., BETA_C] * local_batch
    return computing


def sync_s(parameters: FloatArray, nodes: IntArray | int, gpus: IntArray | int) -> FloatArray:
    """Seconds to exchange gradients, hidden or not: 0 on one GPU."""
    peers = _doublings(np.asarray(gpus))
    inside = parameters[..., ALPHA_R] + parameters[..., BETA_R] * peers
    across = parameters[..., ALPHA_N] + parameters[..., BETA_N] * peers
    return np.where(np.asarray(gpus) <= 1, 0.0, np.where(np.asarray(nodes) <= 1, inside, across))


def _doublings(gpus: IntArray) -> FloatArray:
    """Number of doublings of a GPU's peers from one, with which the exchange grows."""
    doublings: FloatArray = np.log2(np.maximum(gpus - 1, 1))
    return doublings


def step_s(
    parameters: FloatArray, nodes: IntArray | int, gpus: IntArray | int, local_batch: FloatArray | IntArray | float,
    accumulation: IntArray | int = 0,
) -> FloatArray:
    """Seconds of one optimizer step.

    Args:
        parameters: Shape (..., P), all >= 0, gamma in [1, 10]; its leading axes broadcast against the others.
        nodes: Nodes the job runs on.
        gpus: GPUs in all, at least one per node.
        local_batch: Samples per GPU and micro-step.
        accumulation: Extra micro-steps without exchange: each costs ``grad_s``.
    """
    computing, exchange = np.broadcast_arrays(grad_s(parameters, local_batch), sync_s(parameters, nodes, gpus))
    gamma = parameters[..., GAMMA]
    longer, shorter = np.maximum(computing, exchange), np.minimum(computing, exchange)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    joined: FloatArray = longer * (1.0 + ratio**gamma) ** (1.0 / gamma)
    return accumulation * computing + joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Steps of a job that were timed, one row per configuration (mean over its steps), shape (M,).

    Of several jobs with as many rows each: shape (..., M).

    Attributes:
        nodes: Nodes.
        gpus: GPUs in all.
        local_batch: Samples per GPU and micro-step.
        step_s: Seconds of one step that exchanges gradients, without accumulation.
        sync_s: The part of ``step_s`` spent in exchange that is not hidden; ``step_s - sync_s`` is computing time.
    """

    nodes: IntArray
    gpus: IntArray
    local_batch: FloatArray
    step_s: FloatArray
    sync_s: FloatArray

    def __len__(self) -> int:
        return len(self.step_s)

    def __post_init__(self) -> None:
        shapes = {name: np.shape(getattr(self, name)) for name in self.__slots__}
        if len(set(shapes.values())) != 1 or not shapes["step_s"]:
            raise ConfigError(f"observations: found columns of shapes {shapes}, expected equal shapes (M,)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The fit for one job.

    Attributes:
        parameters: Shape (P,). If not ok: those of the prior, NaN without one.
        residual: Root mean square of the logarithmic error of the step times seen; infinite where nothing was fitted.
        points: Number of observations.
        ok: Whether the fit converged on usable data.
        status: Description of the outcome.
    """

    parameters: FloatArray
    residual: float
    points: int
    ok: bool
    status: str


SPREAD_PER_DOUBLING: Final = 0.1
"""Growth of the uncertainty per doubling away from what was seen: fits to at most 2 GPUs of Pollux's applications are
off by 0.22 to 0.48 (root mean square, logarithm) at 1 to 5 doublings."""
SPREAD_UNTRIED: Final = 0.6
"""Added if no exchange of that kind was seen yet: fits to one GPU or one node are off by 0.5 to 0.9 beyond."""


def spread(
    fitted: Fit, observations: Observations, nodes: IntArray | int, gpus: IntArray | int,
    local_batch: FloatArray | IntArray | float,
) -> FloatArray:
    """Relative uncertainty (one standard deviation) of predicted step times, in the broadcast shape of the arguments.

    The fit's residual at configurations that were seen. Added in quadrature: the distance to the nearest of them,
    counted in doublings of nodes, GPUs and local batch, and a constant where no job of this kind (one GPU, one node,
    several nodes) was among them. Infinite where nothing was fitted.
    """
    wanted = np.broadcast_arrays(nodes, gpus, np.asarray(local_batch, dtype=np.float64))
    if not len(observations):
        return np.full(wanted[0].shape, np.inf)
    seen = (observations.nodes, observations.gpus, observations.local_batch)
    square = np.zeros((*wanted[0].shape, len(observations)))
    for ours, theirs in zip(wanted, seen, strict=True):
        square += np.square(np.log2(ours)[..., None] - np.log2(theirs))
    untried = ~np.isin(_kind(wanted[0], wanted[1]), _kind(observations.nodes, observations.gpus))
    variance: FloatArray = fitted.residual**2 + SPREAD_PER_DOUBLING**2 * square.min(axis=-1)
    return np.sqrt(variance + np.where(untried, SPREAD_UNTRIED**2, 0.0))


def _kind(nodes: IntArray, gpus: IntArray) -> IntArray:
    """0: one GPU, 1: one node, 2: several nodes."""
    return np.where(gpus <= 1, 0, np.where(nodes <= 1, 1, 2))


# --- the fit: maximum a posteriori in the logarithms of the parameters

NOISE: Final = 0.1
"""Logarithmic error of the model on one observation: its residual on Pollux's applications is 0.09 to 0.19 with
placements it cannot tell apart, 0.05 on one GPU."""
PRIOR_WIDTH: Final = 1.0
"""How far, in natural logarithms, a job is expected to be from its prior. Ours."""
START_WIDTH: Final = 5.0
"""The same without a prior, from our own starting point: almost free. Ours."""
GAMMA_WIDTH: Final = 0.5
"""The same for gamma: the six applications spread by about so much around ``GAMMA_TYPICAL``."""
RETROGRESSION_WIDTH: Final = 1.0
"""A ``beta`` of this many ``alpha`` costs as much as one observation that is off by ``NOISE``; the six applications
have 0.1 to 0.5. Pollux penalises the same ratio, for optimism about GPUs not tried yet."""
NOTHING: Final = 1e-6
"""Smallest value of a parameter, as a share of the shortest step seen; below this it is 0."""
STEPS_MAX: Final = 100
"""Most iterations; half of all fits take 2 to 12."""
STAGNATION: Final = 1e-3
"""A fit that takes all iterations has converged, too, if the second half of them took less than this share off its
squared error: far from the observations, steps gain little, but for ever. Others are reported as not converged."""
COMPUTE_S_MIN: Final = 1e-10
"""Shortest time to compute one step believed, in seconds; ours: a cycle of a GPU takes longer."""
STEP_S_MAX: Final = 1e6
"""Longest step believed, in seconds; ours: eleven days. Fits raise the ratio of two times to the tenth power, which a
double holds of the longest and the shortest step."""
TOLERANCE: Final = 1e-6
"""A fit has converged when a step gains less than this share of the squared error, and the linear model foretold it."""
GAIN_RATIO_MIN: Final = 0.25
"""Share of the gain foretold by the linear model from which on the model counts as right, as in SciPy."""
FLAT: Final = 1e-8
"""Slope of half the squared error at which a fit ends where it is."""
DAMPING: Final = 1e-3
"""What the first step adds to the curvature along each parameter, as a share of it. Nielsen 1999."""
DAMPING_FALL: Final = 1.0 / 3.0
"""Least factor of the damping after a step that gains. Nielsen 1999."""
DAMPING_RISE: Final = 2.0
"""Factor of the damping after a step that does not, and of this factor after each further one. Nielsen 1999."""


def fit(observations: Observations, prior: FloatArray | None = None) -> Fit:
    """Fit the parameters of one job; never raises for data.

    What the observations leave open is taken from the prior. Without one: a single batch size splits the time of
    computing evenly between constant and per-sample part (Pollux: optimistic about larger batches); an exchange not
    seen yet across nodes costs what it costs inside one, and nothing before it was seen there either; its growth with
    GPUs is that of the other level, and nothing before more than two GPUs were seen. So growth looks cheap until tried.
    A piecewise-linear computing time through the batch sizes seen was tried and not kept: 0.1 points of 11 %.

    Args:
        observations: One row per configuration.
        prior: Parameters (P,) of a similar job.
    """
    return fit_all([observations], [prior])[0]


def fit_all(observations: Sequence[Observations], priors: Sequence[FloatArray | None]) -> list[Fit]:
    """Fit the parameters of several jobs: ``fit`` of each, in much less time where many have few observations.

    Args:
        observations: Of each job.
        priors: Of each job; None for none, as is one with a value that no job can have.
    """
    known = [prior if prior is not None and _is_usable(prior) else None for prior in priors]
    alike: dict[tuple[int, bool], list[int]] = {}
    for at, (seen, prior) in enumerate(zip(observations, known, strict=True)):
        alike.setdefault((len(seen), prior is not None), []).append(at)
    fits: dict[int, Fit] = {}
    for (_, has_prior), members in alike.items():
        seen = Observations(**{name: np.stack([getattr(observations[at], name) for at in members])
                               for name in Observations.__slots__})
        prior = np.array([known[at] for at in members]) if has_prior else None
        fits.update(zip(members, _fit_alike(seen, prior), strict=True))
    return [fits[at] for at in range(len(observations))]


def _is_usable(prior: FloatArray) -> bool:
    return bool(np.isfinite(prior).all() and (prior >= 0).all() and prior[GAMMA] > 0)


def _fit_alike(seen: Observations, prior: FloatArray | None) -> list[Fit]:
    """Fit B jobs with M observations each, (B, M), and priors (B, P), or none."""
    problems, points = _faults(seen), seen.step_s.shape[-1]
    unknown = np.full((len(problems), len(PARAMETERS)), np.nan) if prior is None else prior
    fits = [
        Fit(parameters=parameters, residual=np.inf, points=points, ok=False, status=problem)
        for parameters, problem in zip(unknown, problems, strict=True)
    ]
    good = np.flatnonzero([not problem for problem in problems])
    if not len(good):
        return fits
    data = _prepare(Observations(**{name: getattr(seen, name)[good] for name in Observations.__slots__}))
    prior = None if prior is None else prior[good]
    start = _start(data, np.full(len(good), GAMMA_TYPICAL) if prior is None else prior[:, GAMMA])
    center = start if prior is None else np.log(np.maximum(prior, np.exp(data.floor)))
    width = np.full(len(PARAMETERS), START_WIDTH if prior is None else PRIOR_WIDTH)
    width[GAMMA] = GAMMA_WIDTH
    theta, converged = _descend(data, np.where(data.frozen, center, start), center, width)
    parameters = _clean(np.exp(theta), data, prior)
    error = np.log(step_s(parameters[:, None], data.nodes, data.gpus, data.batch)) - data.log_step
    residual = np.sqrt(np.mean(error**2, axis=-1))
    for at, ok, *found in zip(good.tolist(), converged, parameters, residual.tolist(), strict=True):
        fits[at] = Fit(
            parameters=found[0], residual=found[1], points=points, ok=ok,
            status="converged" if ok else f"no optimum within {STEPS_MAX} steps",
        )
    return fits


class _Data(NamedTuple):
    """Observations of B jobs in the form of the fit, (..., M).

    Per parameter, (..., P): its least logarithm, and whether it was unseen.
    """

    nodes: IntArray
    gpus: IntArray
    batch: FloatArray
    peers: FloatArray
    inside: BoolArray
    across: BoolArray
    step: FloatArray
    grad: FloatArray
    log_step: FloatArray
    log_grad: FloatArray
    floor: FloatArray
    frozen: BoolArray

    def of(self, jobs: IntArray) -> _Data:
        """Those of some jobs."""
        columns: list[Any] = [each[jobs] for each in self]
        return _Data(*columns)


def _faults(seen: Observations) -> list[str]:
    """Why observations (B, M) are unusable, for each job; empty if they are usable."""
    if not seen.step_s.size:
        return ["nothing observed"] * len(seen)
    columns = [getattr(seen, name) for name in seen.__slots__]
    odd = (
        ("observations hold a value that is not finite", ~np.isfinite(columns).all(axis=0)),
        ("observations hold a step that takes no time or no longer than its exchange",
         (seen.step_s <= 0) | (seen.sync_s < 0) | (seen.sync_s >= seen.step_s)),
        (f"observations hold a step that computes for less than {COMPUTE_S_MIN:g} s, or takes over {STEP_S_MAX:g} s",
         (seen.step_s - seen.sync_s < COMPUTE_S_MIN) | (seen.step_s > STEP_S_MAX)),
        ("observations hold a configuration that cannot be: fewer GPUs than nodes, or no samples",
         (seen.nodes < 1) | (seen.gpus < seen.nodes) | (seen.local_batch <= 0)),
    )
    problems = [""] * len(seen)
    for words, where in reversed(odd):
        for job in np.flatnonzero(where.any(axis=-1)).tolist():
            problems[job] = words
    return problems


def _prepare(seen: Observations) -> _Data:
    step, grad = seen.step_s.astype(np.float64), (seen.step_s - seen.sync_s).astype(np.float64)
    several = seen.gpus > 1
    log_step, log_grad = np.log(step), np.log(grad)
    floor = np.repeat(log_grad.min(axis=-1, keepdims=True) + np.log(NOTHING), len(PARAMETERS), axis=-1)
    floor[..., BETA_C] -= np.log(seen.local_batch.max(axis=-1))
    floor[..., GAMMA] = 0.0
    inside, across, more = several & (seen.nodes == 1), several & (seen.nodes > 1), seen.gpus > 2
    always = np.ones(len(seen), dtype=np.bool_)
    frozen = ~np.stack((always, always, *(each.any(axis=-1) for each in (
        inside, inside & more, across, across & more, several,
    ))), axis=-1)
    return _Data(
        seen.nodes, seen.gpus, seen.local_batch.astype(np.float64), _doublings(seen.gpus),
        inside, across, step, grad, log_step, log_grad, floor, frozen,
    )


def _start(data: _Data, gamma: FloatArray) -> FloatArray:
    """Logarithms of the parameters (B, P) by two linear fits, taking the overlap (B,) as known."""
    start = np.zeros(data.floor.shape)
    start[:, GAMMA] = gamma
    start[:, :ALPHA_R] = _lines(data.batch, data.grad, np.ones(data.step.shape, dtype=np.bool_))
    if not data.frozen[:, GAMMA].all():
        each = gamma[:, None]
        with np.errstate(divide="ignore"):  # not **, whose last bits depend on strides
            hidden = np.log(np.maximum(np.exp(each * data.log_step) - np.exp(each * data.log_grad), 0.0))
        exchange = np.exp(hidden / each)
        for alpha, seen in ((ALPHA_R, data.inside), (ALPHA_N, data.across)):
            start[:, alpha : alpha + 2] = _lines(data.peers, exchange, seen & (exchange > 0))
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(start), data.floor)


def _lines(x: FloatArray, y: FloatArray, usable: BoolArray) -> FloatArray:
    """Least relative squares of ``y = a + b x`` (B, M) with a, b >= 0, as (B, 2); evenly split where all x are one.

    Only usable points count; 0 where there are none.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # in rows of which another branch is taken
        weight = np.where(usable, 1.0 / y**2, 0.0)
        x, y = np.where(usable, x, 0.0), np.where(usable, y, 0.0)
        total = weight.sum(axis=-1)
        x_mean, y_mean = (weight * x).sum(axis=-1) / total, (weight * y).sum(axis=-1) / total
        x_away, y_away = x - x_mean[:, None], y - y_mean[:, None]
        spread = (weight * x_away**2).sum(axis=-1)
        slope = (weight * x_away * y_away).sum(axis=-1) / spread
        slope = np.maximum(slope, 0.01 * y_mean / np.maximum(x_mean, 1.0))
        constant = y_mean - slope * x_mean
        flat = constant <= 0.01 * y_mean
        constant = np.where(flat, 0.01 * y_mean, constant)
        slope = np.where(flat, np.maximum((y_mean - constant) / x_mean, 0.0), slope)
        single = spread <= 1e-12 * total * np.maximum(x_mean, 1.0) ** 2
        at_zero = single & ~(x_mean > 0)
        constant = np.where(at_zero, y_mean, np.where(single, y_mean / 2, constant))
        slope = np.where(at_zero, 0.0, np.where(single, y_mean / 2 / x_mean, slope))
    return np.where(total[:, None] > 0, np.stack((constant, slope), axis=-1), 0.0)


def _descend(data: _Data, theta: FloatArray, center: FloatArray, width: FloatArray) -> tuple[FloatArray, list[bool]]:
    """Least squares from ``theta`` (B, P) within the box, over the parameters that were observed.

    Damped Gauss-Newton steps of all jobs at once, cut off at the box: a parameter at its bound whose slope leads out of
    it takes no part in the next step. What is computed for one job does not depend on the others.

    Source:
        Levenberg 1944, Marquardt 1963; the damping follows Nielsen, Damping parameter in Marquardt's method, 1999.
    """
    ceiling = np.full(len(PARAMETERS), np.inf)
    ceiling[GAMMA] = np.log(GAMMA_MAX)
    theta = np.clip(theta, data.floor, ceiling)
    errors, derivatives = _residuals(data, theta, center, width)
    converged = np.zeros(len(theta), dtype=np.bool_)
    damping, rise = np.full(len(theta), DAMPING), np.full(len(theta), DAMPING_RISE)
    midway = np.full(len(theta), np.inf)
    for number in range(STEPS_MAX):
        if number == STEPS_MAX // 2:
            midway = np.square(errors).sum(axis=-1)
        slope = np.matmul(errors[:, None], derivatives)[:, 0]
        leads_out = ((theta <= data.floor) & (slope > 0)) | ((theta >= ceiling) & (slope < 0))
        moves = ~(data.frozen | leads_out)
        converged |= np.abs(slope).max(axis=-1, where=moves, initial=0.0) < FLAT  # as a job's first report always is
        at = np.flatnonzero(~converged)
        if not len(at):
            break
        tried = np.clip(
            theta[at] + _step(derivatives[at], slope[at], moves[at], damping[at]), data.floor[at], ceiling,
        )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a step that goes too far is not taken
            ahead, ahead_derivatives = _residuals(data.of(at), tried, center[at], width)
            linear = errors[at] + np.matmul(derivatives[at], (tried - theta[at])[..., None])[..., 0]
            before, after, expected = (np.square(each).sum(axis=-1) for each in (errors[at], ahead, linear))
            gain_ratio = (before - after) / (before - expected)
        better = after < before
        to = at[better]
        theta[to], errors[to], derivatives[to] = tried[better], ahead[better], ahead_derivatives[better]
        fall = np.maximum(DAMPING_FALL, 1.0 - (2.0 * np.clip(gain_ratio, 0.0, 1.0) - 1.0) ** 3)
        damping[at] *= np.where(better, fall, rise[at])
        rise[at] = np.where(better, DAMPING_RISE, DAMPING_RISE * rise[at])
        converged[at] = better & (before - after < TOLERANCE * before) & (gain_ratio > GAIN_RATIO_MIN)
    converged |= midway - np.square(errors).sum(axis=-1) < STAGNATION * midway
    return theta, converged.tolist()


def _step(derivatives: FloatArray, slope: FloatArray, moves: BoolArray, damping: FloatArray) -> FloatArray:
    """The damped Gauss-Newton step (B, P) of the parameters that move."""
    derivatives = np.where(moves[:, None], derivatives, 0.0)
    curvature = np.matmul(derivatives.swapaxes(-1, -2), derivatives)
    columns = np.arange(slope.shape[-1])
    curvature[:, columns, columns] *= 1.0 + damping[:, None]
    curvature[:, columns, columns] += ~moves
    step: FloatArray = -np.linalg.solve(curvature, np.where(moves, slope, 0.0)[..., None])[..., 0]
    return step


def _residuals(
    data: _Data, theta: FloatArray, center: FloatArray, width: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Errors in units of their expected size (..., 2 M + P + 2), and their derivatives by theta (..., P) of each."""
    count, size = data.step.shape[-1], theta.shape[-1]
    p = np.exp(theta)[..., None]
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n, gamma = (p[..., column, :] for column in range(size))
    grad = alpha_c + beta_c * data.batch
    sync = np.where(data.inside, alpha_r + beta_r * data.peers, alpha_n + beta_n * data.peers)
    several = data.inside | data.across
    log_ratio = np.log(sync / grad)
    power = np.where(several, np.exp(gamma * log_ratio), 0.0)
    share, joined = power / (1.0 + power), np.log1p(power) / gamma
    log_grad = np.log(grad)
    residuals = np.empty((*theta.shape[:-1], 2 * count + size + 2))
    residuals[..., :count] = log_grad + joined - data.log_step
    residuals[..., count : 2 * count] = log_grad - data.log_grad
    residuals[..., : 2 * count] /= NOISE
    residuals[..., 2 * count : -2] = (theta - center) / width
    for row, alpha in ((-2, ALPHA_R), (-1, ALPHA_N)):
        growth = p[..., alpha + 1, 0] / p[..., alpha, 0] / RETROGRESSION_WIDTH
        residuals[..., row] = np.where(data.frozen[..., alpha + 1], 0.0, growth)

    jacobian = np.zeros((*residuals.shape, size))
    constant = alpha_c / grad
    by_batch = 1.0 - constant
    steps, grads = jacobian[..., :count, :], jacobian[..., count : 2 * count, :]
    grads[..., ALPHA_C], grads[..., BETA_C] = constant, by_batch
    steps[..., ALPHA_C], steps[..., BETA_C] = constant * (1.0 - share), by_batch * (1.0 - share)
    for alpha, seen in ((ALPHA_R, data.inside), (ALPHA_N, data.across)):
        part = np.where(seen, share * (p[..., alpha, :] / sync), 0.0)
        steps[..., alpha], steps[..., alpha + 1] = part, np.where(seen, share, 0.0) - part
    steps[..., GAMMA] = np.where(several, share * log_ratio, 0.0) - joined
    jacobian[..., : 2 * count, :] /= NOISE
    jacobian[..., 2 * count + np.arange(size), np.arange(size)] = 1.0 / width
    for row, alpha in ((-2, ALPHA_R), (-1, ALPHA_N)):
        jacobian[..., row, alpha], jacobian[..., row, alpha + 1] = -residuals[..., row], residuals[..., row]
    return residuals, jacobian


def _clean(parameters: FloatArray, data: _Data, prior: FloatArray | None) -> FloatArray:
    """Set unseen parameters (B, P) to the prior's value, else to the level below, and vanishing ones to 0."""
    lows = np.exp(data.floor[:, :GAMMA]) * 1.001
    parameters[:, :GAMMA] = np.where(parameters[:, :GAMMA] <= lows, 0.0, parameters[:, :GAMMA])
    below = np.zeros((len(parameters), 2))
    for alpha in (ALPHA_R, ALPHA_N):
        pair = slice(alpha, alpha + 2)
        unseen = below if prior is None else prior[:, pair]
        parameters[:, pair] = below = np.where(data.frozen[:, pair], unseen, parameters[:, pair])
    return parameters
