r"""Linearisation of a mechanism about a state, in independent states, and its modes.

x: change of the states (k,); u: change of the inputs (p,); y: change of the outputs (r,).
s: states (k,), functions of (q, v, t); s': their rates, functions of the same; T: tangents of the consistent states
(n_q + n, K), so that small changes of q and v are T c; S = (ds) T, R = (ds') T (k, K). Along the motion
x' = R c where x = S c, and therefore A = R S^+. This is exact if the states determine the state (S has the rank of T).
It is also exact otherwise, if the rates of the states depend on nothing else: R (1 - S^+ S) = 0.

Modes are solutions exp(lambda t), with their shapes. lambda: eigenvalue [1/s]; w0: natural frequency |lambda| [rad/s];
zeta: damping ratio, -Re(lambda) / |lambda|.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Complex, Float

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, row_scales, with_lowering
from .._linalg import SVD, pseudoinverse
from .._mechanism import Mechanism
from .._program import in_batch, jit_fast_compile
from .._result import RESULTS, code_of, is_traced, throw_if_failed, worst
from .._rounding import missed_part
from .._servo import AbstractServo, ActuationLike, Feedback, actuation_of, as_static_controller
from .._show import AbstractShown, Report, as_html, as_text, outcome, shortened, values
from ._states import Independent, Plant, StateFunction, is_singular, quantities, states_of, tangents


if TYPE_CHECKING:
    import control
    import scipy.signal


# A real part counts as rounding below this part of the largest eigenvalue.
ROUNDING = 1e-13
# Titles of the table of modes; states up to which a display computes them.
MODES = ("eigenvalue [1/s]", "frequency [Hz]", "damping", "mostly")
MOST_STATES = 64


class Modes(NamedTuple):
    """The modes of a linearisation, the slowest first; for a complex pair the one with positive imaginary part.

    Attributes:
        eigenvalues: lambda [1/s], (k,), complex.
        frequencies: w0 = |lambda| [rad/s], (k,).
        damping: zeta = -Re(lambda) / |lambda|, (k,): 1 for decay without oscillation, negative for growth; NaN where
            lambda is zero, for a freedom without a restoring force.
        shapes: Amplitudes of q and v, one after the other, (n_q + n, k), complex; the largest of q is one.
        states: Amplitudes of the states, (number of states, k).
        names: Names of the states.
        coordinates: Number of rows of `shapes` that belong to q.
    """

    eigenvalues: np.ndarray
    frequencies: np.ndarray
    damping: np.ndarray
    shapes: np.ndarray
    states: np.ndarray
    names: tuple[str, ...]
    coordinates: int

    @classmethod
    def of(cls, A: np.ndarray, directions: np.ndarray, coordinates: int, names: tuple[str, ...]) -> "Modes":
        """Returns the modes of A (k, k) whose states move q and v along `directions`."""
        values, vectors = np.linalg.eig(A.astype(complex))
        # Below this, an imaginary part or a whole eigenvalue is the rounding error of a double eigenvalue.
        rounding = np.sqrt(np.finfo(A.dtype).eps) * np.max(np.abs(values), initial=0.0)
        values = np.where(np.abs(np.imag(values)) > rounding, values, np.real(values))
        real = np.where(np.abs(np.real(values)) > ROUNDING * np.max(np.abs(values), initial=0.0), np.real(values), 0.0)
        values = real + 1j * np.imag(values)
        values = np.where(np.abs(values) > rounding, values, 0)
        kept = [i for i in range(len(values)) if values[i].imag >= 0]
        order = sorted(kept, key=lambda i: (round(abs(values[i]), 12), -values[i].real))
        values, vectors = values[order], vectors[:, order]
        shapes = directions @ vectors
        moved = shapes[:coordinates] if np.any(np.abs(shapes[:coordinates]) > 0) else shapes
        largest = moved[np.argmax(np.abs(moved), axis=0), np.arange(moved.shape[1])] if len(values) else np.ones(0)
        unit = np.where(largest == 0, 1, largest)
        size = np.abs(values)
        damping = np.where(size > rounding, 0.0 - np.real(values) / np.where(size > rounding, size, 1), np.nan)
        return cls(values, size, damping, shapes / unit, vectors / unit, names, coordinates)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns eigenvalue [1/s], frequency [Hz], damping, and the dominant states of each mode, as text."""
        rows = []
        for value, size, zeta, state in zip(
            self.eigenvalues, self.frequencies, self.damping, self.states.T, strict=True
        ):
            turning = f" +- {value.imag:.6g}i" if value.imag else ""
            part = np.abs(state)
            most = [self.names[i] for i in np.argsort(-part, kind="stable")[:3] if part[i] >= 0.3 * part.max()]
            damping = "" if np.isnan(zeta) else f"{zeta:.4g}"
            rows.append((f"{value.real:.6g}{turning}", f"{size / (2 * np.pi):.6g}", damping, ", ".join(most)))
        return rows

    def __repr__(self) -> str:
        return as_text(Report("", self.rows(), MODES))

    def _repr_html_(self) -> str:
        return as_html(Report("", self.rows(), MODES))


