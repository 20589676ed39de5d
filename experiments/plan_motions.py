"""Motions of least effort by `ukjax.plan`, beside direct collocation of the same problem by SciPy.

Swing-up of a cart-pole, in 2 s; of an acrobot, in 3 s, its one motor between the rods; and two coordinated robots, six
motors on a closed chain of three freedoms, that carry their load from one place to another in pi seconds with the
smallest torques. The first two, by Newton's steps, are compared with collocation (Hermite and Simpson), which starts
from a straight line, and again from what was planned: the better of the two counts. The robots' plan is compared with
what their servo would spend on a smooth path between the same places.

    python -m experiments.plan_motions [--out DIR]
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import acrobot, cart_pole, coordinated_robots

from . import _report
from ._collocation import Collocated, collocate
from ._figures import THEORY, captioned, legend, panels


class Case(NamedTuple):
    """A mechanism, its actuators, two states, the time between them [s], and options of `ukjax.plan`."""

    name: str
    mechanism: ukjax.Mechanism
    actuation: np.ndarray
    q0: Any
    q1: Any
    duration: float
    options: dict[str, Any]
    units: str


def pole() -> Case:
    options = {"points": 20, "size": 10.0, "search": "newton"}
    mechanism = ukjax.Mechanism(cart_pole.CartPole())
    push, upright = np.array(cart_pole.ON_CART), jnp.array([0.0, np.pi])
    return Case("cart-pole", mechanism, push, jnp.zeros(2), upright, 2.0, options, "force [N]")


def bot() -> Case:
    options = {"points": 20, "size": 10.0, "segments": 12, "search": "newton", "starts": 2, "steps": 100}
    elbow, upright = np.array(acrobot.AT_ELBOW), jnp.array(acrobot.UPRIGHT)
    return Case("acrobot", acrobot.Acrobot().mechanism(), elbow, jnp.zeros(2), upright, 3.0, options, "torque [N m]")


def robots() -> Case:
    start = jnp.array(coordinated_robots.START)
    there = jnp.deg2rad(jnp.array([90.0, 0.0, 0.0, 0.0, -90.0]))
    mechanism = coordinated_robots.CoordinatedRobots().mechanism()
    options = {"points": 10, "size": 5.0, "segments": 6}
    motors = np.array(coordinated_robots.ACTUATION)
    return Case("coordinated robots", mechanism, motors, start, there, float(np.pi), options, "torques [N m]")


def planned(case: Case) -> ukjax.Plan:
    rest = jnp.zeros_like(case.q0)
    return ukjax.plan(case.mechanism, case.actuation, case.q0, rest, (case.q1, rest), case.duration, **case.options)


def reference(case: Case, plan: ukjax.Plan, N: int = 60) -> Collocated:
    """The better of two: from a straight line, and from what was planned."""
    n, G = case.q0.shape[0], jnp.asarray(case.actuation)

    def change(x, u):
        motion = ukjax.equation_of_motion(case.mechanism, x[:n], x[n:], applied=G @ u, throw=False)
        return jnp.concatenate([x[n:], motion.acceleration])

    start, goal = (np.concatenate([np.asarray(q), np.zeros(n)]) for q in (case.q0, case.q1))
    parts = np.linspace(0, len(plan.trajectory.t) - 1, 2 * N + 1).round().astype(int)
    along = np.concatenate([np.asarray(plan.trajectory.q), np.asarray(plan.trajectory.v)], axis=1)[parts[::2]]
    guess = np.concatenate([along.ravel(), np.asarray(plan.trajectory.control)[parts].ravel()])
    found = [collocate(change, start, goal, G.shape[1], case.duration, N, guess=z) for z in (None, guess)]
    good = [each for each in found if each.missed < 1e-6]
    return min(good, key=lambda each: each.cost)


def servo_effort(case: Case) -> float:
    """What the least control along a smooth path between the robots' two places spends."""
    model = coordinated_robots.CoordinatedRobots()
    first, last = model.object(case.q0), model.object(case.q1)
    shape = lambda s: s**3 * (10 - 15 * s + 6 * s**2)  # at rest at both ends
    path = lambda q, t: model.object(q) - first - shape(t / case.duration) * (last - first)
    servo = ukjax.Servo(ukjax.Holonomic(path, ukjax.Baumgarte(20.0, 100.0)), case.actuation)
    ts = jnp.linspace(0.0, case.duration, 401)
    run = ukjax.simulate(case.mechanism, case.q0, jnp.zeros(5), ts, servo=servo, projection=ukjax.Projection())
    return float(jnp.trapezoid(jnp.sum(jnp.asarray(run.control) ** 2, axis=1), ts))


