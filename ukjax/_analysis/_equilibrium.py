r"""Equilibria and steady motions: states at which given quantities stay constant.

z = (d, w, u): displacement from the given q, speeds, inputs, as far as they are free; c(q, v, t): quantities that must
stay constant; e: constraint errors; r(z) = (c', e), and J its Jacobian.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, row_scales, with_lowering
from .._linalg import SVD, pseudosolve
from .._manifold import indices_of, kept_of
from .._mechanism import Mechanism
from .._program import in_batch, jit_fast_compile
from .._result import RESULTS, SUCCESS, code_of, is_traced, throw_if_failed, worst
from .._servo import AbstractServo, ActuationLike, Feedback, actuation_of, as_static_controller
from .._show import AbstractShown, Report, outcome, values
from .._types import Coordinates, IntScalar, Scalar, Vector
from ._linearize import inputs_of, state_of
from ._plant import Plant, StateFunction, quantities
from ._search import fall, near_equilibrium, settled, sizes_of


# The shortest row that counts, as a part of the longest.
LEAST = 1e-4
# Distance from an equilibrium that counts as zero, as a part of the sizes of displacements, speeds and inputs.
PART, PART_OF_LOW_PRECISION = 1e-9, 1e-4


class Equilibrium(AbstractShown):
    """A state at rest, or a steady motion; it unpacks as `q, v, u`.

    Attributes:
        q: Coordinates (n,) [m or rad].
        v: Rates of q (n,) [m/s or rad/s].
        u: Inputs (p,) [N or N m, by the actuation].
        residual: Largest rate of the quantities that must stay constant.
        freedom: Number of directions that lead from here to other equilibria nearby, with kept values unchanged. Zero
            if this equilibrium is isolated; more if it is one of many, of which it is the nearest to the given state.
        result: `RESULTS`; empty message if all went well.
    """

    q: Float[Array, " n_q"]
    v: Float[Array, " n"]
    u: Float[Array, " p"]
    residual: Scalar
    freedom: IntScalar
    result: RESULTS

    def __iter__(self):
        return iter((self.q, self.v, self.u))

    def _report(self) -> Report:
        shown = [("q", self.q), ("v", self.v), ("u", self.u)]
        rows = [(name, values(x)) for name, x in shown if name == "q" or np.any(x)]
        if self.q.ndim != 1:
            return Report(f"Equilibria: {outcome(self.result)}", rows)
        if code_of(self.result) != SUCCESS:
            return Report("No equilibrium was found.")
        free = int(self.freedom)
        many = f"One of many: {free} ways lead to others nearby" if free else "Isolated: there is no other nearby"
        return Report(f"{many} (residual {float(self.residual):.1e}).", rows)


class _Free(NamedTuple):
    """Indices of the displacements and speeds to be found."""

    d: tuple[int, ...]
    v: tuple[int, ...]


def equilibrium(
    mechanism: Mechanism,
    q: ArrayLike | Sequence[ArrayLike],
    v: ArrayLike | Sequence[ArrayLike] | None = None,
    t: ArrayLike = 0.0,
    *,
    constant: StateFunction | None = None,
    actuation: ActuationLike | None = None,
    u: ArrayLike | Sequence[ArrayLike] | None = None,
    keep: Mapping[str, ArrayLike | Sequence[int]] | None = None,
    servo: AbstractServo | Sequence[AbstractServo] | Feedback | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    atol: float | None = None,
    max_steps: int = 256,
    throw: bool = True,
) -> Equilibrium:
    r"""Returns a state at rest, or a steady motion, near a given state, stable or not.

    $$\Phi(q, t) = 0,\quad \dot\Phi = \psi = 0,\quad \frac{d}{dt}\,c(q, v, t) = 0$$

    along the motion, where c is (q, v) at rest. The unknowns are q, v unless at rest, and the inputs of actuators,
    except those that are kept.

    Args:
        mechanism: System and constraints; rows may be redundant. Its array leaves are differentiable.
        q: Coordinates to start from, shape (n,) [m or rad]; they need not be on the constraints.
        v: Rates to start from, shape (n,) [m/s or rad/s], for a steady motion; zero if omitted.
        t: Time, scalar [s].
        constant: `constant(q, v, t)`, shape (k,): quantities that must stay constant in a steady motion. A disc that
            rolls round a circle keeps its lean and all angular rates; a bead on a hoop that turns keeps the angle theta
            on the hoop and its rate, `lambda q, v, t: jnp.stack(jax.jvp(theta, (q, t), (v, 1.0)))`. None for q and v.
        actuation: G (n, p), a matrix or `actuation(q, t)`, of inputs to be found.
        u: Inputs to start from, shape (p,); zero if omitted.
        keep: Entries that stay as given: {"q": [0], "v": [0], "u": [0]}, as in `assemble`.
        servo: Servos, or a `Feedback` without memory, that act: their control then is part of the mechanism.
        formulation: Method by which the acceleration is computed.
        atol: Distance from an equilibrium that counts as zero, in the unit of the coordinates, to first order. If None,
            1e-9 (in lower precision 1e-4) of the natural sizes of displacements, speeds and inputs in this mechanism.
            These follow from its mass matrix, rows, coordinates and forces, so that units do not matter.
        max_steps: Step budget of each of the two searches.
        throw: Raise if no equilibrium is found. With False the state then is NaN.

    Returns:
        `Equilibrium`, which unpacks as q, v and u. It need not be stable: `linearize(mechanism, q, v).stable`.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If a shape does not fit, a number is not finite, `v` is not zero although everything must rest, or
            nothing is left to be found.
        RuntimeError: If `throw` and no equilibrium was found.

    Gradients: forward and reverse mode, once, by the implicit function theorem, where the equilibrium is isolated.
    Where it is one of many, they are those of the shortest way to the changed equilibria.

    Source: relative equilibria, Marsden & Ratiu (1999), Introduction to Mechanics and Symmetry; root finding by
    optimistix.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    at_rest = constant is None and mechanism.kinematics is None
    q, v, t = state_of(mechanism, q, v, t)
    if constant is not None:
        constant = _check.function(constant, "constant", "constant(q, v, t) -> (k,)")
    elif not is_traced(v) and np.any(np.asarray(v)):
        raise ValueError("v must be zero where everything is to rest. Say what is to stay constant: constant=...")
    controller = as_static_controller(servo)
    G = None if actuation is None else actuation_of(actuation)
    formulation = with_lowering(formulation, often=in_batch(mechanism, controller, q, v, t, u))
    plant = Plant(mechanism, controller, G, formulation)
    u = inputs_of(plant, u, q, v, t)
    keep = dict(keep) if isinstance(keep, Mapping) else keep
    kept_inputs = keep.pop("u", ()) if isinstance(keep, dict) else ()
    kept = kept_of(keep, v.shape[0])
    held = indices_of(kept_inputs, u.shape[0], 'keep["u"]', "inputs")
    free = _Free(_others(kept.q, v.shape[0]), () if at_rest else _others(kept.v, v.shape[0]))
    inputs = _others(held, u.shape[0])
    if not (free.d or free.v or inputs):
        raise ValueError("keep keeps everything: nothing is left to be found.")
    atol = None if atol is None else _check.positive(atol, "atol")
    found = _equilibrium(plant, constant, free, inputs, q, v, t, u, atol, _check.count(max_steps, "max_steps"))
    return throw_if_failed(found, found.result) if throw else found


