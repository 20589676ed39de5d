"""Robots from MJCF and URDF.

model: MuJoCo's; i: number of a body; j: of a joint.
"""

import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ._body import Body, named_parts
from ._effort import Drag, Effort
from ._files import compiled, is_urdf
from ._frame import Frame, Pose
from ._inertia import Inertia
from ._joint import AbstractJoint, Fixed, Free, Prismatic, Revolute, Spherical
from ._layout import GROUND
from ._left_out import left_out
from ._motor import Gear, Motor
from ._robot import Robot
from ._rotation import matrix


# MuJoCo's numbers for kinds of joints, equalities, what a transmission goes to, and an option.
FREE, BALL, SLIDE, HINGE = range(4)
CONNECT, WELD, JOINT = range(3)
SITE = 6
NO_GRAVITY = 1 << 7


def from_file(source: str | Path) -> Robot:
    """`from_mjcf` or `from_urdf`, by what the file, or the text, is."""
    return from_urdf(source) if is_urdf(source) else from_mjcf(source)


def from_mjcf(source: str | Path, *, coordinates: str = "joint", **options: Any) -> Robot:
    """A robot from an MJCF file, or its text, as MuJoCo reads it.

    Bodies with their inertias; hinge, slide, ball and free joints with stiffness, damping and armature; `connect`,
    `weld` and `joint` equalities, which are met exactly instead of softly; motors; gravity. What is not simulated
    (contacts, limits, dry friction, tendons, ...) is named in one warning.

    Args:
        source: A path, or the text. Files that it names must lie in its folder, or below.
        coordinates: "joint" or "absolute", as for `Robot`.
        **options: Further ones of `Robot`, in place of what the file says.

    Returns:
        `Robot`, whose bodies, joints and motors have the names of the file ("." in them is "_"), or "body3", "joint2",
        "motor0". Its coordinates are MuJoCo's, in the order of its bodies; so are its speeds, but for the velocity
        of a free joint, which is seen from the body here.

    Raises:
        ImportError: Without MuJoCo: `pip install "ukjax[robots]"`.
        TypeError: If `source` is no path and no text.
        ValueError: If it is no MJCF, names files elsewhere, or is too large.

    Warns:
        UserWarning: If something of the file is not simulated.
    """
    return _robot(compiled(source, "MJCF"), {}, coordinates, options)


def from_urdf(
    source: str | Path,
    *,
    loops: Mapping[str, AbstractJoint] | None = None,
    frames: Mapping[str, Mapping[str, Frame]] | None = None,
    floating: bool = False,
    coordinates: str = "joint",
    **options: Any,
) -> Robot:
    """A robot from a URDF file, or its text, as MuJoCo reads it, with loops that URDF cannot express.

    Args:
        source: A path, or the text. Meshes are not read.
        loops: Name -> joint that closes a loop, such as `Revolute("left.tip", "right.tip")`.
        frames: Body -> name -> `Frame`, for the loops.
        floating: Whether the root link floats; else it is fixed to the ground.
        coordinates: "joint" or "absolute", as for `Robot`.
        **options: Further ones of `Robot`, in place of what the file says.

    Returns:
        `Robot`, with the names of the file ("." in them is "_"); what holds its root is called as that, with a "~".

    Raises:
        ImportError: Without MuJoCo: `pip install "ukjax[robots]"`.
        TypeError: If `source` is no path and no text, or a loop no joint.
        ValueError: If it is no URDF, or is too large; or a loop names what there is not.

    Warns:
        UserWarning: If something of the file is not simulated.
    """
    loops = named_parts(loops or {}, AbstractJoint, "loops", 'rigid.Revolute("left.tip", "right.tip")')
    model = compiled(source, "URDF")
    return _robot(model, loops, coordinates, options, frames or {}, floating)


class _Names(NamedTuple):
    """Of MuJoCo's bodies and joints, by number; no two are the same."""

    bodies: list[str]
    joints: list[str]


