"""A consistent state of a robot from rough coordinates and rates of its joints.

q: coordinates; v: speeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._constraint import Holonomic
from .._manifold import Assembly
from .._manifold import assemble as nearest
from .._mechanism import Mechanism
from . import _linkage, _turns
from ._abstract_robot import AbstractRobot
from ._coordinates import in_tree
from ._frame import from_matrix
from ._joint import Revolute


def assembled(
    robot: AbstractRobot, coordinates: Mapping[str, Any], rates: Mapping[str, Any], t: Any, keep: Sequence[str]
) -> Assembly:
    """The consistent state nearest to the given coordinates and rates of the joints of the tree."""
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
    return nearest(Mechanism(robot, held), q, v, t, keep={"q": kept, "v": kept})


def _kept(values: Mapping[str, Any], home: Mapping[str, Array], name: str, what: str) -> Array:
    """The value at which a joint of one coordinate is kept: that of `values`, else that of `home`, else zero."""
    return _check.floating(values[name], f"{what}[{name!r}]") if name in values else home.get(name, jnp.zeros(1))[0]


class Held(eqx.Module):
    """The offset of a joint's coordinate from `value` + `rate` (t - `self.t`), a function of (q, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)
    value: Array
    rate: Array
    t: Array

    def __call__(self, q: Array, t: Array) -> Array:
        robot, wanted = self.robot, self.value + self.rate * (t - self.t)
        loose = self.joint not in robot.tree.tree and self.joint not in robot.layout.counted
        if loose and isinstance(robot.joints[self.joint], Revolute):
            # The tree determines the whole turns of a hinge that closes a loop, so its angle is kept up to whole turns.
            return (_turns.nearest(_turns.of_pose(robot, q, self.joint), wanted) - wanted)[None]
        return (_turns.coordinate(robot, q, self.joint) - wanted)[None]


def roughly(robot: AbstractRobot, coordinates: Mapping[str, Any], rates: Mapping[str, Any]) -> tuple[Array, Array]:
    """q and v of the robot from values of the joints of the tree; other joints only set turns of counted hinges."""
    twin = robot if robot.layout == robot.tree else robot.in_joints()
    known = [name for name in robot.joint_names if name not in twin.layout.tree]
    of_tree = lambda values: {k: values[k] for k in values if k not in known} if isinstance(values, Mapping) else values
    q, v = in_tree(twin, of_tree(coordinates), "coordinates"), in_tree(twin, of_tree(rates), "rates")
    q = _turns.started(twin, q, coordinates)
    if twin is robot:
        return q, v
    at = _linkage.placement(twin, _linkage.posture(twin, q), v)
    angles = _turns.of_bodies(twin, q) if robot.planar else {}
    found_q, found_v = [], []
    for body in (node.body for node in robot.layout.nodes):
        pose, twist = at.pose(body), at.twists[twin.layout.node_of(body)]
        if robot.planar:
            angle = _turns.nearest(jnp.arctan2(pose.R[1, 0], pose.R[0, 0]), angles[body])
            found_q.append(jnp.stack([*pose.p[:2], angle]))
            found_v.append(jnp.stack([*(pose.R @ twist.linear)[:2], twist.angular[2]]))
        else:
            found_q.append(jnp.concatenate([pose.p, from_matrix(pose.R)]))
            found_v.append(jnp.concatenate([twist.linear, twist.angular]))
    of_tree = {name: _turns.coordinate(twin, q, name) for name in robot.layout.counted if name in twin.layout.tree}
    return _turns.started(robot, jnp.concatenate(found_q), {**coordinates, **of_tree}), jnp.concatenate(found_v)