def _others(kept: tuple[int, ...], n: int) -> tuple[int, ...]:
    return tuple(np.setdiff1d(np.arange(n), kept).tolist())


@jit_fast_compile
def _equilibrium(
    plant: Plant, constant: StateFunction | None, free: _Free, inputs: tuple[int, ...],
    q0: Array, v0: Array, t: Array, u0: Array, atol: float | None, max_steps: int,
) -> Equilibrium:  # fmt: skip
    mechanism, part = plant.mechanism, PART if jnp.finfo(q0.dtype).eps < 1e-12 else PART_OF_LOW_PRECISION
    ends = np.cumsum([len(free.d), len(free.v)])
    d_at, v_at, u_at = (np.array(x, int) for x in (free.d, free.v, inputs))

    def place(z: Array) -> tuple[Array, Array, Array]:
        d, w, u = jnp.split(z, ends)
        d = jnp.zeros_like(v0).at[d_at].set(d)
        return mechanism.retract(q0, d, t), v0.at[v_at].add(w), u0.at[u_at].add(u)

    def residual(z: Array) -> tuple[Array, tuple[Array, RESULTS]]:
        """Returns (c', e), again as auxiliary output, and the result of the motion."""
        q, v, u = place(z)
        if constant is None:
            *rates, result = plant.rates(q, v, t, u)
        else:
            *rates, result = plant.rates_of(constant, "constant", q, v, t, u)
        r = jnp.concatenate([*rates, mechanism.position_error(q, t), mechanism.velocity_error(q, v, t)])
        return r, (r, result)

    def stays(q: Coordinates, v: Vector, t: Scalar) -> Array:
        """Returns the quantities that must stay constant."""
        return jnp.concatenate([q, v]) if constant is None else quantities(constant, "constant", q, v, t)

    sizes = sizes_of(plant, stays, q0, v0, t, u0)
    of = jnp.concatenate([sizes.d[d_at], sizes.v[v_at], sizes.u[u_at]])
    rows = jnp.concatenate([sizes.change, sizes.error])
    away = jnp.zeros_like(of).at[: len(free.d)].set((fall(plant, q0, v0, t, u0, sizes) / sizes.d)[d_at])
    z = near_equilibrium(plant, stays, place, away, of, sizes, t, max_steps)
    if mechanism.nonideal is not None:
        z = settled(lambda z, _: residual(of * z)[0] / rows, z, max_steps)
    z = of * stop_gradient(z)
    J, (r, _) = jax.jacfwd(residual, has_aux=True)(z)
    changing = sizes.change.shape[0]
    lengths = rows * _lengths(J * of[None] / rows[:, None], changing)
    # Where r vanishes, the derivatives of the root are those of z less this step, with J held.
    of = of * row_scales((J * of[None] / lengths[:, None]).T)
    step, rank = pseudosolve(SVD(), _held(J) * of[None] / lengths[:, None], r / lengths)
    z = z - of * step
    q, v, u = place(z)
    r, (_, result) = stop_gradient(residual(z))
    # `atol` has the unit of the coordinates; the rows of J still have it.
    allowed = part * jnp.maximum(lengths, LEAST * rows) if atol is None else atol * _lengths(J, changing)
    met = jnp.all(jnp.abs(r) <= allowed)
    # If there is no motion at the start, that failure is reported; contradictory rows at the start are not.
    *_, started = stop_gradient(plant.rates(q0, v0, t, u0))
    started = RESULTS.where(started == RESULTS.constraints_contradict, RESULTS.successful, started)
    missing = RESULTS.where(met, RESULTS.successful, worst(started, RESULTS.no_equilibrium))
    result = worst(missing, result)
    q, v, u = (jnp.where(result == RESULTS.successful, x, jnp.nan) for x in (q, v, u))
    largest = jnp.max(jnp.abs(r[:changing]), initial=0.0)
    return Equilibrium(q, v, u, largest, of.shape[0] - rank, result)


def _lengths(J: Array, changing: int) -> Array:
    """Returns the lengths of the rows of J, (m,), none much shorter than the longest rate or the longest error.

    Rates are the first `changing` rows. A quantity that does not change with the unknowns is no more than rounding.
    """
    lengths = jnp.linalg.norm(stop_gradient(J), axis=1)
    rows = []
    for part in (lengths[:changing], lengths[changing:]):
        longest = jnp.max(part, initial=0.0)
        rows.append(jnp.maximum(part, jnp.where(longest > 0, LEAST * longest, 1.0)))
    return jnp.concatenate(rows)


@jax.custom_jvp
def _held(J: Array) -> Array:
    """Returns J without a derivative; the first derivative is right, and a second raises an error."""
    return J


@_held.defjvp
def _held_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (J,), (dJ,) = primals, tangents
    return eqxi.nondifferentiable(J, msg="equilibrium can be differentiated once only."), jnp.zeros_like(dJ)
