"""The commands `ukjax inspect` and `ukjax modes`: a scenario at its start, and near an equilibrium."""

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._analysis import Linearization, Modes, equilibrium, linearize
from .._diagnose import Diagnosis, diagnose
from .._scenario import Scenario
from ..rigid._parts import Reading, followed
from . import _output, _target
from ._simulate import Format, drawable, save
from ._target import UsageError


def run_inspect(console: Console, target: str, settings: Sequence[str], options: _target.FileOptions) -> None:
    """Diagnoses the start of a scenario and prints the result; for a file also how it was read. Raises UsageError."""
    if _target.is_robot(target):
        reading, scenario = _target.reading(target, settings, options)
        for table in _read(reading, scenario):
            console.print(table)
    else:
        with _output.working(console, f"Making {target}"):
            scenario = _target.scenario(target, settings, options)
    with _output.working(console, f"Looking at {scenario.name}"):
        try:
            diagnosis = diagnose(scenario.mechanism, scenario.q0, scenario.v0, scenario.t0)
        except ValueError as error:
            raise UsageError(f"{target}: {error}") from error
    table = Table(title=f"{escape(scenario.name)} at t = {scenario.t0:g} s", show_header=False)
    for name, text in diagnosis.entries():
        table.add_row(escape(name), escape(text))
    console.print(table)
    if diagnosis.rows:
        console.print(_rows(diagnosis))


def _read(reading: Reading, scenario: Scenario) -> Iterator[Table]:
    """The tables of a robot's file: features that are followed, features that are not, and the start of the robot."""
    more = [
        ("Switched off by the file", reading.switched_off),
        ("Not simulated", reading.unsupported_features or [("nothing", ["all that moves the robot is followed"])]),
        ("Odd, and moved as it is", [("", [said]) for said in reading.odd]),
        ("Keyframes, for --set keyframe=NAME", [("names", reading.keyframes)] if reading.keyframes else []),
    ]
    for title, parts in [("Followed", followed(reading.robot)), *more]:
        if parts:
            table = Table(title=title, show_header=False)
            for what, names in parts:
                table.add_row(escape(what), escape(", ".join(name or "unnamed" for name in names)))
            yield table
    for title, names, values in (
        ("Start", scenario.coordinates, scenario.q0),
        ("Speeds at the start, where they are not zero", reading.robot.names[1], scenario.v0),
    ):
        table = Table(title=title, show_header=False)
        for name, value in zip(names, np.asarray(values), strict=True):
            if value or title == "Start":
                table.add_row(escape(name), f"{value:.6g}")
        if table.row_count:
            yield table


def _rows(diagnosis: Diagnosis) -> Table:
    table = Table("row", "of", "redundant", "holonomic", "curl", title="Constraint rows")
    columns = zip(
        diagnosis.labels, *(np.asarray(x) for x in (diagnosis.redundant, diagnosis.holonomic, diagnosis.curl))
    )
    for i, (label, redundant, holonomic, curl) in enumerate(columns):
        curl = "not linear in v" if np.isinf(curl) else f"{curl:.1e}"
        table.add_row(str(i), escape(label), "yes" if redundant else "", "yes" if holonomic else "NO", curl)
    return table


FRAME = 40  # [ms]


class Where(enum.StrEnum):
    equilibrium = "equilibrium"
    start = "start"


