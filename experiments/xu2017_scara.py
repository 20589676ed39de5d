"""Xu & Liu (2017): the SCARA robot on a helix, with and without Baumgarte's stabilisation.

Draws the counterparts of figures 2 to 10 and prints "paper says | we measure".

    python -m experiments.xu2017_scara [--out DIR]

Source: Advances in Mechanical Engineering 9(10), 1-12.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models.scara import CLIMB, Scara, helix, scenario

from . import _report
from ._figures import THEORY, captioned, in_space, legend, over_time
from ._ode45 import ode45


T_END = 20.0  # not printed; it follows from the z error, 0.01 m, at a wrong initial rate of 0.5 mm/s


class Run(NamedTuple):
    """A trajectory beside the theory: joints on the helix by inverse kinematics."""

    trajectory: ukjax.Trajectory
    joint_error: np.ndarray  # (T, 4) [rad, m]
    tool: np.ndarray  # (T, 3) [m]
    tool_error: np.ndarray  # (T, 3) [m]


def rerun(start: str, damping: float, stiffness: float) -> Run:
    """The paper's run from one of the model's starts, integrated to 1e-10."""
    case = scenario(start, damping, stiffness, T_END)
    ts = jnp.linspace(0.0, T_END, 2001)
    trajectory = ukjax.simulate(case.mechanism, case.q0, case.v0, ts, rtol=1e-10, atol=1e-10)
    return Run(trajectory, *map(np.asarray, beside_theory(trajectory.q, ts)))


@jax.jit
def beside_theory(q, ts):
    """Errors of the joints (T, 4), the tool and its error (T, 3)."""
    tool = jax.vmap(Scara().tool)(q)
    return q - theoretical_joints(ts), tool, tool - jax.vmap(helix)(ts)


@jax.jit
def theoretical_joints(ts):
    """Joint coordinates on the helix (T, 4)."""
    return jax.vmap(lambda t: Scara().joints(helix(t)))(ts)


def forces_on_helix(ts):
    """Constraint forces (T, 4) [N m, N] exactly on the helix."""
    mechanism = scenario("consistent", 0.0, 0.0).mechanism

    def force(t):
        q, v = jax.jvp(lambda s: Scara().joints(helix(s)), (t,), (jnp.ones_like(t),))
        return ukjax.equation_of_motion(mechanism, q, v, t, throw=False).constraint_force

    return jax.jit(jax.vmap(force))(ts)


def loosely_integrated() -> np.ndarray:
    """Largest x, y and z error [m], not stabilised, as MATLAB's default ode45 would see it."""
    case = scenario("printed_velocities", 0.0, 0.0)

    @jax.jit
    def derivative(t, y):
        motion = ukjax.equation_of_motion(case.mechanism, y[:4], y[4:], t, throw=False)
        return jnp.concatenate([y[4:], motion.acceleration])

    start = np.concatenate([case.q0, case.v0])
    t, y = ode45(lambda t, y: np.asarray(derivative(t, y)), 0.0, T_END, start)
    return np.max(np.abs(beside_theory(y[:, :4], t)[2]), axis=0)


def printed_equation_8_violates() -> tuple[float, float]:
    """Norm of A q'' - b with M^{-1/2} where eq. 8 has it, and with M^{1/2} as it must be."""
    case = scenario("consistent", 0.0, 0.0)
    terms = eqx.filter_jit(case.mechanism.terms)(case.q0, case.v0, jnp.asarray(0.0))
    M, Q, A, b = map(np.asarray, (terms.M, terms.Q, terms.A, terms.b))
    values, vectors = np.linalg.eigh(M)
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    inverse = np.linalg.inv(root)
    correction = np.linalg.pinv(A @ inverse) @ (b - A @ np.linalg.solve(M, Q))
    miss = lambda half: np.linalg.norm(A @ np.linalg.solve(M, Q + half @ correction) - b)
    return float(miss(inverse)), float(miss(root))


def rows(drifting: Run, held: Run, rounded: Run) -> list[tuple[str, str, str]]:
    """The table: quantity, what the paper says, what we measure."""
    t = np.asarray(drifting.trajectory.t)
    worst, worst_held, worst_rounded = (np.max(np.abs(run.tool_error), axis=0) for run in (drifting, held, rounded))
    reached = t[np.argmax(np.abs(drifting.tool_error[:, 0]) >= 8e-4)]
    start = np.degrees(np.asarray(theoretical_joints(np.zeros(1)))[0, :3])
    away = lambda q2: np.linalg.norm(beside_theory(np.radians([[30.0, q2, 24.0, 0.0]]), np.zeros(1))[2])
    wrong, right = printed_equation_8_violates()
    forces = np.asarray(forces_on_helix(drifting.trajectory.t))
    forces = forces.round(3) + 0.0  # no minus zero
    span = lambda i: f"{forces[:, i].min():.3f} to {forces[:, i].max():.3f}"
    torques = [
        (f"Qc{i + 1} on the helix [{'N' if i == 3 else 'N m'}]", "figure 10, no number", span(i)) for i in range(4)
    ]
    return [
        ("q2(0) [deg]; distance of the tool from the helix", "55", f"55: {away(55.0):.3f} m; -55: {away(-55.0):.4f} m"),
        ("start on the helix [deg]", "30, 55, 24", ", ".join(f"{x:.4f}" for x in start)),
        ("end time [s]", "not printed", f"0.01 m / {abs(0.0195 - CLIMB):.4f} m/s = {0.01 / abs(0.0195 - CLIMB):.0f}"),
        ("largest x error, not stabilised [m]", "8e-4", f"{worst[0]:.3e} (8e-4 at t = {reached:.1f} s)"),
        ("largest y error, not stabilised [m]", "7e-3", f"{worst[1]:.3e}"),
        ("   the same, by MATLAB's ode45 at its defaults, emulated", "7e-3", f"{loosely_integrated()[1]:.1e}"),
        ("largest z error, not stabilised [m]", "0.01", f"{worst[2]:.4f}"),
        (
            "largest x, y, z error, Baumgarte [m]",
            "within an acceptable range",
            ", ".join(f"{x:.1e}" for x in worst_held),
        ),
        ("   left at t = 20 s", "almost coincident", ", ".join(f"{abs(x):.1e}" for x in held.tool_error[-1])),
        ("   from the printed, rounded angles", "", ", ".join(f"{x:.1e}" for x in worst_rounded)),
        ("damping ratio of alpha = 0.5, beta = 200", "not discussed", f"{0.5 / 2 / np.sqrt(200.0):.4f}"),
        ("norm of A q'' - b by eq. 8 as printed, M^(-1/2)", "0", f"{wrong:.2e}; with M^(1/2): {right:.0e}"),
        *torques,
    ]


