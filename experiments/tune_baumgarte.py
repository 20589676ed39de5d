"""Baumgarte gains of the SCARA robot, chosen by gradient through its trajectory.

Xu & Liu (2017) take alpha = 0.5, beta = 200, "by numerical experiments". Here a loss weighs how far the robot is from
its constraint against the correction that brings it back, u = alpha Phi' + beta Phi,

    J = integral of |Phi|^2 + |u|^2 / beta_paper^2 dt,

so that the paper's own stiffness is a fair choice, and `ukjax.tune` minimises it from the paper's gains. Because A is
invertible here, Phi'' = -u exactly, and the minimum is known: it is the linear-quadratic regulator of a double
integrator, beta = 200, alpha = sqrt(2 beta) = 20.

    python -m experiments.tune_baumgarte [--out DIR]
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import ukjax
from models.scara import scenario

from . import _report
from ._figures import THEORY, captioned, legend, over_time


PAPER = (0.5, 200.0)
CRITICAL = (2 * 200.0**0.5, 200.0)
OPTIMAL = ((2 * 200.0) ** 0.5, 200.0)
TIMES = (0.0, 2.0, 401)  # by then what the optimum leaves is 1e-9 of the start
STEPS = 200


def simulate(gains, mechanism, q0, v0) -> ukjax.Trajectory:
    """The robot from the printed, rounded angles, 6 mm off its helix, with `gains` = (alpha, beta)."""
    stabilization = ukjax.Baumgarte(*gains)
    constraints = [ukjax.Holonomic(c.phi, stabilization) for c in mechanism.constraints]
    mechanism = ukjax.Mechanism(mechanism.system, constraints)
    return ukjax.simulate(mechanism, q0, v0, jnp.linspace(*TIMES), throw=False)


def errors(mechanism, trajectory):
    """Phi and its rate over time, each (T, 4)."""
    position = jax.vmap(mechanism.position_error)(trajectory.q, trajectory.t)
    return position, jax.vmap(mechanism.velocity_error)(trajectory.q, trajectory.v, trajectory.t)


def loss(gains, mechanism, q0, v0):
    """J, relative to |Phi|^2 at the start [s]."""
    trajectory = simulate(gains, mechanism, q0, v0)
    position, rate = errors(mechanism, trajectory)
    correction = gains[0] * rate + gains[1] * position
    cost = jnp.sum(position**2 + (correction / PAPER[1]) ** 2, axis=1)
    return jnp.trapezoid(cost, trajectory.t) / jnp.sum(position[0] ** 2)


def main() -> None:
    out = _report.start(__doc__ or "", "tune_baumgarte")
    case = scenario("printed")
    state = (case.mechanism, case.q0, case.v0)
    objective = lambda logs: loss((jnp.exp(logs["alpha"]), jnp.exp(logs["beta"])), *state)
    start = {"alpha": float(np.log(PAPER[0])), "beta": float(np.log(PAPER[1]))}
    # Logarithms keep the gains positive, and make one step size fit both.
    schedule = optax.cosine_decay_schedule(0.5, STEPS)
    _report.console.print("Tuning alpha and beta; the first step compiles the gradient of the trajectory.")
    tuning = ukjax.tune(objective, start, optax.adam(schedule), STEPS)
    tuned = tuple(float(np.exp(tuning.params[k])) for k in ("alpha", "beta"))

    candidates = {"paper": PAPER, "critical damping": CRITICAL, "tuned by gradient": tuned, "theory (LQR)": OPTIMAL}
    with _report.console.status("Comparing"):
        run = jax.jit(lambda gains: (simulate(gains, *state), loss(gains, *state)))
        runs = {name: run(tuple(map(jnp.asarray, gains))) for name, gains in candidates.items()}
    rows = [row(name, candidates[name], runs[name], state[0]) for name in candidates]
    columns = ("gains", "alpha [1/s]", "beta [1/s^2]", "damping ratio", "loss J", "|Phi| < 1 % after [s]", "steps")
    _report.table("SCARA, Baumgarte gains", columns, rows)
    miss = max(abs(a / b - 1) for a, b in zip(tuned, OPTIMAL))
    _report.console.print(f"The tuned gains are within {100 * miss:.2g} % of the theory.", highlight=False)
    _report.save(figures(tuning, {name: runs[name][0] for name in list(candidates)[:3]}, state[0]), out)


def row(name, gains, run, mechanism):
    (alpha, beta), (trajectory, value) = gains, run
    size = np.linalg.norm(np.asarray(errors(mechanism, trajectory)[0]), axis=1)
    late = np.flatnonzero(size > 0.01 * size[0])[-1]
    settled = f"{trajectory.t[late]:.2f}" if late + 1 < size.size else f"not within {TIMES[1]:g}"
    ratio = f"{alpha / 2 / beta**0.5:.3f}"
    return (name, f"{alpha:.3f}", f"{beta:.2f}", ratio, f"{value:.5f}", settled, str(trajectory.stats["num_steps"]))


def figures(tuning: ukjax.tuning.Tuning, runs: dict[str, ukjax.Trajectory], mechanism) -> dict[str, Figure]:
    convergence, axes = over_time("loss J [s]", "α [1/s]", "β [1/s²]")
    axes[0].semilogy(tuning.losses)
    for axis, name, optimum in zip(axes[1:], ("alpha", "beta"), OPTIMAL):
        axis.axhline(optimum, label="theory (LQR)", **THEORY)
        axis.plot(np.exp(tuning.history[name]), lw=1.2, label="tuned")
    axes[-1].set_xlabel("step of the optimiser")
    legend(convergence)
    decay, (axis,) = over_time("distance of the tool from its place [mm]", height=4.0)
    for name, trajectory in runs.items():
        position, _ = errors(mechanism, trajectory)
        axis.semilogy(trajectory.t, 1e3 * np.linalg.norm(np.asarray(position)[:, [0, 1, 3]], axis=1), label=name)
    axis.set_ylim(1e-6, None)
    legend(decay)
    return {
        "convergence": captioned(convergence, "Tuning Baumgarte's gains of the SCARA robot by gradient."),
        "decay": captioned(decay, "The SCARA robot, started 6 mm off its helix, with different gains."),
    }


if __name__ == "__main__":
    main()
