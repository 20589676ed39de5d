"""Motion planning by gradient: the controls that lead from a state to a goal at the least cost."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike
from tqdm.auto import tqdm

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba
from .._manifold import Projection
from .._mechanism import Mechanism
from .._result import RESULTS, message
from .._servo import Feedback
from .._trajectory import Trajectory
from ._curve import Curve
from ._plan_request import PlanRequest, given_start, problem_of, random_start
from ._search import Found, Limits, Search, method_of
from ._shooting import Shooting, shown


SHOWN = 201  # saved times of the trajectory of a plan


class Plan(eqx.Module):
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
    actuation: Any

    def controller(self) -> Feedback:
        """Returns a controller for `simulate(..., servo=)` that makes this motion."""
        curve = self.curve
        return Feedback(lambda q, v, t: curve(t), self.actuation)


def plan(
    mechanism: Mechanism,
    actuation: Any,
    q0: Any,
    v0: Any,
    goal: Any,
    duration: Any,
    *,
    t0: float = 0.0,
    curve: str = "cubic",
    points: int = 16,
    cost: Literal["effort", "time"] = "effort",
    weights: Any = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    path: Callable | None = None,
    guess: Any = None,
    starts: int = 1,
    seed: int = 0,
    size: float | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    projection: Projection | None = None,
    rtol: float = 1e-8,
    atol: float = 1e-4,
    segments: int = 8,
    search: Literal["slsqp", "newton"] = "slsqp",
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
    options = {"formulation": formulation, "projection": projection, "rtol": rtol, "atol": rtol}
    asked = PlanRequest(
        mechanism, actuation, q0, v0, goal, duration, t0, curve, points, cost, limits, path, size, segments
    )
    problem, box, middle = problem_of(asked, options)
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


def _weights(weights: Any, problem: Shooting) -> np.ndarray:
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
