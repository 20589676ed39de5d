"""Traces functions, and replaces arrays that they close over by others.

JAX hands every operation to the current trace, with its operands. The trace here checks whether an operand is an array
that has a substitute, and hands the operation on to the trace around it. So it does not matter how Python came by the
array: from a closure, a default, a partial, an attribute, a global variable, or a rule of derivatives.
"""

import functools as ft
import itertools as it
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Trace
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, set_current_trace, take_current_trace
from jax.extend.linear_util import StoreException
from jax.interpreters import ad
from jax.tree_util import tree_leaves, tree_map
from jaxtyping import Array, PyTree

from ._unbatch import Parameters, sizes_of_scan


if TYPE_CHECKING:  # nothing but an annotation needs it, and a newer JAX may lack it
    from jax.extend.linear_util import WrappedFun
from collections.abc import Hashable
from typing import NamedTuple

from jax.extend.core import jaxpr_as_fun
from jax.interpreters import partial_eval
from jaxtyping import ArrayLike

from .._result import is_traced
from ._compile import not_tracing
from ._unbatch import aval_of


P = ParamSpec("P")
R = TypeVar("R")


class Substitutes(Protocol):
    """The arrays that have a substitute."""

    def knows(self, x: object) -> bool:
        """Whether an operand is an array that has a substitute."""
        ...

    def current(self, x: Array, values: Sequence[PyTree]) -> Array:
        """The substitute of an array that has one, made of `values`."""
        ...


def substituted(function: Callable[P, R], substitutes: Substitutes, values: Sequence[PyTree]) -> Callable[P, R]:
    """Makes `function` use the substitutes of all arrays that it reaches; `values`: the arrays they are made of."""

    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        with take_current_trace() as around, set_current_trace(_Substitution(around, substitutes, values)):
            return function(*arguments, **keywords)

    return call


class _Substitution(Trace):
    def __init__(self, around: Trace, substitutes: Substitutes, values: Sequence[PyTree]):
        super().__init__()
        self.around, self.substitutes, self.values = around, substitutes, values

    def stage_value(self, val):
        return self.around.stage_value(self._current(val))

    def process_primitive(self, primitive, operands, params, /):
        operands = [*map(self._current, operands)]
        opened = self._hides(params, _RULES) and _OPENED.get(primitive.name)
        if not opened and self._hides(params):
            raise ValueError(
                f"A function reaches a parameter of its system within {primitive.name!r}, where it cannot be followed. "
                "Hand the parameter over to it as an argument."
            )
        with set_current_trace(self.around):
            if opened:
                return opened(lambda program: self._within(_of(program), self.values), operands, **params)
            return primitive.bind(*operands, **params)

    def process_call(self, primitive, function, operands, params, /):
        with set_current_trace(self):
            return function.call_wrapped(*operands)

    def process_custom_jvp_call(self, primitive, function, jvp, operands, /, **params):
        return self._with_rule(primitive, (function, jvp), operands, params)

    def process_custom_vjp_call(self, primitive, function, fwd, bwd, operands, /, **params):
        return self._with_rule(primitive, (function, fwd, bwd), operands, params)

    def _current(self, x: Array) -> Array:
        if not self.substitutes.knows(x):
            return x
        with set_current_trace(self.around):
            return self.substitutes.current(x, self.values)

    def _within(self, function: Callable[P, R], values: Sequence[PyTree]) -> Callable[P, R]:
        return substituted(function, self.substitutes, values)

    def _hides(self, params: Parameters, rules: Collection[str] = ()) -> bool:
        """Whether a program in an operation has an array with a substitute, or one of `rules`, which may reach one."""
        for jaxpr, constants in _programs(params):
            if any(map(self.substitutes.knows, constants)) or any(e.primitive.name in rules for e in jaxpr.eqns):
                return True
            if any(self._hides(e.params, rules) for e in jaxpr.eqns):
                return True
        return False

    def _with_rule(
        self, primitive: Primitive, functions: tuple["WrappedFun", ...], operands: Sequence[Array], params: Parameters
    ) -> list[Array]:
        """The results of a function with a rule of derivatives, which first becomes an operation of a program."""
        program = jax.make_jaxpr(lambda *x: primitive.bind(*x, subfuns=functions, **params))(*operands)
        with set_current_trace(self):
            results = _of(program)(*operands)
        if any(map(_is_filled, functions[1].stores)):  # JAX takes the form of the results from one of the two
            for store in functions[0].stores:
                if store is not None and _is_filled(store):
                    store.reset()
        return results

    def rule_of(self, eqn: JaxprEqn, operands: Sequence[Array]) -> list[Array]:
        """The results of an operation with a rule; derivatives by the arrays it reaches are those of the function."""
        constants, x = _split([*map(self._current, operands)], eqn.params["num_consts"])

        def at(reached: _Reached) -> Callable[[Callable], Callable]:
            return lambda function: self._within(function, reached[0])

        with set_current_trace(self.around):
            return _RULES[eqn.primitive.name](at, **eqn.params)(([*self.values], constants), x)


