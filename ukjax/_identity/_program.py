"""Checksums of traced functions: of their operations, the operands of these, and their order.

Variables are numbered within each program; names of functions, arguments and files do not count. Constants count by
their bytes. A Python function that a program calls back counts by its instructions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun


# The parameters of operations that do not change their results.
LABELS = frozenset({
    "name", "debug_info", "donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh",
    "keep_unused", "inline", "compiler_options_kvs", "policy", "prevent_cse", "flatten",
})  # fmt: skip
# The parameters that hold the derivative rule of a function with its own: Python functions, traced where needed.
RULES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "num_consts", "symbolic_zeros"})
SHOWN = frozenset({"debug_callback", "debug_print"})  # operations that only display
CALLS = "callback"


class Sums(Protocol):
    """The methods of `Checksum`, which makes checksums."""

    with_rules: bool
    within_rule: bool

    def of(self, value: Any, /) -> bytes: ...
    def put(self, tag: str, /, *parts: bytes) -> bytes: ...
    def of_all(self, tag: str, values: Any, /) -> bytes: ...
    def of_names(self, tag: str, values: Any, /) -> bytes: ...


def of_program(sums: Sums, jaxpr: Jaxpr) -> bytes:
    """The checksum of a traced function, without its constants."""
    numbers: dict[Any, int] = {}

    def defined(x: Any) -> bytes:
        numbers[x] = len(numbers)
        return tag_of_shape(x.aval).encode()

    def used(x: Any) -> bytes:
        if isinstance(x, Literal):
            return sums.put("literal", tag_of_shape(x.aval).encode(), sums.of(np.asarray(x.val)))
        return f"#{numbers[x]}".encode()

    takes = [defined(x) for x in (*jaxpr.constvars, *jaxpr.invars)]
    parts = [sums.put(f"takes {len(jaxpr.constvars)}", *takes)]
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SHOWN:
            continue
        of = [used(x) for x in eqn.invars]
        gives = [defined(x) for x in eqn.outvars]
        parts.append(sums.put(_operation(eqn), sums.put("of", *of), _parameters(sums, eqn), sums.put("gives", *gives)))
    return sums.put("program", *parts, sums.put("returns", *(used(x) for x in jaxpr.outvars)))


def tag_of_shape(aval: Any) -> str:
    """The dtype and shape of an abstract value, or its type if it has none."""
    aval = getattr(aval, "inner_aval", aval)
    return f"{aval.dtype} {tuple(aval.shape)}" if hasattr(aval, "dtype") else type(aval).__name__


def _operation(eqn: JaxprEqn) -> str:
    name = eqn.primitive.name
    # The random numbers of a key depend on a setting of JAX.
    return f"{name} {eqn.ctx.threefry_partitionable}" if name.startswith(("random", "threefry")) else name


def _parameters(sums: Sums, eqn: JaxprEqn) -> bytes:
    has_rule = not RULES.isdisjoint(eqn.params)
    left_out = LABELS | RULES if has_rule else LABELS
    values = {name: x for name, x in eqn.params.items() if name not in left_out}
    was, sums.within_rule = sums.within_rule, sums.within_rule and CALLS not in eqn.primitive.name
    found = sums.of_names("parameters", values)
    sums.within_rule = was
    if has_rule and sums.with_rules and not sums.within_rule:
        sums.within_rule = True
        found = sums.put("with a rule", found, _rule(sums, eqn))
        sums.within_rule = False
    return found


def _rule(sums: Sums, eqn: JaxprEqn) -> bytes:
    """The checksum of the derivative of an operation that has its own derivative rule."""
    try:
        return sums.of(_derivative(eqn))
    except Exception:  # the rule is the user's, and may raise anything; whoever takes the derivative will see it
        return sums.put("no derivative")


def _derivative(eqn: JaxprEqn) -> ClosedJaxpr:
    takes: list[Any] = list(dict.fromkeys(x for x in eqn.invars if not isinstance(x, Literal)))
    gives = [x for x in eqn.outvars if not isinstance(x, DropVar)]
    jaxpr = eqn.params["call_jaxpr"].jaxpr
    names = jaxpr.debug_info._replace(arg_names=("",) * len(takes), result_paths=("",) * len(gives))
    alone = jaxpr.replace(constvars=[], invars=takes, outvars=gives, eqns=[eqn], debug_info=names)
    function = jaxpr_as_fun(ClosedJaxpr(alone, ()))
    avals = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in takes]
    smooth = [i for i, x in enumerate(avals) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def along(at: Sequence[Any]) -> Callable[..., Any]:
        def moved(*moving):
            whole = list(at)
            for i, x in zip(smooth, moving, strict=True):
                whole[i] = x
            return [y for y in function(*whole) if jnp.issubdtype(y.dtype, jnp.inexact)]

        return moved

    of = lambda at: [at[i] for i in smooth]
    if "jvp_jaxpr_fun" in eqn.params:
        return jax.make_jaxpr(lambda at, d: jax.jvp(along(at), of(at), d))(avals, of(avals))

    def pulled(at):
        found, pull = jax.vjp(along(at), *of(at))
        return pull(found)  # the cotangents may be any numbers of these shapes

    return jax.make_jaxpr(pulled)(avals)
