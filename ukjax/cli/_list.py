"""The commands `ukjax list` and `ukjax gallery`: the scenarios of a package, in a table and in pictures."""

import dataclasses
import functools as ft
import hashlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Table

from .. import _check
from .._constraint import AbstractConstraint, AccelerationConstraint, Holonomic, Nonholonomic, members_of
from .._formulation import AbstractFormulation, PennestriDeFalco, UdwadiaKalaba
from .._identity import versions
from .._program import jit_fast_compile, light_jit
from .._result import RESULTS, message
from .._scenario import Scenario
from .._servo import Feedback
from .._terms import Terms
from .._trajectory import Trajectory
from . import _output, _simulate, _target
from ._declared import Declared, declared, files
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


def run_list(console: Console, package: str, rank: bool) -> None:
    """Prints the scenarios that `package` declares; with `rank` also what they are at their start. Raises UsageError.

    The sketch of a single module is printed too.
    """
    found, failures = declared(package)
    if rank:
        _print_ranks(console, package, found)
    elif found:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column("target", no_wrap=True)  # to be copied
        table.add_column("name, source", overflow="fold")
        for one in found:
            about = ". ".join(x.removesuffix(".") for x in (one.name, one.source) if x)
            table.add_row(f"[bold]{escape(one.target)}[/bold]", escape(about))
        console.print(table)
        about = {one.about for one in found if one.about}
        if len(about) == 1:
            console.print(about.pop(), markup=False, highlight=False, soft_wrap=True)
        for what, verb in (("Run", "simulate"), ("See", "animate")):
            line = f"{what} one: ukjax {verb} {found[0].target}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not found:
        console.print(
            f"No scenarios in {package}: no public function there is annotated to return a ukjax.Scenario and needs no "
            "argument.",
            markup=False,
        )
    for failure in failures:
        console.print(f"[yellow]Left out:[/yellow] {escape(failure)}", highlight=False, soft_wrap=True)


def _print_ranks(console: Console, package: str, found: Sequence[Declared]) -> None:
    """Prints the table with coordinates, rows, rank and kinds, which takes a compilation for each that is not kept."""
    title = f"Scenarios of {escape(package)}; rank at the start"
    table = Table(title=title, box=box.SIMPLE_HEAD, leading=1, pad_edge=False, collapse_padding=True)
    table.add_column("target, name, source", overflow="fold")
    for column in ("coord-\ninates", "rows", "rank"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("kinds of constraint\n(rows)", no_wrap=True)
    kept = KeptEntries(package)
    failures = []
    for one in track(found, "Looking at", console=console, transient=True, disable=not console.is_terminal):
        known = kept.find(one.target)
        try:
            shown = Entry(**known) if known else entry(_target.scenario(one.target, []))
        except Exception as error:  # a user's functions may raise anything
            failures.append(f"{one.target} fails: {first_line(error)}")
            continue
        kept.add(one.target, dataclasses.asdict(shown))
        about = "\n".join(escape(x) for x in (shown.name, shown.source) if x)
        numbers = (str(x) for x in (shown.coordinates, shown.rows, shown.rank))
        table.add_row(f"[bold]{escape(one.target)}[/bold]\n{about}", *numbers, shown.kinds)
    kept.write()
    if table.rows:
        console.print(table)
    for failure in failures:
        console.print(f"[yellow]Left out:[/yellow] {escape(failure)}", highlight=False, soft_wrap=True)


def factories(package: str) -> tuple[dict[str, Callable[..., Scenario]], list[str]]:
    """The functions that make the scenarios of a package or a file, by their TARGET in the command.

    Also returns a line for each module that does not import. Raises UsageError if the package itself does not import.
    """
    if _target.is_robot(package):
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


def _own(module: ModuleType) -> list[tuple[str, Callable[..., Scenario]]]:
    """The module's own public functions that return a Scenario and can be called without arguments."""
    found = _target.functions(module).items()
    return [(name, one) for name, one in found if _target.returns(one, Scenario) and not _needs_arguments(one)]


def _needs_arguments(function: Callable[..., object]) -> bool:
    many = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind not in many for p in parameters)


def entry(scenario: Scenario) -> Entry:
    q, v, t = scenario.q0, scenario.v0, jnp.asarray(scenario.t0, scenario.q0.dtype)
    mechanism = scenario.mechanism
    terms = jit_fast_compile(lambda q, v, t: [getattr(mechanism.terms(q, v, t), k) for k in ("M", "Q", "A", "b")])
    M, Q, A, b = map(np.asarray, terms(q, v, t))

    def count(constraint: AbstractConstraint) -> int:
        """Returns the number of rows of a constraint."""
        return jax.eval_shape(lambda *state: mechanism.rows_of(constraint, *state), q, v, t)[0].shape[0]

    kinds = _kinds(mechanism.constraints, count)
    if isinstance(scenario.servo, Feedback):
        acting = ["controller" if scenario.servo.period is None else f"controller, every {scenario.servo.period:g} s"]
    else:
        acting = [f"servo: {kind}" for kind in _kinds([servo.constraint for servo in scenario.servo or ()], count)]
    shown = "\n".join([*kinds, *acting])
    return Entry(scenario.name, q.shape[0], len(A), _rank(M, Q, A, b), shown or "none", scenario.source)


