"""Robots from files, MJCF and URDF."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._body import named_parts
from ._files import compiled, is_urdf
from ._frame import Frame
from ._from_model import Reading, read
from ._joint import AbstractJoint
from ._left_out import in_words
from ._robot import Robot


def from_file(source: str | Path, **options: Any) -> Robot:
    """`from_mjcf` or `from_urdf`, by what the file, or the text, is. `options` are those of that function."""
    return from_urdf(source, **options) if is_urdf(source) else from_mjcf(source, **options)


def from_mjcf(source: str | Path, *, coordinates: str = "joint", keyframe: str | None = None, **options: Any) -> Robot:
    """A robot from an MJCF file, or its text, as MuJoCo reads it.

    Followed are bodies with their inertias; hinge, slide, ball and free joints with stiffness, damping and armature,
    those of their actuators included; `connect`, `weld` and `joint` equalities, which are met exactly instead of
    softly; motors; gravity; and the flags of `<option>`, groups of actuators that it disables, and the state in which
    the file draws the robot. What is not simulated (contacts, limits, dry friction, tendons, laws and limits of
    actuators, ...) is named in one warning, unless the file switches it off itself. `ukjax inspect robot.xml` lists
    both.

    Args:
        source: A path, or the text. Files that it names must lie in its folder, or below.
        coordinates: "joint" or "absolute", as for `Robot`.
        keyframe: Name of one of the file's keyframes, or the number of one that has no name, "0", whose positions and
            velocities are `home` and `home_rates` of the robot. If omitted, home is as the file draws it, at rest,
            which is MuJoCo's `qpos0`.
        **options: Further ones of `Robot`, in place of what the file says.

    Returns:
        `Robot`, whose bodies, joints and motors have the names of the file ("." in them is "_"), or "body3", "joint2",
        "motor0". Its coordinates are MuJoCo's, in the order of its bodies; so are its speeds, but for the velocity
        of a free joint, which is seen from the body here. `robot.assemble()` is the state in which it is drawn.

    Raises:
        ImportError: Without MuJoCo: `pip install "ukjax[robots]"`.
        TypeError: If `source` is no path and no text.
        ValueError: If it is no MJCF, names files elsewhere, or is too large; or has no such keyframe.

    Warns:
        UserWarning: If something of the file is not simulated.
    """
    return _with_warning(read(compiled(source, "MJCF"), coordinates, options, keyframe=keyframe))


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
    return _with_warning(read(model, coordinates, options, loops, frames, floating))


def reading_of(source: str | Path, **options: Any) -> Reading:
    """A robot of a file, and what of the file was left out, without a warning; `options` as for `from_file`."""
    coordinates, keyframe = options.pop("coordinates", "joint"), options.pop("keyframe", None)
    kind = "URDF" if is_urdf(source) else "MJCF"
    return read(compiled(source, kind), coordinates, options, keyframe=keyframe)


def _with_warning(reading: Reading) -> Robot:
    if reading.left_out:
        warnings.warn(f"not simulated: {in_words(reading.left_out)}.", UserWarning, stacklevel=3)
    return reading.robot
