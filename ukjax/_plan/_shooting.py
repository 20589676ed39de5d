"""A plan as a problem of finitely many numbers, by multiple shooting.

Controls over time are piecewise constant, piecewise linear, or cubic splines, by B-splines. The motion is cut into
segments, each with a first state of its own; the search must join them. No segment then is so long that an instability
spoils it.

K: control points; p: actuators; s: part of the duration that has passed, from 0 to 1; B_i(s): basis.

x = (y, T, s): control points in coordinates in which their effort is a sum of squares, the duration over the guess if
it is free, and the first states of all segments but the first; c(x): gaps between segments, the error of the goal, and
the values of the path; J: derivative of c.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import _check
from .._analysis import independent
from .._formulation import AbstractFormulation
from .._manifold import Projection
from .._mechanism import Mechanism
from .._program import jit_fast_compile
from .._result import RESULTS
from .._servo import ActuationLike, Feedback
from .._simulate import simulate
from .._simulation import adaptive
from .._trajectory import Trajectory
from .._types import Numbers


Kind = Literal["constant", "linear", "cubic"]
DEGREE = {"constant": 0, "linear": 1, "cubic": 3}
# Error that is reported if a simulation fails, so that a search turns back.
FAR = 1e3
FAR_BACK = 6  # Newton steps of the projection of a first state, which may lie far off the constraints


class Curve(eqx.Module):
    r"""The curve u(t) = \sum_i B_i((t - start) / duration) z_i, constant before its start and after its end.

    Attributes:
        points: Control points z (K, p); no control is larger than the largest of them.
        start: Time at which the curve begins [s].
        duration: Duration of the curve [s].
        kind: "constant", "linear" or "cubic".
    """

    points: Float[Array, "K p"]
    start: Float[Array, ""]
    duration: Float[Array, ""]
    kind: Kind = eqx.field(static=True)

    def __call__(self, t: Array) -> Array:
        """Returns u (p,) at a time."""
        pieces = _pieces(self.kind, self.points.shape[0])
        intervals, degree = pieces.shape[2], pieces.shape[1] - 1
        s = (t - self.start) / self.duration
        # Not `clip`: its slope at an end, where many motions end too, is half of the slope beside it.
        edge = 64 * jnp.finfo(s.dtype).eps
        s = jnp.where(s < -edge, 0.0, jnp.where(s > 1 + edge, 1.0, s)) * intervals
        i = jnp.clip(jnp.floor(s).astype(int), 0, intervals - 1)
        # Integer exponents: the derivative of x ** 0.0 at zero is NaN.
        powers = jnp.stack([(s - i.astype(s.dtype)) ** k for k in range(degree + 1)])
        weights = jnp.take(jnp.asarray(pieces, self.points.dtype), i, axis=2) @ powers
        return weights @ self.points

    def effort(self, weights: Array) -> Array:
        r"""Returns $\int u^\top W u\,dt$ for weights (p,), exactly."""
        H = jnp.asarray(_products(self.kind, self.points.shape[0]), self.points.dtype)
        return self.duration * jnp.sum(weights * jnp.sum(self.points * (H @ self.points), axis=0))


def kind_of(value: Kind) -> Kind:
    """Returns the argument `curve`; raises ValueError if it is invalid."""
    if value not in get_args(Kind):
        raise ValueError(f"curve must be one of {', '.join(map(repr, get_args(Kind)))}, but is {value!r}.")
    return value


@functools.cache
def _pieces(kind: Kind, K: int) -> np.ndarray:
    """Returns the coefficients of every B_i in every interval, by powers within it: (K, degree + 1, n)."""
    from scipy.interpolate import BSpline

    degree = DEGREE[kind]
    intervals = K - degree
    knots = np.concatenate([np.zeros(degree), knots_of(kind, K), np.ones(degree)])
    nodes = (np.arange(degree + 1) + 0.5) / (degree + 1)
    powers = nodes[:, None] ** np.arange(degree + 1)
    pieces = np.zeros((K, degree + 1, intervals))
    for i in range(K):
        basis = BSpline(knots, np.eye(K)[i], degree)
        for j in range(intervals):
            pieces[i, :, j] = np.linalg.solve(powers, basis((j + nodes) / intervals))
    return pieces


@functools.cache
def _products(kind: Kind, K: int) -> np.ndarray:
    """Returns the integral of B_i B_j from 0 to 1, (K, K)."""
    pieces = _pieces(kind, K)
    degree, intervals = pieces.shape[1] - 1, pieces.shape[2]
    # The integrals of s^a s^b over an interval.
    hilbert = 1.0 / (np.arange(degree + 1)[:, None] + np.arange(degree + 1)[None] + 1.0)
    return np.einsum("iaj,ab,kbj->ik", pieces, hilbert, pieces) / intervals


def root_of_effort(kind: Kind, K: int) -> np.ndarray:
    """Returns R (K, K) with R R^T the integral of B_i B_j from 0 to 1: for z = R^-T y the effort is y^T y."""
    return np.linalg.cholesky(_products(kind, K))


def knots_of(kind: Kind, K: int) -> np.ndarray:
    """Returns the knots, ends included, as parts of the duration."""
    return np.linspace(0.0, 1.0, K - DEGREE[kind] + 1)


def least_points(kind: Kind) -> int:
    """Returns the least number of control points."""
    return DEGREE[kind] + 1


class MotionOptions(eqx.Module):
    """The method and the accuracy of the simulations of a plan; `rtol` is the absolute tolerance too."""

    formulation: AbstractFormulation
    projection: Projection | None
    rtol: float


class Shooting(eqx.Module):
    """The problem of a plan; see `plan`."""

    mechanism: Mechanism
    actuation: ActuationLike
    q0: Array
    v0: Array
    t0: Array
    goal: Callable[[Array, Array], Numbers]
    path: Callable[[Array, Array, Array], Numbers] | None
    duration: Array
    motion: MotionOptions
    size: Array
    kind: Kind = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    free: bool = eqx.field(static=True)
    segments: int = eqx.field(static=True)
    looks: int = eqx.field(static=True)  # times at which the path is evaluated, a multiple of the segments

    @property
    def controls(self) -> int:
        """Number of entries of x that are control points."""
        return self.shape[0] * self.shape[1]

    @property
    def joints(self) -> int:
        """Number of entries of a first state."""
        return self.q0.shape[0] + self.v0.shape[0]

    def curve(self, y: Array, T: Array) -> Curve:
        """Returns the controls for control points y and a part T of the duration."""
        points = jnp.asarray(self.points_of(), y.dtype) @ y.reshape(self.shape)
        return Curve(points * self.size[None], self.t0, T * self.duration, self.kind)

    def curve_of(self, x: Array) -> Curve:
        """Returns the controls for x."""
        y, T, _ = self.split(x)
        return self.curve(y, T)

    def split(self, x: Array) -> tuple[Array, Array, Array]:
        """Returns y, T, and the first states (segments - 1, numbers of a state); no states if x has none."""
        y, rest = x[: self.controls], x[self.controls :]
        T = rest[0] if self.free else jnp.ones((), x.dtype)
        return y, T, rest[int(self.free) :].reshape(-1, self.joints)

    def points_of(self) -> np.ndarray:
        """Returns R^-T, which maps y to control points over their size."""
        return np.linalg.inv(root_of_effort(self.kind, self.shape[0])).T

    @property
    def of_pieces(self) -> bool:
        """Whether each segment has one control, so that none jumps within, at a time that changes with T."""
        return self.kind == "constant" and self.segments == self.shape[0]

    def run(
        self, curve: Curve, state: Array, parts: Array, keep: tuple[str, ...] | None, piece: Array | None = None
    ) -> Trajectory:
        """Returns the motion from a state, saved at parts of the whole duration; `piece`: that control alone."""
        held = curve if piece is None else Curve(curve.points[piece][None], curve.start, curve.duration, curve.kind)
        controller = Feedback(_Law(held), self.actuation)
        q, v = state[: self.q0.shape[0]], state[self.q0.shape[0] :]
        ts = self.t0 + curve.duration * parts
        motion = self.motion
        steps = adaptive(motion.rtol, motion.rtol, ts, motion.projection is not None)
        if self.kind != "constant":
            # A step that passes over a knot is as exact as required for these controls, but not for a change of them.
            knots = self.t0 + curve.duration * jnp.asarray(knots_of(self.kind, self.shape[0]), ts.dtype)
            steps = diffrax.ClipStepSizeController(steps, step_ts=stop_gradient(knots))
        return simulate(
            self.mechanism, q, v, ts, servo=controller, formulation=motion.formulation, stepsize_controller=steps,
            projection=motion.projection, keep=keep, throw=False,
        )  # fmt: skip

    def segment(self, state: Array, y: Array, T: Array, number: Array) -> Array:
        """Returns q and v at the end of one segment, the error of the goal there, and its path values."""
        inner = self.looks // self.segments + 1
        parts = (number.astype(y.dtype) + jnp.linspace(0.0, 1.0, inner).astype(y.dtype)) / self.segments
        got = self.run(self.curve(y, T), self.begin(state), parts, ("q", "v"), number if self.of_pieces else None)
        q, v, t = got.q, got.v, got.t
        found = [q[-1], v[-1], self.missed(q[-1], v[-1])]
        if self.path is not None:
            found.append(jax.vmap(self.limit)(q[1:], v[1:], t[1:]).ravel())
        out = jnp.concatenate(found)
        okay = (got.result == RESULTS.successful) & jnp.all(jnp.isfinite(out))
        return jnp.where(okay, out, FAR)

    def missed(self, q: Array, v: Array) -> Array:
        """Returns the error of the goal at a state (r,)."""
        hint = "One number for each thing to be met."
        return _check.output(self.goal(q, v), ("r",), q.dtype, "goal(q, v)", hint)

    def limit(self, q: Array, v: Array, t: Array) -> Array:
        """Returns the values of the path at a state (k,), which must not be negative."""
        assert self.path is not None, "asked only if there is one"
        return _check.output(self.path(q, v, t), ("k",), q.dtype, "path(q, v, t)")

    def begin(self, state: Array) -> Array:
        """Returns a first state after its projection on the constraints."""
        back = self.motion.projection
        if back is None:
            return state
        back = Projection(FAR_BACK, back.pseudoinverse)
        return back(self.mechanism, self.t0, state, coordinates=self.q0.shape[0])

    def astray(self, x: Array) -> Array:
        """Returns half the squared distance of first states from their projections, which makes the optimum unique."""
        states = self.split(x)[2]
        if self.motion.projection is None or not states.shape[0]:
            return jnp.zeros((), x.dtype)
        return jnp.sum((states - jax.vmap(self.begin)(states)) ** 2) / 2

    @property
    def goals(self) -> int:
        """Number of conditions of the goal."""
        return jax.eval_shape(self.missed, self.q0, self.v0).shape[0]


class _Law(eqx.Module):
    """A control over time as a law of the state."""

    curve: Curve

    def __call__(self, q: Array, v: Array, t: Array) -> Array:
        return self.curve(t)


class Look(NamedTuple):
    """Conditions c and their derivative J; the first `met` entries of c must vanish, the others not be negative."""

    c: np.ndarray
    J: np.ndarray
    met: int


class Parts(NamedTuple):
    """Ends of segments, with derivatives by state, control points and duration; beginnings, with derivatives."""

    ends: Array | np.ndarray
    of_state: Array | np.ndarray
    of_controls: Array | np.ndarray
    of_duration: Array | np.ndarray
    begins: Array | np.ndarray
    of_begins: Array | np.ndarray


@jit_fast_compile
def _parts(problem: Shooting, x: Array) -> Parts:
    """Computes all segments at once, with one run each, differentiated in the cheaper mode."""
    y, T, states = problem.split(x)
    first = jnp.concatenate([problem.q0, problem.v0])
    numbers = jnp.arange(problem.segments)

    def one(state: Array, number: Array) -> tuple[Array, Array, Array, Array]:
        def ends_twice(state: Array, y: Array, T: Array) -> tuple[Array, Array]:
            end = problem.segment(state, y, T, number)
            return end, end

        rows = jax.eval_shape(ends_twice, state, y, T)[0].shape[0]
        derive = jax.jacrev if rows <= state.shape[0] + y.shape[0] else jax.jacfwd
        (of_state, of_controls, of_duration), value = derive(ends_twice, argnums=(0, 1, 2), has_aux=True)(state, y, T)
        return value, of_state, of_controls, of_duration

    value, of_state, of_controls, of_duration = jax.vmap(one)(jnp.concatenate([first[None], states]), numbers)
    begins = jax.vmap(problem.begin)(states), jax.vmap(jax.jacfwd(problem.begin))(states)
    return Parts(value, of_state, of_controls, of_duration, *begins)


@jit_fast_compile
def _bends(problem: Shooting, x: Array, of_ends: Array, of_begins: Array) -> Array:
    """Returns second derivatives of weighted ends less weighted beginnings, of each segment, by its state, y and T."""
    y, T, states = problem.split(x)
    first = jnp.concatenate([problem.q0, problem.v0])
    cuts = [problem.joints, problem.joints + problem.controls]

    def one(state, number, ends, begins):
        def weighted(z):
            state, y, T = jnp.split(z, cuts)
            return ends @ problem.segment(state, y, T[0], number) - begins @ problem.begin(state)

        return jax.hessian(weighted)(jnp.concatenate([state, y, T[None]]))

    numbers = jnp.arange(problem.segments)
    return jax.vmap(one)(jnp.concatenate([first[None], states]), numbers, of_ends, of_begins)


def curvature(problem: Shooting, x: np.ndarray, joined: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the second derivative of the weighted c of `look`, by x."""
    S, width, d, r = problem.segments, problem.joints, joined.shape[1], problem.goals
    of_gaps, of_goal, of_path = np.split(weights, [(S - 1) * d, (S - 1) * d + r])
    ends, begins = np.zeros((S, width + r + len(of_path) // S)), np.zeros((S, width))
    np.put_along_axis(ends[:-1], joined, of_gaps.reshape(S - 1, d), axis=1)
    np.put_along_axis(begins[1:], joined, of_gaps.reshape(S - 1, d), axis=1)
    ends[-1, width : width + r] = of_goal
    ends[:, width + r :] = of_path.reshape(S, -1)
    bends = np.asarray(_bends(problem, jnp.asarray(x), jnp.asarray(ends), jnp.asarray(begins)))
    H, common = np.zeros((len(x), len(x))), np.arange(problem.controls + problem.free)
    for k, bend in enumerate(bends):
        own = len(common) + (k - 1) * width + np.arange(width if k else 0)
        places = np.concatenate([own, common])
        of = np.concatenate([np.arange(len(own)), width + common])
        H[places[:, None], places] += bend[of[:, None], of]
    return H


def independent_rows(problem: Shooting, x: np.ndarray) -> np.ndarray:
    """Returns the entries of (q, v) that determine each first state of x on the constraints, (segments - 1, d)."""
    states, n = jax.vmap(problem.begin)(problem.split(jnp.asarray(x))[2]), problem.q0.shape[0]
    found = [independent(problem.mechanism, state[:n], state[n:], problem.t0) for state in states]
    rows = [[*each.q, *(n + i for i in each.v)] for each in found]
    least = min((len(row) for row in rows), default=0)
    return np.array([row[:least] for row in rows], int).reshape(len(rows), least)


def look(problem: Shooting, x: np.ndarray, joined: np.ndarray) -> Look:
    """Returns c and J; `joined`: entries by which segments are joined, from `independent_rows`."""
    parts = Parts(*map(np.asarray, _parts(problem, jnp.asarray(x))))
    S, width, d, r = problem.segments, problem.joints, joined.shape[1], problem.goals
    before, met = problem.controls + problem.free, (S - 1) * d + r
    rows = parts.ends.shape[1] - width - r
    gaps = np.take_along_axis(parts.ends[:-1, :width] - parts.begins, joined, axis=1)
    c = np.concatenate([gaps.ravel(), parts.ends[-1, width : width + r], parts.ends[:, width + r :].ravel()])
    J = np.zeros((len(c), len(x)))
    for k in range(S):
        places: list[tuple[np.ndarray | slice, slice]] = [(joined[k], slice(k * d, (k + 1) * d))] if k < S - 1 else []
        places += [(slice(width, width + r), slice((S - 1) * d, met))] if k == S - 1 else []
        places += [(slice(width + r, None), slice(met + k * rows, met + (k + 1) * rows))]
        for here, there in places:
            J[there, : problem.controls] = parts.of_controls[k, here]
            if problem.free:
                J[there, problem.controls] = parts.of_duration[k, here]
            if k > 0:
                J[there, before + (k - 1) * width : before + k * width] = parts.of_state[k, here]
        if k < S - 1:
            J[k * d : (k + 1) * d, before + k * width : before + (k + 1) * width] -= parts.of_begins[k, joined[k]]
    return Look(c, J, met)


@jit_fast_compile
def shown(problem: Shooting, curve: Curve, parts: Array) -> Trajectory:
    """Returns the whole motion, from the start."""
    return problem.run(curve, jnp.concatenate([problem.q0, problem.v0]), parts, None)
