r"""Linearisation of a mechanism about a state, in independent states.

s: states (k,), functions of (q, v, t); s': their rates, functions of the same; T: tangents of the consistent states
(n_q + n, K), so that small changes of q and v are T c; S = (ds) T, R = (ds') T (k, K). Along the motion
x' = R c where x = S c, and therefore A = R S^+. This is exact if the states determine the state (S has the rank of T).
It is also exact otherwise, if the rates of the states depend on nothing else: R (1 - S^+ S) = 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, row_scales, with_lowering
from .._linalg import SVD, pseudoinverse
from .._mechanism import Mechanism
from .._program import in_batch, jit_fast_compile
from .._result import RESULTS, throw_if_failed, worst
from .._rounding import missed_part
from .._servo import AbstractServo, Feedback, actuation_of, as_static_controller
from ._linearization import Linearization
from ._plant import Plant, quantities
from ._states import Independent, states_of
from ._tangents import is_singular, tangents


# Part of its terms by which a row may be missed, and part of their size by which rates may depend on quantities other
# than the states.
OFF = 1e-6


def linearize(
    mechanism: Mechanism,
    q: Any,
    v: Any = None,
    t: ArrayLike = 0.0,
    *,
    actuation: Any = None,
    u: Any = None,
    outputs: Callable | None = None,
    states: Callable | None = None,
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

        system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        pendulum = ukjax.Mechanism(system, rod)
        hanging = ukjax.analysis.linearize(pendulum, [0.0, -1.0])
        print(hanging.A)  # of a displacement along the circle and its rate: [[0, 1], [-9.81, 0]]
        ```

    Gradients: forward and reverse mode, where the rank of A is locally constant.

    Source: tangent space coordinates of constrained systems: Wehage & Haug (1982); Negrut & Ortiz (2006).
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    q, v, t = state_of(mechanism, q, v, t)
    controller = as_static_controller(servo)
    actuation = None if actuation is None else actuation_of(actuation)
    outputs = outputs if outputs is None else _check.function(outputs, "outputs", "outputs(q, v, t) -> (r,)")
    states = states_of(states, mechanism, q, v, t)
    formulation = with_lowering(formulation, often=in_batch(mechanism, controller, q, v, t, u))
    plant = Plant(mechanism, controller, actuation, formulation)
    found = _linearize(plant, states, outputs, q, v, t, inputs_of(plant, u, q, v, t))
    return throw_if_failed(found, found.result) if throw else found


def state_of(mechanism: Mechanism, q: Any, v: Any, t: Any) -> tuple[Array, Array, Array]:
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


def inputs_of(plant: Plant, u: Any, q: Array, v: Array, t: Array) -> Array:
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
    plant: Plant, states: Callable, outputs: Callable | None, q: Array, v: Array, t: Array, u: Array
) -> Linearization:
    mechanism, along = plant.mechanism, tangents(plant.mechanism, q, v, t)

    def told(q: Array, v: Array) -> tuple[Array, Array, Array]:
        """Returns the states, their rates, and the outputs."""
        s = quantities(states, "states", q, v, t)
        y = jnp.zeros(0, q.dtype) if outputs is None else quantities(outputs, "outputs", q, v, t)
        return s, plant.rates_of(states, "states", q, v, t, u)[0], y

    moved = lambda dq, dv: jax.jvp(told, (q, v), (dq, dv))[1]
    (S, R, Y), x = jax.vmap(moved, in_axes=1, out_axes=1)(along.q, along.v), quantities(states, "states", q, v, t)
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


def on_constraints(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Any:
    """Returns success if the state is consistent, by the part of its terms by which each row is missed."""
    position = missed_part(lambda q: mechanism.position_error(q, t), q, jnp.zeros_like(q))
    velocity = missed_part(lambda v: mechanism.velocity_error(q, v, t), v, jnp.zeros_like(v))
    near = jnp.all(position <= OFF) & jnp.all(velocity <= OFF)
    return RESULTS.where(near, RESULTS.successful, RESULTS.off_constraints)


def _names(states: Callable, k: int) -> tuple[str, ...]:
    if isinstance(states, Independent):
        return (*(f"q[{i}]" for i in states.q), *(f"v[{i}]" for i in states.v))
    return tuple(f"states[{i}]" for i in range(k))
