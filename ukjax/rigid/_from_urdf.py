"""Robots from the links and joints that a URDF file describes.

A check finds joints that move no mass, by M without constraints, before a robot is made: M = sum of S^T G S over the
links; S: twist of a link per unit of each speed, (linear, angular) at the ground's origin (6, n); G: the link's inertia
there (6, 6). M is computed link by link in NumPy, so nothing is compiled.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ._additions import Additions, closing, motors_of, retyped
from ._chain import Chain
from ._closing import loose
from ._effort import Drag, Effort, Gear, Motor
from ._frame import Axis, Frame, Inertia, about_z, from_matrix
from ._joint import Fixed, Free, Prismatic, Revolute, Spherical, Universal
from ._layout import GROUND
from ._linkage import motions
from ._parts import Part, Parts, Reading, distinct, named_axis, unused
from ._robot import Robot
from ._urdf import WORLD, Description, Inertial, Joint, Link, Placed


# A direction has no mass if its eigenvalue of M, scaled to a unit diagonal, is at most this times n.
SMALLEST = 1e-13


# The kind of the joint that a link hangs on, from the link's name and that joint (None for a root).
Kind = Callable[[str, Joint | None], str]


def without_mass(found: Description, kind: Kind) -> tuple[str | None, str | None]:
    """Names of a joint that can move without any mass, as drawn and in a generic state; None where no joint can.

    Args:
        found: The file; its links' inertias are credible.
        kind: Gives the kind of the joint that a link hangs on.

    A joint with a <mimic> counts as held by the joint that it follows.
    """
    rng = np.random.default_rng(0)
    drawn = _loose(found, kind, lambda: np.zeros(6))
    return drawn, None if drawn is None else _loose(found, kind, lambda: rng.uniform(0.3, 1.0, 6))


def _loose(found: Description, kind: Kind, way: Callable[[], np.ndarray]) -> str | None:
    """The joint with the largest part in the direction of least M, <mimic> rows included; None if M is definite."""
    M, owners = _mass(found, kind, way)
    n = len(owners)
    if not n:
        return None
    # The units of the speeds make the diagonal of M one, which separates small masses from zero.
    size = np.sqrt(np.where(np.diag(M) > 0, np.diag(M), 1.0))
    M = M / np.outer(size, size)
    for joint in found.joints.values():
        if joint.mimic is not None and joint.name in owners:
            row = np.zeros(n)
            row[owners.index(joint.name)] += 1.0
            if joint.mimic.joint in owners:
                row[owners.index(joint.mimic.joint)] -= joint.mimic.multiplier
            row /= size
            M = M + np.outer(row, row) / (row @ row)
    values, vectors = np.linalg.eigh(M)
    return None if values[0] > SMALLEST * n else owners[int(np.argmax(np.abs(vectors[:, 0])))]


def _mass(found: Description, kind: Kind, way: Callable[[], np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """M (n, n), and the owner of each speed: a joint, or a root link that floats."""
    ground, columns, owners = Placed(np.eye(3), np.zeros(3)), [], []
    places: dict[str, Placed] = {}
    moved: dict[str, list[int]] = {}
    for link, joint in found.tree():
        parent = "" if joint is None else joint.parent
        own = _twists(kind(link, joint), joint)
        place = places.get(parent, ground)
        place = place if joint is None else _then(place, joint.origin)
        linear, angular = np.split(own @ way()[: own.shape[1]], 2)
        places[link] = place = _then(place, Placed(_rotation(angular), linear))
        moved[link] = [*moved.get(parent, []), *range(len(columns), len(columns) + own.shape[1])]
        columns += list((_at_ground(place) @ own).T)
        owners += [link if joint is None else joint.name] * own.shape[1]
    M = np.zeros((len(owners), len(owners)))
    for name, link in found.links.items():
        if link.inertial is not None and moved[name]:
            S = _at_ground(_inverse(places[name])) @ np.array([columns[k] for k in moved[name]]).T
            M[np.ix_(moved[name], moved[name])] += S.T @ _spatial(link.inertial) @ S
    return M, owners


def _twists(kind: str, joint: Joint | None) -> np.ndarray:
    """The twists (linear, angular) per unit of a joint's speeds, at rest, as columns (6, k)."""
    axis = np.array([1.0, 0.0, 0.0]) if joint is None else joint.axis
    if kind == "floating":
        return np.eye(6)
    if kind == "spherical":
        return np.eye(6)[:, 3:]
    if kind == "fixed":
        return np.zeros((6, 0))
    if kind == "universal":
        return np.concatenate([np.zeros((3, 2)), np.stack([axis, _second(joint)], axis=1)])
    slides, turns = np.append(axis, np.zeros(3)), np.append(np.zeros(3), axis)
    if kind == "planar":
        across = np.linalg.svd(axis[None])[2][1:]
        return np.stack([np.append(across[0], np.zeros(3)), np.append(across[1], np.zeros(3)), turns], axis=1)
    return (slides if kind == "prismatic" else turns)[:, None]