class _Parts(NamedTuple):
    """What a robot is made of, by name; frames by body."""

    names: _Names
    bodies: dict[str, Inertia | None]
    joints: dict[str, AbstractJoint]
    frames: dict[str, dict[str, Frame]]
    gears: dict[str, Gear]
    motors: dict[str, Motor]

    def at(self, body: str, name: str, pose: Pose) -> str:
        """A frame on a body, as "body.frame"; the body itself if the frame is its own."""
        if np.allclose(pose.p, 0, atol=1e-14) and np.allclose(pose.R, np.eye(3), atol=1e-14):
            return body
        name = _unused(self.frames.get(body, {}), name)
        frame = Frame(pose.p) if np.allclose(pose.R, np.eye(3), atol=1e-14) else Frame(pose.p, pose.R)
        self.frames.setdefault(body, {})[name] = frame
        return f"{body}.{name}"


def _robot(
    model: Any,
    loops: Mapping[str, AbstractJoint],
    coordinates: str,
    options: Mapping[str, Any],
    frames: Mapping[str, Mapping[str, Frame]] | None = None,
    floating: bool = False,
) -> Robot:
    parts = _Parts(_names(model), {}, {}, {}, {}, {})
    for i in range(1, model.nbody):
        _add_body(model, parts, i, floating)
    for k in range(model.neq):
        if model.eq_active0[k]:
            _add_equality(model, parts, k)
    for k in range(model.nu):
        if model.actuator_trntype[k] in (0, 1) and _is_driven(model, model.actuator_trnid[k, 0]):
            name = _unused(parts.motors, _name(model.actuator(k).name, f"motor{k}"))
            parts.motors[name] = Motor(parts.names.joints[model.actuator_trnid[k, 0]], model.actuator_gear[k, 0])
    for name, joint in loops.items():
        parts.joints[_unused(parts.joints, name)] = joint
    for body, more in (frames or {}).items():
        parts.frames.setdefault(body, {}).update(more)
    missing = left_out(model)
    if missing:
        warnings.warn(f"not simulated: {'; '.join(missing)}.", UserWarning, stacklevel=3)
    own = {
        "gravity": np.zeros(3) if model.opt.disableflags & NO_GRAVITY else np.array(model.opt.gravity),
        "frames": parts.frames.pop(GROUND, {}),
        "gears": parts.gears,
        "motors": parts.motors,
        "coordinates": coordinates,
    }
    bodies = {name: Body(inertia, parts.frames.pop(name, {})) for name, inertia in parts.bodies.items()}
    if parts.frames:
        unknown = next(iter(parts.frames))
        raise ValueError(f"frames names the body {unknown!r}, which there is not; there are {[*bodies]}.")
    return Robot(bodies, parts.joints, **{**own, **options})


def _add_body(model: Any, parts: _Parts, i: int, floating: bool) -> None:
    """A body, and the joints that it hangs on, one after the other by massless bodies."""
    body, parent = parts.names.bodies[i], parts.names.bodies[model.body_parentid[i]]
    place = _pose(model.body_pos[i], model.body_quat[i])
    joints = range(model.body_jntadr[i], model.body_jntadr[i] + model.body_jntnum[i])
    between = [_unused({*parts.names.bodies, *parts.bodies}, f"{body}~{k}") for k in range(len(joints) - 1)]
    parts.bodies.update(dict.fromkeys(between) | {body: _inertia(model, i)})
    if not len(joints):
        kind = Free if floating and parent == GROUND else Fixed
        name = _unused({*parts.names.joints, *parts.joints}, f"{body}~")
        parts.joints[name] = kind(parts.at(parent, f"to_{body}", place), body)
    for k, j in enumerate(joints):
        child = [*between, body][k]
        before, after = _anchors(model, j, place if k == 0 else _pose())
        name = parts.names.joints[j]
        ends = parts.at(parent, f"to_{name}", before), parts.at(child, f"of_{name}", after)
        parts.joints[name] = _joint(model, j, *ends)
        parent = child


def _anchors(model: Any, j: int, place: Pose) -> tuple[Pose, Pose]:
    """A joint's frame seen from the parent, which is where its coordinate is zero, and from the body."""
    kind, anchor = model.jnt_type[j], _pose(model.jnt_pos[j])
    if kind == FREE:
        return _pose(), _pose()
    before = place @ anchor
    start = model.qpos0[model.jnt_qposadr[j]]
    if kind in (HINGE, SLIDE) and start:
        back = _joint(model, j, "", "").motion
        before = before @ back.pose(jnp.array([-start])) if back is not None else before
    return before, anchor


