"""The derivatives of a trajectory, in forward and in reverse mode, by replaying its steps.

y: state; k: step; K: checkpoints; j: saved time; ys: states at the saved times ts; d: tangent; c: cotangent.

A Runge-Kutta solution is a chain of maps y_{k+1} = step(t_k, t_{k+1}, y_k, flow), each with an interpolant that gives
the saved states inside the step. The derivative is one loop over the segments of the record and the steps in them,
forward with a tangent or backward with a cotangent, each needing one step and its derivative. Step sizes count as
constants: they were chosen by the controller, and the solution depends on them only by its error. With respect to the
times it is the flow that is differentiated, y' = field(t, y): see `advance`.

diffrax's own adjoints serve one mode each (`ForwardMode`, `RecursiveCheckpointAdjoint`) or pay for `max_steps` whether
taken or not (`DirectAdjoint`).

The steps of a segment backwards are one operation, in which cotangents of its end become those of its start. On a CPU
it is a loop of machine code, in which the field and its derivative are routines (`ScalarLoop`).

n: numbers of a state; j: saved time; k: step; p: numbers of the flow that have a derivative.
"""

import functools as ft
from collections.abc import Callable
from typing import NoReturn

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _expand
from .._collector import seldom_collecting
from .._lowering import runs_machine_code
from ._march import IntegrationProblem, ProblemTangent
from ._record import Record
from ._segments import Segment, finer_of, segment_of, segments_of
from ._steps import first, pulled_back, saved, side_by_side, step


class Pullback(eqx.Module):
    """The cotangents before a step backwards.

    Attributes:
        k: The steps that are left of the segment.
        j: The index of the next saved time, from the last on.
        y: The cotangent of the state at the end of the step.
        flow: That of the numbers of the flow, side by side.
        dense: That of the interpolant of the step, by what is saved of it.
        goes: Whether a step is left.
        waits: Whether a step waits for the sure way.
    """

    k: Int[Array, ""]
    j: Int[Array, ""]
    y: Float[Array, " n"]
    flow: Float[Array, " p"]
    dense: PyTree
    goes: Bool[Array, ""]
    waits: Bool[Array, ""]


# The span of a step, and the state at its start.
Row = tuple[Array, Array, Array]


class StepsBack(eqx.Module):
    """The functions of a step backwards, for a `ScalarLoop`.

    `static`, `wanted`: the parts of the problem that are no arrays, and which parts of its flow have a derivative.
    """

    static: IntegrationProblem
    wanted: PyTree
    interpolant: Callable[..., diffrax.AbstractLocalInterpolation] = eqx.field(static=True)

    def step(self, at: Pullback, arrays: PyTree, row: Row) -> tuple[PyTree, ...]:
        """Makes a step backwards."""
        new, found = self._made(at, arrays, row, True)
        stays = eqx.tree_at(lambda x: (x.goes, x.waits), at, (jnp.zeros_like(at.goes), jnp.ones_like(at.waits)))
        return new, stays, *found, jnp.asarray(False), jnp.asarray(True)

    def sure(self, at: Pullback, arrays: PyTree, row: Row) -> tuple[Pullback, tuple[tuple[()], tuple[()]]]:
        return self._made(at, arrays, row, False)

    def _made(
        self, at: Pullback, arrays: PyTree, row: Row, written: bool
    ) -> tuple[Pullback, tuple[tuple[()], tuple[()]]]:
        problem: IntegrationProblem = eqx.combine(arrays, self.static)
        diff, fixed = eqx.partition(problem.flow, self.wanted)
        _, pullback = pulled_back(problem, *row, diff, fixed, written)
        cy, cflow = pullback(at.y, at.dense)
        k = at.k - 1
        dense = jax.tree_util.tree_map(jnp.zeros_like, at.dense)
        return Pullback(k, at.j, cy, at.flow + cflow, dense, k > 0, jnp.zeros_like(at.waits)), ((), ())

    def gather(self, at: Pullback, row: Row, saved: tuple[Array, Array]) -> tuple[Array, Pullback]:
        """Whether a saved time (t, cotangent of the state there) lies within the step, and what comes of it then."""
        (t0, t1, _), (t, cy) = row, saved

        def state(dense: PyTree) -> Array:
            return self.interpolant(t0=t0, t1=t1, **dense).evaluate(t)

        # The state there is linear in the data of the interpolant.
        _, pullback = jax.vjp(state, at.dense)
        (to_dense,) = pullback(cy)
        dense = jax.tree_util.tree_map(jnp.add, at.dense, to_dense)
        is_due = at.goes & (at.j > 0) & (t > t0)
        return is_due, eqx.tree_at(lambda x: (x.j, x.dense), at, (at.j - 1, dense))


