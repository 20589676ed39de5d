"""Loops, motors and kinds of joints that stand beside a URDF, as a YAML file or a mapping.

The form is that of Gepetto's example-parallel-robots:

    closed_loop: [[rod_A, rod_B]]   pairs of links, or of joints, whose frames are to coincide
    type: [6D]                      for each pair 6D (a weld), 5D (a hinge about z) or 3D (a ball); 6D if left out
    name_mot: [hip, knee]           joints with a motor
    joint_name: [ankle]             joints that are of another kind than the URDF says,
    joint_type: [SPHERICAL]         SPHERICAL, FIXED, or UJOINT_XY, a universal joint about x and then y

Its older forms name parts of names: `name_mot: mot` for all joints with "mot" in their names, `rotule_name: ball` for
joints that are SPHERICAL, and for the pairs `name_closedloop: loop`, `closed_loop_number: 2` for the links, or else the
joints, whose names have "loop0", "loop1", ... in them, two each. `Lidmot` and `Lidvmot` number the motors in another
program's order.
"""

import difflib
import itertools
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from ._body import named_parts
from ._joint import AbstractJoint, Fixed, Revolute, Spherical
from ._parts import unused
from ._urdf import SPEEDS, Description, check_followers


KEYS = ("closed_loop", "type", "name_mot", "joint_name", "joint_type")
OLD_KEYS = ("name_closedloop", "closed_loop_number", "rotule_name", "Lidmot", "Lidvmot")
# A larger file, of bytes, is none of loops.
LARGEST = 2**20
CLOSURES = {"6D": Fixed, "5D": Revolute, "3D": Spherical}


class Additions(NamedTuple):
    """Parts and changes that are added to a URDF.

    Attributes:
        joints: Name -> joint that closes a loop.
        pairs: Names of two links or joints whose frames coincide, and the class of the joint between them.
        motors: Names of joints with a motor, or a part of their names.
        kinds: Joint -> its kind in `joint_type`.
        balls: Part of the names of further joints that are balls, in the older form; else None.
        search: Part of the names of links, and the number of loops, in the older form; else None.
    """

    joints: Mapping[str, AbstractJoint]
    pairs: Sequence[tuple[str, str, type[AbstractJoint]]] = ()
    motors: Sequence[str] | str = ()
    kinds: Mapping[str, str] = {}
    balls: str | None = None
    search: tuple[str, int, type[AbstractJoint]] | None = None


def additions(loops: object, path: Path | None) -> Additions:
    """The argument `loops` of `from_urdf`; `path`: the URDF file, beside which a YAML is looked for if it is None."""
    if loops is None:
        beside = [] if path is None else [path.with_suffix(suffix) for suffix in (".yaml", ".yml")]
        found = next((place for place in beside if place.is_file()), None)
        contents = None if found is None else _contents(found)
        # A file of that name may be for another program.
        ours = isinstance(contents, Mapping) and any(key in contents for key in (*KEYS, *OLD_KEYS))
        return _parsed(contents, str(found)) if ours else Additions({})
    if isinstance(loops, str | os.PathLike):
        return _parsed(_contents(Path(loops)), str(loops))
    has_joints = isinstance(loops, Mapping) and any(isinstance(value, AbstractJoint) for value in loops.values())
    if isinstance(loops, Mapping) and not has_joints and any(key in (*KEYS, *OLD_KEYS) for key in loops):
        return _parsed(loops, "the mapping")
    return Additions(named_parts(loops, AbstractJoint, "loops", 'rigid.Revolute("left.tip", "right.tip")'))


def _contents(path: Path) -> object:
    import yaml  # slow to import, and few robots have such a file

    try:
        if path.stat().st_size > LARGEST:
            _refuse(str(path), f"has {path.stat().st_size} bytes, but at most {LARGEST} are read")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"loops must be a path to a YAML file, or a mapping, but {path} cannot be read: {error}."
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"loops is no YAML that can be read ({path}): {said}.") from error


def _parsed(contents: object, called: str) -> Additions:
    """The `Additions` of a mapping; raises ValueError, which names the key, for what is not of the form."""
    if not isinstance(contents, Mapping):
        _refuse(called, f"must be a mapping with {', '.join(KEYS)}")
    unknown = [key for key in contents if key not in (*KEYS, *OLD_KEYS)]
    if unknown:
        _refuse(called, f"has the key {_shown(unknown[0])}, but the keys are {', '.join((*KEYS, *OLD_KEYS))}")
    names = _names(contents.get("joint_name", []), "joint_name", called)
    kinds = [kind.upper() for kind in _names(contents.get("joint_type", []), "joint_type", called)]
    if len(names) != len(kinds):
        _refuse(called, f"has {len(names)} joint_name, but {len(kinds)} joint_type: give one type for each name")
    wrong = next((kind for kind in kinds if kind not in ("SPHERICAL", "FIXED") and _crossed(kind) is None), None)
    if wrong is not None:
        _refuse(called, f"has the joint_type {wrong!r}, which is none of SPHERICAL, FIXED, UJOINT_XY (YZ, ZX, YX, ...)")
    motors = contents.get("name_mot", [])
    motors = motors if isinstance(motors, str) else _names(motors, "name_mot", called)
    balls = contents.get("rotule_name")
    if balls is not None and (not isinstance(balls, str) or not balls):
        _refuse(called, f"must have a text as rotule_name, but has {_shown(balls)}")
    pairs, search = _pairs(contents, called), None
    if "name_closedloop" in contents:
        name, count = contents["name_closedloop"], contents.get("closed_loop_number", 1)
        if not isinstance(name, str) or not name or not isinstance(count, int) or not 0 <= count <= 1000:
            _refuse(called, "must have a text as name_closedloop, and a number from 0 to 1000 as closed_loop_number")
        search = name, count, _closure(contents.get("type", "6D"), called)
    return Additions({}, pairs, motors, dict(zip(names, kinds, strict=True)), balls, search)


