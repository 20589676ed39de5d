"""The search for the best x: sequential quadratic programming, then the shortest way to the goal.

Newton's steps use the exact curvature of cost and conditions: min f(x) subject to c_E(x) = 0 and c_I(x) >= 0; g: slope
of f; J: slope of c; l, m: multipliers, with which f - l c_E - m c_I is stationary; H: its curvature. A step
p = Y y + Z w: y meets the linearised c_E; w, in the null space of their slopes, is the least of the quadratic model
there, in which negative curvature counts as positive, subject to the linearised c_I: a least-distance problem. The
length of a step is found by the l1 merit function, with a correction of second order.

Source: Nocedal & Wright (2006), Numerical Optimization, chapter 18; least distance: Lawson & Hanson (1974), chapter 23.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm.auto import tqdm

from ._shooting import Look, Shooting, curvature, independent_rows, look


Method = Literal["slsqp", "newton"]
Cost = Literal["effort", "time"]
RANK = 1e-10  # least singular value of J that counts, relative to the largest
FLAT = 1e-5  # least curvature of a model, relative to the largest
SHORT = 1e-7  # least part of a step that is tried
REACH = 10.0  # longest step in any entry of x
ROUNDING = 1e-12  # change of merit, relative to the merit, that counts as rounding
STILL = 1e-9  # relative change of cost that counts as zero
LOST = 1e4  # gaps, and costs relative to those of typical controls, beyond which a search is lost
JOINED = 1e-3  # largest gaps that the last steps to the goal can close
HOMING = 8  # steps to the goal after the search
NOWHERE = np.zeros((0, 0), int)  # where a motion in one piece is joined


class Point(NamedTuple):
    """A point x, with f, c and their slopes; the first `met` entries of c must vanish, the others not be negative."""

    x: np.ndarray
    f: float
    g: np.ndarray
    c: np.ndarray
    J: np.ndarray
    met: int

    @property
    def missed(self) -> float:
        """Sum of all violations of the conditions."""
        return float(np.sum(np.abs(self.c[: self.met])) + np.sum(np.maximum(-self.c[self.met :], 0.0)))

    def merit(self, penalty: float) -> float:
        """Returns f with all violations, each weighed by the penalty."""
        return self.f + penalty * self.missed


# x -> what is known there; `Tell` is called with each x that a search comes to.
PointAt = Callable[[np.ndarray], Point]
LookAt = Callable[[np.ndarray], Look]
Tell = Callable[[np.ndarray], None]


class _Step(NamedTuple):
    """A step p, the value of p^T H p in the model, and multipliers of c."""

    p: np.ndarray
    bend: float
    multipliers: np.ndarray


def descend(
    at: PointAt, curvature: Callable[[np.ndarray, np.ndarray], np.ndarray], begin: np.ndarray,
    steps: int, ftol: float, tell: Tell,
) -> tuple[np.ndarray, bool, str]:  # fmt: skip
    """Returns the x where the descent ended, whether it is a minimum, and how the descent ended.

    Args:
        at: `at(x)`, a `Point`.
        curvature: `curvature(x, multipliers)` -> H.
        begin: x to start from.
        steps: Largest number of steps.
        ftol: Relative change of f, and of conditions, that counts as zero.
        tell: `tell(x)`, called after each step.
    """
    here = at(begin)
    multipliers, penalty = np.zeros(len(here.c)), 0.0
    for _ in range(steps):
        if not np.all(np.isfinite(here.J)):
            return here.x, False, "Newton's steps come to where there is no slope"
        multipliers = _estimate(here, multipliers)
        step = _step(here, curvature(here.x, multipliers))
        multipliers, change = step.multipliers, float(here.g @ step.p)
        if here.missed > ROUNDING:
            penalty = max(penalty, (change + max(step.bend, 0.0) / 2) / (0.7 * here.missed))
        fall = change - penalty * here.missed
        if here.missed <= np.sqrt(ftol) * 1e-2 and abs(change) + step.bend / 2 <= ftol * max(abs(here.f), ftol):
            return here.x, True, "Newton's steps came to a minimum"
        found = _along(at, here, step, penalty, fall)
        if found is None:
            return here.x, False, "Newton's steps find no way down"
        here = found
        tell(here.x)
    return here.x, False, "Step limit reached"


def _along(at: PointAt, here: Point, step: _Step, penalty: float, fall: float) -> Point | None:
    """Returns the first point along a step, halved repeatedly, where the merit falls enough, or None."""
    merit = here.merit(penalty)
    noise = ROUNDING * max(abs(merit), 1e-3)
    part = min(1.0, REACH / max(float(np.max(np.abs(step.p))), 1e-300))
    while part > SHORT:
        there = at(here.x + part * step.p)
        if there.merit(penalty) <= merit + 1e-4 * part * fall + noise:
            return there
        if part == 1.0:
            wanting = np.concatenate([there.c[: here.met], np.minimum(there.c[here.met :], 0.0)])
            rows = np.concatenate([np.ones(here.met, bool), wanting[here.met :] < 0])
            back = np.linalg.lstsq(here.J[rows], -wanting[rows], rcond=RANK)[0]
            there = at(there.x + back)
            if there.merit(penalty) <= merit + 1e-4 * fall + noise:
                return there
        part /= 2
    return None


def _estimate(here: Point, multipliers: np.ndarray) -> np.ndarray:
    """Returns multipliers of the equalities by least squares, and those of the inequalities from the last step."""
    E, others = here.J[: here.met], multipliers[here.met :]
    rest = here.g - here.J[here.met :].T @ others
    return np.concatenate([np.linalg.lstsq(E.T, rest, rcond=RANK)[0], others])


def _step(here: Point, H: np.ndarray) -> _Step:
    E, met = here.J[: here.met], here.met
    U, s, V = np.linalg.svd(E, full_matrices=True)
    rank = int(np.sum(s > RANK * np.max(s, initial=0.0)))
    U, s, Y, Z = U[:, :rank], s[:rank], V[:rank].T, V[rank:].T
    home = Y @ ((U.T @ -here.c[:met]) / s)
    values, vectors = np.linalg.eigh(Z.T @ H @ Z)
    values = np.maximum(np.abs(values), FLAT * np.max(np.abs(values), initial=0.0))
    scaled = Z @ (vectors / np.sqrt(np.where(values > 0, values, 1.0)))  # the model in w is |w|^2 / 2 plus a slope
    p, bound = _nearest(here, H, home, scaled)
    slope = here.g + H @ p - here.J[met:].T @ bound
    free = U @ ((Y.T @ slope) / s)
    return _Step(p, float(p @ H @ p), np.concatenate([free, bound]))


def _nearest(here: Point, H: np.ndarray, home: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns p, as far to c_E = 0 as the linearised c_I allow, then as far down; and the multipliers of c_I."""
    rows, c = here.J[here.met :], here.c[here.met :]
    from scipy.optimize import nnls

    if not len(c):
        return home - scaled @ (scaled.T @ (here.g + H @ home)), np.zeros(0)
    G = rows @ scaled
    for part in (1.0, 0.5, 0.1, 0.0):
        # The same part of a violation of c_I is corrected.
        low = scaled.T @ (here.g + part * (H @ home))
        least = -np.where(c < 0, part * c, c) - part * (rows @ home) + G @ low
        E, f = np.vstack([G.T, least]), np.zeros(G.shape[1] + 1)
        f[-1] = 1.0
        try:
            u = nnls(E, f, maxiter=10 * E.shape[1])[0]
        except RuntimeError:  # no convergence
            continue
        left = E @ u - f
        if -left[-1] > 1e-9:
            return part * home + scaled @ (-left[:-1] / left[-1] - low), u / -left[-1]
    return np.zeros_like(home), np.zeros(len(c))


