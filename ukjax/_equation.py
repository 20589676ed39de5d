"""The equation of motion at one state, and its reactions.

Reactions are the multipliers of each constraint's rows, and the generalised force that they make.

Q^c = A^T lambda: constraint force (n,); B = A W^T with W^T W = M^-1; D: row scales; H = D B.
"""

import functools as ft
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from . import _check
from ._formulation import AbstractFormulation, Motion, UdwadiaKalaba, metric, motion_by, row_scales, with_lowering
from ._linalg import Jacobi, SkipIfZero, pseudoinverse
from ._mechanism import Mechanism, culprit
from ._program import PlainCalls, in_batch, jit_fast_compile, outside_mesh
from ._result import RESULTS, throw_if_failed
from ._system import applied_force
from ._terms import Terms
from ._types import Matrix, Numbers, Partition, Rows, Vector
from ._user_code import noted
from ._waiting import reported


def equation_of_motion(
    mechanism: Mechanism,
    q: Numbers,
    v: Numbers,
    t: ArrayLike = 0.0,
    *,
    applied: Numbers | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    reactions: bool = False,
    throw: bool = True,
) -> Motion:
    r"""Constrained acceleration and constraint forces at one state.

    $\ddot q = a + L^{-\top}(A L^{-\top})^{+}(b - A a)$ with $M = L L^\top$, $a = M^{-1}(Q + Q_\mathrm{applied})$.

    Args:
        mechanism: System and constraints; its array leaves are differentiable. A number that its functions read from
            elsewhere, such as a global variable or a list, is what it was when they were first compiled for these
            shapes; make what changes a parameter of the system.
        q: Coordinates, shape (n,) [m or rad].
        v: Rates of q, shape (n,) [m/s or rad/s]; the speeds, if the system has a kinematics. Then there may be more
            coordinates, and the acceleration is v'.
        t: Time, scalar [s].
        applied: Further generalised force, shape (n,) [N or N m].
        formulation: Method by which the acceleration is computed.
        reactions: Also compute the load of each constraint: `constraint_forces` and `multipliers`, by name. It doubles
            the program.
        throw: Raise if the result is not successful. With False look at `result`. Pass False in large batches and
            inside your own `jax.jit`: raising there needs a call back to the host, and JAX's persistent compilation
            cache takes no program with such a call.

    Returns:
        `Motion`: `acceleration` (n,) [m/s^2 or rad/s^2], `unconstrained_acceleration` (n,), `constraint_force` and
        `nonideal_force` (n,) [N or N m], `rank`, `residual`, `result`; with `reactions`, by the name of each
        constraint, its share of the constraint force in `constraint_forces`, and its `multipliers`.

    Raises:
        TypeError: If `mechanism` or `formulation` is something else.
        ValueError: While tracing, if a shape does not fit: of q, v, t, `applied`, or of what a function returns.
        RuntimeError: If `throw` and the mass matrix is not positive definite, nor made so by the constraints, if the
            constraints contradict each other, or if a number is not finite.

    Gradients: forward and reverse mode, valid where the rank of A is locally constant; `rank`, `residual` and
    `result` carry none.

    Source: Udwadia & Kalaba (1992); Zhao et al. (2018), eq. 36.
    """
    prepared = None if applied is not None else _plain.find((mechanism, formulation), (q, v, t), bool(reactions))
    if prepared is not None:
        motion = prepared(q, v, t)
    else:
        with noted(), reported("equation of motion"):
            motion = _motion_anew(mechanism, (q, v, t), applied, formulation, bool(reactions))
    return throw_if_failed(motion, motion.result, ft.partial(_why, mechanism, motion, q, v, t)) if throw else motion


def _why(mechanism: Mechanism, motion: Motion, q: Numbers, v: Numbers, t: ArrayLike) -> str:
    """Returns a sentence about the function that is not finite, if one is at fault."""
    state = _check.state(q, v, t, kinematics=mechanism.kinematics)
    return culprit(mechanism, [state]) if bool(motion.result == RESULTS.not_finite) else ""