class Linearization(AbstractShown):
    r"""The system $\dot x = A x + B u$, $y = C x + D u$ for small changes of states, inputs and outputs of a mechanism.

    The states are independent of each other on the constraints, so that no eigenvalue belongs to a constraint.
    Its display has the modes, and `modes()` returns them.

    Attributes:
        A: (k, k) [1/s, times the units of the states].
        B: Inputs (k, p).
        C: Outputs (r, k).
        D: (r, p), zero: outputs are functions of the state.
        x: The states (k,) at the point of linearisation.
        rates: Rates of the states there (k,): zero at rest and in a steady motion.
        u: The inputs there (p,).
        directions: Derivatives of q and v, one after the other, with respect to each state, (n_q + n, k).
        names: Names of the states, such as "q[0]".
        states: The states as a function (q, v, t) -> (k,).
        coordinates: Number of rows of `directions` that belong to q.
        result: `RESULTS`; empty message if all went well.
    """

    A: Float[Array, "k k"]
    B: Float[Array, "k p"]
    C: Float[Array, "r k"]
    D: Float[Array, "r p"]
    x: Float[Array, " k"]
    rates: Float[Array, " k"]
    u: Float[Array, " p"]
    directions: Float[Array, "n_q_and_n k"]
    names: tuple[str, ...] = eqx.field(static=True)
    states: Callable
    coordinates: int = eqx.field(static=True)
    result: RESULTS

    @property
    def eigenvalues(self) -> Complex[Array, " k"]:
        """Eigenvalues of A [1/s], in no order; on the CPU, differentiable where they are simple."""
        return jnp.linalg.eigvals(self.A)

    @property
    def stable(self) -> Array:
        """Whether every eigenvalue has a negative real part, so that small changes decay."""
        return jnp.all(jnp.real(self.eigenvalues) < 0)

    def modes(self) -> Modes:
        """Returns natural frequencies, damping and shapes, the slowest first.

        Raises:
            ValueError: If the linearisation is traced, or a batch.
        """
        self._must_be_one("modes()")
        return Modes.of(np.asarray(self.A), np.asarray(self.directions), self.coordinates, self.names)

    def to_scipy(self) -> "scipy.signal.StateSpace":
        """Returns a `scipy.signal.StateSpace`; raises ValueError if traced, a batch, or without inputs or outputs."""
        import scipy.signal

        return scipy.signal.StateSpace(*self._matrices("to_scipy()"))

    def to_control(self) -> "control.StateSpace":
        """Returns a `control.StateSpace` of python-control (extra `control`), with the names of the states.

        Raises:
            ImportError: If python-control is not installed.
            ValueError: If the linearisation is traced, a batch, or has no inputs or outputs.
        """
        try:
            import control
        except ImportError as error:
            raise ImportError("to_control() needs python-control: pip install 'ukjax[control]'.") from error
        return control.StateSpace(*self._matrices("to_control()"), states=list(self.names))

    def _report(self) -> Report:
        inputs, outputs = self.B.shape[-1], self.C.shape[-2]
        states = ", ".join(self.names)
        ended = "" if not np.any(code_of(self.result)) else f" {outcome(self.result)}"
        head = f"Linearisation in {len(self.names)} states ({states}), {inputs} inputs, {outputs} outputs.{ended}"
        if self.A.ndim != 2:
            return Report(head, [(name, values(getattr(self, name))) for name in ("A", "B", "C", "x", "u")])
        if len(self.names) > MOST_STATES:
            return Report(head, notes=["modes() has its modes."])
        rows, more = shortened(self.modes().rows())
        return Report(head, rows, MODES, more)

    def _matrices(self, what: str) -> list[np.ndarray]:
        self._must_be_one(what)
        for name, size, hint in (
            ("inputs", self.B.shape[1], "actuation=G"),
            ("outputs", self.C.shape[0], "outputs=lambda q, v, t: q"),
        ):
            if size == 0:
                raise ValueError(f"{what} needs {name}: pass {hint} to ukjax.analysis.linearize.")
        return [np.asarray(x) for x in (self.A, self.B, self.C, self.D)]

    def _must_be_one(self, what: str) -> None:
        if is_traced(self.A):
            raise ValueError(f"{what} needs numbers, but A is traced. Call it outside of jit, vmap and grad.")
        if self.A.ndim != 2:
            raise ValueError(
                f"{what} is of one linearisation, but A has shape {self.A.shape}. Take one of the batch: "
                "jax.tree_util.tree_map(lambda x: x[i], linearization)."
            )