# The index of the saved time before the start of a segment, and the cotangents of the state there and of the flow.
AtStart = tuple[Array, Array, Array]


def reversed_steps(
    problem: IntegrationProblem, wanted: PyTree, steps: Segment, at_end: AtStart, cys: Array
) -> AtStart | None:
    """The cotangents at the start of a segment, from those at its end and of the saved states; None if not possible."""
    if not isinstance(problem.solver, diffrax.AbstractERK) or problem.flow.leap is not None or not runs_machine_code():
        return None
    j, cy, cflow = at_end
    arrays, static = eqx.partition(eqx.tree_at(lambda p: (p.ts, p.y0), problem, (None, None)), eqx.is_array)
    back = StepsBack(static, wanted, problem.solver.interpolation_cls)
    stages = problem.solver.tableau.b_sol.shape[0]  # pyright: ignore
    dense = {"y0": jnp.zeros_like(cy), "y1": jnp.zeros_like(cy), "k": jnp.zeros((stages, *cy.shape), cy.dtype)}
    at = Pullback(steps.count, j, cy, cflow, dense, steps.count > 0, jnp.asarray(False))
    # The row of a step is that of the number of steps before it.
    spans = steps.times[:-1], steps.times[1:], steps.states[:-1]
    rows = jax.tree_util.tree_map(lambda x: jnp.concatenate([x[:1], x]), spans)
    gathers = _expand.Gathers(back.gather, lambda x: x.j, lambda x: (x.j, x.dense))
    repeats = _expand.Repeats(
        back.step, back.sure, lambda x: x.goes, lambda x: x.waits, at=lambda x: x.k, gathers=gathers,
        cost=lambda x, _: x.k,
    )  # fmt: skip
    tables = _expand.LoopTables(rows, (problem.ts, cys))
    try:
        loop = _expand.ScalarLoop(repeats, at, arrays, tables)
    except (_expand.TooLong, _expand.NotScalar):
        return None
    end, *_ = loop(at, arrays, tables)
    return end.j, end.y, end.flow


# integrate(problem, record) -> (ys, Record or None, rest); integrate is hashable and closes over no array.
Integrate = Callable[[IntegrationProblem, bool], tuple[Array, Record | None, PyTree]]


def both_modes(integrate: Integrate, problem: IntegrationProblem) -> tuple[Array, PyTree]:
    """The ys and rest of `integrate`; ys is differentiable with respect to the arrays of `flow`, to `y0` and `ts`."""
    return _solve(problem, integrate=integrate)


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
    drecord = eqx.tree_at(lambda r: r.checkpoints.y, _nones(record), dsteps, is_leaf=lambda x: x is None)
    return (ys, record, rest), (dys, drecord, _nones(rest))


def _replay(problem, record, tangent):
    """The derivatives of the saved and of the recorded states along `tangent`."""
    constants, directions = (problem, record), ProblemTangent(tangent.flow, tangent.y0, tangent.ts)
    return eqxi.filter_primitive_bind(_replay_p, constants, linear_in_all(directions, constants))


def linear_in_all(directions: PyTree, *others: PyTree) -> PyTree:
    """Makes each direction linear in all of them, and batched if any direction or any of the `others` is.

    The cotangent of a direction that all systems of a batch share is a sum over the batch. equinox's primitive does not
    sum; adding 0 that is batched to the direction makes it one per system, and JAX's own addition sums when it is
    transposed.
    """
    leaves = [x for x in jax.tree_util.tree_leaves((directions, others)) if eqx.is_inexact_array(x) and x.size]

    @ft.cache
    def zero(dtype):
        # Once for each dtype: once for each parameter would be most of the program. Not 0 x: x may be NaN.
        nought = jnp.zeros((), dtype)
        return sum((jnp.where(False, jnp.ravel(x)[0].astype(dtype), nought) for x in leaves), nought)

    return jax.tree_util.tree_map(lambda x: x + zero(x.dtype), directions)


