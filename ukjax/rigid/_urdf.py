"""The contents of a URDF file: links and joints as numbers, before a robot is made of them.

R: rotation matrix; p: position [m]; J: moments of inertia about the centre of mass [kg m^2].
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

import numpy as np


WORLD = "world"
# Kinds of joints in files, and the number of speeds of each; URDF defines all but the last.
KINDS = {"revolute": 1, "continuous": 1, "prismatic": 1, "fixed": 0, "floating": 6, "planar": 3, "spherical": 3}
# Kinds of joints, with those that loops beside the file may give.
SPEEDS = {**KINDS, "universal": 2}
# Known elements of a robot, a link and a joint. Elements that only show how a link looks do not matter.
OF_ROBOT, OF_LINK = ("link", "joint", "material"), ("inertial", "visual", "collision")
OF_JOINT = {
    "parent": ("link",),
    "child": ("link",),
    "origin": ("xyz", "rpy"),
    "axis": ("xyz",),
    "limit": ("lower", "upper", "effort", "velocity"),
    "dynamics": ("damping", "friction"),
    "mimic": ("joint", "multiplier", "offset"),
    "calibration": ("rising", "falling", "reference_position"),
    "safety_controller": ("soft_lower_limit", "soft_upper_limit", "k_position", "k_velocity"),
}
MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")


class Element(ET.Element):
    """An element with its line in the file."""

    line = 0


class Placed(NamedTuple):
    """The pose of a frame, seen from another frame."""

    R: np.ndarray
    p: np.ndarray


class Inertial(NamedTuple):
    """Mass [kg], moments of inertia about the centre of mass in the axes of the link (3, 3), and the centre (3,)."""

    mass: float
    J: np.ndarray
    center: np.ndarray


class Link(NamedTuple):
    """A link; `inertial` is None if the file gives none."""

    name: str
    inertial: Inertial | None
    collides: bool


class Mimic(NamedTuple):
    """The joint that another joint follows: q = multiplier q_joint + offset."""

    joint: str
    multiplier: float
    offset: float


class Joint(NamedTuple):
    """A joint; `axis` is a unit vector, `limits` holds the numbers that <limit> gives.

    `second`: the axis about which the child of a universal joint turns, seen from the child; else None.
    """

    name: str
    kind: str
    parent: str
    child: str
    origin: Placed
    axis: np.ndarray
    damping: float
    friction: float
    limits: Mapping[str, float]
    mimic: Mimic | None
    has_safety_controller: bool
    second: np.ndarray | None = None

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest coordinate of a hinge or slide; None if both are zero, as where none is given."""
        ends = self.limits.get("lower", 0.0), self.limits.get("upper", 0.0)
        return ends if self.kind in ("revolute", "prismatic") and any(ends) else None


class Description(NamedTuple):
    """A URDF file.

    Attributes:
        links: Links by name, in the order of the file; the world only if it is the child of a joint.
        joints: Joints by name, in the order of the file.
        others: Names of elements and attributes that are for other programs.
    """

    links: dict[str, Link]
    joints: dict[str, Joint]
    others: list[str]

    @property
    def roots(self) -> list[str]:
        """Links that are no joint's child."""
        children = {joint.child for joint in self.joints.values()}
        return [name for name in self.links if name not in children]

    def below(self, link: str) -> list[Joint]:
        """The joints whose parent is a link, in the order of the file."""
        return [joint for joint in self.joints.values() if joint.parent == link]

    def tree(self) -> list[tuple[str, Joint | None]]:
        """The links, each with the joint above (None for a root), parents before children and branch after branch."""
        below: dict[str, list[Joint]] = {}
        for joint in self.joints.values():
            below.setdefault(joint.parent, []).append(joint)
        waiting: list[tuple[str, Joint | None]] = [(name, None) for name in reversed(self.roots)]
        waiting += [(joint.child, joint) for joint in reversed(below.get(WORLD, ())) if WORLD not in self.links]
        found = []
        while waiting:
            found.append(waiting.pop())
            waiting += [(joint.child, joint) for joint in reversed(below.get(found[-1][0], ()))]
        return found


