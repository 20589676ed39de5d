"""The object of an analysis, and the quantities that determine a consistent state of it among its neighbours.

The object is a mechanism on which actuators and a controller act. The quantities are some coordinates and speeds, or
functions chosen by the user.

d: displacement (n,) from q; J: Jacobian of the position errors in d; A, E: Jacobians of the velocity errors in v and in
d; D: row scales; G: metric, W^T W = G^-1; B = D J W^T.

Branches of the motion meet in a singular configuration. Let there be W^T W = M^-1; B = D A W^T, of rank r; N = 1 - B
B^+ and T = 1 - B^+ B: projectors on dependent combinations of rows, and on free speeds. Where the rank is r nearby too,
dependent rows remain dependent along every motion q' = t with A t = 0, and N dB[t] T = 0. Where branches meet, this is
not so: along most directions t the rank grows, and no tangent space describes the motion. All speeds W^T z have one
unit. Therefore all entries of dB[t] have one unit, and can be compared.

q: coordinates (n_q,); v: speeds (n,); u: inputs (p,) of actuators; s: quantities of the state.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._formulation import AbstractFormulation, metric, row_scales
from .._linalg import SVD, pseudoinverse, rank_tolerance
from .._mechanism import Mechanism
from .._program import jit_fast_compile
from .._result import RESULTS, is_traced
from .._servo import AbstractController, actuation_at
from .._types import Coordinates, Matrix, Rows, Scalar, Vector


# A user's function of the state (q, v, t), which returns some quantities (k,).
StateFunction = Callable[[Coordinates, Vector, Scalar], ArrayLike | Sequence[ArrayLike]]


class Plant(eqx.Module):
    """A mechanism with what acts on it, and the actuators that inputs drive."""

    mechanism: Mechanism
    controller: AbstractController
    actuation: Array | Callable[[Array, Array], ArrayLike] | None
    formulation: AbstractFormulation

    def matrix(self, q: Coordinates, t: Scalar, n: int) -> Matrix:
        """Returns G(q, t), (n, p); (n, 0) without actuators."""
        return jnp.zeros((n, 0), q.dtype) if self.actuation is None else actuation_at(self.actuation, q, t, n)

    def inputs(self, q: Coordinates, t: Scalar, n: int) -> int:
        """Returns the number of inputs p."""
        return jax.eval_shape(lambda q, t: self.matrix(q, t, n), q, t).shape[1]

    def applied(self, q: Coordinates, v: Vector, t: Scalar, u: Vector) -> Vector | None:
        """Returns the generalised force of the actuators and of the controller (n,), or None if there are neither."""
        force = self.driven(q, t, v.shape[0], u)
        own = self.controller.force(self.mechanism, self.formulation, q, v, t, None, force)
        return force if own is None else own if force is None else force + own

    def driven(self, q: Coordinates, t: Scalar, n: int, u: Vector) -> Vector | None:
        """Returns G u, or None without actuators."""
        return None if self.actuation is None else self.matrix(q, t, n) @ u

    def rates(self, q: Coordinates, v: Vector, t: Scalar, u: Vector) -> tuple[Coordinates, Vector, RESULTS]:
        """Returns q', v', and the result of the motion."""
        applied, mechanism = self.driven(q, t, v.shape[0], u), self.mechanism
        motion = self.controller.drive(mechanism, self.formulation, q, v, t, None, applied).motion
        return mechanism.rates(q, v, t), motion.acceleration, motion.result

    def rates_of(
        self, function: StateFunction, name: str, q: Coordinates, v: Vector, t: Scalar, u: Vector
    ) -> tuple[Array, RESULTS]:
        """Returns d/dt of `function(q, v, t)`, shape (k,), along the motion, and the result of the motion."""
        *along, result = self.rates(q, v, t, u)
        tangents = (*along, jnp.ones_like(t))
        return jax.jvp(lambda *state: quantities(function, name, *state), (q, v, t), tangents)[1], result


def quantities(function: StateFunction, name: str, q: Coordinates, v: Vector, t: Scalar) -> Array:
    """Returns the value of a user's function of the state, (k,)."""
    return _check.output(function(q, v, t), ("k",), q.dtype, f"{name}(q, v, t)", "Put a single quantity in a list.")


class Tangents(NamedTuple):
    """Columns that span the tangent space of the consistent states: n of displacements, then n of speeds alone.

    Attributes:
        q: Change of the coordinates, (n_q, 2 n).
        v: Change of the speeds, (n, 2 n).
        free_q: Lengths that the rows of `q` would have without constraints, (n_q,); infinite for a coordinate at a
            turning point, which determines nothing.
        free_v: Lengths that the rows of `v` would have without constraints, (n,).
    """

    q: Float[Array, "n_q k"]
    v: Float[Array, "n k"]
    free_q: Coordinates
    free_v: Vector