def joint_figure(run: Run, caption: str) -> Figure:
    """Joint coordinates, numerical and theoretical (figures 2 and 6)."""
    figure, (upper, lower) = over_time("joint angle [rad]", "$q_4$ [m]", height=6.0)
    t, q = run.trajectory.t, np.asarray(run.trajectory.q)
    for i in range(4):
        axis = lower if i == 3 else upper
        axis.plot(t, q[:, i] - run.joint_error[:, i], label="theory", **THEORY)
        axis.plot(t, q[:, i], f"C{i}", lw=1.2, label=f"$q_{i + 1}$")
    legend(figure)
    return captioned(figure, caption)


def path_figure(run: Run, caption: str) -> Figure:
    """Path of the tool, numerical and theoretical (figures 3 and 7)."""
    figure = Figure(figsize=(6.0, 6.0), layout="constrained")
    wanted = run.tool - run.tool_error
    axis = in_space(figure, wanted)
    axis.plot(*wanted.T, label="theory", **THEORY)
    axis.plot(*run.tool.T, lw=1.2, label="numerical")
    legend(figure)
    return captioned(figure, caption)


def error_figure(runs: dict[str, Run], which: str, names: tuple[str, ...], caption: str) -> Figure:
    """Errors in thousandths over time, one axis a component (figures 4, 5, 8 and 9)."""
    figure, axes = over_time(*names)
    for i, axis in enumerate(axes):
        for color, (label, run) in zip(("C1", "C0"), runs.items()):
            axis.plot(run.trajectory.t, 1e3 * getattr(run, which)[:, i], color, lw=1.2, label=label)
    if len(runs) > 1:
        legend(figure)
    return captioned(figure, caption)


def force_figure(run: Run, caption: str) -> Figure:
    """Constraint torques (figure 10)."""
    figure, (upper, lower) = over_time("constraint torque [N m]", "constraint force [N]", height=6.0)
    force = np.asarray(run.trajectory.constraint_force)
    for i in range(4):
        (lower if i == 3 else upper).plot(run.trajectory.t, force[:, i], f"C{i}", lw=1.2, label=f"$Q^c_{i + 1}$")
    lower.set_ylim(0.0, 1.2 * force[:, 3].max())  # a ripple of a thousandth is none
    legend(figure)
    return captioned(figure, caption)


def figures(drifting: Run, held: Run) -> dict[str, Figure]:
    """The counterparts of figures 2 to 10."""
    both = {"not stabilised": drifting, "Baumgarte (0.5, 200)": held}
    alone = {"not stabilised": drifting}
    joints = tuple(f"error of $q_{i + 1}$ [{'mm' if i == 3 else 'mrad'}]" for i in range(4))
    tool = tuple(f"{axis} error [mm]" for axis in "xyz")
    without, with_ = "not stabilised", "with Baumgarte's stabilisation, alpha = 0.5 1/s and beta = 200 1/s²"
    first = "Counterpart of figure"
    return {
        "figure02_joints": joint_figure(drifting, f"{first} 2: coordinates of the joints, {without}."),
        "figure03_path": path_figure(drifting, f"{first} 3: path of the tool, {without}."),
        "figure04_joint_errors": error_figure(
            alone, "joint_error", joints, f"{first} 4: errors of the joints, {without}."
        ),
        "figure05_tool_errors": error_figure(alone, "tool_error", tool, f"{first} 5: errors of the tool, {without}."),
        "figure06_joints_baumgarte": joint_figure(held, f"{first} 6: coordinates of the joints, {with_}."),
        "figure07_path_baumgarte": path_figure(held, f"{first} 7: path of the tool, {with_}."),
        "figure08_joint_errors_compared": error_figure(
            both, "joint_error", joints, f"{first} 8: errors of the joints, {without} and {with_}."
        ),
        "figure09_tool_errors_compared": error_figure(
            both, "tool_error", tool, f"{first} 9: errors of the tool, {without} and {with_}."
        ),
        "figure10_constraint_torques": force_figure(held, f"{first} 10: constraint torques and force, {with_}."),
    }


def main() -> None:
    out = _report.start(__doc__ or "", "xu2017_scara")
    with _report.console.status("Simulating the robot, not stabilised") as status:
        drifting = rerun("printed_velocities", 0.0, 0.0)
        status.update("Simulating the robot with Baumgarte's stabilisation")
        held = rerun("printed_velocities", 0.5, 200.0)
        rounded = rerun("printed", 0.5, 200.0)
        status.update("Comparing with the paper")
        compared = rows(drifting, held, rounded)
    _report.table("Xu & Liu (2017)", ("", "paper says", "we measure"), compared)
    _report.save(figures(drifting, held), out)


if __name__ == "__main__":
    main()
