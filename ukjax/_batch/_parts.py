"""The parts that the trajectories of a batch share, and those that each has of its own.

B: trajectories; a sample belongs to one trajectory: a pytree of arrays without the leading axis.
"""

from collections.abc import Callable, Hashable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .. import _check
from .._mechanism import Mechanism
from .._servo import AbstractController, AbstractServo, Feedback, ServoLike, as_controller
from .._types import Numbers


NAMES = ("mechanism", "servo", "q0", "v0")

# The parts of a batch as the user passes them: each may be a function of a sample.
MechanismOf = Mechanism | Callable[[PyTree], Mechanism]
ServoOf = ServoLike | Callable[[PyTree], ServoLike]
NumbersOf = Numbers | Callable[[PyTree], Numbers]


class BatchInputs(eqx.Module):
    """Makes mechanism, controller and first state of a trajectory from its sample.

    Attributes:
        shared: The leaves of each part that all trajectories share, or the user's function of a sample that makes it.
        made: The names of the parts that such a function makes.
        keys: The random number generators of the leaves of a sample that are keys; else None.
    """

    shared: dict[str, PyTree]
    made: frozenset[str] = eqx.field(static=True)
    keys: tuple[Hashable, ...] = eqx.field(static=True)

    def whole(self, sample: dict[str, PyTree]) -> dict[str, PyTree]:
        """Restores the random keys of a sample, which `batch_of` stores as arrays of numbers."""
        if not any(self.keys):
            return sample
        leaves, structure = jax.tree_util.tree_flatten(sample)
        each = zip(leaves, self.keys, strict=True)
        whole = [x if how is None else jax.random.wrap_key_data(x, impl=how) for x, how in each]
        return jax.tree_util.tree_unflatten(structure, whole)

    def __call__(self, sample: dict[str, PyTree]) -> tuple[Mechanism, AbstractController, tuple[Array, Array]]:
        """Returns mechanism, controller and (q0, v0) for one sample, as `batch_of` arranges it."""
        sample = self.whole(sample)
        parts = {}
        for name in NAMES:
            if name in self.made:
                parts[name] = self._made(name, sample["samples"])
            else:
                own = jax.tree_util.tree_leaves(sample[name])
                parts[name] = eqx.combine(sample[name], self.shared[name]) if own else self.shared[name]
        mechanism, servo = parts["mechanism"], parts["servo"]
        _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
        q0, v0 = (_check.floating(parts[name], name) for name in ("q0", "v0"))
        q0, v0, _ = _check.state(q0, v0, names=("q0", "v0"), kinematics=mechanism.kinematics)
        return mechanism, as_controller(servo), (q0, v0)

    def _made(self, name: str, sample: PyTree) -> PyTree:
        try:
            return self.shared[name](sample)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"{name}(sample) does not work with an entry of samples: {error}") from error


def batch_of(
    mechanism: MechanismOf, servo: ServoOf, q0: NumbersOf, v0: NumbersOf, samples: PyTree,
    axes: Mapping[str, PyTree] | None, others: bool = False,
) -> tuple[BatchInputs, dict[str, PyTree], int]:  # fmt: skip
    """Returns the `BatchInputs`, the samples (with a leading axis) and their number; raises ValueError or TypeError.

    `others`: further functions may use the samples.
    """
    given = {"mechanism": mechanism, "servo": servo, "q0": q0, "v0": v0}
    made = frozenset(name for name in NAMES if _is_function(given[name], name))
    if made and samples is None:
        name = sorted(made)[0]
        raise ValueError(f"{name} is a function of a sample, but there are none. Pass samples, with a leading axis.")
    if samples is not None and not made and not others:
        raise ValueError(
            "samples has no effect: none of mechanism, servo, q0 and v0 is a function of a sample. Pass for example "
            "mechanism=lambda sample: ..."
        )
    samples = None if samples is None else jax.tree_util.tree_map_with_path(_array, samples)
    where, own, shared = _axes(given, made, axes), {"samples": samples}, {}
    for name in NAMES:
        part = given[name]
        if name in made:
            own[name], shared[name] = None, part
            continue
        if name in ("q0", "v0"):
            part = _check.floating(part, name)
            if part.ndim not in (1, 2):
                raise ValueError(
                    f"{name} must have shape (n,), or (B, n) for one per trajectory, but has {part.shape}."
                )
            where[name] = 0 if part.ndim == 2 else None
        own[name], shared[name] = _split(part, where[name], name)
    count = _count(own)
    leaves, structure = jax.tree_util.tree_flatten(own)
    keys = tuple(jax.random.key_impl(x) if _is_key(x) else None for x in leaves)
    numbers = [jax.random.key_data(x) if _is_key(x) else x for x in leaves]
    return BatchInputs(shared, made, keys), jax.tree_util.tree_unflatten(structure, numbers), count


