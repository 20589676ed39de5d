"""Servo constraints: the motion that a mechanism is to follow, its actuators, and the laws that give the control.

M q'' = Q + Q^c + G u: actuation G (n, p), control u (p,), passive constraint force Q^c; A q'' = b: servo constraint, m
rows; q0'': acceleration without control; N: response to a force under the passive constraints, q'' = q0'' + N G u;
C = A N G (m, p); d = b - A q0'': the demand.

A law gives the control of all servos that act together. A further force F gives q'' = q0'' + N F; d is the error of the
rows without control.
"""

import abc
import functools as ft
from collections.abc import Callable, Sequence
from typing import Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.scipy.linalg import block_diag
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from .. import _check
from .._constraint import AbstractConstraint
from .._expand import Certain, ServoTerms
from .._formulation import AbstractFormulation, AbstractLinearFormulation, Motion, certainty, row_scales
from .._linalg import AbstractDecomposition, Jacobi, pseudoinverse, pseudosolve, whiten
from .._mechanism import Mechanism
from .._result import is_traced
from .._terms import Terms
from .._types import Coordinates, IntScalar, Matrix, Numbers, Rows, RowValues, Scalar, Vector


class Plant(eqx.Module):
    """A mechanism at one state and under some force, with its response to further forces.

    Attributes:
        terms: M, Q, A, b of the mechanism.
        W: The inverse of the Cholesky factor of M, (n, n).
        motion: Motion under the force.
        change: A further force (n,) -> changes of the fields of the motion, the acceleration first.
    """

    terms: Terms
    W: Matrix
    motion: Motion
    change: Callable[[Array], tuple[Array, ...]]

    def admit(self, forces: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Returns N times each column of `forces`."""
        return jax.vmap(lambda force: self.change(force)[0], in_axes=1, out_axes=1)(forces)

    def under(self, force: Vector) -> Motion:
        """Returns the motion under a further force."""
        values = (x + dx for x, dx in zip(fields_of_force(self.motion), self.change(force), strict=True))
        return eqx.tree_at(fields_of_force, self.motion, tuple(values))


def fields_of_force(motion: Motion) -> tuple[Array, ...]:
    """Returns the fields of a motion that depend on the force."""
    return motion.acceleration, motion.unconstrained_acceleration, motion.constraint_force, motion.nonideal_force


def respond(terms: Terms, formulation: AbstractFormulation, W: Matrix, force: Vector) -> Plant:
    """Returns the mechanism of these terms under a force (n,); W (n, n) is the inverse of the Cholesky factor of M."""

    def under(force: Vector) -> Terms:
        return Terms(terms.M, terms.Q + force, terms.A, terms.b, terms.nonideal, terms.partition)

    if terms.nonideal is None and isinstance(formulation, AbstractLinearFormulation):
        state = formulation.init(under(force))
        return Plant(terms, W, state.motion, ft.partial(_change, terms, formulation, W, state))

    def motion(force):
        motion = formulation.solve(under(force))
        return fields_of_force(motion), motion

    _, change, at = jax.linearize(motion, force, has_aux=True)
    return Plant(terms, W, at, change)


def _change(
    terms: Terms, formulation: AbstractLinearFormulation, W: Matrix, state: PyTree, force: Vector
) -> tuple[Array, ...]:
    """Returns the changes of the fields of a motion by a further force."""
    response = formulation.compute(state, force, jnp.zeros_like(terms.b))
    return response.acceleration, W.T @ (W @ force), response.constraint_force, jnp.zeros_like(force)


class AbstractLaw(eqx.Module):
    """The law of several servos at one state.

    Attributes:
        decay: Amount by which the rows fall short of b on purpose, so that an error decays, (m,), or zero.
        exact: Whether rows that no control meets are a failure.
    """

    decay: eqx.AbstractVar[RowValues | Scalar]
    exact: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def control(
        self, plant: Plant, A: Rows, G: Float[Array, "n p"], miss: RowValues, u: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], IntScalar, RowValues]:
        """Returns the control, the rank of C, and the part of the demand that the control leaves.

        `miss` is the error of the rows under u, b - decay - A q''; for a linear plant any u serves.
        """

    @abc.abstractmethod
    def wanted(self, A: Rows, b: RowValues, G: Float[Array, "n p"]) -> ServoTerms | None:
        """Returns the least-effort problem of the law, or None if the law is not only that."""


class LeastEffort(AbstractLaw):
    """The law of least effort u^T W u: u = C^+ d + (I - C^+ C) s, with S S^T = W^-1. Liu et al. (2015), eq. 35."""

    decay: Scalar
    exact: bool = eqx.field(static=True)
    root: Float[Array, "p p"]  # S
    free: Float[Array, " p"]  # s
    self_consistent: bool = eqx.field(static=True)
    pseudoinverse: lx.AbstractLinearSolver

    def control(self, plant, A, G, miss, u):
        C = A @ plant.admit(G)
        demand = miss + C @ u
        solver, S, s = self.pseudoinverse, self.root, self.free
        inverse_of = ft.partial(_inverse, solver, S=S, scaled=self.exact)
        if not self.self_consistent:
            inverse, rank = inverse_of(C)
            u = inverse @ (demand - C @ s) + s
        else:
            # Eq. 35 with the passive force that belongs to u: u = X^+ (d - (C - X) u) + (I - X^+ X) s, linear in u.
            X = A @ (plant.W.T @ (plant.W @ G))
            inverse, _ = inverse_of(X)
            _, rank = inverse_of(C)
            right = inverse @ (demand - X @ s) + s
            u, _ = pseudosolve(solver, jnp.eye(u.shape[0], dtype=u.dtype) + inverse @ (C - X), right)
        return u, rank, demand - C @ u

    def wanted(self, A, b, G):
        return None if self.self_consistent else ServoTerms(A, b, G, self.root, self.free)


class Following(AbstractLaw):
    """The law of constraint following, by an ideal force and a decay of the error. Zhao et al. (2018), eq. 72."""

    decay: RowValues
    exact: bool = eqx.field(static=True)
    pseudoinverse: lx.AbstractLinearSolver

    def control(self, plant, A, G, miss, u):
        solver, M = self.pseudoinverse, plant.terms.M
        identity = jnp.eye(M.shape[0], dtype=M.dtype)
        N = plant.admit(identity)
        C = A @ N @ G
        demand = miss + C @ u
        metric, _ = _inverse(solver, A @ N @ A.T, jnp.eye(A.shape[0], dtype=A.dtype))
        admissible, _ = _inverse(solver, A @ N @ M, identity)
        force = A.T @ (metric @ (demand + self.decay)) - M @ (admissible @ self.decay)
        u, _ = pseudosolve(solver, G, force)
        _, rank = _inverse(solver, C, jnp.eye(G.shape[1], dtype=G.dtype))
        return u, rank, demand - C @ u

    def wanted(self, A, b, G):
        return None


def _inverse(solver: lx.AbstractLinearSolver, C: Array, S: Array, scaled: bool = True) -> tuple[Array, Array]:
    """Returns S (C S)^+, the inverse that gives the control of least effort, and the rank of C.

    Unless `scaled` is False, the rows of C are brought to about the same length first, for the sake of the rank test.
    Where they cannot all be satisfied that changes which control comes nearest.
    """
    B = C @ S
    D = row_scales(B) if scaled else jnp.ones(B.shape[0], B.dtype)
    P, rank = pseudoinverse(solver, D[:, None] * B)
    return (S @ P) * D[None], rank


# The argument `actuation`: G (n, p), or actuation(q, t) -> G.
ActuationLike = Numbers | Callable[[Array, Array], Numbers]


def actuation_of(value: ActuationLike) -> Array | Callable:
    """Returns the argument `actuation` as a matrix or a function; raises ValueError if it is neither."""
    if callable(value):
        return _check.function(value, "actuation", "actuation(q, t) -> (n, p)")
    G = _check.floating(value, "actuation")
    if G.ndim != 2 or 0 in G.shape:
        raise ValueError(
            f"actuation must have shape (n, p), one row per coordinate and one column per actuator, but has shape "
            f"{G.shape}. A single actuator is a column: jnp.array([[1.0], [0.0]])."
        )
    _check.finite(G.ravel(), "actuation")
    return G


def actuation_at(actuation: Array | Callable, q: Coordinates, t: Scalar, n: int) -> Float[Array, "n p"]:
    """Returns G(q, t) from the result of `actuation_of`."""
    value = actuation(q, t) if callable(actuation) else actuation
    hint = f"One row per coordinate, of which there are {n}, and one column per actuator."
    what = "actuation(q, t)" if callable(actuation) else "actuation"
    G = _check.output(value, (n, "p"), q.dtype, what, hint)
    if G.shape[1] == 0:
        raise ValueError("actuation must have at least one column, one per actuator, but has none.")
    return G


def limits_of(value: object) -> tuple[Array, Array]:
    """Returns the argument `limits` as a lower and an upper limit; raises ValueError if it is invalid."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"limits must be a pair (lower, upper), each a scalar or one entry per actuator, not {value!r}."
        )
    low, high = (_check.floating(x, f"limits[{i}]") for i, x in enumerate(value))
    for i, limit in enumerate((low, high)):
        if limit.ndim > 1:
            raise ValueError(f"limits[{i}] must be a scalar or have shape (p,), but has shape {limit.shape}.")
    if not is_traced(low, high) and not np.all(np.asarray(low) <= np.asarray(high)):
        raise ValueError(f"limits must be (lower, upper) with lower <= upper, but are {low} and {high}.")
    return low, high


