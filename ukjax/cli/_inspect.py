"""`ukjax inspect`."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._diagnose import Diagnosis, diagnose
from . import _target
from ._target import UsageError


def run(console: Console, target: str, settings: Sequence[str]) -> None:
    """Diagnoses the start of a scenario and prints what it found. Raises UsageError."""
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


def _rows(diagnosis: Diagnosis) -> Table:
    table = Table("row", "of", "redundant", "holonomic", "curl", title="Constraint rows")
    columns = zip(
        diagnosis.labels, *(np.asarray(x) for x in (diagnosis.redundant, diagnosis.holonomic, diagnosis.curl))
    )
    for i, (label, redundant, holonomic, curl) in enumerate(columns):
        curl = "not linear in v" if np.isinf(curl) else f"{curl:.1e}"
        table.add_row(str(i), escape(label), "yes" if redundant else "", "yes" if holonomic else "NO", curl)
    return table