def described(root: ET.Element) -> Description:
    """The `Description` of a document; raises ValueError, which names the link or joint, for an invalid one."""
    xacro = next((part.tag for part in root.iter() if part.tag.startswith("xacro:")), None)
    if xacro is not None:
        _refuse(f"it has <{xacro}>. Expand it first: xacro robot.urdf.xacro > robot.urdf")
    links = _named(root, "link", _link)
    joints = _named(root, "joint", _joint)
    if not any(name != WORLD for name in links):
        _refuse("it has no <link> that could move")
    if WORLD in links and not any(joint.child == WORLD for joint in joints.values()):
        del links[WORLD]
    found = Description(links, joints, _others(root))
    lines = {name: _line(part) for part in root.findall("joint") if (name := part.attrib.get("name", ""))}
    _check_tree(found, lines)
    check_followers(found)
    return found


def _named(root: ET.Element, tag: str, read) -> dict:
    found = {}
    for part in root.findall(tag):
        name, line = part.attrib.get("name", ""), _line(part)
        if not name:
            _refuse(f"a <{tag}> has no name{line}")
        if name in found:
            _refuse(f"two of its <{tag}> are called {name!r}, the second{line or ' further on'}")
        try:
            found[name] = read(name, part)
        except ValueError as error:
            raise ValueError(f"{error}{line}") from error
    return found


def _line(part: ET.Element) -> str:
    """The line of an element in words, after a space; empty where it is unknown."""
    line = getattr(part, "line", 0)
    return f" (line {line})" if line else ""


def _link(name: str, part: ET.Element) -> Link:
    inertial, where = part.find("inertial"), f"link {name!r}"
    collides = part.find("collision") is not None
    if inertial is None:
        return Link(name, None, collides)
    mass = inertial.find("mass")
    if mass is None or "value" not in mass.attrib:
        _refuse(f'{where} has an <inertial> without <mass value="...">. Add it, or leave <inertial> out')
    place = _origin(inertial, f"the <inertial> of {where}")
    inertia = inertial.find("inertia")
    given = {} if inertia is None else {k: _number(inertia, k, where) for k in MOMENTS if k in inertia.attrib}
    missing = [k for k in ("ixx", "iyy", "izz") if k not in given]
    if given and missing:
        _refuse(f"{where} has an <inertia> without {', '.join(missing)}. Give all moments, or none for a point mass")
    ixx, ixy, ixz, iyy, iyz, izz = (given.get(k, 0.0) for k in MOMENTS)
    J = place.R @ np.array([[ixx, ixy, ixz], [ixy, iyy, iyz], [ixz, iyz, izz]]) @ place.R.T
    return Link(name, Inertial(_number(mass, "value", where), (J + J.T) / 2, place.p), collides)


def _joint(name: str, part: ET.Element) -> Joint:
    where, kind = f"joint {name!r}", part.attrib.get("type")
    if kind not in KINDS:
        _refuse(f"{where} has the type {kind!r}, which is none of {', '.join(KINDS)}")
    ends = []
    for end in ("parent", "child"):
        found = part.find(end)
        if found is None or not found.attrib.get("link"):
            _refuse(f'{where} has no <{end} link="...">')
        ends.append(found.attrib["link"])
    limit, dynamics, mimic = part.find("limit"), part.find("dynamics"), part.find("mimic")

    def number(part: ET.Element | None, key: str, default: float = 0.0) -> float:
        return default if part is None else _number(part, key, where, default)

    limits = {} if limit is None else {k: number(limit, k) for k in OF_JOINT["limit"] if k in limit.attrib}
    followed = None
    if mimic is not None:
        followed = Mimic(mimic.attrib.get("joint", ""), number(mimic, "multiplier", 1.0), number(mimic, "offset"))
    return Joint(
        name=name,
        kind=kind,
        parent=ends[0],
        child=ends[1],
        origin=_origin(part, where),
        axis=_axis(part, kind, where),
        damping=number(dynamics, "damping"),
        friction=number(dynamics, "friction"),
        limits=limits,
        mimic=followed,
        has_safety_controller=part.find("safety_controller") is not None,
    )


