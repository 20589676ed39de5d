"""A study on disk: a Zarr store that xarray opens, written chunk by chunk, each whole or not at all.

    DIR/sweep.json       the description of the study; the files of data.zarr that are no chunks, with checksums
    DIR/data.zarr/       the results; N samples along "sample", in chunks
    DIR/done/000007.json a chunk is done: its files, how long they are, and their checksums
    DIR/.lock            held by the process that writes

A chunk counts when its record in done/ is there and its files are as that says. The record is moved into place after
they are on disk, so that whatever happens in between only means that the chunk is computed again.

A complete study is exported as NumPy archives, for machine learning.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import DTypeLike
from tqdm.auto import tqdm

from .. import _check


if TYPE_CHECKING:
    import xarray as xr
    import zarr


# The description of a study, as in its JSON file.
About = dict[str, Any]
MARK = "a study of ukjax.sweep"
VERSION = 2
WITHOUT_CHECKSUMS = 1  # version without checksums of the traced functions: readable, but not to be continued
# The parts of a description that only inform a reader.
TOLD = ("study", "settings", "options")
# Names in an export.
TRAIN, HOLDOUT = "train", "holdout"
INDEX = "index.json"


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes an OSError within this context name `out` as the folder that cannot be written to."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"out={folder} cannot be written to: {error.strerror}. Pass another folder"
        ) from error


def lock(file: IO[str]) -> None:
    """Locks a file for this process, as long as it is open; raises BlockingIOError if another process has it."""
    words = "Another process is writing to this study. Wait for it, or stop it."
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        except OSError as error:
            raise BlockingIOError(words) from error
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except (BlockingIOError, FileNotFoundError) as error:
        raise BlockingIOError(words) from error
    if not ours:  # the process that had it has removed it, and another one has made a new file
        raise BlockingIOError(words)


def write(path: Path, text: str) -> None:
    """Writes a file that is there as a whole, on disk, or not at all."""
    aside = path.with_name(f".{path.name}.unfinished")
    try:
        aside.write_text(text)
        to_disk(aside)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Waits until a file, or the list of files of a folder, would outlive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def checksum(path: Path) -> tuple[int, str]:
    """The length of a file and a hash of its content."""
    content = path.read_bytes()
    return len(content), hashlib.blake2b(content, digest_size=16).hexdigest()


class Record(NamedTuple):
    """The record of a finished chunk: its files with sizes and checksums, its failures, and the seconds it took."""

    files: dict[str, tuple[int, str]]
    failed: int
    seconds: float


class Store:
    """A study on disk.

    Args:
        folder: The folder of the study, which need not exist yet.
        about: The description of the study; a store on disk must have the same.
        count: Number of samples.
        chunk: Samples of a chunk.

    Raises:
        ValueError: If the folder holds another study, or something else.
        BlockingIOError: If another process writes to it.
    """

    def __init__(self, folder: Path, about: About, count: int, chunk: int):
        self.folder, self.count, self.chunk = folder, count, chunk
        self.about = {"file": MARK, "version": VERSION, **about, "count": count, "chunk": chunk}
        self.data, self.done = folder / "data.zarr", folder / "done"

    @property
    def chunks(self) -> int:
        return -(-self.count // self.chunk)

    def span(self, number: int) -> slice:
        """The samples of a chunk."""
        return slice(number * self.chunk, min((number + 1) * self.chunk, self.count))

    def length(self, number: int) -> int:
        """The number of samples of a chunk."""
        return self.span(number).stop - self.span(number).start

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the study for this process; raises BlockingIOError if another one has it, ValueError if it is foreign.

        A study that is not begun in the end leaves nothing behind.
        """
        with writing(self.folder):
            made = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
        begun = any((self.folder / name).exists() for name in (".lock", "sweep.json"))
        if not begun and (self.data.exists() or self.done.exists()):
            raise ValueError(f"{self.folder} holds something else. Pass another folder.")
        with writing(self.folder):
            file = open(self.folder / ".lock", "a")  # noqa: SIM115
        with file:
            lock(file)
            try:
                yield
            finally:
                if not (self.folder / "sweep.json").exists():
                    self._remove(made)

    def _remove(self, folder: bool) -> None:
        """Removes the study, and its folder too if `folder`."""
        self.clear()
        with contextlib.suppress(OSError):  # Windows keeps a file that is open
            (self.folder / ".lock").unlink()
            if folder:
                self.folder.rmdir()

    def check(self) -> bool:
        """Whether the study is on disk; raises ValueError if another study, or a damaged one, is."""
        if not (self.folder / "sweep.json").exists():
            return False
        there, files = _read_about(self.folder)
        if there["version"] == WITHOUT_CHECKSUMS:
            raise ValueError(
                f"{self.folder} was made by an earlier version of ukjax, which did not keep what a study computes, so "
                "that nothing can tell whether it is this one. Its results can still be read: xarray.open_zarr, "
                "ukjax.study.sweep_export, ukjax sweep --plot. Pass another folder to make them anew."
            )
        for key in {**self.about, **there}:
            if key not in TOLD and there.get(key) != self.about.get(key):
                raise ValueError(
                    f"{self.folder} holds another study: {self._difference(key, there)}. Pass another folder, or "
                    "remove this one."
                )
        self._check_files(files)
        return True

    def _difference(self, key: str, there: About) -> str:
        """Describes the difference between the study on disk and this one, where `key` of them differs."""
        if key == "scenario":
            told = [k for k in TOLD[1:] if there.get(k) != self.about.get(k)]
            if not told:
                return (
                    "what its factory makes was changed since: a number, a function or an array that it uses, in its "
                    "own file or in another one"
                )
            key = told[0]
        old, new = there.get(key), self.about.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
            if key == "figures":
                return f"its figures differ in {', '.join(map(repr, names))}"
            old, new = ({k: x[k] for k in names if k in x} for x in (old, new))
        return f"its {key} is {old!r}, not {new!r}"

    def _check_files(self, files: Mapping[str, tuple[int, str]]) -> None:
        """Raises ValueError unless the files that the chunks share are as they were when the study was begun."""
        damaged = [path for path, want in files.items() if not self._is_whole(path, want, True)]
        if damaged:
            raise ValueError(
                f"{self.data / damaged[0]} is missing, or not as it was written. Remove {self.folder} and begin again."
            )

    def clear(self) -> None:
        """Removes results that do not count, because sweep.json was not there yet."""
        for path in (self.data, self.done):
            shutil.rmtree(path, ignore_errors=True)

    def create(self, template: "xr.Dataset", more: Mapping[str, str]) -> None:
        """Creates the store of results: variables like those of a chunk. Nothing counts before sweep.json is there."""
        # Format 2 has text and consolidated metadata in its specification.
        import zarr

        group = zarr.open_group(self.data, mode="w", zarr_format=2, attributes={**more, **_plain(template.attrs)})
        names = [str(name) for name in template.coords if name not in template.dims]
        for name, variable in template.variables.items():
            self._array(group, str(name), variable, names)
        zarr.consolidate_metadata(group.store)
        files = {}
        for path in sorted(self.data.rglob("*")):
            to_disk(path)
            if path.is_file():
                files[str(path.relative_to(self.data))] = checksum(path)
        write(self.folder / "sweep.json", json.dumps(self.about | {"files": files}, indent=1))

    def _array(self, group: "zarr.Group", name: str, variable: "xr.Variable", coordinates: list[str]) -> None:
        dims, shape = tuple(map(str, variable.dims)), list(variable.shape)
        chunks, whole = list(shape), "sample" in dims
        if whole:
            shape[0], chunks[0] = self.count, self.chunk
        values = variable.values
        if values.dtype.kind in "UOT":
            values = values.astype(f"U{max((len(str(x)) for x in values.ravel()), default=1)}")
        attributes = _plain(variable.attrs)
        if name not in coordinates and name not in dims:
            attributes["coordinates"] = " ".join(coordinates)
        attributes["_ARRAY_DIMENSIONS"] = list(dims)
        # Missing numbers are NaN to xarray, integers included.
        fill = {"fill_value": {"f": np.nan, "i": -1}[values.dtype.kind]} if values.dtype.kind in "fi" else {}
        array = group.create_array(
            name, shape=tuple(shape), chunks=tuple(max(1, c) for c in chunks), dtype=values.dtype,
            attributes=attributes, config={"write_empty_chunks": True}, **fill,
        )  # fmt: skip
        if not whole:
            array[...] = values

    def write(self, number: int, data: "xr.Dataset", failed: int, seconds: float) -> None:
        """Writes a chunk, and then the record that it is done; raises OSError if there is no room."""
        import zarr

        group = zarr.open_group(self.data, mode="r+", use_consolidated=False)
        files: dict[str, tuple[int, str]] = {}
        try:
            for name, variable in data.variables.items():
                if "sample" not in variable.dims:
                    continue
                array = group[str(name)]
                assert isinstance(array, zarr.Array)
                array.with_config({"write_empty_chunks": True})[self.span(number)] = variable.values
                path = self._file(str(name), number, variable.ndim)
                to_disk(path)
                files[str(path.relative_to(self.data))] = checksum(path)
            write(self._record(number), json.dumps(Record(files, failed, seconds)._asdict()))
        except OSError:
            self._record(number).unlink(missing_ok=True)
            for path in files:
                (self.data / path).unlink(missing_ok=True)
            raise

    def finished(self, thoroughly: bool = True) -> dict[int, Record]:
        """The records of chunks whose files are as they were written; only sizes are checked, unless `thoroughly`."""
        found = {}
        for number in range(self.chunks):
            record = _read_record(self._record(number))
            if record is not None and all(self._is_whole(k, v, thoroughly) for k, v in record.files.items()):
                found[number] = record
        return found

    def damaged(self) -> list[int]:
        """The numbers of finished chunks that are no longer as they were written."""
        whole = self.finished()
        return [i for i in range(self.chunks) if i not in whole and self._record(i).exists()]

    def tidy(self) -> None:
        """Removes the half-written files that a killed process has left."""
        self.done.mkdir(exist_ok=True)
        for path in self.data.rglob("*.partial"):
            path.unlink(missing_ok=True)
        for path in (*self.folder.glob(".*.unfinished"), *self.done.glob(".*.unfinished")):
            path.unlink(missing_ok=True)

    def _record(self, number: int) -> Path:
        return self.done / f"{number:06d}.json"

    def _file(self, name: str, number: int, axes: int) -> Path:
        return self.data / name / ".".join([str(number), *["0"] * (axes - 1)])

    def _is_whole(self, path: str, want: tuple[int, str], thoroughly: bool) -> bool:
        file = self.data / path
        try:
            size, digest = want
            return file.stat().st_size == size and (not thoroughly or checksum(file) == (size, digest))
        except (OSError, ValueError, TypeError):
            return False


