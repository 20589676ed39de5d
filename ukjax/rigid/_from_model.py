"""Robots from MuJoCo's models.

model: MuJoCo's; i: number of a body; j: of a joint; k: of something else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._types import Numbers
from ._effort import Drag, Effort, Gear, Motor
from ._frame import Inertia, Pose, matrix
from ._joint import AbstractJoint, Fixed, Free, Prismatic, Revolute, Spherical
from ._layout import GROUND
from ._model import (
    BALL,
    FREE,
    HINGE,
    SLIDE,
    Actuator,
    MjModel,
    Switches,
    actuators_of,
    at_joint,
    factors_of,
    switches_of,
    unsupported_features,
)
from ._parts import Part, Parts, Reading, distinct, named_axis, unused, usable


# MuJoCo's numbers for kinds of equalities, and for what their ends are.
CONNECT, WELD, JOINT, TENDON = range(4)
SITE = 6


class _Names(NamedTuple):
    """Names of MuJoCo's bodies and joints, by number; no two are the same."""

    bodies: list[str]
    joints: list[str]


class _Model(NamedTuple):
    """The switches, actuators and names of a model, found before parts are made of it."""

    switches: Switches
    actuators: list[Actuator]
    names: _Names


def read(
    model: MjModel,
    said: Sequence[str] = (),
    coordinates: str = "joint",
    options: Mapping[str, Any] | None = None,
    keyframe: str | None = None,
) -> Reading:
    """The `Reading` of a model, MuJoCo's warnings included; arguments as for `from_mjcf`."""
    if model.nbody < 2:
        raise ValueError("source has no <body>, so nothing could move. Add one to <worldbody>.")
    switches = switches_of(model)
    actuators = actuators_of(model, switches)
    known, parts = _Model(switches, actuators, _names(model)), Parts.none()
    for i in range(1, model.nbody):
        _add_body(model, known, parts, i)
    for k in range(model.neq):
        if model.eq_active0[k] and switches.equality:
            _add_equality(model, known, parts, k)
    for actuator in actuators:
        if actuator.is_on and actuator.drives and actuator.controls:
            name = unused(parts.motors, usable(actuator.name, ""))
            parts.motors[name] = Motor(known.names.joints[actuator.joint], actuator.gear * actuator.gain)
    home, home_rates = _home(model, known.names, keyframe)
    parts.home.update(home)
    parts.home_rates.update(home_rates)
    gravity = np.array(model.opt.gravity) if switches.gravity else np.zeros(3)
    robot = parts.robot(options or {}, gravity=gravity, coordinates=coordinates)
    missing = unsupported_features(model, switches, actuators)
    odd = [f"MuJoCo warns: {' '.join(words.split())[:300].rstrip('.')}." for words in dict.fromkeys(said)]
    return Reading(robot, missing, _switched_off(model, switches, actuators), keyframes_of(model), odd)


def keyframes_of(model: MjModel) -> list[str]:
    """The names of the keyframes, and the numbers of keyframes without a name."""
    return [model.key(k).name or str(k) for k in range(model.nkey)]


