"""A motion as a WebAssembly module: its steps, under forces of a hand, and what a page draws and measures of it.

The module has these functions beside `march` (see `march.ll`): live_derivative, live_projection, live_points,
live_pull, live_measures. Each returns whether it is certain.

q: coordinates (n_q,); v: speeds (n,); f: generalised forces of a hand (n,); X: points of the drawing (K d,); F: forces
at these points (K d,).
"""

import ctypes
import dataclasses
import importlib.resources
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._coordinate import Coordinate
from .._expand import Entry, Node, Program
from .._formulation import motion_by
from .._linalg import SVD
from .._lowering import compiled
from .._manifold import Projection
from .._mechanism import Mechanism
from .._program import substituted
from .._result import RESULTS
from .._scenario import Scenario
from .._servo import AbstractController, as_controller
from ._c import Title, wasm_file
from ._program import Exported, Parameter, exported, parameters_of
from ._quantities import WAY, Argument, Quantity


NAME = "live"
# Its order lets steps be long, which the projection at the end of each makes worth while.
SOLVER = diffrax.Dopri8()
# Sliders that a page has without being asked.
MOST = 8
# The error of a step, against its state, that two halves of the step may show.
LOCAL = 1e-11
# Most steps of a run.
LONGEST_RUN = 2**24
# A projection trusts factors only 24 times farther from singular states than the acceleration does (`_manifold`), by
# default from 1e-4: with this tolerance it trusts them as near.
NEAR = 4e-6


class Live(NamedTuple):
    """The module, and what a program has to know of it.

    Attributes:
        code: The WebAssembly module.
        points: Numbers of points of each link.
        dimension: 2 in the plane, 3 in space.
        measured: Names of the entries of `measures` before the errors of positions and speeds.
        parameters: Those that are arguments.
        step: Longest step that is accurate along a trajectory [s].
    """

    code: bytes
    points: dict[str, int]
    dimension: int
    measured: tuple[str, ...]
    parameters: list[Parameter]
    step: float


class _Leaves:
    """The arrays of mechanism and controller, by which functions of the scenario reach their parameters."""

    def __init__(self, leaves: Sequence[PyTree]):
        self.places = {id(x): i for i, x in enumerate(leaves) if isinstance(x, jax.Array)}
        self.kept = leaves  # an identity is one only as long as its object lives

    def knows(self, x: object) -> bool:
        return id(x) in self.places

    def current(self, x: Array, values: Sequence[PyTree]) -> Array:
        return values[self.places[id(x)]]


def live_module(
    scenario: Scenario, states: Sequence[tuple[np.ndarray, np.ndarray, float]], parameters: Sequence[str] | None
) -> Live:
    """The module of a scenario's motion.

    Args:
        scenario: A scenario with a drawing.
        states: q, v and t of some states along its motion, for which steps have to be short enough.
        parameters: Names of parameters that are arguments, as `ukjax.export` knows them; None for some of one number.

    Raises:
        ValueError: If a function is no scalar program, a name is not known, or a controller has memory or samples.
    """
    controller = as_controller(scenario.servo)
    if scenario.q0.dtype != np.float64:
        raise ValueError(
            f"A live page computes in double precision, but the scenario's q0 is {scenario.q0.dtype}. Make it after "
            'jax.config.update("jax_enable_x64", True).'
        )
    if controller.has_store:
        raise ValueError("A live page has no controller with memory or samples: it steps functions of the state.")
    known = parameters_of(scenario.mechanism, controller)
    chosen = _likely(known, (scenario.mechanism, controller)) if parameters is None else _named(parameters, known)
    made = _functions(scenario, controller, chosen)
    if parameters is None:
        chosen = _of_use(chosen, made)
        made = _functions(scenario, controller, chosen)
    sizes = {"COORDINATES": len(scenario.q0), "SPEEDS": len(scenario.v0)}
    title = Title(NAME, scenario.name, sizes, chosen)
    code = wasm_file(title, list(made.values()), [_march(title, SOLVER)], ["march"])
    shapes = {
        name: jax.eval_shape(f, scenario.q0, jnp.asarray(scenario.t0, float)).shape for name, f in _links(scenario)
    }
    p = _values(chosen)
    step = _longest_step(made, states, p, scenario.t1 - scenario.t0)
    points, dimension = {k: x[0] for k, x in shapes.items()}, next(iter(shapes.values()))[1]
    return Live(code, points, dimension, tuple(_invariants(scenario)), chosen, step)