def _axis(part: ET.Element, kind: str, where: str) -> np.ndarray:
    found = part.find("axis")
    axis = np.array([1.0, 0.0, 0.0]) if found is None else _vector(found, "xyz", where, (1.0, 0.0, 0.0))
    if kind in ("fixed", "floating", "spherical"):
        return axis
    length = np.linalg.norm(axis)
    if not length:
        _refuse(f"the <axis> of {where} has length zero. Give it a direction")
    return axis / length


def _origin(part: ET.Element, where: str) -> Placed:
    """The pose that <origin> gives, turned about x, then y, then z of the frame that it is seen from."""
    origin = part.find("origin")
    if origin is None:
        return Placed(np.eye(3), np.zeros(3))
    zeros = (0.0, 0.0, 0.0)
    (cr, cp, cy), (sr, sp, sy) = (f(_vector(origin, "rpy", where, zeros)) for f in (np.cos, np.sin))
    R = np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )
    return Placed(R, _vector(origin, "xyz", where, zeros))


def _vector(part: ET.Element, key: str, where: str, default: tuple[float, ...]) -> np.ndarray:
    words = part.attrib[key].split() if key in part.attrib else default
    if len(words) != 3:
        _refuse(f"{key} of <{part.tag}> of {where} must be three numbers, but is {part.attrib[key]!r}")
    return np.array([_float(word, key, part.tag, where) for word in words])


def _number(part: ET.Element, key: str, where: str, default: float = 0.0) -> float:
    return _float(part.attrib[key], key, part.tag, where) if key in part.attrib else default


def _float(word: str | float, key: str, tag: str, where: str) -> float:
    try:
        value = math.nan if isinstance(word, str) and "_" in word else float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _refuse(f"{key} of <{tag}> of {where} must be a finite number, but is {word!r}")
    return value


def _others(root: ET.Element) -> list[str]:
    """Names of elements, and of attributes of joints, that are for other programs."""
    found = [part.tag for part in root if part.tag not in OF_ROBOT]
    found += [part.tag for link in root.findall("link") for part in link if part.tag not in OF_LINK]
    for joint in root.findall("joint"):
        found += [part.tag for part in joint if part.tag not in OF_JOINT]
        known = (part for part in joint if part.tag in OF_JOINT)
        found += [f"{part.tag}.{key}" for part in known for key in part.attrib if key not in OF_JOINT[part.tag]]
    return list(dict.fromkeys(found))


def _check_tree(found: Description, lines: Mapping[str, str]) -> None:
    hangs: dict[str, str] = {}
    for joint in found.joints.values():
        for what, link in (("parent", joint.parent), ("child", joint.child)):
            if link not in found.links and (link != WORLD or what == "child"):
                _refuse(
                    f"joint {joint.name!r}{lines[joint.name]} has the {what} {link!r}, but there is no "
                    f'<link name="{link}"/>. Add it, or '
                    f"name one of {_few(found.links)}"
                )
        if joint.child in hangs:
            _refuse(
                f"link {joint.child!r} is the child of two joints, {hangs[joint.child]!r} and {joint.name!r}"
                f"{lines[joint.name]}: "
                "links must form a tree. Take one of the joints out, and pass it as one that closes a loop: loops={...}"
            )
        hangs[joint.child] = joint.name
    reached = {link for link, _ in found.tree()}
    round_ = [hangs[link] for link in found.links if link not in reached]
    if round_:
        _refuse(f"joints {_few(round_)} lead round in a circle, but links must form a tree")


def check_followers(found: Description) -> None:
    """Raises ValueError if a <mimic> names a joint that does not exist, or one without a single coordinate."""
    for joint in found.joints.values():
        if joint.mimic is None or joint.kind == "fixed":
            continue
        leader, where = found.joints.get(joint.mimic.joint), f"the <mimic> of joint {joint.name!r}"
        if leader is None:
            _refuse(
                f"{where} names the joint {joint.mimic.joint!r}, which does not exist; there are {_few(found.joints)}"
            )
        if leader is joint:
            _refuse(f"{where} names the joint itself")
        for one in (joint, leader):
            if SPEEDS[one.kind] > 1:
                _refuse(f"{where} is about joint {one.name!r}, which is {one.kind} and has no single coordinate")


def _few(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