def step_over_run(case: Case, plan: ukjax.Plan) -> float:
    """How many simulations a gradient of one through this motion costs: of its end by all control points."""
    rest, parts = jnp.zeros_like(case.q0), jnp.array([0.0, case.duration])
    projection = ukjax.Projection() if case.mechanism.constraints else None

    def end(points):
        curve = ukjax.planning.Curve(points, plan.curve.start, plan.curve.duration, plan.curve.kind)
        controller = ukjax.Feedback(lambda q, v, t: curve(t), case.actuation)
        run = ukjax.simulate(
            case.mechanism, case.q0, rest, parts, servo=controller, projection=projection, keep=("q", "v"), throw=False
        )
        return jnp.sum((run.q[-1] - case.q1) ** 2) + jnp.sum(run.v[-1] ** 2)

    alone, both = jax.jit(end), jax.jit(jax.value_and_grad(end))
    once, twice = (_report.median_seconds(f, plan.curve.points) for f in (alone, both))
    return twice / once


def rows(found: list[tuple[Case, ukjax.Plan, float, str, float, float]]) -> list[tuple[str, ...]]:
    return [
        (case.name, f"{plan.cost:.4g}", f"{other:.4g} ({by})", f"{np.max(np.abs(plan.missed)):.1e}",
         f"{plan.simulations}", f"{ratio:.1f}", f"{seconds:.0f}")
        for case, plan, other, by, ratio, seconds in found
    ]  # fmt: skip


def figure_of(found: list[tuple[Case, ukjax.Plan, float, str, float, float]], references: list[Any]) -> Figure:
    figure, axes = panels(2, len(found), (3.6 * len(found), 6.0), sharex="col")
    for (upper, lower), (case, plan, *_), other in zip(axes.reshape(2, -1).T, found, references, strict=True):
        run, control = plan.trajectory, np.asarray(plan.trajectory.control)
        if other is not None:
            t = np.linspace(0.0, case.duration, len(other.u))
            lower.plot(t, other.u[:, 0], label="collocation", **THEORY)
        for i in range(run.q.shape[1]):
            upper.plot(run.t, run.q[:, i], color=f"C{i}", lw=1.2, label=f"$q_{i + 1}$, $u_{i + 1}$")
        for i in range(control.shape[1]):
            label = f"$u_{i + 1}$" if i >= run.q.shape[1] else None
            lower.plot(run.t, control[:, i], color=f"C{i}", lw=1.2, label=label)
        upper.set(title=case.name, ylabel="coordinates [m or rad]")
        lower.set(xlabel="time t [s]", ylabel=case.units)
        for axis in (upper, lower):
            axis.margins(x=0.0)
    legend(figure)
    return captioned(figure, "Motions of least effort, and their control; wide is what collocation finds.")


def main() -> None:
    out = _report.start(__doc__ or "", "plan_motions")
    found, references = [], []
    for make in (pole, bot, robots):
        case = make()
        begin = time.perf_counter()
        plan = planned(case)
        seconds = time.perf_counter() - begin
        with _report.console.status(f"{case.name}: the reference"):
            other = reference(case, plan) if make is not robots else None
            cost, by = (servo_effort(case), "servo on a smooth path") if other is None else (other.cost, "collocation")
            ratio = step_over_run(case, plan)
        references.append(other)
        found.append((case, plan, cost, by, ratio, seconds))
    columns = ("motion", "effort", "reference", "goal missed by", "runs with derivative", "gradient / simulation",
               "time [s]")  # fmt: skip
    _report.table("Motions of least effort", columns, rows(found))
    _report.save({"plan_motions": figure_of(found, references)}, out)


if __name__ == "__main__":
    main()
