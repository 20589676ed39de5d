"""Packs many small arrays into a few.

An argument or a result of a program costs as much for one number as for a thousand.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._result import is_traced
from ._hoist import TreeStructure


# The dtype of a leaf, where it lies in the array of that dtype, and its shape; None for a leaf that is not packed.
_Place = tuple[str, int, int, tuple[int, ...]] | None


class Packed(eqx.Module):
    """A pytree whose small arrays of the same dtype lie side by side, each row by row; see `packed`."""

    joined: dict[str, Array | np.ndarray]
    others: list[PyTree]
    places: tuple[_Place, ...] = eqx.field(static=True)
    structure: TreeStructure = eqx.field(static=True)

    @property
    def tree(self) -> PyTree:
        others = iter(self.others)
        leaves = [next(others) if place is None else self._part(*place) for place in self.places]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def _part(self, dtype: str, begin: int, end: int, shape: tuple[int, ...]) -> Array | np.ndarray:
        joined = self.joined[dtype]
        return joined[..., begin:end].reshape((*joined.shape[:-1], *shape))


def packed(tree: PyTree, axes: int = 0, most: int = 1024) -> Packed:
    """Packs a pytree into few arrays with `axes` leading axes in common; its property `tree` is the pytree again.

    Arrays of more than `most` numbers, apart from these axes, stay separate, and so do those outside of the memory of
    the host. If nothing is traced NumPy does it.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    kinds = [_kind(x, axes, most) for x in leaves]
    alike: dict[str, list[Array]] = {}
    places: list[_Place] = []
    used: dict[str, int] = {}
    for x, kind in zip(leaves, kinds, strict=True):
        if kind is None:
            places.append(None)
            continue
        begin, shape = used.get(kind, 0), x.shape[axes:]
        used[kind] = begin + math.prod(shape)
        places.append((kind, begin, used[kind], shape))
        alike.setdefault(kind, []).append(x)
    xp = jnp if is_traced(leaves) else np
    flat = {kind: [xp.asarray(x).reshape(*x.shape[:axes], -1) for x in some] for kind, some in alike.items()}
    joined = {kind: xp.concatenate(some, axis=-1) for kind, some in flat.items()}
    others = [x for x, kind in zip(leaves, kinds, strict=True) if kind is None]
    return Packed(joined, others, tuple(places), structure)


def _kind(x: object, axes: int, most: int) -> str | None:
    """The name of the dtype of a leaf that is to be packed, else None."""
    # A NumPy array without leading axes is a constant of a program, which knows its values.
    if not isinstance(x, jax.Array | np.ndarray if axes else jax.Array):
        return None
    if math.prod(x.shape[axes:]) > most or getattr(x, "weak_type", False) or not _is_plain(x.dtype):
        return None
    return x.dtype.name if is_traced(x) or isinstance(x, np.ndarray) or _is_here(x) else None


def _is_plain(dtype: np.dtype) -> bool:
    """Whether a dtype is one of numbers, unlike that of random keys."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def _is_here(x: Array) -> bool:
    return x.is_fully_addressable and all(device.platform == "cpu" for device in x.devices())
