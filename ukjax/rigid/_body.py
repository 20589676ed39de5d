"""Bodies, their outlines for pictures, and checks that the parts of a robot fit together."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _check
from .._result import is_traced
from .._types import Numbers
from ._frame import Axis, Frame, Inertia, vector
from ._joint import (
    AbstractJoint,
    AbstractLink,
    AbstractRollingLink,
    Fixed,
    KnifeEdge,
    Planar,
    Prismatic,
    Revolute,
    Rolling,
    slip_of,
)
from ._layout import GROUND, Layout, body_of, frame_of


Part = TypeVar("Part")

# Points on a circle.
ROUND = 25


class Shape(eqx.Module):
    """A line through points that are fixed on a body, for pictures.

    Args:
        points: Seen from the body (k, 3) [m].

    Raises:
        ValueError: If the points have another shape, or are not finite.

    `box`, `cylinder`, `sphere`, `circle` and `axes` make such lines, about a `position`, turned by a `rotation` as of
    a `Frame`. The points are static, not leaves.
    """

    points: tuple[tuple[float, float, float], ...] = eqx.field(static=True)

    def __init__(self, points: Numbers):
        found = np.asarray(points, float)
        if found.ndim != 2 or found.shape[1] != 3 or not len(found):
            raise ValueError(f"points must have shape (k, 3), but have shape {found.shape}.")
        if not np.all(np.isfinite(found)):
            raise ValueError("points must be finite.")
        self.points = tuple((float(x), float(y), float(z)) for x, y, z in found)

    @property
    def array(self) -> Array:
        """The points (k, 3) [m]."""
        return jnp.array(self.points)

    @classmethod
    def box(cls, size: Numbers, position: Numbers = (0.0, 0.0, 0.0), rotation: Numbers | None = None) -> "Shape":
        """The edges of a box of `size` (3,) [m]."""
        edges = np.asarray(vector(size, "size"), float)
        if not np.all(edges > 0):
            raise ValueError(f"size must be positive, but is {edges}.")
        around = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])
        below, above = (np.column_stack([around, np.full(5, z)]) for z in (-1, 1))
        # Round the bottom and round the top, down and up again at each corner; it ends where it starts.
        top = [point for k in range(5) for point in ((above[k], below[k], above[k]) if k in (1, 2, 3) else (above[k],))]
        walk = [*below, *top, below[0]]
        return cls(_placed(np.array(walk) * edges / 2, position, rotation))

    @classmethod
    def cylinder(
        cls, radius: float, length: float, position: Numbers = (0.0, 0.0, 0.0), rotation: Numbers | None = None
    ) -> "Shape":
        """The outline of a cylinder about z [m]."""
        radius, length = _check.positive(radius, "radius"), _check.positive(length, "length")
        angle = np.linspace(0.0, 2 * np.pi, ROUND)
        ring = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(ROUND)])
        up, half = np.array([0.0, 0.0, length / 2]), ROUND // 2
        # Round the bottom and round the top, down and up again half way; it ends where it starts.
        top = [ring[: half + 1] + up, ring[half : half + 1] - up, ring[half:] + up]
        return cls(_placed(np.concatenate([ring - up, *top, ring[:1] - up]), position, rotation))

    @classmethod
    def sphere(cls, radius: float, position: Numbers = (0.0, 0.0, 0.0)) -> "Shape":
        """Three great circles of a sphere [m]."""
        radius = _check.positive(radius, "radius")
        angle = np.linspace(0.0, 2 * np.pi, ROUND)
        s, c, zero = np.sin(angle), np.cos(angle), np.zeros(ROUND)
        rings = [(c, s, zero), (c, zero, s)]
        quarter = np.column_stack([c, s, zero])[: ROUND // 4 + 1]
        rest = np.column_stack([zero, c, s])
        circles = [np.column_stack(ring) for ring in rings]
        return cls(_placed(radius * np.concatenate([*circles, quarter, rest, quarter[::-1]]), position, None))

    @classmethod
    def circle(cls, radius: float, axis: str = "z", position: Numbers = (0.0, 0.0, 0.0)) -> "Shape":
        """A wheel about "x", "y" or "z", with a spoke that shows how it turns [m]."""
        if axis not in ("x", "y", "z"):
            raise ValueError(f'axis must be "x", "y" or "z", but is {axis!r}.')
        radius, angle = _check.positive(radius, "radius"), np.linspace(0.0, 2 * np.pi, ROUND)
        flat = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(ROUND)])
        flat = np.concatenate([flat, np.zeros((1, 3)), flat[:1]])
        return cls(_placed(np.roll(flat, {"x": 1, "y": 2, "z": 0}[axis], axis=1), position, None))

    @classmethod
    def axes(cls, length: float, position: Numbers = (0.0, 0.0, 0.0), rotation: Numbers | None = None) -> "Shape":
        """The three axes of a frame [m]."""
        zero = np.zeros(3)
        x, y, z = _check.positive(length, "length") * np.eye(3)
        return cls(_placed(np.stack([x, zero, y, zero, z, zero, x]), position, rotation))


def _placed(points: np.ndarray, position: Numbers, rotation: Numbers | None) -> np.ndarray:
    pose = Frame(position, rotation).pose
    return points @ np.asarray(pose.R, float).T + np.asarray(pose.p, float)


class Body(eqx.Module):
    """A rigid body.

    Args:
        inertia: `Inertia`; None for a body without mass, which something must hold.
        frames: Name -> `Frame`, where joints and forces act.
        shapes: `Shape`s that pictures show, beside the lines between the body's joints.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If a name is empty, no text, "ground", or has a dot.
    """

    inertia: Inertia | None
    frames: dict[str, Frame]
    shapes: tuple[Shape, ...]

    def __init__(
        self,
        inertia: Inertia | None = None,
        frames: Mapping[str, Frame] | None = None,
        shapes: Iterable[Shape] | Shape = (),
    ):
        if inertia is not None:
            _check.instance(inertia, Inertia, "inertia", "rigid.Inertia(1.0)")
        self.inertia = inertia
        self.frames = named_parts(frames or {}, Frame, "frames", "rigid.Frame((1.0, 0.0, 0.0))")
        self.shapes = (shapes,) if isinstance(shapes, Shape) else tuple(shapes)
        for shape in self.shapes:
            _check.instance(shape, Shape, "shapes", "rigid.Shape.sphere(0.1)")


def named_parts(parts: object, kind: type[Part], name: str, example: str) -> dict[str, Part]:
    """The given parts as a dict by name; raises TypeError or ValueError if a name or a part is invalid."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"{name} must be a mapping, name -> {kind.__name__}, but is a {type(parts).__name__}.")
    for key, part in parts.items():
        if not isinstance(key, str) or not key or "." in key or key == GROUND:
            raise ValueError(
                f'{name} has a part called {key!r}: a name must be text, without a dot, and not "{GROUND}".'
            )
        _check.instance(part, kind, f"{name}[{key!r}]", example)
    return dict(parts)


