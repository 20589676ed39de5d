"""Zhao et al. (2018), section 8.1: a particle that runs down a logarithmic spiral.

Draws the counterparts of figures 2 to 5 and prints "paper says | we measure". Beyond the paper: the constraint force, a
start off the orbit with and without stabilisation, and a bead on the same curve with no time law, where the paper's
M = I for polar coordinates, harmless so far, goes wrong.

    python -m experiments.zhao2018_spiral [--out DIR]

Source: Chinese Journal of Mechanical Engineering 31, section 8.1, eq. 51 to 59.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import log_spiral

from . import _report
from ._figures import THEORY, captioned, legend, over_time, panels, visible
from ._ode45 import ode45


class Runs(NamedTuple):
    """Trajectories, and what is to be compared with theory."""

    paper: ukjax.Trajectory
    errors: np.ndarray  # (T, 2) of eq. 58 and 59
    loose: tuple[np.ndarray, np.ndarray]  # times and the same errors by MATLAB's ode45 at its defaults
    drifting: ukjax.Trajectory
    held: ukjax.Trajectory
    bead: ukjax.Trajectory
    printed_bead: ukjax.Trajectory
    end: float  # of the printed bead's motion [s]


def run(case: ukjax.Scenario, points: int = 401, throw: bool = True) -> ukjax.Trajectory:
    ts = jnp.linspace(case.t0, case.t1, points)
    return ukjax.simulate(case.mechanism, case.q0, case.v0, ts, rtol=1e-11, atol=1e-11, throw=throw)


@jax.jit
def errors(q, v, t):
    """epsilon_1 and epsilon_2 (T, 2), eq. 58 and 59."""
    spiral = log_spiral.Spiral()

    def norms(q, v, t):
        place, rate = jax.jvp(spiral.orbit, (q, t), (v, jnp.ones_like(t)))
        return jnp.stack([jnp.linalg.norm(place), jnp.linalg.norm(rate)])

    return jax.vmap(norms)(q, v, t)


def loosely_integrated() -> tuple[np.ndarray, np.ndarray]:
    """Times and errors as MATLAB's default ode45 would see them."""
    case = log_spiral.scenario()

    @jax.jit
    def derivative(t, y):
        motion = ukjax.equation_of_motion(case.mechanism, y[:2], y[2:], t, throw=False)
        return jnp.concatenate([y[2:], motion.acceleration])

    start = np.concatenate([case.q0, case.v0])
    t, y = ode45(lambda t, y: np.asarray(derivative(t, y)), 0.0, case.t1, start)
    return np.asarray(t), np.asarray(errors(jnp.asarray(y[:, :2]), jnp.asarray(y[:, 2:]), jnp.asarray(t)))


def simulated() -> Runs:
    paper = run(log_spiral.scenario())
    lost = run(log_spiral.printed_bead(t1=1.0), throw=False)
    return Runs(
        paper,
        np.asarray(errors(paper.q, paper.v, paper.t)),
        loosely_integrated(),
        run(log_spiral.scenario("disturbed", t1=20.0)),
        run(log_spiral.scenario("disturbed", 2.0, 2.0, t1=20.0)),
        run(log_spiral.bead()),
        run(log_spiral.printed_bead(t1=0.45)),
        float(lost.stats["t_reached"]),
    )


def energy(trajectory: ukjax.Trajectory) -> np.ndarray:
    """Of the bead (T,) [J]."""
    true = log_spiral.bead().invariants["energy [J]"]
    return np.asarray(jax.vmap(true)(trajectory.q, trajectory.v, trajectory.t))


def rows(runs: Runs) -> list[tuple[str, str, str]]:
    """The table: quantity, what the paper says, what we measure."""
    q, force = np.asarray(runs.paper.q), np.asarray(runs.paper.constraint_force)
    t = np.asarray(runs.paper.t)
    worst = lambda x: np.max(np.abs(x), axis=0)
    two = lambda x: ", ".join(f"{e:.0e}" for e in x)
    span = lambda x: f"{x.min():.2f} to {x.max():.2f}"
    off = lambda run, gain: np.asarray(run.q) - log_spiral.exact(run.t, log_spiral.disturbance(run.t, gain, gain))
    ends = lambda run: ", ".join(f"{x:.1e}" for x in np.asarray(errors(run.q, run.v, run.t))[[0, -1], 0])
    from_theory = np.maximum(worst(off(runs.drifting, 0.0)), worst(off(runs.held, 2.0)))
    return [
        ("r at 0, 20 and 40 s [m]", "very small from t = 20 s", ", ".join(f"{r:.3f}" for r in q[[0, 200, 400], 0])),
        ("   as parts of r(0)", "", ", ".join(f"{r / q[0, 0]:.3f}" for r in q[[0, 200, 400], 0])),
        ("theta - (30 - t), largest [rad]", "linear", f"{worst(q[:, 1] - 30 + t):.0e}"),
        ("r - exp(0.1 (30 - t)), largest [m]", "on the spiral", f"{worst(q - log_spiral.exact(t))[0]:.0e}"),
        ("epsilon 1, 2, largest (SI)", "figure 5, no number", two(worst(runs.errors))),
        ("   by MATLAB's ode45 at its defaults, emulated", "figure 5, no number", two(worst(runs.loose[1]))),
        ("F_r [N]", "not given", span(force[:, 0])),
        ("F_theta, in the paper's unit [kg rad/s^2]", "not given", span(force[:, 1])),
        ("   both against the closed form, largest", "", two(worst(force - log_spiral.exact_force(t)))),
        ("disturbed, not stabilised: epsilon 1 at 0 and 20 s", "not discussed", ends(runs.drifting)),
        ("disturbed, alpha = beta = 2 1/s: epsilon 1 at 0 and 20 s", "", ends(runs.held)),
        ("   both, r and theta against the closed form, largest [m, rad]", "", two(from_theory)),
        ("bead, M = diag(1, r^2): energy varies by [J]", "not discussed", f"{np.ptp(energy(runs.bead)):.0e}"),
        ("bead, M = I as printed: energy gained after 0.45 s [J]", "not discussed",
         f"{energy(runs.printed_bead)[-1] - energy(runs.printed_bead)[0]:.0f}"),
        ("   its speed is infinite at [s]", "", f"{runs.end:.3f}"),
    ]  # fmt: skip


