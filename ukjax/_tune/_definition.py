"""Definition of a tuning: everything on which its steps depend, to recognise checkpoints of other tunings."""

from typing import Any

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree

from .._batch import on_one_device
from .._identity import checksum_of, versions
from ._box import Box
from ._loop import Stopping
from ._objective import Objective, Samples


def definition_of(
    objective: Objective, tuned: PyTree, optimizer: Any, box: Box | None, samples: Samples, stopping: Stopping
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


def _of_optimizer(optimizer: Any, tuned: PyTree) -> str:
    if not isinstance(optimizer, optax.GradientTransformation):
        return checksum_of(optimizer)
    any_loss = lambda tuned: optax.tree.norm(tuned, squared=True)

    def step(tuned: PyTree, state: Any) -> Any:
        value, gradient = jax.value_and_grad(any_loss)(tuned)
        extra = {"value": value, "grad": gradient, "value_fn": any_loss}
        return optax.with_extra_args_support(optimizer).update(gradient, state, tuned, **extra)

    start = optimizer.init(tuned)
    return checksum_of(eqx.filter_make_jaxpr(step)(tuned, start)[0], _of_arrays(eqx.filter(start, eqx.is_array)))
