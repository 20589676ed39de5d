"""Packs many small arrays into a few.

An argument or a result of a program costs as much for one number as for a thousand.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._result import is_traced


class Packed(eqx.Module):
    """A pytree whose small arrays of the same dtype lie side by side, each row by row; see `packed`."""

    joined: dict[str, Any]
    others: list[Any]
    places: tuple[Any, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @property
    def tree(self) -> Any:
        others = iter(self.others)
        leaves = [next(others) if place is None else self._part(*place) for place in self.places]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def _part(self, dtype: str, begin: int, end: int, shape: tuple[int, ...]) -> Any:
        joined = self.joined[dtype]
        return joined[..., begin:end].reshape((*joined.shape[:-1], *shape))


def packed(tree: PyTree, axes: int = 0, most: int = 1024) -> Packed:
    """Packs a pytree into few arrays with `axes` leading axes in common; its property `tree` is the pytree again.

    Arrays of more than `most` numbers, apart from these axes, stay separate, and so do those outside of the memory of
    the host. If nothing is traced NumPy does it.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    kinds = [_kind(x, axes, most) for x in leaves]
    alike: dict[str, list[Any]] = {}
    places, used = [], {}
    for x, kind in zip(leaves, kinds, strict=True):
        if kind is None:
            places.append(None)
            continue
        begin, shape = used.get(kind, 0), x.shape[axes:]
        used[kind] = begin + math.prod(shape)
        places.append((kind, begin, used[kind], shape))
        alike.setdefault(kind, []).append(x)
    xp: Any = jnp if is_traced(leaves) else np
    flat = lambda x: xp.asarray(x).reshape(*x.shape[:axes], -1)
    joined = {kind: xp.concatenate([flat(x) for x in some], axis=-1) for kind, some in alike.items()}
    others = [x for x, kind in zip(leaves, kinds, strict=True) if kind is None]
    return Packed(joined, others, tuple(places), structure)


def _kind(x: Any, axes: int, most: int) -> str | None:
    """The name of the dtype of a leaf that is to be packed, else None."""
    # A NumPy array without leading axes is a constant of a program, which knows its values.
    if not isinstance(x, jax.Array | np.ndarray if axes else jax.Array):
        return None
    if math.prod(x.shape[axes:]) > most or getattr(x, "weak_type", False) or not _is_plain(x.dtype):
        return None
    return x.dtype.name if is_traced(x) or isinstance(x, np.ndarray) or _is_here(x) else None


def _is_plain(dtype: Any) -> bool:
    """Whether a dtype is one of numbers, unlike that of random keys."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def _is_here(x: Array) -> bool:
    return x.is_fully_addressable and all(device.platform == "cpu" for device in x.devices())
