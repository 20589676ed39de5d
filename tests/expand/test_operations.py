"""Every operation of `jax.lax` with every one of its parameters: followed by scalar code, or left to JAX."""

import importlib
import pkgutil
import sys
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive, primitives
from jax.interpreters import batching, mlir

import ukjax

from ..helpers import long
from ..inside import CALLS, ELEMENTWISE, OF_CALLS, is_followed, rule_of
from .operations import ALONE, EXAMPLES, WITHOUT_EXAMPLE, A, X


@pytest.fixture(autouse=True)
def as_users_have_it():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def of_arrays(function):
    return lambda *args: [jnp.asarray(x) for x in jax.tree_util.tree_leaves(function(*args))]


def equations(jaxpr):
    """Those within others too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for x in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(x, "jaxpr", x)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def installed():
    """All operations of `jax.lax`, public or not, by name."""
    import jax._src.lax as package

    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    modules = [primitives, *(m for name, m in sys.modules.items() if name.startswith("jax._src.lax."))]
    return {x.name: x for m in modules for x in vars(m).values() if isinstance(x, Primitive)}


def test_no_operation_of_the_installed_jax_is_unknown():
    left = {name: why for why, names in WITHOUT_EXAMPLE.items() for name in names.split()}
    known = installed()
    new = set(known) - set(EXAMPLES) - set(left)
    assert not new, f"JAX has new operations: write examples of {sorted(new)} in operations.py"
    assert not set(left) & set(EXAMPLES)
    for name in left:
        # Calls are followed as functions.
        assert name not in known or rule_of(known[name]) is None or name in CALLS, name


# Parameters with one value in all of JAX's own uses, or none that matters.
ONE_VALUE = {
    "conjugate_a",  # of real matrices
    *("sharding", "out_sharding", "update_consts", "name", "unroll", "ctx_mesh", "resource_env", "platforms"),
    *("in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "compiler_options_kvs", "inline"),
    *("symbolic_zeros", "out_trees", "bwd", "fwd_jaxpr_thunk", "jvp_jaxpr_fun", "num_consts", "differentiated"),
    *(
        "update_jaxpr",
        "branches",
        "call_jaxpr",
        "branches_platforms",
        "prevent_cse",
        "policy",
        "weak_type",
        "keep_unused",
    ),
}


def test_every_parameter_of_what_is_followed_is_known_and_varied():
    seen, followed = defaultdict(lambda: defaultdict(set)), defaultdict(set)
    for name, examples in EXAMPLES.items():
        inside = set()
        for function, args in examples:
            for equation in equations(jax.make_jaxpr(function)(*args).jaxpr):
                primitive = equation.primitive
                inside.add(primitive.name)
                if rule_of(primitive) is not None:
                    followed[primitive.name].add(is_followed(primitive, equation.params, primitive in ELEMENTWISE))
                for key, value in equation.params.items():
                    seen[primitive.name][key].add(str(value))
        assert name in inside, f"no example of {name} makes use of it"
    never = {name for name, found in followed.items() if True not in found}
    assert not never, f"the rules of {never} are never used: JAX has parameters that they do not know"
    assert {name for name, found in followed.items() if False in found} == {"dot_general", "mul", "reshape"}
    for name in followed:
        for key, values in seen[name].items():
            assert len(values) > 1 or key in ONE_VALUE, f"only {values} of {key} of {name}"


def test_what_a_newer_jax_adds_is_left_to_it(monkeypatch):
    """An operation, a parameter, or a value of one, that is not known here."""
    new = Primitive("exp_of_a_newer_jax")
    new.def_impl(lambda x, **_: 2 * x)
    new.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(new, mlir.lower_fun(lambda x, **_: 2 * x, multiple_results=False))
    batching.defvectorized(new)
    report = ukjax.expand(lambda x: new.bind(x) + 1.0).report(X)
    assert report.kept == ("exp_of_a_newer_jax",)
    assert np.array_equal(jax.jit(ukjax.expand(lambda x: new.bind(x) + 1.0))(X), 2 * X + 1.0)
    functions = {
        "sin": jnp.sin, "gather": lambda x: x[jnp.array([0, 2])], "reduce_sum": jnp.sum, "cumsum": jax.lax.cumsum,
        "scan": lambda x: jax.lax.scan(lambda c, z: (c + z, c), 0.0, x)[0], "dot_general": lambda x: x @ A.T,
        "jit": jax.jit(jnp.sin), "custom_jvp_call": jax.nn.relu,
    }  # fmt: skip
    for name, function in functions.items():
        equation = next(x for x in equations(jax.make_jaxpr(function)(X).jaxpr) if x.primitive.name == name)
        follows = lambda params, of=equation.primitive: is_followed(of, params, of in ELEMENTWISE)
        assert follows(equation.params)
        assert not follows(equation.params | {"of_a_newer_jax": 1})
        assert name != "gather" or not follows(equation.params | {"mode": "of a newer JAX"})
    # A call has rules of its own, which only JAX can use.
    monkeypatch.setitem(OF_CALLS, "name", lambda value: value != "sin")
    report = ukjax.expand(lambda x: jax.jit(jnp.sin)(x)).report(X)
    assert "parameter of jit" in report.reason


GROUPS = [list(EXAMPLES)[i : i + 20] for i in range(0, len(EXAMPLES), 20)]
SHORT = ["div", "gather", "mul"]


def differs(got, want):
    """What of two arrays is not the same but for rounding."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    rtol = 20 * float(jnp.finfo(want.dtype).eps) if jnp.issubdtype(want.dtype, jnp.inexact) else 0.0
    x, y = (np.asarray(z.astype(jnp.float32) if z.dtype == jnp.bfloat16 else z) for z in (got, want))
    same = np.isclose(x, y, rtol=20 * rtol, atol=20 * rtol, equal_nan=True) if rtol else x == y
    return "" if same.all() else f"{x} for {y}"


@pytest.mark.parametrize("names", [SHORT, *map(long, GROUPS)], ids=lambda names: f"{names[0]} to {names[-1]}")
def test_the_results_are_those_of_jax(names):
    of = [(f"{name} {i}", *example) for name in names for i, example in enumerate(EXAMPLES[name])]
    pieces = [ukjax.expand(of_arrays(f), limit=5000) for _, f, _ in of]
    for (name, function, args), piece in zip(of, pieces, strict=True):
        there = {x.primitive.name for x in equations(jax.make_jaxpr(function)(*args).jaxpr)}
        report = piece.report(*map(jnp.asarray, args))
        assert report.operations is not None or any("random" in x for x in there), name
        assert set(report.kept) <= there, name

    def both(of, pieces, change, arguments):
        plain = lambda arguments: [of_arrays(f)(*args) for (_, f, _), args in zip(of, arguments, strict=True)]
        ours = lambda arguments: [piece(*args) for piece, args in zip(pieces, arguments, strict=True)]
        results = zip(of, *jax.jit(lambda a: (change(ours)(a), change(plain)(a)))(arguments), strict=True)
        wrong = {name: [differs(*pair) for pair in zip(got, want, strict=True)] for (name, *_), got, want in results}
        assert not {k: v for k, v in wrong.items() if any(v)}

    given = [[jnp.asarray(x) for x in args] for *_, args in of]
    both(of, pieces, lambda f: f, given)
    if names is not SHORT:
        batched = [i for i, (name, *_) in enumerate(of) if name.split()[0] not in ALONE]
        twice = [[jnp.stack([x, x]) for x in given[i]] for i in batched]
        both([of[i] for i in batched], [pieces[i] for i in batched], jax.vmap, twice)
