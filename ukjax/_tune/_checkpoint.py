"""The state of a tuning on disk: a line of JSON with its definition, then the arrays in equinox's format.

The definition is everything on which the steps of a tuning depend. It tells checkpoints of other tunings apart.
"""

import json
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import ArrayLike, PyTree

from .._batch import on_one_device
from .._identity import PACKAGES, checksum_of, versions
from ._descent import Optimizer
from ._loop import Record, Stopping
from ._objective import Box, Objective, Samples


MARK = "a checkpoint of ukjax.tune"
VERSION = 3
WITHOUT_DEFINITION = (1, 2)  # which did not keep the definition
# Entries of a definition that error messages show in full.
SHOWN = ("batch_size", "seed", "rtol", "atol", "patience", *PACKAGES)


def save(path: Path, record: Record, definition: dict[str, str]) -> None:
    """Writes the state to a temporary file and moves it into place, so that the file is never partial."""
    spent = record.spent.tolist()
    header = {"file": MARK, "version": VERSION, "done": record.done, "seen": record.seen, "spent": spent}
    aside = path.with_name(f".{path.name}.unfinished")
    with open(aside, "wb") as file:
        file.write(json.dumps({**header, "definition": definition}).encode() + b"\n")
        eqx.tree_serialise_leaves(file, (_state(record), [x[: record.seen] for x in record.over_steps()]))
    aside.replace(path)


def resume(path: Path, record: Record, definition: dict[str, str]) -> None:
    """Fills `record` from the file at `path`; leaves it unchanged if there is no such file.

    Raises:
        ValueError: If the folder does not exist, or the file was not written by `tune`, belongs to another tuning, or
            to one that has taken more steps already.
    """
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint lies in a folder that does not exist: {path.parent}. Make it first.")
    if path.is_dir():
        raise ValueError(f"checkpoint must be a file, but {str(path)!r} is a folder.")
    if not path.exists():
        return
    with open(path, "rb") as file:
        header = _header(path, file)
        differs = [_difference(k, header["definition"].get(k), x) for k, x in definition.items()]
        if any(differs):
            raise ValueError(
                f"checkpoint {path} belongs to another tuning, which differs in {', '.join(filter(None, differs))}. "
                "Pass another file, or remove this one."
            )
        state = _state(record)
        done, seen = int(header["done"]), int(header["seen"])
        if done >= len(record.losses):
            raise ValueError(f"steps must be at least {done}, which checkpoint {path} has taken already.")
        like = state, [x[:seen] for x in record.over_steps()]
        try:
            state, rows = eqx.tree_deserialise_leaves(file, like)
        except (RuntimeError, ValueError, EOFError, OSError) as error:
            raise ValueError(f"checkpoint {path} is damaged: {error}. Remove it.") from error
    record.tuned, record.state = eqx.combine(state, (record.tuned, record.state))
    for store, values in zip(record.over_steps(), rows, strict=True):
        store[:seen] = values
    record.spent, record.done, record.seen = np.array(header["spent"]), done, seen


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    try:
        header = json.loads(file.readline())
        known = header["file"] == MARK
        whole = header["version"] != VERSION or isinstance(header["definition"], dict)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"checkpoint {path} is not a file that ukjax.tune wrote: {error}. Pass another file, or remove it."
        ) from error
    if known and header["version"] in WITHOUT_DEFINITION:
        raise ValueError(
            f"checkpoint {path} was written by an earlier version of ukjax, which did not keep what is tuned, so that "
            "nothing can tell whether it belongs to this tuning. Pass another file, or remove it."
        )
    if not known or not whole or header["version"] != VERSION:
        raise ValueError(
            f"checkpoint {path} is not a file that this version of ukjax.tune wrote. Pass another file, or remove it."
        )
    return header


def _difference(name: str, there: str | None, here: str) -> str:
    """Returns the name of an entry in which the file's tuning differs from this one, or an empty string."""
    shown = f" ({there}, not {here})" if name in SHOWN else ""
    return "" if there == here else f"{name}{shown}"


def _state(record: Record) -> PyTree:
    """Returns the arrays to be kept; functions and settings are those of the optimiser that is passed again."""
    return eqx.filter((record.tuned, record.state), eqx.is_array)


def definition_of(
    objective: Objective, tuned: PyTree, optimizer: Optimizer, box: Box | None, samples: Samples, stopping: Stopping
) -> dict[str, str]:
    """Returns texts by name: numbers in full, and checksums of the rest.

    The checksum of the loss covers its traced function, with captured constants and own derivative rules; that of an
    optax optimiser covers its traced step. The number of steps is not included.
    """
    first = () if samples.all is None else (jax.tree_util.tree_map(lambda x: x[0], samples.all),)
    with on_one_device():
        loss = jax.make_jaxpr(objective.loss)(tuned, *first)
    return {
        **versions(),
        "loss": checksum_of(loss, with_rules=True),
        "params": _of_arrays(tuned),
        "optimizer": _of_optimizer(optimizer, tuned),
        "bounds": _of_arrays(box),
        "samples": _of_arrays(samples.all),
        "batch_size": str(samples.size),
        "seed": str(samples.seed),
        "rtol": str(stopping.rtol),
        "atol": str(stopping.atol),
        "patience": str(stopping.patience),
    }


def _of_arrays(tree: PyTree) -> str:
    return checksum_of([(jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)])


def _of_optimizer(optimizer: Optimizer, tuned: PyTree) -> str:
    if not isinstance(optimizer, optax.GradientTransformation):
        return checksum_of(optimizer)

    def any_loss(tuned: PyTree) -> ArrayLike:
        return optax.tree.norm(tuned, squared=True)

    def step(tuned: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        value, gradient = jax.value_and_grad(any_loss)(tuned)
        extra = {"value": value, "grad": gradient, "value_fn": any_loss}
        return optax.with_extra_args_support(optimizer).update(gradient, state, tuned, **extra)

    start = optimizer.init(tuned)
    return checksum_of(eqx.filter_make_jaxpr(step)(tuned, start)[0], _of_arrays(eqx.filter(start, eqx.is_array)))
