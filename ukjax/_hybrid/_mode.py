"""Modes of a motion, the events that lead from one to another, and the settings that all modes share."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._constraint import AbstractConstraint
from .._integrate import Kinked
from .._mechanism import Mechanism
from .._result import is_traced
from .._servo import AbstractController, AbstractServo, Feedback, as_static_controller
from .._simulation import Settings
from .._types import Numbers


Direction = Literal["falling", "rising", "both"]

# (q, v, t), or (q, v, t, multipliers) -> a number, or a boolean of a condition.
OfState = Callable[..., ArrayLike]
# (q, v, t) -> q and v after an impact.
Velocities = Callable[[Array, Array, Array], tuple[Numbers, Numbers]]
Following = str | Mapping[str | None, OfState | None] | None


class Impact(eqx.Module):
    r"""Newton's law of impact for the rows of a constraint: their velocities after it are -e times those before.

    Rows that the next mode holds, because the contact is a constraint there, have no velocity afterwards.

    Args:
        constraint: `Holonomic` or `Nonholonomic`, whose rows are hit: a gap that closes, a rope that gets taut.
        restitution: e, from 0 (no rebound) to 1 (full rebound); a scalar or one entry per row.

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
        function: `function(q, v, t)`, a continuous scalar; with `multipliers`, `function(q, v, t, multipliers)`, which
            also gets the multipliers of each constraint of the mode, by name: {"rope": (1,)}. The multiplier of a
            `Holonomic` phi is the force that pulls in the direction in which phi grows.
        then: The mode that follows; None for the end of the motion. If that depends on the state at the event, before
            the impact, a mapping: name of a mode, or None, -> condition, in the order in which they are tried. A
            condition takes the arguments of `function` and returns a boolean; that of the last is None, "otherwise":
            {"slides": lambda q, v, t: jnp.abs(v[0]) > 0.1, "sticks": None}.
        direction: "falling": the function was positive before; "rising"; or "both".
        impact: Change of the velocities: an `Impact`; a function `impact(q, v, t)` -> (q, v); or None. In any case the
            velocities are then brought to the constraints of the mode that follows. The impulse for this is the
            smallest in the metric of the mass matrix, like that of an ideal constraint.
        multipliers: Whether the function, and the conditions of `then`, take multipliers.
        rest: The mode that follows where the impact no longer leads away from the event: bounces that follow each other
            within 1e-8 of the whole time, or a contact that begins at rest and is pressed on. This is a separate event,
            "NAME to rest". Without `rest` such a motion ends with an error.

    Raises:
        TypeError: If a function is not callable, or takes other arguments; if `multipliers` is no boolean.
        ValueError: If `direction`, `then` or `rest` is something else.

    A mode may begin with a function at zero, up to rounding. An event that *turns back* (its impact, or the constraints
    of the mode that follows, stop or reverse the function) happens at once if the function would cross zero. In this
    way touching bodies pass on an impulse. Any other event is a passage: the function must first leave zero, and then
    cross it again. A section, a clock or a strike therefore does not repeat at the same instant. A function that stays
    zero causes no event.
    """

    function: OfState
    impact: Impact | Velocities | None
    conditions: tuple[OfState, ...]
    targets: tuple[str | None, ...] = eqx.field(static=True)
    direction: Direction = eqx.field(static=True)
    multipliers: bool = eqx.field(static=True)
    rest: str | None = eqx.field(static=True)

    def __init__(
        self,
        function: OfState,
        then: Following = None,
        *,
        direction: Direction = "falling",
        impact: Impact | Velocities | None = None,
        multipliers: bool = False,
        rest: str | None = None,
    ):
        if not isinstance(multipliers, bool):
            raise TypeError(
                f"multipliers must be True, if function takes them, or False, but is {multipliers!r}. "
                "Of which constraint they are is for the function: multipliers['rope']."
            )
        arguments = "(q, v, t, multipliers)" if multipliers else "(q, v, t)"
        self.function = _check.function(function, "function", f"function{arguments} -> ()")
        self.targets, self.conditions = _targets(then, arguments)
        if rest is not None and not isinstance(rest, str):
            raise ValueError(f"rest must be the name of a mode, or None, but is {rest!r}.")
        if direction not in get_args(Direction):
            raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}, but is {direction!r}.")
        if impact is not None and not isinstance(impact, Impact):
            impact = _check.function(impact, "impact", "impact(q, v, t) -> (q, v), or ukjax.Impact(constraint)")
        self.impact, self.direction, self.multipliers, self.rest = impact, direction, multipliers, rest

    @property
    def then(self) -> str | tuple[str | None, ...] | None:
        """The mode that follows, or those that may follow."""
        return self.targets[0] if len(self.targets) == 1 else self.targets

    def chosen(self, q: Array, v: Array, t: Array, multipliers: dict[str, Array] | None) -> Array:
        """Returns the number of the target that follows: the first whose condition holds, or the last."""
        more = (multipliers,) if self.multipliers else ()
        holds = [condition(q, v, t, *more) for condition in self.conditions]
        for target, value in zip(self.targets, holds, strict=False):
            if not _is_boolean(value) or getattr(value, "shape", ()):
                known = isinstance(value, jax.Array | np.ndarray | np.generic)
                what = f"shape {value.shape} of {value.dtype}" if known else repr(value)
                raise ValueError(
                    f"the condition of {target!r} in then must return one boolean, but returned {what}. "
                    "Compare: jnp.abs(v[0]) > 0.1."
                )
        return jnp.argmax(jnp.stack([*holds, jnp.asarray(True)]))


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool) or jnp.issubdtype(getattr(value, "dtype", float), bool)


def _targets(then: Following, arguments: str) -> tuple[tuple[str | None, ...], tuple[OfState, ...]]:
    """Returns the modes that may follow, and the conditions of all but the last; raises an error if `then` is wrong."""
    if then is None or isinstance(then, str):
        return (then,), ()
    if not isinstance(then, Mapping) or not then or not all(x is None or isinstance(x, str) for x in then):
        raise ValueError(
            f"then must be the name of a mode, None for the end, or a mapping of these to conditions, but is {then!r}."
        )
    *tried, last = then.items()
    if last[1] is not None:
        raise ValueError(
            f"the last condition of then, that of {last[0]!r}, must be None, for otherwise: one mode has to follow."
        )
    conditions = [_check.function(x, f"then[{name!r}]", f"condition{arguments} -> bool") for name, x in tried]
    return tuple(then), tuple(conditions)


class Mode(eqx.Module):
    """A set of constraints, and the events that end it.

    Args:
        mechanism: System and constraints.
        events: Name -> `Event`. Events that are met at the same time happen one after the other, in this order, as far
            as the mode that follows has them.
        servo: `Servo`, or a `Feedback` without memory, that acts in this mode; None for none.

    Raises:
        TypeError: If `mechanism` or an event is something else.
        ValueError: If a servo has a memory or takes samples.
    """

    mechanism: Mechanism
    controller: AbstractController
    _each: tuple[Event, ...]
    _names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        mechanism: Mechanism,
        events: Mapping[str, Event] | None = None,
        servo: AbstractServo | Feedback | None = None,
    ):
        _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
        given = _check.mapping(events, "events", '{"lands": ukjax.Event(gap)}')
        for name, event in given.items():
            if not isinstance(name, str):
                raise TypeError(f"events must have names that are text, but has {name!r}.")
            _check.instance(event, Event, f"events[{name!r}]", 'ukjax.Event(gap, then="contact")')
        self.mechanism, self._each, self._names = mechanism, tuple(given.values()), tuple(given)
        self.controller = as_static_controller(servo)

    @property
    def events(self) -> dict[str, Event]:
        """The events by name, in order."""
        return dict(zip(self._names, self._each, strict=True))

    @property
    def resting(self) -> tuple[int, ...]:
        """The numbers of the events that have a `rest` mode."""
        return tuple(i for i, event in enumerate(self._each) if event.rest is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outcomes of a mode: its events, then those of coming to rest."""
        return *self._names, *(f"{self._names[i]} to rest" for i in self.resting)

    def directions(self) -> np.ndarray:
        """Returns the direction of each event: -1, 1, or 0 for both."""
        sign = {"falling": -1, "rising": 1, "both": 0}
        return np.array([sign[event.direction] for event in self._each], int)

    def values(self, q: Array, v: Array, t: Array, multipliers: dict[str, Array] | None) -> Array:
        """Returns the functions of all events, (k,)."""
        found = [self.value(i, q, v, t, multipliers) for i in range(len(self._each))]
        return jnp.stack(found) if found else jnp.zeros(0, q.dtype)

    def value(self, i: int, q: Array, v: Array, t: Array, multipliers: dict[str, Array] | None = None) -> Array:
        """Returns the function of an event, ()."""
        name, event = self._names[i], self._each[i]
        try:
            value = event.function(q, v, t, *((multipliers,) if event.multipliers else ()))
        except KeyError as error:
            known = ", ".join(map(repr, multipliers or {})) or "none"
            raise ValueError(
                f"function of event {name!r} asks for {error}, but the constraints are {known}."
            ) from error
        what = f"function of event {name!r}"
        if _is_boolean(value):
            raise ValueError(
                f"{what} must return a number that crosses zero, but returned a boolean. Return q[1] - 0.5, "
                "not q[1] < 0.5."
            )
        return _check.output(value, (), q.dtype, what, "Return one number: a gap, a force, a time.")

    @property
    def needs_multipliers(self) -> bool:
        return any(event.multipliers for event in self.events.values())


