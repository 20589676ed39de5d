"""The command line: `ukjax list`, `ukjax simulate TARGET`, `ukjax animate TARGET`, and the other commands."""

import contextlib
import gc
import importlib.metadata
import os
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

from .. import _waiting
from .._lowering import Target
from .._user_code import users_frames
from . import _export, _inspect, _list, _live, _output, _simulate, _sweep
from ._declared import EXAMPLES
from ._target import FileOptions, UsageError


app = typer.Typer(
    name="ukjax",
    help="Constrained mechanical systems by the Udwadia-Kalaba equation.\n\n"
    "Start with: ukjax simulate ukjax.examples.scara:scenario",
    no_args_is_help=True,
    rich_markup_mode=None,  # with markup, "[s]" would be a tag
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

# Arguments and options of several commands.
AS_FOR_SIMULATE = typer.Argument(
    metavar="TARGET", help="What to run: module:factory or path/to/file.py:factory, as for simulate."
)
LookedAt = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="What to look at: module:factory or path/to/file.py:factory, as for simulate."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Pass an argument to the factory, or the angle of a joint of a file, or its keyframe; may be repeated.",
    ),
]
Loops = Annotated[
    Path | None,
    typer.Option(
        metavar="YAML",
        help="Loops, motors and kinds of joints of a URDF; if omitted robot.yaml beside robot.urdf, if there is one.",
    ),
]
Trusted = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder whose files, such as meshes, an MJCF file may name, beside its own."),
]
End = Annotated[float | None, typer.Option(help="End time [s], in place of the scenario's.")]
Times = Annotated[int, typer.Option(min=2, help="How many times to save.")]
Rtol = Annotated[float, typer.Option(help="Relative tolerance of the integration.")]
Atol = Annotated[float, typer.Option(help="Absolute tolerance of the integration.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write to; out/NAME if omitted, NAME being the scenario's.")]
Formats = Annotated[
    list[_simulate.Format] | None,
    typer.Option("--format", help="What to write; may be repeated. gif and html if omitted. mp4 needs ffmpeg."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"ukjax {importlib.metadata.version('ukjax')}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    # Mechanics needs double precision. The library leaves this setting to its user, here the command.
    jax.config.update("jax_enable_x64", True)
    # The code generator of JAX 0.10 for the CPU compiles slowly, for no faster code. JAX 0.12 has no such flag and
    # would abort. XLA reads the variable when it is first used, which is after this.
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.__version_info__[:2] == (0, 10) and "fusion_emitters" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"
    _output.keep_programs()
    os.environ.setdefault(_waiting.VARIABLE, "off")  # the command reports by itself
    # Tracing makes millions of small objects, which the garbage collector would scan again and again.
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
    # A batch uses every device, and each core is a device if JAX is configured so before it starts.
    asked = "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in flags
    if context.invoked_subcommand == "sweep" and not asked:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with contextlib.suppress(RuntimeError):  # JAX has started: its devices are set already
            jax.config.update("jax_num_cpu_devices", cores)


@app.command(short_help="Run a scenario: summary, trajectory, pictures.")
def simulate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="What to run: module:factory or path/to/file.py:factory, returning a ukjax.Scenario, or robot.xml.",
        ),
    ],
    settings: Settings = None,
    t1: End = None,
    rtol: Rtol = 1e-8,
    atol: Atol = 1e-8,
    points: Times = 1001,
    out: Out = None,
    loops: Loops = None,
    trusted: Trusted = None,
    pictures: Annotated[
        list[_simulate.Picture] | None,
        typer.Option("--format", help="Format of the pictures; may be repeated. png if omitted; pdf and svg to print."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the trajectory as a table, trajectory.csv.")] = False,
) -> None:
    """Simulate a scenario: print a summary, write the trajectory (NetCDF, CSV) and pictures."""
    options = FileOptions(loops, trusted)
    _simulate.run_simulate(console, target, settings or [], t1, rtol, atol, points, out, options, pictures or (), csv)


@app.command(short_help="Make a film of a scenario, or a page that simulates it.")
def animate(
    target: Annotated[str, AS_FOR_SIMULATE],
    settings: Settings = None,
    t1: End = None,
    out: Out = None,
    fps: Annotated[
        float, typer.Option(min=1, max=50, help="Frames a second; a frame lasts a whole number of hundredths of one.")
    ] = 25.0,
    speed: Annotated[
        float | None,
        typer.Option(help="Seconds of motion in a second; if omitted 1, or what makes the animation 2 to 30 s long."),
    ] = None,
    formats: Formats = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Write live.html alone, a page that simulates: pull at parts, move parameters."),
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARAMETER",
            help="With --live, a parameter that has a slider, as `ukjax export --parameter` knows it; may be repeated.",
        ),
    ] = None,
    loops: Loops = None,
    trusted: Trusted = None,
) -> None:
    """Animate a scenario that has a drawing: a GIF or MP4, and a web page that plays and scrubs without a network.

    With --live, write one web page that simulates the scenario, in WebAssembly, without a network either.
    """
    options = FileOptions(loops, trusted)
    if live:
        if formats:
            raise UsageError("--live writes live.html alone. Leave out --format, or leave out --live.")
        _live.run_live(console, target, settings or [], t1, out, speed, parameter or [], options)
        return
    if parameter:
        raise UsageError("--parameter is about the sliders of a live page. Pass --live too.")
    _simulate.run_animate(console, target, settings or [], t1, out, fps, speed, formats or [], options)