def limits_at(limits: tuple[Array, Array] | None, p: int, dtype: DTypeLike) -> tuple[Array, Array]:
    """Returns lower and upper limits (p,), infinite if there are none."""
    if limits is None:
        return jnp.full(p, -jnp.inf, dtype), jnp.full(p, jnp.inf, dtype)
    hint = f"A scalar, or one entry per actuator, of which there are {p}."
    low, high = (jnp.full(p, x) if x.ndim == 0 else x for x in limits)
    return _check.output(low, (p,), dtype, "limits", hint), _check.output(high, (p,), dtype, "limits", hint)


Reading = Literal["least_norm", "self_consistent"]


class AbstractServo(eqx.Module):
    """A servo constraint, the actuators that enforce it, and the law of their control."""

    constraint: AbstractConstraint
    actuation: Array | Callable
    pseudoinverse: lx.AbstractLinearSolver
    consistency_rtol: float = eqx.field(static=True)

    def __init__(
        self,
        constraint: AbstractConstraint,
        actuation: ActuationLike,
        pseudoinverse: lx.AbstractLinearSolver,
        consistency_rtol: float,
    ):
        self.constraint, self.actuation, self.pseudoinverse = constraint, actuation_of(actuation), pseudoinverse
        self.consistency_rtol = _check.tolerance(consistency_rtol, "consistency_rtol")

    def __check_init__(self):
        _check.instance(self.constraint, AbstractConstraint, "constraint", "ukjax.Holonomic(phi)")
        _check.instance(self.pseudoinverse, lx.AbstractLinearSolver, "pseudoinverse", "ukjax.pseudoinverse.Jacobi()")

    @abc.abstractmethod
    def limits_at(self, p: int, dtype: DTypeLike) -> tuple[Array, Array]:
        """Returns the lower and upper limit of every actuator, (p,) each; infinite where there is none."""

    @abc.abstractmethod
    def law(
        self, mechanism: Mechanism, servos: Sequence[Self], sizes: Sequence[int], q: Coordinates, v: Vector, t: Scalar
    ) -> AbstractLaw:
        """Returns the law of all `servos`, which are of this kind and have `sizes` actuators each, at one state."""

    def certain(self, m: int, dtype: DTypeLike) -> Certain | None:
        """Returns the limits within which factors of C (m rows) decide the rank; None without singular values."""
        if not isinstance(self.pseudoinverse, AbstractDecomposition):
            return None
        return certainty(self.pseudoinverse, self.consistency_rtol, m, dtype)

    def matrix(self, q: Coordinates, t: Scalar, n: int) -> Float[Array, "n p"]:
        """Returns G(q, t), (n, p)."""
        return actuation_at(self.actuation, q, t, n)


