"""The interpreter that turns a traced function of arrays into a scalar program, entry by entry.

It follows the operations of JAX whose parameters it knows, with the values that it accepts. A parameter that a newer
JAX adds, or a value that is new, may change what an operation means: with it the operation is left to JAX.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence

import jax
import jax.extend.core.primitives as prims
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from jaxtyping import Array

from .. import _program
from .._lowering._entry import FOLDED, Entry, Node, NotScalar, constant, entries, name_of
from .._lowering._program import Program, Routine
from .._program import Parameters
from ._choice import is_at_most, is_long, selected
from ._graph import Cut, Graph
from ._piece import piece_p
from ._structure import BY_NAME, STRUCTURE, Rule, row
from ._symmetric import pivots_p, pivots_rule, solve_p, solve_rule


Accepts = Callable[[object], bool]


def _any(_: object) -> bool:
    return True


def _none(value: object) -> bool:
    return value is None


def _one_of(*values: object) -> Accepts:
    return lambda value: value in values


def _precision(value: object) -> bool:
    """Whether a precision is a wish, which scalar arithmetic meets, and no algorithm, which has types of its own."""
    each = value if isinstance(value, tuple) else (value,)
    return all(x is None or isinstance(x, lax.Precision) for x in each)


Modes = lax.GatherScatterMode
IN_TURN = _one_of(Modes.CLIP, Modes.FILL_OR_DROP, Modes.PROMISE_IN_BOUNDS)
# The place of a value on devices does not change its entries.
PLACE = dict.fromkeys(("sharding", "out_sharding"), _any)
REDUCED = {"axes": _any, **PLACE}
CUMULATIVE = {"axis": _any, "reverse": _any}
SCATTERED = {
    **dict.fromkeys(("dimension_numbers", "indices_are_sorted", "unique_indices", "update_jaxpr"), _any),
    "update_consts": lambda value: not value,
    "mode": IN_TURN,
}
# The accepted parameters of operations on each entry.
OF_ENTRIES: dict[str, Accepts] = {
    **dict.fromkeys(("accuracy", "exponent_bits", "mantissa_bits", "new_dtype", "rounding_method"), _any),
    **dict.fromkeys(("weak_type", "y", *PLACE), _any),
    "out_dtype": _none,  # of a product
}
# The accepted parameters by the name of the operation; operations on each entry have those above.
PARAMETERS: dict[str, dict[str, Accepts]] = {
    "add_any": {},
    "argmax": {"axes": _any, "index_dtype": _any},
    "argmin": {"axes": _any, "index_dtype": _any},
    "call_hi_primitive": {"_prim": _any},
    "broadcast_in_dim": {"shape": _any, "broadcast_dimensions": _any, **PLACE},
    "concatenate": {"dimension": _any},
    "cond": {"branches": _any, "branches_platforms": _any},
    "cholesky": {},
    "copy": {},
    "log2": {"accuracy": _any},
    "one_minus_square": {},
    "custom_linear_solve": {"const_lengths": _any, "jaxprs": _any},
    "cumprod": CUMULATIVE,
    "cumsum": CUMULATIVE,
    "dot_general": {
        "dimension_numbers": _any,
        "precision": _precision,
        "preferred_element_type": _any,
        **PLACE,
    },
    "dynamic_slice": {"slice_sizes": _any},
    "dynamic_update_slice": {},
    "gather": {
        **dict.fromkeys(("dimension_numbers", "slice_sizes", "unique_indices", "indices_are_sorted"), _any),
        "mode": IN_TURN,
        "fill_value": _any,
    },
    "iota": {"dtype": _any, "shape": _any, "dimension": _any, **PLACE},
    "le_to": {},
    "lt_to": {},
    "lu": {},
    "pad": {"padding_config": _any},
    "platform_index": {"platforms": _any},
    "pcast": dict.fromkeys(("axes", "to"), _any),
    "pvary": {"axes": _any},
    "reduce_and": REDUCED,
    "reduce_max": REDUCED,
    "reduce_min": REDUCED,
    "reduce_or": REDUCED,
    "reduce_prod": REDUCED,
    "reduce_sum": REDUCED,
    "reshape": {"new_sizes": _any, "dimensions": _none, **PLACE},
    "reshard": dict.fromkeys(("dst_sharding", "concrete_mesh"), _any),
    "rev": {"dimensions": _any},
    "scan": dict.fromkeys(
        ("jaxpr", "length", "reverse", "num_consts", "num_carry", "linear", "unroll", "_split_transpose", "ft_in",
         "ft_out"), _any),
    "scatter": SCATTERED,
    "scatter-add": SCATTERED,
    "scatter-mul": SCATTERED,
    "slice": dict.fromkeys(("start_indices", "limit_indices", "strides"), _any),
    "split": {"sizes": _any, "axis": _any},
    "squeeze": {"dimensions": _any},
    "stack": {"axis": _any},
    "stop_gradient": {},
    "tile": {"reps": _any},
    "transpose": {"permutation": _any},
    "triangular_solve": dict.fromkeys(
        ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"), _any),
    "unstack": {"axis": _any},
    "while": dict.fromkeys(("cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"), _any),
}  # fmt: skip
CALLS = {*_program.CALLS, "remat2"}
# Parameters of calls: how functions are compiled, stored and differentiated, which does not change their values.
OF_CALLS: dict[str, Accepts] = dict.fromkeys(
    (
        *(
            "jaxpr",
            "call_jaxpr",
            "name",
            "prevent_cse",
            "differentiated",
            "policy",
            "function",
            "inline",
            "keep_unused",
        ),
        *("in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh"),
        *("compiler_options_kvs", "resource_env", "symbolic_zeros", "num_consts", "jvp_jaxpr_fun", "jvp_jaxpr_thunk"),
        *("fun_jaxpr", "fwd_jaxpr_thunk", "bwd", "out_trees", "optimized_remat"),
    ),
    _any,
)


def is_followed(primitive: Primitive, params: Parameters, entrywise: bool) -> bool:
    """Whether the rule of an operation knows all of its parameters, and accepts their values."""
    name = primitive.name
    known = OF_ENTRIES if entrywise else OF_CALLS if name in CALLS else PARAMETERS.get(name)
    return known is not None and all(k in known and known[k](value) for k, value in params.items())


# Longer loops are kept as loops.
LONGEST = 32
# Branches with more operations together are kept as branches, of which one is computed.
LONGEST_BRANCHES = 500
# The results of a function with as many operations are kept for calls with the same arguments.
SEVERAL = 20
# A function with fewer operations is no routine.
SHORT = 100


@np.errstate(all="ignore")
def interpret(graph: Graph, closed: ClosedJaxpr, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Evaluates a traced function for arrays of entries."""
    jaxpr: Jaxpr = closed.jaxpr
    constants = [entries(x, x.dtype) for x in closed.consts]
    known: dict[Var, np.ndarray] = {}

    def read(atom: Var | Literal) -> np.ndarray:
        return entries(atom.val, _program.aval_of(atom).dtype) if isinstance(atom, Literal) else known[atom]

    for variable, value in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True):
        known[variable] = value
    repeated = repeated_calls(jaxpr) if graph.calls else {}
    for equation in jaxpr.eqns:
        if equation.effects:
            raise NotScalar(f"{equation.primitive} has effects")
        avals = [*map(_program.aval_of, equation.outvars)]
        if any(math.prod(x.shape) > graph.largest for x in avals):
            raise NotScalar(f"{equation.primitive} makes a large array")
        args = [read(x) for x in equation.invars]
        called = repeated.get(id(equation.params.get("jaxpr")))
        found = called.results(graph, args) if called else None
        found = _equation(graph, equation, args, avals) if found is None else found
        for variable, value, aval in zip(equation.outvars, found, avals, strict=True):
            assert value.shape == aval.shape, (equation.primitive, value.shape, aval.shape)
            known[variable] = value
    return [read(x) for x in jaxpr.outvars]


