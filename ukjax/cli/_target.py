"""TARGET: `package.module:factory`, `path/to/file.py:factory` or a robot's file, and the settings passed to it."""

import ast
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeGuard, TypeVar

import jax.numpy as jnp

from .._manifold import Projection
from .._scenario import Scenario
from .._tune import TuningProblem
from ..rigid import Robot, from_file
from ..rigid._from_file import reading_of
from ..rigid._parts import Reading


T = TypeVar("T")


class UsageError(Exception):
    """An error in what the user typed; the message says what to type instead."""


# Where users find what a factory may return.
PLACES = {Scenario: "ukjax.Scenario", TuningProblem: "ukjax.tuning.TuningProblem"}


class FileOptions(NamedTuple):
    """Options of a robot's file: a YAML of its loops, and a folder whose files it may name."""

    loops: Path | None = None
    trusted: Path | None = None

    def given(self) -> dict[str, object]:
        """The options that are given, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def scenario(target: str, settings: Sequence[str], options: FileOptions | None = None) -> Scenario:
    """The scenario that TARGET's factory makes with `--set` settings. Raises UsageError."""
    if is_robot(target):
        return robot(target, settings, options)
    if options is not None and options.given():
        raise UsageError(
            f"--{next(iter(options.given()))} is for a robot's file (.xml, .urdf), but TARGET is {target!r}."
        )
    return _made(target, settings, Scenario, "scenario")


def tuning_problem(target: str, settings: Sequence[str]) -> TuningProblem:
    """The tuning problem that TARGET's factory makes with `--set` settings. Raises UsageError."""
    return _made(target, settings, TuningProblem, "tuning problem")


def robot(target: str, settings: Sequence[str], options: FileOptions | None = None) -> Scenario:
    """The scenario of a robot's file, with joints at the coordinates of the settings. Raises UsageError."""
    return _of_robot(robot_scenario, target, settings, options)


def reading(target: str, settings: Sequence[str], options: FileOptions | None = None) -> tuple[Reading, Scenario]:
    """The `Reading` of a robot's file, and its scenario, without a warning. Raises UsageError."""
    return _of_robot(robot_reading, target, settings, options)


def _of_robot(make: Callable[..., T], target: str, settings: Sequence[str], options: FileOptions | None) -> T:
    try:
        return make(target, _named(settings), {} if options is None else options.given())
    except (TypeError, ValueError, ImportError) as error:
        raise UsageError(f"{target} could not make a scenario: {error}") from error


def _made(target: str, settings: Sequence[str], kind: type[T], noun: str) -> T:
    function = factory(target, kind)
    arguments = parse(settings, function, target)
    try:
        made = function(**arguments)
    except (TypeError, ValueError) as error:
        shown = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        given = f" with ({shown})" if shown else ""
        raise UsageError(f"{target} could not make a {noun}{given}: {error}") from error
    if not isinstance(made, kind):
        raise UsageError(f"{target} must return a {PLACES[kind]}, but returned {type(made).__name__}.")
    return made


def factory(target: str, kind: type[T]) -> Callable[..., T]:
    """The function that TARGET names. Raises UsageError."""
    place, colon, name = target.rpartition(":")
    if target.endswith(".py") and Path(target).is_file():
        names = _makers(module(target), kind) or ["a_function_that_returns_it"]
        raise UsageError(
            f"TARGET must also name a function in {target}: {' or '.join(f'{target}:{k}' for k in names)}."
        )
    if not colon or not place or not name:
        raise UsageError(
            "TARGET must be module:factory, path/to/file.py:factory or a robot's file (.xml, .urdf), but is "
            f"{target!r}. Try ukjax.examples.scara:scenario."
        )
    there = module(place)
    found: Callable[..., T] | None = getattr(there, name, None)
    if found is None:
        known = ", ".join(_makers(there, kind))
        raise UsageError(f"{place} has no factory {name!r}. Functions there: {known or 'none'}.")
    if not callable(found):
        wanted = f"a function that returns a {PLACES[kind]}"
        raise UsageError(f"{target} must be {wanted}, but is {type(found).__name__}.")
    return found


def functions(there: ModuleType) -> dict[str, Callable[..., object]]:
    """The module's own public functions, by name."""
    mine = {name: x for name, x in vars(there).items() if inspect.isfunction(x) and x.__module__ == there.__name__}
    return {name: function for name, function in mine.items() if not name.startswith("_")}


def returns(function: Callable[..., object], kind: type[T]) -> TypeGuard[Callable[..., T]]:
    """Whether a function is annotated to return a `kind`."""
    returned = inspect.signature(function).return_annotation
    # With `from __future__ import annotations` the annotation is text.
    return returned.split(".")[-1] == kind.__name__ if isinstance(returned, str) else returned is kind


