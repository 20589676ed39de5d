"""The command `ukjax inspect`."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._diagnose import Diagnosis, diagnose
from .._scenario import Scenario
from ..rigid._parts import Reading, followed
from . import _robot, _target
from ._target import UsageError


def run_inspect(console: Console, target: str, settings: Sequence[str]) -> None:
    """Diagnoses the start of a scenario and prints the result; for a file also how it was read. Raises UsageError."""
    if _robot.is_robot(target):
        reading, scenario = _target.reading(target, settings)
        for table in _read(reading, scenario):
            console.print(table)
    else:
        scenario = _target.scenario(target, settings)
    with console.status(f"Looking at {scenario.name}"):
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