# Part of its terms by which a row may be missed, and part of their size by which rates may depend on quantities other
# than the states.
OFF = 1e-6


def linearize(
    mechanism: Mechanism,
    q: ArrayLike | Sequence[ArrayLike],
    v: ArrayLike | Sequence[ArrayLike] | None = None,
    t: ArrayLike = 0.0,
    *,
    actuation: ActuationLike | None = None,
    u: ArrayLike | Sequence[ArrayLike] | None = None,
    outputs: StateFunction | None = None,
    states: StateFunction | None = None,
    servo: AbstractServo | Sequence[AbstractServo] | Feedback | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    throw: bool = True,
) -> Linearization:
    r"""Returns a linear system $\dot x = A x + B u$, $y = C x$ for small changes about a state of a mechanism.

    Changes are those that the constraints, holonomic or not, redundant or not, allow. x holds one state for each
    independent change: entries of q and v that are independent there, or the functions in `states`. About a state that
    does not stay, the result is the linear system of that moment. Along a trajectory `jax.vmap` gives A(t) and B(t) of
    $\dot x = A(t) x + B(t) u$, with the same `states` throughout.

    Args:
        mechanism: System and constraints; its array leaves are differentiable.
        q: Coordinates, shape (n,) [m or rad], on the constraints: see `assemble`, `equilibrium`.
        v: Rates of q, shape (n,) [m/s or rad/s]; zero if omitted.
        t: Time, scalar [s].
        actuation: G (n, p), a matrix or `actuation(q, t)`: the generalised force of a unit of each input. No inputs if
            omitted.
        u: The inputs there, shape (p,) [N or N m, by the actuation]; zero if omitted.
        outputs: `outputs(q, v, t)`, shape (r,), the outputs; none if omitted.
        states: The states: `ukjax.analysis.independent(...)`, or `states(q, v, t)` -> (k,), or None to choose
            independent coordinates and speeds, which needs numbers, not tracers. There may be fewer states than degrees
            of freedom if their rates depend on nothing else: lean and steer of a bicycle, and their rates, anywhere;
            an angle that is seen from a frame that turns.
        servo: Servos, or a `Feedback` without memory, that act: their control then is part of the mechanism.
        formulation: Method by which the acceleration is computed.
        throw: Raise if the result is not successful. With False look at `result`.

    Returns:
        `Linearization`: `A`, `B`, `C`, `D`, `rates`, `directions`, `names`, `modes()`, `to_control()`, `to_scipy()`.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If a shape does not fit, a number is not finite, or `u` is given without `actuation`.
        RuntimeError: If `throw` and the state is off the constraints or has no motion, or is singular, with branches of
            the motion that meet there, or the states depend on each other, or their rates depend on something else.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        pendulum = ukjax.Mechanism(system, rod)
        hanging = ukjax.analysis.linearize(pendulum, [0.0, -1.0])
        print(
            hanging.A
        )  # of a displacement along the circle and its rate: [[0, 1], [-9.81, 0]]
        ```

    Gradients: forward and reverse mode, where the rank of A is locally constant.

    Source: tangent space coordinates of constrained systems: Wehage & Haug (1982); Negrut & Ortiz (2006).
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    q, v, t = state_of(mechanism, q, v, t)
    controller = as_static_controller(servo)
    G = None if actuation is None else actuation_of(actuation)
    outputs = outputs if outputs is None else _check.function(outputs, "outputs", "outputs(q, v, t) -> (r,)")
    states = states_of(states, mechanism, q, v, t)
    formulation = with_lowering(formulation, often=in_batch(mechanism, controller, q, v, t, u))
    plant = Plant(mechanism, controller, G, formulation)
    found = _linearize(plant, states, outputs, q, v, t, inputs_of(plant, u, q, v, t))
    return throw_if_failed(found, found.result) if throw else found


def state_of(
    mechanism: Mechanism, q: ArrayLike | Sequence[ArrayLike], v: ArrayLike | Sequence[ArrayLike] | None, t: ArrayLike
) -> tuple[Array, Array, Array]:
    """Returns a finite state, at rest if v is None; raises ValueError if it is invalid."""
    if v is None:
        q = _check.floating(q, "q")
        if mechanism.kinematics is not None:
            raise ValueError("v must be given where the system has a kinematics: jnp.zeros(n), one of each speed.")
        v = jnp.zeros_like(q)
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    _check.finite(q, "q")
    _check.finite(v, "v")
    return q, v, t


def inputs_of(plant: Plant, u: ArrayLike | Sequence[ArrayLike] | None, q: Array, v: Array, t: Array) -> Array:
    """Returns the argument `u`, (p,), or zero for None; raises ValueError if it does not fit."""
    p = plant.inputs(q, t, v.shape[0])
    if u is None:
        return jnp.zeros(p, q.dtype)
    if plant.actuation is None:
        raise ValueError("u has no effect without an actuation. Pass actuation=G, of shape (n, p), or leave it out.")
    u = _check.output(_check.floating(u, "u"), (p,), q.dtype, "u", f"One entry per actuator, of which there are {p}.")
    _check.finite(u, "u")
    return u


@jit_fast_compile
def _linearize(
    plant: Plant, states: StateFunction, outputs: StateFunction | None, q: Array, v: Array, t: Array, u: Array
) -> Linearization:
    mechanism, along = plant.mechanism, tangents(plant.mechanism, q, v, t)

    def told(q: Array, v: Array) -> tuple[Array, Array, Array]:
        """Returns the states, their rates, and the outputs."""
        s = quantities(states, "states", q, v, t)
        y = jnp.zeros(0, q.dtype) if outputs is None else quantities(outputs, "outputs", q, v, t)
        return s, plant.rates_of(states, "states", q, v, t, u)[0], y

    pushed = jax.vmap(lambda dq, dv: jax.jvp(told, (q, v), (dq, dv))[1], in_axes=1, out_axes=1)
    (S, R, Y), x = pushed(along.q, along.v), quantities(states, "states", q, v, t)
    T = jnp.concatenate([along.q, along.v])
    # The inputs enter the rates of the states through the accelerations.
    rates, result = plant.rates_of(states, "states", q, v, t, u)
    B = jax.jacfwd(lambda u: plant.rates_of(states, "states", q, v, t, u)[0])(u)
    D = row_scales(S)
    inverse, rank = pseudoinverse(SVD(), D[:, None] * S)
    inverse = inverse * D[None]
    k = x.shape[0]
    result = worst(
        on_constraints(mechanism, q, v, t),
        result,
        RESULTS.where(is_singular(mechanism, q, v, t), RESULTS.singular_configuration, RESULTS.successful),
        RESULTS.where(rank == k, RESULTS.successful, RESULTS.states_dependent),
        RESULTS.where(_closed(S, R, inverse), RESULTS.successful, RESULTS.states_not_closed),
    )
    return Linearization(
        A=R @ inverse,
        B=B,
        C=Y @ inverse,
        D=jnp.zeros((Y.shape[0], u.shape[0]), q.dtype),
        x=x,
        rates=rates,
        u=u,
        directions=T @ inverse,
        names=_names(states, k),
        states=states,
        coordinates=q.shape[0],
        result=result,
    )


def _closed(S: Array, R: Array, inverse: Array) -> Array:
    """Whether rates depend on nothing but the states: R (1 - S^+ S) = 0."""
    S, R, inverse = stop_gradient((S, R, inverse))
    rest = jnp.linalg.norm(R - (R @ inverse) @ S, axis=1)
    size = jnp.max(jnp.linalg.norm(R, axis=1), initial=0.0)
    return jnp.all(rest <= OFF * jnp.maximum(jnp.linalg.norm(R, axis=1), jnp.sqrt(OFF) * size))


def on_constraints(mechanism: Mechanism, q: Array, v: Array, t: Array) -> RESULTS:
    """Returns success if the state is consistent, by the part of its terms by which each row is missed."""
    return RESULTS.where(is_consistent(mechanism, q, v, t), RESULTS.successful, RESULTS.off_constraints)


def is_consistent(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Array:
    """Whether no row is missed by more than a small part of its terms."""
    position = missed_part(lambda q: mechanism.position_error(q, t), q, jnp.zeros_like(q))
    velocity = missed_part(lambda v: mechanism.velocity_error(q, v, t), v, jnp.zeros_like(v))
    return jnp.all(position <= OFF) & jnp.all(velocity <= OFF)


def _names(states: StateFunction, k: int) -> tuple[str, ...]:
    if isinstance(states, Independent):
        return (*(f"q[{i}]" for i in states.q), *(f"v[{i}]" for i in states.v))
    return tuple(f"states[{i}]" for i in range(k))
