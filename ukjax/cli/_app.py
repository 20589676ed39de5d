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
from . import _export, _inspect, _list, _output, _simulate, _sweep
from ._declared import EXAMPLES
from ._target import FileOptions, UsageError


app = typer.Typer(
    name="ukjax",
    help="Simulate constrained mechanical systems by the Udwadia-Kalaba equation.\n\n"
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
    metavar="TARGET", help="Scenario to run: module:factory, path/to/file.py:factory or robot.xml, as for simulate."
)
LookedAt = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="Scenario to analyse: module:factory, path/to/file.py:factory or robot.xml."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set an argument of the factory or, for a robot's file, a joint's coordinate or the keyframe. Repeatable.",
    ),
]
Pictures = Annotated[
    list[_output.Picture] | None,
    typer.Option("--format", help="Format of the pictures. Repeatable. Default: png. Use pdf or svg to print."),
]
Loops = Annotated[
    Path | None,
    typer.Option(
        metavar="YAML",
        help="File with loops, motors and kinds of joints of a URDF. Default: robot.yaml beside robot.urdf, if any.",
    ),
]
Trusted = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Further folder whose files (such as meshes) an MJCF file may use."),
]
End = Annotated[float | None, typer.Option(help="End time [s]. Default: the scenario's.")]
Times = Annotated[int, typer.Option(min=2, help="Number of saved times.")]
Rtol = Annotated[float, typer.Option(help="Relative tolerance of the integration.")]
Atol = Annotated[float, typer.Option(help="Absolute tolerance of the integration.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: out/NAME, with the scenario's name.")]
Formats = Annotated[
    list[_simulate.Format] | None,
    typer.Option("--format", help="Format to write. Repeatable. Default: gif and html. mp4 needs ffmpeg."),
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


@app.command(short_help="Simulate a scenario: summary, trajectory, pictures.")
def simulate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Scenario to run: module:factory or path/to/file.py:factory (a ukjax.Scenario), or robot.xml.",
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
    pictures: Pictures = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the trajectory as a table, trajectory.csv.")] = False,
) -> None:
    """Simulate a scenario: print a summary, write the trajectory (NetCDF, CSV) and pictures."""
    options = FileOptions(loops, trusted)
    _simulate.run_simulate(console, target, settings or [], t1, rtol, atol, points, out, options, pictures or (), csv)


@app.command(short_help="Animate a scenario, or write a web page that simulates it.")
def animate(
    target: Annotated[str, AS_FOR_SIMULATE],
    settings: Settings = None,
    t1: End = None,
    out: Out = None,
    fps: Annotated[
        float, typer.Option(min=1, max=50, help="Frames per second. A frame lasts a whole number of 1/100 s.")
    ] = 25.0,
    speed: Annotated[
        float | None,
        typer.Option(help="Seconds of motion per second. Default: 1, or what makes the animation 2 to 30 s long."),
    ] = None,
    formats: Formats = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Write only live.html, a page that simulates: pull parts, change parameters."),
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARAMETER",
            help="With --live: give this parameter a slider. Names as in `ukjax export --parameter`. Repeatable.",
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
        _simulate.run_live(console, target, settings or [], t1, out, speed, parameter or [], options)
        return
    if parameter:
        raise UsageError("--parameter is about the sliders of a live page. Pass --live too.")
    _simulate.run_animate(console, target, settings or [], t1, out, fps, speed, formats or [], options)


@app.command("list", short_help="List the scenarios of a package.")
def list_(
    package: Annotated[
        str,
        typer.Argument(metavar="PACKAGE", help="A package, a module, path/to/file.py, or robot.xml."),
    ] = EXAMPLES,
    rank: Annotated[
        bool,
        typer.Option(
            "--rank",
            help="Also show coordinates, constraint rows, their rank at the start, and their kinds. The first call "
            "compiles every scenario, which takes minutes.",
        ),
    ] = False,
) -> None:
    """List the scenarios of a package: target, name, source. Of a single module, show its sketch and equations too."""
    _list.run_list(console, package, rank)


@app.command(short_help="Make a gallery of all scenarios of a package.")
def gallery(
    package: Annotated[
        str,
        typer.Argument(metavar="PACKAGE", help="A package, a module, path/to/file.py, or robot.xml."),
    ] = EXAMPLES,
    out: Annotated[Path | None, typer.Option(help="Folder for the gallery. Default: out/gallery.")] = None,
) -> None:
    """Simulate all scenarios of a package, and write a contact sheet, an index, and a page with a film for each."""
    _list.run_gallery(console, package, out)


@app.command(short_help="Diagnose the initial state of a scenario, and how a robot's file was read.")
def inspect(
    target: LookedAt,
    settings: Settings = None,
    loops: Loops = None,
    trusted: Trusted = None,
) -> None:
    """Diagnose the initial state: rank, redundant rows, degrees of freedom, consistency, conditioning.

    For a robot's file (.xml, .urdf), also list the features that are followed, those that are not, and the start.
    """
    _inspect.run_inspect(console, target, settings or [], FileOptions(loops, trusted))


@app.command(short_help="Show natural frequencies, damping and mode shapes of a scenario.")
def modes(
    target: LookedAt,
    settings: Settings = None,
    at: Annotated[
        _inspect.Where, typer.Option(help="Linearise about the equilibrium nearest to the start, or about the start.")
    ] = _inspect.Where.equilibrium,
    mode: Annotated[int | None, typer.Option(min=1, help="Animate the mode with this number in the table.")] = None,
    out: Out = None,
    formats: Formats = None,
) -> None:
    """Linearise a scenario with its servo active. Print eigenvalues, frequencies and damping; animate a mode."""
    _inspect.run_modes(console, target, settings or [], at, mode, out, formats or [])


@app.command(short_help="Export a scenario's functions: C, object file, WebAssembly, CasADi, FMU.")
def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Scenario to export: module:factory, path/to/file.py:factory or robot.xml."
        ),
    ],
    settings: Settings = None,
    to: Annotated[str, typer.Option(help=_export.TO_HELP)] = "c",
    what: Annotated[list[str] | None, typer.Option(help=_export.WHAT_HELP)] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the files, and prefix of all names in them. Default: the scenario's.")
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Make all parameters arguments instead of constants.")
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="PARAMETER", help="Make this parameter an argument. Repeatable."),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            "--target", metavar="TRIPLE", help="Machine of an object, like thumbv7em-none-eabihf. Default: this one."
        ),
    ] = "",
    cpu: Annotated[str, typer.Option(help="For an object: a processor of the target, such as cortex-m7.")] = "",
    features: Annotated[str, typer.Option(help="For an object: features of the processor, such as +fma.")] = "",
    out: Out = None,
) -> None:
    """Export functions of a scenario for other programs: accelerations, the control of a servo, a step, and others.

    The C functions need no memory and no library but math.h. Their results are those of ukjax bit by bit. Each returns
    whether it is certain of its results. An FMU is for model exchange and co-simulation, and needs a C compiler.
    """
    if parameters and parameter:
        raise UsageError("Pass --parameters for all of them, or --parameter for some, but not both.")
    chosen = parameter or parameters
    asked = Target(machine, cpu, features)
    _export.run_export(console, target, settings or [], to, what or [], name, chosen, asked, out)


