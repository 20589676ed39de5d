"""Robust gains of two servos, by gradient, by hand, and by a search without derivatives.

The two coordinated robots of Liu et al. (2015), six gains, and the flexible-joint manipulator of Zhao et al. (2018), P
and two gain matrices of its motors, nine numbers. In both the controller knows the nominal mechanism only, and the
loss, tracking error plus effort, is a mean over mechanisms whose masses, inertias, springs and starts are off. Compared
on others, not seen in tuning:

- by hand: the gains we start from, those of the paper where it has any;
- one knob: all gains from one number, tried at seven values, the best taken: what a careful hand does;
- Nelder-Mead of SciPy, from the same start;
- by gradient: `ukjax.tune` with Levenberg and Marquardt's steps, since the loss is a sum of squares.

The cost of either is counted in simulations of all samples, until it is within 1 % of the better one's end. A Jacobian
counts as many simulations as it takes time for, measured in the same run.

    python -m experiments.tune_servo [--out DIR]
    ukjax tune experiments.tune_servo:robots
    ukjax tune experiments.tune_servo:manipulator
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

import ukjax

from . import _report, _tuned_manipulator, _tuned_robots
from ._figures import THEORY, captioned, legend, over_time, panels
from ._tuned_manipulator import problem as manipulator
from ._tuned_robots import problem as robots


UNSEEN = 40
WITHIN = 1.01  # of the smaller one of the losses that the two searches end with
SIMPLEX = 0.15  # edges of the one that Nelder-Mead starts with, of logarithms
EVALUATIONS = 2000  # that Nelder-Mead may have
KNOBS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclasses.dataclass
class Comparison:
    """What the searches found for one problem; costs in simulations of all samples."""

    problem: ukjax.tuning.TuningProblem
    tuning: ukjax.tuning.Tuning
    searched: Any
    searched_losses: np.ndarray
    knob: Any
    ratio: float  # of a Jacobian to a simulation, by time
    unseen: dict[str, float]

    def spent(self) -> np.ndarray:
        """Of the tuning, before each of its steps."""
        return self.ratio * self.tuning.evaluations + self.tuning.trials

    def costs(self, goal: float | None = None) -> tuple[float, float]:
        """Until the loss is `goal`, by default within 1 % of the better end: of the gradient, and of Nelder-Mead.

        Infinite where it never is.
        """
        if goal is None:
            goal = WITHIN * min(self.tuning.loss, self.searched_losses.min())
        spent = (self.spent(), np.arange(1, self.searched_losses.size + 1))
        reached = [at[losses <= goal] for at, losses in zip(spent, (self.tuning.losses, self.searched_losses))]
        gradient, searched = (float(at[0]) if at.size else np.inf for at in reached)
        return gradient, searched


def knob(problem: ukjax.tuning.TuningProblem, factor: float) -> Any:
    """The start with every rate, damping and stiffness as of a system `factor` times as fast."""
    power = {"stiffness": 2.0, "P": -1.0}
    one = lambda x: jnp.eye(x.shape[0]) if x.ndim == 2 else jnp.ones_like(x)
    return {k: x + power.get(k, 1.0) * np.log(factor) * one(x) for k, x in problem.params.items()}


def compare(problem: ukjax.tuning.TuningProblem, unseen: Any, evaluations: int = EVALUATIONS) -> Comparison:
    mean = lambda logs, samples: jnp.mean(jnp.sum(jax.vmap(problem.loss, (None, 0))(logs, samples) ** 2, axis=1))
    flat, unravel = ravel_pytree(problem.params)
    value, slopes = jax.jit(mean), jax.jit(jacobian(problem.loss, unravel))
    name = problem.name
    with _report.console.status(f"{name}: compiling the loss") as status:
        jax.block_until_ready(value(problem.params, problem.samples))
        status.update(f"{name}: one knob")
        tried = {f: float(value(knob(problem, f), problem.samples)) for f in KNOBS}
        best = min(tried, key=lambda f: np.inf if np.isnan(tried[f]) else tried[f])
        status.update(f"{name}: compiling the Jacobian, to measure its cost")
        seconds = _report.median_seconds
        ratio = seconds(slopes, flat, problem.samples) / seconds(value, problem.params, problem.samples)
        losses: list[float] = []

        def at(x):
            losses.append(float(value(unravel(jnp.asarray(x)), problem.samples)))
            status.update(f"{name}: Nelder-Mead, {len(losses)} simulations, loss {min(losses):.4f}")
            return losses[-1]

        # SciPy's own first simplex would hardly move what starts at zero.
        simplex = np.asarray(flat) + SIMPLEX * np.vstack([np.zeros(flat.size), np.eye(flat.size)])
        options = {"xatol": 1e-3, "fatol": 1e-4, "maxfev": evaluations, "initial_simplex": simplex}
        found = scipy.optimize.minimize(at, np.asarray(flat), method="Nelder-Mead", options=options)
    _report.console.print(f"{name}: by gradient; the first step compiles.")
    tuning = problem.tune()
    with _report.console.status(f"{name}: on mechanisms not seen before"):
        searched = unravel(jnp.asarray(found.x))
        candidates = {"by hand": problem.params, "one knob": knob(problem, best), "Nelder-Mead": searched,
                      "by gradient": tuning.params}  # fmt: skip
        scores = {k: float(value(x, unseen)) for k, x in candidates.items()}
    return Comparison(problem, tuning, searched, np.array(losses), candidates["one knob"], ratio, scores)


def jacobian(residuals: Any, unravel: Any) -> Any:
    """(parameters as a vector, samples) -> residuals and Jacobian, as `ukjax.tune` computes them."""

    def both(x, samples):
        at = lambda x: jax.vmap(residuals, (None, 0))(unravel(x), samples)
        along = lambda direction: jax.jvp(at, (x,), (direction,))
        return jax.vmap(along, out_axes=(None, -1))(jnp.eye(x.size))

    return both


def rows(got: Comparison) -> list[tuple[str, ...]]:
    """Found gains, losses and costs, one way a row."""
    gradient, searched = got.costs()
    count = got.searched_losses.size
    ways = {"by hand": got.problem.params, "one knob": got.knob, "Nelder-Mead": got.searched,
            "by gradient": got.tuning.params}  # fmt: skip
    train = {"by hand": got.tuning.losses[0], "Nelder-Mead": got.searched_losses.min(), "by gradient": got.tuning.loss}
    ended = np.isfinite(searched)
    cost = {
        "one knob": f"{len(KNOBS)}",
        "Nelder-Mead": f"{searched:.0f} (of {count})" if ended else f"not in {count}",
        "by gradient": f"{gradient:.0f} (1/{min(searched, count) / gradient:.1f}{'' if ended else ' or less'})",
    }
    table = []
    for way, logs in ways.items():
        shown = got.problem.shown(jax.tree_util.tree_map(lambda x: jnp.asarray(x)[None], logs))
        gains = ", ".join(f"{x[0]:.3g}" for x in shown.values())
        factor = got.unseen["by hand"] / got.unseen[way]
        losses = (f"{train[way]:.4f}" if way in train else "", f"{got.unseen[way]:.4f}", f"{factor:.2f}")
        table.append((way, gains, *losses, cost.get(way, "")))
    return table


def cost_figure(compared: dict[str, Comparison]) -> Figure:
    """Best loss so far over what it cost."""
    figure, axes = panels(1, 2, (9.0, 4.0))
    for axis, (title, got) in zip(axes, compared.items(), strict=True):
        best = np.minimum.accumulate(got.searched_losses)
        axis.axhline(WITHIN * min(best[-1], got.tuning.loss), label="1 % above the better end", **THEORY)
        axis.semilogx(np.arange(1, best.size + 1), best, label="Nelder-Mead")
        axis.semilogx(got.spent(), np.minimum.accumulate(got.tuning.losses), "o-", ms=3, label="by gradient")
        axis.set(xlabel="cost [simulations of all samples]", ylabel="best loss so far", title=title, yscale="log")
        axis.grid(alpha=0.3, which="both")
        for set_formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            set_formatter(LogFormatter())  # plain numbers: there is less than a decade
    legend(figure)
    return captioned(figure, "The best loss so far over what it cost, by search and by gradient.")


def error_figure(hand: Any, tuned: Any, unseen: Any) -> Figure:
    """How far the object of the robots is from its place, for every unseen chain."""
    distance = jax.jit(jax.vmap(lambda gains, sample: _off_place(gains, sample), (None, 0)))
    figure, (axis,) = over_time("distance of the object from its place [mm]", height=4.2)
    for color, (name, logs) in zip(("C0", "C1"), {"paper's gains": hand, "tuned by gradient": tuned}.items()):
        t, off = distance(jax.tree_util.tree_map(jnp.exp, logs), unseen)
        for i in range(off.shape[0]):
            axis.semilogy(t[i], 1e3 * off[i], color=color, lw=0.7, alpha=0.6, label=name if i == 0 else None)
    legend(figure)
    return captioned(figure, "Coordinated robots: chains with unknown masses, not seen in tuning.")


def _off_place(gains: Any, sample: Any) -> Any:
    trajectory, _ = _tuned_robots.run(gains, sample)
    return trajectory.t, jnp.linalg.norm(_tuned_robots.errors(trajectory)[:, :2], axis=1)


def main() -> None:
    out = _report.start(__doc__ or "", "tune_servo")
    problems = {
        "Coordinated robots": (robots(), _tuned_robots.samples(UNSEEN, 1)),
        "Flexible-joint manipulator": (manipulator(), _tuned_manipulator.samples(UNSEEN, 1)),
    }
    compared = {}
    columns = ("", "gains", "loss", "loss, unseen", "times better than by hand, unseen", "cost [simulations]")
    for title, (problem, unseen) in problems.items():
        got = compared[title] = compare(problem, unseen)
        names = ", ".join(problem.quantities or {})
        _report.table(f"{title}: {names}", columns, rows(got))
        gradient, searched = got.costs(WITHIN * got.searched_losses.min())
        _report.console.print(
            f"A Jacobian costs {got.ratio:.1f} simulations. Until within 1 % of what Nelder-Mead ends with: "
            f"{gradient:.0f} simulations by gradient, {searched:.0f} by Nelder-Mead itself.", highlight=False,
        )  # fmt: skip
    robot = compared["Coordinated robots"]
    error = error_figure(robot.problem.params, robot.tuning.params, problems["Coordinated robots"][1])
    _report.save({"cost": cost_figure(compared), "error": error}, out)


if __name__ == "__main__":
    main()