def _motion_anew(
    mechanism: Mechanism,
    state: tuple[Numbers, Numbers, ArrayLike],
    applied: Numbers | None,
    formulation: AbstractFormulation,
    reactions: bool,
) -> Motion:
    """Returns the motion by a program that is kept for further plain calls, or as part of a larger one."""
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    q, v, t = _check.state(*state, kinematics=mechanism.kinematics)
    applied = None if applied is None else applied_force(applied, v, "applied")
    lowered = with_lowering(formulation, often=in_batch(mechanism, q, v, t, applied))
    prepared = None
    if applied is None:
        of = _motion_with_reactions_soon if reactions else _motion_soon
        prepared = _plain.prepare(of, (mechanism, formulation), (mechanism, lowered), (q, v, t), reactions)
    if prepared is not None:
        return prepared(q, v, t)
    return outside_mesh(_equation, mechanism, lowered, q, v, t, applied, reactions)


_plain = PlainCalls()


def _motion(mechanism, formulation, q, v, t, applied=None, carried=False, soon=False):
    terms_of = mechanism.terms_of(applied)
    motion = motion_by(formulation, terms_of.soon if soon else terms_of, q, v, t)
    if not carried:
        return motion
    # The terms are traced a second time but compiled once, since XLA merges equal expressions.
    each = reactions(mechanism.terms(q, v, t, applied), motion.constraint_force)
    return eqx.tree_at(_of_each, motion, (each.constraint_forces, each.multipliers), is_leaf=lambda x: x is None)


_motion_soon = ft.partial(_motion, soon=True)
_motion_with_reactions_soon = ft.partial(_motion, soon=True, carried=True)
_equation = jit_fast_compile(_motion, inlined=True)


def _of_each(motion: Motion) -> tuple:
    return motion.constraint_forces, motion.multipliers


# Singular values below which dependent rows have no internal reaction: genuine ones are about one times the scales of
# rows; what rounding leaves of others lies below.
DEPENDENT = 1e-8


class Reactions(NamedTuple):
    """Force (n,), in coordinates, and multipliers of the rows (m,) of each constraint, by its name."""

    constraint_forces: dict[str, Vector]
    multipliers: dict[str, Array]


def reactions(terms: Terms, constraint_force: Vector) -> Reactions:
    r"""Returns the share of each constraint in the ideal constraint force.

    $Q^c = A^\top\lambda = \sum_i A_i^\top \lambda_i$. Where rows are dependent only the sum is determined. The
    $\lambda$ returned has the least Euclidean norm, for the rows as the user wrote them: see `sharing`.

    Gradients: forward and reverse mode, where the rank of A is locally constant.
    """
    finite = stop_gradient(jnp.all(jnp.isfinite(constraint_force)) & jnp.all(jnp.isfinite(terms.A)))
    given = constraint_force, terms.M, terms.A
    force, M, A = (jnp.where(finite, x, jnp.zeros_like(x)) for x in given)
    share = sharing(M, A, terms.partition)
    multipliers = jnp.where(finite, share @ force, jnp.nan)
    rows = (("constraints", terms.A.shape[0]),) if terms.rows is None else terms.rows
    ends = np.cumsum([m for _, m in rows])
    parts = [slice(end - m, end) for end, (_, m) in zip(ends, rows, strict=True)]
    names = [name for name, _ in rows]
    return Reactions(
        {name: terms.A[part].T @ multipliers[part] for name, part in zip(names, parts, strict=True)},
        {name: multipliers[part] for name, part in zip(names, parts, strict=True)},
    )


def sharing(M: Matrix, A: Rows, partition: Partition | None = None) -> Rows:
    r"""Returns T (m, n) with $\lambda = T f$, the multipliers of a constraint force f.

    For any other force f the constraints react with $-\lambda$.

    With $H = D A W^\top$ and $P = (H^\top)^+$ one solution of $A^\top\lambda = f$ is $D P W f$. That of least norm
    differs from it by internal reactions of dependent rows, $N = D (1 - P H^\top)$:

    $$T = (1 - N N^+)\, D P W$$

    The rank of H is decided in the metric of M, where neither units nor scales of rows matter. The shares are those of
    the rows as written, so that inertia does not matter to them. Where M is not definite, the metric adds rows to it,
    which changes neither.
    """
    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    W = metric(M, A, partition).W
    B = A @ W.T
    D = row_scales(B)
    H = D[:, None] * B
    P, rank = pseudoinverse(Jacobi(), H.T)
    # Without dependent rows this is nothing but rounding errors.
    N = jnp.where(rank < A.shape[0], D[:, None] * (identity - P @ H.T), jnp.zeros_like(identity))
    back, _ = pseudoinverse(SkipIfZero(Jacobi(DEPENDENT), DEPENDENT), N)
    share = D[:, None] * (P @ W)
    return share - N @ (back @ share)
