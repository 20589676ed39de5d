"""Robots from files, MJCF and URDF, which may come from untrusted sources.

MuJoCo reads MJCF, `_urdf` reads URDF, after checks here of sizes and paths. An MJCF file may name other files (parts,
meshes), which must lie in its folder, or below, or in one that the user trusts; nothing is fetched. Files that a URDF
file names only show how links look, and are not read; a YAML beside it may add loops.
"""

import contextlib
import itertools
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from xml.parsers import expat

from ._additions import additions
from ._frame import Frame
from ._from_model import read
from ._from_urdf import read_urdf
from ._model import MjModel, in_words
from ._parts import Reading
from ._robot import Robot
from ._urdf import Description, Element, described


# Largest sizes of a text and of all files together [bytes]; most bodies, elements, and levels of nested elements.
LARGEST_TEXT, LARGEST_ALL, MOST_BODIES, MOST_ELEMENTS, DEEPEST = 8 * 2**20, 512 * 2**20, 2000, 50_000, 400
# Most included files, which MuJoCo reads recursively; most numbers that a few words create (a texture's pixels).
MOST_INCLUDED, MOST_NUMBERS = 200, 2**28
# Attributes with the number of something for every body, joint, ...
COUNTS = ("dim", "nkey", "nsample", "nuserdata", "nuser_")
# Refused elements: they make many parts or flexible bodies of few lines, read further models, or simulate for long.
REFUSED = {
    **dict.fromkeys(("replicate", "composite", "flexcomp"), "write its bodies out"),
    **dict.fromkeys(("attach", "model"), "put the other model's bodies here, by <include>"),
    "lengthrange": "leave it out",
}
# Attributes that name a folder for other files.
FOLDERS = ("meshdir", "texturedir", "assetdir")


def compiled(source: object, trusted: str | Path | None = None) -> tuple[MjModel, list[str]]:
    """The `mujoco.MjModel` of MJCF, a path or the text, and MuJoCo's warnings; raises ValueError for another source."""
    mujoco = _mujoco()
    root, text, path = _document(source, "MJCF", "mujoco")
    _check_files(root, None if path is None else Folders(path.parent, _trusted(trusted)))
    warned: list[str] = []
    try:
        with _listening(mujoco, warned):
            model = mujoco.MjModel.from_xml_string(text) if path is None else mujoco.MjModel.from_xml_path(str(path))
        return model, warned
    except (ValueError, RuntimeError, MemoryError) as error:
        said = f"source is no MJCF that MuJoCo reads ({_called(path)}): {_first(error)}"
        raise ValueError(f"{said}{_advice(str(error))}") from error


def described_file(source: object) -> tuple[Description, Path | None]:
    """The `Description` in URDF, a path or the text, and the path; raises ValueError for another source."""
    root, _, path = _document(source, "URDF", "robot")
    links = len(root.findall("link"))
    if links > MOST_BODIES:
        raise ValueError(f"source has {links} bodies, but at most {MOST_BODIES} are read.")
    try:
        return described(root), path
    except ValueError as error:
        raise ValueError(f"source is no URDF that can be read ({_called(path)}): {error}.") from error


class Folders(NamedTuple):
    """The folder of a file, and another one in which, or below, files that it names may lie."""

    own: Path
    trusted: Path | None