def run_modes(
    console: Console,
    target: str,
    settings: Sequence[str],
    where: Where,
    number: int | None,
    out: Path | None,
    formats: Sequence[Format],
) -> None:
    """Prints the modes, and animates one of them. Raises UsageError, or RuntimeError if there is no equilibrium."""
    with _output.working(console, f"Making {target}"):
        scenario = _target.scenario(target, settings)
    folder = None
    if number is not None:
        drawable(target, scenario)
        folder = _output.claim(out, scenario.name)
    elif out is not None:
        raise UsageError("--out is for an animation. Pass --mode 1, or leave it out.")
    try:
        linear, q = _linearized(console, scenario, where)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    modes = _named(linear, scenario)
    console.print(_table(scenario, where, q, modes, linear))
    if number is None or folder is None:
        return
    from .. import plot

    with _output.working(console, f"Placing {scenario.name} for every frame"):
        try:
            shown, motion = plot.mode(scenario, q, modes, number - 1)
        except ValueError as error:
            raise UsageError(f"{target}: --mode {number}: {str(error).removeprefix('index: ')}") from error
    speed = float(motion.t[-1]) / (len(motion.t) * FRAME / 1000)
    files: _output.Files = []
    for kind in dict.fromkeys(formats or (Format.gif, Format.html)):
        if kind == Format.html:
            text = plot.page(shown, motion, speed)
            files.append((f"mode-{number}.html", lambda path, text=text: path.write_text(text, "utf-8")))
        else:
            film = plot.animation(shown, motion, FRAME)
            files.append((f"mode-{number}.{kind}", lambda path, film=film: save(console, film, path, FRAME)))
    for path in _output.write(folder, files):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _linearized(console: Console, scenario: Scenario, where: Where) -> tuple[Linearization, Array]:
    """The linearization about the equilibrium next to the start, or the start itself, with the servo; and its q."""
    mechanism, q, v, t0 = scenario.mechanism, scenario.q0, scenario.v0, scenario.t0
    acts = {"servo": scenario.servo, "formulation": scenario.formulation}
    if where == Where.equilibrium:
        with _output.working(console, f"Looking for the equilibrium of {scenario.name}"):
            q, v, _ = equilibrium(mechanism, q, jnp.zeros_like(v), t0, **acts)
    with _output.working(console, f"Linearising {scenario.name}"):
        return linearize(mechanism, q, v, t0, **acts), q


def _named(linear: Linearization, scenario: Scenario) -> Modes:
    """The modes of a linearization, with the scenario's names of coordinates and speeds."""
    coordinates = [c.name for c in scenario.coordinates]
    speeds = [f"{c} rate" for c in coordinates] if scenario.speeds is None else [c.name for c in scenario.speeds]
    called = {f"q[{i}]": name for i, name in enumerate(coordinates)}
    called |= {f"v[{i}]": name for i, name in enumerate(speeds)}
    modes = linear.modes()
    return modes._replace(names=tuple(called[name] for name in modes.names))


def _table(scenario: Scenario, where: Where, q: Array, modes: Modes, linear: Linearization) -> Table:
    about = "equilibrium" if where == Where.equilibrium else "start"
    grows = np.max(np.real(modes.eigenvalues), initial=-np.inf)
    stable = "stable" if grows < 0 else "unstable" if grows > 0 else "neither stable nor unstable, to first order"
    caption = ", ".join(f"{c.name} = {x:.4g} {c.unit}".rstrip() for c, x in zip(scenario.coordinates, _clean(q)))
    speeds = np.array([name.startswith("v[") for name in linear.names], bool)
    changing = float(np.max(np.abs(np.asarray(linear.rates)), where=speeds, initial=0.0))
    if changing > 1e-6:
        caption += f"\nThis is no steady motion: speeds change there, by up to {changing:.3g} a second."
    table = Table(title=escape(f"{scenario.name}, about the {about}: {stable}"), caption=escape(caption))
    for name in ("mode", "eigenvalue [1/s]", "frequency [Hz]", "damping", "mostly"):
        table.add_column(escape(name), justify="left" if name == "mostly" else "right")
    for i, row in enumerate(modes.rows()):
        table.add_row(str(i + 1), *map(escape, row))
    return table


def _clean(x: Array) -> np.ndarray:
    """The array with zeros in place of entries that are rounding errors beside the largest."""
    values = np.asarray(x, float)
    return np.where(np.abs(values) > 1e-10 * np.max(np.abs(values), initial=1.0), values, 0.0)
