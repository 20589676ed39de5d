r"""Inverse dynamics: the controls and reactions that belong to a given motion.

a: acceleration (n,); G: actuation (n, p); W^T W = M^-1, L = W^-1; B = A W^T; N = 1 - B^+ B, projector on the directions
that the constraints leave free; r = W (M a - Q): N (r - W G u) = 0 gives u, and Q^c = M a - Q - G u is the constraint
force.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._equation import reactions
from .._formulation import metric, row_scales
from .._linalg import SVD, pseudoinverse, pseudosolve
from .._mechanism import Mechanism
from .._program import jit_fast_compile
from .._result import RESULTS, throw_if_failed, worst
from .._servo import ActuationLike, actuation_at, actuation_of
from .._show import AbstractShown, Report, outcome, shortened, values
from .._system import applied_force
from .._types import Coordinates, Scalar, Vector


# Error that is allowed, as a part of the size of the forces, or of a row's own terms.
MISSED = 1e-6


class InverseDynamics(AbstractShown):
    """The controls and forces that make a motion.

    Attributes:
        u: Controls (p,), the smallest that make the motion [N or N m, by the actuation].
        constraint_force: Force of the ideal constraints (n,) [N or N m].
        multipliers: Multipliers of the rows of each constraint, by its name, (m,).
        missed: The part of the force that no control and no constraint makes, (n,) [N or N m]; zero if all is well.
        row_residual: Euclidean norm of A a - b: zero for a motion that the constraints allow.
        result: `RESULTS`; empty message if all went well.
    """

    u: Float[Array, " p"]
    constraint_force: Float[Array, " n"]
    multipliers: dict[str, Array]
    missed: Float[Array, " n"]
    row_residual: Scalar
    result: RESULTS

    def _report(self) -> Report:
        rows = [
            ("u [N or N m]", values(self.u)),
            ("constraint force [N or N m]", values(self.constraint_force)),
            *((f"multipliers of {name}", values(x)) for name, x in self.multipliers.items()),
            ("missed force [N or N m]", values(self.missed)),
            ("residual of the constraints", values(self.row_residual)),
        ]
        shown, more = shortened(rows)
        return Report(f"Inverse dynamics: {outcome(self.result)}", shown, notes=more)


def inverse_dynamics(
    mechanism: Mechanism,
    actuation: ActuationLike,
    q: ArrayLike | Sequence[ArrayLike],
    v: ArrayLike | Sequence[ArrayLike],
    acceleration: ArrayLike | Sequence[ArrayLike],
    t: ArrayLike = 0.0,
    *,
    applied: ArrayLike | Sequence[ArrayLike] | None = None,
    throw: bool = True,
) -> InverseDynamics:
    r"""Returns controls u and multipliers $\lambda$ of a motion at one instant:  a = Q + G u + A^\top \lambda$.

    Where actuators are redundant or loops are closed, the controls are the smallest possible. For a motion over time
    use `jax.vmap`; to follow a motion that is given by its path use a `Servo`.

    Args:
        mechanism: System and constraints; rows may be redundant.
        actuation: G (n, p), a matrix or `actuation(q, t)`.
        q: Coordinates (n,) [m or rad].
        v: Rates of q (n,) [m/s or rad/s].
        acceleration: a (n,) [m/s^2 or rad/s^2].
        t: Time, scalar [s].
        applied: Further generalised force (n,) [N or N m].
        throw: Raise if there is no such control. With False look at `result`; then u comes as near as can be, in the
            metric of the mass matrix.

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If a shape does not fit, or the mechanism has a non-ideal force, which depends on the reactions to
            be found.
        RuntimeError: If `throw` and the constraints do not allow the motion, no control makes it, or the mass matrix is
            not positive definite.

    Gradients: forward and reverse mode, where the ranks are locally constant; `missed`, `row_residual` and `result`
    carry none.

    Source: Liu et al. (2015), eq. 16 to 20, solved for u without a servo constraint.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    if mechanism.nonideal is not None:
        raise ValueError(
            "mechanism has a non-ideal force, which depends on the reactions that are asked for. Use a Servo."
        )
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    G = actuation_of(actuation)
    hint = f"One acceleration for each rate, of which there are {v.shape[0]}."
    given = _check.floating(acceleration, "acceleration")
    a = _check.output(given, v.shape, v.dtype, "acceleration", hint)
    _check.finite(a, "acceleration")
    force = None if applied is None else applied_force(applied, v, "applied")  # pyright: ignore[reportArgumentType]  (a list is checked there)
    found = _inverse(mechanism, G, q, v, a, t, force)
    return throw_if_failed(found, found.result) if throw else found


@jit_fast_compile
def _inverse(
    mechanism: Mechanism, actuation: Array | Callable[[Array, Array], ArrayLike], q: Coordinates, v: Vector, a: Vector,
    t: Scalar, applied: Vector | None,
) -> InverseDynamics:  # fmt: skip
    terms = mechanism.terms_of(applied).whole(q, v, t).without_rounding
    G, all_are_real = actuation_at(actuation, q, t, v.shape[0]), terms.rounding is not None
    L, W, _, regular = metric(terms.M, terms.A, terms.partition, all_are_real)
    r = W @ (terms.M @ a - terms.Q)
    B = terms.A @ W.T
    D = row_scales(B, all_are_real)
    inverse, _ = pseudoinverse(SVD(), D[:, None] * B)

    def free_part(x: Array) -> Array:
        """Returns N x for a vector, or for every column of a matrix."""
        return x - inverse @ (D[:, None] * (B @ x) if x.ndim == 2 else D * (B @ x))

    u, _ = pseudosolve(SVD(), free_part(W @ G), free_part(r))
    rest = r - W @ (G @ u)
    missed = stop_gradient(free_part(rest))
    force = L @ (rest - missed)
    size = jnp.linalg.norm(stop_gradient(r)) + jnp.linalg.norm(stop_gradient(W @ terms.Q))
    gap = stop_gradient(terms.A @ a - terms.b)
    sizes = stop_gradient(jnp.abs(terms.A) @ jnp.abs(a) + jnp.abs(terms.b))
    least = 0.0
    if terms.rounding is not None:
        of_A, of_b = terms.rounding
        least = of_A @ jnp.abs(a) + of_b
    allowed = jnp.all(jnp.abs(gap) <= stop_gradient(MISSED * sizes + least))
    result = worst(
        RESULTS.where(regular, RESULTS.successful, RESULTS.mass_not_positive_definite),
        RESULTS.where(allowed, RESULTS.successful, RESULTS.motion_off_constraints),
        RESULTS.where(jnp.linalg.norm(missed) <= MISSED * size, RESULTS.successful, RESULTS.motion_unreachable),
    )
    return InverseDynamics(u, force, reactions(terms, force).multipliers, L @ missed, jnp.linalg.norm(gap), result)
