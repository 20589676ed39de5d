"""The command `ukjax modes`."""

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import plot
from .._analysis import Linearization, Modes, equilibrium, linearize
from .._scenario import Scenario
from . import _output, _target
from ._animate import Format, save
from ._simulate import drawable
from ._target import UsageError


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
    scenario = _target.scenario(target, settings)
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
    if number is None:
        return
    with console.status(f"Placing {scenario.name} for every frame"):
        try:
            shown, motion = plot.mode(scenario, q, modes, number - 1)
        except ValueError as error:
            raise UsageError(f"{target}: --mode {number}: {str(error).removeprefix('index: ')}") from error
    speed = float(motion.t[-1]) / (len(motion.t) * FRAME / 1000)
    files: list[Any] = []
    for kind in dict.fromkeys(formats or (Format.gif, Format.html)):
        if kind == Format.html:
            text = plot.page(shown, motion, speed)
            files.append((f"mode-{number}.html", lambda path, text=text: path.write_text(text, "utf-8")))
        else:
            film = plot.animation(shown, motion, FRAME)
            files.append((f"mode-{number}.{kind}", lambda path, film=film: save(console, film, path, FRAME)))
    for path in _output.write(folder, files):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _linearized(console: Console, scenario: Scenario, where: Where) -> tuple[Linearization, Any]:
    """The linearization about the equilibrium next to the start, or the start itself, with the servo; and its q."""
    mechanism, t0, acts = (
        scenario.mechanism,
        scenario.t0,
        {"servo": scenario.servo, "formulation": scenario.formulation},
    )
    q, v = scenario.q0, scenario.v0
    if where == Where.equilibrium:
        with console.status(f"Looking for the equilibrium of {scenario.name}"):
            q, v, _ = equilibrium(mechanism, q, jnp.zeros_like(v), t0, **acts)
    with console.status(f"Linearising {scenario.name}"):
        return linearize(mechanism, q, v, t0, **acts), q


def _named(linear: Linearization, scenario: Scenario) -> Modes:
    """The modes of a linearization, with the scenario's names of coordinates and speeds."""
    coordinates = [c.name for c in scenario.coordinates]
    speeds = [f"{c} rate" for c in coordinates] if scenario.speeds is None else [c.name for c in scenario.speeds]
    called = {f"q[{i}]": name for i, name in enumerate(coordinates)}
    called |= {f"v[{i}]": name for i, name in enumerate(speeds)}
    modes = linear.modes()
    return modes._replace(names=tuple(called[name] for name in modes.names))


def _table(scenario: Scenario, where: Where, q: Any, modes: Modes, linear: Linearization) -> Table:
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


def _clean(x: Any) -> np.ndarray:
    """The array with zeros in place of entries that are rounding errors beside the largest."""
    x = np.asarray(x, float)
    return np.where(np.abs(x) > 1e-10 * np.max(np.abs(x), initial=1.0), x, 0.0)