class Servo(AbstractServo):
    r"""Makes a mechanism follow a constraint exactly: $u = C^{+} d + (I - C^{+} C)\,s$.

    $C = A N G$ is the response of the servo rows to the control, $d = b - A\ddot q_0$ their error without it. Among the
    controls that satisfy the rows the first term is the smallest; the second moves the control by s along directions
    that leave the rows unchanged.

    Args:
        constraint: Constraint to follow: `Holonomic`, `Nonholonomic` or `AccelerationConstraint`. With a `Baumgarte`
            stabilisation it is approached from any start, without one an initial error stays.
        actuation: G (n, p), a matrix or `actuation(q, t)`: the generalised force of a unit of each control.
        free: s, a vector (p,) or `free(q, v, t)`; None for zero.
        weight: The control effort $u^\top W u$ that is smallest: W as a vector (p,) of positive weights, a symmetric
            positive definite matrix (p, p), or None for $u^\top u$.
        limits: (lower, upper), each a scalar or (p,): the control saturates there. The servo rows are then missed by
            `residual`.
        reading: Treatment of passive constraints, if there are any. "least_norm" (default): their forces react to the
            control, and u is the smallest that satisfies the rows. "self_consistent": literally eq. 35 of the paper,
            $u = (A M^{-1} G)^{+}(b - A M^{-1}(Q + Q^c))$ with the passive force $Q^c$ that belongs to u; it satisfies
            the same rows, by a larger control if actuators are redundant. Needs M > 0.
        exact: Whether an unreachable constraint is a failure. With False the control comes as near as it can, in the
            sense of least squares of the rows as the user wrote them, and `residual` is the distance.
        pseudoinverse: The lineax solver that applies $C^{+}$.
        consistency_rtol: A row that is missed by more than this part of the size of its terms is unreachable.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If a shape does not fit, a weight is not positive, or a lower limit lies above its upper one.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        cart = ukjax.Mechanism(
            ukjax.System(
                lambda q, t: jnp.diag(jnp.array([2.0])), lambda q, v, t: -0.3 * v
            )
        )
        there = ukjax.Holonomic(
            lambda q, t: q - jnp.sin(t), ukjax.Baumgarte.classic(5.0, 5.0)
        )
        servo = ukjax.Servo(there, actuation=[[1.0]])
        print(
            ukjax.servo_control(cart, servo, [0.0], [0.9]).u
        )  # the motor's force [N]
        ```

    Gradients: with respect to the gains of the constraint, `actuation`, `free`, `weight` and the limits, where the rank
    of C is locally constant and no actuator just reaches its limit.

    Source: Liu et al. (2015), eq. 16 to 35; Chen (2009).
    """

    free: Array | Callable | None
    weight: Array | None
    limits: tuple[Array, Array] | None
    reading: Reading = eqx.field(static=True)
    exact: bool = eqx.field(static=True)

    def __init__(
        self,
        constraint: AbstractConstraint,
        actuation: ActuationLike,
        free: Numbers | Callable[[Array, Array, Array], Numbers] | None = None,
        *,
        weight: Numbers | None = None,
        limits: tuple[Numbers, Numbers] | None = None,
        reading: Reading = "least_norm",
        exact: bool = True,
        pseudoinverse: lx.AbstractLinearSolver = Jacobi(),
        consistency_rtol: float = 1e-6,
    ):
        if reading not in get_args(Reading):
            raise ValueError(f"reading must be one of {', '.join(map(repr, get_args(Reading)))}, but is {reading!r}.")
        if not isinstance(exact, bool):
            raise TypeError(f"exact must be True or False, but is {exact!r}.")
        super().__init__(constraint, actuation, pseudoinverse, consistency_rtol)
        self.free = free if free is None else _free(free)
        self.weight = None if weight is None else _positive(weight, "weight", (1, 2))
        self.limits = None if limits is None else limits_of(limits)
        self.reading, self.exact = reading, exact

    def law(self, mechanism, servos, sizes, q, v, t):
        each = list(zip(servos, sizes, strict=True))
        return LeastEffort(
            decay=jnp.zeros((), q.dtype),
            exact=self.exact,
            root=block_diag(*(one.inverse_root(p, q.dtype) for one, p in each)),
            free=jnp.concatenate([one.free_at(q, v, t, p) for one, p in each]),
            self_consistent=self.reading == "self_consistent",
            pseudoinverse=self.pseudoinverse,
        )

    def free_at(self, q: Coordinates, v: Vector, t: Scalar, p: int) -> Float[Array, " p"]:
        """Returns s at one state, (p,)."""
        if self.free is None:
            return jnp.zeros(p, q.dtype)
        value = self.free(q, v, t) if callable(self.free) else self.free
        what = "free(q, v, t)" if callable(self.free) else "free"
        return _check.output(value, (p,), q.dtype, what, f"One entry per actuator, of which there are {p}.")

    def inverse_root(self, p: int, dtype: DTypeLike) -> Float[Array, "p p"]:
        """Returns S with S S^T = W^-1, so that the effort of u = S w is w^T w."""
        if self.weight is None:
            return jnp.eye(p, dtype=dtype)
        hint = f"One weight per actuator, of which there are {p}."
        if self.weight.ndim == 1:
            return jnp.diag(_check.output(self.weight, (p,), dtype, "weight", hint) ** -0.5)
        weight = _check.output(self.weight, (p, p), dtype, "weight", hint)
        _, inverse, definite = whiten(weight)
        return jnp.where(definite, inverse.T, jnp.nan)

    def limits_at(self, p, dtype):
        return limits_at(self.limits, p, dtype)


