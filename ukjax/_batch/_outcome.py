"""The outcome of one trajectory of a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .._simulation import FailureEvidence, RunDiagnostics
from .._trajectory import OPTIONAL, Trajectory


class Reduction(eqx.Module):
    """The values that `reduce` made of the trajectories of a batch.

    Attributes:
        value: The results of `reduce(trajectory)`, with a leading axis (B,).
        result: `RESULTS` of each trajectory (B,); empty message where all went well.
        stats: As of `Trajectory` (B,).
    """

    value: PyTree
    result: Any
    stats: dict[str, Any]


class Outcome(NamedTuple):
    """The result of a trajectory for the user, the errors of its start, and the data to explain a failure.

    Attributes:
        got: `Trajectory`, without its times, or `Reduction`.
        start: See `RunDiagnostics`.
        why: Start, outcome and states of `FailureEvidence`, if no reason of a failure was looked for.
    """

    got: Any
    start: tuple[Array, Array, Array]
    why: tuple[Any, Any, tuple[Array, Array]] | None

    @property
    def steps(self) -> Int[Array, " B"]:
        return self.got.stats["num_steps"]


def outcome_of(trajectory: Trajectory, notes: RunDiagnostics, reduce: Any) -> Outcome:
    """The outcome of one trajectory; `reduce` is a function of it, or None."""
    why = None
    if notes.unexplained is not None:
        why = notes.unexplained.started, notes.unexplained.outcome, notes.unexplained.states
    if reduce is None:
        got = eqx.tree_at(lambda t: t.t, trajectory, None)
    else:
        got = Reduction(_reduced(reduce, trajectory), trajectory.result, trajectory.stats)
    return Outcome(got, notes.start, why)


def _reduced(reduce: Callable, trajectory: Trajectory) -> PyTree:
    """Applies the user's `reduce` to a trajectory; raises TypeError if it does not return arrays."""
    try:
        value = reduce(trajectory)
    except (TypeError, AttributeError) as error:
        there = [name for name in OPTIONAL if getattr(trajectory, name) is not None]
        error.add_note(f"Of a trajectory there is here what `keep` names: {', '.join(there)}.")
        raise
    for leaf in jax.tree_util.tree_leaves(value):
        if not eqx.is_array_like(leaf):
            raise TypeError(f"reduce must return arrays or numbers, but returned a {type(leaf).__name__}: {leaf!r}.")
    return value


def smooth_of(outcome: Outcome) -> Outcome:
    """The leaves of an outcome that have a derivative; None elsewhere."""
    got, nothing = outcome.got, jax.tree_util.tree_map(lambda _: None, outcome)
    if isinstance(got, Reduction):
        values = eqx.tree_at(lambda g: g.value, nothing.got, eqx.filter(got.value, _is_smooth), is_leaf=_none)
    else:
        values = eqx.filter(got, _is_smooth)
        values = eqx.tree_at(lambda t: (t.result, t.stats), values, (nothing.got.result, nothing.got.stats))
    return nothing._replace(got=values)


def _is_smooth(x: Any) -> bool:
    """Whether an array, or its shape and dtype, is one of inexact numbers."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _none(x: Any) -> bool:
    return x is None


def unexplained(why: Any, layout: Any) -> FailureEvidence:
    """The data to explain the failure of a trajectory: see `explain`."""
    started, ended, states = why
    return FailureEvidence(started, ended, layout, states)
