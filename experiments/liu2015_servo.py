"""Liu et al. (2015): servo constraints, on the two-mass spring and the two coordinated robots.

Draws the counterparts of figures 4 to 14 and prints "paper says | we measure". The paper's control can be read in three
ways once a mechanism has passive constraints, here the closed chain:

- least norm: the passive forces react to the control, and u is the smallest one that does it (ukjax's default);
- self-consistent: eq. 35 with the passive force that belongs to u, which gives the ranges in the paper's text;
- literal: eq. 35 with the passive force as it would be without u, which tears the chain apart.

    python -m experiments.liu2015_servo [--out DIR]

Source: IEEE/CAA Journal of Automatica Sinica 2(4), 382-393.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import two_mass_spring
from models.coordinated_robots import ACTUATION, START, CoordinatedRobots, scenario

from . import _report
from ._figures import THEORY, captioned, legend, over_time, panels


T_END = 2 * np.pi
READINGS: tuple[Literal["least_norm", "self_consistent"], ...] = ("least_norm", "self_consistent")
LABELS = {"least_norm": "least norm", "self_consistent": "self-consistent"}
# The ranges that the text below figure 14 gives, [N m].
PRINTED = ("0 to 10", "about 3 to 5", "-8 to -5.5", "about 4.5 to 10", "-4.5 to 0.5", "-5 to 0")


class Spring(NamedTuple):
    """The two-mass spring from a start off the constraint: times, error and its theory, control and eq. 47."""

    t: np.ndarray
    error: np.ndarray
    theory: np.ndarray
    control: np.ndarray
    formula: np.ndarray


def spring(alpha: float, beta: float) -> Spring:
    """e'' + 2 alpha e' + beta^2 e = 0 from e = 0.1 m, e' = -0.1 m/s; alpha = beta."""
    case = two_mass_spring.scenario("inconsistent", alpha, beta)
    model = two_mass_spring.TwoMassSpring()
    run = ukjax.simulate(
        case.mechanism, case.q0, case.v0, jnp.linspace(0.0, 4.0, 401), servo=case.servo, rtol=1e-11, atol=1e-12
    )
    t = np.asarray(run.t)
    error = np.asarray(run.q[:, 1] - run.q[:, 0] - 2 * model.l)
    theory = (0.1 + (-0.1 + alpha * 0.1) * t) * np.exp(-alpha * t)
    formula = np.asarray(jax.vmap(model.exact_control)(run.q))
    # Eq. 47 is the control without stabilisation, which adds what m1 needs to correct the error.
    rate = np.asarray(run.v[:, 1] - run.v[:, 0])
    formula = formula + float(model.m1) * (2 * alpha * rate + beta**2 * error)
    assert run.control is not None
    return Spring(t, error, theory, np.asarray(run.control[:, 0]), formula)


def rerun(reading: Literal["least_norm", "self_consistent"]) -> ukjax.Trajectory:
    """The object rises and returns."""
    case = scenario(reading)
    ts = jnp.linspace(0.0, T_END, 401)
    return case.simulate(ts, rtol=1e-10, atol=1e-10)


def literal_system(robots: CoordinatedRobots) -> ukjax.System:
    """The robots under the literal control: the passive force does not know of it, and no longer closes the chain."""
    mechanism, servo, G = robots.mechanism(), robots.servo(), jnp.array(ACTUATION)

    def force(q, v, t):
        passive = ukjax.equation_of_motion(mechanism, q, v, t, throw=False)
        A, b = servo.constraint.rows(q, v, t)
        response = A @ jnp.linalg.solve(mechanism.system.mass(q, t), G)
        u = jnp.linalg.pinv(response) @ (b - A @ passive.acceleration)
        return mechanism.system.force(q, v, t) + passive.constraint_force + G @ u

    return ukjax.System(mechanism.system.mass, force)


def literal() -> tuple[ukjax.Trajectory, np.ndarray, float]:
    """The run, how far the chain is open over time [m], and A q'' - b of the closed chain at the start [m/s^2]."""
    robots = CoordinatedRobots()
    system = ukjax.Mechanism(literal_system(robots))
    q0, v0 = jnp.array(START), jnp.zeros(5)
    first = eqx.filter_jit(ukjax.equation_of_motion)(system, q0, v0)
    A, b = robots.mechanism().constraints[0].rows(q0, v0, jnp.asarray(0.0))
    ts = jnp.linspace(0.0, 1.0, 201)
    run = ukjax.simulate(system, q0, v0, ts, max_steps=2000, throw=False)
    gap = np.asarray(jnp.linalg.norm(jax.vmap(lambda q: robots.closure(q, 0.0))(run.q), axis=1))
    return run, gap, float(jnp.linalg.norm(A @ first.acceleration - b))


def span(values: Any) -> str:
    values = np.round(np.asarray(values), 3) + 0.0  # no minus zero
    return f"{values.min():.3f} to {values.max():.3f}"


def rows(springs: dict[str, Spring], runs: dict[str, ukjax.Trajectory], opened: Any) -> list[tuple[str, str, str]]:
    """The table: quantity, what the paper says, what we measure."""
    robots = CoordinatedRobots()
    least = runs["least_norm"]
    wanted = jax.vmap(robots.wanted)(least.t)
    miss = np.abs(np.asarray(jax.vmap(robots.object)(least.q) - wanted)).max(axis=0)
    middle = np.degrees(np.asarray(least.q[200]))
    effort = {
        name: float(np.trapezoid(np.sum(np.asarray(run.control) ** 2, axis=1), run.t)) for name, run in runs.items()
    }
    run, gap, violation = opened
    reached = float(run.stats["t_reached"])
    held = np.isfinite(gap)
    out = []
    for name, one in springs.items():
        control, error = np.max(np.abs(one.control - one.formula)), np.max(np.abs(one.error - one.theory))
        shown = f"{control:.0e}; the error against its theory {error:.0e} m"
        out.append((f"two-mass spring, F against eq. 47 [N], {name}", "equal", shown))
    out += [
        ("x3, y3 [m], theta3 [rad]: largest error", "always follows", ", ".join(f"{x:.0e}" for x in miss)),
        ("closed chain: largest gap [m]", "closed", f"{float(jnp.max(least.position_residual)):.0e}"),
        ("angles at t = pi [deg]", "90, 0, 0, 0, -90", ", ".join(f"{x + 0.0:.4f}" for x in np.round(middle, 4))),
    ]
    for i, printed in enumerate(PRINTED):
        shown = "; ".join(f"{LABELS[name]} {span(np.asarray(runs[name].control)[:, i])}" for name in READINGS)
        out.append((f"u{i + 1} [N m]", printed, shown))
    ratio = effort["self_consistent"] / effort["least_norm"]
    out += [
        ("effort, integral of u^T u [N^2 m^2 s]", "u of (71) is the smallest",
         f"least norm {effort['least_norm']:.1f}; self-consistent {effort['self_consistent']:.1f}, {ratio:.2f} times"),
        ("literal reading: A q'' - b of the closed chain at t = 0 [m/s^2]", "not discussed", f"{violation:.2f}"),
        ("   gap of the chain", "not discussed",
         f"{gap[held][-1]:.2f} m when the run ends at {min(reached, 1.0):.3f} s"),
    ]  # fmt: skip
    return out


def angle_figure(run: ukjax.Trajectory) -> Figure:
    """Angles, rates and accelerations of the five links (figures 4 to 8)."""
    figure, axes = panels(2, 3, (9.6, 5.4))
    for i in range(5):
        for values, label in (
            (run.q, "angle [rad]"), (run.v, "rate [rad/s]"), (run.acceleration, "acceleration [rad/s²]"),
        ):  # fmt: skip
            axes[i].plot(run.t, values[:, i], lw=1.2, label=label)
        axes[i].set(xlabel="time t [s]", ylabel=f"$\\theta_{i + 1}$ and its rates (SI)")
        axes[i].margins(x=0.0)
    axes[2].set_ylim(-1, 1)  # zero throughout: rounding errors are no motion
    axes[5].axis("off")
    legend(figure)
    return captioned(figure, "Counterparts of figures 4 to 8: the five links of the two coordinated robots.")


def control_figure(runs: dict[str, ukjax.Trajectory]) -> Figure:
    """The six torques under both readings (figures 9 to 14)."""
    figure, axes = panels(2, 3, (9.6, 5.4), sharex=True)
    for i, axis in enumerate(axes):
        for style, (name, run) in zip(("-", "--"), runs.items(), strict=True):
            axis.plot(run.t, np.asarray(run.control)[:, i], style, lw=1.4, label=LABELS[name])
        axis.set_ylabel(f"$u_{i + 1}$ [N m]")
        axis.margins(x=0.0)
        if i >= 3:
            axis.set_xlabel("time t [s]")
    legend(figure)
    said = ", ".join(f"u{i + 1} {text}" for i, text in enumerate(PRINTED))
    return captioned(
        figure, f"Counterparts of figures 9 to 14: torques of the joints. Ranges that the paper gives, in N m: {said}."
    )


def literal_figure(t: Any, gap: np.ndarray) -> Figure:
    """The chain that the literal reading opens."""
    figure, (axis,) = over_time("gap of the closed chain [m]")
    axis.semilogy(t, np.where(gap > 1e-12, gap, np.nan))
    axis.set_xlim(left=0.0)
    return captioned(
        figure, "By the literal reading the passive force does not react to the control: the closed chain opens."
    )


def spring_figure(springs: dict[str, Spring]) -> Figure:
    """Elongation error and control of the two-mass spring."""
    figure, (upper, lower) = over_time("$x_2 - x_1 - 2 l$ [m]", "F [N]")
    for i, (name, one) in enumerate(springs.items()):
        for axis, found, theory in ((upper, one.error, one.theory), (lower, one.control, one.formula)):
            axis.plot(one.t, theory, label="theory", **THEORY)
            axis.plot(one.t, found, f"C{i}", lw=1.2, label=name)
    legend(figure)
    return captioned(
        figure, "Two-mass spring, started off its constraint: error of the elongation, and the control, with eq. 47."
    )


def main() -> None:
    out = _report.start(__doc__ or "", "liu2015_servo")
    with _report.console.status("Simulating the two-mass spring") as status:
        springs = {"no stabilisation": spring(0.0, 0.0), "alpha = beta = 5 1/s": spring(5.0, 5.0)}
        runs = {}
        for name in READINGS:
            status.update(f"Simulating the robots, reading: {LABELS[name]}")
            runs[name] = rerun(name)
        status.update("Simulating the robots, reading: literal")
        opened = literal()
        compared = rows(springs, runs, opened)
    _report.table("Liu et al. (2015)", ("", "paper says", "we measure"), compared)
    figures = {
        "spring": spring_figure(springs),
        "figure04_to_08_links": angle_figure(runs["least_norm"]),
        "figure09_to_14_controls": control_figure(runs),
        "literal_reading": literal_figure(opened[0].t, opened[1]),
    }
    _report.save(figures, out)


if __name__ == "__main__":
    main()