def _is_filled(store: object) -> bool:
    try:
        return getattr(store, "val", None) is not None
    except StoreException:
        return False


def _programs(params: Parameters) -> Iterator[tuple[Jaxpr, Sequence[Array]]]:
    for x in params.values():
        for y in x if isinstance(x, tuple | list) else (x,):
            if isinstance(y, ClosedJaxpr):
                yield y.jaxpr, y.consts
            elif isinstance(y, Jaxpr):
                yield y, ()


def _of(program: ClosedJaxpr | Jaxpr) -> Callable[..., list[Array]]:
    """Makes a program a function that is to be evaluated in a `_Substitution`."""
    jaxpr, constants = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())

    def function(*operands):
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True))

        def read(x: Var | Literal) -> Array:
            return x.val if isinstance(x, Literal) else known[x]

        for eqn in jaxpr.eqns:
            given = [*map(read, eqn.invars)]
            if eqn.primitive.name in _RULES:
                with take_current_trace() as trace:
                    results = trace.rule_of(eqn, given)
            else:
                results = eqn.primitive.bind(*given, **eqn.primitive.get_bind_params(eqn.params))
            known.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
        return [*map(read, jaxpr.outvars)]

    return function


# The operations that have programs in them, with these evaluated by `within`.


def _jit(within, operands, *, jaxpr, **_):
    return within(jaxpr)(*operands)


def _checkpoint(within, operands, *, jaxpr, prevent_cse, policy, **_):
    return jax.checkpoint(within(jaxpr), prevent_cse=prevent_cse, policy=policy)(*operands)


def _cond(within, operands, *, branches, **_):
    return jax.lax.switch(operands[0], [within(branch) for branch in branches], *operands[1:])


def _while(within, operands, *, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts, **_):
    of_cond, of_body, x = _split(operands, cond_nconsts, body_nconsts)
    return jax.lax.while_loop(
        lambda x: within(cond_jaxpr)(*of_cond, *x)[0], lambda x: within(body_jaxpr)(*of_body, *x), x
    )


def _scan(within, operands, *, jaxpr, length, reverse, unroll, **params):
    fixed, handed_on = sizes_of_scan(params)
    constants, carry, xs = _split(operands, fixed, handed_on)

    def body(carry, x):
        carry, y = _split(within(jaxpr)(*constants, *carry, *x), handed_on)
        return carry, y

    carry, ys = jax.lax.scan(body, carry, xs, length, reverse, unroll)
    return [*carry, *ys]


def _split(x: Sequence[Array], *sizes: int) -> tuple[list[Array], ...]:
    rest = iter(x)
    return *(list(it.islice(rest, size)) for size in sizes), list(rest)


_OPENED = {
    "jit": _jit,
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}


# Functions that have a rule of derivatives, as functions of `reached` and x. `reached` is a pair: values that the
# substitutes are made of, and constants of the program; `at(reached)` makes functions that reach these values.
# A tangent or a cotangent; NumPy's is that of integers.
_Slope = Array | np.ndarray | SymbolicZero
_Reached = tuple[list[PyTree], list[Array]]
_At = Callable[[_Reached], Callable[[Callable], Callable[..., list[Array]]]]


def _evaluated(at: _At, program: ClosedJaxpr) -> Callable[[_Reached, list[Array]], PyTree]:
    return lambda reached, x: at(reached)(_of(program))(*reached[1], *x)


