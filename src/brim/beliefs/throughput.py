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

from dataclasses import dataclass
from typing import Final, NamedTuple

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
    """Steps that were timed, one row per configuration (mean over its steps), shape (M,).

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
        if len(set(shapes.values())) != 1 or len(shapes["step_s"]) != 1:
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
STEPS_MAX: Final = 60
"""Most iterations; a fit takes 2 to 10, and one that takes more is reported as not converged."""
INSIDE: Final = 1e-9
"""How far inside the box, in logarithms of parameters, a fit begins."""
TOLERANCE: Final = 1e-4
"""A fit has converged when a step gains less than this share of the squared error."""


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
    prior = None if prior is None or not np.isfinite(prior).all() else np.asarray(prior, dtype=np.float64)
    problem = _fault(observations)
    if problem:
        parameters = np.full(len(PARAMETERS), np.nan) if prior is None else prior
        return Fit(parameters=parameters, residual=np.inf, points=len(observations), ok=False, status=problem)
    data = _prepare(observations)
    start = _start(data, GAMMA_TYPICAL if prior is None else float(prior[GAMMA]))
    center = start if prior is None else np.log(np.maximum(prior, np.exp(data.floor)))
    width = np.full(len(PARAMETERS), START_WIDTH if prior is None else PRIOR_WIDTH)
    width[GAMMA] = GAMMA_WIDTH
    theta, converged = _descend(data, np.where(data.frozen, center, start), center, width)
    parameters = _clean(np.exp(theta), data, prior)
    error = np.log(step_s(parameters, data.nodes, data.gpus, data.batch)) - data.log_step
    return Fit(
        parameters=parameters, residual=float(np.sqrt(np.mean(error**2))), points=len(observations), ok=converged,
        status="converged" if converged else f"no optimum within {STEPS_MAX} steps",
    )


class _Data(NamedTuple):
    """Observations in the form of the fit, (M,); per parameter (P,) its least logarithm, and whether it was unseen."""

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


def _fault(seen: Observations) -> str:
    """Why these observations are unusable; empty if they are usable."""
    if not len(seen):
        return "nothing observed"
    if not all(np.isfinite(getattr(seen, name)).all() for name in seen.__slots__):
        return "observations hold a value that is not finite"
    if (seen.step_s <= 0).any() or (seen.sync_s < 0).any() or (seen.sync_s >= seen.step_s).any():
        return "observations hold a step that takes no time or no longer than its exchange"
    if (seen.nodes < 1).any() or (seen.gpus < seen.nodes).any() or (seen.local_batch <= 0).any():
        return "observations hold a configuration that cannot be: fewer GPUs than nodes, or no samples"
    return ""


def _prepare(seen: Observations) -> _Data:
    step, grad = seen.step_s.astype(np.float64), (seen.step_s - seen.sync_s).astype(np.float64)
    several = seen.gpus > 1
    log_step, log_grad = np.log(step), np.log(grad)
    floor = np.full(len(PARAMETERS), log_grad.min() + np.log(NOTHING))
    floor[BETA_C] -= np.log(seen.local_batch.max())
    floor[GAMMA] = 0.0
    inside, across, more = several & (seen.nodes == 1), several & (seen.nodes > 1), seen.gpus > 2
    frozen = ~np.array([
        True, True, inside.any(), (inside & more).any(), across.any(), (across & more).any(), several.any(),
    ])
    return _Data(
        seen.nodes, seen.gpus, seen.local_batch.astype(np.float64), _doublings(seen.gpus),
        inside, across, step, grad, log_step, log_grad, floor, frozen,
    )


def _start(data: _Data, gamma: float) -> FloatArray:
    """Logarithms of the parameters (P,) by two linear fits, taking the overlap as known."""
    start = np.zeros(len(PARAMETERS))
    start[GAMMA] = gamma
    start[:ALPHA_R] = _line(data.batch, data.grad)
    exchange = np.maximum(data.step**gamma - data.grad**gamma, 0.0) ** (1.0 / gamma)
    for alpha, seen in ((ALPHA_R, data.inside), (ALPHA_N, data.across)):
        usable = seen & (exchange > 0)
        if usable.any():
            start[alpha : alpha + 2] = _line(data.peers[usable], exchange[usable])
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(start), data.floor)


def _line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Least relative squares of ``y = a + b x`` with a, b >= 0; evenly split where all x are one."""
    weight = 1.0 / y**2
    total = weight.sum()
    x_mean, y_mean = (weight * x).sum() / total, (weight * y).sum() / total
    spread = (weight * (x - x_mean) ** 2).sum()
    if spread <= 1e-12 * total * max(x_mean, 1.0) ** 2:
        return (float(y_mean / 2), float(y_mean / 2 / x_mean)) if x_mean > 0 else (float(y_mean), 0.0)
    slope = float((weight * (x - x_mean) * (y - y_mean)).sum() / spread)
    slope = max(slope, 0.01 * y_mean / max(x_mean, 1.0))
    constant = y_mean - slope * x_mean
    if constant <= 0.01 * y_mean:
        constant = 0.01 * y_mean
        slope = max((y_mean - constant) / x_mean, 0.0)
    return float(constant), float(slope)