def check_ends(where: str, frames_of: Mapping[str, Mapping[str, Frame]], *ends: str) -> None:
    """Raises ValueError unless each end is "body" or "body.frame", and all are on different bodies."""
    for end in ends:
        body, frame = (body_of(end), frame_of(end)) if isinstance(end, str) else (end, "")
        if not isinstance(end, str) or body not in frames_of:
            raise ValueError(f"{where} names the body {body!r}, which does not exist; there are {_listed(frames_of)}.")
        if frame and frame not in frames_of[body]:
            raise ValueError(f"{where} names the frame {end!r}, but {body!r} has {_listed(frames_of[body]) or 'none'}.")
    if len({body_of(end) for end in ends}) < len(ends):
        raise ValueError(f"{where} joins {body_of(ends[0])!r} to itself.")


def check_names(joints: Mapping[str, AbstractJoint], gears: Mapping[str, object]) -> None:
    """Raises ValueError if two constraints would have the same name."""
    for name, joint in joints.items():
        if name in gears:
            raise ValueError(f"gears has {name!r}, but a joint already has that name. Rename one of them.")
        if isinstance(joint, AbstractRollingLink) and (slip_of(name) in joints or slip_of(name) in gears):
            raise ValueError(f"{slip_of(name)!r} is what keeps {name!r} from slipping. Call the other one otherwise.")


