"""The inertial parameters of the SCARA robot from noisy joint data: which can be found, and how well.

The SCARA of Xu & Liu (2017) has ten inertial parameters: masses m1 to m4, centres of mass r1 and r2, moments of inertia
Iz1 to Iz4 (lengths and gravity are known). Torques move it for some seconds from several starts; its joints are
measured, with noise. `ukjax.tune` fits the motion to the measurements, by the same call as any gains.

The motion depends on five numbers only, alpha, beta, gamma and delta of eq. 34 and m4, so the information of the data
about the ten has rank five; its null space says which changes of the ten nobody can see. On the helix the constraint
fixes all coordinates, and the motion does not depend on any of them.

    python -m experiments.identify_scara [--out DIR]
    ukjax tune experiments.identify_scara:problem
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats
from matplotlib.figure import Figure

import ukjax
from models.scara import Scara
from models.scara import scenario as on_helix

from . import _identification, _report
from ._driven import Driven
from ._figures import captioned, legend, panels, visible


SIGMA = 1e-3  # standard deviation of the measurements [rad, m]
T1, STEPS, POINTS = 3.0, 150, 76
COUNT = 4  # motions
BASE = ("alpha", "beta", "gamma", "delta", "m4")
UNITS = ("kg m²", "kg m²", "kg m²", "kg m²", "kg")
INERTIAL = ("m1", "m2", "m3", "m4", "r1", "r2", "Iz1", "Iz2", "Iz3", "Iz4")
CONFIDENCE = 0.95
DRAWS = 400  # repetitions of the measurements, for the coverage of the intervals


class Sample(eqx.Module):
    """One motion: amplitude and frequency of the torques, the start, and what was measured."""

    amplitude: Any  # (4,) [N m, N]
    frequency: Any  # (4,) [rad/s]
    q0: Any
    measured: Any = None  # (POINTS, 4)


class Base(ukjax.AbstractSystem):
    """The SCARA written in the five numbers that its motion depends on."""

    numbers: Any  # alpha, beta, gamma, delta [kg m^2], m4 [kg]
    g: Any = 9.81

    def mass(self, q, t):
        alpha, beta, gamma, delta, m4 = self.numbers
        c, zero = gamma * jnp.cos(q[1]), jnp.zeros_like(m4)
        first = [alpha + beta + 2 * c, beta + c, delta, zero]
        second = [beta + c, beta, delta, zero]
        return jnp.array([first, second, [delta, delta, delta, zero], [zero, zero, zero, m4]])

    def force(self, q, v, t):
        s = self.numbers[2] * jnp.sin(q[1])
        zero = jnp.zeros_like(s)
        return jnp.stack([s * v[1] * (2 * v[0] + v[1]), -s * v[0] ** 2, zero, -self.numbers[4] * self.g])


class Torques(eqx.Module):
    """Of a sample; the tool's weight is nearly balanced."""

    sample: Sample

    def __call__(self, q, v, t):
        weight = jnp.array([0.0, 0.0, 0.0, 0.5 * 9.81])
        return self.sample.amplitude * jnp.cos(self.sample.frequency * t) + weight


def base(robot: Scara) -> Any:
    """The five numbers of a robot with ten parameters, (5,), below eq. 34."""
    return jnp.stack([*robot.inertia(), robot.m4])


def motion(robot: ukjax.AbstractSystem, sample: Sample) -> Any:
    """Joint coordinates (POINTS, 4) in steps of a fixed length."""
    controller = diffrax.StepTo(ts=np.linspace(0.0, T1, STEPS + 1))
    ts = jnp.linspace(0.0, T1, POINTS)
    mechanism = ukjax.Mechanism(Driven(robot, Torques(sample)))
    return ukjax.simulate(mechanism, sample.q0, jnp.zeros(4), ts, stepsize_controller=controller, throw=False).q


def measurements(seed: int = 0) -> Sample:
    """Motions of the robot of the paper, with noise."""
    rng = np.random.default_rng(seed)
    amplitude = jnp.asarray(rng.uniform(0.5, 1.0, (COUNT, 4)) * np.array([6.0, 3.0, 0.05, 0.1]))
    frequency = jnp.asarray(rng.uniform(1.5, 4.0, (COUNT, 4)))
    q0 = jnp.asarray(rng.uniform(-1.0, 1.0, (COUNT, 4)) * np.array([1.0, 2.0, 1.0, 0.0]))
    sample = Sample(amplitude, frequency, q0)
    exact = jax.jit(jax.vmap(lambda s: motion(Scara(), s)))(sample)
    return Sample(amplitude, frequency, q0, exact + jnp.asarray(rng.normal(0.0, SIGMA, exact.shape)))


