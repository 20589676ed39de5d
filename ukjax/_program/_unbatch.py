"""Programs in which no call of LAPACK has a batch.

jaxlib shares out a batch of matrices among the threads of the CPU and waits for them, on one of these threads. When as
many calls as there are threads do so at a time, none is left to do the work, and all wait for ever: on two cores two
devices that both factorise matrices are enough. One matrix is not shared out.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array, PyTree


# The operations of JAX that call LAPACK, or BLAS for triangular matrices; all take matrices, with the batch first.
LAPACK = frozenset(
    {"cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur"}
    | {"svd", "triangular_solve", "tridiagonal"}
)
# Operations that do nothing but call a function, and the parameter that holds it.
PLAIN_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
               "remat": "jaxpr", "checkpoint": "jaxpr"}  # fmt: skip
# The same once derivatives are taken: a custom rule has been used by then, and only its function is left to call.
CALLS = {**PLAIN_CALLS, "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
# The operations of lineax, alone and in a batch: equinox makes both, and keeps their function as `impl`.
SOLVES = frozenset({"linear_solve", "vprim"})


# The parameters of an operation, by name; JAX has values of every kind there.
Parameters = dict[str, Any]


def aval_of(x: Var | Literal) -> ShapedArray:
    """The shape and dtype of an array in a program."""
    assert isinstance(x.aval, ShapedArray), x.aval
    return x.aval


def sizes_of_scan(params: Parameters) -> tuple[int, int]:
    """The number of operands of a `scan` that are the same in every step, and of those in the carry, which follow."""
    if "ft_in" in params:  # from JAX 0.12 on
        constants, carry, _ = map(len, params["ft_in"].unpack())
        return constants, carry
    return params["num_consts"], params["num_carry"]


def unbatch_lapack(closed: ClosedJaxpr, axes: Sequence[tuple[str, int]] = ()) -> ClosedJaxpr:
    """Rewrites a program so that a loop over the batch calls LAPACK for one matrix after the other.

    It is for programs that are about to be compiled: lineax's own rules of derivatives are lost. `axes`: names and
    sizes of the axes of the program's collective operations, such as sums over devices.
    """
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # as where the program was traced
        return _Change(tuple(axes)).of_program(closed)


def _batch(equation: JaxprEqn) -> tuple[int, ...]:
    """The shape of the batch of a call of LAPACK; () for any other operation."""
    return aval_of(equation.invars[0]).shape[:-2] if equation.primitive.name in LAPACK else ()


def _like(kind: ShapedArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


class _Change:
    """The rewriting of programs, and of the programs in them; `axes` as in `unbatch_lapack`."""

    def __init__(self, axes: tuple[tuple[str, int], ...]):
        self.axes = axes
        # By the id of an object, which is kept here too, so that no other object gets its id.
        self.found: dict[int, tuple[Jaxpr | ClosedJaxpr, bool]] = {}
        self.solves: dict[int, tuple[JaxprEqn, ClosedJaxpr | None]] = {}

    def of_program(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        if not self._calls(closed):
            return closed
        evaluated = ft.partial(self._evaluated, closed.jaxpr, closed.consts)
        return jax.make_jaxpr(evaluated, axis_env=self.axes)(*map(_like, closed.in_avals))

    def of(self, x: object) -> object:
        """Rewrites the programs in a parameter of an operation."""
        if isinstance(x, tuple | list) and self._calls(x):
            parts = [self.of(y) for y in x]
            return getattr(x, "_make", type(x))(parts)  # a named tuple takes its parts one by one
        return self.of_program(x) if isinstance(x, ClosedJaxpr) else x

    def _calls(self, x: object) -> bool:
        """Whether a program in a parameter of an operation calls LAPACK for a batch."""
        if isinstance(x, tuple | list):
            return any(map(self._calls, x))
        if not isinstance(x, Jaxpr | ClosedJaxpr):
            return False
        jaxpr = getattr(x, "jaxpr", x)  # from JAX 0.12 on both are the same
        if id(jaxpr) not in self.found:
            self.found[id(jaxpr)] = (
                jaxpr,
                any(
                    math.prod(_batch(e)) > 1 or self._calls(tuple(e.params.values())) or self._solve(e)
                    for e in jaxpr.eqns
                ),
            )
        return self.found[id(jaxpr)][1]

    def _solve(self, equation: JaxprEqn) -> ClosedJaxpr | None:
        """The program of an operation of lineax if that calls LAPACK for a batch, else None."""
        does = getattr(equation.primitive, "impl", None)
        if (
            does is None
            or equation.primitive.name not in SOLVES
            or not getattr(does, "__module__", "").startswith("equinox.")
        ):
            return None
        if id(equation) not in self.solves:
            called = ft.partial(does, **equation.params)
            closed = jax.make_jaxpr(called, axis_env=self.axes)(*(_like(aval_of(x)) for x in equation.invars))
            self.solves[id(equation)] = equation, closed if self._calls(closed) else None
        return self.solves[id(equation)][1]

    def _evaluated(self, jaxpr: Jaxpr, constants: Sequence[Array], *arguments: Array) -> list[Array]:
        """The results of a program, with its operations rewritten."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

        def value(x: Var | Literal) -> Array:
            return x.val if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._done(equation, list(map(value, equation.invars))), strict=True))
        return list(map(value, jaxpr.outvars))

    def _done(self, equation: JaxprEqn, values: list[Array]) -> Sequence[Array]:
        """The results of an operation, which is rewritten."""
        primitive, solve = equation.primitive, self._solve(equation)
        called = equation.params.get(CALLS.get(primitive.name, ""), solve)
        if called is not None:
            return self._evaluated(getattr(called, "jaxpr", called), getattr(called, "consts", ()), *values)
        # The operation `outside_mesh` does this when it is lowered; the program of `jax.checkpoint` has no constants.
        kept = primitive.name in ("outside_mesh", "checkpoint", "remat2")
        params = {name: x if kept else self.of(x) for name, x in equation.params.items()}
        results = _in_turn(ft.partial(primitive.bind, **params), _batch(equation), values)
        return results if primitive.multiple_results else [results]


def _in_turn(bind: Callable[..., PyTree[Array]], batch: Sequence[int], values: Sequence[Array]) -> PyTree[Array]:
    """The results of `bind` for arrays with this batch, called for one entry after the other."""
    if math.prod(batch) <= 1:
        return bind(*values)
    flat = [x.reshape(-1, *x.shape[len(batch) :]) for x in values]
    found = jax.lax.map(lambda each: bind(*each), flat)
    return jax.tree_util.tree_map(lambda x: x.reshape(*batch, *x.shape[1:]), found)