def check_held(
    layout: Layout, bodies: Mapping[str, Body], joints: Mapping[str, AbstractJoint], geared: Collection[str]
) -> None:
    """Raises ValueError if a massless body can move freely: no mass hangs on the body, and nothing holds it.

    A loop that passes the body holds it. So does its joint, if the joint is `geared` or has an armature.
    """
    in_loop = {body_of(end) for name in layout.loops for end in (joints[name].parent, joints[name].child)}
    held = [
        not _is_massless(bodies[node.body]) or node.body in in_loop or node.joint in geared for node in layout.nodes
    ]
    for i in range(len(layout.nodes) - 1, -1, -1):
        node = layout.nodes[i]
        if not held[i] and node.v[1] > node.v[0] and not _has_armature(joints[node.joint]):
            raise ValueError(
                f"bodies[{node.body!r}] is massless, and nothing holds it: how would it move? Give it an inertia, "
                "or a joint to something else."
            )
        if node.parent >= 0:
            held[node.parent] = held[node.parent] or held[i]


def frame_at(bodies: Mapping[str, Body], frames: Mapping[str, Frame], end: str) -> Frame | None:
    """Returns the frame "body.frame", where `frames` are those of the ground; None for the body's own."""
    name, body = frame_of(end), body_of(end)
    of_body = frames if body == GROUND else bodies[body].frames
    return of_body[name] if name else None


def check_planar(joints: Mapping[str, AbstractJoint], gravity: Array) -> None:
    """Raises ValueError if a joint, or gravity, would lead bodies out of the plane x, y."""
    for name, joint in joints.items():
        inside = isinstance(joint, Fixed | AbstractLink)
        if isinstance(joint, Revolute):
            inside = _is_along(joint.axis)
        elif isinstance(joint, Prismatic):
            inside = _is_across(joint.axis)
        elif isinstance(joint, Planar):
            inside = joint.normal == "z"
        elif isinstance(joint, Rolling):
            inside = _is_across(joint.normal) and (joint.axis is None or _is_along(joint.axis))
        elif isinstance(joint, KnifeEdge):
            inside = _is_along(joint.normal) and _is_across(joint.direction)
        if not inside:
            raise ValueError(
                f"joints[{name!r}], a {type(joint).__name__}, leads out of the plane x, y of planar bodies. Pass "
                'axis="z" for what turns, one across it for what slides and as the normal of what rolls, or '
                "planar=False."
            )
    if not is_traced(gravity) and gravity[2] != 0:
        raise ValueError(
            f"gravity is {tuple(gravity.tolist())}, out of the plane x, y of planar bodies, which would be weightless. "
            "Pass gravity=(0.0, -9.81, 0.0), or gravity=(0.0, 0.0, 0.0) for none."
        )


def _is_along(axis: Axis) -> bool:
    """Whether an axis is along z."""
    return axis.named == "z" or _has_only(axis, (2,))


def _is_across(axis: Axis) -> bool:
    """Whether an axis is across z."""
    return axis.named in ("x", "y") or _has_only(axis, (0, 1))


def _has_only(axis: Axis, parts: tuple[int, ...]) -> bool:
    """Whether an axis is a vector with no components but `parts`; True if its numbers are traced."""
    if axis.direction is None:
        return False
    others = [k for k in range(3) if k not in parts]
    return is_traced(axis.direction) or not np.any(np.asarray(axis.direction)[others])


def _is_massless(body: Body) -> bool:
    inertia = body.inertia
    if inertia is None:
        return True
    if is_traced(inertia.mass, inertia.moments):
        return False
    return not np.any(np.asarray(inertia.mass)) and not np.any(np.asarray(inertia.moments))


def _has_armature(joint: AbstractJoint) -> bool:
    own = getattr(joint, "effort", None) or getattr(joint, "drag", None)
    return own is not None and (is_traced(own.armature) or bool(np.asarray(own.armature)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