@app.command(short_help="Tune parameters: minimise a loss by gradient.")
def tune(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Problem to tune: module:factory or file.py:factory that returns a ukjax.tuning.TuningProblem.",
        ),
    ],
    settings: Settings = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps. Default: the problem's.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results. Default: out/NAME, with the problem's name.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even after an interrupted run.")] = False,
    pictures: Pictures = None,
) -> None:
    """Minimise a loss by gradient. Print start and best; write the history (NetCDF) and a picture.

    After an interruption the same command continues where it stopped.
    """
    _sweep.run_tune(console, target, settings or [], steps, out, fresh, pictures or ())


@app.command(short_help="Simulate a scenario for many values of its parameters.")
def sweep(
    target: Annotated[str | None, AS_FOR_SIMULATE] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH:N",
            help="Vary an argument of the factory, with N values of a grid. NAME=LOW:HIGH for the other designs. "
            "NAME=A,B,C for a list. :log at the end for equal ratios. A NAME may have a unit, 'mass [kg]', for the "
            "pictures. Repeatable.",
        ),
    ] = None,
    settings: Settings = None,
    samples: Annotated[int | None, typer.Option(help="Number of points, for any design but a grid.")] = None,
    design: Annotated[str, typer.Option(help="Design: grid, random, lhs (Latin hypercube) or sobol.")] = "grid",
    seed: Annotated[int, typer.Option(help="Random seed of the design.")] = 0,
    t1: End = None,
    points: Times = 101,
    keep: Annotated[str, typer.Option(help="Fields of a trajectory to store, separated by commas.")] = "q,v",
    chunk: Annotated[int | None, typer.Option(help="Trajectories per chunk. Default: chosen by size.")] = None,
    rtol: Rtol = 1e-8,
    atol: Atol = 1e-8,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers compute, like tcp://host:8786.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study. Default: out/NAME-sweep, with the scenario's name.")
    ] = None,
    status: Annotated[Path | None, typer.Option(metavar="DIR", help="Show the progress of the study in DIR.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the study in DIR.")] = None,
    pictures: Pictures = None,
) -> None:
    """Simulate a scenario for many values of its parameters. Write a Zarr store that xarray opens, and pictures.

    After an interruption of any kind the same command continues where it stopped.
    """
    if (target is None) == (status is None and plot is None):
        raise UsageError("Pass a TARGET, or --status DIR or --plot DIR of a study, but not both.")
    if target is None:
        if status is not None:
            _sweep.status(console, status)
        if plot is not None:
            _sweep.draw(console, plot, pictures or ())
        return
    study = _sweep.Study(
        vary or [], samples, design, seed, t1, points, keep, chunk, rtol, atol, scheduler, pictures or ()
    )
    _sweep.run_sweep(console, target, settings or [], study, out)


@app.command(short_help="Write a study as NumPy archives, for machine learning.")
def dataset(
    study: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a complete study of `ukjax sweep`.")],
    out: Annotated[Path, typer.Option(help="New or empty folder for the archives.")],
    holdout: Annotated[float, typer.Option(help="Fraction of the trajectories to hold out, drawn at random.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of the draw for --holdout.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64. Default: that of the study.")] = None,
) -> None:
    """Write the successful trajectories of a study as NumPy archives, with an index of their contents."""
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