def _links(scenario: Scenario) -> list[tuple[str, Callable[[Array, Array], Array]]]:
    assert scenario.drawing is not None

    def array(function: Callable) -> Callable[[Array, Array], Array]:
        return lambda q, t: jnp.asarray(function(q, t))

    return [(name, array(f)) for name, f in scenario.drawing.links.items()]


def _invariants(scenario: Scenario) -> dict[str, Callable[[Array, Array, Array], Array]]:
    """The invariants of a scenario; without an energy among them the kinetic energy too, which is not constant."""
    known = dict(scenario.invariants)
    if any(Coordinate(name).unit == "J" for name in known):
        return known

    def kinetic(q: Array, v: Array, t: Array) -> Array:
        return v @ scenario.mechanism.system.mass(q, t) @ v / 2

    return {**known, "kinetic energy [J]": kinetic}


def _named(names: Sequence[str], known: list[Parameter]) -> list[Parameter]:
    """The parameters by their names. Raises ValueError for one that is not known."""
    by_name = {x.name: x for x in known}
    for name in names:
        if name not in by_name:
            listed = ", ".join(by_name) or "none, for there are none"
            raise ValueError(f"parameters must be of {listed}; not {name!r}.")
    return [by_name[name] for name in dict.fromkeys(names)]


def _likely(known: list[Parameter], tree: PyTree) -> list[Parameter]:
    """Parameters of few numbers: gains of a servo first, then those of one number, then others; zeros last of each."""
    leaves, first = jax.tree_util.tree_leaves(tree), dict[int, int]()
    for i, x in enumerate(leaves):
        first.setdefault(id(x), i)
    # What a servo has of its system is listed with the system.
    own = [x for x in known if x.values.size <= MOST and first[id(leaves[x.leaf])] == x.leaf]

    def place(x: Parameter) -> tuple[bool, bool, bool]:
        return not x.name.startswith("servo"), x.values.size > 1, not np.any(x.values)

    return sorted(own, key=place)


def _of_use(chosen: list[Parameter], made: dict[str, Exported]) -> list[Parameter]:
    """The first of the parameters on which the motion depends, of so many numbers together as a page has room for.

    What the constraints know but the drawing does not, such as a length that it has as a number, would not be seen.
    """
    *_, position, _, _ = made["measures"].program.outputs
    moving = _places(chosen, made["derivative"].program, made["derivative"].program.outputs)
    places = _places(chosen, made["measures"].program, [position])
    drawn = _places(chosen, made["points"].program, made["points"].program.outputs)
    found, total = [], 0
    for i, x in enumerate(chosen):
        if i in moving and (i in drawn or i not in places) and total + x.values.size <= MOST:
            found.append(x)
            total += x.values.size
    return found


def _places(chosen: list[Parameter], program: Program, outputs: Sequence[Entry]) -> set[int]:
    """The places among `chosen` of those parameters on which outputs of a program depend."""
    waiting, seen = [x for x in outputs if isinstance(x, Node)], set[int]()
    while waiting:
        node = waiting.pop()
        if node.order not in seen:
            seen.add(node.order)
            waiting += [x for x in node.args if isinstance(x, Node)]
    place, found = len(program.inputs) - sum(x.values.size for x in chosen), set()
    for i, x in enumerate(chosen):
        if any(node.order in seen for node in program.inputs[place : place + x.values.size]):
            found.add(i)
        place += x.values.size
    return found


def _values(chosen: Sequence[Parameter]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.ravel(x.values) for x in chosen)])


def _functions(scenario: Scenario, controller: AbstractController, chosen: Sequence[Parameter]) -> dict[str, Exported]:
    """The functions of the module by name. Raises ValueError if one of them is no scalar program."""
    mechanism, dtype = scenario.mechanism, np.dtype(float)
    q, v = Argument("q", "coordinates", (), len(scenario.q0)), Argument("v", "speeds", (), len(scenario.v0))
    state = q, v, Argument("t", "time [s]")
    f = Argument("f", "generalised forces of a hand", (), len(scenario.v0))
    here = scenario.q0, jnp.asarray(scenario.t0, float)
    X = Argument("X", "points of the drawing", (), sum(jax.eval_shape(g, *here).size for _, g in _links(scenario)))
    w = Argument("w", "what is measured", (), len(_invariants(scenario)) + 2)
    signatures = {
        "derivative": ((*state, f), (q._replace(name="dq"), v._replace(name="a"))),
        "projection": (state, (q._replace(name="q_next"), v._replace(name="v_next"))),
        "points": (state, (X,)),
        "pull": ((*state, X._replace(name="F")), (f,)),
        "measures": (state, (w,)),
    }
    functions = {**_moving(scenario), **_seen(scenario, controller)}
    quantities = {name: Quantity("", takes, gives, functions[name]) for name, (takes, gives) in signatures.items()}
    return {name: exported(name, x, mechanism, controller, chosen, dtype) for name, x in quantities.items()}


