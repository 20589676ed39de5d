"""The equation of motion at one state."""

import functools as ft
from typing import Any

import equinox as eqx
from jaxtyping import ArrayLike

from . import _check
from ._formulation import AbstractFormulation, Motion, UdwadiaKalaba, motion_by, with_lowering
from ._mechanism import Mechanism
from ._program import in_batch, jit_fast_compile, outside_mesh
from ._reactions import reactions as reactions_of
from ._result import throw_if_failed
from ._system import applied_force


def equation_of_motion(
    mechanism: Mechanism,
    q: Any,
    v: Any,
    t: ArrayLike = 0.0,
    *,
    applied: Any = None,
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
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    applied = None if applied is None else applied_force(applied, v, "applied")
    formulation = with_lowering(formulation, often=in_batch(mechanism, q, v, t, applied))
    motion = outside_mesh(_equation, mechanism, formulation, q, v, t, applied, reactions)
    return throw_if_failed(motion, motion.result) if throw else motion


@ft.partial(jit_fast_compile, inlined=True)
def _equation(mechanism, formulation, q, v, t, applied, carried):
    motion = motion_by(formulation, mechanism.terms_of(applied), q, v, t)
    if not carried:
        return motion
    # The terms are traced a second time but compiled once, since XLA merges equal expressions.
    each = reactions_of(mechanism.terms(q, v, t, applied), motion.constraint_force)
    return eqx.tree_at(_of_each, motion, (each.constraint_forces, each.multipliers), is_leaf=lambda x: x is None)


def _of_each(motion: Motion) -> tuple:
    return motion.constraint_forces, motion.multipliers