@seldom_collecting()
def _forward(constants, directions, moving):
    """Tangents of the saved states and of the checkpoints; `moving`: whether ts has a derivative of any kind."""
    problem, record = constants
    ts, flow, dts, dflow = problem.ts, problem.flow, directions.ts, directions.flow

    def segment(carry):
        index, finer, j, y, dy, dys, dpoints = carry
        steps, finer = segment_of(problem, record, finer, index)

        def one(inner):
            k, j, y, dy, dys, dpoints = inner
            slot = steps.slots[k]
            y = jnp.where(slot < record.room, record.checkpoints.y[slot], y)
            dpoints = dpoints.at[slot].set(dy, mode="drop")
            t0, t1 = steps.times[k], steps.times[k + 1]
            (y, dense), (dy, ddense) = eqx.filter_jvp(ft.partial(step, problem, t0, t1), (y, flow), (dy, dflow))

            def save(inner):
                j, dys = inner
                state = ft.partial(saved, problem, (t0, t1), moving=moving)
                _, d = eqx.filter_jvp(state, (dense, ts[j], flow), (ddense, None if dts is None else dts[j], dflow))
                return j + 1, dys.at[j].set(d)

            def due(inner):
                return (inner[0] < ts.shape[0]) & (ts[inner[0]] <= t1)

            j, dys = jax.lax.while_loop(due, save, (j, dys))
            return k + 1, j, y, dy, dys, dpoints

        inner = (0 * index, j, y, dy, dys, dpoints)
        _, j, y, dy, dys, dpoints = jax.lax.while_loop(lambda inner: inner[0] < steps.count, one, inner)
        return index + 1, finer, j, y, dy, dys, dpoints

    dy0 = jnp.zeros_like(problem.y0) if directions.y0 is None else directions.y0
    dys = jnp.zeros((ts.shape[0], *dy0.shape), dy0.dtype).at[0].set(dy0)
    _, dy0 = eqx.filter_jvp(
        ft.partial(first, moving=moving), (problem.y0, ts[0], flow), (dy0, None if dts is None else dts[0], dflow)
    )
    one = jnp.ones((), record.count.dtype)
    y0, dpoints = jax.lax.stop_gradient(problem.y0), jnp.zeros_like(record.checkpoints.y)
    carry = (0 * one, finer_of(problem, record), one, y0, dy0, dys, dpoints)
    segments = segments_of(problem, record)
    *_, dys, dpoints = _over_segments(lambda carry: carry[0] < segments, segment, carry)
    return dys, dpoints


def _over_segments(going, segment, carry):
    # A batch need not copy the finer checkpoints, the second item of the carry.
    return eqxi.while_loop(going, segment, carry, kind="lax", buffers=lambda carry: carry[1])


@eqxi.filter_primitive_def
def _forward_impl(constants, directions):
    return _forward(constants, directions, directions.ts is not None)


@eqxi.filter_primitive_def
def _forward_shapes(constants, directions):
    problem, record = constants
    n, dtype = problem.y0.shape[0], problem.y0.dtype
    return (
        ShapedArray((problem.ts.shape[0], n), dtype),
        ShapedArray(record.checkpoints.y.shape, dtype),
    )


@eqxi.filter_primitive_jvp
def _forward_jvp(primals, tangents):
    # Second order in forward mode: the loop differentiates like any other.
    moving = primals[1].ts is not None or tangents[0][0].ts is not None
    return _not_backwards(*eqx.filter_jvp(ft.partial(_forward, moving=moving), primals, tangents))


@eqxi.filter_primitive_transpose  # pyright: ignore
def _transpose(arguments, cotangents):
    constants, directions = arguments
    wanted = jax.tree_util.tree_map(_is_undefined, directions, is_leaf=_is_leaf)
    return _nones(constants), eqxi.filter_primitive_bind(_pullback_p, constants, wanted, cotangents)


