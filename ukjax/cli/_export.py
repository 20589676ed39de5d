"""The command `ukjax export`: functions of a scenario as C, an object, WebAssembly, for CasADi, or as an FMU."""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .._export import QUANTITIES, RUN, TO, export
from .._lowering import Target
from . import _output, _target
from ._target import UsageError


# What the options --to and --what take.
TO_HELP = (
    f"Format: {', '.join(TO)}. These are C99, an object file for any of LLVM's targets, a module of WebAssembly, "
    "functions of CasADi, and an FMU of FMI 3.0."
)
WHAT_HELP = (
    f"A function: {', '.join((*QUANTITIES, RUN))}. Repeatable. Default: acceleration, and control of a servo. "
    "For an FMU one of: acceleration (the mechanism with its servo inside), plant (with the control as inputs), "
    "control (the controller alone)."
)


def run_export(
    console: Console,
    target: str,
    settings: Sequence[str],
    to: str,
    what: Sequence[str],
    name: str | None,
    parameters: bool | Sequence[str],
    machine: Target,
    out: Path | None,
) -> None:
    """Writes the functions to `out`, and prints the paths. Raises UsageError."""
    scenario = _target.scenario(target, settings)
    if name is None:
        name = re.sub(r"\W+", "_", scenario.name, flags=re.ASCII).strip("_").lower()[:32].strip("_")
        if not re.match(r"[a-z]", name):
            raise UsageError(f"{scenario.name!r} makes no name that C takes. Pass --name, such as --name robot.")
    folder = out or _output.folder_of(scenario.name)
    try:
        with console.status(f"Exporting {scenario.name}"):
            paths = export(
                scenario.mechanism,
                scenario.q0,
                scenario.v0,
                scenario.t0,
                out=folder,
                to=to,
                what=what or None,
                servo=scenario.servo,
                name=name,
                parameters=parameters,
                projection=scenario.projection,
                coordinates=scenario.coordinates,
                speeds=scenario.speeds,
                controls=scenario.controls or None,
                target=machine.triple,
                cpu=machine.cpu,
                features=machine.features,
            )
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)
