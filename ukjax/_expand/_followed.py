"""The operations of JAX that scalar code follows, with the values of parameters that it accepts.

A rule of this package knows the parameters that an operation has today. One that a newer JAX adds, or a value that is
new, may change what the operation means: with it the operation is left to JAX.
"""

from collections.abc import Callable
from typing import Any

from jax import lax

from .. import _program


Accepts = Callable[[Any], bool]


def _any(_: Any) -> bool:
    return True


def _none(value: Any) -> bool:
    return value is None


def _one_of(*values: Any) -> Accepts:
    return lambda value: value in values


def _precision(value: Any) -> bool:
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
    "broadcast_in_dim": {"shape": _any, "broadcast_dimensions": _any, **PLACE},
    "concatenate": {"dimension": _any},
    "cond": {"branches": _any, "branches_platforms": _any},
    "copy": {},
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
    "transpose": {"permutation": _any},
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


def is_followed(primitive: Any, params: dict[str, Any], entrywise: bool) -> bool:
    """Whether the rule of an operation knows all of its parameters, and accepts their values."""
    name = primitive.name
    known = OF_ENTRIES if entrywise else OF_CALLS if name in CALLS else PARAMETERS.get(name)
    return known is not None and all(k in known and known[k](value) for k, value in params.items())
