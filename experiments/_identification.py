"""What experiments that fit motions to measurements share: what motors are told, the information, and a picture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import ukjax
from ukjax import rigid

from ._driven import Driven
from ._figures import captioned, legend, panels


class Sample(eqx.Module):
    """One motion: what the motors are told, and what was measured."""

    amplitude: Any  # (p,) [rad or m]
    frequency: Any  # (p,) [rad/s]
    measured: Any = None  # (T, k)


class Control(eqx.Module):
    """Motors that follow sines, as springs and dampers would; the numbers are known.

    Each has a joint of the tree of its own, with one coordinate, and a gear of one; no joint has a quaternion.
    """

    robot: rigid.Robot
    sample: Sample
    stiffness: tuple[float, ...] = eqx.field(static=True)  # (p,) [N m/rad or N/m]
    damping: tuple[float, ...] = eqx.field(static=True)  # (p,) [N m s/rad or N s/m]

    def __call__(self, q, v, t):
        G = matrix(self.robot)
        wanted = self.sample.amplitude * jnp.sin(self.sample.frequency * t)
        return G @ (jnp.array(self.stiffness) * (wanted - q @ G) - jnp.array(self.damping) * (v @ G))


def matrix(robot: rigid.Robot) -> Any:
    """G (n, p) of all motors, none of which is in a joint that closes a loop."""
    actuation = robot.actuation()
    assert isinstance(actuation, jax.Array)
    return actuation


def motion(control: Control, q0: Any, end: float, points: int, steps: int) -> Any:
    """Coordinates (points, n) of the robot from rest at q0 (n,) to the time `end` [s], in steps of a fixed length.

    Loops open by less than the noise within that time, so that no projection is needed, which takes long to compile.
    """
    mechanism = ukjax.Mechanism(Driven(control.robot, control), control.robot.own_constraints)
    run = ukjax.simulate(
        mechanism, q0, jnp.zeros_like(q0), jnp.linspace(0.0, end, points), keep=("q",), throw=False,
        stepsize_controller=diffrax.StepTo(ts=np.linspace(0.0, end, steps + 1)),
    )  # fmt: skip
    assert run.q is not None
    return run.q


def information(motion: Callable, at: Any, samples: Any, sigma: float) -> np.ndarray:
    """Fisher information (p, p) of the data about the vector x (p,) of `motion(x, sample)`.

    `sigma`: standard deviation of every measurement, in its unit.
    """
    sensitivity = jax.jit(jax.vmap(jax.jacfwd(motion), (None, 0)))(at, samples)
    J = np.asarray(sensitivity).reshape(-1, at.shape[0]) / sigma
    return J.T @ J


def fit_figure(t: np.ndarray, measured: np.ndarray, runs: Mapping[str, np.ndarray], labels: Sequence[str]) -> Figure:
    """Four measured coordinates (T, 4) of a motion, and what it is in each run."""
    figure, axes = panels(2, 2, (7.4, 5.6), sharex=True)
    for i, axis in enumerate(axes):
        axis.plot(t, measured[:, i], "o", ms=5, color="0.75", zorder=1, label="measured")
        for (name, q), style in zip(runs.items(), ("--", "-"), strict=True):
            axis.plot(t, q[:, i], style, lw=1.2, label=name)
        axis.set_ylabel(labels[i])
        axis.margins(x=0.0)
    for axis in axes[2:]:
        axis.set_xlabel("time t [s]")
    legend(figure)
    return captioned(figure, "First of the motions that were measured, and what it is at the start and in the fit.")