def _pairs(contents: Mapping, called: str) -> list[tuple[str, str, type[AbstractJoint]]]:
    given, kinds = contents.get("closed_loop", []), contents.get("type", "6D")
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    ends = [_names(pair, "closed_loop", called) for pair in given] if is_list else None
    if ends is None or any(len(pair) != 2 for pair in ends):
        _refuse(called, f"must have pairs of names as closed_loop, such as [[rod_A, rod_B]], but has {_shown(given)}")
    kinds = [kinds] * len(ends) if isinstance(kinds, str) else _names(kinds, "type", called)
    if len(kinds) != len(ends):
        _refuse(called, f"has {len(ends)} pairs as closed_loop, but {len(kinds)} as type: give one type for each pair")
    return [(first, second, _closure(kind, called)) for (first, second), kind in zip(ends, kinds, strict=True)]


def _closure(kind: object, called: str) -> type[AbstractJoint]:
    found = CLOSURES.get(kind.upper()) if isinstance(kind, str) else None
    if found is None:
        _refuse(called, f"has the type {_shown(kind)}, which is none of {', '.join(CLOSURES)}")
    return found


def _names(value: object, key: str, called: str) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(x, str) for x in value):
        _refuse(called, f"must have a list of names as {key}, but has {_shown(value)}")
    return list(value)


def _crossed(kind: str) -> tuple[int, int] | None:
    """The numbers of the two axes of "UJOINT_XY"; None for another kind."""
    match = re.fullmatch(r"UJOINT_([XYZ])([XYZ])", kind)
    first, second = ("XYZ".index(match[1]), "XYZ".index(match[2])) if match else (0, 0)
    return (first, second) if first != second else None


def retyped(found: Description, added: Additions, odd: list[str]) -> Description:
    """The file with the kinds of some joints replaced; a joint that does not exist is named in `odd`."""
    joints = dict(found.joints)
    searched = [] if added.balls is None else [name for name in joints if added.balls in name]
    if added.balls is not None and not searched:
        odd.append(f"Left out: rotule_name {added.balls!r} of the loops, which no joint has in its name.")
    for name, kind in {**dict.fromkeys(searched, "SPHERICAL"), **added.kinds}.items():
        if name not in joints:
            odd.append(f"Left out: joint_name {name!r} of the loops, which is no joint.")
            continue
        axes = _crossed(kind)
        if axes is None:
            joints[name] = joints[name]._replace(kind=kind.lower())
        else:
            first, second = np.eye(3)[list(axes)]
            joints[name] = joints[name]._replace(kind="universal", axis=first, second=second)
    changed = found._replace(joints=joints)
    check_followers(changed)
    return changed


def motors_of(found: Description, motors: Sequence[str] | str, odd: list[str]) -> list[str]:
    """Names of the joints with a motor; a name of no joint of one coordinate is named in `odd`."""
    fit = [name for name, joint in found.joints.items() if SPEEDS[joint.kind] == 1]
    if isinstance(motors, str):
        return [name for name in fit if motors in name]
    odd += [
        f"Left out: name_mot {name!r} of the loops, which is no joint of one coordinate."
        for name in motors
        if name not in fit
    ]
    return [name for name in dict.fromkeys(motors) if name in fit]


def closing(found: Description, added: Additions, links: Mapping[str, str]) -> dict[str, AbstractJoint]:
    """The joints that close loops, by name; `links`: names of the links in the robot."""
    joints = dict(added.joints)
    pairs = [*added.pairs, *_searched(found, added.search)]
    for first, second, of in pairs:
        ends = [links[_link(found, name)] for name in (first, second)]
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
        name = "".join(letter for letter, _ in alike).rstrip("_-. ") or f"{first}~{second}"
        joints[unused(joints, name.replace(".", "_"))] = of(*ends)
    return joints


def _link(found: Description, name: str) -> str:
    """The link whose frame has a name, which may be that of the joint above."""
    if name in found.links:
        return name
    if name in found.joints:
        return found.joints[name].child
    alike = difflib.get_close_matches(name, [*found.links, *found.joints], 3)
    hint = f"; alike are {', '.join(map(repr, alike))}" if alike else ""
    raise ValueError(f"closed_loop of the loops names {name!r}, which is neither a link nor a joint of the URDF{hint}.")


def _searched(
    found: Description, search: tuple[str, int, type[AbstractJoint]] | None
) -> Iterable[tuple[str, str, type[AbstractJoint]]]:
    """The pairs of links or joints that the older form describes; loops are numbered from 0 or from 1."""
    if search is None:
        return
    part, count, of = search

    def ends(k: int, names: Iterable[str]) -> list[str]:
        return [name for name in names if re.search(rf"{re.escape(part)}{k}(?!\d)", name)]

    found_ends = [ends(k, found.links) or ends(k, found.joints) for k in range(count + 1)]
    pairs = [(names[0], names[1]) for names in found_ends if len(names) == 2]
    if len(pairs) != count:
        raise ValueError(
            f"loops asks for {count} loops of two links or joints each with {part!r} and a number in their names, but "
            f"the URDF has {len(pairs)}."
        )
    for first, second in pairs:
        yield first, second, of


def _shown(value: object) -> str:
    # A few lines of YAML can stand for a value whose text fills the memory.
    return reprlib.repr(value)[:200]


def _refuse(called: str, why: str) -> NoReturn:
    raise ValueError(f"loops ({called}) {why}.")