def _with_jvp(at: _At, *, call_jaxpr, jvp_jaxpr_fun, symbolic_zeros, **_) -> Callable:
    function = _evaluated(at, call_jaxpr)
    call = jax.custom_jvp(function)

    @ft.partial(call.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        (reached, x), (d_reached, d_x) = primals, tangents
        values = slopes = None
        if not all(map(_is_zero, d_x)):  # JAX calls a rule only if it has to
            along = d_x if symbolic_zeros else [*map(_dense, d_x)]
            jaxpr, constants, zeros = jvp_jaxpr_fun.call_wrapped(*map(_is_zero, along))
            given = [*x, *(d for d in along if not _is_zero(d))]
            values, found = _split(at(reached)(_of(ClosedJaxpr(jaxpr, constants)))(*given), len(zeros))
            found = iter(found)
            slopes = [
                SymbolicZero(jax.typeof(y).to_tangent_aval()) if is_zero else next(found)
                for y, is_zero in zip(values, zeros, strict=True)
            ]
        if not all(map(_is_zero, tree_leaves(d_reached))):
            d_reached = tree_map(_dense, d_reached)
            values, more = jax.jvp(lambda reached: function(reached, x), (reached,), (d_reached,))
            slopes = more if slopes is None else [*map(_sum, slopes, more)]
        return values, slopes

    return call


class _Perturbed(eqx.Module):
    """Whether a derivative is taken by anything that a function reaches, and by each of its arguments."""

    reached: bool = eqx.field(static=True)
    x: tuple[bool, ...] = eqx.field(static=True)


def _with_vjp(at: _At, *, call_jaxpr, fwd_jaxpr_thunk, bwd, out_trees, symbolic_zeros, **_) -> Callable:
    function = _evaluated(at, call_jaxpr)
    call = jax.custom_vjp(function)

    def forward(reached, x):
        perturbed = _Perturbed(any(y.perturbed for y in tree_leaves(reached)), tuple(y.perturbed for y in x))
        reached, x = tree_map(lambda y: y.value, (reached, x))
        if not any(perturbed.x):
            return function(reached, x), (reached, x, [], perturbed)
        jaxpr, constants = fwd_jaxpr_thunk.call_wrapped(*perturbed.x)
        passed_on = [i if i is None else i - len(reached[1]) for i in out_trees()[2]]
        made, results = _split(at(reached)(_of(ClosedJaxpr(jaxpr, constants)))(*x), passed_on.count(None))
        made = iter(made)
        return results, (reached, x, [next(made) if i is None else x[i] for i in passed_on], perturbed)

    def backward(saved, slopes):
        reached, x, residuals, perturbed = saved
        dense = [*map(_dense, slopes)]
        of_reached, of_x = None, [None for _ in x]
        if any(perturbed.x):
            found = at(reached)(bwd.call_wrapped)(*residuals, *(slopes if symbolic_zeros else dense))
            if len(found) == 2 and isinstance(found[0], list):  # from JAX 0.12 on, with what it logs
                found, _ = found
            of_x = [None if isinstance(d, ad.Zero) else d for d in found]
        if perturbed.reached:
            (of_reached,) = jax.vjp(lambda reached: function(reached, x), reached)[1](dense)
        return of_reached, of_x

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call


def _is_zero(x: _Slope) -> bool:
    return isinstance(x, SymbolicZero)


def _dense(x: _Slope) -> Array | np.ndarray:
    if not isinstance(x, SymbolicZero):
        return x
    assert isinstance(x.aval, ShapedArray), x.aval
    zeros = np.zeros if x.aval.dtype == jax.dtypes.float0 else jnp.zeros
    return zeros(x.aval.shape, x.aval.dtype)


def _sum(a: _Slope, b: Array) -> _Slope:
    return b if isinstance(a, SymbolicZero) or b.dtype == jax.dtypes.float0 else a + b


_RULES = {"custom_jvp_call": _with_jvp, "custom_vjp_call": _with_vjp}


class TreeStructure(Protocol):
    """The structure of a tree of arrays: a `jax.tree_util.PyTreeDef`, which type checkers do not know."""

    @property
    def num_leaves(self) -> int: ...


# Larger arrays than those of this many entries are not compared by their entries.
MOST_PLACES = 16_384


class Places(NamedTuple):
    """An array of whole numbers or truth values, such as places in other arrays, which equal ones are equal to."""

    shape: tuple[int, ...]
    dtype: np.dtype
    data: bytes

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Hoisted(eqx.Module):
    """A traced function of arrays to a tree of arrays; `constants` are the arrays that it closed over.

    `jaxpr` is a leaf, not static, so that equinox's primitives find it when they look for jaxprs inside. `places`: in
    place of `constants`, those that are known and have no derivative, None for the others; what picks an entry of an
    array by one of them has to know it.
    """

    jaxpr: Jaxpr
    constants: list[Array]
    structure: TreeStructure = eqx.field(static=True)
    places: tuple[Places | None, ...] = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> PyTree:
        found = called(self.closed, *arguments)
        return jax.tree_util.tree_unflatten(self.structure, found)

    @property
    def closed(self) -> ClosedJaxpr:
        """The function, with all that it closed over."""
        others = iter(self.constants)
        return ClosedJaxpr(self.jaxpr, [next(others) if x is None else x.array for x in self.places])


def called(closed: ClosedJaxpr, *arguments: Array) -> list[Array]:
    """The results of a program, all of them arrays of JAX, as some that depend on no argument are not."""
    found = jaxpr_as_fun(closed)(*arguments)
    return [jnp.asarray(x, of.dtype) for x, of in zip(found, closed.out_avals, strict=True)]


def hoist(function: Callable[..., PyTree], *examples: Array, axes: Sequence[tuple[str, int]] = ()) -> Hoisted:
    """Traces `function` for arrays like `examples` into a pytree of all that it closes over, tracers included.

    However often the result is called, the user's functions are traced once. `axes`: names and sizes of the axes of its
    collective operations, such as sums over devices.

    `equinox.filter_closure_convert` will not do: it refuses arguments on other devices than the examples.
    """
    closed, shapes = jax.make_jaxpr(function, axis_env=list(axes), return_shape=True)(*examples)
    closed = with_results(closed, range(len(closed.out_avals)))  # derivatives would follow what has no use, too
    places = tuple(map(_places, closed.consts))
    constants = [x for x, known in zip(closed.consts, places, strict=True) if known is None]
    return Hoisted(closed.jaxpr, constants, jax.tree_util.tree_structure(shapes), places)


def _places(x: ArrayLike) -> Places | None:
    if is_traced(x) or not isinstance(jnp.result_type(x), np.dtype) or jnp.result_type(x).kind not in "biu":
        return None
    x = np.asarray(x)
    if x.size > MOST_PLACES:
        return None
    return Places(x.shape, x.dtype, x.tobytes())


class Traced(eqx.Module):
    """A traced function of trees of arrays to a tree of arrays, with what it closes over."""

    hoisted: Hoisted
    dtypes: tuple[np.dtype, ...] = eqx.field(static=True)
    results: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)

    def __call__(self, *arguments: PyTree) -> PyTree:
        return self.hoisted(*self.leaves(arguments))

    def leaves(self, arguments: PyTree) -> list[Array]:
        """The arrays in `arguments`, in the dtypes of the examples."""
        leaves = jax.tree_util.tree_leaves(arguments)
        return [x.astype(dtype) for x, dtype in zip(leaves, self.dtypes, strict=True)]

    @property
    def shapes(self) -> PyTree:
        """The shapes and dtypes of the results."""
        return jax.tree_util.tree_unflatten(self.hoisted.structure, self.results)


