"""Closed mechanisms as MJCF texts, and their motion by MuJoCo and by ukjax, from the same text.

q: joint angles [rad]; v: their rates [rad/s]; h: time step [s].
"""

import importlib
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import bricard
from ukjax import rigid


# Compiled modules, which a checker of types does not see into.
mujoco: Any = importlib.import_module("mujoco")
rollout: Any = importlib.import_module("mujoco.rollout").rollout
SAVED = 101  # times at which states are compared
INTEGRATORS = {"Euler": 0, "RK4": 1, "implicitfast": 3}
FOUR_BAR = """
<mujoco model="planar four-bar linkage">
  <option gravity="0 -9.81 0"/>
  <default><geom type="capsule" size="0.02" contype="0" conaffinity="0"/><joint axis="0 0 1"/></default>
  <worldbody>
    <body name="crank">
      <joint name="A"/>
      <geom fromto="0 0 0 0.24 0.32 0" mass="1"/>
      <body name="coupler" pos="0.24 0.32 0">
        <joint name="B"/>
        <geom fromto="0 0 0 1 0.38 0" mass="2"/>
      </body>
    </body>
    <body name="rocker" pos="1 0 0">
      <joint name="C"/>
      <geom fromto="0 0 0 0.24 0.7 0" mass="1.5"/>
    </body>
  </worldbody>
  <equality><connect name="D" body1="coupler" body2="rocker" anchor="1 0.38 0"/></equality>
</mujoco>
"""


class Linkage(NamedTuple):
    """A closed mechanism that starts from rest where its text draws it.

    `loops`: the pairs of points that the text holds together; `point`: whose path is compared; `second`: makes another
    formulation of the same, as (mechanism, q, v, point from q).
    """

    name: str
    text: str
    loops: tuple[tuple[str, str], ...]
    point: str
    second: Callable[[], tuple[ukjax.Mechanism, Any, Any, Callable]]


class Run(NamedTuple):
    """States (SAVED, n), seconds of work for a second of motion, and seconds to compile."""

    q: np.ndarray
    v: np.ndarray
    seconds: float
    compile_s: float = 0.0


def four_bar() -> Linkage:
    def absolute():
        robot, data = rigid.from_mjcf(FOUR_BAR, coordinates="absolute"), fresh(FOUR_BAR)[1]
        poses = np.concatenate([np.append(p, turn) for p, turn in zip(data.xpos[1:], data.xquat[1:], strict=True)])
        q, v = (
            np.zeros(len(names)) for names in robot.names
        )  # the angles of the hinges, at zero, are behind the poses
        q[: len(poses)] = poses
        return robot.mechanism(), q, v, lambda q: robot.position(q, "coupler.D_0")

    return Linkage("planar four-bar", FOUR_BAR, (("coupler.D_0", "rocker.D_1"),), "coupler.D_0", absolute)


def bricard_linkage() -> Linkage:
    """Of `models.bricard`; the hinge that closes it is two points of its axis, six rows of rank four."""
    points = np.array(bricard.POINTS, float)
    listed = lambda x: " ".join(repr(float(y)) for y in x)
    before, text = points[0], ""
    for i, (start, end) in enumerate(pairwise(points)):
        way, axis = end - start, np.eye(3)["xyz".index(bricard.AXES[i])]
        # Slender, but MuJoCo takes no moment of zero.
        moments = np.where(way != 0, 1e-12, 1 / 12)
        text += (
            f'<body name="rod{i + 1}" pos="{listed(start - before)}"><joint name="P{i}" axis="{listed(axis)}"/>'
            f'<inertial pos="{listed(way / 2)}" mass="1" diaginertia="{listed(moments)}"/>'
        )
        before = start
    way, axis = points[-1] - points[-2], np.eye(3)["xyz".index(bricard.AXES[-1])]
    pins = "".join(
        f'<connect name="{name}" body1="rod5" anchor="{listed(at)}"/>'
        for name, at in (("P5", way), ("Q5", way + 0.2 * axis))
    )
    text = (
        f'<mujoco model="Bricard"><option gravity="0 {-bricard.G} 0"/><worldbody>{text}{"</body>" * 5}</worldbody>'
        f"<equality>{pins}</equality></mujoco>"
    )

    def by_hinges():
        robot = bricard.robot()
        return robot.mechanism(), np.zeros(5), np.zeros(5), lambda q: robot.position(q, "rod3.end")

    loops = tuple((f"rod5.{name}_0", f"ground.{name}_1") for name in ("P5", "Q5"))
    return Linkage("Bricard's linkage", text, loops, "rod4", by_hinges)


