"""Differentiating a trajectory, in forward and in reverse mode, by replaying its steps.

y: state; k: step; S: steps taken; j: saved time; ys: states at the saved times ts; flow: y' = field(t, y), and what
a step ends with.

A Runge-Kutta solution is a chain of maps y_{k+1} = step(t_k, t_{k+1}, y_k, flow), each with an interpolant that gives
the saved states inside the step. The solve records the y_k; its derivative then is one loop over the steps, forward
with a tangent or backward with a cotangent, each needing one step and its derivative. Step sizes count as constants:
they were chosen by the controller, and the solution depends on them only by its error.

diffrax's own adjoints serve one mode each (`ForwardMode`, `RecursiveCheckpointAdjoint`) or pay for `max_steps` whether
taken or not (`DirectAdjoint`). The record costs memory instead: max_steps times the size of the state, in a derivative
only.
"""

from collections.abc import Callable
from typing import Any, cast

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad
from jaxtyping import Array, Float, Int, PyTree


class Record(eqx.Module):
    """The steps of a solve: t and y at the start and at the ends of `count` steps, padded beyond."""

    t: Float[Array, " S"]
    y: Float[Array, "S n"]
    count: Int[Array, ""]


class Flow(eqx.Module):
    """y' = field(t, y); every step ends with y <- project(t, y), if there is one."""

    field: Callable
    project: Callable | None = None


class Problem(eqx.Module):
    """What the steps depend on. `flow` and `y0` carry derivatives, the rest does not."""

    flow: Flow
    y0: Float[Array, " n"]
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree


# integrate(problem, record) -> (ys, Record or None, rest); integrate is hashable and closes over no array.
Integrate = Callable[[Problem, bool], tuple[Array, Record | None, PyTree]]


def replayable(solver: diffrax.AbstractSolver) -> bool:
    """Whether a step depends on nothing but the state at its start."""
    return isinstance(solver, diffrax.AbstractRungeKutta)


def both_modes(integrate: Integrate, problem: Problem) -> tuple[Array, PyTree]:
    """ys and rest of `integrate`; ys is differentiable with respect to the arrays of `flow` and to `y0`."""
    return cast(Any, _solve(problem, integrate=integrate))


@eqx.filter_custom_jvp
def _solve(problem, *, integrate):
    ys, _, rest = integrate(problem, False)
    return ys, rest


@_solve.def_jvp
def _solve_jvp(primals, tangents, *, integrate):
    (problem,), (tangent,) = primals, tangents
    ys, record, rest = _solve_recording(problem, integrate=integrate)
    dys, _ = _replay(problem, record, tangent)
    return (ys, rest), (dys, _nones(rest))


@eqx.filter_custom_jvp
def _solve_recording(problem, *, integrate):
    return integrate(problem, True)


@_solve_recording.def_jvp
def _solve_recording_jvp(primals, tangents, *, integrate):
    # For second derivatives: the recorded states depend on the problem too.
    (problem,), (tangent,) = primals, tangents
    ys, record, rest = _solve_recording(problem, integrate=integrate)
    dys, dsteps = _replay(problem, record, tangent)
    drecord = eqx.tree_at(lambda r: r.y, _nones(record), dsteps, is_leaf=lambda x: x is None)
    return (ys, record, rest), (dys, drecord, _nones(rest))


def _replay(problem, record, tangent):
    """Derivative of the saved and of the recorded states along `tangent`."""
    constants, directions = (problem, record), (tangent.flow, tangent.y0)
    directions = jax.tree_util.tree_map(lambda x: x + _zero(x.dtype, constants, directions), directions)
    return eqxi.filter_primitive_bind(_replay_p, constants, directions)


def _zero(dtype: Any, *trees: PyTree) -> Array:
    """0, linear in its arguments, and batched if any of their arrays is.

    The cotangent of a direction that all systems of a batch share is a sum over the batch. equinox's primitive does not
    sum; adding this to the direction makes it one per system, and JAX's own addition sums when it is transposed.
    """
    arrays = [x for x in jax.tree_util.tree_leaves(trees) if eqx.is_inexact_array(x) and x.size]
    zero = jnp.zeros((), dtype)
    return sum((jnp.where(False, jnp.ravel(x)[0].astype(dtype), zero) for x in arrays), zero)  # not 0 x: x may be NaN


def _step(problem: Problem, t0: Array, t1: Array, y: Array, flow: Flow) -> tuple[Array, PyTree]:
    """The state at t1 and what the interpolant between t0 and t1 is made of."""
    if isinstance(problem.solver, diffrax.AbstractERK):
        y1, dense = _explicit_step(problem.solver.tableau, t0, t1, y, flow)
    else:
        # The only kind of loop over the stages that diffrax can differentiate in both modes.
        solver = eqx.tree_at(lambda s: s.scan_kind, problem.solver, "bounded", is_leaf=lambda x: x is None)
        term = diffrax.ODETerm(call)
        state = solver.init(term, t0, t1, y, flow)
        y1, _, dense, _, _ = solver.step(term, t0, t1, y, flow, state, made_jump=False)
    return (y1 if flow.project is None else flow.project(t1, y1)), dense


