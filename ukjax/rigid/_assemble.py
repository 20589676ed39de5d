"""A consistent state of a robot from what is roughly known of its joints.

q: coordinates; v: speeds.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._constraint import Holonomic
from .._manifold import Assembly
from .._manifold import assemble as nearest
from . import _linkage
from ._coordinates import in_tree
from ._force import Placement
from ._rotation import from_matrix


if TYPE_CHECKING:
    from ._robot import Robot


def assembled(
    robot: "Robot", coordinates: Mapping[str, Any], rates: Mapping[str, Any], t: Any, keep: Sequence[str]
) -> Assembly:
    """The nearest state to the one where the joints of the tree are where they are said to be."""
    q, v = roughly(robot, coordinates, rates)
    kept, held = [], {}
    for name in [keep] if isinstance(keep, str) else keep:
        if name not in robot.joints:
            raise ValueError(f"keep has {name!r}, but the joints are {', '.join(map(repr, robot.joint_names))}.")
        if name in robot.layout.tree:
            kept += range(*robot.layout.node(name).v)
        else:
            value = _kept(coordinates, robot.home, name, "coordinates")
            rate = _kept(rates, robot.home_rates, name, "rates")
            held[f"keep {name}"] = Holonomic(Held(robot, name, value, rate, jnp.asarray(t, q.dtype)))
    return nearest(robot.mechanism(held), q, v, t, keep={"q": kept, "v": kept})


def _kept(values: Mapping[str, Any], home: Mapping[str, Array], name: str, what: str) -> Array:
    """What a joint of one coordinate is to be kept at; what the home says where nothing is given."""
    return _check.floating(values[name], f"{what}[{name!r}]") if name in values else home.get(name, jnp.zeros(1))[0]


class Held(eqx.Module):
    """A coordinate of a joint that is a constraint, at a value and a rate at a time; a function of (q, t)."""

    robot: Any
    joint: str = eqx.field(static=True)
    value: Array
    rate: Array
    t: Array

    def __call__(self, q: Array, t: Array) -> Array:
        return (self.robot.coordinate(q, self.joint) - self.value - self.rate * (t - self.t))[None]


def roughly(robot: "Robot", coordinates: Mapping[str, Any], rates: Mapping[str, Any]) -> tuple[Array, Array]:
    """Coordinates and speeds of the bodies where the joints of the tree say; the others are passed over."""
    twin = robot if robot.layout == robot.tree else robot.in_joints()
    known = [name for name in robot.joint_names if name not in twin.layout.tree]
    of_tree = lambda values: {k: values[k] for k in values if k not in known} if isinstance(values, Mapping) else values
    q, v = in_tree(twin, of_tree(coordinates), "coordinates"), in_tree(twin, of_tree(rates), "rates")
    if twin is robot:
        return q, v
    at = Placement.of(twin, _linkage.posture(twin, q), v)
    found_q, found_v = [], []
    for body in (node.body for node in robot.layout.nodes):
        pose, twist = at.pose(body), at.twists[twin.layout.node_of(body)]
        if robot.planar:
            found_q.append(jnp.stack([*pose.p[:2], jnp.arctan2(pose.R[1, 0], pose.R[0, 0])]))
            found_v.append(jnp.stack([*(pose.R @ twist.linear)[:2], twist.angular[2]]))
        else:
            found_q.append(jnp.concatenate([pose.p, from_matrix(pose.R)]))
            found_v.append(jnp.concatenate([twist.linear, twist.angular]))
    return jnp.concatenate(found_q), jnp.concatenate(found_v)
