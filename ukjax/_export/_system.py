"""A mechanism as a system of first order, with inputs and outputs, and the derivatives along and against a direction.

s: states: q, v, and the memory x of a controller; u: inputs, then what a sampled controller holds: its control and its
memory; p: parameters; y: outputs; s' and y are functions of (s, t, u, p). Names of derivatives end on _rate (along a
direction) or _weight (against one).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._coordinate import Coordinate, rate_unit
from .._expand import Node
from .._manifold import Projection
from .._mechanism import Mechanism
from .._servo import AbstractController
from ._casadi import unguarded
from ._program import Exported, Parameter, Parametrised, scalar
from ._quantities import Argument, Context, Quantity, control_of, driven, is_fine, pushed


# What a system can be: closed by its controller, open, or the controller alone.
SYSTEMS = ("acceleration", "plant", "control")


class System(NamedTuple):
    """The programs of a system, with the names of its numbers.

    Attributes:
        states, derivatives, inputs, held, outputs: A name with unit for each.
        start, given: The states, and the inputs with what is held, at the start.
        period: Time between two samples [s]; 0 without samples.
        rates: (s, t, u, p) -> s', y.
        tangent: (s, t, u, p, s_rate, t_rate, u_rate, p_rate) -> the rates of s' and y.
        adjoint: (s, t, u, p, ds_weight, y_weight) -> the weights of s, t, u and p.
        projected: (s, t, p) -> s on the constraints; None without a projection.
        sample: (s, t, u, p) -> what is held from this time on; None without samples.
    """

    states: tuple[Coordinate, ...]
    derivatives: tuple[Coordinate, ...]
    inputs: tuple[Coordinate, ...]
    held: tuple[Coordinate, ...]
    outputs: tuple[Coordinate, ...]
    start: np.ndarray
    given: np.ndarray
    period: float
    rates: Exported
    tangent: Exported
    adjoint: Exported
    projected: Exported | None
    sample: Exported | None

    @property
    def functions(self) -> list[Exported]:
        each = (self.rates, self.tangent, self.adjoint, self.projected, self.sample)
        return [x for x in each if x is not None]


def has_derivatives(system: System, t: float, parameters: np.ndarray) -> bool:
    """Whether derivatives are certain at the start, if the rates are: rows that depend on others allow fewer."""
    known = {"s": system.start, "t": np.asarray(t), "u": system.given, "p": parameters}

    def certain(one: Exported) -> bool:
        zeros = (np.zeros(() if x.size is None else x.size) for x in one.quantity.takes)
        return one(*(known.get(x.name, zero) for x, zero in zip(one.quantity.takes, zeros, strict=True)))[1]

    return not certain(system.rates) or (certain(system.tangent) and certain(system.adjoint))


class _Shape(NamedTuple):
    """The numbers of a system by kind, and its functions.

    Attributes:
        states, inputs, held, outputs: A name with unit for each.
        rates: (mechanism, controller, s, t, u) -> s', y, whether they are certain.
        sample: (controller, s, t, u) -> what is held from this time on; None without samples.
    """

    states: tuple[Coordinate, ...]
    inputs: tuple[Coordinate, ...]
    held: tuple[Coordinate, ...]
    outputs: tuple[Coordinate, ...]
    rates: Callable[..., tuple[Array, Array, Array]]
    sample: Callable[..., Array] | None


def system_of(
    what: str,
    of: Context,
    mechanism: Mechanism,
    controller: AbstractController,
    chosen: Sequence[Parameter],
    state: Sequence[Array],
) -> System:
    """Makes the programs of a system. Raises ValueError if it cannot be scalar code."""
    q, v, _ = map(np.asarray, state)
    shape = _control(of, controller) if what == "control" else _moving(what, of, mechanism, controller)
    memory = np.zeros(0) if controller.memory is None else np.asarray(controller.memory)
    moved, lasting = np.concatenate([q, v]), memory[: len(shape.states)]
    made = _Maker(shape, Parametrised.of(mechanism, controller, chosen), mechanism, (q.size, v.size), q.dtype)
    control = np.zeros(len(of.controls))
    return System(
        states=shape.states,
        derivatives=tuple(_rate_of(x) for x in shape.states),
        inputs=shape.inputs,
        held=shape.held,
        outputs=shape.outputs,
        start=lasting if what == "control" else np.concatenate([moved, lasting[: len(shape.states) - moved.size]]),
        given=np.concatenate(
            [
                moved if what == "control" else control[: len(shape.inputs)],
                *([control, memory] if shape.held else []),
            ]
        ),
        period=0.0 if shape.sample is None or controller.period is None else controller.period,
        rates=made.rates(),
        tangent=made.tangent(),
        adjoint=made.adjoint(),
        projected=None if what == "control" or of.projection is None else made.projected(of.projection, q.size),
        sample=None if shape.sample is None else made.sample(shape.sample),
    )


class _Maker:
    """Makes the programs of a system."""

    def __init__(
        self, shape: _Shape, parts: Parametrised, mechanism: Mechanism, sizes: tuple[int, int], dtype: np.dtype
    ):
        self.shape, self.parts, self.mechanism, self.sizes, self.dtype = shape, parts, mechanism, sizes, np.dtype(dtype)
        derivatives, given = tuple(_rate_of(x) for x in shape.states), (*shape.inputs, *shape.held)
        self.states = [_argument("s", "states", shape.states, "STATES")] if shape.states else []
        self.takes = [*self.states, Argument("t", "time [s]")]
        self.takes += [_argument("u", "inputs, and what is held", given, "INPUTS")] if given else []
        self.takes += [parts.argument] if parts.chosen else []
        self.gives = [_argument("ds", "rates of the states", derivatives, "STATES")] if shape.states else []
        self.gives += [_argument("y", "outputs", shape.outputs, "OUTPUTS")] if shape.outputs else []

    def rates(self) -> Exported:
        return self._made("rates", "Rates of the states, and outputs.", self._rates, self.takes, self.gives)

    def tangent(self) -> Exported:
        def function(*given: Array) -> tuple[list[Array], Array]:
            point, along = given[: len(self.takes)], given[len(self.takes) :]
            _, slopes, fine = jax.jvp(self._rates, point, along, has_aux=True)
            return slopes, fine

        takes, gives = ([_about(x, "rate") for x in each] for each in (self.takes, self.gives))
        return self._made("tangent", "Derivatives along a direction.", function, [*self.takes, *takes], gives)

    def adjoint(self) -> Exported:
        def function(*given: Array) -> tuple[list[Array], Array]:
            point, weights = given[: len(self.takes)], given[len(self.takes) :]
            _, back, fine = jax.vjp(self._rates, *point, has_aux=True)
            return [jnp.atleast_1d(x) for x in back(list(weights))], fine

        takes = [_about(x, "weight") for x in self.gives]
        gives = [_about(x._replace(size=x.total), "weight") for x in self.takes]
        about = "Gradient of a weighted sum of all results."
        return self._made("adjoint", about, function, [*self.takes, *takes], gives)

    def projected(self, back: Projection, n_q: int) -> Exported:
        takes, n = [x for x in self.takes if x.name != "u"], sum(self.sizes)

        def function(*given: Array) -> tuple[list[Array], Array]:
            s, t, _, mechanism, _ = self._named(takes, given)
            y = back(mechanism, t, s[:n], expand=True, coordinates=n_q)
            return [jnp.concatenate([y, s[n:]])], jnp.asarray(True)

        gives = [takes[0]._replace(name="s_next", about="states on the constraints; may be the array s")]
        return self._made("projected", "The nearest states that satisfy the constraints.", function, takes, gives)

    def sample(self, of: Callable[..., Array]) -> Exported:
        def function(*given: Array) -> tuple[list[Array], Array]:
            s, t, u, _, controller = self._named(self.takes, given)
            return [of(controller, s, t, u)], jnp.asarray(True)

        gives = [_argument("held", "control and memory from this time on", self.shape.held, "HELD")]
        return self._made("sample", "A sample of the controller.", function, self.takes, gives)

    def _rates(self, *given: Array) -> tuple[list[Array], Array]:
        s, t, u, *parts = self._named(self.takes, given)
        ds, y, fine = self.shape.rates(*parts, s, t, u)
        return [x for x in (ds, y) if x.size], fine

    def _named(self, takes: Sequence[Argument], given: Sequence[Array]) -> tuple:
        """Returns s, t, u, mechanism and controller from the arguments that there are."""
        values, zero = dict(zip((x.name for x in takes), given, strict=True)), jnp.zeros(0, self.dtype)
        return values.get("s", zero), values["t"], values.get("u", zero), *self.parts.at(values.get("p"))

    def _made(
        self, name: str, about: str, function: Callable, takes: Sequence[Argument], gives: Sequence[Argument]
    ) -> Exported:
        quantity = Quantity(about, tuple(takes), tuple(gives), function)
        return scalar(name, quantity, function, self.mechanism, self.sizes, self.dtype, 'to="fmu"')


def _moving(what: str, of: Context, mechanism: Mechanism, controller: AbstractController) -> _Shape:
    """The mechanism, under its controller or with the control as inputs."""
    n_q, n, p = len(of.coordinates), len(of.speeds), len(of.controls)
    inside, sampled = what == "acceleration", what == "acceleration" and controller.period is not None
    lasting = of.memory if inside and not sampled else 0
    energies = _energies(mechanism, n_q, n)

    def rates(mechanism, controller, s, t, u):
        q, v, x = jnp.split(s, [n_q, n_q + n])
        y, change = [jnp.zeros(0, s.dtype)], []
        if inside and not sampled:
            found = driven(mechanism, controller, q, v, t, x if lasting else None)
            motion = found.motion
            y += [] if found.u is None else [found.u]
            change += [found.change] if lasting else []
        else:
            motion = pushed(mechanism, controller, q, v, t, u[:p])
        y += [jnp.reshape(f(mechanism, q, v, t), 1) for f in energies.values()]
        ds = jnp.concatenate([mechanism.rates(q, v, t), motion.acceleration, *change])
        return ds, jnp.concatenate(y), is_fine(motion)

    def sample(controller, s, t, u):
        q, v = s[:n_q], s[n_q : n_q + n]
        return jnp.concatenate(controller.sample(q, v, t, u[p:]))

    return _Shape(
        states=(*of.coordinates, *of.speeds, *_memory(lasting)),
        inputs=() if inside else of.controls,
        held=(*of.controls, *_memory(of.memory)) if sampled else (),
        outputs=(*(of.controls if inside and not sampled else ()), *(Coordinate(x, "J") for x in energies)),
        rates=rates,
        sample=sample if sampled else None,
    )


def _control(of: Context, controller: AbstractController) -> _Shape:
    """The controller alone: coordinates and speeds are inputs."""
    n_q, n, p = len(of.coordinates), len(of.speeds), len(of.controls)
    sampled = controller.period is not None
    lasting = 0 if sampled else of.memory

    def rates(mechanism, controller, s, t, u):
        q, v = u[:n_q], u[n_q : n_q + n]
        if sampled:
            return s, s, jnp.asarray(True)
        if lasting:
            return controller.change(q, v, t, s), controller.control(q, v, t, s), jnp.asarray(True)
        found = driven(mechanism, controller, q, v, t)
        return s, control_of(found), is_fine(found.motion)

    def sample(controller, s, t, u):
        q, v, _, x = jnp.split(u, [n_q, n_q + n, n_q + n + p])
        return jnp.concatenate(controller.sample(q, v, t, x))

    return _Shape(
        states=_memory(lasting),
        inputs=(*of.coordinates, *of.speeds),
        held=(*of.controls, *_memory(of.memory)) if sampled else (),
        outputs=() if sampled else of.controls,
        rates=rates,
        sample=sample if sampled else None,
    )


def _memory(count: int) -> tuple[Coordinate, ...]:
    return tuple(Coordinate(f"memory {i + 1}") for i in range(count))


def _energies(mechanism: Mechanism, n_q: int, n: int) -> dict[str, Callable[..., Array]]:
    """The energies that are known: the kinetic one, and `energy(q, v, t)` of the system if it has that."""

    def kinetic(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Array:
        return v @ mechanism.mass(q, t, n) @ v / 2

    def whole(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Array:
        return getattr(mechanism.system, "energy")(q, v, t)  # noqa: B009 -- of some systems only

    method = getattr(mechanism.system, "energy", None)
    if not callable(method):
        return {"kinetic energy": kinetic}
    try:
        inspect.signature(method).bind(*range(3))
        given = [jax.ShapeDtypeStruct(shape, float) for shape in ((n_q,), (n,), ())]
        alone = jax.eval_shape(lambda *state: jnp.asarray(method(*state)), *given).shape == ()
    except (TypeError, ValueError):
        alone = False
    return {"kinetic energy": kinetic, **({"energy": whole} if alone else {})}


def dependencies(one: Exported) -> list[set[int]]:
    """The indices of the arguments that each result depends on, where it is certain."""
    *results, certain = one.program.outputs
    places = {node.order: {i} for i, node in enumerate(one.program.inputs)}
    for node in one.program.steps:
        places[node.order] = set().union(*(places[x.order] for x in node.nodes))
    kept = [unguarded(x, certain) for x in results]
    return [places[x.order] if isinstance(x, Node) else set() for x in kept]


def _argument(name: str, about: str, entries: tuple[Coordinate, ...], size: str) -> Argument:
    return Argument(name, about, entries, len(entries), f"{{{size}}}")


def _about(x: Argument, kind: str) -> Argument:
    """The rate, or the weight, of an argument."""
    return x._replace(name=f"{x.name}_{kind}", about=f"{kind} of {x.name}", entries=(), room=x.room or "1")


def _rate_of(x: Coordinate) -> Coordinate:
    unit = f"{x.unit}^2" if x.unit.endswith("/s") else rate_unit(x.unit)
    return Coordinate(f"der({x.name})", unit)