@app.command("list", short_help="List the scenarios of a package.")
def list_(
    package: Annotated[
        str,
        typer.Argument(metavar="PACKAGE", help="Where to look: a package, a module, path/to/file.py, or robot.xml."),
    ] = EXAMPLES,
    rank: Annotated[
        bool,
        typer.Option(
            "--rank",
            help="Also show coordinates, constraint rows, their rank at the start, and their kinds. The first time it "
            "compiles every scenario, for minutes.",
        ),
    ] = False,
) -> None:
    """List the scenarios of a package: target, name, source; of a single module also its sketch and equations."""
    _list.run_list(console, package, rank)


@app.command(short_help="Show the scenarios of a package: a contact sheet, and a page for each.")
def gallery(
    package: Annotated[
        str,
        typer.Argument(metavar="PACKAGE", help="What to show: a package, a module, path/to/file.py, or robot.xml."),
    ] = EXAMPLES,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; out/gallery if omitted.")] = None,
) -> None:
    """Simulate all scenarios of a package and write a contact sheet, an index, and a page for each, with a film."""
    _list.run_gallery(console, package, out)


@app.command(short_help="Diagnose a scenario at its start; of a robot's file also how it was read.")
def inspect(
    target: LookedAt,
    settings: Settings = None,
    loops: Loops = None,
    trusted: Trusted = None,
) -> None:
    """Say what a scenario is like at its start: rank, redundant rows, degrees of freedom, consistency, conditioning.

    For a robot's file (.xml, .urdf), also list the features that are followed, those that are not, and the start.
    """
    _inspect.run_inspect(console, target, settings or [], FileOptions(loops, trusted))


@app.command(short_help="Natural frequencies, damping and shapes of a scenario.")
def modes(
    target: LookedAt,
    settings: Settings = None,
    at: Annotated[
        _inspect.Where, typer.Option(help="About the equilibrium next to the start, or about the start itself.")
    ] = _inspect.Where.equilibrium,
    mode: Annotated[int | None, typer.Option(min=1, help="Animate this one of the table.")] = None,
    out: Out = None,
    formats: Formats = None,
) -> None:
    """Linearise a scenario, with its servo at work: print eigenvalues, frequencies, damping; animate a mode."""
    _inspect.run_modes(console, target, settings or [], at, mode, out, formats or [])


@app.command(short_help="Write functions of a scenario in C, as an object, WebAssembly, for CasADi, or as an FMU.")
def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="What to export: module:factory or path/to/file.py:factory, or robot.xml."
        ),
    ],
    settings: Settings = None,
    to: Annotated[str, typer.Option(help=_export.TO_HELP)] = "c",
    what: Annotated[list[str] | None, typer.Option(help=_export.WHAT_HELP)] = None,
    name: Annotated[
        str | None, typer.Option(help="What the files are called, and all names in them begin with; by the scenario.")
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Make all parameters arguments, in place of constants.")
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="PARAMETER", help="Make this parameter an argument; may be repeated."),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            "--target", metavar="TRIPLE", help="For an object: thumbv7em-none-eabihf; this machine if omitted."
        ),
    ] = "",
    cpu: Annotated[str, typer.Option(help="For an object: a processor of the target, such as cortex-m7.")] = "",
    features: Annotated[str, typer.Option(help="For an object: features of the processor, such as +fma.")] = "",
    out: Out = None,
) -> None:
    """Write accelerations, the control of a servo, a step, and other functions of a scenario for other programs.

    The functions in C need no memory and no library but math.h, and give the bits that they have here. Each returns
    whether it is certain of its results. An FMU is for model exchange and co-simulation; it needs a C compiler.
    """
    if parameters and parameter:
        raise UsageError("Pass --parameters for all of them, or --parameter for some, but not both.")
    chosen = parameter or parameters
    asked = Target(machine, cpu, features)
    _export.run_export(console, target, settings or [], to, what or [], name, chosen, asked, out)


