"""The command `ukjax gallery`."""

import dataclasses
import functools as ft
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import _check, plot
from .._program import light_jit
from .._result import RESULTS, message
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _animate, _list, _output, _robot
from ._list import Entry, first_line
from ._target import UsageError


FRAMES_A_SECOND, MOST_FRAMES = 25, 500
COLUMNS = 3  # columns of the index
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
    animation: str | None

    @property
    def stem(self) -> str:
        """The stem of the names of the exhibit's files, such as "models-scara-scenario"."""
        return re.sub(r"\W+", "-", self.target).strip("-")

    @property
    def film(self) -> str:
        """The name of the film's file, distinct from the HTML file that a site makes of the page."""
        return f"{self.stem}-film.html"


def run_gallery(console: Console, package: str, out: Path | None) -> None:
    """Simulates the scenarios in `package`; writes pages, an index and a contact sheet. Raises UsageError."""
    folder = _output.claim(out, "gallery")
    with console.status(f"Importing {package}"):
        factories, failures = _list.factories(package)
    exhibits: list[Exhibit] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(factories))
        for target, factory in factories.items():
            progress.update(task, description=f"Simulating {escape(target)}")
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
    with console.status("Writing the gallery"):
        paths = _output.write(folder, _pages(package, exhibits))
    pages = sum(path.suffix == ".md" for path in paths) - 1
    console.print(f"wrote {folder / 'sheet.png'}, {folder / 'index.md'} and {pages} pages", soft_wrap=True)


