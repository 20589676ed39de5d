"""Differentiating a trajectory, in forward and in reverse mode, by replaying its steps.

y: state; k: step; S: steps taken; j: saved time; ys: states at the saved times ts; flow: y' = field(t, y), and what
a step ends with.

A Runge-Kutta solution is a chain of maps y_{k+1} = step(t_k, t_{k+1}, y_k, flow), each with an interpolant that gives
the saved states inside the step. The solve records the y_k; its derivative then is one loop over the steps, forward
with a tangent or backward with a cotangent, each needing one step and its derivative. Step sizes count as constants:
they were chosen by the controller, and the solution depends on them only by its error. With respect to the times it
is the flow that is differentiated, y' = field(t, y): see `advance`.

diffrax's own adjoints serve one mode each (`ForwardMode`, `RecursiveCheckpointAdjoint`) or pay for `max_steps` whether
taken or not (`DirectAdjoint`). The record costs memory instead: max_steps times the size of the state, in a derivative
only.
"""

import functools as ft
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
from jax.lax import stop_gradient
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
    """What the steps depend on. `flow`, `y0` and `ts` carry derivatives, the rest does not."""

    flow: Flow
    y0: Float[Array, " n"]
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree


class Directions(eqx.Module):
    """A tangent of a problem, or which of its parts are wanted, or a cotangent; None where there is none."""

    flow: Any
    y0: Any
    ts: Any


# integrate(problem, record) -> (ys, Record or None, rest); integrate is hashable and closes over no array.
Integrate = Callable[[Problem, bool], tuple[Array, Record | None, PyTree]]


def replayable(solver: diffrax.AbstractSolver) -> bool:
    """Whether a step depends on nothing but the state at its start."""
    return isinstance(solver, diffrax.AbstractRungeKutta)


def both_modes(integrate: Integrate, problem: Problem) -> tuple[Array, PyTree]:
    """ys and rest of `integrate`; ys is differentiable with respect to the arrays of `flow`, to `y0` and `ts`."""
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
    constants, directions = (problem, record), Directions(tangent.flow, tangent.y0, tangent.ts)
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


def advance(flow: Flow, y: Array, start: Array, end: Array) -> Array:
    """y after a step of the midpoint rule from `start` to `end`, which are equal: the step has length zero.

    Its value is y, and its first and second derivatives with respect to both times, to y and to the flow are those of
    the solution through (start, y), for it differs from that by the third power of the length.
    """
    h = end - start
    return y + h * call(start + h / 2, y + h / 2 * call(start, y, flow), flow)


def _first(y0: Array, t0: Array, flow: Flow, moving: bool) -> Array:
    """The state from which the steps start, at a time that is constant; y0 is that at t0, which may be `moving`."""
    return advance(flow, y0, t0, stop_gradient(t0)) if moving else y0


def _saved(problem: Problem, span: tuple[Array, Array], dense: PyTree, t: Array, flow: Flow, moving: bool) -> Array:
    """The state at t, which may be `moving`, within a step over `span`."""
    y = problem.solver.interpolation_cls(t0=span[0], t1=span[1], **dense).evaluate(stop_gradient(t))
    return advance(flow, y, stop_gradient(t), t) if moving else y


def _forward(constants, directions, moving):
    """Tangents of the saved and of the recorded states; `moving` tells whether ts has any kind of derivative."""
    problem, record = constants
    ts, flow, dts, dflow = problem.ts, problem.flow, directions.ts, directions.flow

    def body(carry):
        k, j, dy, dys, dsteps = carry
        t0, t1 = record.t[k], record.t[k + 1]
        move = lambda y, flow: _step(problem, t0, t1, y, flow)
        (_, dense), (dy, ddense) = eqx.filter_jvp(move, (record.y[k], flow), (dy, dflow))

        def save(inner):
            j, dys = inner
            state = lambda dense, t, flow: _saved(problem, (t0, t1), dense, t, flow, moving)
            _, d = eqx.filter_jvp(state, (dense, ts[j], flow), (ddense, None if dts is None else dts[j], dflow))
            return j + 1, dys.at[j].set(d)

        due = lambda inner: (inner[0] < ts.shape[0]) & (ts[inner[0]] <= t1)
        j, dys = jax.lax.while_loop(due, save, (j, dys))
        return k + 1, j, dy, dys, dsteps.at[k + 1].set(dy)

    dy0 = jnp.zeros_like(problem.y0) if directions.y0 is None else directions.y0
    dys = jnp.zeros((ts.shape[0], *dy0.shape), dy0.dtype).at[0].set(dy0)
    start = lambda y0, t0, flow: _first(y0, t0, flow, moving)
    _, dy0 = eqx.filter_jvp(start, (problem.y0, ts[0], flow), (dy0, None if dts is None else dts[0], dflow))
    dsteps = jnp.zeros_like(record.y).at[0].set(dy0)
    one = jnp.ones((), record.count.dtype)
    carry = (0 * one, one, dy0, dys, dsteps)
    *_, dys, dsteps = jax.lax.while_loop(lambda carry: carry[0] < record.count, body, carry)
    return dys, dsteps