class ConstraintFollowing(AbstractServo):
    r"""Approximate constraint following, for a start off the constraint: $\dot\beta = -P^{-1}\beta$ exactly.

    $$F = A^\top (A N A^\top)^{+} (b - A \ddot q_0) - M \tilde A^{+} P^{-1} \beta, \qquad \tilde A = A N M,$$

    with the error $\beta$ of the constraint's velocities ($\dot\Phi$ or $\psi$) and $G u = F$. The first term is the
    force of an ideal constraint; the second, which is not an ideal force, takes the error to zero. Without passive
    constraints N is $M^{-1}$, $\tilde A$ is A, and this is eq. 72 of the paper.

    Args:
        constraint: Constraint to follow, without a stabilisation of its own: `Holonomic` or `Nonholonomic`.
        actuation: G (n, p), a matrix or `actuation(q, t)`. The force F must lie in its range; where it does not, the
            control comes as near as it can, and the servo rows count as unreachable.
        P: Time constants [s]: a positive scalar, a vector (m,), or a symmetric positive definite matrix (m, m).
        pseudoinverse: The lineax solver for the pseudoinverses.
        consistency_rtol: As for `Servo`.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If `P` is not positive, or the constraint has a stabilisation, or no velocities to be followed.

    Gradients: with respect to `P` and `actuation`, where the ranks are locally constant.

    Source: Zhao et al. (2018), eq. 72. There K(q1 - q2) is misprinted as q1, and u is the force on the links.
    """

    P: Array

    def __init__(
        self,
        constraint: AbstractConstraint,
        actuation: ActuationLike,
        P: Numbers,
        *,
        pseudoinverse: lx.AbstractLinearSolver = Jacobi(),
        consistency_rtol: float = 1e-6,
    ):
        if getattr(constraint, "stabilization", None) is not None:
            raise ValueError(
                "constraint must have no stabilization here: P takes the error to zero. Pass the constraint without "
                "ukjax.Baumgarte, or use ukjax.Servo."
            )
        super().__init__(constraint, actuation, pseudoinverse, consistency_rtol)
        self.P = _positive(P, "P", (0, 1, 2))

    def limits_at(self, p, dtype):
        return limits_at(None, p, dtype)

    def law(self, mechanism, servos, sizes, q, v, t):
        decay = jnp.concatenate([one.decay(mechanism.velocity_error_of(one.constraint, q, v, t)) for one in servos])
        return Following(decay=decay, exact=True, pseudoinverse=self.pseudoinverse)

    def decay(self, beta: RowValues) -> RowValues:
        """Returns P^-1 beta, (m,)."""
        if beta.shape[0] == 0:
            raise ValueError(
                "constraint has no velocities whose error could decay. Pass a ukjax.Holonomic or ukjax.Nonholonomic."
            )
        hint = f"A scalar, or one entry per row of the constraint, of which there are {beta.shape[0]}."
        m = beta.shape[0]
        if self.P.ndim == 2:
            P = _check.output(self.P, (m, m), beta.dtype, "P", hint)
            _, inverse, definite = whiten(P)
            return jnp.where(definite, inverse.T @ (inverse @ beta), jnp.nan)
        P = _check.output(jnp.full(m, self.P) if self.P.ndim == 0 else self.P, (m,), beta.dtype, "P", hint)
        return beta / P