def _moving(scenario: Scenario) -> dict[str, Callable]:
    """The functions of mechanism and controller by which the state moves."""
    n_q, n = len(scenario.q0), len(scenario.v0)
    back = _near(Projection() if scenario.projection is None else scenario.projection)

    def derivative(mechanism, controller, q, v, t, f):
        fine, force = jnp.asarray(True), f
        if controller.actuators(q, t, n):
            # The controller does not know of the hand.
            driven = controller.drive(mechanism, WAY, q, v, t, None)
            fine = driven.motion.result == RESULTS.successful
            force = f + controller.matrix(q, t, n) @ driven.u
        motion = motion_by(WAY, mechanism.terms_of(force), q, v, t)
        fine &= motion.result == RESULTS.successful
        return [mechanism.rates(q, v, t), motion.acceleration], fine

    def projection(mechanism, controller, q, v, t):
        y = jnp.concatenate([q, v])
        if mechanism.constraints:
            y = back(mechanism, t, y, expand=True, coordinates=n_q)
        return [y[:n_q], y[n_q:]], jnp.asarray(True)

    return {"derivative": derivative, "projection": projection}


def _seen(scenario: Scenario, controller: AbstractController) -> dict[str, Callable]:
    """The functions of mechanism and controller that the page shows, and the hand holds."""
    leaves = _Leaves(jax.tree_util.tree_leaves((scenario.mechanism, controller)))

    def bound(function: Callable, mechanism: Mechanism, controller: AbstractController) -> Callable:
        """A function of the scenario, with the parameters of this mechanism."""
        return substituted(function, leaves, jax.tree_util.tree_leaves((mechanism, controller)))

    def drawn(q: Array, t: Array) -> Array:
        return jnp.concatenate([jnp.ravel(g(q, t)) for _, g in _links(scenario)])

    def points(mechanism, controller, q, v, t):
        return [bound(drawn, mechanism, controller)(q, t)], jnp.asarray(True)

    def pull(mechanism, controller, q, v, t, F):
        def power(v: Array) -> Array:
            here = bound(drawn, mechanism, controller)
            return F @ jax.jvp(lambda q: here(q, t), (q,), (mechanism.rates(q, v, t),))[1]

        return [jax.grad(power)(v)], jnp.asarray(True)

    def measures(mechanism, controller, q, v, t):
        found = [bound(g, mechanism, controller)(q, v, t) for g in _invariants(scenario).values()]
        errors = mechanism.position_error(q, t), mechanism.velocity_error(q, v, t)
        sizes = [jnp.max(jnp.abs(x), initial=0.0) for x in errors]
        return [jnp.stack([*(jnp.asarray(x, q.dtype) for x in found), *sizes])], jnp.asarray(True)

    return {"points": points, "pull": pull, "measures": measures}


def _near(projection: Projection) -> Projection:
    """The projection, trusted wherever the acceleration is, for the page measures what it leaves of the errors."""
    own = projection.pseudoinverse
    if isinstance(own, SVD) and own.rtol is None:
        return dataclasses.replace(projection, pseudoinverse=dataclasses.replace(own, rtol=NEAR))
    return projection


class Tableau(NamedTuple):
    """The stages of a Runge-Kutta method on which its result depends."""

    a: np.ndarray  # (s, s)
    b: np.ndarray  # (s,)
    c: np.ndarray  # (s,)

    @classmethod
    def of(cls, solver: diffrax.AbstractERK) -> "Tableau":
        tableau = solver.tableau
        assert isinstance(tableau, diffrax.ButcherTableau)
        b, s = np.asarray(tableau.b_sol, float), len(tableau.b_sol)
        a = np.zeros((s, s))
        for i, row in enumerate(tableau.a_lower):
            a[i + 1, : len(row)] = row
        c = np.concatenate([[0.0], np.asarray(tableau.c, float)])
        needed = b != 0
        for i in reversed(range(s)):
            if needed[i]:
                needed |= a[i] != 0
        return cls(a[needed][:, needed], b[needed], c[needed])