def _is_key(x: Array | np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _array(path: tuple[Hashable, ...], x: object) -> Array | np.ndarray:
    """Converts a leaf of the samples to an array; raises TypeError if it is not one of numbers or keys."""
    found = x if isinstance(x, jax.Array | np.ndarray) else np.asarray(x)
    if not (_is_key(found) or jnp.issubdtype(found.dtype, np.number) or found.dtype == bool):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        raise TypeError(
            f"samples{'.' * bool(name)}{name} must be an array of numbers, or of keys for random numbers, but is a "
            f"{type(x).__name__} of {found.dtype}. Leave out of samples what is none: functions may close over it."
        )
    return found if found is x else jnp.asarray(x)


def _is_function(part: object, name: str) -> bool:
    kinds = {"mechanism": Mechanism, "servo": (AbstractServo, Feedback)}
    return callable(part) and not (name in kinds and isinstance(part, kinds[name]))


def _axes(given: dict[str, PyTree], made: frozenset[str], axes: Mapping[str, PyTree] | None) -> dict[str, PyTree]:
    """The axes of the parts by name: a prefix of each, 0 for leaves with a leading axis, else None."""
    if axes is not None:
        _check.instance(axes, Mapping, "axes", "{'mechanism': 0}")
    axes = {} if axes is None else dict(axes)
    for name in axes:
        if name not in ("mechanism", "servo"):
            raise ValueError(
                f"axes must name 'mechanism' or 'servo', but has {name!r}. A batch of q0 or v0 has shape (B, n)."
            )
        if name in made:
            raise ValueError(f"axes[{name!r}] has no effect: {name} is a function of a sample. Leave one of them out.")
        if given[name] is None:
            raise ValueError(f"axes[{name!r}] has no effect: there is no {name}. Leave it out.")
    return {name: axes.get(name) for name in NAMES}


def _split(part: PyTree, axes: PyTree, name: str) -> tuple[PyTree, PyTree]:
    """Splits a part into the leaves with a leading axis (None if there are none) and the others."""
    if axes is None:
        return None, part
    try:
        flags = jax.tree_util.tree_map(
            lambda axis, tree: jax.tree_util.tree_map(lambda _: axis, tree), axes, part, is_leaf=lambda x: x is None
        )
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"axes[{name!r}] must be 0, None, or a pytree of these that {name} begins with, as for jax.vmap: {error}"
        ) from error
    bad = [axis for axis in jax.tree_util.tree_leaves(axes) if isinstance(axis, bool) or axis != 0]
    if bad:
        raise ValueError(f"axes[{name!r}] must hold 0 or None, but holds {bad[0]!r}. Move the axis to the front.")
    leading = jax.tree_util.tree_map(
        lambda x, axis: axis == 0 and eqx.is_array(x), part, flags, is_leaf=lambda x: x is None
    )
    own, shared = eqx.partition(part, leading)
    if jax.tree_util.tree_leaves(axes) and not jax.tree_util.tree_leaves(own):
        raise ValueError(f"axes[{name!r}] has no effect: what it marks of {name} holds no array. Pass arrays (B, ...).")
    return own, shared


def _count(own: dict[str, PyTree]) -> int:
    """The number of trajectories, the common leading axis; raises ValueError if axes differ or are missing or empty."""
    sizes: dict[int, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(own):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if np.ndim(leaf) == 0:
            raise ValueError(f"{name} must have a leading axis, one entry per trajectory, but is a single number.")
        sizes.setdefault(np.shape(leaf)[0], name)
    if not sizes:
        raise ValueError(
            "There is no batch: pass q0 or v0 of shape (B, n), samples with functions of them, or "
            "axes={'mechanism': ...}; for one trajectory there is ukjax.simulate."
        )
    if len(sizes) > 1:
        shown = ", ".join(f"{name} has {size}" for size, name in sizes.items())
        raise ValueError(f"All parts of a batch must have the same leading axis, but {shown}.")
    (count,) = sizes
    if count == 0:
        raise ValueError(f"The batch is empty: {sizes[0]} has no entries. Pass at least one trajectory.")
    return count
