"""Motion planning by gradient: the controls that lead from a state to a goal at the least cost.

A `PlanRequest` holds what the user asks for; `problem_of` makes a problem of it, with starts of the search.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from tqdm.auto import tqdm

from .. import _check
from .._analysis import independent, inverse_dynamics, on_constraints
from .._formulation import AbstractFormulation, UdwadiaKalaba
from .._manifold import Projection
from .._mechanism import Mechanism
from .._result import RESULTS, message
from .._rounding import rounding_errors
from .._servo import ActuationLike, Feedback, actuation_at, actuation_of, limits_at, limits_of
from .._show import AbstractShown, Report, values
from .._trajectory import Trajectory
from .._types import Numbers
from ._search import Cost, Found, Limits, Method, Search, method_of
from ._shooting import Curve, Kind, MotionOptions, Shooting, kind_of, least_points, shown


# A pair of q and v, or a function of both that must vanish.
Goal = Sequence[Numbers] | Callable[[Array, Array], Numbers]
# A number, or (shortest, guess, longest).
Duration = ArrayLike | Sequence[ArrayLike]

SHOWN = 201  # saved times of the trajectory of a plan


class PlanRequest(NamedTuple):
    """The arguments of `plan` that define the problem."""

    mechanism: Mechanism
    actuation: ActuationLike
    q0: Numbers
    v0: Numbers
    goal: Goal
    duration: Duration
    t0: float
    curve: Kind
    points: int
    cost: Cost
    limits: tuple[Numbers, Numbers] | None
    path: Callable[[Array, Array, Array], Numbers] | None
    size: float | None
    segments: int
    motion: MotionOptions


def problem_of(asked: PlanRequest) -> tuple[Shooting, tuple[np.ndarray, np.ndarray], np.ndarray]:
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
        mechanism, actuation, q0, v0, t0, goal, path, jnp.asarray(about, q0.dtype), asked.motion,
        jnp.asarray(sizes, q0.dtype), kind, (points, p), free, segments,
        segments * (1 if path is None else -(-points // segments)),
    )  # fmt: skip
    _must_be_possible(problem)
    least, most = (np.tile(x / sizes, points) for x in (least, most))
    if free:
        least, most = np.append(least, low / about), np.append(most, high / about)
    way = np.linspace(0.0, 1.0, segments + 1)[1:-1, None]
    first = np.concatenate([np.asarray(q0), np.asarray(v0)])
    middle = first + way * (last - first)
    return problem, (least, most), middle


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


def _durations(value: Duration) -> tuple[float, float, float]:
    if isinstance(value, tuple | list):
        if len(value) != 3:
            raise ValueError(f"duration must be a number or (shortest, guess, longest) [s], but is {value!r}.")
        low, about, high = (_check.positive(x, f"duration[{i}]") for i, x in enumerate(value))
        if not low <= about <= high or low == high:
            raise ValueError(f"duration must be (shortest, guess, longest) in this order, but is {value!r}.")
        return low, about, high
    about = _check.positive(value, "duration")
    return about, about, about


def _goal(
    goal: Goal, mechanism: Mechanism, q0: Array, v0: Array, t1: Array
) -> tuple[Callable[[Array, Array], Numbers], np.ndarray]:
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

    states: Callable[[Array, Array, Array], Array]
    wanted: Array
    t: Array

    def __call__(self, q: Array, v: Array) -> Array:
        return self.states(q, v, self.t) - self.wanted


def given_start(guess: Numbers | None, problem: Shooting, within: Limits, middle: np.ndarray) -> np.ndarray:
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


def random_start(draws: np.random.Generator, problem: Shooting, within: Limits, middle: np.ndarray) -> np.ndarray:
    """Returns x with random controls, and first states off the straight way by about its length."""
    z = _holding(problem, middle) + draws.normal(size=problem.controls)
    long = np.max(np.abs(middle), initial=0.0)
    states = middle + 0.3 * long * draws.normal(size=middle.shape)
    return np.concatenate([within.of(np.concatenate([z, [1.0] * problem.free])), states.ravel()])


def _holding(problem: Shooting, middle: np.ndarray) -> np.ndarray:
    """Returns control points, over their size, that would hold the mechanism at rest on the straight way; else zero."""
    n, rest = problem.q0.shape[0], jnp.zeros_like(problem.v0)

    def hold(x: Array) -> Array:
        q = problem.begin(jnp.concatenate([x[:n], rest]))[:n]
        at = inverse_dynamics(problem.mechanism, problem.actuation, q, rest, rest, problem.t0, throw=False)
        okay = (at.result == RESULTS.successful) & jnp.all(jnp.isfinite(at.u))
        return jnp.where(okay, at.u / problem.size, 0.0)

    if problem.mechanism.nonideal is not None or not len(middle):
        return np.zeros(problem.controls)
    way = jnp.linspace(0.0, len(middle) - 1.0, problem.shape[0])
    ends = jnp.floor(way).astype(int), jnp.ceil(way).astype(int)
    low, high = (jnp.asarray(middle)[i] for i in ends)
    states = low + (way - jnp.floor(way))[:, None] * (high - low)
    return np.asarray(jax.vmap(hold)(states)).ravel()


class Plan(AbstractShown):
    """Controls that lead to a goal, and the motion that they make.

    Attributes:
        curve: u(t), a `Curve`; `plan.curve(t)`, `plan.curve.points`, `plan.curve.duration`.
        trajectory: The motion under the controls.
        cost: The effort, or the duration [s].
        missed: Error of the goal, (r,).
        simulations: Number of runs with their first derivatives, over all starts.
        costs: Cost found from each start (starts,); NaN where the goal was not reached.
        success: Whether the goal is reached, within limits.
        message: Reason for the end of the search.
    """

    curve: Curve
    trajectory: Trajectory
    cost: float
    missed: np.ndarray
    simulations: int
    costs: np.ndarray
    success: bool
    message: str
    actuation: ActuationLike

    def _report(self) -> Report:
        rows = [
            ("duration [s]", values(self.curve.duration)),
            ("cost", values(self.cost)),
            ("largest error of the goal", f"{np.max(np.abs(self.missed), initial=0.0):.3g}"),
            ("cost from each start", values(self.costs)),
            ("simulations", values(self.simulations)),
        ]
        return Report(f"Plan: {'successful' if self.success else 'FAILED'}", rows, notes=[self.message])

    def controller(self) -> Feedback:
        """Returns a controller for `simulate(..., servo=)` that makes this motion."""
        curve = self.curve
        return Feedback(lambda q, v, t: curve(t), self.actuation)


def plan(
    mechanism: Mechanism,
    actuation: ActuationLike,
    q0: Numbers,
    v0: Numbers,
    goal: Goal,
    duration: Duration,
    *,
    t0: float = 0.0,
    curve: Kind = "cubic",
    points: int = 16,
    cost: Cost = "effort",
    weights: Numbers | None = None,
    limits: tuple[Numbers, Numbers] | None = None,
    path: Callable[[Array, Array, Array], Numbers] | None = None,
    guess: Numbers | None = None,
    starts: int = 1,
    seed: int = 0,
    size: float | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    projection: Projection | None = None,
    rtol: float = 1e-8,
    atol: float = 1e-4,
    segments: int = 8,
    search: Method = "slsqp",
    steps: int = 200,
    progress: bool = True,
    throw: bool = True,
) -> Plan:
    r"""Finds the controls u(t) that lead from a state to a goal, with the least effort or in the least time.

    $$\min_{u} \int u^\top W u \, dt \quad\text{or}\quad \min_{u, T} T, \qquad
      c(q(T), v(T)) = 0,\quad u \in [\mathrm{low}, \mathrm{high}],\quad d(q, v, t) \ge 0$$

    u is a curve of a few control points. The motion is cut into segments, which the search joins (multiple shooting).
    The search is sequential quadratic programming; every step takes one simulation of all segments and one derivative.

    Args:
        mechanism: System and constraints.
        actuation: G (n, p), a matrix or `actuation(q, t)`.
        q0: Coordinates at the start (n,) [m or rad].
        v0: Rates of q0 (n,) [m/s or rad/s].
        goal: (q1, v1), a state on the constraints; or `goal(q, v)` -> (r,), which must vanish at the end.
        duration: T [s]; or (shortest, guess, longest), if it is free.
        t0: Start time [s].
        curve: "cubic" (a spline, smooth), "linear" or "constant", piecewise.
        points: K, the number of control points of each actuator.
        cost: "effort", or "time", which needs a duration that is free, and limits.
        weights: W, the diagonal (p,); ones if None.
        limits: (lower, upper) of the controls, each a scalar or (p,).
        path: `path(q, v, t)` -> (k,), which must not be negative at K + 1 equally spaced times (K rounded up to a
            multiple of `segments`), the start among them.
        guess: Control points to start from (K, p). None for those that hold the mechanism at rest where known, else
            zero, with a thousandth of `size` added. Segments begin on the straight way to the goal, or under the guess.
        starts: Number of starts; all but the first are random curves.
        seed: Seed of the random curves.
        size: Typical size of controls [N or N m]; by `limits` if there are any, else 1.
        formulation: Method by which the acceleration is computed.
        projection: `Projection()` if None, where there are constraints.
        rtol: Relative and absolute tolerance of the simulation.
        atol: Allowed error of the goal, in its unit.
        segments: Number of parts into which the motion is cut; 1 for single shooting. With piecewise constant controls
            each piece is a segment.
        search: "slsqp", SciPy's, whose steps take one derivative; or "newton", whose steps also take the second
            derivative. These cost as much as ten simulations and more, but are few, and reach a minimum where "slsqp"
            creeps.
        steps: Largest number of steps of the search from each start.
        progress: Show a progress bar.
        throw: Raise if no start reaches the goal. With False look at `success`.

    Returns:
        `Plan`: `curve`, `trajectory`, `cost`, `controller()`. It is the best of all starts; other minima may be better
            still.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If a shape does not fit, a number is not finite, there are too few `points`, `cost` is "time"
            without limits or a free duration, or the guess lies outside of the limits.
        RuntimeError: If `throw` and no start reaches the goal.

    Source: multiple shooting: Bock & Plitt (1984); Betts (2010), Practical Methods for Optimal Control, chapter 3;
    SLSQP: Kraft (1988); Newton's steps: Nocedal & Wright (2006), Numerical Optimization, chapter 18.
    """
    if projection is None and isinstance(mechanism, Mechanism) and mechanism.constraints:
        projection = Projection()
    rtol, atol = _check.positive(rtol, "rtol"), _check.positive(atol, "atol")
    asked = PlanRequest(
        mechanism, actuation, q0, v0, goal, duration, t0, curve, points, cost, limits, path, size, segments,
        MotionOptions(formulation, projection, rtol),
    )  # fmt: skip
    problem, box, middle = problem_of(asked)
    within, draws = Limits(problem, box), np.random.default_rng(seed)
    method, steps = method_of(search), _check.count(steps, "steps")
    seeker = Search(problem, within, _weights(weights, problem), cost, method, atol, steps)
    begins = [given_start(guess, problem, within, middle)]
    for _ in range(_check.count(starts, "starts") - 1):
        begins.append(random_start(draws, problem, within, middle))
    found = []
    with tqdm(total=len(begins) * steps, desc="plan", unit="step", disable=not progress) as bar:
        for number, begin in enumerate(begins):
            found.append(seeker.run(begin, bar))
            bar.update((number + 1) * steps - bar.n)
    costs = np.array([each.cost if each.success else np.nan for each in found])
    best = int(np.nanargmin(costs)) if np.any(np.isfinite(costs)) else int(np.argmin([e.off for e in found]))
    chosen = found[best]
    plan = _to_plan(problem, chosen, costs, sum(each.runs for each in found))
    if throw and not chosen.success:
        raise RuntimeError(_why(plan, chosen, atol))
    return plan


def _weights(weights: Numbers | None, problem: Shooting) -> np.ndarray:
    """Returns the diagonal of W (p,)."""
    p = problem.shape[1]
    if weights is None:
        return np.ones(p)
    hint = f"One weight per actuator, of which there are {p}."
    w = np.asarray(_check.output(_check.floating(weights, "weights"), (p,), problem.q0.dtype, "weights", hint))
    if not np.all(w > 0):
        raise ValueError(f"weights must be positive, but are {w}.")
    return w


def _why(plan: Plan, chosen: Found, atol: float) -> str:
    """Explains in words why there is no plan."""
    if bool(plan.trajectory.result != RESULTS.successful):
        return f"No start reaches the goal: the simulation fails. {message(plan.trajectory.result)}"
    if chosen.off <= atol:
        return (
            "No start stays within limits: the goal is reached, but path(q, v, t) is negative, or a limit is passed "
            f"on the way ({chosen.message}). Give it longer, more points, more starts, wider limits, or a guess."
        )
    return (
        f"No start reaches the goal: it is missed by {chosen.off:.3g} ({chosen.message}). Give it longer, more points, "
        "more starts, wider limits, or a guess."
    )


def _to_plan(problem: Shooting, chosen: Found, costs: np.ndarray, runs: int) -> Plan:
    """Returns the plan that was found, with its motion in one piece."""
    curve = problem.curve_of(jnp.asarray(chosen.x))
    trajectory = shown(problem, curve, jnp.linspace(0.0, 1.0, SHOWN).astype(problem.q0.dtype))
    missed = np.asarray(problem.missed(trajectory.q[-1], trajectory.v[-1]))
    how = chosen.success, chosen.message
    return Plan(curve, trajectory, chosen.cost, missed, runs, costs, *how, problem.actuation)