def _free(value: object) -> Array | Callable:
    if callable(value):
        return _check.function(value, "free", "free(q, v, t) -> (p,)")
    s = _check.floating(value, "free")
    if s.ndim != 1:
        raise ValueError(f"free must have shape (p,), one entry per actuator, but has shape {s.shape}.")
    _check.finite(s, "free")
    return s


def _positive(value: object, name: str, dimensions: tuple[int, ...]) -> Array:
    """Returns `value` as an array, positive (definite) and with one of these `dimensions`."""
    array = _check.floating(value, name)
    if array.ndim not in dimensions or (array.ndim == 2 and array.shape[0] != array.shape[1]):
        shapes = " or ".join(("a scalar", "a vector", "a square matrix")[d] for d in dimensions)
        raise ValueError(f"{name} must be {shapes}, but has shape {array.shape}.")
    if is_traced(array):
        return array
    _check.finite(array.ravel(), name)
    numbers = np.asarray(array, float)
    if array.ndim < 2:
        if np.any(numbers <= 0):
            raise ValueError(f"{name} must be positive, but is {numbers.tolist()}.")
    elif not np.allclose(numbers, numbers.T) or np.min(np.linalg.eigvalsh(numbers)) <= 0:
        raise ValueError(f"{name} must be symmetric positive definite, but is {numbers.tolist()}.")
    return array
