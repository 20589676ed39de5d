"""Transitions at events: the mode that follows, and its initial state."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._impact import after_impact
from ._mode import Event, Mode, Modes


# (q, v, t, multipliers) -> q, v, number of the next mode (-1: the end), whether it can begin there
Transition = Callable[[Array, Array, Array, dict[str, Array] | None], tuple[Array, Array, Array, Array]]


def transitions(mode: Mode, modes: Modes) -> list[Transition]:
    """Returns the transitions without an event, at each event, and at each coming to rest, as in `Mode.names`."""
    stays = lambda q, v, t, carried: (q, v, jnp.asarray(-1), jnp.asarray(True))
    events = tuple(mode.events.values())
    rests = [_towards(None, mode, modes, events[i].rest) for i in mode.resting]
    return [stays, *(of_event(event, mode, modes) for event in events), *rests]


def of_event(event: Event, mode: Mode, modes: Modes) -> Transition:
    """Returns the transition at an event of a mode."""
    ways = [_towards(event.impact, mode, modes, target) for target in event.targets]
    if len(ways) == 1:
        return ways[0]

    def chosen(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        which = event.chosen(q, v, t, carried)
        return jax.lax.switch(which, [lambda q, v, t, way=way: way(q, v, t, carried) for way in ways], q, v, t)

    return chosen


def _towards(impact: object, mode: Mode, modes: Modes, target: str | None) -> Transition:
    number = -1 if target is None else modes.number(target)
    following = mode if target is None else modes.each[number]

    def apply(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        q, v, met = after_impact(impact, following.mechanism, q, v, t, ends=target is None)
        return q, v, jnp.asarray(number), met

    return apply
