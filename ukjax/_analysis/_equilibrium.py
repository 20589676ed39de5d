r"""Equilibria and steady motions: states at which given quantities stay constant.

z = (d, w, u): displacement from the given q, speeds, inputs, as far as they are free; c(q, v, t): quantities that must
stay constant; e: constraint errors; r(z) = (c', e), and J its Jacobian.

A coarse search comes from a distant start, in natural sizes of unknowns and equations. Away from an equilibrium
redundant rows contradict each other slightly, and rank decisions jump. Acceleration a and multipliers l are therefore
separate unknowns: M a = Q + G u + A^T l, A a = b, e(q, v, t) = 0, and c' = 0. These equations are as smooth as the
mechanism. As rows may depend on each other, each step is the shortest.

z: all unknowns; r: residual. Both are divided by their natural sizes, which removes the units, and then by scales of
the equations and the unknowns.

C: scales of the coordinates in the metric of the mass matrix, in which all accelerations have one unit; E: scales by
which the constraints compare coordinates, in which all displacements have one unit, and all speeds. Displacements of a
heavy body are as large as of a light one, while its accelerations are less; s_d, s_v, s_a: sizes of displacements,
speeds and accelerations in these units; N = dq / dd; G: actuation; c: quantities that must stay constant.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._formulation import (
    AbstractFormulation,
    UdwadiaKalaba,
    balancing_scales,
    coordinate_scales,
    metric,
    row_scales,
    with_lowering,
)
from .._linalg import SVD, AbstractPseudoinverse, pseudosolve, rank_tolerance
from .._manifold import Rounding, indices_of, kept_of
from .._mechanism import Mechanism
from .._program import in_batch, jit_fast_compile
from .._result import RESULTS, SUCCESS, code_of, is_traced, throw_if_failed, worst
from .._rounding import with_rounding_errors
from .._servo import AbstractServo, ActuationLike, Feedback, actuation_of, as_static_controller
from .._show import AbstractShown, Report, outcome, values
from .._types import BoolScalar, Coordinates, IntScalar, Rows, RowValues, Scalar, Vector
from ._linearize import inputs_of, state_of
from ._states import Plant, StateFunction, quantities


# Part of the largest size below which a size is small; masses of a ratio of 1e12 give larger ones.
SMALL = 1e-8


class Sizes(NamedTuple):
    """Sizes of the unknowns, and of the changes of the equations with them.

    Attributes:
        d: Displacements (n,); v: speeds (n,); u: inputs (p,); a: accelerations (n,); l: multipliers (m,).
        force: M a - Q - A^T l (n,); row: A a - b (m,); error: errors of position and velocity (r,); change: c' (k,).
        scales: C (n,).
    """

    d: Vector
    v: Vector
    u: Array
    a: Vector
    l: RowValues
    force: Vector
    row: RowValues
    error: Array
    change: Array
    scales: Vector


def sizes_of(plant: Plant, constant: Callable[..., Array], q: Coordinates, v: Vector, t: Scalar, u: Array) -> Sizes:
    """Returns sizes from the terms of the constraints, the coordinates, and the forces and their derivatives."""
    q, v, t, u = stop_gradient((q, v, t, u))
    mechanism, rest = plant.mechanism, jnp.zeros_like(v)
    terms = mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    M, Q, A, b = stop_gradient((terms.M, terms.Q, terms.A, terms.b))
    C = coordinate_scales(M, A)
    N, moved = mechanism.displacements(q, t, v.shape[0])
    position, of_d = _rows(lambda q, d, t: mechanism.position_error(mechanism.retract(q, d, t), t), q, rest, t)
    velocity, of_v = _rows(mechanism.velocity_error, q, v, t)
    levers = jnp.concatenate([position.levers, velocity.levers, jnp.abs(A)])
    _, E = balancing_scales(jnp.concatenate([of_d, of_v, A]), levers, C)
    along = _lengths_of(of_d, position, E), _lengths_of(of_v, velocity, E)

    s_d = _first(_least(position.terms / along[0]), _largest(moved / E), 1.0)

    def force(d: Vector) -> Vector:
        """Returns Q after a displacement."""
        return mechanism.terms(mechanism.retract(q, d, t), v, t, plant.applied(mechanism.retract(q, d, t), v, t, u)).Q

    stiffness = C[:, None] * stop_gradient(jax.jacfwd(force)(rest)) * E[None]
    rows = jnp.linalg.norm(A * C[None], axis=1)
    rows = jnp.where(rows > 0, rows, 1.0)
    s_v = _largest(v / E)
    s_a = _first(_largest(C * Q, b / rows, s_d * stiffness), s_v**2 / s_d, s_d)
    s_v = jnp.maximum(s_v, jnp.sqrt(s_a * s_d))

    G = jnp.linalg.norm(C[:, None] * stop_gradient(plant.matrix(q, t, v.shape[0])), axis=0)
    with_q, with_v = stop_gradient(jax.jacfwd(lambda q, v: constant(q, v, t), argnums=(0, 1))(q, v))
    change = jnp.linalg.norm(with_q @ N * E[None], axis=1) * s_v + jnp.linalg.norm(with_v * C[None], axis=1) * s_a
    return Sizes(
        d=s_d * E,
        v=s_v * E,
        u=jnp.maximum(jnp.abs(u), s_a / jnp.where(G > 0, G, 1.0)),
        a=s_a * C,
        l=s_a / rows,
        force=s_a / C,
        row=s_a * rows,
        error=jnp.concatenate([s_d * along[0] + position.terms, s_v * along[1] + velocity.terms]),
        change=jnp.where(change > 0, change, 1.0),
        scales=C,
    )


def _rows(function: Callable[..., Array], q: Coordinates, x: Vector, t: Scalar) -> tuple[Rounding, Rows]:
    """Returns rounding errors of function(q, x, t) (m,) and of its Jacobian in x (m, n), and that Jacobian."""

    def with_jacobian(q: Coordinates, x: Vector, t: Scalar) -> tuple[Array, Rows]:
        return function(q, x, t), jax.jacfwd(lambda x: function(q, x, t))(x)

    (_, J), errors = with_rounding_errors(with_jacobian, q, x, t)
    return Rounding(*errors), stop_gradient(J)


def _lengths_of(J: Rows, rounding: Rounding, C: Vector) -> RowValues:
    """Returns the lengths of rows, (m,); of their terms for rows of rounding errors, and one without terms."""
    none = jnp.all(jnp.abs(J) <= rounding.rows, axis=1)
    lengths = jnp.linalg.norm(jnp.where(none[:, None], rounding.levers, J) * C[None], axis=1)
    return jnp.where(lengths > 0, lengths, 1.0)


def _largest(*values: Array) -> Scalar:
    return jnp.max(jnp.abs(jnp.concatenate([x.reshape(-1) for x in values])), initial=0.0)


def _least(sizes: Array) -> Scalar:
    """Returns the least size that is not small beside the largest; zero if there is none.

    Rows that nearly vanish have very large sizes.
    """
    counts = sizes > SMALL * jnp.max(sizes, initial=0.0)
    least = jnp.min(sizes, where=counts, initial=jnp.inf)
    return jnp.where(jnp.any(counts), least, 0.0)


def _first(*sizes: Array | float) -> Scalar:
    """Returns the first that is positive and finite, or the last."""
    *others, found = sizes
    for size in reversed(others):
        found = jnp.where((size > 0) & jnp.isfinite(size), size, found)
    return jnp.asarray(found)


# Restarts if the search fails from the start: the distance of a fall from there, in units of one fall. A fall leaves
# places, such as a chain of level rods, where no small change improves anything. The second entry says whether rows
# that are almost redundant are left out. Off the constraints redundant rows are of this kind, and contradict each
# other; but so are those of light bodies beside heavy ones, which count.
TRIES = tuple((far, is_loose) for far in (0.0, 1.0, -1.0, 3.0) for is_loose in (False, True))
FALL = 0.3  # of the size of displacements


class _RankTest(AbstractPseudoinverse):
    """The rank test of `SVD`, or one that drops rounding errors only, as decided at run time."""

    is_loose: BoolScalar
    rtol: float | None = eqx.field(default=None, static=True)

    def solve(self, B, Y):
        tolerances = rank_tolerance(0.0, B.dtype), rank_tolerance(None, B.dtype)
        X, rank = SVD().solve_at(B, Y, tolerances)
        return jnp.where(self.is_loose, X[1], X[0]), jnp.where(self.is_loose, rank[1], rank[0])


def near_equilibrium(
    plant: Plant, constant: Callable[..., Array], place: Callable[[Array], tuple[Array, Array, Array]], away: Array,
    of: Array, sizes: Sizes, t: Array, max_steps: int,
) -> Array:  # fmt: skip
    """Returns z with q, v, u = place(of * z) near a state where `constant` stays, from zero; `away`: step of a fall."""
    mechanism = plant.mechanism
    z = jnp.zeros_like(of)
    n = sizes.a.shape[0]
    ends = [z.shape[0], z.shape[0] + n]

    def unbalanced(x: Array) -> Array:
        z, a, l = jnp.split(x, ends)
        (q, v, u), a, l = place(of * z), sizes.a * a, sizes.l * l
        terms, pull = mechanism.terms(q, v, t, plant.applied(q, v, t, u)), 0.0
        carried = terms.A.T @ l
        if terms.nonideal is not None:
            # A non-ideal force would be a function of the ideal force alone; `carried` differs by the part of c along
            # the rows.
            pull = terms.nonideal(carried)
        changes = jax.jvp(lambda *s: constant(*s), (q, v, t), (mechanism.rates(q, v, t), a, jnp.ones_like(t)))[1]
        errors = mechanism.position_error(q, t), mechanism.velocity_error(q, v, t)
        r = terms.M @ a - terms.Q - carried - pull, terms.A @ a - terms.b, *errors, changes
        return jnp.concatenate(r) / jnp.concatenate([sizes.force, sizes.row, sizes.error, sizes.change])

    start = jnp.concatenate([z, jnp.zeros(n, z.dtype), _carried(plant, place(z), sizes, t)])
    J = jax.jacfwd(unbalanced)(start)
    D = row_scales(J)
    C = row_scales((D[:, None] * J).T)
    eps = float(jnp.finfo(z.dtype).eps)

    def scaled(x: Array, _: None) -> Array:
        return D * unbalanced(C * x)

    def attempt(carry):
        i, best, least = carry
        far, is_loose = (jnp.take(jnp.array(values), i) for values in zip(*TRIES, strict=True))
        x = (start.at[: z.shape[0]].add(far.astype(z.dtype) * away)) / C
        search = optx.Dogleg(eps**0.55, eps**0.75, linear_solver=_RankTest(is_loose=is_loose))
        x = optx.least_squares(scaled, search, x, max_steps=max_steps, throw=False).value
        r = jnp.linalg.norm(scaled(x, None))
        better = r < least  # never if it is NaN
        return i + 1, jnp.where(better, x, best), jnp.where(better, r, least)

    def is_unmet(carry):
        return (carry[0] < len(TRIES)) & (carry[2] > eps**0.5)

    carry = jnp.zeros((), int), start / C, jnp.asarray(jnp.inf, z.dtype)
    _, found, least = jax.lax.while_loop(is_unmet, attempt, carry)
    return jnp.where(jnp.isfinite(least), jnp.split(C * found, ends)[0], z)


def _carried(plant: Plant, state: tuple[Array, Array, Array], sizes: Sizes, t: Array) -> Array:
    """Returns multipliers l (m,), in their sizes, that come nearest to holding the mechanism at rest.

    Q + A^T l is least in the metric of M^-1. From zero multipliers the first steps would compensate the forces that
    constraints carry, and lead away from an equilibrium nearby.
    """
    q, v, u = state
    terms = plant.mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    if not terms.A.shape[0]:
        return jnp.zeros(0, q.dtype)
    W = metric(terms.M, terms.A, all_are_real=True).W
    B = sizes.l[:, None] * (terms.A @ W.T)
    l = -pseudosolve(SVD(), B.T, W @ terms.Q)[0]
    return jnp.where(jnp.all(jnp.isfinite(l)), l, 0.0)


def settled(residual: Callable[[Array, None], Array], z: Array, max_steps: int) -> Array:
    """Returns z after a few Gauss-Newton steps on the original equations."""
    tolerance = 4096 * float(jnp.finfo(z.dtype).eps)
    search = optx.GaussNewton(tolerance, tolerance, linear_solver=SVD(1e-8))
    found = optx.least_squares(residual, search, z, max_steps=max_steps, throw=False).value
    return jnp.where(jnp.all(jnp.isfinite(found)), found, z)


def fall(plant: Plant, q: Array, v: Array, t: Array, u: Array, sizes: Sizes) -> Array:
    """Returns a displacement (n,) in the direction of the initial acceleration from rest, of natural size."""
    _, a, _ = plant.rates(q, jnp.zeros_like(v), t, u)
    a = jnp.where(jnp.all(jnp.isfinite(a)), a, 0.0) / sizes.scales
    largest = jnp.max(jnp.abs(a))
    return FALL * sizes.d * a / jnp.where(largest > 0, largest, 1.0)


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