class Found(eqx.Module):
    """The result of a search: x, its cost, the error of the goal, and the number of runs."""

    x: np.ndarray
    cost: float
    off: float
    success: bool
    message: str
    runs: int


class _Best(NamedTuple):
    """The best step of a search: the cheapest whose segments about join, or else the one with the smallest gaps."""

    x: np.ndarray
    cost: float
    gaps: float

    def or_else(self, other: "_Best") -> "_Best":
        joined, better = self.gaps <= JOINED, other.gaps <= JOINED
        if joined and better:
            return other if other.cost < self.cost else self
        return other if better or (not joined and other.gaps < self.gaps) else self


class _LostError(Exception):
    """Signals that a search has left the range of sensible values."""


class Search:
    """A search by SLSQP or Newton's steps from one start, then, in one piece, the shortest way to the goal."""

    def __init__(
        self, problem: Shooting, within: "Limits", weights: np.ndarray, cost: Cost, method: Method, atol: float,
        steps: int,
    ):  # fmt: skip
        self.problem, self.within, self.kind, self.atol, self.steps = problem, within, cost, atol, steps
        self.search = {"slsqp": self._slsqp, "newton": self._newton}[method]
        self.whole = dataclasses.replace(problem, segments=1)
        scale = float(np.max(np.asarray(problem.size))) ** 2 * float(problem.duration) * float(np.max(weights))
        self.unit = 2 * scale if cost == "effort" else float(problem.duration)

        def spent(x: Array) -> Array:
            value = problem.curve_of(x).effort(jnp.asarray(weights, x.dtype)) / scale / 2
            # The least time leaves controls undetermined; a trace of effort chooses among them.
            value = value if cost == "effort" else x[problem.controls] + 1e-4 * value
            # SLSQP begins with steps that are short in every direction, and would have another term to learn.
            return value if method == "slsqp" else value + problem.astray(x)

        self.value, self.bend = jax.jit(jax.value_and_grad(spent)), jax.jit(jax.hessian(spent))
        self.cached: tuple[bytes, Look] | None = None
        self.runs, self.joined = 0, NOWHERE

    def look(self, problem: Shooting, x: np.ndarray) -> Look:
        key = x.tobytes()
        if self.cached is None or self.cached[0] != key:
            self.runs += 1
            self.cached = key, look(problem, x, self.joined if problem is self.problem else NOWHERE)
        return self.cached[1]

    def run(self, begin: np.ndarray, bar: tqdm) -> Found:
        self.runs, problem = 0, self.problem
        self.joined = independent_rows(problem, begin)
        at = functools.partial(self.look, problem)
        met, best = at(begin).met, _Best(begin, np.inf, np.inf)

        def tell(x: np.ndarray) -> None:
            nonlocal best
            cost, gaps = self._cost(x), float(np.max(np.abs(at(x).c[:met])))
            bar.update(1)
            bar.set_postfix_str(f"cost {cost:.4g}, gaps up to {gaps:.1e}")
            if not (gaps < LOST and abs(cost) < LOST * self.unit):
                raise _LostError
            best = best.or_else(_Best(x, cost, gaps))

        try:
            found, done, message = self.search(at, begin, tell)
            last = found if done else best.x
        except _LostError:
            last, message = best.x, "The search went astray"
        x = self._home(last[: problem.controls + problem.free])
        c, _, met = self.look(self.whole, x)
        off = float(np.max(np.abs(c[:met])))
        within = float(np.min(c[met:], initial=0.0)) >= -self.atol and self.within.keeps(x)
        return Found(x, self._cost(x), off, off <= self.atol and within, message, self.runs)

    def _valued(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(y, float) for y in self.value(jnp.asarray(x)))

    def _slsqp(
        self, at: Callable[[np.ndarray], Look], begin: np.ndarray, tell: Callable[[np.ndarray], None]
    ) -> tuple[np.ndarray, bool, str]:
        import scipy.optimize

        met = at(begin).met
        conditions = [{"type": "eq", "fun": lambda x: at(x).c[:met], "jac": lambda x: at(x).J[:met]}]
        if self.problem.path is not None:
            conditions.append({"type": "ineq", "fun": lambda x: at(x).c[met:], "jac": lambda x: at(x).J[met:]})
        if self.within.some:
            conditions.append({"type": "ineq", "fun": self.within.left, "jac": lambda x: self.within.slopes})
        options = {"maxiter": self.steps, "ftol": STILL}
        found = scipy.optimize.minimize(
            self._valued, begin, jac=True, constraints=conditions, method="SLSQP", callback=tell, options=options
        )
        return found.x, bool(found.success), str(found.message)

    def _newton(
        self, at: Callable[[np.ndarray], Look], begin: np.ndarray, tell: Callable[[np.ndarray], None]
    ) -> tuple[np.ndarray, bool, str]:
        limits = len(self.within.slopes)

        def point(x: np.ndarray) -> Point:
            (f, g), (c, J, met) = self._valued(x), at(x)
            c, J = np.concatenate([c, self.within.left(x)]), np.concatenate([J, self.within.slopes])
            return Point(x, float(f), g, c, J, met)

        def bend(x: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
            of_c = curvature(self.problem, x, self.joined, multipliers[: len(multipliers) - limits])
            return np.asarray(self.bend(jnp.asarray(x))) - of_c

        return descend(point, bend, begin, self.steps, STILL, tell)

    def _home(self, x: np.ndarray) -> np.ndarray:
        """Returns x after the rest of the way to the goal, by the smallest change of the controls within limits."""
        # In one piece, piecewise constant controls jump at times that change with the duration: the duration stays.
        moved = self.problem.controls if self.problem.kind == "constant" else len(x)
        for _ in range(HOMING):
            c, J, met = self.look(self.whole, x)
            off = np.max(np.abs(c[:met]))
            if off <= 1e-2 * self.atol:
                break
            change = np.zeros(len(x))
            change[:moved] = np.linalg.lstsq(J[:met, :moved], -c[:met], rcond=1e-9)[0]
            closer = self.within.kept(x + change)
            if np.max(np.abs(self.look(self.whole, closer).c[:met])) >= off:
                break
            x = closer
        return x

    def _cost(self, x: np.ndarray) -> float:
        if self.kind == "time":
            return float(x[self.problem.controls]) * self.unit
        return float(self.value(jnp.asarray(x[: self.problem.controls + self.problem.free]))[0]) * self.unit


def method_of(value: Method) -> Method:
    """Returns the argument `search`; raises ValueError if it is invalid."""
    if value not in get_args(Method):
        raise ValueError(f"search must be one of {', '.join(map(repr, get_args(Method)))}, but is {value!r}.")
    return value


class Limits:
    """Margins of the limits of control points and duration, which are linear in x."""

    def __init__(self, problem: Shooting, box: tuple[np.ndarray, np.ndarray]):
        (K, p), free = problem.shape, int(problem.free)
        self.to = np.zeros((K * p + free, K * p + free))
        self.to[: K * p, : K * p] = np.kron(problem.points_of(), np.eye(p))
        self.to[K * p :, K * p :] = np.eye(free)
        self.low, self.high = box
        self.finite = np.isfinite(self.low), np.isfinite(self.high)
        rows = np.concatenate([self.to[self.finite[0]], -self.to[self.finite[1]]])
        self.slopes = np.pad(rows, ((0, 0), (0, (problem.segments - 1) * problem.joints)))
        self.some = bool(len(rows))

    def left(self, x: np.ndarray) -> np.ndarray:
        z = self.to @ x[: len(self.to)]
        return np.concatenate([(z - self.low)[self.finite[0]], (self.high - z)[self.finite[1]]])

    def keeps(self, x: np.ndarray) -> bool:
        """Whether controls and duration lie within the limits."""
        return float(np.min(self.left(x), initial=0.0)) >= -1e-9

    def kept(self, x: np.ndarray) -> np.ndarray:
        """Returns the x whose control points are those of this x, cut off at the limits."""
        return self.of(np.clip(self.to @ x, self.low, self.high)) if self.some else x

    def of(self, z: np.ndarray) -> np.ndarray:
        """Returns x from control points over their size and the duration over the guess, cut off at the limits."""
        return np.linalg.solve(self.to, np.clip(z, self.low, self.high))