@app.command(short_help="Minimise a loss by gradient.")
def tune(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="What to tune: module:factory or file.py:factory, returning a ukjax.tuning.TuningProblem.",
        ),
    ],
    settings: Settings = None,
    steps: Annotated[int | None, typer.Option(help="How many steps, in place of the problem's.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; out/NAME if omitted, NAME being the problem's.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if an earlier run was interrupted.")] = False,
) -> None:
    """Minimise a loss by gradient: print start and best, write the history (NetCDF) and a picture.

    After an interruption the same command continues where it stopped.
    """
    _sweep.run_tune(console, target, settings or [], steps, out, fresh)


@app.command(short_help="Run a scenario over many values of its parameters, on disk.")
def sweep(
    target: Annotated[str | None, AS_FOR_SIMULATE] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH:N",
            help="Vary an argument of the factory: N values of a grid (NAME=LOW:HIGH for the other designs; "
            "NAME=A,B,C for a list; :log at the end for equal ratios); may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    samples: Annotated[int | None, typer.Option(help="How many points, of any design but a grid.")] = None,
    design: Annotated[str, typer.Option(help="grid, random, lhs (Latin hypercube) or sobol.")] = "grid",
    seed: Annotated[int, typer.Option(help="Of what is random in the design.")] = 0,
    t1: End = None,
    points: Times = 101,
    keep: Annotated[str, typer.Option(help="Fields of a trajectory to store, with commas between.")] = "q,v",
    chunk: Annotated[int | None, typer.Option(help="Trajectories of a chunk; by size if omitted.")] = None,
    rtol: Rtol = 1e-8,
    atol: Atol = 1e-8,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, whose workers compute.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; out/NAME-sweep if omitted, NAME being the scenario's.")
    ] = None,
    status: Annotated[Path | None, typer.Option(metavar="DIR", help="Say how far the study in a folder is.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the study in a folder.")] = None,
) -> None:
    """Simulate a scenario over many values of its parameters: a Zarr store that xarray opens, and pictures.

    After an interruption of any kind the same command continues where it stopped.
    """
    if (target is None) == (status is None and plot is None):
        raise UsageError("Pass a TARGET, or --status DIR or --plot DIR of a study, but not both.")
    if target is None:
        for folder, act in ((status, _sweep.status), (plot, _sweep.draw)):
            if folder is not None:
                act(console, folder)
        return
    study = _sweep.Study(vary or [], samples, design, seed, t1, points, keep, chunk, rtol, atol, scheduler)
    _sweep.run_sweep(console, target, settings or [], study, out)


@app.command(short_help="Write a study as NumPy archives, to learn from.")
def dataset(
    study: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a complete study of ukjax sweep.")],
    out: Annotated[Path, typer.Option(help="Folder to write to, new or empty.")],
    holdout: Annotated[float, typer.Option(help="Share of the trajectories to write apart, drawn at random.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; that of the study if omitted.")] = None,
) -> None:
    """Write the trajectories of a study that succeeded as NumPy archives and an index of what is in them."""
    _sweep.export(console, study, out, holdout, seed, dtype)


def main() -> None:
    """Runs the command; an error of use ends in one message and exit status 2, a failed run in 1."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app()
        except UsageError as error:
            errors.print(f"[red]Error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise SystemExit(2) from None
        except RuntimeError as error:
            errors.print(f"[red]Failed:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise SystemExit(1) from None
        except Exception as error:
            frames = users_frames(error)
            if not frames:  # the library is at fault, and all of the traceback is needed to see where
                raise
            errors.print(escape("".join(_of_user(error, frames))), highlight=False, soft_wrap=True, end="")
            raise SystemExit(1) from None


def _of_user(error: Exception, frames: list[traceback.FrameSummary]) -> list[str]:
    """Returns the traceback of an error within the user's files alone, without frames of this command."""
    return ["Traceback in your own files:\n", *traceback.format_list(frames), *traceback.format_exception_only(error)]


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Prints a warning without the line of the library's source that raised it."""
    errors.print(f"[yellow]Warning:[/yellow] {escape(str(message))}", highlight=False, soft_wrap=True)