def problem(steps: int = 20, seed: int = 0, off: float = 1.3) -> ukjax.tuning.TuningProblem:
    """Fits the five numbers, from a start `off` times too large.

    The data tell them so unequally well that their logarithms are tuned along the directions in which the data tell
    equally much (at the start); a parameter of 1 is one standard deviation of a single measurement.
    """
    measured = measurements(seed)
    start = jnp.log(off * base(Scara()))
    mean = information(lambda x: Base(jnp.exp(x)), start, measured) / np.size(measured.measured)
    logs = logarithms(start, jnp.asarray(np.linalg.inv(np.linalg.cholesky(mean)).T))

    def loss(z, sample):
        missed = motion(Base(jnp.exp(logs(z))), sample) - sample.measured
        return jnp.mean((missed / SIGMA) ** 2)

    shown = {f"{name} [{unit}]": lambda z, i=i: jnp.exp(logs(z)[i]) for i, (name, unit) in enumerate(zip(BASE, UNITS))}
    return ukjax.tuning.TuningProblem(
        loss, jnp.zeros(5), optax.lbfgs(), steps, name="Inertial parameters of the SCARA", quantities=shown,
        samples=measured,
    )  # fmt: skip


def logarithms(start: Any, directions: Any) -> Any:
    """z -> the logarithms of the five numbers."""
    return lambda z: start + directions @ z


def information(of: Any, at: Any, sample: Sample) -> np.ndarray:
    """Fisher information of the data about the vector that `of` makes a robot of."""
    return _identification.information(lambda x, s: motion(of(x), s), at, sample, SIGMA)


def robot(parameters: Any) -> Scara:
    """From the logarithms of the ten inertial parameters."""
    values: dict[str, Any] = {name: jnp.exp(x) for name, x in zip(INERTIAL, parameters)}
    return Scara(**values)


def helix_sensitivity() -> float:
    """Largest derivative of the motion on the helix with respect to the logarithm of any inertial parameter."""
    case = on_helix("printed_velocities", t1=5.0)
    ts = jnp.linspace(0.0, 5.0, 51)

    def path(x):
        mechanism = ukjax.Mechanism(robot(x), case.mechanism.constraints)
        trajectory = ukjax.simulate(mechanism, case.q0, case.v0, ts, throw=False)
        return trajectory.q

    return float(jnp.max(jnp.abs(jax.jit(jax.jacfwd(path))(_logs()))))


def _logs() -> Any:
    return jnp.log(jnp.stack([getattr(Scara(), name) for name in INERTIAL]))


def coverage(found: np.ndarray, samples: Sample, draws: int = DRAWS) -> tuple[np.ndarray, float]:
    """How often the true numbers lie in the intervals, each (5,) and all together, if measured anew `draws` times.

    Every draw is fitted to the end, by Gauss-Newton steps from what was found.
    """
    exact = jax.vmap(lambda s: motion(Scara(), s))(samples)
    noise = jnp.asarray(np.random.default_rng(1).normal(0.0, SIGMA, (draws, *exact.shape)))
    true, count = jnp.log(base(Scara())), len(BASE)
    model = lambda x: jax.vmap(lambda s: motion(Base(jnp.exp(x)), s))(samples)

    def fitted(measured):
        def step(x, _):
            J = jax.jacfwd(model)(x).reshape(-1, count) / SIGMA
            missed = (measured - model(x)).ravel() / SIGMA
            return x + jnp.linalg.solve(J.T @ J, J.T @ missed), J.T @ J

        x, precisions = jax.lax.scan(step, jnp.asarray(found), None, length=4)
        spread = jnp.sqrt(jnp.diag(jnp.linalg.inv(precisions[-1])))
        return jnp.abs(x - true) / spread, (x - true) @ precisions[-1] @ (x - true)

    off, distance = jax.lax.map(jax.jit(fitted), exact[None] + noise)
    each = np.mean(np.asarray(off) <= scipy.stats.norm.ppf((1 + CONFIDENCE) / 2), axis=0)
    return each, float(np.mean(np.asarray(distance) <= scipy.stats.chi2.ppf(CONFIDENCE, count)))