def _second(joint: Joint | None) -> np.ndarray:
    """The second axis of a universal joint."""
    assert joint is not None
    assert joint.second is not None
    return joint.second


def _then(outer: Placed, inner: Placed) -> Placed:
    return Placed(outer.R @ inner.R, outer.p + outer.R @ inner.p)


def _cross(u: np.ndarray) -> np.ndarray:
    return np.array([[0.0, -u[2], u[1]], [u[2], 0.0, -u[0]], [-u[1], u[0], 0.0]])


def _rotation(w: np.ndarray) -> np.ndarray:
    """The rotation matrix of a rotation vector, by Rodrigues's formula."""
    angle = np.linalg.norm(w)
    if not angle:
        return np.eye(3)
    K = _cross(w / angle)
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K


def _inverse(place: Placed) -> Placed:
    return Placed(place.R.T, -(place.R.T @ place.p))


def _at_ground(place: Placed) -> np.ndarray:
    """The matrix (6, 6) that maps a twist seen from a frame to the twist seen from, and about, the outer frame."""
    found = np.zeros((6, 6))
    found[:3, :3] = found[3:, 3:] = place.R
    found[:3, 3:] = _cross(place.p) @ place.R
    return found


def _spatial(inertial: Inertial) -> np.ndarray:
    """The inertia (6, 6) that maps (linear, angular) to (force, torque), about the link's origin."""
    C, m = _cross(inertial.center), inertial.mass
    return np.block([[m * np.eye(3), -m * C], [m * C, inertial.J - m * C @ C]])


# Tolerances of moments as parts of the largest, for rounding by a double and in a file. Then the largest moment as a
# multiple of the sum of the others: above, it is a mistake that is not due to rounding or estimation.
ROUNDING, WRITTEN, EXCESS = 1e-6, 1e-2, 2.0


class _Names(NamedTuple):
    """The names of the file's links and joints in the robot."""

    links: dict[str, str]
    joints: dict[str, str]


def read_urdf(
    found: Description,
    coordinates: str,
    options: Mapping[str, Any],
    added: Additions,
    frames: Mapping[str, Mapping[str, Frame]],
    floating: bool,
) -> Reading:
    """The `Reading` of a URDF file; arguments as for `from_urdf`."""
    odd = [said for link in found.links.values() if (said := _judged(link))]
    found = retyped(found, added, odd)
    names = _Names(*(dict(zip(part, distinct(list(part), "", 0), strict=True)) for part in (found.links, found.joints)))
    loops = closing(found, added, names.links)
    kind = _kinds(found, floating)
    drawn, always = without_mass(found, kind)
    if always is not None and not loops:
        raise ValueError(_moves_nothing(found, always))
    if drawn is not None and always is None:
        odd.append(f"Joint {drawn!r} moves no mass where the robot is drawn, though it does elsewhere.")
    parts = Parts.none()
    for link, joint in found.tree():
        _add(names, parts, found.links[link], joint, kind(link, joint))
    _add_gears(found, names, parts)
    for name, joint in loops.items():
        parts.joints[unused(parts.joints, name)] = joint
    for joint in motors_of(found, added.motors, odd):
        parts.motors[unused(parts.motors, names.joints[joint])] = Motor(names.joints[joint])
    for body, more in frames.items():
        parts.frames.setdefault(body, {}).update(more)
    robot = parts.robot(options, coordinates=coordinates)
    if always is not None:
        held = _not_held(found, robot, names)
        if held is not None:
            raise ValueError(_moves_nothing(found, held))
    return Reading(robot, _unsupported(found), [], [], odd)