def _makers(there: ModuleType, kind: type) -> list[str]:
    """Names of the functions that are annotated to return a `kind`, or of all functions if none is."""
    found = functions(there)
    return [name for name, function in found.items() if returns(function, kind)] or [*found]


def module(place: str) -> ModuleType:
    """The module with a name, or in a file. Raises UsageError."""
    return _from_file(Path(place)) if place.endswith(".py") else _from_name(place)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    return _imported(str(path), lambda: spec.loader.exec_module(module) or module)  # pyright: ignore


def _from_name(name: str) -> ModuleType:
    # A console script, unlike `python -m`, does not look in the current folder.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _imported(name, lambda: importlib.import_module(name))


def _imported(place: str, run: Callable[[], ModuleType]) -> ModuleType:
    try:
        return run()
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(no_module(place)) from error
        raise UsageError(f"{place} does not import: {error}") from error
    except Exception as error:  # a user's file may raise anything
        raise UsageError(f"{place} does not import: {type(error).__name__}: {error}") from error


def no_module(place: str) -> str:
    """The message about a module that does not exist."""
    near = difflib.get_close_matches(place, _neighbours(place), 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no module {place!r} here or among the installed packages.{hint}"


def _neighbours(place: str) -> list[str]:
    """The names of the modules in the package that a module would be in."""
    package = sys.modules.get(place.rpartition(".")[0])
    return [
        info.name for info in pkgutil.iter_modules(getattr(package, "__path__", []), place.rpartition(".")[0] + ".")
    ]


def parse(settings: Sequence[str], factory: Callable[..., object], target: str) -> dict[str, object]:
    """Settings `name=value` as keyword arguments of `factory`. Raises UsageError."""
    parameters = inspect.signature(factory).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = _named(settings)
    for name in arguments:
        if name not in parameters and not open_ended:
            known = ", ".join(k if p.default is p.empty else f"{k}={p.default!r}" for k, p in parameters.items())
            raise UsageError(f"{target} has nothing called {name!r} to set. It takes: {known or 'nothing'}.")
    return arguments


def _named(settings: Sequence[str]) -> dict[str, object]:
    """Settings `name=value` as a dict by name. Raises UsageError."""
    arguments: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes name=value, but got {setting!r}.")
        if name in arguments:
            raise UsageError(f"--set {name} is given twice.")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


SUFFIXES = (".xml", ".mjcf", ".urdf")
# The default duration of a robot's motion [s].
SECONDS = 5.0


def is_robot(target: str) -> bool:
    """Whether TARGET is the path of a robot's file."""
    return target.lower().endswith(SUFFIXES)


def robot_scenario(target: str, settings: dict[str, object], options: dict[str, object]) -> Scenario:
    """The scenario of a robot without control, from the drawn state, with the joints that `settings` name set."""
    return of_robot(target, *_read(target, settings, options, from_file))


def robot_reading(target: str, settings: dict[str, object], options: dict[str, object]) -> tuple[Reading, Scenario]:
    """The `Reading` of a robot's file with the features left out, and its scenario, without a warning."""
    found: list[Reading] = []

    def read(target: str, **options: object) -> Robot:
        found.append(reading_of(target, **options))
        return found[-1].robot

    made = of_robot(target, *_read(target, settings, options, read))
    return found[-1], made


def _read(
    target: str, settings: dict[str, object], options: dict[str, object], read: Callable[..., Robot]
) -> tuple[Robot, dict[str, object]]:
    """The robot, and settings of its joints; the setting "keyframe" selects the state to start from."""
    settings = dict(settings)
    keyframe = {"keyframe": str(settings.pop("keyframe"))} if "keyframe" in settings else {}
    return read(target, **keyframe, **options), settings


def of_robot(target: str, robot: Robot, coordinates: dict[str, object]) -> Scenario:
    """The scenario of a robot that was read, with joints at the given coordinates."""
    if not robot.layout.n:
        raise ValueError("no joint of it moves, so there is nothing to simulate. Give a body a joint, or let it float.")
    q, v = robot.assemble(coordinates, keep=list(coordinates))
    held = bool(robot.own_constraints) or robot.kinematics is not None
    return robot.scenario(
        q,
        v,
        SECONDS,
        name=Path(target).stem,
        projection=Projection() if held else None,
        invariants={"energy [J]": robot.energy} if keeps_energy(robot) else None,
        source=target,
    )


def keeps_energy(robot: Robot) -> bool:
    """Whether no joint of the robot has damping."""
    parts = [getattr(robot.joints[name], kind, None) for name in robot.joint_names for kind in ("effort", "drag")]
    return not any(bool(jnp.any(part.damping != 0)) for part in parts if part is not None)
