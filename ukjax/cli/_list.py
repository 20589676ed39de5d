"""The command `ukjax list`."""

import dataclasses
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from .. import _check
from .._constraint import AbstractConstraint, AccelerationConstraint, Holonomic, Nonholonomic, members_of
from .._formulation import AbstractFormulation, PennestriDeFalco, UdwadiaKalaba
from .._program import jit_fast_compile
from .._result import RESULTS
from .._scenario import Scenario
from .._servo import Feedback
from .._terms import Terms
from . import _robot, _target
from ._target import UsageError


KINDS = {Holonomic: "holonomic", Nonholonomic: "nonholonomic", AccelerationConstraint: "acceleration"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The row of a scenario in the table."""

    name: str
    coordinates: int
    rows: int
    rank: int  # at the start
    kinds: str
    source: str


def run_list(console: Console, package: str) -> None:
    """Prints a table of the scenarios in `package`, and a line for each failure. Raises UsageError."""
    with console.status(f"Importing {package}"):
        found, failures = factories(package)
    title = f"Scenarios of {escape(package)}; rank at the start"
    table = Table(title=title, box=box.SIMPLE_HEAD, leading=1, pad_edge=False, collapse_padding=True)
    table.add_column("target, name, source", overflow="fold")
    for column in ("coord-\ninates", "rows", "rank"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("kinds of constraint\n(rows)", no_wrap=True)
    for target, factory in track(
        found.items(), "Looking at", console=console, transient=True, disable=not console.is_terminal
    ):
        try:
            scenario = factory()
            _check.instance(scenario, Scenario, "what it returns", "ukjax.Scenario(mechanism, q0, v0, t1)")
            one = entry(scenario)
        except Exception as error:  # a user's functions may raise anything
            failures.append(f"{target} fails: {first_line(error)}")
            continue
        about = "\n".join(escape(x) for x in (one.name, one.source) if x)
        numbers = (str(x) for x in (one.coordinates, one.rows, one.rank))
        table.add_row(f"[bold]{escape(target)}[/bold]\n{about}", *numbers, one.kinds)
    if table.rows:
        console.print(table)
    else:
        console.print(
            f"No scenarios in {package}: no public function there is annotated to return a ukjax.Scenario and needs no "
            "argument.",
            markup=False,
        )
    for failure in failures:
        console.print(f"[yellow]Left out:[/yellow] {escape(failure)}", highlight=False, soft_wrap=True)


def factories(package: str) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The functions that make the scenarios of a package or a file, by their TARGET in the command.

    Also returns a line for each module that does not import. Raises UsageError if the package itself does not import.
    """
    if _robot.is_robot(package):
        return {package: lambda: _target.robot(package, [])}, []
    modules, failures = _modules(package)
    return {f"{place}:{name}": factory for place, module in modules for name, factory in _own(module)}, failures


def _modules(package: str) -> tuple[list[tuple[str, ModuleType]], list[str]]:
    """The modules of a package with their names in a TARGET, and a line for each module that does not import."""
    if package.endswith(".py"):
        return [(package, _target.module(package))], []
    top = _target.module(package)
    modules, failures = [(package, top)], []
    for info in _walk(getattr(top, "__path__", []), f"{package}."):
        try:
            modules.append((info, _target.module(info)))
        except UsageError as error:
            failures.append(str(error))
    return modules, failures


def _walk(paths: Sequence[str], prefix: str) -> Iterator[str]:
    """The names of all public modules below, looked up as files, so that a failing import does not end the search."""
    for info in pkgutil.iter_modules(list(paths), prefix):
        if info.name.rsplit(".", 1)[1].startswith("_"):
            continue
        yield info.name
        if info.ispkg:
            folder = info.name.rsplit(".", 1)[1]
            yield from _walk([str(Path(path) / folder) for path in paths], f"{info.name}.")


def _own(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    """The module's own public functions that return a Scenario and can be called without arguments."""
    found = []
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(value) or value.__module__ != module.__name__:
            continue
        signature = inspect.signature(value)
        needed = [p for p in signature.parameters.values() if p.default is p.empty and p.kind not in _MANY]
        returned = signature.return_annotation
        # With `from __future__ import annotations` the annotation is text.
        is_scenario = returned.split(".")[-1] == "Scenario" if isinstance(returned, str) else returned is Scenario
        if is_scenario and not needed:
            found.append((name, value))
    return found


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def entry(scenario: Scenario) -> Entry:
    q, v, t = scenario.q0, scenario.v0, jnp.asarray(scenario.t0, scenario.q0.dtype)
    mechanism = scenario.mechanism
    terms = jit_fast_compile(lambda q, v, t: [getattr(mechanism.terms(q, v, t), k) for k in ("M", "Q", "A", "b")])
    M, Q, A, b = map(np.asarray, terms(q, v, t))
    count = lambda c: jax.eval_shape(lambda *state: mechanism.rows_of(c, *state), q, v, t)[0].shape[0]
    kinds = _kinds(mechanism.constraints, count)
    if isinstance(scenario.servo, Feedback):
        acting = ["controller" if scenario.servo.period is None else f"controller, every {scenario.servo.period:g} s"]
    else:
        acting = [f"servo: {kind}" for kind in _kinds([servo.constraint for servo in scenario.servo or ()], count)]
    shown = "\n".join([*kinds, *acting])
    return Entry(scenario.name, q.shape[0], len(A), _rank(M, Q, A, b), shown or "none", scenario.source)


def _kinds(constraints: Sequence[AbstractConstraint], count: Callable[[Any], int]) -> list[str]:
    """The kinds of constraints with their numbers of rows, such as "holonomic (2)" and "nonholonomic (1)"."""
    rows: dict[str, int] = {}
    for constraint in constraints:
        one = members_of(constraint)[0]  # the members of a group are of one kind
        kind = KINDS.get(type(one), type(one).__name__)
        rows[kind] = rows.get(kind, 0) + count(constraint)
    return [f"{kind} ({m})" for kind, m in rows.items()]


# Terms are padded to a multiple of this, so that many scenarios share one compiled function.
PADDING = 16


def _rank(M: np.ndarray, Q: np.ndarray, A: np.ndarray, b: np.ndarray) -> int:
    """The rank of the equation of motion at the start, as in `diagnose`.

    The padding has no effect on the rank: coordinates with mass, which no force and no row moves, and rows of zeros.
    """
    (m, n), dtype = A.shape, A.dtype
    if m == 0:
        return 0
    rows, columns = -(-m // PADDING) * PADDING, -(-n // PADDING) * PADDING
    mass = np.eye(columns, dtype=dtype) * np.max(np.abs(M), initial=0.0)
    mass[:n, :n] = M
    matrix, force, vector = np.zeros((rows, columns), dtype), np.zeros(columns, dtype), np.zeros(rows, dtype)
    matrix[:m, :n], force[:n], vector[:m] = A, Q, b
    for formulation in (UdwadiaKalaba(), PennestriDeFalco()):
        rank, result = _solve(formulation, *map(jnp.asarray, (mass, force, matrix, vector)))
        if bool(result != RESULTS.mass_not_positive_definite):
            break
    return int(rank)


@jit_fast_compile
def _solve(formulation: AbstractFormulation, M: Any, Q: Any, A: Any, b: Any) -> tuple[Any, Any]:
    motion = formulation.solve(Terms(M, Q, A, b))
    return motion.rank, motion.result


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