def _exhibit(target: str, factory: Callable[..., Any]) -> Exhibit:
    scenario = factory()
    _check.instance(scenario, Scenario, "what it returns", "ukjax.Scenario(mechanism, q0, v0, t1)")
    speed = _animate.speed_of(scenario.t1 - scenario.t0, None)
    count = min(MOST_FRAMES, int((scenario.t1 - scenario.t0) / speed * FRAMES_A_SECOND) + 1)
    frames = max(2 * count - 2, 1)  # a page has a further frame between every two
    finer = -(-MEASURED // frames)
    ts = jnp.linspace(scenario.t0, scenario.t1, finer * frames + 1)
    options: dict[str, Any] = {"throw": False}
    whole = light_jit(lambda scenario, ts: scenario.simulate(ts, **options))(scenario, ts)
    if bool(whole.result != RESULTS.successful):
        raise RuntimeError(message(whole.result))
    trajectory = jax.tree.map(lambda x: x[::finer] if jnp.shape(x)[:1] == ts.shape else x, whole)
    drawn = scenario.drawing is not None
    figure = plot.path(scenario, trajectory) if drawn else plot.overview(trajectory, scenario.coordinates)
    animation = plot.page(scenario, trajectory, speed) if drawn else None
    # A robot's file has no docstring. A module from a file is not in `sys.modules`, so its globals are read.
    words = None if _robot.is_robot(target) else getattr(factory, "__globals__", {}).get("__doc__")
    about = (words or "").strip()
    return Exhibit(target, _list.entry(scenario), about, _measured(scenario, whole), _png(figure), animation)


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def _measured(scenario: Scenario, trajectory: Trajectory) -> dict[str, str]:
    """The largest errors of constraints and servo, and drifts of invariants and of energy, as texts by name."""
    largest = lambda x: f"{np.max(np.abs(x)):.1e}"
    found = {
        "largest position error of the constraints": largest(trajectory.position_residual),
        "largest velocity error of the constraints": largest(trajectory.velocity_residual),
    }
    if trajectory.servo_residual is not None:
        found["largest acceleration that the servo misses"] = largest(trajectory.servo_residual)
    for name, function in scenario.invariants.items():
        values = jax.vmap(function)(trajectory.q, trajectory.v, trajectory.t)
        found[f"drift of {name}, which is {float(values[0]):.6g}"] = largest(values - values[0])
    kinetic, work = _work(scenario, trajectory)
    highest = f"{np.max(kinetic):.6g}"
    found[f"drift of the kinetic energy, at most {highest} J, less the work of all forces [J]"] = largest(
        kinetic - kinetic[0] - work
    )
    return found


def _work(scenario: Scenario, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """The kinetic energy T = v M v / 2 (T,) [J], and the work of all forces since the start (T,) [J].

    In theory their difference is constant, whatever drives the mechanism: T' follows from the accelerations, since
    M v' is the sum of all forces. Between the saved times T' is interpolated by a spline.
    """
    from scipy.interpolate import make_interp_spline

    mechanism = scenario.mechanism

    def of(q: Any, v: Any, a: Any, t: Any) -> tuple[Any, Any]:
        energy = lambda q, v, t: v @ mechanism.system.mass(q, t) @ v / 2
        return jax.jvp(energy, (q, v, t), (mechanism.rates(q, v, t), a, jnp.ones_like(t)))

    kinetic, power = light_jit(jax.vmap(of))(trajectory.q, trajectory.v, trajectory.acceleration, trajectory.t)
    power = make_interp_spline(trajectory.t, np.asarray(power), k=min(7, len(power) - 1 - (len(power) % 2)))
    done = power.antiderivative()(trajectory.t)
    return np.asarray(kinetic), done - done[0]


def _pages(package: str, exhibits: list[Exhibit]) -> list[tuple[str, Callable[[Path], Any]]]:
    text = lambda content: lambda path: path.write_text(content, "utf-8")
    captions = ["\n".join(_said(one.entry)) for one in exhibits]
    sheet = plot.contact_sheet([one.picture for one in exhibits], captions)
    files = [
        ("index.md", text(_index(package, exhibits))),
        ("sheet.png", lambda path: sheet.savefig(path)),
    ]
    for one in exhibits:
        files.append((f"{one.stem}.png", ft.partial(Path.write_bytes, data=one.picture)))
        files.append((f"{one.stem}.md", text(_page(one))))
        if one.animation is not None:
            files.append((one.film, text(one.animation)))
    return files


def _said(entry: Entry) -> list[str]:
    """The name, numbers, kinds and source of an entry, a line each."""
    numbers = f"n = {entry.coordinates}, m = {entry.rows}, rank {entry.rank}"
    return [x for x in (entry.name, numbers, ", ".join(entry.kinds.splitlines()), entry.source) if x]


def _index(package: str, exhibits: list[Exhibit]) -> str:
    cells = [
        f"[![{_plain(one.entry.name)}]({one.stem}.png)]({one.stem}.md)<br>{'<br>'.join(map(_plain, _said(one.entry)))}"
        for one in exhibits
    ]
    cells += [""] * (-len(cells) % COLUMNS)
    rows = ["| " + " | ".join(cells[i : i + COLUMNS]) + " |" for i in range(0, len(cells), COLUMNS)]
    head = ["|" + " |" * COLUMNS, "|" + ":-:|" * COLUMNS]
    return "\n".join(
        [
            "# Gallery",
            "",
            f"The scenarios of `{package}`: coordinates n, rows of constraints m, and their rank at the start. A",
            "picture leads to sketch and equations, the command, a film to play, and what was measured.",
            "",
            *head,
            *rows,
            "",
            f"All of it was made by `ukjax gallery {package}`, and so was this [contact sheet](sheet.png).",
            "",
        ]
    )


def _page(one: Exhibit) -> str:
    entry = one.entry
    kinds = ", ".join(entry.kinds.splitlines())
    film = f'<iframe src="{one.film}" title="film" width="100%" height="480" loading="lazy"></iframe>'
    lines = [
        f"# {_plain(entry.name)}",
        "",
        *([_plain(entry.source), ""] if entry.source else []),
        f"n = {entry.coordinates} coordinates; m = {entry.rows} rows of constraints, of rank {entry.rank} at the",
        f"start: {kinds}.",
        "",
        f"![{_plain(entry.name)}]({one.stem}.png)",
        "",
        "```sh",
        f"ukjax simulate {one.target}",
        f"ukjax animate {one.target}",
        "```",
        "",
        *([film, "", f"[The film on a page of its own]({one.film})", ""] if one.animation else []),
        "## What was measured",
        "",
        "| | |",
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