def main() -> None:
    out = _report.start(__doc__ or "", "identify_scara")
    _report.console.print("Fitting; the first step compiles the gradient.")
    task = problem()
    tuning = task.tune()
    with _report.console.status("Information of the data"):
        numbers = task.shown(tuning.history)
        history = np.log(np.stack(list(numbers.values()), axis=1))
        found, true = history[tuning.step], np.log(np.asarray(base(Scara())))
        precision = information(lambda x: Base(jnp.exp(x)), jnp.asarray(found), task.samples)
        spread = np.sqrt(np.diag(np.linalg.inv(precision)))
        fisher = information(robot, _logs(), task.samples)
        strength, directions = np.linalg.eigh(fisher)
        on_the_helix = helix_sensitivity()
    with _report.console.status(f"The same measurements {DRAWS} times: how often the intervals hold"):
        each, together = coverage(found, task.samples)
    factor = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2)
    rows = []
    for name, unit, x, want, s, held in zip(BASE, UNITS, found, true, spread, each, strict=True):
        low, high = np.exp(x - factor * s), np.exp(x + factor * s)
        within = "yes" if low <= np.exp(want) <= high else "NO"
        rows.append(
            (
                f"{name} [{unit}]",
                f"{np.exp(want):.6f}",
                f"{np.exp(x):.6f}",
                f"{low:.6f} to {high:.6f}",
                within,
                f"{100 * held:.1f} %",
            )
        )
    columns = (
        "",
        "true",
        "identified",
        f"{100 * CONFIDENCE:.0f} % interval",
        "holds the true one",
        f"does so in {DRAWS} repetitions",
    )
    _report.table("What the motion tells", columns, rows)
    distance = (found - true) @ precision @ (found - true)
    limit = scipy.stats.chi2.ppf(CONFIDENCE, len(BASE))
    _report.console.print(
        f"All together: chi-squared {distance:.2f}, limit {limit:.2f}; "
        f"below it in {100 * together:.1f} % of the repetitions.",
        highlight=False,
    )
    rank = int(np.sum(strength > 1e-9 * strength[-1]))
    _report.table(
        f"What it does not: information about the ten parameters has rank {rank}",
        ("eigenvalue / largest", "direction: relative change of each parameter"),
        [(f"{s / strength[-1]:.0e}", _direction(d)) for s, d in zip(strength, directions.T, strict=True)],
    )
    _report.console.print(
        f"On the helix: largest derivative of the motion with respect to any of them {on_the_helix:.0e}.",
        highlight=False,
    )
    _report.save(
        {
            "convergence": convergence(tuning.evaluations, np.abs(np.expm1(history - true))),
            "fit": fit(history[0], found, task.samples),
        },
        out,
    )


def _direction(d: np.ndarray) -> str:
    large = [(name, x) for name, x in zip(INERTIAL, d, strict=True) if abs(x) > 0.05]
    return ", ".join(f"{name} {x:+.2f}" for name, x in large)


def convergence(evaluations: np.ndarray, errors: np.ndarray) -> Figure:
    """Relative error of every number over the evaluations."""
    figure, (axis,) = panels()
    for error, name in zip(errors.T, BASE, strict=True):
        axis.semilogy(evaluations, visible(error), "o-", ms=3, label=name)
    axis.set(xlabel="evaluations of the loss and its gradient", ylabel="relative error")
    legend(figure)
    return captioned(figure, "Identification of the SCARA robot: how far its five numbers are from the true ones.")


def fit(start: np.ndarray, found: np.ndarray, samples: Sample) -> Figure:
    """One measured motion, with that of the start and of the fit."""
    sample = jax.tree_util.tree_map(lambda x: x[0], samples)
    runs = {name: np.asarray(jax.jit(motion)(Base(jnp.exp(x)), sample))
            for name, x in (("start", start), ("fit", found))}  # fmt: skip
    labels = [f"$q_{i + 1}$ [{'m' if i == 3 else 'rad'}]" for i in range(4)]
    t = np.linspace(0.0, T1, POINTS)
    return _identification.fit_figure(t, np.asarray(sample.measured), runs, labels)


if __name__ == "__main__":
    main()