def _not_held(found: Description, robot: Robot, names: _Names) -> str | None:
    """The joint that moves no mass although loops hold the robot, in a generic state; None where no joint does."""
    robot = robot if robot.layout == robot.tree else robot.in_joints()
    chain = Chain.of(robot)
    if chain is None or not chain.n:
        return None
    q = np.concatenate([np.asarray(motion.rest(float)) for motion in motions(robot)])
    q = chain.retract(
        np.append(q, np.zeros(len(robot.layout.counted))), np.random.default_rng(0).uniform(0.3, 1.0, chain.n)
    )
    way = loose(chain, q, chain.mass(chain.state(q)), np.zeros(chain.n, bool))
    if not way.size:
        return None
    place = int(np.argmax(np.abs(way)))
    body = next(node.body for node in robot.layout.nodes if node.v[0] <= place < node.v[1])
    # A planar joint hangs its link on bodies "link~0", "link~1".
    link = next(link for link, name in names.links.items() if body == name or body.startswith(f"{name}~"))
    return next((joint.name for joint in found.joints.values() if joint.child == link), link)


def _kinds(found: Description, floating: bool) -> Callable[[str, Joint | None], str]:
    """A function for the kind of joint that a link hangs on; `floating` decides for roots, held by the ground."""

    def is_held(joint: Joint | None) -> bool:
        return joint is None or (joint.kind == "fixed" and joint.parent == WORLD and WORLD not in found.links)

    if floating and not any(is_held(joint) for _, joint in found.tree()):
        hung = [joint.name for _, joint in found.tree() if joint is not None and joint.parent == WORLD]
        if not any(found.joints[name].kind == "floating" for name in hung):
            raise ValueError(
                f"floating is True, but the file's root is the world, and what hangs on it does so by {hung}. Leave "
                "floating out, or make that joint a fixed one."
            )
    held = "floating" if floating else "fixed"
    return lambda link, joint: held if joint is None or is_held(joint) else joint.kind


def _add(names: _Names, parts: Parts, link: Link, joint: Joint | None, kind: str) -> None:
    """Adds a link and the joint above; a planar joint is two slides and a hinge, with massless bodies between."""
    body = names.links[link.name]
    parent = GROUND if joint is None else names.links.get(joint.parent, GROUND)
    place = Placed(np.eye(3), np.zeros(3)) if joint is None else joint.origin
    if joint is None or joint.kind == "fixed":
        name = unused({*names.joints.values(), *parts.joints}, f"{body}~")
        ends = parts.at(parent, f"to_{body}", *place), body
        parts.joints[name] = (Fixed if kind == "fixed" else Free)(*ends)
    elif kind == "floating":
        # Its coordinates are the pose of the link seen from its parent; the file draws the link at <origin>.
        name = names.joints[joint.name]
        parts.joints[name] = Free(parent, body)
        home = np.append(place.p, np.asarray(from_matrix(jnp.asarray(place.R))))
        if not np.array_equal(home, [0, 0, 0, 1, 0, 0, 0]):
            parts.home[name] = home
    elif kind == "planar":
        between = [unused({*names.links.values(), *parts.bodies}, f"{body}~{k}") for k in range(2)]
        parts.bodies.update(dict.fromkeys(between))
        called = [unused({*names.joints.values(), *parts.joints}, f"{names.joints[joint.name]}_{k}") for k in _PLANAR]
        start = parts.at(parent, f"to_{names.joints[joint.name]}", *place)
        axes = np.asarray(about_z(Axis(joint.axis), float)).T
        joints = zip(called, [start, *between], [*between, body], axes, strict=True)
        for name, above, below, axis in joints:
            of = Revolute if name == called[-1] else Prismatic
            parts.joints[name] = of(above, below, named_axis(axis), _effort(joint))
    else:
        name = names.joints[joint.name]
        ends = parts.at(parent, f"to_{name}", *place), body
        if kind == "spherical":
            parts.joints[name] = Spherical(*ends, Drag(joint.damping) if joint.damping else None)
        elif kind == "universal":
            parts.joints[name] = Universal(*ends, named_axis(joint.axis), named_axis(_second(joint)))
        else:
            of = Prismatic if kind == "prismatic" else Revolute
            parts.joints[name] = of(*ends, named_axis(joint.axis), _effort(joint))
            if joint.range is not None and joint.range[0] <= joint.range[1]:
                parts.ranges[name] = joint.range
    parts.bodies[body] = _inertia(link.inertial)


_PLANAR = ("TX", "TY", "RZ")


def _effort(joint: Joint) -> Effort | None:
    return Effort(damping=joint.damping) if joint.damping else None


