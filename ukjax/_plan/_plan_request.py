"""The user's request as a problem, and starts of a search for its solution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _check
from .._analysis import independent, inverse_dynamics, on_constraints
from .._mechanism import Mechanism
from .._result import RESULTS
from .._rounding import rounding_errors
from .._servo import actuation_at, actuation_of, limits_at, limits_of
from ._curve import kind_of, least_points
from ._search import Limits
from ._shooting import Shooting, shown


class PlanRequest(NamedTuple):
    """The arguments of `plan` that define the problem."""

    mechanism: Any
    actuation: Any
    q0: Any
    v0: Any
    goal: Any
    duration: Any
    t0: Any
    curve: Any
    points: Any
    cost: Any
    limits: Any
    path: Any
    size: Any
    segments: Any


def problem_of(
    asked: PlanRequest, options: dict[str, Any]
) -> tuple[Shooting, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Returns the problem, the bounds of controls and duration, and first states; raises TypeError or ValueError."""
    mechanism = asked.mechanism
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q0, v0 = _check.floating(asked.q0, "q0"), _check.floating(asked.v0, "v0")
    q0, v0, t0 = _check.state(q0, v0, asked.t0, names=("q0", "v0"), kinematics=mechanism.kinematics)
    _check.finite(q0, "q0")
    _check.finite(v0, "v0")
    _must_fit(mechanism, q0, v0, t0, "q0, v0")
    actuation = actuation_of(asked.actuation)
    p = jax.eval_shape(lambda q, t: actuation_at(actuation, q, t, v0.shape[0]), q0, t0).shape[1]
    kind, points = kind_of(asked.curve), _check.count(asked.points, "points")
    if points < least_points(kind):
        raise ValueError(f"points must be at least {least_points(kind)} for a {kind} curve, but is {points}.")
    if asked.cost not in ("effort", "time"):
        raise ValueError(f'cost must be "effort" or "time", but is {asked.cost!r}.')
    low, about, high = _durations(asked.duration)
    if asked.cost == "time" and (low == high or asked.limits is None):
        raise ValueError('cost="time" needs limits, and a duration that is free: (shortest, guess, longest).')
    path = None if asked.path is None else _check.function(asked.path, "path", "path(q, v, t) -> (k,)")
    bounds = None if asked.limits is None else limits_of(asked.limits)
    least, most = (np.asarray(x, float) for x in limits_at(bounds, p, q0.dtype))
    half = (most - least) / 2
    sizes = np.where(np.isfinite(half) & (half > 0), half, 1.0)
    sizes = sizes if asked.size is None else np.full(p, _check.positive(asked.size, "size"))
    free, segments = low != high, _check.count(asked.segments, "segments")
    segments = points if kind == "constant" else segments
    goal, last = _goal(asked.goal, mechanism, q0, v0, t0 + about)
    problem = Shooting(
        mechanism, actuation, q0, v0, t0, goal, path, jnp.asarray(about, q0.dtype), options,
        jnp.asarray(sizes, q0.dtype), kind, (points, p), free, segments,
        segments * (1 if path is None else -(-points // segments)),
    )  # fmt: skip
    _must_be_possible(problem)
    spread = lambda x: np.tile(x / sizes, points)
    more = ([low / about], [high / about]) if free else ([], [])
    way = np.linspace(0.0, 1.0, segments + 1)[1:-1, None]
    first = np.concatenate([np.asarray(q0), np.asarray(v0)])
    middle = first + way * (last - first)
    return problem, (np.concatenate([spread(least), more[0]]), np.concatenate([spread(most), more[1]])), middle


def _must_be_possible(problem: Shooting) -> None:
    """Raises ValueError if goal or path are not finite at the start, or the path is violated there for good."""
    q, v, t = problem.q0, problem.v0, problem.t0
    found = {"goal(q, v)": problem.missed(q, v)}
    if problem.path is not None:
        found["path(q, v, t)"] = problem.limit(q, v, t)
    for name, value in found.items():
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name} must be finite, but is {np.asarray(value)} at q0, v0.")
    if problem.path is None:
        return
    left, rounding = found["path(q, v, t)"], rounding_errors(problem.limit, q, v, t)
    if np.any(left < -rounding):
        raise ValueError(
            f"path(q, v, t) must not be negative on the way, but is {np.asarray(left)} at q0, v0, where every way "
            "begins. Start within it, or leave room in it."
        )


def _durations(value: Any) -> tuple[float, float, float]:
    if isinstance(value, tuple | list):
        if len(value) != 3:
            raise ValueError(f"duration must be a number or (shortest, guess, longest) [s], but is {value!r}.")
        low, about, high = (_check.positive(x, f"duration[{i}]") for i, x in enumerate(value))
        if not low <= about <= high or low == high:
            raise ValueError(f"duration must be (shortest, guess, longest) in this order, but is {value!r}.")
        return low, about, high
    about = _check.positive(value, "duration")
    return about, about, about


def _goal(goal: Any, mechanism: Mechanism, q0: Array, v0: Array, t1: Array) -> tuple[Callable, np.ndarray]:
    """Returns a goal as a function of the last state, and a state near the end if known, else the start."""
    if callable(goal):
        here = np.concatenate([np.asarray(q0), np.asarray(v0)])
        return _check.function(goal, "goal", "goal(q, v) -> (r,)"), here
    if not isinstance(goal, tuple | list) or len(goal) != 2:
        raise TypeError(f"goal must be a pair (q1, v1) or a function goal(q, v) -> (r,), but is {goal!r}.")
    names = ("q of the goal", "v of the goal")
    given = [_check.floating(x, name) for x, name in zip(goal, names, strict=True)]
    q1, v1, _ = _check.state(*given, names=names, kinematics=mechanism.kinematics)
    for name, x, like in zip(names, (q1, v1), (q0, v0), strict=True):
        _check.finite(x, name)
        if x.shape != like.shape:
            raise ValueError(f"{name} must have shape {like.shape}, as at the start, but has {x.shape}.")
    _must_fit(mechanism, q1, v1, t1, "goal")
    # On the constraints only as many entries can be met independently as there are degrees of freedom.
    states = independent(mechanism, q1, v1, t1)
    return _At(states, states(q1, v1, t1), t1), np.concatenate([np.asarray(q1), np.asarray(v1)])


def _must_fit(mechanism: Mechanism, q: Array, v: Array, t: Array, name: str) -> None:
    """Raises ValueError if a state is off the constraints."""
    if bool(on_constraints(mechanism, q, v, t) != RESULTS.successful):
        raise ValueError(
            f"{name} must be on the constraints. Take the nearest state that is: ukjax.assemble(mechanism, q, v)."
        )


class _At(eqx.Module):
    """The errors of independent states."""

    states: Any
    wanted: Array
    t: Array

    def __call__(self, q: Array, v: Array) -> Array:
        return self.states(q, v, self.t) - self.wanted


def given_start(guess: Any, problem: Shooting, within: Limits, middle: np.ndarray) -> np.ndarray:
    """Returns x at the start of the search, by the user's guess or without one."""
    if guess is None:
        # From rest, with no direction preferred, a search might stay where it is.
        z = _holding(problem, middle) + 1e-3 * np.sin(1.0 + np.arange(problem.controls))
        return np.concatenate([within.of(np.concatenate([z, [1.0] * problem.free])), middle.ravel()])
    points = np.asarray(_check.floating(guess, "guess"))
    if points.shape != problem.shape:
        raise ValueError(f"guess must have shape (points, actuators) = {problem.shape}, but has {points.shape}.")
    _check.finite(points, "guess")
    z = np.concatenate([(points / np.asarray(problem.size)).ravel(), [1.0] * problem.free])
    if np.any(z < within.low) or np.any(z > within.high):
        raise ValueError("guess must lie within limits.")
    x = within.of(z)
    parts = jnp.linspace(0.0, 1.0, problem.segments + 1).astype(problem.q0.dtype)
    along = shown(problem, problem.curve_of(jnp.asarray(x)), parts)
    states = np.concatenate([np.asarray(along.q), np.asarray(along.v)], axis=1)[1:-1]
    return np.concatenate([x, np.where(np.isfinite(states), states, middle).ravel()])


def random_start(draws: Any, problem: Shooting, within: Limits, middle: np.ndarray) -> np.ndarray:
    """Returns x with random controls, and first states off the straight way by about its length."""
    z = _holding(problem, middle) + draws.normal(size=problem.controls)
    long = np.max(np.abs(middle), initial=0.0)
    states = middle + 0.3 * long * draws.normal(size=middle.shape)
    return np.concatenate([within.of(np.concatenate([z, [1.0] * problem.free])), states.ravel()])


def _holding(problem: Shooting, middle: np.ndarray) -> np.ndarray:
    """Returns control points, over their size, that would hold the mechanism at rest on the straight way; else zero."""
    n, rest = problem.q0.shape[0], jnp.zeros_like(problem.v0)
    back = lambda x: problem.begin(jnp.concatenate([x[:n], rest]))[:n]

    def hold(x):
        at = inverse_dynamics(problem.mechanism, problem.actuation, back(x), rest, rest, problem.t0, throw=False)
        okay = (at.result == RESULTS.successful) & jnp.all(jnp.isfinite(at.u))
        return jnp.where(okay, at.u / problem.size, 0.0)

    if problem.mechanism.nonideal is not None or not len(middle):
        return np.zeros(problem.controls)
    way = jnp.linspace(0.0, len(middle) - 1.0, problem.shape[0])
    ends = jnp.floor(way).astype(int), jnp.ceil(way).astype(int)
    low, high = (jnp.asarray(middle)[i] for i in ends)
    states = low + (way - jnp.floor(way))[:, None] * (high - low)
    return np.asarray(jax.vmap(hold)(states)).ravel()
