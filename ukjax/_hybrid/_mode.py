"""What a person writes down: modes of a motion, and the events that lead from one to another."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .. import _check
from .._constraint import AbstractConstraint
from .._mechanism import Mechanism
from .._result import is_traced
from .._servo import AbstractServo, Feedback, as_memoryless


Direction = Literal["falling", "rising", "both"]


class Impact(eqx.Module):
    r"""Newton's law of impact for the rows of a constraint: after it their velocities are -e times those before.

    Args:
        constraint: `Holonomic` or `Nonholonomic`, whose rows are hit: a gap that closes, a rope that gets taut.
        restitution: e, from 0, nothing comes back, to 1, all does; a scalar or one entry per row.

    Raises:
        TypeError: If `constraint` is something else.
        ValueError: If `restitution` is negative or larger than one.
    """

    constraint: AbstractConstraint
    restitution: Array

    def __init__(self, constraint: AbstractConstraint, restitution: ArrayLike = 0.0):
        _check.instance(constraint, AbstractConstraint, "constraint", "ukjax.Holonomic(gap)")
        self.constraint, self.restitution = constraint, _check.floating(restitution, "restitution")
        if not is_traced(self.restitution):
            e = np.asarray(self.restitution)
            if e.ndim > 1 or not np.all((e >= 0) & (e <= 1)):
                raise ValueError(f"restitution must be from 0 to 1, a scalar or one per row, but is {restitution!r}.")


class Event(eqx.Module):
    """The end of a mode: where a function of the state crosses zero.

    Args:
        function: `function(q, v, t)`, a scalar; with `multipliers`, `function(q, v, t, multipliers)`, which also sees
            what each constraint of the mode carries, by name: {"rope": (1,)}. The multiplier of a `Holonomic` phi is
            the force that pulls in the direction in which phi grows.
        then: The mode that follows; None for the end of the motion.
        direction: "falling": it was positive before; "rising"; or "both".
        impact: What happens to the velocities: an `Impact`; a function `impact(q, v, t)` -> (q, v); or None. In any
            case the velocities are then brought to the constraints of the mode that follows, by the smallest impulse:
            least in the metric of the mass matrix, as an ideal constraint does it.
        multipliers: Whether the function takes them.

    Raises:
        TypeError: If a function is none.
        ValueError: If `direction` or `then` is something else.
    """

    function: Any
    impact: Any
    then: str | None = eqx.field(static=True)
    direction: Direction = eqx.field(static=True)
    multipliers: bool = eqx.field(static=True)

    def __init__(
        self,
        function: Callable,
        then: str | None = None,
        *,
        direction: Direction = "falling",
        impact: Impact | Callable | None = None,
        multipliers: bool = False,
    ):
        signature = "function(q, v, t, multipliers) -> ()" if multipliers else "function(q, v, t) -> ()"
        self.function = _check.function(function, "function", signature)
        if then is not None and not isinstance(then, str):
            raise ValueError(f"then must be the name of a mode, or None for the end, but is {then!r}.")
        if direction not in get_args(Direction):
            raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, but is {direction!r}.")
        if impact is not None and not isinstance(impact, Impact):
            impact = _check.function(impact, "impact", "impact(q, v, t) -> (q, v), or ukjax.Impact(constraint)")
        self.impact, self.then, self.direction, self.multipliers = impact, then, direction, bool(multipliers)


class Mode(eqx.Module):
    """One set of constraints, and the events that end it.

    Args:
        mechanism: System and constraints.
        events: Name -> `Event`. Where several are met at the same time, the first counts.
        servo: `Servo`, or a `Feedback` without memory, that acts in this mode; None for none.

    Raises:
        TypeError: If `mechanism` or an event is something else.
        ValueError: If a servo has a memory or takes samples.
    """

    mechanism: Mechanism
    acting: Any
    _each: tuple[Event, ...]
    _names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        mechanism: Mechanism,
        events: Mapping[str, Event] | None = None,
        servo: AbstractServo | Feedback | None = None,
    ):
        _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
        given = dict(events or {})
        for name, event in given.items():
            _check.instance(event, Event, f"events[{name!r}]", 'ukjax.Event(gap, then="contact")')
        self.mechanism, self._each, self._names = mechanism, tuple(given.values()), tuple(given)
        self.acting = as_memoryless(servo)

    @property
    def events(self) -> dict[str, Event]:
        """By name, in order."""
        return dict(zip(self._names, self._each, strict=True))

    def directions(self) -> np.ndarray:
        """Of each event: -1, 1, or 0 for both."""
        sign = {"falling": -1, "rising": 1, "both": 0}
        return np.array([sign[event.direction] for event in self.events.values()], int)

    def values(self, q: Array, v: Array, t: Array, multipliers: dict[str, Array] | None) -> Array:
        """The functions of all events, (k,)."""
        found = []
        for name, event in self.events.items():
            more = (multipliers,) if event.multipliers else ()
            try:
                value = event.function(q, v, t, *more)
            except KeyError as error:
                known = ", ".join(map(repr, multipliers or {})) or "none"
                raise ValueError(
                    f"function of event {name!r} asks for {error}, but the constraints are {known}."
                ) from error
            what = f"function of event {name!r}"
            found.append(_check.output(value, (), q.dtype, what, "Return one number: a gap, a force, a time."))
        return jnp.stack(found) if found else jnp.zeros(0, q.dtype)

    @property
    def needs_multipliers(self) -> bool:
        return any(event.multipliers for event in self.events.values())


class Modes(eqx.Module):
    """The modes of a motion, in order."""

    each: tuple[Mode, ...]
    names: tuple[str, ...] = eqx.field(static=True)  # a mapping would come out of `jit` in another order

    @classmethod
    def of(cls, given: Any) -> "Modes":
        """What a person gave for `modes`; TypeError or ValueError if it is none."""
        if not isinstance(given, Mapping) or not given:
            raise TypeError(
                'modes must be a mapping, name -> ukjax.Mode, with at least one: {"flight": ukjax.Mode(...)}.'
            )
        for name, mode in given.items():
            _check.instance(mode, Mode, f"modes[{name!r}]", "ukjax.Mode(mechanism, events)")
            for called, event in mode.events.items():
                if event.then is not None and event.then not in given:
                    raise ValueError(
                        f"event {called!r} of mode {name!r} is followed by {event.then!r}, but modes are "
                        f"{', '.join(map(repr, given))}."
                    )
        return cls(tuple(given.values()), tuple(given))

    def number(self, name: str | None) -> int:
        """Of the mode of this name, or of the first; ValueError if there is none."""
        if name is None:
            return 0
        if name not in self.names:
            raise ValueError(f"start must be one of {', '.join(map(repr, self.names))}, but is {name!r}.")
        return self.names.index(name)