def _explicit_step(tableau: Any, t0: Array, t1: Array, y: Array, flow: Flow) -> tuple[Array, PyTree]:
    """The same for an explicit method, as a scan over the stages, which is much cheaper to differentiate."""
    h, stages = t1 - t0, tableau.b_sol.shape[0]
    a = jnp.array([np.pad(row, (0, stages - len(row))) for row in ((), *tableau.a_lower)], y.dtype)
    times = t0 + h * jnp.array([0.0, *tableau.c], y.dtype)

    def stage(k, i):
        return k.at[i].set(h * call(times[i], y + a[i] @ k, flow)), None

    k, _ = jax.lax.scan(stage, jnp.zeros((stages, *y.shape), y.dtype), jnp.arange(stages))
    y1 = y + jnp.asarray(tableau.b_sol, y.dtype) @ k
    return y1, {"y0": y, "y1": y1, "k": k}


@eqx.filter_jit
def call(t, y, flow):
    """field(t, y), as one call in the traced program instead of a copy at every place that uses it."""
    return flow.field(t, y)


def _interpolate(problem: Problem, t0: Array, t1: Array, dense: PyTree, t: Array) -> Array:
    return problem.solver.interpolation_cls(t0=t0, t1=t1, **dense).evaluate(t)


def _forward(constants, directions):
    problem, record = constants
    dflow, dy0 = directions
    ts = problem.ts

    def body(carry):
        k, j, dy, dys, dsteps = carry
        t0, t1 = record.t[k], record.t[k + 1]
        move = lambda y, flow: _step(problem, t0, t1, y, flow)
        (_, dense), (dy, ddense) = eqx.filter_jvp(move, (record.y[k], problem.flow), (dy, dflow))

        def save(inner):
            j, dys = inner
            at = lambda d: _interpolate(problem, t0, t1, d, ts[j])
            return j + 1, dys.at[j].set(eqx.filter_jvp(at, (dense,), (ddense,))[1])

        due = lambda inner: (inner[0] < ts.shape[0]) & (ts[inner[0]] <= t1)
        j, dys = jax.lax.while_loop(due, save, (j, dys))
        return k + 1, j, dy, dys, dsteps.at[k + 1].set(dy)

    dy0 = jnp.zeros_like(problem.y0) if dy0 is None else dy0
    dys = jnp.zeros((ts.shape[0], *dy0.shape), dy0.dtype).at[0].set(dy0)
    dsteps = jnp.zeros_like(record.y).at[0].set(dy0)
    one = jnp.ones((), record.count.dtype)
    start = (0 * one, one, dy0, dys, dsteps)
    *_, dys, dsteps = jax.lax.while_loop(lambda carry: carry[0] < record.count, body, start)
    return dys, dsteps


@eqxi.filter_primitive_def
def _shapes(constants, directions):
    problem, record = constants
    n, dtype = problem.y0.shape[0], problem.y0.dtype
    return (
        ShapedArray((problem.ts.shape[0], n), dtype),
        ShapedArray(record.y.shape, dtype),
    )


@eqxi.filter_primitive_jvp
def _forward_jvp(primals, tangents):
    # Second order in forward mode: the loop differentiates like any other.
    return eqx.filter_jvp(_forward, primals, tangents)


@eqxi.filter_primitive_transpose  # pyright: ignore
def _backward(arguments, cotangents):
    (problem, record), directions = arguments
    cts, csteps = cotangents
    ts = problem.ts
    wanted, fixed = eqx.partition(problem.flow, jax.tree_util.tree_map(_is_undefined, directions[0], is_leaf=_is_leaf))
    csteps = jnp.zeros_like(record.y) if csteps is None else csteps
    cts = jnp.zeros((ts.shape[0], record.y.shape[1]), record.y.dtype) if cts is None else cts

    def body(carry):
        k, j, cy, cflow = carry
        k = k - 1
        t0, t1 = record.t[k], record.t[k + 1]
        move = lambda y, wanted: _step(problem, t0, t1, y, eqx.combine(wanted, fixed))
        (_, dense), pullback = jax.vjp(move, record.y[k], wanted)

        def save(inner):
            j, cdense = inner
            _, to_dense = jax.vjp(lambda d: _interpolate(problem, t0, t1, d, ts[j]), dense)
            return j - 1, jax.tree_util.tree_map(jnp.add, cdense, to_dense(cts[j])[0])

        due = lambda inner: (inner[0] > 0) & (ts[inner[0]] > t0)
        j, cdense = jax.lax.while_loop(due, save, (j, jax.tree_util.tree_map(jnp.zeros_like, dense)))
        cy, more = pullback((cy, cdense))
        return k, j, cy + csteps[k], jax.tree_util.tree_map(jnp.add, cflow, more)

    last = (jnp.sum(ts <= record.t[record.count]) - 1).astype(record.count.dtype)
    start = (record.count, last, csteps[record.count], jax.tree_util.tree_map(jnp.zeros_like, wanted))
    _, _, cy, cflow = jax.lax.while_loop(lambda carry: carry[0] > 0, body, start)
    cy = cy + cts[0]
    return _nones((problem, record)), (cflow, cy if _is_undefined(directions[1]) else None)


def _is_undefined(x):
    return isinstance(x, ad.UndefinedPrimal)


def _is_leaf(x):
    return x is None or _is_undefined(x)


def _nones(tree):
    return jax.tree_util.tree_map(lambda _: None, tree)


_replay_p = eqxi.create_vprim(
    "trajectory_derivative", eqxi.filter_primitive_def(_forward), _shapes, _forward_jvp, _backward
)
