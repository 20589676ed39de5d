"""Zhao et al. (2018), section 8.2: robots that come together and keep apart.

Draws the counterparts of figures 6 to 8 and prints "paper says | we measure". As printed, the error beta of the
constraint keeps its initial value exactly; that it decays, as figure 8 has it, needs b = phi - kappa beta. Beyond the
paper: any number of robots, and bounds on their distances that show why they do not collide, and when they do.

    python -m experiments.zhao2018_swarm [--out DIR]

Source: Chinese Journal of Mechanical Engineering 31, section 8.2, eq. 60 to 65.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from models import swarm

from . import _report
from ._figures import THEORY, captioned, legend, over_time, panels


KAPPA = 2.0  # [1/s]
NUMBERS = (3, 5, 10, 20)


class Runs(NamedTuple):
    """Five robots as printed, stabilised, and on the constraint; and swarms of other sizes on it."""

    printed: ukjax.Trajectory
    held: ukjax.Trajectory
    gathering: ukjax.Trajectory
    sizes: dict[int, ukjax.Trajectory]


def run(case: ukjax.Scenario, tolerance: float = 1e-11) -> ukjax.Trajectory:
    ts = jnp.linspace(case.t0, case.t1, 401)
    return ukjax.simulate(case.mechanism, case.q0, case.v0, ts, rtol=tolerance, atol=tolerance)


def simulated() -> Runs:
    gathering = run(swarm.scenario(t1=20.0))
    sizes = {N: run(swarm.scenario(N), 1e-8) for N in NUMBERS}
    printed, held = (run(swarm.scenario(start="arbitrary", kappa=kappa, t1=5.0)) for kappa in (0.0, KAPPA))
    return Runs(printed, held, gathering, sizes)


def beta(trajectory: ukjax.Trajectory) -> np.ndarray:
    """(T, 2N) [m/s], eq. 65."""
    return np.asarray(jax.vmap(swarm.Gathering().beta)(trajectory.q, trajectory.v, trajectory.t))


def places(q) -> np.ndarray:
    """(..., N, 2) [m]"""
    return np.asarray(q).reshape(*np.shape(q)[:-1], -1, 2)


def meeting() -> tuple[float, float]:
    """When two robots 3 m apart, driven at each other by beta = 1 m/s each, meet [s]: by theory and measured."""
    model = swarm.Gathering()
    q0 = jnp.array([0.0, 0.0, 3.0, 0.0])
    v0 = jnp.array([1.0, 0.0, -1.0, 0.0]) - model.gradient(q0)
    pair = ukjax.Mechanism(swarm.Swarm([2.0, 2.0]), ukjax.Nonholonomic(model.beta))
    theory = np.log(7.0) / 2
    near = ukjax.simulate(pair, q0, v0, jnp.linspace(0.0, 0.99 * theory, 11), rtol=1e-11, atol=1e-11)
    # d' = -1 - 2 d from the last state on.
    left = np.log(2 * swarm.distances(near.q)[-1, 0] + 1) / 2
    return theory, float(near.t[-1]) + left


def rows(runs: Runs) -> list[tuple[str, str, str]]:
    """The table: quantity, what the paper says, what we measure."""
    printed, held = beta(runs.printed), beta(runs.held)
    size = lambda x: np.linalg.norm(x, axis=1)
    t = np.asarray(runs.held.t)
    below = t[np.argmax(size(held) < 0.01)]
    theory = np.log(size(held)[0] / 0.01) / KAPPA
    decay = np.exp(-KAPPA * t)[:, None]
    centroid = places(runs.printed.q).mean(axis=1)
    last = places(runs.gathering.q[-1])
    radius = np.linalg.norm(last - last.mean(axis=0), axis=1)
    meet, met = meeting()
    numbers = [size_row(N, got) for N, got in runs.sizes.items()]
    return [
        ("|beta| at 0 and 5 s, as printed [m/s]", "from large to below 0.01",
         f"{size(printed)[0]:.3f}, {size(printed)[-1]:.3f}"),
        ("   any component of beta changes by up to [m/s]", "", f"{np.max(np.ptp(printed, axis=0)):.0e}"),
        ("   the centroid moves in 5 s by [m]", "not discussed", f"{np.linalg.norm(centroid[-1] - centroid[0]):.3f}"),
        (f"|beta| below 0.01 m/s, with kappa = {KAPPA:g} 1/s, from [s]", "rapidly",
         f"{below:.2f}; theory {theory:.2f}"),
        ("   beta against beta(0) exp(-kappa t), largest [m/s]", "", f"{np.max(np.abs(held - held[:1] * decay)):.0e}"),
        ("|beta| if it is zero at the start, largest [m/s]", "zero", f"{np.max(size(beta(runs.gathering))):.0e}"),
        ("circumradius of the final pentagon [m]", "not given",
         f"{radius.min():.8f} to {radius.max():.8f}; 0.1 cot(pi/10) = {swarm.circumradius(5):.8f}"),
        *numbers,
        ("two robots driven at each other by beta = 1 m/s meet at [s]", "never collide",
         f"{met:.6f}; theory {meet:.6f}"),
    ]  # fmt: skip


def size_row(N: int, got: ukjax.Trajectory) -> tuple[str, str, str]:
    distance = swarm.distances(got.q)
    text = f"{distance.min():.3f} > 1/N = {1 / N:.3f}; at the end up to {distance[-1].max():.3f} < 1 - 1/N"
    return f"smallest distance, {N} robots on the constraint [m]", "never collide" if N == 5 else "not discussed", text


def start_figure(runs: Runs) -> Figure:
    """Where the robots start and what they are to do (figure 6)."""
    figure, (axis,) = panels(size=(5.6, 5.4))
    at, to = places(runs.gathering.q[0]), places(runs.gathering.v[0])
    for i, ((x, y), (vx, vy)) in enumerate(zip(at, to)):
        axis.annotate(
            "", (x + 0.06 * vx, y + 0.06 * vy), (x, y), arrowprops={"arrowstyle": "->", "color": f"C{i}", "lw": 1.5}
        )
        axis.plot(x, y, "o", color=f"C{i}", ms=10)
        axis.annotate(f"robot {i + 1}", (x, y), xytext=(9, 7), textcoords="offset points")
    for i in range(5):
        for j in range(i):
            axis.plot(*at[[i, j]].T, color="0.8", lw=0.7, zorder=0)
    axis.set(xlim=(-5, 6), ylim=(-5.2, 6.2), xlabel="x [m]", ylabel="y [m]", aspect="equal")
    return captioned(figure, "Counterpart of figure 6: five robots, and the way each is to go.")


def path_figure(runs: Runs) -> Figure:
    """Paths (figure 7): on the constraint, and off it, where beta stays and where it decays."""
    figure, axes = panels(1, 3, (10.0, 4.3), sharex=True, sharey=True)
    titles = ("a) β = 0", "b) β(0) not zero, as printed", f"c) the same, κ = {KAPPA:g} 1/s")
    for axis, title, got in zip(axes, titles, (runs.gathering, runs.printed, runs.held), strict=True):
        at = places(got.q)
        for i in range(5):
            axis.plot(*at[:, i].T, color=f"C{i}", lw=1.2)
            axis.plot(*at[0, i], "o", color=f"C{i}")
            axis.plot(*at[-1, i], "s", color=f"C{i}", ms=4)
            axis.annotate(f"{i + 1}", at[0, i], xytext=(-13, -4), textcoords="offset points")
        axis.set(title=title, xlabel="x [m]", aspect="equal")
        axis.margins(0.14)
    axes[0].set_ylabel("y [m]")
    return captioned(
        figure, "Counterpart of figure 7: paths of the robots from the dots to the squares, in a) 20 s, b) and c) 5 s."
    )


def beta_figure(runs: Runs) -> Figure:
    """|beta| over time (figure 8)."""
    figure, (axis,) = over_time("|β| [m/s]", height=4.0)
    axis.axhline(0.01, label="0.01 m/s", **THEORY)
    for label, got in {"b = φ, as printed": runs.printed, f"b = φ - κ β, κ = {KAPPA:g} 1/s": runs.held}.items():
        axis.semilogy(got.t, np.linalg.norm(beta(got), axis=1), label=label)
    legend(figure)
    return captioned(figure, "Counterpart of figure 8: error of the constraint.")


def sizes_figure(runs: Runs) -> Figure:
    """Any number of robots: where they settle, and the smallest distance over time."""
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, len(runs.sizes), height_ratios=(1, 1.4))
    below = figure.add_subplot(grid[1, :])
    for i, (N, got) in enumerate(runs.sizes.items()):
        axis = figure.add_subplot(grid[0, i])
        last = places(got.q[-1])
        axis.plot(*(last - last.mean(axis=0)).T, "o", color=f"C{i}", ms=5)
        axis.set(xlim=(-0.55, 0.55), ylim=(-0.55, 0.55), aspect="equal", xlabel="x [m]")
        axis.set_ylabel("y [m]" if i == 0 else "")
        axis.grid(alpha=0.3)
        below.semilogy(got.t, swarm.distances(got.q).min(axis=1), color=f"C{i}", label=f"N = {N}")
        below.axhline(1 / N, color=f"C{i}", ls="--", lw=0.8)
    below.set(xlabel="time t [s]", ylabel="smallest distance [m]")
    below.grid(alpha=0.3)
    below.margins(x=0.0)
    legend(figure, [below])
    return captioned(
        figure,
        "Any number of robots, on the constraint: where they are about their centroid after 10 s, and the smallest "
        "distance over time; dashed is 1/N, below which no distance falls.",
    )


def figures(runs: Runs) -> dict[str, Figure]:
    return {
        "figure06_start": start_figure(runs),
        "figure07_paths": path_figure(runs),
        "figure08_error": beta_figure(runs),
        "any_number": sizes_figure(runs),
    }


def main() -> None:
    out = _report.start(__doc__ or "", "zhao2018_swarm")
    with _report.console.status("Simulating swarms of up to twenty robots"), warnings.catch_warnings():
        # Some start off their constraints: what becomes of the error is what the paper and we look at.
        warnings.simplefilter("ignore", ukjax.InconsistentStart)
        runs = simulated()
        compared = rows(runs)
    _report.table("Zhao et al. (2018), section 8.2", ("", "paper says", "we measure"), compared)
    _report.save(figures(runs), out)


if __name__ == "__main__":
    main()
