"""The two coordinated robots with a controller that knows only their nominal masses: what there is to tune.

The servo of Liu et al. (2015) computes the six torques from the nominal chain; the chain itself has other masses and
moments of inertia, and starts off the path. Then the gains matter, two for each of the three rows x3, y3, theta3:

    J = mean over samples of the mean over time of |e|^2 / E^2 + |u - u_nominal|^2 / U^2

with the error e of the object, and the torque beyond what the nominal chain needs on the path.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models.coordinated_robots import ACTUATION, START, CoordinatedRobots

from ._driven import Driven


ERROR = 0.01  # E [m, rad]
TORQUE = 2.0  # U [N m]
T1 = 2 * np.pi
STEPS = 180
PAPER = {"damping": (10.0, 10.0, 10.0), "stiffness": (25.0, 25.0, 25.0)}  # alpha = beta = 5
ROWS = ("x3", "y3", "theta3")


class Sample(eqx.Module):
    """A chain that is not the nominal one, and where it starts."""

    robots: CoordinatedRobots
    q0: Any


class Controller(eqx.Module):
    """The torques for the chain that it takes for the real one."""

    chain: CoordinatedRobots
    gains: dict[str, Any]

    def control(self, q, v, t):
        """u (6,) [N m]."""
        path = ukjax.Holonomic(self.chain.off_path, ukjax.Baumgarte(self.gains["damping"], self.gains["stiffness"]))
        servo = ukjax.Servo(path, np.array(ACTUATION))
        return ukjax.servo_control(self.chain.mechanism(), servo, q, v, t, throw=False).u

    def __call__(self, q, v, t):
        return jnp.array(ACTUATION) @ self.control(q, v, t)


def samples(count: int, seed: int) -> Sample:
    """Chains whose masses and moments of inertia are off by up to 20 %, started a few centimetres off the path."""
    rng = np.random.default_rng(seed)
    off = lambda: jnp.asarray(rng.uniform(0.8, 1.2, (count, 5)))
    robots = jax.vmap(lambda m, I: CoordinatedRobots(m=m, I=I))(off(), off())
    near = jnp.array(START)[None] + jnp.asarray(rng.normal(0.0, 0.03, (count, 5)))
    nominal = CoordinatedRobots().mechanism()
    close = jax.jit(jax.vmap(lambda q: ukjax.assemble(nominal, q, jnp.zeros(5), throw=False)))
    q0, _ = close(near)
    return Sample(robots, q0)


def controlled(gains: dict[str, Any], sample: Sample) -> tuple[ukjax.Mechanism, Controller]:
    """A chain under the nominal controller with these gains."""
    controller = Controller(CoordinatedRobots(), gains)
    chain = ukjax.LagrangianSystem(sample.robots.kinetic, sample.robots.potential)
    closure = ukjax.Holonomic(sample.robots.closure, ukjax.Baumgarte.classic(10.0, 10.0))
    return ukjax.Mechanism(Driven(chain, controller), closure), controller


def run(gains: dict[str, Any], sample: Sample) -> tuple[ukjax.Trajectory, Controller]:
    """The same over time, in steps of a fixed length."""
    mechanism, controller = controlled(gains, sample)
    ts = jnp.linspace(0.0, T1, STEPS // 2 + 1)
    trajectory = ukjax.simulate(
        mechanism, sample.q0, jnp.zeros(5), ts,
        formulation=ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()),
        stepsize_controller=diffrax.StepTo(ts=np.linspace(0.0, T1, STEPS + 1)), throw=False,
    )  # fmt: skip
    return trajectory, controller


def on_path() -> Any:
    """The torques that keep the nominal chain on the path, at the times of `run`, (T, 6) [N m]."""
    gains = {k: jnp.array(v) for k, v in PAPER.items()}
    trajectory, controller = run(gains, Sample(CoordinatedRobots(), jnp.array(START)))
    return jax.vmap(controller.control)(trajectory.q, trajectory.v, trajectory.t)


def errors(trajectory: ukjax.Trajectory) -> Any:
    """Of the object over time (T, 3) [m, m, rad]."""
    return jax.vmap(CoordinatedRobots().off_path)(trajectory.q, trajectory.t)


def problem(steps: int = 14, count: int = 8, seed: int = 0) -> ukjax.tuning.TuningProblem:
    """From the paper's gains, over `count` chains. Logarithms keep the gains positive."""
    nominal = jax.jit(on_path)()

    def residuals(logs, sample):
        trajectory, controller = run({k: jnp.exp(x) for k, x in logs.items()}, sample)
        u = jax.vmap(controller.control)(trajectory.q, trajectory.v, trajectory.t)
        off = [errors(trajectory) / ERROR, (u - nominal) / TORQUE]
        return jnp.concatenate([jnp.ravel(x) for x in off]) / np.sqrt(u.shape[0])

    shown = {
        f"{name} of {row} [{unit}]": lambda logs, name=name, i=i: jnp.exp(logs[name][i])
        for name, unit in (("damping", "1/s"), ("stiffness", "1/s²"))
        for i, row in enumerate(ROWS)
    }
    return ukjax.tuning.TuningProblem(
        residuals, {k: jnp.log(jnp.array(x)) for k, x in PAPER.items()}, ukjax.tuning.LevenbergMarquardt(), steps,
        name="Gains of the two coordinated robots", quantities=shown, samples=samples(count, seed),
    )  # fmt: skip
