"""The drawing of a robot: each body is a line through the frames of its joints, with its shapes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._scenario import Drawing
from . import _linkage
from ._abstract_robot import AbstractRobot
from ._layout import GROUND, body_of
from ._shape import Shape


def picture(robot: AbstractRobot, trails: Sequence[str] = ()) -> Drawing:
    """The `Drawing` of a robot; a body with a single joint frame is a line from there to its centre of mass."""
    show = (lambda p: p[:2]) if robot.planar else (lambda p: p)
    ends: dict[str, list[str]] = {name: [] for name in (GROUND, *robot.layout.bodies)}
    for name in robot.joint_names:
        for end in (robot.joints[name].child, robot.joints[name].parent):
            if end not in ends[body_of(end)]:
                ends[body_of(end)].append(end)
    links = {body: _line(robot, body, ends[body], show) for body in robot.layout.bodies}
    for name in robot.layout.bodies:
        for k, shape in enumerate(robot.bodies[name].shapes):
            links[f"{name} shape {k + 1}"] = _outline(robot, name, shape, show)
    ground = [show(_linkage.pose(robot, jnp.zeros(robot.layout.n_q), end).p) for end in ends[GROUND]]
    scenery: dict[str, Any] = {f"ground {i + 1}": [p] for i, p in enumerate(ground)}
    return Drawing(links, trails=trails, scenery=scenery)


def _line(robot: AbstractRobot, body: str, ends: list[str], show: Callable[[Array], Array]) -> Callable[..., Array]:
    def points(q: Array, t: Any) -> Array:
        found = [_linkage.pose(robot, q, end).p for end in ends]
        inertia = robot.bodies[body].inertia
        if len(found) < 2 and inertia is not None:
            found.append(_linkage.pose(robot, q, body).point(inertia.center))
        return jnp.stack([show(p) for p in found])

    return points


def _outline(robot: AbstractRobot, body: str, shape: Shape, show: Callable[[Array], Array]) -> Callable[..., Array]:
    def points(q: Array, t: Any) -> Array:
        pose = _linkage.pose(robot, q, body)
        return jax.vmap(lambda u: show(pose.point(u)))(shape.array.astype(q.dtype))

    return points
