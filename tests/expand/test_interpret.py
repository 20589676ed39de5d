"""Functions of arrays as scalar programs: the same numbers, whatever a person writes."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, long, sampled


X = jnp.array([0.7, -1.3, 0.4, 2.1])
LAST = jnp.array([3, 0, 0])
Y = jnp.array([[1.0, 0.2, -0.3], [0.4, 2.0, 0.1], [-0.2, 0.5, 1.5]])


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct * jnp.cos(x), -0.5, 0.5),))


@jax.custom_jvp
def safe(x):
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


safe.defjvp(lambda x, dx: (safe(*x), dx[0] * jnp.where(x[0] > 0, 0.5 / jnp.sqrt(jnp.where(x[0] > 0, x[0], 1.0)), 0.0)))

FUNCTIONS = {
    "arithmetic": lambda x, y: (x**3 - 2 * x / (1 + x**2)) * jnp.exp(-x) + jnp.hypot(x, 0.3) + x**-2,
    "elementary functions": lambda x, y: jnp.stack([jnp.tanh(x), jnp.arctan2(x, x + 3), jnp.cbrt(x), jnp.log1p(x**2)]),
    "matrices": lambda x, y: (y @ y.T @ x[:3], jnp.outer(x, x), jnp.einsum("ij,jk,ki->", y, y, y), jnp.trace(y)),
    "cross and cumulative": lambda x, y: (jnp.cross(x[:3], y[1]), jnp.cumsum(x), jnp.cumprod(y, axis=1)),
    "reductions": lambda x, y: (jnp.max(y, axis=0), jnp.min(x), jnp.prod(y), jnp.mean(y, axis=1), jnp.linalg.norm(x)),
    "reductions of nothing": lambda x, y: (
        [f(jnp.zeros((2, 0), t), 1, initial=1) for f in (jnp.max, jnp.min) for t in (float, int, np.uint8)],
        [f(jnp.zeros(0, bool)) for f in (jnp.any, jnp.all, jnp.sum)], jnp.prod(x[:0]),
    ),
    "shapes": lambda x, y: (jnp.flip(y, 1), jnp.roll(x, 1), jnp.tile(x, 2), jnp.pad(x, (1, 2)), jnp.diag(x), y.T[1:]),
    "pieces": lambda x, y: jnp.concatenate([*jnp.split(x, 2)[::-1], jnp.stack([x[0], x[-1]]), y[:, 1], y.ravel()[::4]]),
    "updates": lambda x, y: (x.at[1].set(5.0), x.at[jnp.array([0, 2])].add(y[0, :2]), jnp.zeros(4).at[-1].mul(x[0])),
    "gather at known places": lambda x, y: (x[LAST], y[LAST[1:] + 2, LAST[1:]], y[jnp.array([2, 0])]),
    "gather at places to be found": lambda x, y: x[jnp.argmax(x)] + jnp.take(y, jnp.argsort(y[0]), axis=0)[0],
    "choices": lambda x, y: (jnp.where(x > 0, x, -x), jnp.clip(x, -1, 1), jnp.select([x > 1, x > 0], [x, 2 * x], 0.0)),
    "branches": lambda x, y: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x) + jax.lax.switch(1, [jnp.sin, jnp.exp], x),
    "a loop of known length": lambda x, y: jax.lax.fori_loop(0, 5, lambda i, z: z * jnp.cos(z) + i, x),
    "a loop of unknown length": lambda x, y: jax.lax.while_loop(lambda z: jnp.sum(z) < 50, lambda z: z + z**2 + 1, x),
    "a scan": lambda x, y: jax.lax.scan(lambda c, row: (c + row @ row, c * row), x[0], y),
    "a scan over numbers": lambda x, y: jax.lax.scan(lambda c, z: (c * z, (c + z, [*jnp.unstack(x)][1])), x[0], x),
    "a long scan": lambda x, y: jax.lax.scan(lambda c, _: (c * 0.9 + x, jnp.sum(c)), x, None, length=100),
    "a rule for vjp": lambda x, y: clipped(x),
    "a rule for jvp": lambda x, y: safe(x),
    "linear algebra": lambda x, y: (jnp.linalg.solve(y, x[:3]), jnp.linalg.det(y), jnp.linalg.svd(y)[1]),
    "integers": lambda x, y: (jnp.arange(4) + jnp.sign(x).astype(int), jnp.sum(x > 0), jnp.floor(x).astype(int) % 3),
    "complex numbers": lambda x, y: (jnp.abs(jax.lax.complex(x, x**2)), jnp.fft.fft(x).imag),
    "sorting": lambda x, y: (jnp.sort(x), jnp.searchsorted(jnp.array([0.0, 1.0, 2.0]), x), jnp.interp(x, x, x)),
    "mapped": lambda x, y: jax.vmap(lambda row: jnp.sin(row) @ y[0])(y),
    "derivatives": lambda x, y: (jax.jacfwd(lambda z: z * z[0])(x), jax.hessian(lambda z: jnp.prod(jnp.sin(z)))(x)),
    "checkpointed": lambda x, y: jax.checkpoint(lambda z: jnp.sin(jnp.cos(z)))(x),
    "constants only": lambda x, y: jnp.linspace(0.0, 1.0, 5) ** 2,
}  # fmt: skip


def expanded(function):
    """As scalar code, with a list of results."""
    return ukjax.expand(lambda *xs: jax.tree_util.tree_leaves(function(*xs)), limit=5000)


SHORT = ("arithmetic", "matrices", "reductions of nothing", "updates", "gather at known places",
         "gather at places to be found", "branches", "a loop of known length", "a scan over numbers", "a rule for vjp",
         "linear algebra", "integers")  # fmt: skip


@pytest.mark.parametrize("name", sampled(FUNCTIONS, SHORT))
def test_whatever_is_written_has_the_same_values(name):
    function = FUNCTIONS[name]
    piece = expanded(function)
    batch = jnp.stack([X, X[::-1], 0.3 * X]), jnp.stack([Y, Y.T, 2 * Y])
    alone, whole = jax.jit(piece)(X, Y), jax.jit(jax.vmap(piece))(*batch)
    shared = jax.jit(jax.vmap(piece, in_axes=(0, None)))(batch[0], Y)
    for got, want in zip(alone, jax.tree_util.tree_leaves(jax.jit(function)(X, Y)), strict=True):
        assert_close(got, want, rtol=1e-13, atol=1e-13)
    for got, want in zip(whole, jax.tree_util.tree_leaves(jax.jit(jax.vmap(function))(*batch)), strict=True):
        assert_close(got, want, rtol=1e-13, atol=1e-13)
    want = jax.jit(jax.vmap(function, in_axes=(0, None)))(batch[0], Y)
    for got, one in zip(shared, jax.tree_util.tree_leaves(want), strict=True):
        assert_close(got, one, rtol=1e-13, atol=1e-13)


@jax.custom_jvp
def tripled(x):
    return x


tripled.defjvp(lambda x, dx: (tripled(*x), 3 * dx[0]))


@jax.custom_jvp
def mirrored(x):
    return -x


mirrored.defjvp(lambda x, dx: (mirrored(*x), -3 * dx[0]))
RULES = {
    # What the function takes is no part of how its result is found.
    "of a negation": lambda x, y: mirrored(-x) * x,
    "twice": lambda x, y: tripled(tripled(x) * y[0, 0]) + tripled(x),
    "of some results": lambda x, y: jnp.sum(tripled(y), axis=1) @ x[:3],
    "none": lambda x, y: jax.lax.stop_gradient(x) * x + jnp.sin(jax.lax.stop_gradient(jnp.sin(x)) * jnp.sin(x)),
    "shared by equal ones": lambda x, y: jnp.max(jnp.stack([x, x, jnp.sin(x)]), axis=0) * jnp.prod(y),
    "in a loop": lambda x, y: jax.lax.scan(lambda c, row: (tripled(c) * row[0], jnp.abs(c)), x, y),
    "of other types": lambda x, y: (x.astype(jnp.bfloat16) * 3).astype(float) + x.astype("float32").astype(float) ** 2,
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_operations_with_derivatives_of_their_own_keep_them(name):
    loss = lambda f, x, y: numbers(jax.tree_util.tree_leaves(f(x, y)))
    for way in (jax.grad, jax.jacfwd):
        got, want = (
            jax.jit(way(ft.partial(loss, f), argnums=(0, 1)))(X, Y) for f in (expanded(RULES[name]), RULES[name])
        )
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, rtol=1e-12, atol=1e-12)


def table(x, y):
    return jnp.interp(x, jnp.linspace(-2.0, 2.0, 9), jnp.cos(jnp.arange(9.0)))


def chosen(x, y):
    safe = jax.lax.cond(x[0] > 0, lambda: jnp.sqrt(x[0]), lambda: x[0] ** 2)
    pieces = jnp.piecewise(x[1], [x[1] < -0.5, x[1] > 0.5], [lambda a: a, lambda a: a**2, 3.0])
    return safe, pieces, jnp.select([x > 1, x > 0], [x, 2 * x], 0.5), y[jnp.argmax(x[:3])]


def solved(x, y):
    S = y @ y.T + jnp.eye(3)
    factor = jax.scipy.linalg.cho_factor(S)
    return jnp.linalg.solve(y, x[:3]), jnp.linalg.inv(y), jax.scipy.linalg.cho_solve(factor, x[:3]), jnp.linalg.det(S)


@pytest.mark.parametrize("function", [table, chosen, solved])
def test_what_people_write_is_scalar_whatever_it_chooses_by(function):
    """Tables, branches, and systems of equations; derivatives too, also where another branch has none."""
    piece = expanded(function)
    assert piece.report(X, Y).kept == ()
    for x in (X, -X, X[::-1]):
        loss = lambda f, x, y: numbers(jax.tree_util.tree_leaves(f(x, y)))
        got, want = (jax.jit(jax.value_and_grad(ft.partial(loss, f), argnums=(0, 1)))(x, Y) for f in (piece, function))
        for one, other in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
            assert_close(one, other, rtol=1e-12, atol=1e-12)
        forward = [jax.jit(jax.jacfwd(ft.partial(loss, f)))(x, Y) for f in (piece, function)]
        assert_close(*forward, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.dynamic_slice(jnp.tile(x, 500), (1,), (1400,)),
        lambda x: jax.lax.dynamic_update_slice(jnp.tile(x, 500), x, (7,)),
    ],
)
def test_known_places_of_any_array_are_no_choice(function):
    piece = ukjax.expand(function)
    assert piece.report(X[:3]).kept == ()
    assert_close(piece(X[:3]), function(X[:3]), atol=0)


def test_a_branch_that_may_not_end_is_not_computed_unless_chosen():
    def f(x):
        root = lambda: jax.lax.while_loop(lambda z: z < 50, lambda z: z * 2, x)
        return jax.lax.cond(x > 0, root, lambda: x)

    piece = ukjax.expand(f)
    assert piece.report(jnp.asarray(1.0)).kept == ("cond",)
    assert [float(piece(jnp.asarray(x))) for x in (3.0, -1.0)] == [96.0, -1.0]


@pytest.mark.parametrize("t1", [0.4, 1.0])
def test_a_branch_that_is_not_certain_goes_the_sure_way_if_it_is_chosen(t1):
    """A force that is an acceleration of a model with a row that all but depends on another one, from t = 0.5 s on."""
    A = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 5e-5]])
    falling = ukjax.System(
        lambda q, t: jnp.diag(jnp.array([1.0, 2.0, 3.0])), lambda q, v, t: jnp.array([1.0, 2, -9.81])
    )
    model = ukjax.Mechanism(falling, ukjax.AccelerationConstraint(lambda q, v, t: A, lambda q, v, t: jnp.zeros(2)))

    def force(q, v, t):
        moved = lambda: ukjax.equation_of_motion(model, q, v, throw=False).acceleration
        return jax.lax.cond(t < 0.5, lambda: jnp.zeros(3), moved)

    free = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(3), lambda q, v, t: jnp.zeros(3)))
    law, ts = ukjax.Feedback(force, jnp.eye(3)), jnp.linspace(0.0, t1, 3)
    run = ukjax.simulate(free, jnp.zeros(3), jnp.ones(3), ts, servo=law)
    want = t1 + max(t1 - 0.5, 0) ** 2 / 2 * np.array([-1 / 3, 1 / 3, -3.27])
    assert_close(run.q[-1], want, atol=1e-5)


def numbers(out):
    return sum((jnp.sum(jnp.sin(x)) for x in out if jnp.issubdtype(x.dtype, jnp.floating)), jnp.zeros(()))


DERIVED = ("arithmetic", "matrices", "choices", "a scan", "a rule for jvp", "linear algebra")


@pytest.mark.parametrize("name", sampled(DERIVED, ["matrices", "a rule for jvp"]))
def test_derivatives_are_those_of_the_function(name):
    piece = expanded(FUNCTIONS[name])
    mine = lambda x, y: numbers(piece(x, y))
    plain = lambda x, y: numbers(jax.tree_util.tree_leaves(FUNCTIONS[name](x, y)))
    xs = jnp.stack([X, 0.3 * X])
    for got, want in zip(*(jax.jit(jax.grad(f, argnums=(0, 1)))(X, Y) for f in (mine, plain)), strict=True):
        assert_close(got, want, rtol=1e-11, atol=1e-12)
    got, want = (jax.jit(jax.vmap(jax.jacfwd(f), in_axes=(0, None)))(xs, Y) for f in (mine, plain))
    assert_close(got, want, rtol=1e-11, atol=1e-12)
    # What a batch shares gets the sum of what its members give.
    got, want = (jax.jit(jax.grad(lambda y, f=f: jnp.sum(jax.vmap(lambda x: f(x, y))(xs))))(Y) for f in (mine, plain))
    assert_close(got, want, rtol=1e-11, atol=1e-12)
    nested = lambda f: jax.jit(jax.vmap(jax.vmap(jax.grad(f), in_axes=(0, None)), in_axes=(None, 0)))
    got, want = (nested(f)(xs, jnp.stack([Y, Y.T, 3 * Y])) for f in (mine, plain))
    assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_a_rule_for_reverse_mode_only_is_used():
    piece = expanded(FUNCTIONS["a rule for vjp"])
    got = jax.jit(jax.grad(lambda x: jnp.sum(piece(x, Y)[0])))(X)
    assert_close(got, jnp.clip(jnp.cos(X), -0.5, 0.5), atol=1e-15)


def test_second_derivatives_in_every_mode():
    piece = expanded(FUNCTIONS["arithmetic"])
    mine, plain = lambda x: numbers(piece(x, Y)), lambda x: numbers([FUNCTIONS["arithmetic"](x, Y)])
    want = jax.hessian(plain)(X)
    for f in (
        jax.jacfwd(jax.grad(mine)),
        jax.jacrev(jax.grad(mine)),
        jax.jacrev(jax.jacfwd(mine)),
        jax.jacfwd(jax.jacfwd(mine)),
    ):
        assert_close(jax.jit(f)(X), want, rtol=1e-11, atol=1e-12)


def test_random_keys_effects_calls_of_python_and_large_arrays_are_left_alone():
    halved = jax.ShapeDtypeStruct((4,), float)
    functions = [
        lambda x, y: jax.pure_callback(lambda x: x / 2, halved, x, vmap_method="sequential"),
        lambda x, y: jax.lax.cond(x[0] > 9, lambda x: jax.pure_callback(lambda x: x / 2, halved, x), jnp.sin, x),
        lambda x, y: jax.random.normal(jax.random.key(0), (2,)) + x[0],
        lambda x, y: (jax.debug.callback(lambda z: None, x), x)[1],
        lambda x, y: jnp.sum(jnp.ones((100, 100)) * x[0]),
    ]
    for function in functions:
        piece = expanded(function)
        assert piece.report(X, Y).operations is None
        assert_close(jax.jit(piece)(X, Y)[0], function(X, Y), rtol=1e-13)


def operations(function, *args):
    found = expanded(function).report(*args).operations
    assert found is not None
    return found


def test_what_is_known_is_not_computed():
    assert operations(lambda x, y: jnp.eye(3) @ y @ jnp.zeros((3, 3)) + jnp.ones(()), X, Y) == 0
    assert operations(lambda x, y: (x[0] * x[1], x[1] * x[0], 1.0 * (x[0] * x[1] + 0.0)), X, Y) == 1
    # Sines and cosines alone: what is the same at random points is the same.
    assert operations(lambda x, y: jnp.sin(x[0]) ** 2 + jnp.cos(x[0]) ** 2, X, Y) <= 4
    one = expanded(lambda x, y: jnp.sin(x) ** 2 + jnp.cos(x) ** 2)
    assert np.all(np.asarray(jax.jit(one)(jnp.linspace(0.0, 9.0, 99), Y)[0]) == 1.0)  # no rounding: it is a constant
    assert operations(lambda x, y: ((x[0] + x[1]) ** 2, x[0] ** 2 + 2 * x[0] * x[1] + x[1] ** 2), X, Y) <= 8


def test_what_has_branches_is_not_taken_for_what_it_is_on_one_of_them():
    functions = (
        lambda z: jnp.sqrt(z**2),
        jnp.abs,
        lambda z: jnp.maximum(z, 0.0),
        lambda z: z,
        lambda z: jnp.arctan(jnp.tan(z)),
    )
    piece = expanded(lambda x, y: jnp.stack([f(x) for f in functions]))
    x = jnp.array([5.0, -5.0, 0.1, -0.1])
    assert_close(jax.jit(piece)(x, Y)[0], jnp.stack([f(x) for f in functions]), rtol=1e-14)


@pytest.mark.parametrize("seed", [0, 1, *map(long, range(2, 8))])
def test_random_programs_with_numbers_of_every_size(seed):
    """Nothing is taken for something else, however much larger the other terms are."""
    rng = np.random.default_rng(seed)
    steps = [(*rng.integers(0, 7, 1), *rng.integers(0, 4 + i, 2)) for i in range(60)]
    powers = 10.0 ** rng.integers(-12, 13, 60)

    def function(x, y):
        pool = [x[i] for i in range(4)]
        for (kind, i, j), power in zip(steps, powers, strict=True):
            a, b = pool[i], pool[j]
            pool.append(
                (a + power * b, a - b, a * b, a / (1 + b**2), jnp.sin(a / (1 + a**2)), jnp.where(a > b, a, power), -a)[
                    kind
                ]
            )
        return jnp.stack(pool)

    x = jnp.asarray(rng.normal(size=(50, 4)))
    got, want = (
        jax.jit(jax.vmap(lambda x: expanded(function)(x, Y)[0]))(x),
        jax.jit(jax.vmap(lambda x: function(x, Y)))(x),
    )
    size = 1e-12 * np.maximum.accumulate(np.abs(np.nan_to_num(want, posinf=0, neginf=0)), axis=1)
    assert np.all((np.abs(got - want) <= size) | ~np.isfinite(want))


def test_a_table_that_is_looked_up_stays_one_array():
    """Put together from its entries one of a thousand numbers took a minute to compile."""
    places = jnp.linspace(-2.0, 2.0, 4096)
    table = lambda x: jnp.interp(x, places, jnp.sin(3 * places))
    found = ukjax.expand(table, limit=20_000)
    alone = jax.jit(found).lower(0.3).as_text()
    assert alone.count(" = ") < 1000
    assert "ukjax_machine_code" in alone
    xs = jnp.array([-2.5, 0.3, 1.9])
    assert_close(jax.jit(jax.vmap(found))(xs), jax.vmap(table)(xs), rtol=1e-14)


def test_single_precision_stays_so():
    x, y = X.astype(jnp.float32), Y.astype(jnp.float32)
    function = lambda x, y: (jnp.sin(x) * 2, y @ x[:3], jnp.float32(0.1) * x)
    for got, want in zip(jax.jit(expanded(function))(x, y), function(x, y), strict=True):
        assert_close(got, want, rtol=3e-7, atol=1e-7)


def test_a_batch_of_any_size_is_the_loop():
    piece = expanded(FUNCTIONS["matrices"])
    rng = np.random.default_rng(0)
    whole = jax.jit(jax.vmap(piece, in_axes=(0, None)))
    for size in (1, 2, 1023, 1025, 2500):
        xs = jnp.asarray(rng.normal(size=(size, 4)))
        want = jax.vmap(lambda x: jax.tree_util.tree_leaves(FUNCTIONS["matrices"](x, Y)))(xs)
        for got, one in zip(whole(xs, Y), want, strict=True):
            assert_close(got, one, rtol=1e-13, atol=1e-13)