def _home(model: MjModel, names: _Names, keyframe: str | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Coordinates and speeds of joints in the drawn state or a keyframe; joints at zero are left out."""
    q, v = np.array(model.qpos0), np.zeros(model.nv)
    if keyframe is not None:
        known = keyframes_of(model)
        if keyframe not in known:
            has = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"keyframe must name one of the file's, which has {has}, but is {keyframe!r}.")
        k = known.index(keyframe)
        q, v = np.array(model.key_qpos[k]), np.array(model.key_qvel[k])
    home, rates = {}, {}
    for j, name in enumerate(names.joints):
        kind, at, dof = model.jnt_type[j], model.jnt_qposadr[j], model.jnt_dofadr[j]
        width, speeds = {FREE: (7, 6), BALL: (4, 3)}.get(kind, (1, 1))
        own, rate = q[at : at + width], v[dof : dof + speeds]
        rest = np.zeros(width)
        if kind in (FREE, BALL):
            rest[-4] = 1.0
            length = np.linalg.norm(own[-4:])
            own[-4:] = own[-4:] / length if length else rest[-4:]
        if kind == FREE:  # MuJoCo sees the velocity of a free joint from the ground
            rate[:3] = np.asarray(matrix(jnp.array(own[3:]))).T @ rate[:3]
        if not np.array_equal(own, rest):
            home[name] = own
        if np.any(rate):
            rates[name] = rate
    return home, rates


def _switched_off(model: MjModel, switches: Switches, actuators: Sequence[Actuator]) -> list[Part]:
    off = [k for k in range(model.neq) if not (model.eq_active0[k] and switches.equality)]
    flags = {name: on for name, on in switches._asdict().items() if name not in ("filters_parents", "sleep", "passive")}
    found = [
        ("by flags", [name.replace("_", " ") for name, on in flags.items() if not on]),
        ("equalities", [model.equality(k).name or f"equality{k}" for k in off]),
        ("actuators", [a.name for a in actuators if not a.is_on]),
    ]
    return [(what, names) for what, names in found if names]


def _add_body(model: MjModel, known: _Model, parts: Parts, i: int) -> None:
    """Adds a body, and the joints that it hangs on, in series with massless bodies between."""
    names = known.names
    body, parent = names.bodies[i], names.bodies[model.body_parentid[i]]
    place = _pose(model.body_pos[i], model.body_quat[i])
    joints = range(model.body_jntadr[i], model.body_jntadr[i] + model.body_jntnum[i])
    between = [unused({*names.bodies, *parts.bodies}, f"{body}~{k}") for k in range(len(joints) - 1)]
    parts.bodies.update(dict.fromkeys(between) | {body: _inertia(model, i)})
    if not len(joints):
        name = unused({*names.joints, *parts.joints}, f"{body}~")
        parts.joints[name] = Fixed(_at(parts, parent, f"to_{body}", place), body)
    for k, j in enumerate(joints):
        child = [*between, body][k]
        before, after = _anchors(model, j, place if k == 0 else _pose())
        name = names.joints[j]
        ends = _at(parts, parent, f"to_{name}", before), _at(parts, child, f"of_{name}", after)
        parts.joints[name] = _joint(model, known, j, *ends)
        if model.jnt_limited[j] and model.jnt_type[j] in (HINGE, SLIDE) and known.switches.limit:
            parts.ranges[name] = float(model.jnt_range[j, 0]), float(model.jnt_range[j, 1])
        parent = child


def _at(parts: Parts, body: str, name: str, pose: Pose) -> str:
    return parts.at(body, name, np.asarray(pose.R), np.asarray(pose.p))


def _anchors(model: MjModel, j: int, place: Pose) -> tuple[Pose, Pose]:
    """The frame of a joint at coordinate zero, seen from the parent and from the body."""
    kind, anchor = model.jnt_type[j], _pose(model.jnt_pos[j])
    if kind == FREE:
        return _pose(), _pose()
    before = place @ anchor
    start = model.qpos0[model.jnt_qposadr[j]]
    if kind in (HINGE, SLIDE) and start:
        joint = (Revolute if kind == HINGE else Prismatic)("", "", np.array(model.jnt_axis[j]))
        before = before @ joint.motion.pose(jnp.array([-start]))
    return before, anchor


def _joint(model: MjModel, known: _Model, j: int, parent: str, child: str) -> AbstractJoint:
    kind, dof = model.jnt_type[j], model.jnt_dofadr[j]
    axis = named_axis(np.array(model.jnt_axis[j]))
    damping, armature = at_joint(known.actuators, j)
    damping += float(model.dof_damping[dof]) if known.switches.damper else 0.0
    armature += float(model.dof_armature[dof])
    if kind == FREE:
        return Free(parent, child)
    if kind == BALL:
        return Spherical(parent, child, Drag(damping, armature) if damping or armature else None)
    stiffness = float(model.jnt_stiffness[j]) if known.switches.spring else 0.0
    numbers = stiffness, float(model.qpos_spring[model.jnt_qposadr[j]]), damping, armature
    effort = Effort(*numbers) if any((stiffness, damping, armature)) else None
    return Revolute(parent, child, axis, effort) if kind == HINGE else Prismatic(parent, child, axis, effort)


def _add_equality(model: MjModel, known: _Model, parts: Parts, k: int) -> None:
    """Adds an equality as an exact constraint.

    The torquescale of a weld is a factor of its rows of rotation: with zero the weld only holds points together.
    """
    kind, data, name = model.eq_type[k], model.eq_data[k], usable(model.equality(k).name, f"equality{k}")
    first, second = model.eq_obj1id[k], model.eq_obj2id[k]
    name = unused({*parts.joints, *parts.gears}, name)
    if kind in (JOINT, TENDON):
        one, other = (None if at < 0 else _side(model, known, kind, at) for at in (first, second))
        if one is None or (other is None and second >= 0):
            return
        a = np.array(data[:5])
        # MuJoCo's coefficients are for the offsets of the coordinates from their reference.
        shifted = np.polynomial.Polynomial(a)(np.polynomial.Polynomial([-other.start if other else 0.0, 1.0]))
        a = np.append(shifted.coef, np.zeros(5 - len(shifted.coef))) if other else a[:1]
        a[0] += one.start
        parts.gears[name] = Gear(one.of, other.of if other else None, np.trim_zeros(a, "b") if np.any(a) else a[:1])
    elif kind in (CONNECT, WELD):
        if model.eq_objtype[k] == SITE:
            poses = [_pose(model.site_pos[s], model.site_quat[s]) for s in (first, second)]
            first, second = model.site_bodyid[first], model.site_bodyid[second]
        elif kind == CONNECT:
            poses = [_pose(data[:3]), _pose(data[3:6])]
        else:
            poses = [_pose(data[3:6], data[6:10]), _pose(data[:3])]
        bodies = [known.names.bodies[i] for i in (first, second)]
        one, other = (
            _at(parts, body, f"{name}_{k}", pose) for k, (body, pose) in enumerate(zip(bodies, poses, strict=True))
        )
        parts.joints[name] = Fixed(one, other) if kind == WELD and data[10] else Spherical(one, other)


class _Side(NamedTuple):
    """A side of an equality: a joint, or factors by joint of a tendon; and its coordinate as drawn."""

    of: str | dict[str, float]
    start: float


def _side(model: MjModel, known: _Model, kind: int, one: int) -> _Side | None:
    """The joint or the fixed tendon with a number; None if it is no joint of one coordinate, or another tendon."""
    if kind == JOINT:
        is_driven = model.jnt_type[one] in (HINGE, SLIDE)
        return _Side(known.names.joints[one], float(model.qpos0[model.jnt_qposadr[one]])) if is_driven else None
    factors = factors_of(model, one)
    if factors is None:
        return None
    return _Side({known.names.joints[j]: factor for j, factor in factors.items()}, float(model.tendon_length0[one]))


def _inertia(model: MjModel, i: int) -> Inertia | None:
    mass, R = model.body_mass[i], np.asarray(matrix(jnp.array(model.body_iquat[i])))
    if not mass and not np.any(model.body_inertia[i]):
        return None
    moments = R @ np.diag(model.body_inertia[i]) @ R.T
    return Inertia(mass, (moments + moments.T) / 2, np.array(model.body_ipos[i]))


def _pose(position: Numbers = (0.0, 0.0, 0.0), quaternion: Numbers = (1.0, 0.0, 0.0, 0.0)) -> Pose:
    return Pose(matrix(jnp.array(quaternion, float)), jnp.array(position, float))


def _names(model: MjModel) -> _Names:
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    return _Names(
        [GROUND, *distinct(bodies, "body", 1)], distinct([model.joint(j).name for j in range(model.njnt)], "joint", 0)
    )