class Modes(eqx.Module):
    """The modes of a motion, in order."""

    each: tuple[Mode, ...]
    names: tuple[str, ...] = eqx.field(static=True)  # a mapping would come out of `jit` in another order

    @classmethod
    def of(cls, given: Mapping[str, Mode]) -> "Modes":
        """Returns the argument `modes` as an object; raises TypeError or ValueError if it is invalid."""
        if not isinstance(given, Mapping) or not given:
            raise TypeError(
                'modes must be a mapping, name -> ukjax.Mode, with at least one: {"flight": ukjax.Mode(...)}.'
            )
        for name, mode in given.items():
            if not isinstance(name, str):
                raise TypeError(f"modes must have names that are text, but has {name!r}.")
            _check.instance(mode, Mode, f"modes[{name!r}]", "ukjax.Mode(mechanism, events)")
            for called, event in mode.events.items():
                for target in (*event.targets, event.rest):
                    if target is not None and target not in given:
                        raise ValueError(
                            f"event {called!r} of mode {name!r} is followed by {target!r}, but modes are "
                            f"{', '.join(map(repr, given))}."
                        )
        return cls(tuple(given.values()), tuple(given))

    @property
    def controllers(self) -> tuple[AbstractController, ...]:
        """The controller of each mode."""
        return tuple(mode.controller for mode in self.each)

    def check(self, q: Array, v: Array) -> None:
        """Raises ValueError, with the mode's name, unless every mode takes coordinates and speeds of these shapes."""
        for name, mode in zip(self.names, self.each, strict=True):
            try:
                jax.eval_shape(lambda q, t: mode.mechanism.mass(q, t, v.shape[0]), q, jnp.zeros((), q.dtype))  # noqa: B023
            except ValueError as error:
                raise ValueError(f"modes[{name!r}] does not take q0 of shape {q.shape}: {error}") from error

    def number(self, name: str | None) -> int:
        """Returns the number of the mode of this name, or 0 for None; raises ValueError if there is no such mode."""
        if name is None:
            return 0
        if name not in self.names:
            raise ValueError(f"start must be one of {', '.join(map(repr, self.names))}, but is {name!r}.")
        return self.names.index(name)


# Part of the whole time that counts as no time between an event and the next.
AT_ONCE = 1e-8


class Choices(NamedTuple):
    """The saved times and the settings, common to all modes."""

    ts: Array
    settings: Settings

    @property
    def whole(self) -> Array:
        """The whole time, without a derivative."""
        return stop_gradient(self.ts[-1] - self.ts[0])

    @property
    def accuracy(self) -> Array:
        """The accuracy of states, relative to the terms that they are made of."""
        controller = self.settings.method.controller
        controller = controller.controller if isinstance(controller, Kinked) else controller
        rtol = getattr(controller, "rtol", 1e-8)
        return stop_gradient(jnp.clip(10 * jnp.asarray(rtol, self.ts.dtype), 1e-10, 1e-3))


class Came(NamedTuple):
    """The event by which a mode began.

    Attributes:
        mode: The mode before; -1 at the start.
        event: The event that ended it.
        pending: Whether each event of that mode was met at the same time, and has not happened yet (K,).
    """

    mode: Array
    event: Array
    pending: Array