@eqxi.filter_primitive_def
def _forward_impl(constants, directions):
    return _forward(constants, directions, directions.ts is not None)


@eqxi.filter_primitive_def
def _forward_shapes(constants, directions):
    problem, record = constants
    n, dtype = problem.y0.shape[0], problem.y0.dtype
    return (
        ShapedArray((problem.ts.shape[0], n), dtype),
        ShapedArray(record.y.shape, dtype),
    )


@eqxi.filter_primitive_jvp
def _forward_jvp(primals, tangents):
    # Second order in forward mode: the loop differentiates like any other.
    moving = primals[1].ts is not None or tangents[0][0].ts is not None
    return eqx.filter_jvp(ft.partial(_forward, moving=moving), primals, tangents)


@eqxi.filter_primitive_transpose  # pyright: ignore
def _transpose(arguments, cotangents):
    constants, directions = arguments
    wanted = jax.tree_util.tree_map(_is_undefined, directions, is_leaf=_is_leaf)
    return _nones(constants), eqxi.filter_primitive_bind(_pullback_p, constants, wanted, cotangents)


def _backward(constants, wanted, cotangents, moving):
    """Cotangents of what is `wanted` from those of the saved and of the recorded states."""
    problem, record = constants
    ts, cys, csteps = problem.ts, *cotangents
    diff, fixed = eqx.partition(problem.flow, wanted.flow)
    csteps = jnp.zeros_like(record.y) if csteps is None else csteps
    cys = jnp.zeros((ts.shape[0], record.y.shape[1]), record.y.dtype) if cys is None else cys

    def body(carry):
        k, j, cy, cflow, cts = carry
        k = k - 1
        span = t0, t1 = record.t[k], record.t[k + 1]
        move = lambda y, diff: _step(problem, t0, t1, y, eqx.combine(diff, fixed))
        (_, dense), pullback = jax.vjp(move, record.y[k], diff)

        def save(inner):
            j, cdense, cflow, cts = inner
            state = lambda dense, t, diff: _saved(problem, span, dense, t, eqx.combine(diff, fixed), moving)
            _, pullback = jax.vjp(state, dense, ts[j], diff)
            to_dense, to_t, to_flow = pullback(cys[j])
            return j - 1, _add(cdense, to_dense), _add(cflow, to_flow), cts.at[j].add(to_t)

        due = lambda inner: (inner[0] > 0) & (ts[inner[0]] > t0)
        inner = (j, jax.tree_util.tree_map(jnp.zeros_like, dense), cflow, cts)
        j, cdense, cflow, cts = jax.lax.while_loop(due, save, inner)
        cy, to_flow = pullback((cy, cdense))
        return k, j, cy + csteps[k], _add(cflow, to_flow), cts

    last = (jnp.sum(ts <= record.t[record.count]) - 1).astype(record.count.dtype)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, diff), jnp.zeros_like(ts)
    carry = (record.count, last, csteps[record.count], *zeros)
    _, _, cy, cflow, cts = jax.lax.while_loop(lambda carry: carry[0] > 0, body, carry)
    start = lambda y0, t0, diff: _first(y0, t0, eqx.combine(diff, fixed), moving)
    _, pullback = jax.vjp(start, problem.y0, ts[0], diff)
    cy, to_t, to_flow = pullback(cy)
    cy0, cts = cy + cys[0], cts.at[0].add(to_t)
    return Directions(_add(cflow, to_flow), cy0 if wanted.y0 else None, cts if wanted.ts else None)


@eqxi.filter_primitive_def
def _backward_impl(constants, wanted, cotangents):
    return _backward(constants, wanted, cotangents, wanted.ts)


@eqxi.filter_primitive_def
def _backward_shapes(constants, wanted, cotangents):
    problem, _ = constants
    diff, _ = eqx.partition(Directions(problem.flow, problem.y0, problem.ts), wanted)
    return jax.tree_util.tree_map(lambda x: ShapedArray(x.shape, x.dtype), diff)


@eqxi.filter_primitive_jvp
def _backward_jvp(primals, tangents):
    moving = primals[1].ts or tangents[0][0].ts is not None
    (constants, wanted, cotangents), (dconstants, _, dcotangents) = primals, tangents
    pull = lambda constants, cotangents: _backward(constants, wanted, cotangents, moving)
    return eqx.filter_jvp(pull, (constants, cotangents), (dconstants, dcotangents))


def _add(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree_util.tree_map(jnp.add, a, b)


def _is_undefined(x):
    return isinstance(x, ad.UndefinedPrimal)


def _is_leaf(x):
    return x is None or _is_undefined(x)


def _nones(tree):
    return jax.tree_util.tree_map(lambda _: None, tree)


_replay_p = eqxi.create_vprim("trajectory_tangent", _forward_impl, _forward_shapes, _forward_jvp, _transpose)
# A primitive too, so that its derivative knows whether the times have one.
_pullback_p = eqxi.create_vprim("trajectory_cotangent", _backward_impl, _backward_shapes, _backward_jvp, None)
