"""Robots from files, MJCF and URDF."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._body import named_parts
from ._files import compiled, description, is_urdf
from ._frame import Frame
from ._from_model import read
from ._from_urdf import read_urdf
from ._joint import AbstractJoint
from ._parts import Reading
from ._robot import Robot
from ._unsupported import in_words


def from_file(source: str | Path, **options: Any) -> Robot:
    """A robot from an MJCF or a URDF file, or its text. `options` are those of `from_mjcf` or `from_urdf`."""
    return from_urdf(source, **options) if is_urdf(source) else from_mjcf(source, **options)


def from_mjcf(source: str | Path, *, coordinates: str = "joint", keyframe: str | None = None, **options: Any) -> Robot:
    """A robot from an MJCF file, or its text, as MuJoCo reads it.

    Supported are bodies with their inertias; hinge, slide, ball and free joints with stiffness, damping and
    armature, those of their actuators included; `connect`, `weld` and `joint` equalities, which are met exactly instead
    of softly; motors; gravity; and the flags of `<option>`, groups of actuators that it disables, and the state in
    which the file draws the robot. One warning names the features that are not simulated (contacts, limits, dry
    friction, tendons, laws and limits of actuators, ...), unless the file itself switches them off.
    `ukjax inspect robot.xml` lists both.

    Args:
        source: A path, or the text. Files that it names must lie in its folder, or below.
        coordinates: "joint" or "absolute", as for `Robot`.
        keyframe: Name of a keyframe of the file, or its number, such as "0", if it has no name. Its positions and
            velocities are `home` and `home_rates` of the robot. If omitted, home is the state in which the file draws
            the robot, MuJoCo's `qpos0`, at rest.
        **options: Further arguments of `Robot`, in place of those of the file.

    Returns:
        `Robot`, whose bodies, joints and motors have the names of the file ("." in them is "_"), or "body3", "joint2",
        "motor0". Its coordinates are MuJoCo's, in the order of its bodies; so are its speeds, except the velocity of a
        free joint, which is seen from the body here. `robot.assemble()` is the state in which the file draws it.

    Raises:
        ImportError: If MuJoCo is not installed: `pip install "ukjax[robots]"`.
        TypeError: If `source` is neither a path nor a text.
        ValueError: If `source` is no MJCF, names files elsewhere, is too large, or has no such keyframe.

    Warns:
        UserWarning: If something of the file is not simulated, or MuJoCo warns of it.
    """
    return _with_warning(read(*compiled(source), coordinates, options, keyframe))


def from_urdf(
    source: str | Path,
    *,
    loops: Mapping[str, AbstractJoint] | None = None,
    frames: Mapping[str, Mapping[str, Frame]] | None = None,
    floating: bool = False,
    coordinates: str = "joint",
    **options: Any,
) -> Robot:
    """A robot from a URDF file, or its text, with loops that URDF cannot express. MuJoCo is not needed.

    Supported are links with their inertias, which may be missing, or a mass without moments, a point; all kinds of
    joints, "spherical" ones too; their damping; and <mimic>, met exactly. A link called "world" is the ground, whether
    the file declares it or only names it as a parent. One warning names the features that are not simulated (contacts,
    limits, dry friction, ...).

    Moments of inertia that no mass has are an error. Where the largest is at most twice the sum of the two others, as
    after rounding, or where the two others are zero, the link keeps its moments, and the warning names both. A joint
    that moves no mass is an error, unless a <mimic> or one of `loops` holds it.

    Args:
        source: A path, or the text. Meshes are not read.
        loops: Name -> joint that closes a loop, such as `Revolute("left.tip", "right.tip")`.
        frames: Body -> name -> `Frame`, for the loops.
        floating: Whether the root link, or a link that is fixed to the world, floats; else it is fixed to the ground.
        coordinates: "joint" or "absolute", as for `Robot`.
        **options: Further arguments of `Robot`, in place of those of the file.

    Returns:
        `Robot`, with the names of the file ("." in them is "_"); the joint of its root has the name of the root, with
        a "~". The coordinates of a floating joint are the pose of its link, seen from its parent; it starts where the
        file draws it. A planar joint "j" is two slides "j_TX", "j_TY" across its axis and a hinge "j_RZ" about it.

    Raises:
        TypeError: If `source` is neither a path nor a text, or a loop is no joint.
        ValueError: If `source` is no URDF, or is too large; if an inertia is impossible, or a joint moves no mass, and
            no loop holds it; or if a <mimic> or a loop names a part that does not exist.

    Warns:
        UserWarning: If something of the file is not simulated, or an inertia is odd.
    """
    if not isinstance(floating, bool):
        raise TypeError(f"floating must be True or False, but is {floating!r}.")
    loops = named_parts(loops or {}, AbstractJoint, "loops", 'rigid.Revolute("left.tip", "right.tip")')
    return _with_warning(read_urdf(description(source), coordinates, options, loops, frames or {}, floating))


def reading_of(source: str | Path, **options: Any) -> Reading:
    """The `Reading` of a file, with the features left out, without a warning; `options` as for `from_file`."""
    coordinates, keyframe = options.pop("coordinates", "joint"), options.pop("keyframe", None)
    if is_urdf(source):
        if keyframe is not None:
            raise ValueError(f"keyframe is {keyframe!r}, but URDF has none. Leave it out.")
        loops, frames = options.pop("loops", {}), options.pop("frames", {})
        return read_urdf(description(source), coordinates, options, loops, frames, options.pop("floating", False))
    return read(*compiled(source), coordinates, options, keyframe)


def _with_warning(reading: Reading) -> Robot:
    said = [f"not simulated: {in_words(reading.unsupported_features)}."] if reading.unsupported_features else []
    if said or reading.odd:
        warnings.warn(" ".join([*said, *reading.odd]), UserWarning, stacklevel=3)
    return reading.robot