def _descend(
    data: _Data, theta: FloatArray, center: FloatArray, width: FloatArray
) -> tuple[FloatArray, bool]:
    """Least squares from ``theta`` within the box, over the parameters that were observed."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - a quarter of a second that rigid replays do not need

    free = ~data.frozen
    ceiling = np.full(len(theta), np.inf)
    ceiling[GAMMA] = np.log(GAMMA_MAX)
    start = np.clip(theta, data.floor + INSIDE, ceiling - INSIDE)

    def whole(part: FloatArray) -> FloatArray:
        theta = start.copy()
        theta[free] = part
        return theta

    last: dict[bytes, tuple[FloatArray, FloatArray]] = {}

    def both(part: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Errors and derivatives; the solver asks for them one after the other at each point that it goes to."""
        key = part.tobytes()
        if key not in last:
            last.clear()
            errors, derivatives = _residuals(data, whole(part), center, width)
            last[key] = errors, derivatives[:, free]
        return last[key]

    found = least_squares(
        lambda part: both(part)[0], start[free], jac=lambda part: both(part)[1],
        bounds=(data.floor[free], ceiling[free]), ftol=TOLERANCE, max_nfev=STEPS_MAX,
    )
    return whole(found.x), bool(found.success)


def _residuals(
    data: _Data, theta: FloatArray, center: FloatArray, width: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Errors in units of their expected size (2 M + P + 2,) and their derivatives by theta (2 M + P + 2, P)."""
    count, size = len(data.step), len(theta)
    p = np.exp(theta)
    gamma = p[GAMMA]
    grad = p[ALPHA_C] + p[BETA_C] * data.batch
    sync = np.where(data.inside, p[ALPHA_R] + p[BETA_R] * data.peers, p[ALPHA_N] + p[BETA_N] * data.peers)
    several = data.inside | data.across
    log_ratio = np.log(sync / grad)
    power = np.where(several, np.exp(gamma * log_ratio), 0.0)
    share, joined = power / (1.0 + power), np.log1p(power) / gamma
    log_grad = np.log(grad)
    residuals = np.empty(2 * count + size + 2)
    residuals[:count] = log_grad + joined - data.log_step
    residuals[count : 2 * count] = log_grad - data.log_grad
    residuals[: 2 * count] /= NOISE
    residuals[2 * count : -2] = (theta - center) / width
    residuals[-2] = 0.0 if data.frozen[BETA_R] else p[BETA_R] / p[ALPHA_R] / RETROGRESSION_WIDTH
    residuals[-1] = 0.0 if data.frozen[BETA_N] else p[BETA_N] / p[ALPHA_N] / RETROGRESSION_WIDTH

    jacobian = np.zeros((len(residuals), size))
    constant = p[ALPHA_C] / grad
    by_batch = 1.0 - constant
    steps, grads = jacobian[:count], jacobian[count : 2 * count]
    grads[:, ALPHA_C], grads[:, BETA_C] = constant, by_batch
    steps[:, ALPHA_C], steps[:, BETA_C] = constant * (1.0 - share), by_batch * (1.0 - share)
    for alpha, seen in ((ALPHA_R, data.inside), (ALPHA_N, data.across)):
        part = np.where(seen, share * (p[alpha] / sync), 0.0)
        steps[:, alpha], steps[:, alpha + 1] = part, np.where(seen, share, 0.0) - part
    steps[:, GAMMA] = np.where(several, share * log_ratio, 0.0) - joined
    jacobian[: 2 * count] /= NOISE
    jacobian[2 * count : -2][np.arange(size), np.arange(size)] = 1.0 / width
    for row, alpha in ((-2, ALPHA_R), (-1, ALPHA_N)):
        jacobian[row, alpha], jacobian[row, alpha + 1] = -residuals[row], residuals[row]
    return residuals, jacobian


def _clean(parameters: FloatArray, data: _Data, prior: FloatArray | None) -> FloatArray:
    """Set unseen parameters to the prior's value, else to the level below, and vanishing ones to 0."""
    lows = np.exp(data.floor) * 1.001
    parameters[:GAMMA] = np.where(parameters[:GAMMA] <= lows[:GAMMA], 0.0, parameters[:GAMMA])
    below = 0.0, 0.0
    for alpha in (ALPHA_R, ALPHA_N):
        for column, of_below in ((alpha, below[0]), (alpha + 1, below[1])):
            if data.frozen[column]:
                parameters[column] = of_below if prior is None else prior[column]
        below = float(parameters[alpha]), float(parameters[alpha + 1])
    return parameters