def repeated_calls(jaxpr: Jaxpr) -> "dict[int, _RepeatedCall]":
    """The functions that several equations call, by identity."""
    calls: dict[int, list[JaxprEqn]] = {}
    for equation in jaxpr.eqns:
        called = equation.params.get("jaxpr")
        if equation.primitive.name in CALLS and isinstance(called, ClosedJaxpr):
            calls.setdefault(id(called), []).append(equation)
    return {key: _RepeatedCall(*_differing(several)) for key, several in calls.items() if len(several) > 1}


def _differing(calls: Sequence[JaxprEqn]) -> tuple[ClosedJaxpr, list[bool]]:
    """The function of calls, and which of its arguments differ between them."""
    each = zip(*(equation.invars for equation in calls), strict=True)
    return calls[0].params["jaxpr"], [any(x is not some[0] for x in some) for some in each]


class _RepeatedCall:
    """A function that is called several times, which becomes a routine if that is long; some arguments `differ`."""

    def __init__(self, closed: ClosedJaxpr, differ: Sequence[bool]):
        self.closed, self.differ = closed, differ
        self.is_inline, self.routine = False, None

    def results(self, graph: Graph, args: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results of a call; None if the function is better written out."""
        if self.routine is None and not self.is_inline:
            self._build(graph, args)
        if self.routine is None:
            return None
        actual = [x for array, differs in zip(args, self.differ, strict=True) if differs for x in array.ravel()]
        passed = dict(zip((x.order for x in self.routine.program.inputs), actual, strict=False))
        found = dict(
            zip((name_of(x) for x in self.routine.program.outputs), graph.call(self.routine, actual), strict=True)
        )

        def result(x: Entry) -> Entry:
            x = found.get(name_of(x), x)
            return passed.get(x.order, x) if isinstance(x, Node) else x

        graph.doubts.append(result(self.doubt))
        return [_each(result, array) for array in self.entries]

    def _build(self, graph: Graph, args: Sequence[np.ndarray]) -> None:
        differing = [array for array, differs in zip(args, self.differ, strict=True) if differs]
        # A number that is known, such as a counter, may tell a place or a length; an input of a routine could not.
        self.is_inline = any(not isinstance(x, Node) and x.dtype.kind != "f" for array in differing for x in array.flat)
        if self.is_inline:
            return
        given, formal, before = [], [], len(graph.made)
        for array, differs in zip(args, self.differ, strict=True):
            given.append(_each(lambda x: graph.input(x.dtype), array) if differs else array)
            formal += list(given[-1].ravel()) if differs else []
        with graph.apart():
            self.entries = interpret(graph, self.closed, given)
            self.doubt = graph.doubt()
        graph.forget(formal, before)
        outputs = [x for array in self.entries for x in array.ravel()]
        inside = _dependent([*outputs, self.doubt], formal)
        self.is_inline = len(inside) < SHORT
        if self.is_inline:
            return
        around = {x.order: x for node in inside.values() for x in node.nodes}
        for node in formal:
            around.pop(node.order, None)
        inputs = [*formal, *(around[i] for i in sorted(around) if i not in inside)]
        results = {x.order: x for x in (*outputs, self.doubt) if isinstance(x, Node) and x.order in inside}
        self.routine = Routine(Program(inputs, list(results.values())), len(formal))


def _each(function: Callable[[Entry], Entry], array: np.ndarray) -> np.ndarray:
    """The array of what a function makes of each entry."""
    return np.fromiter(map(function, array.flat), object, array.size).reshape(array.shape)


def _dependent(outputs: Sequence[Entry], inputs: Sequence[Node]) -> dict[int, Node]:
    """The numbers on the way from some inputs to some outputs, by their order."""
    depends = {x.order for x in inputs}
    steps = Program(inputs, outputs).steps if inputs else []
    found = {}
    for node in steps:
        if any(x.order in depends for x in node.nodes):
            depends.add(node.order)
            found[node.order] = node
    return found


def _equation(graph: Graph, equation: JaxprEqn, args: list[np.ndarray], avals: list[ShapedArray]) -> list[np.ndarray]:
    primitive, params = equation.primitive, equation.params
    if graph.cuts is not None and not _has_plain_derivative(primitive, args):
        return _cut(graph, equation, args, avals)
    if not all(isinstance(x.dtype, np.dtype) for x in (*map(_program.aval_of, equation.invars), *avals)):
        raise NotScalar("random keys")
    rule = OURS.get(primitive)
    if rule is None and is_followed(primitive, params, primitive in ELEMENTWISE):
        rule = rule_of(primitive)
    found = None if rule is None else rule(graph, params, args, avals)
    return _kept(graph, primitive, params, args, avals) if found is None else found


def _has_plain_derivative(primitive: Primitive, args: Sequence[np.ndarray]) -> bool:
    """Whether the derivatives of an operation are those of the numbers in it."""
    name = primitive.name
    if primitive is prims.cond_p:  # of branches that are chosen between, only one may enter a derivative
        return not isinstance(args[0].item(), Node)
    return primitive in ELEMENTWISE or primitive in PLAIN or name in PLAIN_NAMES or name in _program.PLAIN_CALLS


def _cut(graph: Graph, equation: JaxprEqn, args: list[np.ndarray], avals: list[ShapedArray]) -> list[np.ndarray]:
    """The results of an operation that is cut off."""
    cuts, graph.cuts = graph.cuts, None
    assert cuts is not None
    try:
        found = _equation(graph, equation, args, avals)
    finally:
        graph.cuts = cuts
    results = [_each(graph.cut_off, array) for array in found]
    closed = None
    if equation.primitive is not prims.stop_gradient_p:
        kinds = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in map(_program.aval_of, equation.invars)]
        closed = jax.make_jaxpr(lambda *xs: _bound(equation, xs))(*kinds)
    cuts.append(Cut(closed, args, results))
    return results


def _bound(equation: JaxprEqn, args: Sequence[Array]) -> list[Array]:
    params = equation.primitive.get_bind_params(equation.params)
    found = equation.primitive.bind(*args, **params)
    return list(found) if equation.primitive.multiple_results else [found]


def rule_of(primitive: Primitive) -> Rule | None:
    """Returns the rule of an operation of JAX: (graph, parameters, arguments, kinds of results) -> results or None."""
    if primitive in ELEMENTWISE:
        return lambda graph, params, args, avals: [_elementwise(graph, primitive, params, args, avals[0])]
    if primitive.name in CALLS:
        return _call
    return CONTROL.get(primitive) or STRUCTURE.get(primitive) or NAMED.get(primitive.name)


def _call(graph, params, args, avals):
    called = params.get("jaxpr", params.get("call_jaxpr"))
    closed = called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, ())
    if len(closed.eqns) < SEVERAL or graph.cuts is not None:
        return interpret(graph, closed, args)
    key = id(called), *map(id, args)
    if key not in graph.called:
        doubts = list(graph.doubts)
        found = interpret(graph, closed, args)
        if graph.doubts != doubts:  # they belong to the place of this call
            return found
        graph.called[key] = called, args, found
    return graph.called[key][-1]


ELEMENTWISE = {
    *FOLDED,
    *(prims.integer_pow_p, prims.pow_p, prims.rsqrt_p, prims.rem_p, prims.select_n_p, prims.convert_element_type_p),
    *(prims.asin_p, prims.acos_p, prims.atan_p, prims.sinh_p, prims.cosh_p),
    *(prims.asinh_p, prims.acosh_p, prims.atanh_p),
    *(prims.exp2_p, prims.expm1_p, prims.log1p_p, prims.logistic_p, prims.cbrt_p, prims.round_p, prims.nextafter_p),
    *(prims.erf_p, prims.erfc_p, prims.erf_inv_p, prims.lgamma_p, prims.digamma_p),
    *(prims.reduce_precision_p, prims.clamp_p),
    *(prims.shift_left_p, prims.shift_right_logical_p, prims.shift_right_arithmetic_p),
}


def _elementwise(
    graph: Graph, primitive: Primitive, params: Parameters, args: list[np.ndarray], aval: ShapedArray
) -> np.ndarray:
    params = {k: None if k == "sharding" else v for k, v in params.items() if k != "out_dtype"}
    # A predicate of `select_n` and a bound of `clamp` may be single.
    spread = [x.flat if x.shape == aval.shape else np.broadcast_to(x, aval.shape).flat for x in args]
    found = map(ft.partial(graph.operation(primitive, params, aval.dtype), graph), *spread)
    return np.fromiter(found, object, aval.size).reshape(aval.shape)


def _kept(
    graph: Graph, primitive: Primitive, params: Parameters, args: list[np.ndarray], avals: Sequence[ShapedArray]
) -> list[np.ndarray]:
    """Keeps an operation without a rule as an operation on arrays."""
    if _calls_python(primitive, params):
        # Entry by entry, nothing but the call would be left of an error that is raised on a condition.
        raise NotScalar("a call of Python")
    if primitive.name in CALLS:
        raise NotScalar(f"a parameter of {primitive} that is not known here")
    several = primitive.multiple_results

    def apply(*values):
        out = primitive.bind(*values, **params)
        return list(out) if several else [out]

    block = graph.keep(apply, args, [x.dtype for x in avals])
    block.primitive = primitive
    found = []
    for k, aval in enumerate(avals):
        array = np.empty(aval.shape, object)
        for i in np.ndindex(aval.shape):
            array[i] = graph.take(block, k, i)
        found.append(array)
    return found


def _calls_python(primitive: Primitive, params: Parameters) -> bool:
    """Whether an operation, or an operation inside of it, calls Python."""
    if primitive.name == "pure_callback":
        return True
    return any(_calls_python(y.primitive, y.params) for x in _functions_in(params) for y in x.eqns)


def _piece(graph, params, args, avals):
    piece, batched = params["piece"], params["batched"]
    if not graph.inlines:
        raise NotScalar("a loop of programs, each of which is scalar code by itself")
    if any(x.shape[0] == 0 for x, b in zip(args, batched, strict=True) if b):
        return [np.empty(aval.shape, object) for aval in avals]
    return piece.inline(graph, batched, args)


def _scan(graph, params, args, avals):
    length, closed = params["length"], params["jaxpr"]
    if length > LONGEST and not graph.inlines:
        return None
    n, m = _program.sizes_of_scan(params)
    fixed, carry, xs = args[:n], args[n : n + m], args[n + m :]
    rows: list[list[np.ndarray]] = [[] for _ in range(length)]
    body = _RepeatedCall(closed, [i >= n for i in range(len(args))]) if graph.calls and length > 1 else None
    with graph.turning(length):
        for i in reversed(range(length)) if params["reverse"] else range(length):
            given = [*fixed, *carry, *(row(x, i) for x in xs)]
            out = body.results(graph, given) if body else None
            out = interpret(graph, closed, given) if out is None else out
            carry, rows[i] = out[:m], out[m:]
    stacked = []
    for k, aval in enumerate(avals[m:]):
        column = np.empty(aval.shape, object)
        for i in range(length):
            column[i] = rows[i][k][()]
        stacked.append(column)
    return [*carry, *stacked]


def _while(graph, params, args, avals):
    """Unrolls a loop if its end does not depend on numbers that are not known; else returns None."""
    n, m = params["cond_nconsts"], params["body_nconsts"]
    tests, fixed, carry = args[:n], args[n : n + m], args[n + m :]
    going, body = params["cond_jaxpr"], params["body_jaxpr"]
    for _ in range(LONGEST + 1):
        (goes,) = interpret(graph, going, [*tests, *carry])
        if isinstance(goes.item(), Node):
            return None
        if not goes.item():
            return list(carry)
        carry = interpret(graph, body, [*fixed, *carry])
    return None


def _cond(graph, params, args, avals):
    which, *operands = args
    number, branches = which.item(), params["branches"]
    if isinstance(number, Node):
        return _all_branches(graph, number, branches, operands, avals)
    return interpret(graph, branches[int(np.clip(number, 0, len(branches) - 1))], operands)


def _all_branches(
    graph: Graph, which: Node, branches: Sequence[ClosedJaxpr], operands: list[np.ndarray], avals: list[ShapedArray]
) -> list[np.ndarray] | None:
    """The results of the branch number `which`, all of which are computed; None if that takes long or is not possible.

    A derivative is a choice between the derivatives of the branches, so that no number of another one enters it.
    """
    sizes = [sum(math.prod(x.shape) for x in avals), *(_length(x.jaxpr) for x in branches)]
    if is_long(len(branches), sizes[0]) or sum(sizes[1:]) > LONGEST_BRANCHES:
        return None
    before, blocks = graph.doubts, graph.blocks
    doubts, found = list(before), []
    try:
        for k, branch in enumerate(branches):
            graph.doubts = []
            found.append(interpret(graph, branch, operands))
            chosen = is_at_most(graph, which, k) if k < len(branches) - 1 else constant(True, bool)
            if k:
                chosen = graph.both(chosen, graph.negation(is_at_most(graph, which, k - 1)))
            doubts += [graph.both(doubt, chosen) for doubt in graph.doubts]
    except NotScalar:
        doubts = before
    graph.doubts = before if graph.blocks > blocks else doubts
    if graph.doubts is before:
        return None
    return [selected(graph, which, arrays) for arrays in zip(*found, strict=True)]


def _length(jaxpr: Jaxpr) -> int:
    """The number of operations of a function, those of other functions in it included; a scan repeats its own."""
    each = ((x.params.get("length", 1), _functions_in(x.params)) for x in jaxpr.eqns)
    return sum(1 + times * sum(map(_length, functions)) for times, functions in each)


def _functions_in(params: Parameters) -> list[Jaxpr]:
    """The traced functions among the parameters of an operation."""
    parts = [x for value in params.values() for x in (value if isinstance(value, (tuple, list)) else [value])]
    inner = [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in parts]
    return [x for x in inner if isinstance(x, Jaxpr)]


def _custom_linear_solve(graph, params, args, avals):
    """The solution as `solve` finds it; the other functions are for the derivatives of the operation."""
    lengths, jaxprs = params["const_lengths"], params["jaxprs"]
    begin, count = lengths.matvec + lengths.vecmat, sum(lengths)
    return interpret(graph, jaxprs.solve, [*args[begin : begin + lengths.solve], *args[count:]])


def _high(graph, params, args, avals):
    """The results of an operation that newer versions of JAX keep whole (hijax), by its definition."""
    operation = params["_prim"]

    def flat(*leaves):
        return jax.tree_util.tree_leaves(operation.expand(*jax.tree_util.tree_unflatten(operation.in_tree, leaves)))

    return interpret(graph, jax.make_jaxpr(flat)(*operation.in_avals_flat), args)


def _sum(graph, params, args, avals):
    return [_elementwise(graph, prims.add_p, {}, args, avals[0])]


CONTROL: dict[Primitive, Rule] = {
    prims.scan_p: _scan,
    prims.while_p: _while,
    prims.cond_p: _cond,
    prims.add_jaxvals_p: _sum,
}
# Operations that move numbers, or are made of sums and products of them.
PLAIN = {
    *(prims.broadcast_in_dim_p, prims.reshape_p, prims.squeeze_p, prims.transpose_p, prims.rev_p, prims.concatenate_p),
    *(prims.slice_p, prims.dynamic_slice_p, prims.dynamic_update_slice_p, prims.pad_p, prims.iota_p, prims.gather_p),
    *(prims.scatter_p, prims.scatter_add_p, prims.dot_general_p, prims.reduce_sum_p, prims.cumsum_p, prims.copy_p),
    *(prims.reduce_and_p, prims.reduce_or_p, prims.argmax_p, prims.argmin_p),
    *(prims.scan_p, prims.add_jaxvals_p),
}
PLAIN_NAMES = {"stack", "split", "unstack", "tile", "platform_index"}
# Operations that jax.extend does not name.
NAMED: dict[str, Rule] = {**BY_NAME, "call_hi_primitive": _high, "custom_linear_solve": _custom_linear_solve}
# Operations of this package.
OURS: dict[Primitive, Rule] = {solve_p: solve_rule, pivots_p: pivots_rule, piece_p: _piece}
