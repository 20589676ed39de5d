"""Bodies, and checks that the parts of a robot fit together."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import equinox as eqx
import numpy as np

from .. import _check
from .._result import is_traced
from ._frame import Axis, Frame
from ._inertia import Inertia
from ._joint import AbstractJoint, AbstractLink, Fixed, Planar, Prismatic, Revolute
from ._layout import GROUND, Layout, body_of, frame_of
from ._rolling import AbstractRollingLink, KnifeEdge, Rolling, slip_of
from ._shape import Shape


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


def named_parts(parts: Any, kind: type, name: str, example: str) -> dict[str, Any]:
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


def check_ends(where: str, frames_of: Mapping[str, Mapping[str, Frame]], *ends: Any) -> None:
    """Raises ValueError unless each end is "body" or "body.frame", and all are on different bodies."""
    for end in ends:
        body, frame = (body_of(end), frame_of(end)) if isinstance(end, str) else (end, "")
        if not isinstance(end, str) or body not in frames_of:
            raise ValueError(f"{where} names the body {body!r}, which does not exist; there are {_listed(frames_of)}.")
        if frame and frame not in frames_of[body]:
            raise ValueError(f"{where} names the frame {end!r}, but {body!r} has {_listed(frames_of[body]) or 'none'}.")
    if len({body_of(end) for end in ends}) < len(ends):
        raise ValueError(f"{where} joins {body_of(ends[0])!r} to itself.")


def check_names(joints: Mapping[str, AbstractJoint], gears: Mapping[str, Any]) -> None:
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


def check_planar(joints: Mapping[str, AbstractJoint]) -> None:
    """Raises ValueError if a joint would lead bodies out of the plane x, y."""
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


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
