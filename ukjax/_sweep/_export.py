"""The export of a study as NumPy archives, for machine learning."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike
from tqdm.auto import tqdm

from .. import _check
from ._store import Store, dataset, opened, writing


if TYPE_CHECKING:
    import xarray as xr


TRAIN, HOLDOUT = "train", "holdout"
INDEX = "index.json"


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


def _is_floating(dtype: Any) -> bool:
    try:
        return np.dtype(dtype).kind == "f"
    except TypeError:
        return False


def _as(values: np.ndarray, dtype: DTypeLike | None) -> np.ndarray:
    return values.astype(dtype) if dtype is not None and values.dtype.kind == "f" else values


def _index(store: Store, data: "xr.Dataset", shards: dict, counts: dict[str, int]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, x in data.variables.items():
        if x.dims[:1] == ("sample",) and name != "result":
            text = {k: v for k, v in x.attrs.items() if k in ("long_name", "units")}
            arrays[str(name)] = {"dims": list(x.dims), "shape": list(x.shape[1:]), **text}
    labels = {str(k): x.values.tolist() for k, x in data.variables.items() if x.dims and x.dims[0] != "sample"}
    failed = store.count - sum(counts.values())
    return {
        "study": store.about, "arrays": arrays, "labels": labels, "shards": shards, "counts": counts, "failed": failed
    }  # fmt: skip
