"""Coordinates and speeds of a robot: how the ones follow from the others, what they are called, and where they lie.

q: coordinates (n_q,); v: speeds (n,); d: small displacement (n,).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._coordinate import Coordinate
from .._kinematics import AbstractKinematics
from ._layout import Layout
from ._linkage import BODY, motions
from ._motion import AbstractMotion


if TYPE_CHECKING:
    from ._robot import Robot


class TreeKinematics(AbstractKinematics):
    """That of every motion of a tree."""

    motions: tuple[AbstractMotion, ...]
    layout: Layout = eqx.field(static=True)

    def rates(self, q, v, t):
        return self._each(lambda motion, q, v: motion.rates(q, v), q, v)

    def retract(self, q, d, t):
        return self._each(lambda motion, q, d: motion.retract(q, d), q, d)

    def _each(self, of: Any, q: Array, v: Array) -> Array:
        pairs = zip(self.motions, self.layout.nodes, strict=True)
        return jnp.concatenate([of(motion, q[slice(*node.q)], v[slice(*node.v)]) for motion, node in pairs])


def names_of(robot: "Robot") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of coordinates and speeds, such as "A [rad]", "base ωx [rad/s]"."""
    coordinates: list[str] = []
    speeds: list[str] = []
    for node, motion in zip(robot.layout.nodes, motions(robot), strict=True):
        joint = node.joint.removeprefix(BODY)
        for names, entries in ((coordinates, motion.coordinates), (speeds, motion.speeds)):
            names += [str(Coordinate(f"{joint} {name}".strip(), unit)) for name, unit in entries]
    return tuple(coordinates), tuple(speeds)


def in_tree(robot: "Robot", values: Mapping[str, Any], what: str) -> Array:
    """Coordinates, or (`what` is "rates") speeds, from those of joints of the tree by name; at rest where not given."""
    if not isinstance(values, Mapping):
        example = '{"hip": 0.3}'
        raise TypeError(f"{what} must be a mapping from names of joints, such as {example}, but is {values!r}.")
    dtype = robot.gravity.dtype
    rates = what == "rates"
    nodes = robot.layout.nodes
    found = [motion.rest(dtype) for motion in motions(robot)]
    found = [jnp.zeros(node.v[1] - node.v[0], dtype) for node in nodes] if rates else found
    for joint, value in values.items():
        if joint not in robot.layout.tree:
            raise ValueError(f"{what} has {joint!r}, which is none of the joints of the tree, {robot.layout.tree}.")
        given = jnp.atleast_1d(_check.floating(value, f"{what}[{joint!r}]")).astype(dtype)
        i = robot.layout.tree.index(joint)
        if given.shape != found[i].shape:
            raise ValueError(f"{what}[{joint!r}] must have shape {found[i].shape}, but has shape {given.shape}.")
        _check.finite(given, f"{what}[{joint!r}]")
        found[i] = given
    return jnp.concatenate(found) if found else jnp.zeros(0, dtype)