def tangents(mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> Tangents:
    r"""Returns the tangents of consistent changes: $J\,\delta d = 0$, $A\,\delta v + E\,\delta d = 0$.

    With orthonormal columns in the metric of the mass matrix the units of coordinates do not matter.
    """
    rest, M = jnp.zeros_like(v), mechanism.mass(q, t, v.shape[0])

    def at(d: Vector) -> Coordinates:
        return mechanism.retract(q, d, t)

    of_position = jax.jacfwd(lambda d: mechanism.position_error(at(d), t))(rest)
    along_d, along_v = jax.jacfwd(lambda d, v: mechanism.velocity_error(at(d), v, t), argnums=(0, 1))(rest, v)
    moved, _, free = _null(M, of_position)
    changed, back, _ = _null(M, along_v)
    N = jax.jacfwd(at)(rest)
    return Tangents(
        q=jnp.concatenate([N @ moved, jnp.zeros((q.shape[0], v.shape[0]), q.dtype)], axis=1),
        v=jnp.concatenate([-back @ (along_d @ moved), changed], axis=1),
        free_q=_free(at, q, rest, N @ free, free),
        free_v=jnp.linalg.norm(free, axis=1),
    )


def _free(
    at: Callable[[Vector], Coordinates], q: Coordinates, rest: Vector, slopes: Matrix, moves: Matrix
) -> Coordinates:
    """Returns the lengths of the slopes, infinite where curvature makes them too small to be seen.

    The scalar part of a unit quaternion is 1 - a^2 / 8 after a turn by a: at a = 1e-16 its slope is not zero, but no
    change of it can be seen. A slope s counts if s^2 is not small beside the second derivative times the coordinate.
    """
    lengths = jnp.linalg.norm(slopes, axis=1)
    bends = jax.jacfwd(jax.jacfwd(at))(rest)
    bent = jnp.sqrt(jnp.sum(jnp.einsum("qij,ia,jb->qab", bends, moves, moves) ** 2, axis=(1, 2)))
    turning = lengths**2 <= jnp.sqrt(jnp.finfo(q.dtype).eps) * bent * jnp.abs(q)
    return jnp.where(turning, jnp.inf, lengths)


def _null(M: Matrix, J: Rows) -> tuple[Matrix, Matrix, Matrix]:
    """Returns W^T (1 - B^+ B), which spans the null space of J; J^+ in the metric; and W^T."""
    W = metric(M, J).W
    B = J @ W.T
    D = row_scales(B)
    B = D[:, None] * B
    inverse = pseudoinverse(SVD(), B)[0] if J.shape[0] else jnp.zeros((J.shape[1], 0), J.dtype)
    return W.T @ (jnp.eye(J.shape[1], dtype=J.dtype) - inverse @ B), (W.T @ inverse) * D[None], W.T


# Part of their whole change by which rows may become independent: the rank test's own tolerance.
GROWING = 1e-4


def is_singular(mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> Array:
    """Whether the rank of the constraint rows is greater next to this state than at it."""
    q, v = stop_gradient((q, v))
    rest, M = jnp.zeros_like(v), mechanism.mass(q, t, v.shape[0])

    def at(d: Vector) -> Coordinates:
        return mechanism.retract(q, d, t)

    def rows(d: Vector) -> Rows:
        return jax.jacfwd(lambda v: mechanism.velocity_error(at(d), v, t))(v)

    A = rows(rest)
    if not A.shape[0]:
        return jnp.asarray(False)
    W = metric(M, A).W
    D = row_scales(A @ W.T)
    left, free = _left(D[:, None] * A @ W.T)
    of_position = jax.jacfwd(lambda d: mechanism.position_error(at(d), t))(rest)
    B = of_position @ W.T
    moves = free if not B.shape[0] else _left(row_scales(B)[:, None] * B)[1]
    turned = jax.vmap(lambda d: jax.jvp(rows, (rest,), (d,))[1], in_axes=1)(W.T @ moves)
    change = D[None, :, None] * turned @ W.T
    grown = jnp.max(jnp.abs(left @ change @ free), initial=0.0)
    return grown > GROWING * jnp.max(jnp.abs(change), initial=0.0)


def _left(B: Matrix) -> tuple[Matrix, Matrix]:
    """Returns N and T, projectors on the dependent combinations of rows and on the null space of B."""
    inverse = pseudoinverse(SVD(), B)[0]
    m, n = B.shape
    return jnp.eye(m, dtype=B.dtype) - B @ inverse, jnp.eye(n, dtype=B.dtype) - inverse @ B


# A coordinate with a higher index is chosen only if those with lower ones leave it this much more freedom.
PREFERENCE = 0.5


class Independent(eqx.Module):
    """Indices of coordinates and of speeds that together determine a state on its constraints."""

    q: tuple[int, ...] = eqx.field(static=True, converter=lambda x: _indices(x, "q"))
    v: tuple[int, ...] = eqx.field(static=True, converter=lambda x: _indices(x, "v"))

    def __call__(self, q: Coordinates, v: Vector, t: Scalar) -> Array:
        """Returns the independent coordinates and speeds, (k,)."""
        return jnp.concatenate([q[np.array(self.q, int)], v[np.array(self.v, int)]])


def _indices(value: Iterable[SupportsIndex], name: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(i) for i in value)
    except TypeError as error:
        raise TypeError(f"{name} must be a sequence of indices, such as (0, 2), but is {value!r}.") from error


def independent(
    mechanism: Mechanism,
    q: ArrayLike | Sequence[ArrayLike],
    v: ArrayLike | Sequence[ArrayLike],
    t: ArrayLike = 0.0,
) -> Independent:
    """Chooses coordinates and speeds that are independent of each other on the constraints, at a state.

    Coordinates are chosen one after the other. Each is the one to which the constraints and those before leave the
    largest part of its unconstrained freedom, in the metric of the mass matrix; among about equal ones, the first. The
    units of coordinates do not matter.

    Args:
        mechanism: System and constraints.
        q: Coordinates, shape (n,) [m or rad], consistent.
        v: Rates of q, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].

    Returns:
        `Independent`: `q` and `v`, tuples of indices, as many as there are degrees of freedom in positions and in
        velocities.

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If a shape does not fit, or a number is traced: their number decides about shapes.

    Source: coordinate partitioning, Wehage & Haug (1982), by a QR factorisation with pivoting.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    found = _tangents(mechanism, q, v, t)
    if is_traced(found):
        raise ValueError(
            "states must be given where the mechanism or its state is traced, since their number decides about shapes: "
            "pass states=ukjax.analysis.independent(mechanism, q, v, t) of a state outside of jit, vmap and grad."
        )
    _check.finite(q, "q")
    _check.finite(v, "v")
    n = v.shape[0]
    return Independent(
        _chosen(np.asarray(found.q)[:, :n], np.asarray(found.free_q)),
        _chosen(np.asarray(found.v)[:, n:], np.asarray(found.free_v)),
    )


@jit_fast_compile
def _tangents(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Tangents:
    return tangents(mechanism, q, v, t)


def _chosen(rows: np.ndarray, free: np.ndarray) -> tuple[int, ...]:
    """Returns indices of independent rows, in order, by Gram-Schmidt with pivoting."""
    rest = rows / np.where(free > 0, free, 1.0)[:, None]
    tolerance, chosen = rank_tolerance(None, rows.dtype), []
    for _ in range(len(rest)):
        lengths = np.linalg.norm(rest, axis=1)
        longest = lengths.max(initial=0.0)
        if longest <= tolerance:
            break
        pivot = int(np.argmax(lengths >= PREFERENCE * longest))
        chosen.append(pivot)
        direction = rest[pivot] / lengths[pivot]
        rest = rest - np.outer(rest @ direction, direction)
        rest[pivot] = 0.0
    return tuple(sorted(chosen))


def states_of(value: StateFunction | None, mechanism: Mechanism, q: Array, v: Array, t: Array) -> StateFunction:
    """Returns the argument `states` as a function of (q, v, t); raises TypeError or ValueError if it is invalid."""
    if value is None:
        return independent(mechanism, q, v, t)
    if isinstance(value, Independent):
        for name, indices, size in (("q", value.q, q.shape[0]), ("v", value.v, v.shape[0])):
            outside = [i for i in indices if not 0 <= i < size]
            if outside:
                raise ValueError(f"states.{name} must hold indices below {size}, but holds {outside[0]}.")
        return value
    if isinstance(value, tuple | list):
        raise TypeError(
            "states must be a function states(q, v, t) -> (k,), or ukjax.analysis.Independent(q, v) with indices of "
            f"coordinates and speeds, but is a {type(value).__name__}."
        )
    return _check.function(value, "states", "states(q, v, t) -> (k,)")
