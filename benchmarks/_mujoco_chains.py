"""Robots with closed chains of `models.legged_chains` in MuJoCo and in MJX, loops as stiff as a step lets them be.

A universal joint is two hinges, a ball has a quaternion, in the order of ours.
"""

import xml.etree.ElementTree as ET
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.legged_chains import BASE, Chain, Rod

from ._linkages import G, library
from ._mujoco import add


DT = 1e-4


def model_of(chain: Chain, dt: float = DT) -> Any:
    root = ET.Element("mujoco")
    add(root, "compiler", angle="radian", inertiagrouprange="0 0")
    add(root, "option", gravity=_text(0, 0, -G), timestep=repr(dt), tolerance="1e-12")
    bodies = {BASE: add(root, "worldbody")}
    origin = {BASE: np.zeros(3)} | {rod.name: np.array(rod.at) for rod in chain.rods}
    for rod in chain.rods:
        pos = _text(*(origin[rod.name] - origin[rod.on]))
        body = bodies[rod.name] = add(bodies[rod.on], "body", name=rod.name, pos=pos)
        I = rod.inertia()
        inertia = _text(I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2])
        middle = _text(*(np.subtract(rod.to, rod.at) / 2))
        add(body, "inertial", pos=middle, mass=repr(rod.mass), fullinertia=inertia)
        for joint in _joints(rod):
            add(body, "joint", **joint)
    equality = add(root, "equality")
    for i, loop in enumerate(chain.closed):
        for side, on, at in (("a", loop.one, loop.at), ("b", loop.other, loop.to)):
            add(bodies[on], "site", name=f"{i}{side}", pos=_text(*(np.array(at) - origin[on])))
        kind = "weld" if loop.kind == "6D" else "connect"
        hard = {"solref": _text(2 * dt, 1), "solimp": _text(0.9999, 0.9999, 0.001)}
        add(equality, kind, site1=f"{i}a", site2=f"{i}b", **hard)
    return library("mujoco").MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


def _joints(rod: Rod) -> list[dict[str, str]]:
    if rod.kind == "universal":
        return [{"axis": "1 0 0"}, {"axis": "0 1 0"}]
    kind = {"continuous": "hinge", "prismatic": "slide", "spherical": "ball"}[rod.kind]
    return [{"type": kind} if kind == "ball" else {"type": kind, "axis": _text(*rod.axis)}]


def _text(*numbers: float) -> str:
    return " ".join(repr(float(x)) for x in numbers)


class InC:
    """A chain in MuJoCo's C."""

    def __init__(self, chain: Chain):
        self.mujoco, self.model = library("mujoco"), model_of(chain)

    def derivatives(self, q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The acceleration (n,), and its derivatives by displacements and speeds (n, n), from those of a step."""
        data, n = self.mujoco.MjData(self.model), self.model.nv
        data.qpos[:], data.qvel[:] = q, v
        self.mujoco.mj_forward(self.model, data)
        acceleration, A = np.array(data.qacc), np.zeros((2 * n, 2 * n))
        # A step of Euler's, v + h a, without damping.
        self.mujoco.mjd_transitionFD(self.model, data, 1e-6, True, A, None, None, None)
        return acceleration, A[n:, :n] / DT, (A[n:, n:] - np.eye(n)) / DT


class InJax:
    """(q, v, generalised force, shares of masses, ways of places) -> acceleration by MJX."""

    def __init__(self, chain: Chain):
        self.mjx, model = library("mujoco.mjx"), model_of(chain)
        self.model, self.start = self.mjx.put_model(model), self.mjx.make_data(model)

    def __call__(self, q: Array, v: Array, force: Array, share: Array, place: Array) -> Array:
        model = self.model
        parts = jnp.concatenate([jnp.zeros(1), share])  # the world is first
        model = model.replace(
            body_mass=model.body_mass * (1 + parts),
            body_inertia=model.body_inertia * (1 + parts[:, None]),
            body_pos=model.body_pos + jnp.concatenate([jnp.zeros((1, 3)), place]),
        )
        data = self.start.replace(qpos=q, qvel=v, qfrc_applied=force)
        return self.mjx.forward(model, data).qacc
