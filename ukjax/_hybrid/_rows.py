"""Fields of the saved states of a motion through several modes.

y = (q, v); T: saved times; p: actuators.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._manifold import ConstraintSizes
from .._result import RESULTS, first_failure, worst
from .._simulation import OF_MOTION, Settings, StateLayout, motion_at, of_each, report_state, residuals
from .._trajectory import OF_EACH
from ._mode import Choices, Mode, Modes


def fields_of(modes: Modes, choices: Choices, ys: Array, which: Array, coordinates: int) -> tuple[dict[str, Any], Any]:
    """Returns the fields of states (T, n), each in one of the modes (T,), by name, and the first failure among them.

    Entries that a mode does not have, such as an actuator or a multiplier, are NaN.
    """
    known = [_of_mode(mode, choices.settings, coordinates) for mode in modes.each]
    shapes = [jax.eval_shape(one, choices.ts[0], ys[0])[0] for one in known]
    whole: dict[str, Any] = {}
    for shape in shapes:
        _widen(whole, shape)
    branches = [lambda t, y, one=one: _padded(one(t, y), whole) for one in known]

    def state(t: Array, y: Array, which: Array) -> tuple[dict[str, Any], Any]:
        reached = jnp.all(jnp.isfinite(y))
        # A row that was not reached uses the state at the start, so that no derivative is taken at NaN.
        fields, result = jax.lax.switch(jnp.maximum(which, 0), branches, t, jnp.where(reached, y, ys[0]))
        blank = lambda x: jnp.where(reached, x, jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else -1)
        okay = RESULTS.successful
        return jax.tree_util.tree_map(blank, fields), RESULTS.where(reached, result, okay)

    fields, results = jax.vmap(state)(choices.ts, ys, which)
    return fields, first_failure(results)


def _of_mode(mode: Mode, settings: Settings, coordinates: int) -> Callable:
    """Returns a function (t, y) -> fields of a state in a mode, and whether there is a motion."""

    def one(t: Array, y: Array) -> tuple[dict[str, Any], Any]:
        layout, controller = StateLayout.of(mode.mechanism, (y[:coordinates], y[coordinates:])), mode.controller
        result = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
        if settings.projection is not None:
            sizes = ConstraintSizes.of(mode.mechanism, *layout.split(y), t)
            y = settings.projection(mode.mechanism, t, y, settings.expands(y.dtype), coordinates, sizes)
            result = RESULTS.where(jnp.all(jnp.isfinite(y)), result, RESULTS.projection_off_constraints)
        fields: dict[str, Any] = dict(zip(("q", "v"), layout.split(y), strict=True))
        if any(name in OF_MOTION for name in settings.keep):
            found = report_state(ft.partial(motion_at, layout, controller, settings.formulation), t, y)
            fields, result = fields | found.fields, worst(result, found.result)
        fields |= residuals(layout, controller, t, y)
        if any(name in OF_EACH for name in settings.keep):
            fields |= of_each(layout, t, y, fields["constraint_force"])
        return {name: fields[name] for name in settings.keep if name in fields}, result

    return one


def _widen(whole: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds shapes by name to others: the names of both, and the larger size where both have one."""
    for name, shape in more.items():
        if isinstance(shape, dict):
            _widen(whole.setdefault(name, {}), shape)
        elif name not in whole or shape.shape > whole[name].shape:
            whole[name] = shape


def _padded(found: tuple[dict[str, Any], Any], whole: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns fields of one mode in the shapes of all modes, with NaN where it has none."""

    def pad(fields: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
        full = {}
        for name, shape in whole.items():
            if isinstance(shape, dict):
                full[name] = pad(fields.get(name, {}), shape)
                continue
            nothing = jnp.nan if jnp.issubdtype(shape.dtype, jnp.inexact) else -1
            x, missing = fields.get(name), jnp.full(shape.shape, nothing, shape.dtype)
            full[name] = missing if x is None else missing.at[tuple(map(slice, x.shape))].set(x)
        return full

    return pad(found[0], whole), found[1]