def _kinds(constraints: Sequence[AbstractConstraint], count: Callable[[AbstractConstraint], int]) -> list[str]:
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
def _solve(formulation: AbstractFormulation, M: Array, Q: Array, A: Array, b: Array) -> tuple[Array, RESULTS]:
    motion = formulation.solve(Terms(M, Q, A, b))
    return motion.rank, motion.result


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class KeptEntries:
    """The entries of a package that `ukjax list --rank` keeps from call to call, beside the programs that it keeps.

    They hold as long as the package's files and the versions of ukjax and JAX are the same. None are kept where the
    command keeps no programs.
    """

    def __init__(self, package: str):
        folder = _output.cache()
        self.path = None if folder is None else folder / "lists" / f"{_checksum(package)}.json"
        self.found: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.is_file():
            try:
                self.found = json.loads(self.path.read_text("utf-8"))
            except (OSError, ValueError):
                self.found = {}

    def find(self, target: str) -> dict[str, Any] | None:
        """The entry of a scenario, if it is kept."""
        return self.found.get(target)

    def add(self, target: str, entry: dict[str, Any]) -> None:
        """Adds the entry of a scenario."""
        self.found[target] = entry

    def write(self) -> None:
        """Writes the entries, if they can be written."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_suffix(".unfinished")
            aside.write_text(json.dumps(self.found), "utf-8")
            aside.replace(self.path)
        except OSError:
            return  # the list is printed all the same


def _checksum(package: str) -> str:
    """A checksum of the files of a package, of the library, and of versions."""
    library = Path(__file__).parents[1].rglob("*.py")
    found = hashlib.sha256(repr((package, sorted(versions().items()))).encode())
    for path in sorted({*(path for _, path in files(package)), *library}):
        found.update(path.read_bytes())
    return found.hexdigest()[:20]


FRAMES_A_SECOND, MOST_FRAMES = 25, 500
DPI = 110
MEASURED = 10_000  # least number of times of measurement: a drive may turn fifty times between frames


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """The contents of a scenario's page: its entry in `ukjax list`, its module's text, measured errors and pictures."""

    target: str
    entry: Entry
    about: str
    measured: dict[str, str]
    picture: bytes
    thumbnail: bytes | None
    animation: str | None
    live: str | None

    @property
    def stem(self) -> str:
        """The stem of the names of the exhibit's files, such as "models-scara-scenario"."""
        return re.sub(r"\W+", "-", self.target).strip("-")

    @property
    def film(self) -> str:
        """The name of the film's file, distinct from the HTML file that a site makes of the page."""
        return f"{self.stem}-film.html"

    @property
    def small(self) -> str:
        """The name of the file of the small picture in the index, which moves if there is a drawing."""
        return f"{self.stem}.{'png' if self.thumbnail is None else 'webp'}"

    @property
    def page(self) -> str:
        """The name of the file of the page that simulates."""
        return f"{self.stem}-live.html"


def run_gallery(console: Console, package: str, out: Path | None) -> None:
    """Simulates the scenarios in `package`; writes pages, an index and a contact sheet. Raises UsageError."""
    folder = _output.claim(out, "gallery")
    with _output.working(console, f"Importing {package}"):
        found, failures = factories(package)
    exhibits: list[Exhibit] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(found))
        for i, (target, factory) in enumerate(found.items(), 1):
            progress.update(task, description=f"Simulating {escape(target)}")
            if not console.is_terminal:  # a bar would not be seen
                console.print(f"{i} of {len(found)}: {target}", soft_wrap=True, highlight=False, markup=False)
            try:
                exhibits.append(_exhibit(target, factory))
            except Exception as error:  # a user's functions may raise anything
                failures.append(f"{target} fails: {first_line(error)}")
            progress.advance(task)
            # The programs of some dozens of scenarios take more memory mappings than a process may have.
            jax.clear_caches()
    for failure in failures:
        console.print(f"[yellow]Left out:[/yellow] {escape(failure)}", highlight=False, soft_wrap=True)
    if not exhibits:
        raise UsageError(f"There is nothing to show in {package}: ukjax list {package} says what there is.")
    with _output.working(console, "Writing the gallery"):
        paths = _output.write(folder, _pages(package, exhibits))
    pages = sum(path.suffix == ".md" for path in paths) - 1
    console.print(f"wrote {folder / 'sheet.png'}, {folder / 'index.md'} and {pages} pages", soft_wrap=True)