def _read_about(folder: Path) -> tuple[About, dict[str, tuple[int, str]]]:
    """The description of the study in a folder, and the files that its chunks share; raises ValueError if none."""
    path = folder / "sweep.json"
    try:
        about = json.loads(path.read_text())
        known = (
            about["file"] == MARK
            and about["version"] in (WITHOUT_CHECKSUMS, VERSION)
            and 0 < about["chunk"] <= about["count"]
        )
    except FileNotFoundError as error:
        raise ValueError(f"There is no study in {folder}.") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a file that ukjax.sweep wrote: {error}") from error
    if not known:
        raise ValueError(f"{path} is not a file that this version of ukjax.sweep wrote.")
    return about, about.pop("files", {})


def opened(folder: Path) -> Store:
    """Opens the study in a folder for reading; raises ValueError if there is none, or it is damaged."""
    about, files = _read_about(folder)
    known = {k: v for k, v in about.items() if k not in ("file", "version", "count", "chunk")}
    store = Store(folder, known, about["count"], about["chunk"])
    store._check_files(files)
    return store


def dataset(folder: Path) -> "xr.Dataset":
    """The results of a study, loaded lazily; NaN where chunks are missing."""
    import xarray as xr

    return xr.open_zarr(folder / "data.zarr", consolidated=True, chunks=None)


