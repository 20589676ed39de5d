"""Parameter studies on disk."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from tqdm.auto import tqdm

from .. import _check
from .._identity import checksum_of, versions
from .._result import FailedTrajectories
from .._scenario import Scenario
from . import _cluster
from ._cases import Cases, Figure, Results
from ._design import Design, Varied, design_of
from ._store import About, Record, Store, dataset, opened


if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


# The default size of a chunk: its bytes, and its least and most trajectories.
BYTES, LEAST, MOST = 2**25, 256, 8192
# The arguments of `simulate_batch` that a study sets itself.
TAKEN = ("mechanism", "q0", "v0", "servo", "axes", "reduce")


class Status(NamedTuple):
    """The progress of a study.

    Attributes:
        samples: The number of samples.
        done: The number of samples on disk.
        failed: The number of samples on disk with failed trajectories.
        chunks: The number of chunks.
        chunks_done: The number of chunks on disk.
        seconds: The time that these chunks took [s].
        about: The description of the study, and the versions it was made with.
    """

    samples: int
    done: int
    failed: int
    chunks: int
    chunks_done: int
    seconds: float
    about: About


def sweep(
    factory: Callable[..., Scenario],
    vary: Mapping[str, Varied],
    out: str | os.PathLike[str],
    *,
    design: str = "grid",
    samples: int | None = None,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    ts: ArrayLike | Sequence[float] | None = None,
    keep: str | Sequence[str] = ("q", "v"),
    figures: Mapping[str, Figure] | None = None,
    chunk: int | None = None,
    client: "Client | None" = None,
    name: str | None = None,
    progress: bool = True,
    **options: Any,
) -> "xr.Dataset":
    """Simulates a scenario over many values of its parameters, on disk, and continues where it was interrupted.

    The results lie in a Zarr store, `out/data.zarr`, in chunks; each is written whole or not at all. After any
    interruption (a signal, a power cut, a full disk) the same call computes what is missing and no more: chunks that
    are there, with the checksums they were written with, stay. A chunk is the same to the last bit whenever it is
    computed, on the same kind of machine with as many devices and the same XLA_FLAGS, which workers of a cluster take
    over; otherwise it is the same up to rounding.

    A study is identified by what is traced: the trajectory, the invariants and the figures as functions of the varied
    parameters, with the constants in them. A folder whose study computes something else is refused, whatever was
    edited: a number of a module, a default, a function in another file, an attribute, an array, an option. The places
    of files, and the names of functions and variables in them, do not count. Python functions that a program calls back
    count by their instructions, and by what these refer to.

    Args:
        factory: `factory(**values)` -> `Scenario`, such as `models.scara.scenario`. Where it, and the functions in
            what it returns, work with numbers that are known only later (jax.numpy, no `if` on a value), it is traced
            once. Otherwise it runs for every sample: fast where scenarios differ in leaves of modules only, such as
            parameters of a subclass of `AbstractSystem`; where they differ in more, each sample is traced and
            simulated by itself, and compiled unless one before differed in arrays only, which takes seconds. An edit
            of such a factory is found by tracing the first and the last sample, and by the instructions of the
            functions that it uses.
        vary: The range of each varied argument of the factory: (low, high, how many) or a list of values for a grid,
            (low, high) otherwise; with "log" at the end of the tuple in equal ratios. A name may have a unit, for
            pictures and the store: "damping [N s/m]".
        out: Folder of the study.
        design: "grid": every combination; "random": uniform; "lhs": Latin hypercube; "sobol": Sobol' points.
        samples: Number of points, for any design but a grid.
        seed: Seed of the random numbers of the design.
        settings: Other arguments of the factory, the same for all.
        ts: Times to save at (T,) [s]; 101 over the scenario's if None.
        keep: Fields of the trajectories to store, as in `simulate`.
        figures: Further numbers to store of each trajectory: "name [unit]" -> f(trajectory), a scalar. The trajectory
            has `q`, `v`, the residuals and what `keep` names. The largest errors and the drift of each invariant of the
            scenario are stored anyway.
        chunk: Samples of a chunk; chosen by size if None.
        client: A `dask.distributed.Client`: chunks are computed by its workers, wherever they are, and written here
            (the extra `cluster`). None computes them on every device of this process.
        name: Title of the study in the store; the name of the factory if None.
        progress: Show a bar with the trajectories done, their rate and the time left.
        **options: Options of `simulate_batch`: `rtol`, `solver`, `max_steps`, `projection`, ...

    Returns:
        The results, a lazily loaded `xarray.Dataset`: fields along (sample, time, coordinate), the observables of the
        scenario along (sample, time) and their components, the varied parameters and the figures along `sample`, and of
        each trajectory `result` (0 for success; `flag_meanings` names the others). The varied parameters of a grid are
        in the order of `itertools.product`.

    Warns:
        FailedTrajectories: If some failed; they are stored as far as they got.

    Raises:
        ValueError: If an argument is out of range, the factory does not take a name, `out` holds another study (the
            error names what differs, if it can), or results have another shape for every sample.
        TypeError: If `factory` is not callable or returns something else.
        BlockingIOError: If another process writes to `out`.
        OSError: If `out` cannot be written to, or the disk is full: the same call goes on when there is room.
        ConnectionError: If the scheduler of `client` is gone. The same call goes on, with another client or none.
    """
    if not callable(factory):
        raise TypeError(f"factory must be a function that returns a ukjax.Scenario, but is {type(factory).__name__}.")
    if client is not None:
        _cluster.check(client)
    points = design_of(vary, design, samples, seed)
    settings = _check.mapping(settings, "settings", '{"mass": 2.0}')
    figures, folder = _figures(figures), _check.path(out, "out")
    twice = sorted({*settings} & {*points.values})
    if twice:
        raise ValueError(f"{twice[0]!r} is in vary and in settings. Leave it out of one of them.")
    for key in TAKEN:
        if key in options:
            raise ValueError(f"{key} is set by a study itself. Leave it out, or use ukjax.simulate_batch.")
    ends = tuple({k: x[i].item() for k, x in points.values.items()} for i in (0, -1))
    recipe = (factory, settings, points.about, ts, keep, figures, options, ends)
    cases = Cases(*recipe)
    size = _chunk(cases, points.count, chunk)
    about = _about(name or _name(factory), points, settings, cases, options)
    store = Store(folder, about, points.count, size)
    with store.locked():
        new = not store.check()
        if new:
            store.clear()
        store.tidy()
        done = {} if new else store.finished()
        todo = [number for number in range(store.chunks) if number not in done]
        parts = {n: {k: x[store.span(n)] for k, x in points.values.items()} for n in todo}
        if client is None:
            run = ((number, cases.run(values, size)) for number, values in parts.items())
        else:
            run = _cluster.computed(client, recipe, cases.sums, parts, size)
        if new:
            run = _created(store, run, {"command": " ".join(sys.argv), "created": time.strftime("%F %T"), **versions()})
        _write_all(store, run, done, progress)
        done = store.finished(thoroughly=False)
    failed = sum(record.failed for record in done.values())
    if failed:
        warnings.warn(
            f"{failed} of {points.count} trajectories failed: see `result`.", FailedTrajectories, stacklevel=2
        )
    return dataset(folder)


def sweep_status(out: str | os.PathLike[str], thoroughly: bool = False) -> Status:
    """Returns the progress of the study in a folder, by checksums if `thoroughly`; raises ValueError if none."""
    store = opened(_check.path(out, "out"))
    done = store.finished(thoroughly)
    count = sum(map(store.length, done))
    failed = sum(record.failed for record in done.values())
    seconds = sum(record.seconds for record in done.values())
    return Status(store.count, count, failed, store.chunks, len(done), seconds, store.about)


def _figures(given: Mapping[str, Figure] | None) -> dict[str, Figure]:
    """Checks the argument `figures`; raises TypeError unless it maps names to functions."""
    figures = _check.mapping(given, "figures", '{"end [m]": lambda trajectory: trajectory.q[-1, 0]}')
    for key, figure in figures.items():
        _check.function(figure, f"figures[{key!r}]", "f(trajectory) -> scalar")
    return figures


def _name(factory: Callable[..., Scenario]) -> str:
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{named.__module__}:{named.__qualname__}"


def _chunk(cases: Cases, count: int, chunk: int | None) -> int:
    if chunk is not None:
        return min(_check.count(chunk, "chunk"), count)
    each = cases.ts.size * len(cases.keep) * cases.first.q0.nbytes
    return int(min(count, np.clip(BYTES // max(each, 1), LEAST, MOST)))


def _about(
    title: str, points: Design, settings: Mapping[str, object], cases: Cases, options: Mapping[str, object]
) -> About:
    """The description of a study, in words, and the checksums that tell it from others."""
    one = cases.first
    return {
        "study": title,
        "settings": _marks(settings),
        "options": _marks(options),
        "vary": points.text,
        "design": points.kind,
        "seed": points.seed,
        "times": [float(cases.ts[0]), float(cases.ts[-1]), len(cases.ts), checksum_of(cases.ts)],
        "keep": list(cases.keep),
        "labels": [*map(str, (*one.coordinates, *(one.speeds or ()), *one.controls))],
        "precision": str(one.q0.dtype),
        "versions": versions(),
        "figures": cases.of_figures,
        "scenario": cases.scenario,
    }


def _marks(given: Mapping[str, object]) -> dict[str, str]:
    """Plain arguments as they are, others by a name and a checksum."""
    return {
        name: repr(value)
        if isinstance(value, str | bool | int | float | None)
        else f"{getattr(value, '__qualname__', type(value).__qualname__)} {checksum_of(value)}"
        for name, value in sorted(given.items())
    }


def _created(
    store: Store, run: Iterator[tuple[int, Results]], attributes: Mapping[str, str]
) -> Iterator[tuple[int, Results]]:
    """Creates the store from the first chunk, and passes all chunks on."""
    for i, (number, results) in enumerate(run):
        if i == 0:
            store.create(results.data, attributes)
        yield number, results


def _write_all(store: Store, run: Iterator[tuple[int, Results]], done: Mapping[int, Record], progress: bool) -> None:
    """Writes chunks as they are computed."""
    before = sum(map(store.length, done))
    bar = tqdm(total=store.count, initial=before, desc="sweep", disable=not progress, unit="run", smoothing=0.1)
    with bar:
        for number, results in run:
            try:
                store.write(number, results.data, results.failed, results.seconds)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"{store.folder} cannot be written to: {error.strerror or error}. {len(store.finished(False))} of "
                    f"{store.chunks} chunks are there; the same call goes on when there is room",
                ) from error
            bar.update(store.length(number))