def _exhibit(target: str, factory: Callable[..., Scenario]) -> Exhibit:
    from .. import plot
    from ..plot._frame import png
    from ..plot._pages import thumbnail

    scenario = factory()
    _check.instance(scenario, Scenario, "what it returns", "ukjax.Scenario(mechanism, q0, v0, t1)")
    speed = _simulate.speed_of(scenario.t1 - scenario.t0, None)
    count = min(MOST_FRAMES, int((scenario.t1 - scenario.t0) / speed * FRAMES_A_SECOND) + 1)
    frames = max(2 * count - 2, 1)  # a page has a further frame between every two
    finer = -(-MEASURED // frames)
    ts = jnp.linspace(scenario.t0, scenario.t1, finer * frames + 1)
    whole = light_jit(lambda scenario, ts: scenario.simulate(ts, throw=False))(scenario, ts)
    if bool(whole.result != RESULTS.successful):
        raise RuntimeError(message(whole.result))
    trajectory = jax.tree.map(lambda x: x[::finer] if jnp.shape(x)[:1] == ts.shape else x, whole)
    drawn = scenario.drawing is not None
    figure = plot.path(scenario, trajectory) if drawn else plot.overview(trajectory, scenario.coordinates)
    small = thumbnail(scenario, trajectory) if drawn else None
    animation = plot.page(scenario, trajectory, speed) if drawn else None
    live = _live_page(scenario, trajectory, speed) if drawn else None
    # A robot's file has no docstring. A module from a file is not in `sys.modules`, so its globals are read.
    words = None if _target.is_robot(target) else getattr(factory, "__globals__", {}).get("__doc__")
    about = (words or "").strip()
    measured = _measured(scenario, whole)
    return Exhibit(target, entry(scenario), about, measured, png(figure, DPI), small, animation, live)


def _live_page(scenario: Scenario, trajectory: Trajectory, speed: float) -> str | None:
    """The page that simulates; None for a scenario whose functions are no scalar code."""
    from .. import plot

    try:
        return plot.live(scenario, trajectory, speed)
    except ValueError:
        return None


def _measured(scenario: Scenario, trajectory: Trajectory) -> dict[str, str]:
    """The largest errors of constraints and servo, and drifts of invariants and of energy, as texts by name."""
    found = {
        "largest position error of the constraints": _largest(trajectory.position_residual),
        "largest velocity error of the constraints": _largest(trajectory.velocity_residual),
    }
    if trajectory.servo_residual is not None:
        found["largest acceleration that the servo misses"] = _largest(trajectory.servo_residual)
    for name, function in scenario.invariants.items():
        values = jax.vmap(function)(trajectory.q, trajectory.v, trajectory.t)
        found[f"drift of {name}, which is {float(values[0]):.6g}"] = _largest(values - values[0])
    kinetic, work = _work(scenario, trajectory)
    highest = f"{np.max(kinetic):.6g}"
    found[f"drift of the kinetic energy, at most {highest} J, less the work of all forces [J]"] = _largest(
        kinetic - kinetic[0] - work
    )
    return found


def _largest(x: ArrayLike) -> str:
    return f"{np.max(np.abs(x)):.1e}"


def _work(scenario: Scenario, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """The kinetic energy T = v M v / 2 (T,) [J], and the work of all forces since the start (T,) [J].

    In theory their difference is constant, whatever drives the mechanism: T' follows from the accelerations, since
    M v' is the sum of all forces. Between the saved times T' is interpolated by a spline.
    """
    from scipy.interpolate import make_interp_spline

    mechanism = scenario.mechanism

    def energy(q: Array, v: Array, t: Array) -> Array:
        return v @ mechanism.system.mass(q, t) @ v / 2

    def energy_and_power(q: Array, v: Array, a: Array, t: Array) -> tuple[Array, Array]:
        return jax.jvp(energy, (q, v, t), (mechanism.rates(q, v, t), a, jnp.ones_like(t)))

    kinetic, power = light_jit(jax.vmap(energy_and_power))(
        trajectory.q, trajectory.v, trajectory.acceleration, trajectory.t
    )
    power = make_interp_spline(trajectory.t, np.asarray(power), k=min(7, len(power) - 1 - (len(power) % 2)))
    done = power.antiderivative()(trajectory.t)
    return np.asarray(kinetic), done - done[0]


def _pages(package: str, exhibits: list[Exhibit]) -> _output.Files:
    from .. import plot

    captions = ["\n".join(_said(one.entry)) for one in exhibits]
    sheet = plot.contact_sheet([one.picture for one in exhibits], captions)
    files: _output.Files = [
        ("index.md", _text(_index(package, exhibits))),
        ("sheet.png", lambda path: sheet.savefig(path)),
    ]
    ordered = [one for members in _groups(exhibits).values() for one in members]
    for before, one, after in zip([None, *ordered], ordered, [*ordered[1:], None], strict=False):
        files.append((f"{one.stem}.png", ft.partial(Path.write_bytes, data=one.picture)))
        files.append((f"{one.stem}.md", _text(_page(one, before, after))))
        if one.thumbnail is not None:
            files.append((one.small, ft.partial(Path.write_bytes, data=one.thumbnail)))
        if one.animation is not None:
            files.append((one.film, _text(one.animation)))
        if one.live is not None:
            files.append((one.page, _text(one.live)))
    return files


def _text(content: str) -> Callable[[Path], object]:
    return ft.partial(Path.write_text, data=content, encoding="utf-8")


def _said(entry: Entry) -> list[str]:
    """The name, numbers, kinds and source of an entry, a line each."""
    numbers = f"n = {entry.coordinates}, m = {entry.rows}, rank {entry.rank}"
    return [x for x in (entry.name, numbers, ", ".join(entry.kinds.splitlines()), entry.source) if x]


def _groups(exhibits: list[Exhibit]) -> dict[str, list[Exhibit]]:
    """The exhibits by what makes them move as they do, in the order of the index."""
    groups: dict[str, list[Exhibit]] = {title: [] for title in (*GROUPS, "Other constraints")}
    for one in exhibits:
        title = next((title for title, kinds in GROUPS.items() if re.search(kinds, one.entry.kinds)), [*groups][-1])
        groups[title].append(one)
    return {title: members for title, members in groups.items() if members}


# Titles of the groups, and the kinds of constraints by which a scenario belongs to one; the first that fits.
GROUPS = {
    "Driven by servo constraints or a controller": r"servo|controller",
    "Rolling and gliding: nonholonomic constraints": r"nonholonomic",
    "Loops, joints and surfaces: holonomic constraints": r"^holonomic",
    "Without constraints": r"^none$",
}


def _index(package: str, exhibits: list[Exhibit]) -> str:
    lines = [
        "# Gallery",
        "",
        f"These are the scenarios of `{package}`. Each has coordinates n and rows of constraints m, with their rank at",
        "the start. A picture leads to a simulation to play with, the sketch and equations, the commands, and measured",
        "errors.",
        "",
    ]
    for title, members in _groups(exhibits).items():
        lines += [f"## {title}", "", '<div class="cards" markdown>', ""]
        for one in members:
            name, *said = map(_plain, _said(one.entry))
            lines += [
                f"[![{name}]({one.small}){{ loading=lazy }}<br>**{name}**]({one.stem}.md)<br>{'<br>'.join(said)}",
                "",
            ]
        lines += ["</div>", ""]
    lines += [f"`ukjax gallery {package}` made these pages, and a [contact sheet](sheet.png).", ""]
    return "\n".join(lines)


def _page(one: Exhibit, before: Exhibit | None, after: Exhibit | None) -> str:
    entry = one.entry
    kinds = ", ".join(entry.kinds.splitlines())
    ways = [f"[← {_plain(before.entry.name)}]({before.stem}.md)"] if before else []
    ways += ["[Gallery](index.md)"]
    ways += [f"[{_plain(after.entry.name)} →]({after.stem}.md)"] if after else []
    shown, title = (one.page, "simulation") if one.live else (one.film, "film")
    height = 760 if one.live else 480
    frame = f'<iframe src="{shown}" title="{title}" width="100%" height="{height}" loading="lazy"></iframe>'
    links = [f"[The film on a page of its own]({one.film})"] if one.animation else []
    links += [f"[the simulation on a page of its own]({one.page})"] if one.live else []
    lines = [
        " · ".join(ways),
        "",
        f"# {_plain(entry.name)}",
        "",
        *([f"Source: {_plain(entry.source)}", ""] if entry.source else []),
        f"n = {entry.coordinates} coordinates; m = {entry.rows} rows of constraints, of rank {entry.rank} at the",
        f"start: {kinds}.",
        "",
        *([frame, "", f"{', '.join(links)}.", ""] if one.animation else []),
        "```sh",
        f"ukjax simulate {one.target}",
        f"ukjax animate {one.target}{' --live' if one.live else ''}",
        "```",
        "",
        f"![{_plain(entry.name)}]({one.stem}.png)",
        "",
        "## Measured errors",
        "",
        "| Quantity | Value |",
        "|---|---|",
        *(f"| {_plain(name)} | {value} |" for name, value in one.measured.items()),
        "",
        "In float64, with the tolerances and the projection of the scenario.",
        "",
        *(["## Sketch and equations", "", "```text", one.about, "```", ""] if one.about else []),
    ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """The text with Markdown's special characters escaped, for cells of tables too."""
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", text)
