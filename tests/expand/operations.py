"""Every operation of `jax.lax`, with all of its parameters, as functions of small arrays."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name


Example = tuple[Callable[..., Any], tuple[Any, ...]]

X = jnp.array([0.7, -1.3, 0.4])
Y = jnp.array([1.9, -0.2, -2.1])
U = jnp.array([0.1, 0.5, 0.9])  # between 0 and 1
A = jnp.array([[1.0, 0.2, -0.3], [0.4, 2.0, 0.1]])
S = jnp.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.2], [0.1, -0.2, 1.0]])
C = jnp.arange(24.0).reshape(2, 3, 4) / 7 - 1.1
I = jnp.array([5, -7, 0])
J = jnp.array([2, -3, 4])
II = jnp.outer(I, J)
B = jnp.array([True, False, True])
Z = jnp.array([1.0 + 2.0j, -0.3 - 1.0j, 0.5 + 0.0j])
AT = np.array([[2], [0], [1]])
OUTSIDE = np.array([[-1], [5], [1]])
MODES = ("clip", "fill", "promise_in_bounds")


def unary(f: Callable[..., Any], *args: Any) -> list[Example]:
    return [(f, (x,)) for x in args]


def binary(f: Callable[..., Any], *pairs: tuple[Any, Any]) -> list[Example]:
    """Also with one of the two, or both, known while tracing."""
    fixed = [(lambda x, b=b: f(x, b), (a,)) for a, b in pairs] + [(lambda y, a=a: f(a, y), (b,)) for a, b in pairs]
    both = [(lambda z, a=a, b=b: (z, lax.full_like(z, 2), f(a, b)), (a,)) for a, b in pairs]
    return [*((f, pair) for pair in pairs), *fixed, *both]


def accurate(f: Callable[..., Any], *args: Any) -> list[Example]:
    """With an accuracy too, where the installed JAX takes one."""
    if "accuracy" not in inspect.signature(f).parameters:
        return unary(f, *args)
    return [*unary(f, *args), *unary(lambda x: f(x, accuracy=lax.AccuracyMode.HIGHEST), *args)]


def gathers() -> list[Example]:
    columns = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    windows = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(1,))
    batched = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )  # fmt: skip
    found: list[Example] = []
    for mode in MODES:
        places = [AT, *([] if mode == "promise_in_bounds" else [OUTSIDE])]
        for at in map(jnp.asarray, places):
            found += [
                (lambda x, at, mode=mode: lax.gather(x, at, columns, (1, 2), mode=mode), (x, at)) for x in (S, S > 0.2)
            ]
            found.append((lambda x, at, mode=mode: lax.gather(x, at, windows, (2, 2), mode=mode), (A, at)))
        for at in (AT, *([] if mode == "promise_in_bounds" else [OUTSIDE])):
            get = lambda x, at=at, mode=mode, **more: lax.gather(x, at, columns, (1, 2), mode=mode, **more)
            found += unary(get, S, jnp.stack([I, J, I]), S > 0.2)
            found += unary(lambda x, at=at, mode=mode: lax.gather(x, at, windows, (2, 2), mode=mode), A)
        rows = lambda x, mode=mode: lax.gather(x, np.array([[1], [0]]), batched, (1, 1), mode=mode)
        found += unary(rows, A)
    found += unary(lambda x: lax.gather(x, OUTSIDE, columns, (1, 2), mode="fill", fill_value=7), S, II)
    found += unary(lambda x: lax.gather(x, AT, columns, (1, 2), unique_indices=True, mode="clip"), S)
    found += unary(lambda x: lax.gather(x, AT[1:], columns, (1, 3), indices_are_sorted=True, mode="clip"), S)
    found += [(lambda x, i: x.at[i].get(mode="fill", fill_value=-1.0), (X, jnp.array([2, 9, -1])))]
    found += [(lambda x, i: x.at[i].get(mode="clip"), (X, jnp.array(7)))]
    found += unary(lambda x: (x[1:], x[::-1], x[..., None], x[np.array([True, False, True])], x[-1]), X, S)
    found += unary(lambda x: (jnp.take(x, jnp.array([0, 5]), axis=-1), jnp.take_along_axis(x, jnp.argsort(x), -1)), S)
    return found


def scatters(name: str) -> list[Example]:
    found: list[Example] = []
    put = lambda x, at, value, **more: getattr(x.at[at], name)(value, **more)
    for mode in ("clip", "drop", "promise_in_bounds"):
        found += [(lambda x, y, mode=mode: put(x, np.array([2, 0, 2 if name != "set" else 1]), y, mode=mode), (X, Y))]
        if mode != "promise_in_bounds":
            found += [(lambda x, y, mode=mode: put(x, np.array([-5, 4, 1]), y, mode=mode), (X, Y))]
            found += [(lambda x, y, mode=mode: put(x, np.array([0, 9]), y, mode=mode), (S, A))]
    found += [(lambda x, y: put(x, (np.array([1, 0]), np.array([2, 1])), y[:2]), (A, X))]
    found += [(lambda x, y: put(x, (slice(None), np.array([0, 2])), y[None, :2]), (A, X))]
    found += [(lambda x, y: put(x, np.array([0, 1]), y[:2], unique_indices=True, indices_are_sorted=True), (X, Y))]
    found += [(lambda x, y: put(x, np.array([0, 0, 1]), y), (I, J))] if name != "set" else []
    found += [(lambda x, y, i: put(x, i, y), (X, Y[0], jnp.array(1)))]
    for mode in ("clip", "drop"):
        at = [jnp.array([2, 0, 1]), jnp.array([-5, 4, 1])]
        found += [(lambda x, y, i, mode=mode: put(x, i, y, mode=mode), (X, Y, i)) for i in at]
        found += [(lambda x, y, i, mode=mode: put(x, (i, 2 - i), y[:2], mode=mode), (A, X, i[:2])) for i in at]
    rows = lambda x, y: jax.vmap(lambda row, at, z: put(row, at, z))(x, np.array([2, 0]), y[:2])
    return [*found, (rows, (A, X))]


def reduced(f: Callable[..., Any], *args: Any) -> list[Example]:
    return [(lambda x, axes=axes: f(x, axis=axes), (x,)) for x in args for axes in ((0,), (x.ndim - 1,), None)]


def cumulative(f: Callable[..., Any], *args: Any) -> list[Example]:
    ways = [(axis, reverse) for axis in (0, 1) for reverse in (False, True)]
    return [(lambda x, a=a, r=r: f(x, axis=a, reverse=r), (x,)) for x in args for a, r in ways]


def windows(f: Callable[..., Any], *more: Any) -> list[Example]:
    config = [((2, 2), (1, 1), "VALID"), ((1, 2), (1, 2), "SAME"), ((2, 1), (2, 1), ((1, 0), (0, 1)))]
    return [(lambda x, c=c: f(x, *more, *c), (x,)) for x in (A, S) for c in config]


def dots() -> list[Example]:
    numbers = [
        ((((1,), (0,)), ((), ())), A, S), ((((), ()), ((), ())), X, Y), ((((0,), (1,)), ((), ())), X, A),
        ((((2,), (1,)), ((0,), (0,))), C, jnp.sin(C.transpose(0, 2, 1))), ((((0, 1), (0, 1)), ((), ())), A, jnp.cos(A)),
        ((((1,), (1,)), ((0,), (0,))), A, 2 * A), ((((0,), (0,)), ((), ())), I, J),
    ]  # fmt: skip
    of = lambda d, **more: lambda x, y: lax.dot_general(x, y, d, **more)
    found = [(of(d), (x, y)) for d, x, y in numbers]
    plain, f32 = numbers[0][0], jnp.float32
    found += [(of(plain, precision=p), (A, S)) for p in ("highest", lax.Precision.DEFAULT, ("high", "default"))]
    found += [(of(plain, preferred_element_type=jnp.float64), (A.astype(f32), S.astype(f32)))]
    found += [(of(plain, precision=lax.DotAlgorithmPreset.F32_F32_F32), (A.astype(f32), S.astype(f32)))]
    found += [
        (of((((0,), (0,)), ((), ())), preferred_element_type=jnp.float64), (I.astype(jnp.int32), J.astype(jnp.int32)))
    ]
    return [*found, *unary(lambda x: (jnp.einsum("ij,kj->ik", x, x), jnp.outer(x, x), jnp.kron(x, x)), A)]


def convolutions() -> list[Example]:
    x, k = C[:, :, None, :].transpose(0, 2, 1, 3), jnp.ones((1, 1, 2, 2)) * 0.3
    of = lambda **more: lambda x, k: lax.conv_general_dilated(x, k, **more)
    return [
        (of(window_strides=(1, 1), padding="VALID"), (x, k)),
        (of(window_strides=(2, 1), padding="SAME", rhs_dilation=(1, 2)), (x, k)),
        (lambda x: jnp.convolve(x, Y[:2]), (X,)),
    ]


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)


with_jvp.defjvp(lambda x, dx: (jnp.sin(x[0]), 3 * dx[0]))


@jax.custom_vjp
def with_vjp(x):
    return jnp.cos(x)


with_vjp.defvjp(lambda x: (jnp.cos(x), x), lambda x, c: (jnp.clip(c, -1, 1),))


def scans() -> list[Example]:
    body = lambda c, x: (c * 0.9 + x, jnp.sin(c) * x)
    more = lambda x, y, **ways: lax.scan(lambda c, z: (c + z * y, (c, z)), x[0], x, **ways)
    return [
        *((lambda x, w=w: lax.scan(body, 0.5, x, **w), (X,)) for w in ({}, {"reverse": True}, {"unroll": 2})),
        (lambda x: lax.scan(lambda c, _: (c * x, jnp.sum(c)), x, None, length=4), (X,)),
        (lambda x: lax.scan(lambda c, i: ({"a": c["a"] + i * x}, ()), {"a": x}, np.arange(3.0)), (X,)),
        (more, (X, jnp.array(0.3))),
        (lambda x, y: more(x, y, reverse=True), (X, jnp.array(0.3))),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i] * i, 0.0), (X,)),
        (lambda x: lax.map(lambda row: row @ row, x), (A,)),
        (lambda x: lax.associative_scan(jnp.multiply, x), (X,)),
        (lambda x: lax.scan(body, 0.5, jnp.tile(x, 12))[0], (X,)),
        (lambda x: lax.scan(lambda c, z: (c, z), x, x[:0][:, None]), (X,)),
    ]


def whiles() -> list[Example]:
    known = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x))
    bounded = lambda x, y: lax.while_loop(
        lambda c: c[1] < jnp.tanh(jnp.sum(y)) + 40, lambda c: (c[0] * x, c[1] + 1.5), (x, 0.0)
    )
    found = lambda x: lax.while_loop(lambda c: jnp.sum(c) < 20, lambda c: c * 1.5 + jnp.abs(x) + 0.1, x)
    more = lambda x, y: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * x + y), (0, x))
    return [
        (more, (X, Y)),
        (known, (X,)),
        (bounded, (X, Y)),
        (found, (X,)),
        (lambda x: lax.while_loop(lambda c: False, lambda c: c, x), (X,)),
    ]


def conds() -> list[Example]:
    branches = [jnp.sin, jnp.cos, lambda x: x * x]
    return [
        *((lambda x, i=i: lax.switch(i, branches, x), (X,)) for i in (-3, 0, 1, 9)),
        *((lambda x, i: lax.switch(i, branches, x), (X, jnp.array(i))) for i in (-7, 0, 1, 2, 7)),
        (lambda x: lax.cond(x[0] > 0, lambda x: (x, 1.0), lambda x: (-x, 2.0), x), (X,)),
        (lambda x: lax.cond(True, jnp.exp, jnp.sin, x), (X,)),
        (lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin), (X,)),
    ]


SMALL = jnp.array([1e-3, 2.5, 7.0])
PAIRS = (X, Y), (I, J)
TOTAL = jnp.array([-jnp.inf, -1.0, -0.0, 0.0, 1.0, jnp.inf, jnp.nan])
EXTREME = jnp.array([jnp.inf, -jnp.inf, jnp.nan])
TWICE = jnp.concatenate([X, X])
convert = lambda dtype: lambda x: lax.convert_element_type(x, dtype)
TYPES = (
    jnp.float32,
    jnp.float64,
    jnp.float16,
    jnp.bfloat16,
    jnp.int8,
    jnp.int32,
    jnp.int64,
    jnp.uint8,
    jnp.uint32,
    bool,
)
LARGE = (X, EXTREME, jnp.array([1e30, -3e9, 250.7]), I, B)
pads = [(0, 0, 0), (1, 2, 0), (-1, 1, 0), (1, -1, 1), (-1, -1, 1), (0, 1, 2)]
summed = lambda x, y: (x[0] + y[0], jnp.maximum(x[1], y[1]))

# Operations that no example has, and why: all of them are left to JAX.
WITHOUT_EXAMPLE = {
    "only within a loop over a named axis of devices": """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start
        all_to_all all_to_all_done all_to_all_start axis_index pbroadcast pbroadcast_done pbroadcast_start pmax pmin
        ppermute ppermute_done ppermute_start precv preduced psend psum psum_done psum_invariant psum_invariant_start
        psum_start ragged_all_to_all reduce_scatter reduce_scatter_done reduce_scatter_start unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast_p
        pbroadcast_dynamic unreduced_pmax unreduced_pmin vary_unreduced_cast""",
    "tokens, references and what else has effects": "after_all create_token dce_sink empty2 get stage swap",
    "only within other operations of JAX, or written by them": """
        call closed_call custom_lin eq_to eval_jaxpr from_edtype geqp3 geqrf lu_pivots_to_permutation mulhi
        ormqr rng_uniform select_and_scatter sharding_constraint threefry2x32 tie to_edtype""",
    "of large matrices": "ragged_dot_general scaled_dot",
    "named parts of programs": "composite",
}

# JAX has no rule for batches of them.
ALONE = {"cholesky_update"}

# By the name of the operation.
EXAMPLES: dict[str, list[Example]] = {
    "abs": unary(jnp.abs, X, I, Z),
    "acos": unary(lax.acos, U),
    "acosh": unary(lax.acosh, 1 + U),
    "add": binary(lax.add, *PAIRS, (X, EXTREME)),
    "add_any": [(jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)), (X,))],
    "and": binary(lax.bitwise_and, (B, ~B), (I, J)),
    "approx_top_k": unary(lambda x: lax.approx_max_k(x, 2), X),
    **{
        f.__name__: [
            *reduced(lambda x, axis, f=f: f(x, (axis or (0,))[0], jnp.int32), A, jnp.array([0.0, jnp.nan, 1.0]), B),
            *reduced(lambda x, axis, f=f: f(x, (axis or (0,))[0], jnp.int64), I, jnp.array([1.0, 1.0, -0.0, 0.0])),
        ]
        for f in (lax.argmax, lax.argmin)
    },
    "asin": unary(lax.asin, U),
    "asinh": unary(lax.asinh, X),
    "atan": unary(lax.atan, X),
    "atan2": binary(lax.atan2, (X, Y)),
    "atanh": unary(lax.atanh, U),
    "bessel_i0e": unary(jax.scipy.special.i0e, X),
    "bessel_i1e": unary(jax.scipy.special.i1e, X),
    "bitcast_convert_type": unary(lambda x: lax.bitcast_convert_type(x, jnp.int64), X),
    "broadcast_in_dim": [
        *unary(lambda x: lax.broadcast_in_dim(x, (2, 3), (1,)), X),
        *unary(lambda x: lax.broadcast_in_dim(x[:, None], (3, 4), (0, 1)), X, I),
    ],
    "cbrt": accurate(lax.cbrt, X),
    "ceil": unary(lax.ceil, X, EXTREME),
    "cholesky": unary(
        lambda x: jnp.tril(lax.linalg.cholesky(x, symmetrize_input=False)),
        S,
        S.at[2, 2].set(-1.0),
        jnp.stack([S, 2 * S]),
    ),
    "cholesky_update": [(lambda r, w: lax.linalg.cholesky_update(jnp.linalg.cholesky(r).T, w), (S, X))],
    "clamp": [
        *[(lax.clamp, (a, x, b)) for a, x, b in [(Y, X, Y + 1), (-0.5, X, 0.5), (-3, I, 3)]],
        *unary(lambda x: lax.clamp(jnp.full(3, 1.0), x, jnp.full(3, -1.0)), X, EXTREME),
    ],
    "clz": unary(lax.clz, I),
    "complex": [(lax.complex, (X, Y))],
    "concatenate": [(lambda x, y, d=d: lax.concatenate([x, y], d), (S, S.T)) for d in (0, 1)],
    "cond": conds(),
    "conj": unary(jnp.conj, Z),
    "conv_general_dilated": convolutions(),
    "convert_element_type": [(convert(t), (x,)) for t in TYPES for x in LARGE]
    + [(lambda z, t=t, x=x: (z, convert(t)(jnp.asarray(x))), (X,)) for t in TYPES for x in LARGE],
    "copy": unary(jnp.copy, X),
    "cos": accurate(lax.cos, X),
    "cosh": unary(lax.cosh, X),
    "cumlogsumexp": cumulative(lax.cumlogsumexp, A),
    "cummax": cumulative(lax.cummax, A),
    "cummin": cumulative(lax.cummin, A),
    "cumprod": cumulative(lax.cumprod, A),
    "cumsum": cumulative(lax.cumsum, A, II),
    "custom_jvp_call": unary(with_jvp, X),
    "custom_linear_solve": [
        *unary(lambda x: lax.custom_linear_solve(lambda y: 2 * y, x, lambda f, b: b / 2), X),
        # What the functions close over comes before the right-hand side, and the solution need not be its image.
        (
            lambda x: lax.custom_linear_solve(lambda y: x * y, X, lambda f, b: b / (x + 0.0), lambda f, b: b / x),
            (X + 3,),
        ),
    ],
    "custom_vjp_call": unary(with_vjp, X),
    "device_put": unary(lambda x: jax.device_put(x) * 2, X),
    "digamma": unary(lax.digamma, SMALL),
    "div": binary(lax.div, *PAIRS, (X, EXTREME), (jnp.array([2**62 + 1, -9, 4]), J)),
    "dot_general": dots(),
    "dynamic_slice": [
        *((lambda x, i=i, s=s: lax.dynamic_slice(x, (i, 1), s), (S,)) for i in (-4, 0, 1, 8) for s in ((2, 2), (1, 3))),
        *((lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (X, jnp.array(i))) for i in (-9, 0, 1, 5)),
        (lambda x, i: lax.dynamic_slice(x, (i, 3 - i), (2, 1)), (S, jnp.array(1, jnp.uint8))),
    ],
    "dynamic_update_slice": [
        *((lambda x, y, i=i: lax.dynamic_update_slice(x, y[:, :2], (i, 0)), (S, A)) for i in (-4, 0, 1, 8)),
        *((lambda x, i: lax.dynamic_update_slice(x, x[:1], (i,)), (X, jnp.array(i))) for i in (-9, 0, 1, 5)),
        (lambda x, y, i: lax.dynamic_update_slice(x, y[:, :2], (i, 3 - i)), (S, A, jnp.array(1))),
    ],
    "eig": unary(lambda x: jnp.linalg.eigvals(x), S),
    "eigh": unary(lambda x: lax.linalg.eigh(x)[1], S),
    "empty": unary(lambda x: (lax.empty((2,), jnp.float64) * 0 + x[:2])[:0], X),
    "eq": binary(lax.eq, *PAIRS, (X, X), (B, ~B), (EXTREME, EXTREME)),
    "erf": accurate(lax.erf, X),
    "erf_inv": unary(lax.erf_inv, U),
    "erfc": accurate(lax.erfc, X),
    "exp": accurate(lax.exp, X, EXTREME),
    "exp2": accurate(lax.exp2, X),
    "expm1": accurate(lax.expm1, X),
    "fft": unary(lambda x: (jnp.fft.fft(x).real, jnp.fft.irfft(jnp.fft.rfft(x), 3)), X),
    "floor": unary(lax.floor, X),
    "gather": gathers(),
    "ge": binary(lax.ge, *PAIRS, (X, X), (X, EXTREME)),
    "gt": binary(lax.gt, *PAIRS, (X, X), (X, EXTREME)),
    "hessenberg": unary(lambda x: lax.linalg.hessenberg(x)[0], S),
    "householder_product": unary(lambda x: lax.linalg.householder_product(x, x[0]), S),
    "igamma": [(lax.igamma, (SMALL, 1 + U))],
    "igamma_grad_a": [(lax.igamma_grad_a, (SMALL, 1 + U))],
    "igammac": [(lax.igammac, (SMALL, 1 + U))],
    "imag": unary(jnp.imag, Z),
    "integer_pow": [(lambda x, n=n: lax.integer_pow(x, n), (x,)) for n in (-3, -1, 0, 1, 2, 7, 11) for x in (X, Z)]
    + [(lambda x, n=n: (x, lax.integer_pow(np.array([3, -5, 2**31 + 1]), n)), (I,)) for n in (0, 2, 3, 9)]
    + [(lambda x, n=n: lax.integer_pow(x, n), (I,)) for n in (0, 3, 9)],
    "iota": [
        (lambda x, d=d, t=t: lax.broadcasted_iota(t, (2, 3), d) + x.astype(t), (A,))
        for d in (0, 1)
        for t in (int, float)
    ],
    "is_finite": unary(lax.is_finite, X, EXTREME),
    "jit": [(jax.jit(jnp.sin, inline=False), (X,)), (jax.jit(lambda x: (x, 2 * x), keep_unused=True), (X,))],
    "le": binary(lax.le, *PAIRS, (X, X)),
    "lgamma": unary(lax.lgamma, SMALL),
    "log": accurate(lax.log, U, X),
    "log1p": accurate(lax.log1p, U),
    "logistic": accurate(lax.logistic, X),
    "lt": binary(lax.lt, *PAIRS, (X, X)),
    **{
        f.name: [
            *binary(f.bind, *PAIRS, (X, X)),
            # Not of two constants: XLA folds these as if there were no order of zeros and NaN.
            (f.bind, (jnp.repeat(TOTAL, 7), jnp.tile(TOTAL, 7))),
            *((lambda x, y=y, f=f: f.bind(x, jnp.full_like(x, y)), (TOTAL,)) for y in (-0.0, 1.0, np.nan)),
        ]
        for f in (prims.lt_to_p, prims.le_to_p)
    },
    "lu": unary(lambda x: lax.linalg.lu(x), S, S[::-1], A, A.T, 0 * S, jnp.ones((3, 3)), jnp.stack([S, S[::-1]])),
    "max": binary(lax.max, *PAIRS, (X, EXTREME), (B, ~B)),
    "min": binary(lax.min, *PAIRS, (X, EXTREME), (B, ~B)),
    "mul": [
        *binary(lax.mul, *PAIRS, (X, jnp.array([0.0, 1.0, -1.0]))),
        *binary(lambda x, y: lax.mul(x, y, out_dtype=np.int64), (I.astype(jnp.int32), J.astype(jnp.int32))),
    ],
    "name": unary(lambda x: checkpoint_name(jnp.sin(x), "a"), X),
    "ne": binary(lax.ne, *PAIRS, (X, X), (EXTREME, EXTREME)),
    "neg": unary(lax.neg, X, I, Z, jnp.array([1, 2], jnp.uint8)),
    "nextafter": binary(lax.nextafter, (X, Y)),
    "not": unary(lax.bitwise_not, B, I),
    "optimization_barrier": unary(lax.optimization_barrier, X),
    "or": binary(lax.bitwise_or, (B, ~B), (I, J)),
    "pad": [(lambda x, a=a, b=b: lax.pad(x, 0.3, (a, b)), (A,)) for a in pads for b in pads]
    + [(lambda x, v: lax.pad(x, v, ((1, 1, 1),)), (X, jnp.array(2.0)))],
    "platform_index": unary(lambda x: lax.platform_dependent(x, default=jnp.sin), X),
    "polygamma": [(lax.polygamma, (jnp.array([1.0, 2.0, 3.0]), SMALL))],
    "population_count": unary(lax.population_count, I),
    "pow": [*binary(lax.pow, (U, X)), *((lax.pow, (x, y)) for x, y in [(X, jnp.array(2)), (X, I)])],
    "qr": unary(lambda x: jnp.abs(lax.linalg.qr(x)[1]), S),
    "random_bits": unary(lambda x: x + jax.random.bits(jax.random.key(1), (3,)).astype(float), X),
    "random_fold_in": unary(lambda x: x + jax.random.uniform(jax.random.fold_in(jax.random.key(1), 3)), X),
    "random_gamma": unary(lambda x: x + jax.random.gamma(jax.random.key(1), 2.0), X),
    "random_seed": unary(lambda x: x + jax.random.uniform(jax.random.key(1)), X),
    "random_split": unary(lambda x: x + jax.random.uniform(jax.random.split(jax.random.key(1))[1]), X),
    "real": unary(jnp.real, Z),
    "reduce": [
        (lambda x, y, d=d: lax.reduce((x, y), (0.0, -9.0), summed, d), (A, A + 1)) for d in ((0,), (1,), (0, 1))
    ],
    "reduce_and": reduced(jnp.all, A > 0.1, B),
    "reduce_max": reduced(jnp.max, A, I, EXTREME),
    "reduce_min": reduced(jnp.min, A, I),
    "reduce_or": reduced(jnp.any, A > 0.1, B),
    "reduce_precision": [
        (lambda x, e=e, m=m: lax.reduce_precision(x, e, m), (X,)) for e, m in [(5, 3), (8, 23), (11, 0)]
    ],
    "reduce_prod": reduced(jnp.prod, A, I),
    "reduce_sum": reduced(jnp.sum, A, I, C),
    "reduce_window": windows(lambda x, *c: lax.reduce_window(x, 0.5, lambda a, b: a * b + a + b, *c)),
    "reduce_window_max": windows(lambda x, *c: lax.reduce_window(x, -jnp.inf, lax.max, *c)),
    "reduce_window_min": windows(lambda x, *c: lax.reduce_window(x, jnp.inf, lax.min, *c)),
    "reduce_window_sum": windows(lambda x, *c: lax.reduce_window(x, 0.0, lax.add, *c)),
    "reduce_xor": reduced(lambda x, axis: lax.reduce(x, np.array(0, x.dtype), lax.bitwise_xor, axis or (0,)), I),
    "regularized_incomplete_beta": [(lax.betainc, (SMALL, SMALL[::-1], U))],
    "rem": binary(lax.rem, (X, Y), (I, J)),
    "remat2": [
        (jax.checkpoint(lambda x: jnp.sin(x) * x), (X,)),
        (jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.everything_saveable, prevent_cse=False), (X,)),
    ],
    "reshape": [*unary(lambda x: x.reshape(3, 2), A), (lambda x: lax.reshape(x, (6,), (1, 0)), (A,))],
    "rev": [(lambda x, d=d: lax.rev(x, d), (A,)) for d in ((0,), (1,), (0, 1), ())],
    "rng_bit_generator": unary(lambda x: x + lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (3,))[1], X),
    "round": [
        (lambda x, m=m: lax.round(x, m), (TWICE * 3.3 + np.array([0, 0, 0, 0.19, 0.79, 0.18]),))
        for m in lax.RoundingMethod
    ]
    + unary(lambda x: (lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), lax.round(x)), jnp.array([0.5, 1.5, -2.5])),
    "rsqrt": accurate(lax.rsqrt, U),
    "scan": scans(),
    "scatter": [*scatters("set"), (lambda x: x.at[np.array([0, 2])].apply(jnp.cos), (X,))],
    "scatter-add": scatters("add"),
    "scatter-max": scatters("max"),
    "scatter-min": scatters("min"),
    "scatter-mul": scatters("multiply"),
    "scatter-sub": scatters("subtract"),
    "schur": unary(lambda x: jnp.abs(lax.linalg.schur(x)[0]), S),
    "select_and_gather_add": unary(
        lambda x: jax.jvp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"), (x,), (x + 1,))[
            1
        ],
        A,
    ),
    "select_and_scatter_add": unary(
        jax.grad(lambda x: jnp.sum(jnp.sin(lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID")))), A
    ),
    "select_n": [
        *(
            (lax.select_n, (which, *cases))
            for which, cases in [(B, (X, Y)), (jnp.array([2, 0, 1]), (X, Y, U)), (jnp.array(True), (X, Y))]
        ),
        *unary(
            lambda x: (lax.select_n(np.array([1, 0, 2], np.int32), x, -x, 2 * x), lax.select(np.array(False), x, -x)), X
        ),
    ],
    "shift_left": binary(lax.shift_left, (I, jnp.array([1, 2, 70]))),
    "shift_right_arithmetic": binary(lax.shift_right_arithmetic, (I, jnp.array([1, 2, 3]))),
    "shift_right_logical": binary(lax.shift_right_logical, (I, jnp.array([1, 2, 3]))),
    "sign": unary(lax.sign, X, I, EXTREME, Z),
    "sin": accurate(lax.sin, X),
    "sinh": unary(lax.sinh, X),
    "slice": [(lambda x, s=s: lax.slice(x, (0, 1), (2, 3), s), (S,)) for s in (None, (1, 1), (2, 1))]
    + [(lambda x: x[1:2, ::2], (S,))],
    "sort": [(lambda x, y, **w: lax.sort([x, y], **w), (X, Y))]
    + [(lambda x, d=d, s=s: lax.sort(x, d, is_stable=s), (x,)) for d in (0, 1) for s in (False, True) for x in (A, S)]
    + [(lambda x, y: lax.sort([x, y], num_keys=2), (jnp.array([1.0, 0.0, 1.0]), Y))],
    "split": [(lambda x, s=s, a=a: lax.split(x, s, a), (S,)) for s in ((1, 2), (1, 1, 1), (3,)) for a in (0, 1)],
    "sqrt": accurate(lax.sqrt, U, X),
    "square": unary(lax.square, X, I, Z),
    "squeeze": [(lambda x, d=d: lax.squeeze(x, d), (S[None, :, None],)) for d in ((0,), (2,), (0, 2))],
    "stack": [
        (lambda x, y, d=d: lax.stack([x, y], d) if hasattr(lax, "stack") else jnp.stack([x, y], d), (A, 2 * A))
        for d in (0, 1, 2)
    ],
    "stop_gradient": unary(lambda x: lax.stop_gradient(x) * x, X),
    "sub": binary(lax.sub, *PAIRS, (X, EXTREME)),
    "svd": unary(lambda x: jnp.linalg.svd(x, compute_uv=False), A),
    "symmetric_product": [
        (lambda x, c: lax.linalg.symmetric_product(x, c, alpha=2.0, beta=0.5, symmetrize_output=True), (S, S))
    ],
    "tan": accurate(lax.tan, X),
    "tanh": accurate(lax.tanh, X),
    "tile": unary(lambda x: (jnp.tile(x, 2), jnp.tile(x, (2, 1)), lax.tile(x, (3,) * x.ndim)), X, A),
    "top_k": unary(lambda x: lax.top_k(x, 2), X, S),
    "transpose": [(lambda x, p=p: lax.transpose(x, p), (C,)) for p in ((0, 1, 2), (2, 0, 1), (1, 0, 2))],
    "triangular_solve": [
        (
            lambda a, b, s=s, l=l, t=t, u=u: lax.linalg.triangular_solve(
                a, b, left_side=s, lower=l, transpose_a=t, unit_diagonal=u
            ),
            (S, S.T),
        )
        for s in (False, True)
        for l in (False, True)
        for t in (False, True)
        for u in (False, True)
    ],
    "tridiagonal": unary(lambda x: jnp.abs(lax.linalg.tridiagonal(x)[1]), S),
    "tridiagonal_solve": [
        (lambda d, u: lax.linalg.tridiagonal_solve(u.at[0].set(0), d + 4, u.at[-1].set(0), d[:, None]), (X, U))
    ],
    "unstack": [
        (lambda x, d=d: lax.unstack(x, d) if hasattr(lax, "unstack") else jnp.unstack(x, axis=d), (A,)) for d in (0, 1)
    ],
    "while": whiles(),
    "xor": binary(lax.bitwise_xor, (B, ~B), (I, J)),
    "zeta": [(lax.zeta, (1 + SMALL, SMALL))],
}
# From JAX 0.12 on.
NEWER: dict[str, list[Example]] = {
    "log2": accurate(getattr(lax, "log2", jnp.log2), SMALL),
    "one_minus_square": [
        (jax.grad(lambda x: jnp.sum(jnp.tanh(x))), (X,)),
        (jax.grad(lambda x: jnp.sum(lax.asin(x))), (U,)),
    ],
    "polynomial": unary(lambda x: lax.polynomial(x, (jnp.array(2.0), jnp.array(-1.0), jnp.array(0.5))), X),  # pyright: ignore
}
EXAMPLES |= {name: examples for name, examples in NEWER.items() if hasattr(lax, f"{name}_p")}