@seldom_collecting()
def _backward(constants, wanted, cotangents, moving, smooth):
    """Cotangents of the `wanted` inputs, from those of the saved states and of the checkpoints.

    `smooth`: so that the cotangents can be differentiated, which takes another run through each segment.
    """
    problem, record = constants
    ts, cys, cpoints = problem.ts, *cotangents
    diff, fixed = eqx.partition(problem.flow, wanted.flow)
    # The cotangents of the flow lie in one vector, so that adding them is one operation and not dozens.
    cflow, apart = ravel_pytree(jax.tree_util.tree_map(jnp.zeros_like, diff))
    n = problem.y0.shape[0]
    cys = jnp.zeros((ts.shape[0], n), problem.y0.dtype) if cys is None else cys

    def whole(diff):
        return eqx.combine(diff, fixed)

    def segment(carry):
        index, finer, *rest = carry
        steps, finer = segment_of(problem, record, finer, index - 1, smooth)
        simple = not (smooth or moving) and cpoints is None
        if simple and (start := reversed_steps(problem, wanted.flow, steps, tuple(rest[:3]), cys)) is not None:
            return index - 1, finer, *start, rest[3]

        def one(inner):
            k, j, cy, cflow, cts = inner
            k = jnp.maximum(k - 1, 0)  # under jax.vmap k is zero for those that are done
            span = t0, t1 = steps.times[k], steps.times[k + 1]
            dense, pullback = pulled_back(problem, t0, t1, steps.states[k], diff, fixed)

            def save(inner):
                j, cdense, cflow, cts = inner

                def state(dense, t, diff):
                    return saved(problem, span, dense, t, whole(diff), moving)

                if not moving:
                    _, pullback = jax.vjp(lambda dense: state(dense, ts[j], diff), dense)
                    return j - 1, _add(cdense, *pullback(cys[j])), cflow, cts
                _, pullback = jax.vjp(state, dense, ts[j], diff)
                to_dense, to_t, to_flow = pullback(cys[j])
                return j - 1, _add(cdense, to_dense), cflow + side_by_side(to_flow), cts.at[j].add(to_t)

            def due(inner):
                return (inner[0] > 0) & (ts[inner[0]] > t0)

            inner = (j, jax.tree_util.tree_map(jnp.zeros_like, dense), cflow, cts)
            j, cdense, cflow, cts = jax.lax.while_loop(due, save, inner)
            cy, to_flow = pullback(cy, cdense)
            if cpoints is not None:
                cy = cy + cpoints.at[steps.slots[k]].get(mode="fill", fill_value=0.0)
            return k, j, cy, cflow + to_flow, cts

        _, j, cy, cflow, cts = jax.lax.while_loop(lambda inner: inner[0] > 0, one, (steps.count, *rest))
        return index - 1, finer, j, cy, cflow, cts

    last = (jnp.sum(ts <= record.end) - 1).astype(record.count.dtype)
    zeros = jnp.zeros(n, problem.y0.dtype), cflow, jnp.zeros_like(ts)
    carry = (segments_of(problem, record), finer_of(problem, record), last, *zeros)
    *_, cy, cflow, cts = _over_segments(lambda carry: carry[0] > 0, segment, carry)
    _, pullback = jax.vjp(lambda y0, t0, diff: first(y0, t0, whole(diff), moving), problem.y0, ts[0], diff)
    cy, to_t, to_flow = pullback(cy)
    cy0, cts = cy + cys[0], cts.at[0].add(to_t)
    return ProblemTangent(_add(apart(cflow), to_flow), cy0 if wanted.y0 else None, cts if wanted.ts else None)


@eqxi.filter_primitive_def
def _backward_impl(constants, wanted, cotangents):
    return _backward(constants, wanted, cotangents, wanted.ts, False)


@eqxi.filter_primitive_def
def _backward_shapes(constants, wanted, cotangents):
    problem, _ = constants
    diff, _ = eqx.partition(ProblemTangent(problem.flow, problem.y0, problem.ts), wanted)
    return jax.tree_util.tree_map(lambda x: ShapedArray(x.shape, x.dtype), diff)


@eqxi.filter_primitive_jvp
def _backward_jvp(primals, tangents):
    moving = primals[1].ts or tangents[0][0].ts is not None
    (constants, wanted, cotangents), (dconstants, _, dcotangents) = primals, tangents

    def pull(constants, cotangents):
        return _backward(constants, wanted, cotangents, moving, True)

    return _not_backwards(*eqx.filter_jvp(pull, (constants, cotangents), (dconstants, dcotangents)))


def _not_backwards(found: PyTree, tangents: PyTree) -> tuple[PyTree, PyTree]:
    """Makes reverse mode refuse the tangents of a derivative: JAX's own error would be about the loop in them."""
    arrays, others = eqx.partition(tangents, eqx.is_inexact_array)
    leaves, structure = jax.tree_util.tree_flatten(arrays)
    leaves = [_forwards_p.bind(x) for x in leaves]
    return found, eqx.combine(jax.tree_util.tree_unflatten(structure, leaves), others)


def _refuse(cotangent: object, x: object) -> NoReturn:
    raise NotImplementedError(
        "The outer derivative of a second derivative of a simulation is taken forwards: write jax.hessian(f), "
        "jax.jacfwd(jax.grad(f)) or jax.jacfwd(jax.jacfwd(f)). Reverse mode as the outer one is not supported."
    )


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
# The identity, whose transpose is an error.
_forwards_p = Primitive("forwards")
_forwards_p.def_impl(lambda x: x)
_forwards_p.def_abstract_eval(lambda x: x)
ad.deflinear2(_forwards_p, _refuse)
batching.defvectorized(_forwards_p)
mlir.register_lowering(_forwards_p, lambda _, x: [x])