def fresh(text: str) -> tuple[Any, Any]:
    """MuJoCo's model and data at the start, with everything computed there."""
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def by_mujoco(linkage: Linkage, h: float, integrator: str, stiff: bool, end: float) -> Run:
    """In MuJoCo's own loop over the steps, on one thread."""
    model, data = fresh(linkage.text)
    model.opt.timestep, model.opt.integrator = h, INTEGRATORS[integrator]
    model.opt.tolerance = 1e-12  # of its solver, so that this is not what is seen
    if stiff:
        model.eq_solref[:] = 2 * h, 1
        model.eq_solimp[:, :3] = 0.9999, 0.9999, 0.001
    start = np.zeros(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
    mujoco.mj_getState(model, data, start, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    count = round(end / h)
    states, seconds = timed(lambda: rollout(model, data, start[None], nstep=count)[0][0])
    every = count // (SAVED - 1)
    saved = np.concatenate([start[None], states[every - 1 :: every]])
    n = model.nv
    return Run(saved[:, 1 : 1 + n], saved[:, 1 + n : 1 + 2 * n], seconds / end)


def by_ukjax(linkage: Linkage, tolerances: tuple[float, ...], end: float) -> list[Run]:
    """One program for all tolerances."""
    robot = rigid.from_mjcf(linkage.text)
    mechanism, q0 = robot.mechanism(), jnp.zeros(len(robot.names[0]))

    def run(rtol):
        found = simulated(mechanism, q0, q0, rtol, end)
        return found.q, found.v

    begin = time.perf_counter()
    program = jax.jit(run).lower(jnp.asarray(1e-3)).compile()
    compile_s = time.perf_counter() - begin
    runs = []
    for rtol in tolerances:
        (q, v), seconds = timed(lambda rtol=rtol: jax.block_until_ready(program(jnp.asarray(rtol))))
        runs.append(Run(np.asarray(q), np.asarray(v), seconds / end, compile_s))
    return runs


def simulated(mechanism: ukjax.Mechanism, q: Any, v: Any, rtol: Any, end: float, solver: Any = None) -> Any:
    """The trajectory, projected, at the saved times."""
    return ukjax.simulate(
        mechanism, q, v, jnp.linspace(0.0, end, SAVED), solver=solver or diffrax.Dopri8(), rtol=rtol, atol=rtol,
        projection=ukjax.Projection(), keep=("q", "v"), max_steps=200_000, throw=False,
    )  # fmt: skip


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the least seconds of some calls after the first: the machine is shared."""
    output, times = function(), []
    while len(times) < 2 or (len(times) < 10 and sum(times) < 0.5):
        begin = time.perf_counter()
        output = function()
        times.append(time.perf_counter() - begin)
    return output, min(times)


def second_path(linkage: Linkage, rtol: float, end: float) -> np.ndarray:
    """The point (SAVED, 3) [m] by the second formulation, and another solver."""
    mechanism, q, v, point = linkage.second()
    found = simulated(mechanism, q, v, rtol, end, diffrax.Tsit5())
    return np.asarray(jax.vmap(point)(found.q))


class Measures:
    """Functions of states (T, n) of a linkage, by ukjax from the text, whoever computed the states."""

    def __init__(self, linkage: Linkage):
        robot = rigid.from_mjcf(linkage.text)

        def gap(q):
            off = [robot.position(q, one) - robot.position(q, other) for one, other in linkage.loops]
            return jnp.linalg.norm(jnp.stack(off), axis=1)

        self._gaps = jax.jit(jax.vmap(gap))
        self._energy = jax.jit(jax.vmap(robot.energy))
        self._path = jax.jit(jax.vmap(lambda q: robot.position(q, linkage.point)))

    def violation(self, q: np.ndarray) -> np.ndarray:
        """The largest distance of two points that the text holds together (T,) [m]."""
        return np.max(np.asarray(self._gaps(q)), axis=1)

    def drift(self, run: Run) -> np.ndarray:
        """Energy above that of the start (T,) [J]."""
        energy = np.asarray(self._energy(run.q, run.v))
        return energy - energy[0]

    def path(self, q: np.ndarray) -> np.ndarray:
        """Of the point (T, 3) [m]."""
        return np.asarray(self._path(q))


def differences(linkage: Linkage, count: int = 50, seed: int = 0) -> dict[str, float]:
    """How far MuJoCo and ukjax are apart at random states, off the loops: the largest of each, over its own size."""
    robot, measures = rigid.from_mjcf(linkage.text), Measures(linkage)
    model, data = fresh(linkage.text)
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    zero = jnp.zeros(())
    both = jax.jit(lambda q, v: (robot.mass(q, zero), -robot.force(q, v, zero), robot.energy(q, v)))
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ("mass matrix", "bias force", "energy", "gap")}
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(2, count, model.nv))
    for q, v in zip(*states, strict=True):
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        M = np.zeros((model.nv, model.nv))
        for column, unit in zip(M, np.eye(model.nv), strict=True):
            mujoco.mj_mulM(model, data, column, unit)
        gaps = np.linalg.norm(np.reshape(data.efc_pos, (-1, 3)), axis=1)
        mass, bias, energy = both(q, v)
        pairs["mass matrix"].append((M, mass))
        pairs["bias force"].append((np.array(data.qfrc_bias), bias))
        pairs["energy"].append((np.sum(data.energy), energy))
        pairs["gap"].append((np.max(gaps), measures.violation(q[None])[0]))
    found = {}
    for name, compared in pairs.items():
        theirs, ours = (np.array([np.asarray(x) for x in side]) for side in zip(*compared, strict=True))
        found[name] = float(np.max(np.abs(theirs - ours)) / np.max(np.abs(theirs)))
    return found