def _march(title: Title, solver: diffrax.AbstractERK) -> str:
    a, b, c = Tableau.of(solver)
    n, s = title.sizes["COORDINATES"] + title.sizes["SPEEDS"], len(b)

    def listed(x: np.ndarray) -> str:
        return ", ".join(f"double 0x{int(y):016X}" for y in np.ravel(x).view(np.uint64))

    template = importlib.resources.files("ukjax._export").joinpath("march.ll").read_text("utf-8")
    takes_p = bool(title.parameters)
    text = string.Template(template).substitute(
        n=n, q=title.sizes["COORDINATES"], stages=s, squared=s * s, slopes=s * n, name=title.name,
        a=listed(a), b=listed(b), c=listed(c), p=", ptr %p" if takes_p else "", p_head=", ptr %p" if takes_p else "",
    )  # fmt: skip
    more = ", ptr" if takes_p else ""
    return (
        f"{text}\ndeclare i32 @{title.name}_derivative(ptr, ptr, double, ptr{more}, ptr, ptr)\n"
        f"declare i32 @{title.name}_projection(ptr, ptr, double{more}, ptr, ptr)\n"
    )


class _Steps:
    """Steps of the module, by machine code of this machine."""

    def __init__(self, made: dict[str, Exported], p: np.ndarray):
        self.slope, self.projection, self.p = _Slope(made["derivative"], p), made["projection"], p
        self.a, self.b, self.c = Tableau.of(SOLVER)
        self.kept = compiled(self.projection.kernel)  # the projection compiles only once while this is there

    def end(self, y: np.ndarray, t: float, h: float) -> np.ndarray:
        """The end of a step, before it is projected; NaN where it is not certain."""
        slopes = np.zeros((len(self.b), len(y)))
        for i, (row, later) in enumerate(zip(self.a, self.c, strict=True)):
            slopes[i] = self.slope(y + h * row[:i] @ slopes[:i], t + later * h)
        return y + h * self.b @ slopes

    def is_accurate(self, y: np.ndarray, t: float, h: float) -> bool:
        """Whether the two halves of a step do not differ from it."""
        whole, half = self.end(y, t, h), self.end(y, t, h / 2)
        twice = self.end(half, t + h / 2, h / 2)
        return bool(np.max(np.abs(whole - twice) / (1 + np.abs(y))) <= LOCAL)

    def is_projected(self, y: np.ndarray, t: float, h: float) -> bool:
        """Whether a step ends in a state that surely leads back to the constraints."""
        end, n_q = self.end(y, t, h), self.slope.n_q
        return self.projection(end[:n_q], end[n_q:], np.asarray(t + h), *([self.p] if self.p.size else []))[1]


def _longest_step(
    made: dict[str, Exported], states: Sequence[tuple[np.ndarray, np.ndarray, float]], p: np.ndarray, duration: float
) -> float:
    """The longest step, the duration divided by a power of two, that is accurate at all states. Raises ValueError."""
    steps, starts = _Steps(made, p), [(np.concatenate([q, v]), t) for q, v, t in states]
    for y, t in starts:
        if not np.all(np.isfinite(steps.slope(y, t))):
            raise ValueError(
                f"scalar code is not certain of the acceleration at t = {t:g} s, so that a live page would stop there. "
                "The rank of the constraints changes next to that state, or the mass matrix is singular."
            )
    h = duration / 16
    while not all(steps.is_accurate(y, t, h) for y, t in starts):
        h /= 2
        if h < duration / LONGEST_RUN:
            raise ValueError(
                "no step is accurate at all states of the motion: it cannot be followed by steps of one length, which "
                "a live page makes."
            )
    for y, t in starts:
        if not steps.is_projected(y, t, h):
            raise ValueError(
                f"scalar code is not certain of the way back to the constraints at t = {t:g} s, so that a live page "
                "would stop there. Redundant rows, which drift apart by rounding, are the usual reason: leave them out."
            )
    return h


class _Slope:
    """The derivative of y = (q, v) by machine code; NaN where it is not certain."""

    def __init__(self, derivative: Exported, p: np.ndarray):
        self.machine = compiled(derivative.kernel)
        q, v, *_ = derivative.quantity.takes
        self.n_q, self.y = q.total, np.zeros(q.total + v.total)
        self.slopes, self.t, self.certain = np.zeros_like(self.y), np.zeros(1), np.zeros(1, bool)
        f = np.zeros(v.total)
        parts = self.y[: self.n_q], self.y[self.n_q :], self.t, f, *([p] if p.size else [])
        places = *parts, self.slopes[: self.n_q], self.slopes[self.n_q :], self.certain
        self.arrays, self.places = places, (ctypes.c_void_p * len(places))(*(x.ctypes.data for x in places))

    def __call__(self, y: np.ndarray, t: float) -> np.ndarray:
        self.y[:], self.t[:] = y, t
        self.machine.run(self.places, 0, 1)
        return self.slopes if self.certain[0] else np.full_like(self.y, np.nan)