def radius_figure(runs: Runs) -> Figure:
    """r over theta (figure 2)."""
    figure, (axis,) = panels()
    r, theta = np.asarray(runs.paper.q).T
    axis.plot(theta, np.exp(0.1 * theta), label="exp(0.1 θ)", **THEORY)
    axis.plot(theta, r, lw=1.2, label="numerical")
    axis.set(xlabel="θ [rad]", ylabel="r [m]")
    legend(figure)
    return captioned(figure, "Counterpart of figure 2: r over theta. Time runs to the left.")


def history_figure(runs: Runs) -> Figure:
    """r and theta over time (figure 3)."""
    figure, axes = over_time("r [m]", "θ [rad]")
    _with_closed_form(axes, runs.paper.t, runs.paper.q, log_spiral.exact(runs.paper.t))
    legend(figure)
    return captioned(figure, "Counterpart of figure 3: r and theta over time.")


def path_figure(runs: Runs) -> Figure:
    """The path in the plane (figure 4)."""
    figure, (axis,) = panels(size=(5.6, 5.4))
    r, theta = np.asarray(runs.paper.q).T
    x, y = r * np.cos(theta), r * np.sin(theta)
    axis.plot(x, y)
    axis.plot(x[0], y[0], "ko")
    axis.annotate("G", (x[0], y[0]), xytext=(8, -5), textcoords="offset points")
    axis.set(xlabel="x [m]", ylabel="y [m]", aspect="equal")
    return captioned(figure, "Counterpart of figure 4: path of the particle, from G inward.")


def error_figure(runs: Runs) -> Figure:
    """The errors (figure 5)."""
    figure, axes = over_time("$\\epsilon_1$ [m, rad]", "$\\epsilon_2$ [m/s, rad/s]")
    late, loose = runs.loose
    for i, axis in enumerate(axes):
        axis.semilogy(runs.paper.t[1:], visible(runs.errors[1:, i]), lw=1.2, label="tolerance 1e-11")
        axis.semilogy(late[1:], visible(loose[1:, i]), "o-", ms=3, lw=1.2, label="ode45 at its defaults, emulated")
    legend(figure)
    return captioned(figure, "Counterpart of figure 5: errors of the constraint.")


def force_figure(runs: Runs) -> Figure:
    """The constraint force."""
    figure, axes = over_time("$F_r$ [N]", "$F_\\theta$ [kg rad/s²]")
    _with_closed_form(axes, runs.paper.t, runs.paper.constraint_force, log_spiral.exact_force(runs.paper.t))
    legend(figure)
    return captioned(figure, "Constraint force on the particle, in the paper's units.")


def bead_figure(runs: Runs) -> Figure:
    """The bead, with both inertias."""
    figure, axes = over_time("θ [rad]", "energy [J]")
    for label, got in {"M = diag(1, r^2)": runs.bead, "M = I, as printed": runs.printed_bead}.items():
        here = np.asarray(got.t) <= 2.0
        axes[0].plot(got.t[here], got.q[here, 1], label=label)
        axes[1].plot(got.t[here], energy(got)[here], label=label)
    axes[1].set_yscale("symlog", linthresh=10.0)
    legend(figure)
    return captioned(figure, "Bead on the spiral, one row: the first 2 s, by inertia.")


def _with_closed_form(axes: np.ndarray, t: jax.Array, found: jax.Array, exact: np.ndarray) -> None:
    """One component (T,) of what was found and of the closed form (T, k) on each axis."""
    for i, axis in enumerate(axes):
        axis.plot(t, exact[:, i], label="closed form", **THEORY)
        axis.plot(t, found[:, i], lw=1.2, label="numerical")


def figures(runs: Runs) -> dict[str, Figure]:
    return {
        "figure02_radius": radius_figure(runs),
        "figure03_histories": history_figure(runs),
        "figure04_path": path_figure(runs),
        "figure05_errors": error_figure(runs),
        "forces": force_figure(runs),
        "bead": bead_figure(runs),
    }


def main() -> None:
    out = _report.start(__doc__ or "", "zhao2018_spiral")
    with _report.console.status("Simulating the particle and the bead"):
        runs = simulated()
        compared = rows(runs)
    _report.table("Zhao et al. (2018), section 8.1", ("", "paper says", "we measure"), compared)
    _report.save(figures(runs), out)


if __name__ == "__main__":
    main()
