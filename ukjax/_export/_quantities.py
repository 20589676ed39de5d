"""Functions of a mechanism that can be exported: what they take, what they give, and in which units.

q: coordinates (n_q,); v: speeds (n,); u: control (p,); x: memory of a controller (s,); h: time step; a: acceleration.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._coordinate import Coordinate, force_unit, rate_unit
from .._formulation import Motion, UdwadiaKalaba, motion_by
from .._manifold import Projection
from .._mechanism import Mechanism
from .._result import RESULTS
from .._servo import AbstractController, Driven
from .._simulation import Rattle


class Argument(NamedTuple):
    """An argument or a result of an exported function.

    Attributes:
        name: Its name in the function's signature.
        about: A few words for the comment.
        entries: A name with unit for each number, or () for a matrix.
        size: How many numbers; None for one that is passed by its value.
        room: The size as it stands in the header: names of sizes, in braces.
    """

    name: str
    about: str
    entries: tuple[str, ...] = ()
    size: int | None = None
    room: str = ""

    @property
    def total(self) -> int:
        return 1 if self.size is None else self.size


class Quantity(NamedTuple):
    """A function of a mechanism.

    Attributes:
        about: A sentence for the comment.
        takes: Arguments, besides parameters.
        gives: Results.
        function: (mechanism, controller, *arrays) -> the results, and whether they are a motion.
        sizes: Names of further sizes that stand in the header, and the sizes.
    """

    about: str
    takes: tuple[Argument, ...]
    gives: tuple[Argument, ...]
    function: Callable[..., tuple[list[Array], Array]]
    sizes: Mapping[str, int] = {}


class Context(NamedTuple):
    """The parts that functions are made of.

    Attributes:
        mechanism, controller, start: The mechanism, its controller, and the given state (q, v, t).
        coordinates, speeds, controls: Names with units of coordinates, speeds and actuators.
        memory: How many numbers the controller remembers.
        solver, projection, rattle: The ways of a step.
    """

    mechanism: Mechanism
    controller: AbstractController
    start: tuple[Array, Array, Array]

    coordinates: tuple[Coordinate, ...]
    speeds: tuple[Coordinate, ...]
    controls: tuple[Coordinate, ...]
    memory: int
    solver: diffrax.AbstractERK
    projection: Projection | None
    rattle: Rattle

    @property
    def q(self) -> Argument:
        return Argument("q", "coordinates", self.coordinates, len(self.coordinates), "{COORDINATES}")

    @property
    def v(self) -> Argument:
        return Argument("v", "speeds", self.speeds, len(self.speeds), "{SPEEDS}")

    @property
    def a(self) -> Argument:
        entries = tuple(Coordinate(f"{x.name}'", _rate(x.unit)) for x in self.speeds)
        return Argument("a", "acceleration, the rates of v", entries, len(entries), "{SPEEDS}")

    @property
    def u(self) -> Argument:
        return Argument("u", "control of the actuators", self.controls, len(self.controls), "{CONTROLS}")

    @property
    def state(self) -> tuple[Argument, ...]:
        return self.q, self.v, Argument("t", "time [s]")

    def force(self, about: str) -> Argument:
        entries = tuple(Coordinate(x.name.removesuffix("'"), force_unit(x.unit)) for x in self.speeds)
        return Argument("force", about, entries, len(entries), "{SPEEDS}")

    @property
    def ends(self) -> tuple[Argument, ...]:
        return (
            self.q._replace(name="q_next", about="coordinates at t + h; may be the array q"),
            self.v._replace(name="v_next", about="speeds at t + h; may be the array v"),
        )


def _rate(unit: str) -> str:
    return f"{unit}^2" if unit.endswith("/s") else rate_unit(unit)


WAY = UdwadiaKalaba(expand=True)


def is_fine(motion: Motion) -> Array:
    """Whether there is a motion."""
    return motion.result == RESULTS.successful


def driven(
    mechanism: Mechanism, controller: AbstractController, q: Array, v: Array, t: Array, x: Array | None = None
) -> Driven:
    """The motion under the controller, whose memory is x."""
    return controller.drive(mechanism, WAY, q, v, t, x)


def control_of(found: Driven) -> Array:
    """The control of what acts."""
    assert found.u is not None
    return found.u


def _driven(mechanism: Mechanism, controller: AbstractController, q: Array, v: Array, t: Array) -> Motion:
    return driven(mechanism, controller, q, v, t).motion


def pushed(mechanism: Mechanism, controller: AbstractController, q: Array, v: Array, t: Array, u: Array) -> Motion:
    """The motion under a given control."""
    force = controller.matrix(q, t, v.shape[0]) @ u
    return motion_by(WAY, mechanism.terms_of(force), q, v, t)


def _acceleration(of: Context) -> Quantity:
    def function(*args):
        motion = _driven(*args)
        return [motion.acceleration], is_fine(motion)

    about = "Acceleration under the controller." if of.controls else "Acceleration."
    return Quantity(about, of.state, (of.a,), function)


def _constraint_force(of: Context) -> Quantity:
    def function(*args):
        motion = _driven(*args)
        return [motion.constraint_force], is_fine(motion)

    about = "Generalised force of the ideal constraints."
    return Quantity(about, of.state, (of.force("the force of all constraints together"),), function)


def _jacobian(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t):
        def along(y):
            motion = _driven(mechanism, controller, y[: q.size], y[q.size :], t)
            return motion.acceleration, is_fine(motion)

        J, fine = jax.jacfwd(along, has_aux=True)(jnp.concatenate([q, v]))
        return [J], fine

    return Quantity("Jacobian of the acceleration with respect to q and v.", of.state, (_matrix(of, "q, v"),), function)


def _plant(of: Context) -> Quantity:
    def function(*args):
        motion = pushed(*args)
        return [motion.acceleration], is_fine(motion)

    return Quantity("Acceleration under a given control.", (*of.state, of.u), (of.a,), function)


def _plant_jacobian(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t, u):
        def along(y):
            q_, v_, u_ = jnp.split(y, [q.size, q.size + v.size])
            motion = pushed(mechanism, controller, q_, v_, t, u_)
            return motion.acceleration, is_fine(motion)

        J, fine = jax.jacfwd(along, has_aux=True)(jnp.concatenate([q, v, u]))
        return [J], fine

    about = "Jacobian of the acceleration under a given control with respect to q, v and u."
    return Quantity(about, (*of.state, of.u), (_matrix(of, "q, v, u"),), function)


def _matrix(of: Context, columns: str) -> Argument:
    n = len(of.speeds)
    sizes = {"q": len(of.coordinates), "v": n, "u": len(of.controls)}
    rooms = {"q": "{COORDINATES}", "v": "{SPEEDS}", "u": "{CONTROLS}"}
    names = columns.split(", ")
    width, room = sum(sizes[x] for x in names), " + ".join(rooms[x] for x in names)
    return Argument(
        "J", f"row after row, of the rates of v; columns: {columns}", (), n * width, f"{{SPEEDS}} * ({room})"
    )


def _step(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t, h):
        def motion(q, v, t):
            return _driven(mechanism, controller, q, v, t)

        return _stepped(of, mechanism, motion, q, v, t, h)

    about = f"A step of {_method(of)}{', with the controller at work' if of.controls else ''}."
    return Quantity(about, (*of.state, Argument("h", "time step [s]")), of.ends, function)


def _plant_step(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t, u, h):
        def motion(q, v, t):
            return pushed(mechanism, controller, q, v, t, u)

        return _stepped(of, mechanism, motion, q, v, t, h)

    about = f"A step of {_method(of)}, under a control that is held."
    return Quantity(about, (*of.state, of.u, Argument("h", "time step [s]")), of.ends, function)


def _method(of: Context) -> str:
    back = "" if of.projection is None else ", then back to the constraints"
    return f"the Runge-Kutta method {type(of.solver).__name__}{back}"


def _stepped(
    of: Context, mechanism: Mechanism, motion_at: Callable[..., Motion], q: Array, v: Array, t: Array, h: Array
) -> tuple[list[Array], Array]:
    """The end of a step of an explicit Runge-Kutta method, and whether there is a motion at all of its stages."""
    tableau = of.solver.tableau
    assert isinstance(tableau, diffrax.ButcherTableau)
    b = [float(x) for x in tableau.b_sol]
    rows = [[], *([float(x) for x in row] for row in tableau.a_lower)]
    times = [0.0, *(float(x) for x in tableau.c)]
    # Stages that the end of the step depends on: the last one of some methods is for an estimate of the error.
    needed = [bool(x) for x in b]
    for i in reversed(range(len(b))):
        if needed[i]:
            needed[:i] = [x or bool(y) for x, y in zip(needed[:i], rows[i], strict=True)]
    slopes: list[tuple[Array, Array]] = []
    fine = jnp.asarray(True)

    def reached(weights):
        moved = [(w, k) for w, k in zip(weights, slopes, strict=True) if w]
        return [x + h * sum((w * k[i] for w, k in moved), jnp.zeros_like(x)) for i, x in enumerate((q, v))]

    for row, c, wanted in zip(rows, times, needed, strict=True):
        if not wanted:
            slopes.append((jnp.zeros_like(q), jnp.zeros_like(v)))
            continue
        q_, v_ = reached(row)
        motion = motion_at(q_, v_, t + c * h)
        slopes.append((mechanism.rates(q_, v_, t + c * h), motion.acceleration))
        fine &= is_fine(motion)
    y = jnp.concatenate(reached(b))
    if of.projection is not None:
        y = of.projection(mechanism, t + h, y, expand=True, coordinates=q.size)
    return [y[: q.size], y[q.size :]], fine


def _control(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t):
        if controller.has_store:
            return [controller.sample(q, v, t, jnp.zeros(0, q.dtype))[0]], jnp.asarray(True)
        found = driven(mechanism, controller, q, v, t)
        return [control_of(found)], is_fine(found.motion)

    def with_memory(mechanism, controller, q, v, t, x):
        if controller.period is None:
            return [controller.control(q, v, t, x), controller.change(q, v, t, x)], jnp.asarray(True)
        return list(controller.sample(q, v, t, x)), jnp.asarray(True)

    if not of.memory:
        return Quantity("Control of the actuators.", of.state, (of.u,), function)
    entries = tuple(f"x{i + 1}" for i in range(of.memory))
    x = Argument("x", "memory of the controller", entries, of.memory, "{MEMORY}")
    after = x._replace(name="x_next", about="memory for the next sample; without samples the rate of the memory")
    return Quantity(
        "Control of the actuators, by a controller with memory.", (*of.state, x), (of.u, after), with_memory
    )


def _inverse_dynamics(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t, a):
        terms = mechanism.terms(q, v, t)
        return [terms.M @ a - terms.Q], jnp.asarray(True)

    about = "Force that gives an acceleration: M a - Q, beside the system's own forces."
    return Quantity(about, (*of.state, of.a), (of.force("of actuators and constraints together"),), function)


def _projection(of: Context) -> Quantity:
    back = Projection() if of.projection is None else of.projection

    def function(mechanism, controller, q, v, t):
        y = back(mechanism, t, jnp.concatenate([q, v]), expand=True, coordinates=q.size)
        return [y[: q.size], y[q.size :]], jnp.asarray(True)

    ends = (of.ends[0]._replace(about="coordinates; may be the array q"), of.ends[1]._replace(about="speeds; may be v"))
    return Quantity("The nearest state that satisfies the constraints.", of.state, ends, function)


# Functions by their names.
BASIC: dict[str, Callable[[Context], Quantity]] = {
    "acceleration": _acceleration,
    "control": _control,
    "constraint_force": _constraint_force,
    "jacobian": _jacobian,
    "step": _step,
    "plant": _plant,
    "plant_jacobian": _plant_jacobian,
    "plant_step": _plant_step,
    "inverse_dynamics": _inverse_dynamics,
    "projection": _projection,
}
# Those of actuators; and those in which the controller is a function of the state.
OF_ACTUATORS = ("control", "plant", "plant_jacobian", "plant_step", "plant_linearization")
OF_STATE = (
    *("acceleration", "constraint_force", "constraint_forces", "multipliers", "jacobian", "linearization", "step"),
)