def _joint(model: Any, j: int, parent: str, child: str) -> AbstractJoint:
    kind, dof = model.jnt_type[j], model.jnt_dofadr[j]
    axis = np.array(model.jnt_axis[j])
    named = next((k for k, unit in zip("xyz", np.eye(3), strict=True) if np.array_equal(axis, unit)), axis)
    damping, armature = float(model.dof_damping[dof]), float(model.dof_armature[dof])
    if kind == FREE:
        return Free(parent, child)
    if kind == BALL:
        return Spherical(parent, child, Drag(damping, armature) if damping or armature else None)
    numbers = float(model.jnt_stiffness[j]), float(model.qpos_spring[model.jnt_qposadr[j]]), damping, armature
    effort = Effort(*numbers) if any((numbers[0], damping, armature)) else None
    return Revolute(parent, child, named, effort) if kind == HINGE else Prismatic(parent, child, named, effort)


def _add_equality(model: Any, parts: _Parts, k: int) -> None:
    """An equality as an exact constraint."""
    kind, data, name = model.eq_type[k], model.eq_data[k], _name(model.equality(k).name, f"equality{k}")
    first, second = model.eq_obj1id[k], model.eq_obj2id[k]
    name = _unused({*parts.joints, *parts.gears}, name)
    if kind == JOINT:
        if not all(_is_driven(model, j) for j in (first, second) if j >= 0):
            return
        a = np.array(data[:5])
        zero = lambda j: model.qpos0[model.jnt_qposadr[j]]
        # MuJoCo's are of what the coordinates are off their reference.
        shifted = np.polynomial.Polynomial(a)(np.polynomial.Polynomial([-zero(second) if second >= 0 else 0.0, 1.0]))
        a = np.append(shifted.coef, np.zeros(5 - len(shifted.coef))) if second >= 0 else a[:1]
        a[0] += zero(first)
        other = parts.names.joints[second] if second >= 0 else None
        parts.gears[name] = Gear(parts.names.joints[first], other, np.trim_zeros(a, "b") if np.any(a) else a[:1])
    elif kind in (CONNECT, WELD):
        if model.eq_objtype[k] == SITE:
            poses = [_pose(model.site_pos[s], model.site_quat[s]) for s in (first, second)]
            first, second = model.site_bodyid[first], model.site_bodyid[second]
        elif kind == CONNECT:
            poses = [_pose(data[:3]), _pose(data[3:6])]
        else:
            poses = [_pose(data[3:6], data[6:10]), _pose(data[:3])]
        bodies = [parts.names.bodies[i] for i in (first, second)]
        one, other = (
            parts.at(body, f"{name}_{k}", pose) for k, (body, pose) in enumerate(zip(bodies, poses, strict=True))
        )
        parts.joints[name] = Spherical(one, other) if kind == CONNECT else Fixed(one, other)


def _is_driven(model: Any, j: int) -> bool:
    return model.jnt_type[j] in (HINGE, SLIDE)


def _inertia(model: Any, i: int) -> Inertia | None:
    mass, R = model.body_mass[i], np.asarray(matrix(jnp.array(model.body_iquat[i])))
    if not mass and not np.any(model.body_inertia[i]):
        return None
    moments = R @ np.diag(model.body_inertia[i]) @ R.T
    return Inertia(mass, (moments + moments.T) / 2, np.array(model.body_ipos[i]))


def _pose(position: Any = (0.0, 0.0, 0.0), quaternion: Any = (1.0, 0.0, 0.0, 0.0)) -> Pose:
    return Pose(matrix(jnp.array(quaternion, float)), jnp.array(position, float))


def _names(model: Any) -> _Names:
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    return _Names(
        [GROUND, *_distinct(bodies, "body", 1)], _distinct([model.joint(j).name for j in range(model.njnt)], "joint", 0)
    )


def _distinct(names: list[str], what: str, first: int) -> list[str]:
    """What they are called here; those that the file gives come before the made up ones of its unnamed parts."""
    found, taken = [*names], set()
    for k in sorted(range(len(names)), key=lambda k: not names[k]):
        found[k] = _unused(taken, _name(names[k], f"{what}{first + k}"))
        taken.add(found[k])
    return found


def _name(name: str, otherwise: str) -> str:
    name = name.replace(".", "_")
    return f"{name}_" if name == GROUND else name or otherwise


def _unused(taken: Container[str], name: str) -> str:
    """The name, or with lines below it until nothing else is called so."""
    while name in taken:
        name += "_"
    return name