def _read_record(path: Path) -> Record | None:
    try:
        record = Record(**json.loads(path.read_text()))
        return record._replace(files={k: (int(size), str(digest)) for k, (size, digest) in record.files.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _plain(attributes: Mapping[Hashable, object]) -> dict[str, Any]:
    """Attributes as plain values, for JSON."""
    return {str(k): x.tolist() if isinstance(x, np.ndarray | np.generic) else x for k, x in attributes.items()}


def sweep_export(
    study: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    holdout: float = 0.0,
    seed: int = 0,
    dtype: DTypeLike | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Writes the trajectories of a study that succeeded as NumPy archives, for a training loop to read.

    Each chunk of the study has one archive, `train-000000.npz` and so on, all with arrays of the same names, whose
    first axis is the trajectory: the fields that were kept ("q" (N, T, n)), the varied parameters and the figures (N,).
    `index.json` has "arrays": {name: {"dims", "shape" of one, "long_name", "units"}}, "labels": {"time": [s],
    "coordinate": names}, "shards": {"train": file names, "holdout": ...}, "counts" of trajectories likewise, how many
    "failed" and were left out, and the "study".

    Args:
        study: Folder of the study, which has to be complete.
        out: Folder to write to, new or empty.
        holdout: Share of the trajectories, drawn at random, that is written to archives of its own, as "holdout".
        seed: Seed of that draw.
        dtype: Dtype of the numbers; that of the study if None.
        progress: Show a bar if it takes longer than two seconds.

    Returns:
        The content of `index.json`.

    Raises:
        ValueError: If there is no complete study, `out` is not empty, or `holdout` or `dtype` is out of range.
        OSError: If `out` cannot be written to, or the disk is full; then nothing is left in `out`.
    """
    share = float(_check.scalar(holdout, "holdout"))
    if not 0 <= share < 1:
        raise ValueError(f"holdout must be a share from 0 to less than 1, but is {holdout}.")
    seed = _check.seed(seed)
    if dtype is not None and not _is_floating(dtype):
        raise ValueError(f"dtype must be a floating type such as 'float32', but is {dtype!r}.")
    store, folder = opened(_check.path(study, "study")), _check.path(out, "out")
    done = store.finished()
    if len(done) < store.chunks:
        raise ValueError(f"{study} has {len(done)} of {store.chunks} chunks. Complete it by the call that began it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out must be a new or an empty folder, but {folder} is not.")
    data = dataset(store.folder)
    apart = np.random.default_rng(seed).random(store.count) < share
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
        try:
            shards, counts = _write(store, data, apart, dtype, aside, progress)
            index = _index(store, data, shards, counts)
            (aside / INDEX).write_text(json.dumps(index, indent=1))
            aside.chmod(0o755)
            if folder.exists():
                folder.rmdir()
            aside.replace(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return index


def _write(
    store: Store, data: "xr.Dataset", apart: np.ndarray, dtype: DTypeLike | None, folder: Path, progress: bool
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Writes the archives; returns their names, and the numbers of trajectories in them."""
    shards: dict[str, list[str]] = {TRAIN: [], HOLDOUT: []}
    counts = {TRAIN: 0, HOLDOUT: 0}
    for number in tqdm(range(store.chunks), desc="export", unit="chunk", disable=not progress, delay=2):
        span = store.span(number)
        part = data.isel(sample=span).load()
        arrays = {str(k): _as(x.values, dtype) for k, x in part.variables.items() if x.dims[:1] == ("sample",)}
        okay = part.result.values == 0
        for name, which in ((TRAIN, okay & ~apart[span]), (HOLDOUT, okay & apart[span])):
            if np.any(which):
                file = f"{name}-{number:06d}.npz"
                np.savez(folder / file, allow_pickle=False, **{k: x[which] for k, x in arrays.items() if k != "result"})
                shards[name].append(file)
                counts[name] += int(np.sum(which))
    return shards, counts


def _is_floating(dtype: DTypeLike) -> bool:
    try:
        return np.dtype(dtype).kind == "f"
    except TypeError:
        return False


def _as(values: np.ndarray, dtype: DTypeLike | None) -> np.ndarray:
    return values.astype(dtype) if dtype is not None and values.dtype.kind == "f" else values


def _index(store: Store, data: "xr.Dataset", shards: dict[str, list[str]], counts: dict[str, int]) -> dict[str, Any]:
    arrays: dict[str, dict[str, object]] = {}
    for name, x in data.variables.items():
        if x.dims[:1] == ("sample",) and name != "result":
            text = {k: v for k, v in x.attrs.items() if k in ("long_name", "units")}
            arrays[str(name)] = {"dims": list(x.dims), "shape": list(x.shape[1:]), **text}
    labels = {str(k): x.values.tolist() for k, x in data.variables.items() if x.dims and x.dims[0] != "sample"}
    failed = store.count - sum(counts.values())
    return {
        "study": store.about, "arrays": arrays, "labels": labels, "shards": shards, "counts": counts, "failed": failed
    }  # fmt: skip