def _trusted(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    if not isinstance(folder, str | Path):
        raise TypeError(f"trusted must be the path of a folder, but is a {type(folder).__name__}.")
    if not Path(folder).is_dir():
        raise ValueError(f"trusted must be the path of a folder, but there is none at {str(folder)[:300]!r}.")
    return Path(folder)


def _document(source: object, what: str, tag: str) -> tuple[ET.Element, str, Path | None]:
    """The root element of a file or a text, its text and its path; raises ValueError unless the root has `tag`."""
    text, path = _read(source, what)
    root = _parsed(text, what, path)
    if root.tag != tag:
        raise ValueError(f"source must be {what}, whose root is <{tag}>, but {_called(path)} has <{root.tag}>.")
    return root, text, path


@contextlib.contextmanager
def _listening(mujoco: ModuleType, said: list[str]) -> Iterator[None]:
    """Collects MuJoCo's warnings in a list. MuJoCo itself would write them to a log file in the current folder."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(said.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _advice(error: str) -> str:
    """Advice on an error of MuJoCo whose own message gives none, or suggests a change of the model; else empty."""
    if "A + B >= C" in error:
        return (
            " None of a body's principal moments of inertia may exceed the sum of the two others: correct its "
            '<inertial>. (<compiler balanceinertia="true"/> would replace them by their mean.)'
        )
    if "must be larger than mjMINVAL" in error:
        return (
            " MuJoCo takes no body that moves without a mass and moments of inertia of its own, or of a body that is "
            "fixed to it: give it an <inertial> or a geom with a mass. Robot(...) takes massless bodies."
        )
    return ""


def is_urdf(source: object) -> bool:
    """Whether the root of a document is that of URDF; raises ValueError if `source` is no document."""
    text, path = _read(source, "MJCF or URDF")
    return _parsed(text, "MJCF or URDF", path).tag == "robot"


def _mujoco() -> ModuleType:
    try:
        import mujoco
    except ImportError as error:
        raise ImportError('Reading MJCF takes MuJoCo: pip install "ukjax[robots]".') from error
    return mujoco


def _read(source: object, what: str) -> tuple[str, Path | None]:
    if isinstance(source, str) and source.lstrip().startswith("<"):
        if len(source) > LARGEST_TEXT:
            raise ValueError(f"source has {len(source)} characters, but at most {LARGEST_TEXT} are read.")
        return source, None
    if not isinstance(source, str | Path):
        raise TypeError(f"source must be a path to a {what} file or its text, but is a {type(source).__name__}.")
    path = Path(source)
    if not _is_file(path):
        shown = repr(str(source)[:300])
        raise ValueError(f"source must be a path to a {what} file or its text, but there is no file {shown}.")
    if path.stat().st_size > LARGEST_TEXT:
        raise ValueError(f"source is {path.stat().st_size} bytes long ({path}), but at most {LARGEST_TEXT} are read.")
    try:
        return path.read_text(encoding="utf-8"), path
    except UnicodeDecodeError as error:
        raise ValueError(f"source must be text in UTF-8, but {path} is not: {error}.") from error


def _parsed(text: str, what: str, path: Path | None) -> ET.Element:
    """The root element of a text; prefixes of names are kept, since many URDFs do not declare theirs."""
    tree, open_ones, count = ET.TreeBuilder(Element), [], itertools.count(1)
    # Many files begin with an empty line, which XML does not allow before a declaration.
    body = text.lstrip()
    before = text[: len(text) - len(body)].count("\n")

    def start(tag: str, attributes: dict[str, str]) -> None:
        open_ones.append(tag)
        if len(open_ones) > DEEPEST or next(count) > MOST_ELEMENTS:
            raise ValueError(
                f"source has elements {len(open_ones)} deep ({_called(path)}), but at most {DEEPEST} are read."
                if len(open_ones) > DEEPEST
                else f"source has more than {MOST_ELEMENTS} elements ({_called(path)}), which is the most that is read."
            )
        part: Element = tree.start(tag, attributes)  # pyright: ignore[reportAssignmentType]
        part.line = before + parser.CurrentLineNumber

    def end(tag: str) -> None:
        open_ones.pop()
        tree.end(tag)

    # Entities can multiply the text, and lead to other files; robots need none.
    def doctype(*_: object) -> None:
        raise ValueError(f"source must not define entities or a document type ({_called(path)}).")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        why = f"{expat.ErrorString(error.code)}: line {before + error.lineno}, column {error.offset}"
        raise ValueError(f"source is no {what}: {_called(path)} is not well-formed XML, {why}.") from error
    return tree.close()


def _check_files(root: ET.Element, folder: Folders | None) -> None:
    """Raises ValueError if a named file lies outside the folders, or all files together are too large."""
    waiting, seen, included, total, numbers = [root], set(), [root], 0, 0
    while waiting:
        parts = list(waiting.pop().iter())
        bodies, elements = _counted(included)
        if bodies > MOST_BODIES or elements > MOST_ELEMENTS or len(included) > MOST_INCLUDED:
            raise ValueError(
                f"source has {bodies} bodies, {elements} elements and {len(included) - 1} files that it includes, but "
                f"at most {MOST_BODIES}, {MOST_ELEMENTS} and {MOST_INCLUDED} are read."
            )
        for part in parts:
            _check_numbers(part)
            numbers += _asked_for(part)
            if part.tag in REFUSED:
                raise ValueError(f"source has <{part.tag}>, which is not read: {REFUSED[part.tag]}.")
        bases = ["", *(part.attrib[name] for part in parts for name in FOLDERS if name in part.attrib)]
        for base in bases:
            _inside(folder, base)
        for part, name in [(x, x.attrib[k]) for x in parts for k in x.attrib if k.startswith("file")]:
            found = {place for base in dict.fromkeys(bases) if (place := _found(folder, base, name))} - seen
            for place in found:
                seen.add(place)
                total += place.stat().st_size
                numbers += _pixels(place)
                if part.tag == "include":
                    included.append(_parsed(_read(place, "MJCF")[0], "MJCF", place))
                    waiting.append(included[-1])
        if total > LARGEST_ALL:
            raise ValueError(f"source names files of more than {LARGEST_ALL} bytes together.")
        if numbers > MOST_NUMBERS:
            raise ValueError(
                f"source asks for {numbers} numbers (pixels, heights, ...), but at most {MOST_NUMBERS} are read."
            )


def _counted(documents: list[ET.Element]) -> tuple[int, int]:
    """The numbers of bodies and of elements in documents."""
    parts = [part.tag for document in documents for part in document.iter()]
    return sum(tag in ("body", "link") for tag in parts), len(parts)


def _asked_for(part: ET.Element) -> int:
    """The number of values that an element creates from a few words."""

    def whole(name: str) -> int:
        return max((int(w) for w in part.attrib.get(name, "").split() if w.isdecimal()), default=0)

    made = whole("params") ** 2 if "builtin" in part.attrib else 0
    made += MOST_ELEMENTS * sum(whole(name) for name in part.attrib if name.startswith(COUNTS))
    return whole("nrow") * whole("ncol") + 6 * whole("width") * whole("height") + made


def _pixels(place: Path) -> int:
    """The number of pixels of a PNG picture, whose file may be small; zero for other files."""
    with place.open("rb") as file:
        head = file.read(24)
    return int.from_bytes(head[16:20]) * int.from_bytes(head[20:24]) if head.startswith(b"\x89PNG") else 0


def _check_numbers(part: ET.Element) -> None:
    """Raises ValueError on NaN or infinity, which MuJoCo reports to a log file in the current folder."""
    for name, value in part.attrib.items():
        if name != "name" and {"nan", "inf", "infinity"} & {word.lstrip("+-").lower() for word in value.split()}:
            raise ValueError(f"source must hold finite numbers, but {name} of <{part.tag}> is {value!r}.")


def _inside(folder: Folders | None, name: str) -> Path | None:
    """The path of a named file, or None if there is no folder; raises ValueError if the file lies outside."""
    if folder is None:
        if name and name != ".":
            raise ValueError(f"source is a text, and so names no other files, but has {name!r}. Pass a path.")
        return None
    try:
        place = (folder.own / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"source names {name[:300]!r}, which leads to no file: {error}.") from error
    if not any(place.is_relative_to(one.resolve()) for one in folder if one is not None):
        also = "" if folder.trusted is None else f" and of the trusted one, {str(folder.trusted)!r}"
        raise ValueError(
            f"source names {name!r}, which lies outside of its folder {str(folder.own)!r}{also}. Pass a folder above "
            "both, if you trust all that lies there: trusted=..., or --trusted DIR."
        )
    return place


def _found(folder: Folders | None, base: str, name: str) -> Path | None:
    """The path of a named file, if it exists; raises ValueError if it is no file, since a pipe may block a reader."""
    place = _inside(folder, str(Path(base) / name))
    if place is None or _is_file(place):
        return place
    if place.exists():
        raise ValueError(f"source names {name!r}, which is no file, but something else ({str(place)!r}).")
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for a file, or with a zero in it
        return False


def _called(path: Path | None) -> str:
    return "the text" if path is None else str(path)


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def from_file(source: str | Path, **options: Any) -> Robot:
    """A robot from an MJCF or a URDF file, or its text. `options` are those of `from_mjcf` or `from_urdf`."""
    return from_urdf(source, **options) if is_urdf(source) else from_mjcf(source, **options)


def from_mjcf(
    source: str | Path,
    *,
    coordinates: str = "joint",
    keyframe: str | None = None,
    trusted: str | Path | None = None,
    **options: Any,
) -> Robot:
    """A robot from an MJCF file, or its text, as MuJoCo reads it.

    Supported are bodies with their inertias; hinge, slide, ball and free joints with stiffness, damping and
    armature, those of their actuators included; `connect`, `weld` and `joint` equalities, and those of fixed tendons,
    which are met exactly instead of softly; motors; gravity; and the flags of `<option>`, groups of actuators that it
    disables, and the state in which the file draws the robot. One warning names the features that are not simulated
    (contacts, limits, dry friction, forces of tendons, laws and limits of actuators, ...), unless the file itself
    switches them off. `ukjax inspect robot.xml` lists both.

    Args:
        source: A path, or the text. Files that it names must lie in its folder or in `trusted`, or below.
        coordinates: "joint" or "absolute", as for `Robot`.
        keyframe: Name of a keyframe of the file, or its number, such as "0", if it has no name. Its positions and
            velocities are `home` and `home_rates` of the robot. If omitted, home is the state in which the file draws
            the robot, MuJoCo's `qpos0`, at rest.
        trusted: A folder whose files the file may name, such as one above that holds the meshes of several robots.
        **options: Further arguments of `Robot`, in place of those of the file.

    Returns:
        `Robot`, whose bodies, joints and motors have the names of the file ("." in them is "_"), or "body3", "joint2",
        "motor0". Its coordinates are MuJoCo's, in the order of its bodies; so are its speeds, except the velocity of a
        free joint, which is seen from the body here. `robot.assemble()` is the state in which the file draws it.

    Raises:
        ImportError: If MuJoCo is not installed: `pip install "ukjax[robots]"`.
        TypeError: If `source` is neither a path nor a text, or `trusted` no path.
        ValueError: If `source` is no MJCF, names files elsewhere, is too large, or has no such keyframe; or if
            `trusted` is no folder.

    Warns:
        UserWarning: If something of the file is not simulated, or MuJoCo warns of it.
    """
    return _with_warning(read(*compiled(source, trusted), coordinates, options, keyframe))


def from_urdf(
    source: str | Path,
    *,
    loops: Mapping[str, Any] | str | Path | None = None,
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
        loops: Name -> joint that closes a loop, such as `Revolute("left.tip", "right.tip")`; or a path to a YAML file,
            or its contents as a mapping, in the form of Gepetto's example-parallel-robots: pairs of links or joints
            whose frames coincide (`closed_loop`), each as a weld, "6D", a ball, "3D", or a hinge about z, "5D"
            (`type`); joints with a motor (`name_mot`); and joints of another kind than the file says (`joint_name`,
            `joint_type`: SPHERICAL, FIXED, or UJOINT_XY, which turns about x and then y). If omitted, the file of the
            same name that ends in .yaml or .yml, if there is one with these keys; {} for none.
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
    return _with_warning(_read_urdf(source, coordinates, options, loops, frames, floating))


def _read_urdf(
    source: object,
    coordinates: str,
    options: Mapping[str, Any],
    loops: object,
    frames: Mapping[str, Mapping[str, Frame]] | None,
    floating: bool,
) -> Reading:
    found, path = described_file(source)
    return read_urdf(found, coordinates, options, additions(loops, path), frames or {}, floating)


def reading_of(source: str | Path, **options: Any) -> Reading:
    """The `Reading` of a file, with the features left out, without a warning; `options` as for `from_file`."""
    for_mjcf = {name: options.pop(name, None) for name in ("keyframe", "trusted")}
    for_urdf = {"loops": options.pop("loops", None), "frames": options.pop("frames", None)}
    coordinates, floating = options.pop("coordinates", "joint"), options.pop("floating", False)
    urdf = is_urdf(source)
    for name, value in (for_mjcf if urdf else for_urdf).items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}, but is for {'MJCF' if urdf else 'URDF'} only. Leave it out.")
    if urdf:
        return _read_urdf(source, coordinates, options, for_urdf["loops"], for_urdf["frames"], floating)
    return read(*compiled(source, for_mjcf["trusted"]), coordinates, options, for_mjcf["keyframe"])


def _with_warning(reading: Reading) -> Robot:
    said = [f"not simulated: {in_words(reading.unsupported_features)}."] if reading.unsupported_features else []
    if said or reading.odd:
        warnings.warn(" ".join([*said, *reading.odd]), UserWarning, stacklevel=3)
    return reading.robot
