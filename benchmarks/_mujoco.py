"""Linkages in MuJoCo: in C, one state at a time and in its threaded rollout, and in MJX.

A loop is an equality constraint between two sites. MuJoCo keeps it softly, and leaves out how the constraint's matrix
changes in time; `stiff` makes it as hard as a time step lets it be.
"""

import xml.etree.ElementTree as ET
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._linkages import GROUND, G, Linkage, library


def model_of(linkage: Linkage, dt: float = 1e-4, integrator: str = "Euler", stiff: bool = False) -> Any:
    numbers = lambda *x: " ".join(repr(float(y)) for y in x)
    root = ET.Element("mujoco")
    add(root, "compiler", angle="radian")
    option = {"gravity": numbers(0, -G, 0), "timestep": repr(dt), "integrator": integrator}
    add(root, "option", tolerance="1e-12", **option)
    ground = add(root, "worldbody")
    bodies: list[ET.Element] = []
    for bar in linkage.bars:
        body = add(ground if bar.on == GROUND else bodies[bar.on], "body", pos=numbers(bar.at, 0, 0))
        inertia = numbers(1e-3 * bar.inertia, bar.inertia, bar.inertia)
        add(body, "inertial", pos=numbers(bar.middle, 0, 0), mass=numbers(bar.mass), diaginertia=inertia)
        add(body, "joint", axis="0 0 1")
        bodies.append(body)
    equality = add(root, "equality")
    for i, loop in enumerate(linkage.loops):
        sides = (loop.on, loop.at), (loop.to, loop.to_at)
        for j, (body, at) in enumerate(sides):
            add(ground if body == GROUND else bodies[body], "site", name=f"{i}{j}", pos=numbers(at, 0, 0))
        hard = {"solref": numbers(2 * dt, 1), "solimp": numbers(0.9999, 0.9999, 0.001)} if stiff else {}
        add(equality, "connect", site1=f"{i}0", site2=f"{i}1", **hard)
    return library("mujoco").MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


class InC:
    """`mj_forward`, `mjd_transitionFD` and the rollout on two threads; joint angles and their rates (n,)."""

    def __init__(self, linkage: Linkage, **options: Any):
        self.mujoco, self.model = library("mujoco"), model_of(linkage, **options)
        self.data = self.mujoco.MjData(self.model)
        self.width = 2 * self.model.nv

    def put(self, theta: np.ndarray, rate: np.ndarray) -> None:
        self.data.qpos[:], self.data.qvel[:] = theta, rate

    def acceleration(self) -> np.ndarray:
        self.mujoco.mj_forward(self.model, self.data)
        return np.array(self.data.qacc)

    def free(self, torque: np.ndarray) -> np.ndarray:
        """The acceleration without loops under torques at the joints."""
        self.data.qfrc_applied[:] = torque
        self.mujoco.mj_forward(self.model, self.data)
        self.data.qfrc_applied[:] = 0.0
        return np.array(self.data.qacc_smooth)

    def derivative(self) -> None:
        A = np.zeros((self.width, self.width))
        self.mujoco.mjd_transitionFD(self.model, self.data, 1e-6, False, A, None, None, None)

    def run(self, pool: Any, theta: np.ndarray, rate: np.ndarray, steps: int) -> np.ndarray:
        """Of a batch of starts (B, n), the angles at the end (B, n)."""
        start = np.concatenate([np.zeros((len(theta), 1)), theta, rate], axis=1)
        threads = [self.mujoco.MjData(self.model) for _ in range(2)]
        states, _ = pool.rollout(self.model, threads, start, nstep=steps)
        return states[:, -1, 1 : 1 + theta.shape[1]]


def add(parent: ET.Element, tag: str, **attributes: str) -> ET.Element:
    """Adds an element to another one."""
    return ET.SubElement(parent, tag, attributes)


def two_threads() -> Any:
    return library("mujoco.rollout").Rollout(nthread=2)


class InJax:
    """(theta, theta') -> theta'' by MJX."""

    def __init__(self, linkage: Linkage):
        self.mjx, model = library("mujoco.mjx"), model_of(linkage)
        self.model, self.start = self.mjx.put_model(model), self.mjx.make_data(model)

    def __call__(self, theta: Array, rate: Array) -> Array:
        return self.mjx.forward(self.model, self.start.replace(qpos=theta, qvel=rate)).qacc

    def put(self, theta: np.ndarray, rate: np.ndarray) -> None:
        self.state = theta, rate

    def free(self, torque: np.ndarray) -> np.ndarray:
        """The acceleration without loops under torques at the joints."""
        q, v = self.state
        data = self.start.replace(qpos=jnp.asarray(q), qvel=jnp.asarray(v), qfrc_applied=jnp.asarray(torque))
        return np.asarray(jax.jit(self.mjx.forward)(self.model, data).qacc_smooth)
