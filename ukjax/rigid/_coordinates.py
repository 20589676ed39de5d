"""Coordinates and speeds of a robot: their kinematics, their names, and their places in q and v.

q: coordinates (n_q,); v: speeds (n,); d: small displacement (n,).
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _check
from .._coordinate import Coordinate
from .._result import is_traced
from .._system import AbstractKinematics
from . import _turns
from ._abstract_robot import AbstractRobot
from ._joint import AbstractJoint
from ._layout import Layout
from ._linkage import BODY, motions
from ._motion import AbstractMotion, Ball, Float


class TreeKinematics(AbstractKinematics):
    """The kinematics of every motion of a tree, and of the counted turns of hinges."""

    motions: tuple[AbstractMotion, ...]
    layout: Layout = eqx.field(static=True)
    robot: AbstractRobot | None = None  # where turns of hinges are counted

    def rates(self, q, v, t):
        rates = self._each(lambda motion, q, v: motion.rates(q, v), q, v)
        return rates if self.robot is None else jnp.concatenate([rates, _turns.changes(self.robot, q, v)])

    def retract(self, q, d, t):
        moved = self._each(lambda motion, q, d: motion.retract(q, d), q, d)
        if self.robot is None:
            return moved
        turns = q[-len(self.layout.counted) :] + _turns.changes(self.robot, q, d)
        return _turns.met(self.robot, jnp.concatenate([moved, turns]))

    def _each(self, of: Any, q: Array, v: Array) -> Array:
        pairs = zip(self.motions, self.layout.nodes, strict=True)
        return jnp.concatenate([of(motion, q[slice(*node.q)], v[slice(*node.v)]) for motion, node in pairs])


def names_of(robot: AbstractRobot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of coordinates and speeds, such as "A [rad]", "base ωx [rad/s]"."""
    coordinates: list[str] = []
    speeds: list[str] = []
    for node, motion in zip(robot.layout.nodes, motions(robot), strict=True):
        joint = node.joint.removeprefix(BODY)
        for names, entries in ((coordinates, motion.coordinates), (speeds, motion.speeds)):
            names += [str(Coordinate(f"{joint} {name}".strip(), unit)) for name, unit in entries]
    coordinates += [str(Coordinate(joint, "rad")) for joint in robot.layout.counted]
    return tuple(coordinates), tuple(speeds)


def in_tree(robot: AbstractRobot, values: Mapping[str, Any], what: str) -> Array:
    """q, or v if `what` is "rates", from values by joint of the tree; a joint that is left out has those of the home.

    `robot` must be in the coordinates of its joints.
    """
    rates = what == "rates"
    dtype, layout = robot.gravity.dtype, robot.layout
    found = {
        node.joint: jnp.zeros(node.v[1] - node.v[0], dtype) if rates else motion.rest(dtype)
        for node, motion in zip(layout.nodes, motions(robot), strict=True)
    }
    found |= {name: value.astype(dtype) for name, value in (robot.home_rates if rates else robot.home).items()}
    found |= of_joints(robot.joints, layout, values, what, dtype)
    return jnp.concatenate([found[name] for name in layout.tree]) if found else jnp.zeros(0, dtype)


def of_joints(
    joints: Mapping[str, AbstractJoint], tree: Layout, values: Mapping[str, Any], what: str, dtype: Any
) -> dict[str, Array]:
    """Coordinates (n_q,), or speeds (n,) if `what` has "rates", by joint of the tree; errors name `what`."""
    if not isinstance(values, Mapping):
        example = '{"hip": 0.3}'
        raise TypeError(f"{what} must be a mapping from names of joints, such as {example}, but is {values!r}.")
    found: dict[str, Array] = {}
    for name, value in values.items():
        motion = joints[name].motion if name in tree.tree else None
        if motion is None:
            raise ValueError(f"{what} has {name!r}, which is none of the joints of the tree, {tree.tree}.")
        given = jnp.atleast_1d(_check.floating(value, f"{what}[{name!r}]")).astype(dtype)
        shape = (len(motion.speeds if "rates" in what else motion.coordinates),)
        if given.shape != shape:
            raise ValueError(f"{what}[{name!r}] must have shape {shape}, but has shape {given.shape}.")
        _check.finite(given, f"{what}[{name!r}]")
        if isinstance(motion, Ball | Float) and "rates" not in what and not (is_traced(given) or np.any(given[-4:])):
            raise ValueError(f"{what}[{name!r}] has a quaternion of length zero. Pass (1, 0, 0, 0) for no rotation.")
        found[name] = given
    return found
