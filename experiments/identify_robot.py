"""A robot from MJCF found again from noisy angles: masses, a centre of mass, damping, the lengths that close its loop.

The arm of `experiments._arm`, five hinges and a loop, comes from its MJCF text by `rigid.from_mjcf`. The robot that is
measured differs from its text in nine numbers. Motors follow sines under a known control; the angles of shoulder,
elbow, wrist and crank are measured, with noise. `ukjax.tune` fits all nine by Levenberg and Marquardt's steps, through
the closed loop, from the numbers of the text. Standard deviations are those that the Jacobian gives at what was found.
What is measured is computed in steps a quarter as long, so that the fit does not see its own error of integration.

Then which of all the numbers of the text the data could tell: each alone, and all together.

    python -m experiments.identify_robot [--out DIR]
    ukjax tune experiments.identify_robot:problem

Needs MuJoCo: `pip install "ukjax[robots]"`. The arm is made up. Source of the method: nonlinear least squares, with the
covariance (J^T J)^-1 sigma^2, as in `experiments.identify_scara`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from ukjax import rigid

from . import _arm, _identification, _report
from ._arm import POINTS, STEPS, T1
from ._figures import captioned, legend, over_time
from ._identification import Sample


SIGMA = 1e-3  # standard deviation of a measurement [rad]
COUNT = 4  # motions
LABELS = ("shoulder [rad]", "elbow [rad]", "wrist [rad]", "crank [rad]")
WELL = 0.05  # relative standard deviation up to which a number counts as found
# Eigenvalue of the information, over the largest, below which nothing is told: three are below 1e-11, the next 3e-8.
NULL = 1e-9


class Number(NamedTuple):
    """A number of the robot: its leaf, the entry if that is a vector, and what it truly is over what the text says."""

    name: str
    leaf: Callable[[rigid.Robot], Any]
    entry: int | None = None
    ratio: float = 1.0


def _damping(joint: str, ratio: float = 1.0) -> Number:
    return Number(f"damping of the {joint} [N m s/rad]", lambda r: r.joints[joint].effort.damping, None, ratio)


def _mass(body: str, ratio: float = 1.0) -> Number:
    return Number(f"mass of the {body} [kg]", lambda r: r.bodies[body].inertia.mass, None, ratio)


def _center(body: str, axis: str, ratio: float = 1.0) -> Number:
    name = f"centre of mass of the {body}, {axis} [m]"
    return Number(name, lambda r: r.bodies[body].inertia.center, "xyz".index(axis), ratio)


FITTED = (
    _mass("hand", 1.4),
    _center("forearm", "x", 1.2),
    _center("hand", "x", 0.8),
    _damping("shoulder", 1.5),
    _damping("elbow", 1.6),
    _damping("wrist", 0.7),
    _damping("crank", 0.6),
    Number("length of the rod [m]", lambda r: r.bodies["rod"].frames["loop_0"].position, 2, 1.008),
    Number("place of the rod on the crank, x [m]", lambda r: r.bodies["crank"].frames["to_rod"].position, 0, 0.97),
)
OTHERS = (
    *(_mass(body) for body in ("upper", "forearm", "crank", "rod")),
    *(_center(body, axis) for body, axis in (("upper", "z"), ("crank", "x"), ("rod", "z"))),
)


def value(number: Number, robot: rigid.Robot) -> Any:
    """Of a number, scalar."""
    leaf = number.leaf(robot)
    return leaf if number.entry is None else leaf[number.entry]


def changed(robot: rigid.Robot, numbers: tuple[Number, ...], logs: Any) -> rigid.Robot:
    """The robot with these numbers exp(logs) times as large, logs (p,)."""
    for number, log in zip(numbers, logs, strict=True):
        leaf, factor = number.leaf(robot), jnp.exp(log)
        new = leaf * factor if number.entry is None else leaf.at[number.entry].multiply(factor)
        robot = eqx.tree_at(number.leaf, robot, new)
    return robot


def fitted_motion(numbers: tuple[Number, ...]) -> Callable[[Any, Sample], Any]:
    """(logs, sample) -> what the encoders see."""
    robot = rigid.from_mjcf(_arm.TEXT)
    return lambda logs, sample: _arm.motion(changed(robot, numbers, logs), sample)


def true_logs() -> Any:
    return jnp.log(jnp.array([number.ratio for number in FITTED]))


def measurements(seed: int = 0, count: int = COUNT) -> Sample:
    """Motions of the robot as it truly is, with noise."""
    robot, told = changed(rigid.from_mjcf(_arm.TEXT), FITTED, true_logs()), _arm.told(count, seed)
    exact = jax.jit(jax.vmap(lambda s: _arm.motion(robot, s, 4 * STEPS)))(told)
    noise = np.random.default_rng(seed + 1).normal(0.0, SIGMA, exact.shape)
    return Sample(told.amplitude, told.frequency, exact + jnp.asarray(noise))


def problem(steps: int = 20, seed: int = 0, count: int = COUNT) -> ukjax.tuning.TuningProblem:
    """Fits the nine numbers, from those of the text."""
    motion, nominal = fitted_motion(FITTED), rigid.from_mjcf(_arm.TEXT)

    def residuals(logs, sample):
        return jnp.ravel((motion(logs, sample) - sample.measured) / SIGMA)

    shown = {number.name: lambda logs, i=i, number=number: jnp.exp(logs[i]) * value(number, nominal)
             for i, number in enumerate(FITTED)}  # fmt: skip
    return ukjax.tuning.TuningProblem(
        residuals, jnp.zeros(len(FITTED)), ukjax.tuning.LevenbergMarquardt(), steps, name="An arm from MJCF",
        quantities=shown, samples=measurements(seed, count), rtol=1e-7,
    )  # fmt: skip


class Found(NamedTuple):
    """What was fitted: logs (p,), their standard deviations (p,), and chi squared for each degree of freedom."""

    logs: np.ndarray
    spread: np.ndarray
    chi_squared: float

    @property
    def off(self) -> np.ndarray:
        """From the truth, in standard deviations (p,)."""
        return (self.logs - np.asarray(true_logs())) / self.spread


def judged(task: ukjax.tuning.TuningProblem, tuning: ukjax.tuning.Tuning) -> Found:
    precision = _identification.information(fitted_motion(FITTED), tuning.params, task.samples, SIGMA)
    count = np.size(task.samples.measured)
    squares = float(tuning.loss) * task.samples.measured.shape[0]
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    return Found(np.asarray(tuning.params), spread, squares / (count - len(FITTED)))


def number_rows(found: Found) -> list[tuple[str, ...]]:
    robot, rows = rigid.from_mjcf(_arm.TEXT), []
    for number, log, spread, off in zip(FITTED, found.logs, found.spread, found.off, strict=True):
        text = float(value(number, robot))
        got, deviation = text * np.exp(log), abs(text * np.exp(log)) * spread
        shown = f"{text * number.ratio:.5f}", f"{text:.5f}", f"{got:.5f}", f"{deviation:.5f}", f"{off:+.1f}"
        rows.append((number.name, *shown))
    return rows


class Told(NamedTuple):
    """Of all numbers: relative standard deviation of each alone, and among all (infinite: none), and the rank."""

    alone: np.ndarray
    together: np.ndarray
    rank: int


def told(samples: Sample, found: Found) -> Told:
    """What the data could tell of every number."""
    every = (*FITTED, *OTHERS)
    at = jnp.concatenate([jnp.asarray(found.logs), jnp.zeros(len(OTHERS))])
    fisher = _identification.information(fitted_motion(every), at, samples, SIGMA)
    strength, directions = np.linalg.eigh(fisher)
    seen = strength > NULL * strength[-1]
    # What has a part in a direction that nothing tells is not told itself.
    lost = np.sum(directions[:, ~seen] ** 2, axis=1) > 1e-6
    variance = np.sum(directions[:, seen] ** 2 / strength[seen], axis=1)
    return Told(1 / np.sqrt(np.diag(fisher)), np.where(lost, np.inf, np.sqrt(variance)), int(np.sum(seen)))


def told_rows(got: Told) -> list[tuple[str, str, str, str]]:
    percent = lambda x: f"{100 * x:.2g} %" if np.isfinite(x) else "not told"
    return [
        (number.name, percent(alone), percent(together), "yes" if together <= WELL else "no")
        for number, alone, together in zip((*FITTED, *OTHERS), got.alone, got.together, strict=True)
    ]


def residual_figure(runs: dict[str, np.ndarray], measured: np.ndarray) -> Figure:
    """What is missed of each angle (T, 4), before and after."""
    figure, axes = over_time(*(f"measured - {name} [mrad]" for name in runs), height=5.6)
    t = np.linspace(0.0, T1, POINTS)
    for axis, q in zip(axes, runs.values(), strict=True):
        for i, label in enumerate(LABELS):
            axis.plot(t, 1e3 * (measured - q)[:, i], ".-", lw=0.6, ms=4, label=label.removesuffix(" [rad]"))
        axis.axhspan(-2e3 * SIGMA, 2e3 * SIGMA, color="0.85", zorder=0, label="2 standard deviations of the noise")
    legend(figure)
    return captioned(figure, "What is missed of each measured angle, at the start and in the fit.")


def figures(task: ukjax.tuning.TuningProblem, found: Found) -> dict[str, Figure]:
    sample = jax.tree_util.tree_map(lambda x: x[0], task.samples)
    motion = jax.jit(fitted_motion(FITTED))
    runs = {name: np.asarray(motion(jnp.asarray(logs), sample))
            for name, logs in (("start", np.zeros(len(FITTED))), ("fit", found.logs))}  # fmt: skip
    measured, t = np.asarray(sample.measured), np.linspace(0.0, T1, POINTS)
    return {
        "fit": _identification.fit_figure(t, measured, runs, LABELS),
        "residuals": residual_figure(runs, measured),
    }


def main() -> None:
    out = _report.start(__doc__ or "", "identify_robot")
    with _report.console.status("Measuring"):
        task = problem()
    _report.console.print("Fitting; the first step compiles the Jacobian.")
    tuning = task.tune()
    with _report.console.status("Information of the data"):
        found = judged(task, tuning)
        told_by = told(task.samples, found)
    columns = ("", "true", "start: the text", "found", "standard deviation", "off by, in these")
    _report.table("The nine numbers in which the robot differs from its text", columns, number_rows(found))
    _report.console.print(
        f"{int(tuning.step)} steps; chi-squared for each degree of freedom {found.chi_squared:.3f}.", highlight=False
    )
    columns = ("relative standard deviation", "if only this is unknown", "if all of these are", "found within 5 %")
    title = f"What the data tell of {len(told_by.alone)} numbers: rank {told_by.rank}"
    _report.table(title, columns, told_rows(told_by))
    with _report.console.status("The motions before and after"):
        drawn = figures(task, found)
    _report.save(drawn, out)


if __name__ == "__main__":
    main()