def traced(function: Callable[..., PyTree], *examples: PyTree, axes: Sequence[tuple[str, int]] = ()) -> Traced:
    """Traces `function` as `hoist` does, for trees of arrays, or of their shapes, like `examples`."""
    leaves, structure = jax.tree_util.tree_flatten(examples)
    hoisted = hoist(lambda *leaves: function(*jax.tree_util.tree_unflatten(structure, leaves)), *leaves, axes=axes)
    kinds = map(aval_of, hoisted.jaxpr.outvars)
    results = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]
    return Traced(hoisted, tuple(x.dtype for x in leaves), tuple(results))


def uses(function: Callable[..., PyTree], *examples: Array) -> list[bool]:
    """Returns for each of the arguments whether the results of the function, as traced, depend on it."""
    jaxpr = jax.make_jaxpr(function)(*examples).jaxpr
    return list(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])


def with_constants_as_arguments(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Array]]:
    """Turns constants that are not known while tracing into further arguments; returns the function and these."""
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    further = [(variable, x) for variable, x in pairs if is_traced(x)]
    if not further:
        return closed, []
    known = [(variable, x) for variable, x in pairs if not is_traced(x)]
    takes = [*closed.jaxpr.invars, *(variable for variable, _ in further)]
    jaxpr = with_arguments(closed.jaxpr, takes, [variable for variable, _ in known])
    return ClosedJaxpr(jaxpr, [x for _, x in known]), [x for _, x in further]


def with_arguments(jaxpr: Jaxpr, invars: Sequence[Var], constvars: Sequence[Var] = ()) -> Jaxpr:
    """The program with its variables in another order, and some of them constants."""
    names = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    return jaxpr.replace(constvars=[*constvars], invars=[*invars], debug_info=names)


def with_results(closed: ClosedJaxpr, which: Collection[int]) -> ClosedJaxpr:
    """The program that computes some of the results, in their order, and nothing that these do not need."""
    used = [i in which for i in range(len(closed.jaxpr.outvars))]
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, used, True)  # pyright: ignore
    return ClosedJaxpr(jaxpr, closed.consts)


MOST = 64


def shapes_of(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Calls `eqx.filter_eval_shape(function, *arguments)`, once for all plain calls that differ in numbers only."""
    leaves, structure = jax.tree_util.tree_flatten(arguments)
    given = tuple(_shape(x) if eqx.is_array(x) else x for x in leaves)
    key = structure, given, tuple(map(type, given)), jax.config.read("jax_enable_x64")
    try:
        hash(key)
    except TypeError:  # static fields of the user's modules need not be hashable
        return eqx.filter_eval_shape(function, *arguments)
    return _remembered(function, *key) if not_tracing() else eqx.filter_eval_shape(function, *arguments)


@ft.lru_cache(MOST)
def _remembered(
    function: Callable[..., PyTree], structure: TreeStructure, leaves: tuple[Hashable, ...], *others: Hashable
) -> PyTree:
    return eqx.filter_eval_shape(function, *jax.tree_util.tree_unflatten(structure, leaves))


def _shape(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
