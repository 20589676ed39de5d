"""The parts of the simulations of a study, for many samples side by side.

For a factory that cannot be traced as a whole the scenarios are made at once by `jax.vmap`, if that works, or one by
one; leaves that depend on a sample get a leading axis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._result import is_traced
from .._scenario import Scenario


class Differ(Exception):
    """The scenarios of some samples differ in more than numbers."""


def parts_of(one: Scenario) -> Any:
    """Mechanism, servo and start of a scenario, and its formulation and projection, which no sample may change."""
    return one.mechanism, one.servo, one.q0, one.v0, (one.formulation, one.projection)


def at_once(make: Callable[[Any], Any], samples: Mapping[str, Any]) -> tuple[Any, Any]:
    """Makes the parts of all samples at once, and the axes of their leaves: 0 for those that depend on a sample."""
    seen: list[tuple[Any, list[Any]]] = []

    def varying(values):
        leaves, structure = jax.tree_util.tree_flatten(make(values))
        seen.append((structure, [None if is_traced(x) else x for x in leaves]))
        return [x for x in leaves if is_traced(x)]

    stacked = iter(jax.vmap(varying)(samples))
    structure, fixed = seen[-1]
    parts = jax.tree_util.tree_unflatten(structure, [next(stacked) if x is None else x for x in fixed])
    return parts, jax.tree_util.tree_unflatten(structure, [0 if x is None else None for x in fixed])


def one_by_one(parts: Sequence[Any], rows: Sequence[Mapping[str, float]], ends: int) -> tuple[Any, Any]:
    """Puts the parts of `rows` side by side where they differ, for a factory that needs plain numbers.

    The first rows are the ends of the study, which count in the comparison only, so that all chunks have the same
    program. Where all samples are the same no comparison can tell, and every leaf is taken to differ.
    """
    structures = {jax.tree_util.tree_structure(part) for part in parts}
    shapes = {tuple(np.shape(x) for x in jax.tree_util.tree_leaves(part)) for part in parts}
    if len(structures) > 1 or len(shapes) > 1:
        raise Differ
    stacked = jax.tree_util.tree_map(lambda *x: np.stack([np.asarray(y) for y in x]), *parts)
    alike = all(row == rows[0] for row in rows)
    differs = lambda x: alike or bool(np.any(x != x[:1]))
    one = jax.tree_util.tree_map(lambda x: jnp.asarray(x[ends:] if differs(x) else x[0]), stacked)
    return one, jax.tree_util.tree_map(lambda x: 0 if differs(x) else None, stacked)