def _add_gears(found: Description, names: _Names, parts: Parts) -> None:
    """Adds a gear for each <mimic>; a joint that follows a fixed joint is held at the offset."""
    for joint in found.joints.values():
        if joint.mimic is None or joint.kind == "fixed":
            continue
        leader, (_, multiplier, offset) = found.joints[joint.mimic.joint], joint.mimic
        first = names.joints[joint.name]
        name = unused({*parts.joints, *parts.gears}, f"{first}_mimic")
        if leader.kind == "fixed":
            parts.gears[name] = Gear(first, None, [offset])
        else:
            parts.gears[name] = Gear(first, names.joints[leader.name], [offset, multiplier])


def _inertia(inertial: Inertial | None) -> Inertia | None:
    """Returns the inertia that the file gives; whether the link can be moved was checked before."""
    if inertial is None or (not inertial.mass and not np.any(inertial.J)):
        return None
    point = Inertia(inertial.mass, 0.0, inertial.center)
    return eqx.tree_at(lambda one: one.moments, point, jnp.asarray(inertial.J))


def _judged(link: Link) -> str | None:
    """A warning if a link's inertia is odd, else None; raises ValueError if it is impossible beyond rounding."""
    if link.inertial is None:
        return None
    mass, J = link.inertial.mass, link.inertial.J
    if mass < 0:
        raise ValueError(
            f"link {link.name!r} has a mass of {mass:g} kg, which must not be negative. Correct its <mass>."
        )
    principal = np.linalg.eigvalsh(J)
    least, largest, others = principal[0], principal[2], principal[0] + principal[1]
    size, shown = np.max(np.abs(principal)), ", ".join(f"{x:.6g}" for x in principal)
    where = f"link {link.name!r}, of mass {mass:g} kg, has the principal moments of inertia {shown} kg m^2"
    if least < -WRITTEN * size:
        raise ValueError(
            f"{where}, of which the least must not be negative: no mass has such. Correct its <inertia>, or leave that "
            "out for a point mass."
        )
    if others > 0 and largest > EXCESS * others + WRITTEN * size:
        raise ValueError(
            f"{where}, of which the largest must not exceed the sum of the others, {others:.6g}: no mass has such. "
            "Correct its <inertia>, or leave that out for a point mass."
        )
    if least < -ROUNDING * size or largest > others + ROUNDING * size:
        said = f"of which the largest exceeds the sum of the others, {others:.6g}, which no mass has"
        return f"Moved as it is: {where}, {said}."
    return f"Moved as it is: {where}, without any mass." if not mass and size else None


def _moves_nothing(found: Description, joint: str) -> str:
    """The error message for a joint, or a floating link, that moves no mass."""
    if joint not in found.joints:
        return (
            f"link {joint!r} floats, but no mass moves with it in some direction. Give it an <inertial> with mass and "
            "moments, or pass floating=False."
        )
    link = found.links[found.joints[joint].child]
    has = "no <inertial>" if link.inertial is None else f"the mass {link.inertial.mass:g} kg"
    return (
        f"joint {joint!r} can move without any mass: its child, the link {link.name!r}, has {has} and no moment of "
        "inertia in that direction, nor has what hangs on it. Give the link an <inertial> with mass and moments, make "
        'the joint type="fixed", which loops may say too (joint_type: [FIXED]), or hold the link by a joint in loops.'
    )


def _unsupported(found: Description) -> list[Part]:
    """The features of the file that are not simulated, each with the names of the parts that have it."""
    moving = [joint for joint in found.joints.values() if joint.kind != "fixed"]
    collide = [link.name for link in found.links.values() if link.collides]
    stuck = [joint.name for joint in found.joints.values() if joint.mimic and joint.kind == "fixed"]
    parts = [
        ("contacts between links", collide if len(collide) > 1 else []),
        ("limits of joints", [joint.name for joint in moving if joint.range]),
        ("dry friction of joints", [joint.name for joint in moving if joint.friction]),
        (
            "damping of free and universal joints",
            [joint.name for joint in moving if joint.kind in ("floating", "universal") and joint.damping],
        ),
        ("limits of what actuators do to joints", [joint.name for joint in moving if joint.limits.get("effort")]),
        ("limits of the speeds of joints", [joint.name for joint in moving if joint.limits.get("velocity")]),
        ("safety controllers of joints", [joint.name for joint in moving if joint.has_safety_controller]),
        ("what fixed joints would follow", stuck),
        ("what is for other programs", found.others),
    ]
    return [(what, which) for what, which in parts if which]
