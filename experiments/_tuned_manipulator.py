"""The flexible-joint manipulator, driven by its motors: P and the gains of the motors as what there is to tune.

The control of Zhao et al. (2018), eq. 72, is a torque on the links, where there is no actuator. Here it is a virtual
control: the motors are servoed to the angles from which the springs exert it (`models.flexible_joint.motors`). There
are nine numbers: the time constant P of the constraint, and two gain matrices (2, 2) [1/s] with which the errors of the
motors decay, coupled because the links are. They are matrix exponentials, as P is one, so that they keep their signs.
The controller knows the nominal manipulator only; the real one has other masses, inertias and springs, and starts
elsewhere:

    J = mean over samples of the mean over time of beta^2 / E^2 + |u|^2 / U^2
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax
from models.flexible_joint import ON_MOTORS, FlexibleJoint, motors

from ._driven import Driven


ERROR = 0.1  # E [rad/s]
TORQUE = 20.0  # U [N m]
T1 = 4.0
STEPS = 200
# P of the paper, the motors well faster. Not the same for both of a motor: J does not change when they are exchanged,
# so equal ones are a saddle that a gradient cannot leave.
HAND = {"P": 0.25, "position": (5.0, 5.0), "velocity": (12.0, 12.0)}  # of the matrices, the diagonals


class Sample(eqx.Module):
    """A manipulator that is not the nominal one, and where it starts."""

    model: FlexibleJoint
    q0: Float[Array, " 4"]
    v0: Float[Array, " 4"]


class Controller(eqx.Module):
    """The torques of the motors for the manipulator that it takes for the real one."""

    model: FlexibleJoint
    gains: dict[str, Any]

    def control(self, q, v, t):
        """u (2,) [N m]."""
        servo = motors(self.model, **self.gains)
        return ukjax.servo_control(ukjax.Mechanism(self.model), servo, q, v, t, throw=False).u

    def __call__(self, q, v, t):
        return jnp.array(ON_MOTORS) @ self.control(q, v, t)


def samples(count: int, seed: int) -> Sample:
    """Masses, inertias and springs off by up to 20 %; started near the paper's state."""
    rng = np.random.default_rng(seed)
    off = lambda: jnp.asarray(rng.uniform(0.8, 1.2, count))
    names = ("m1", "m2", "I1", "I2", "K1", "K2", "J11", "J22")
    model = jax.vmap(lambda values: FlexibleJoint(**values))({name: off() for name in names})
    q0 = jnp.asarray(rng.normal(0.0, 0.1, (count, 4)))
    v0 = jnp.array([[1.0, -0.1, 0.0, 0.0]]) + jnp.asarray(rng.normal(0.0, 0.2, (count, 4)))
    return Sample(model, q0, v0)


def gains(logs: dict[str, Any]) -> dict[str, Any]:
    """P () [s] and the two gain matrices (2, 2) [1/s] from their logarithms."""
    # Few squarings suffice for the norms met here, and each is differentiated.
    matrix = lambda log: jax.scipy.linalg.expm(log, max_squarings=4)
    return {"P": jnp.exp(logs["P"]), "position": matrix(logs["position"]), "velocity": matrix(logs["velocity"])}


def run(gains: dict[str, Any], sample: Sample) -> tuple[ukjax.Trajectory, Controller]:
    """One manipulator under the nominal controller with these gains, in steps of a fixed length."""
    controller = Controller(FlexibleJoint(), gains)
    trajectory = ukjax.simulate(
        ukjax.Mechanism(Driven(sample.model, controller)), sample.q0, sample.v0, jnp.linspace(0.0, T1, STEPS // 2 + 1),
        stepsize_controller=diffrax.StepTo(ts=np.linspace(0.0, T1, STEPS + 1)), throw=False,
    )  # fmt: skip
    return trajectory, controller


def problem(steps: int = 14, count: int = 8, seed: int = 0) -> ukjax.tuning.TuningProblem:
    """From gains chosen by hand, over `count` manipulators."""

    def residuals(logs, sample):
        trajectory, controller = run(gains(logs), sample)
        u = jax.vmap(controller.control)(trajectory.q, trajectory.v, trajectory.t)
        beta = trajectory.v[:, 0] + trajectory.v[:, 1]
        return jnp.concatenate([beta / ERROR, jnp.ravel(u) / TORQUE]) / np.sqrt(beta.shape[0])

    shown = {"P [s]": lambda logs: jnp.exp(logs["P"])} | {
        f"{name} gain {i + 1}{j + 1} [1/s]": lambda logs, name=name, i=i, j=j: gains(logs)[name][i, j]
        for name in ("position", "velocity")
        for i in range(2)
        for j in range(2)
    }
    logs = {k: jnp.log(jnp.array(x)) for k, x in HAND.items()}
    start = {k: jnp.diag(x) if x.ndim else x for k, x in logs.items()}
    return ukjax.tuning.TuningProblem(
        residuals, start, ukjax.tuning.LevenbergMarquardt(), steps,
        name="Gains of the flexible-joint manipulator", quantities=shown, samples=samples(count, seed),
    )  # fmt: skip
