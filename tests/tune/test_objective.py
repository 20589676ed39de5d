"""A mean over samples, a tile at a time on every device: the same numbers as all of them at once, in less memory."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import optimistix as optx
import pytest

import ukjax

from ..helpers import assert_close, falling, rod, standard_promotion
from ..inside import Objective, replaced


COUNT = 11
PARAMS = {"a": jnp.array([0.3, -0.2]), "b": jnp.array(0.5)}
SAMPLES = {"x": jnp.linspace(-1.0, 1.0, COUNT), "y": jnp.linspace(2.0, 1.0, COUNT) ** 2}


def residuals(params, sample):
    x, y = sample["x"], sample["y"]
    return jnp.stack([params["a"] @ jnp.stack([x, x**2]) + params["b"] - y, jnp.sin(params["a"][0] * y)])


def loss(params, sample):
    return jnp.sum(residuals(params, sample) ** 2)


def at_once(params):
    return jnp.mean(jax.vmap(loss, (None, 0))(params, SAMPLES))


@pytest.fixture(params=[(2, 3), (2, 64), pytest.param((1, 3), marks=pytest.mark.long)], ids=str)
def objectives(request):
    """Of the scalar loss, and of its residuals; on so many devices, with so many samples at a time."""
    devices, lanes = request.param
    made = []
    for function, squares in ((loss, False), (residuals, True)):
        objective = Objective(function, jax.tree_util.tree_map(lambda _: None, PARAMS), squares)
        objective.devices = jax.devices()[:devices]
        made.append(objective)
    with replaced(lanes=lanes):
        yield made


def test_the_mean_and_its_derivatives(objectives):
    want, slope = jax.value_and_grad(at_once)(PARAMS)
    for objective in objectives:
        value, gradient = jax.jit(objective.value_and_grad)(PARAMS, SAMPLES)
        scalar = lambda params, objective=objective: objective.scalar(params, SAMPLES)
        assert_close(value, want, rtol=1e-14)
        assert_close(jax.jit(scalar)(PARAMS), want, rtol=1e-14)
        for got in (gradient, jax.jit(jax.grad(scalar))(PARAMS), jax.jit(jax.jacfwd(scalar))(PARAMS)):
            for name in slope:
                assert_close(got[name], slope[name], rtol=1e-13)


def test_residuals_and_their_squares_and_products(objectives):
    objective = objectives[1]
    flat = lambda x: jnp.concatenate([x["a"], x["b"][None]])
    each = jax.vmap(residuals, (None, 0))(PARAMS, SAMPLES) / np.sqrt(COUNT)
    r = jax.jit(objective.residuals)(PARAMS, SAMPLES)
    assert_close(r, jnp.ravel(each), rtol=1e-14)
    jacobian = jax.jacfwd(lambda params: jnp.ravel(jax.vmap(residuals, (None, 0))(params, SAMPLES)) / np.sqrt(COUNT))
    J = jax.vmap(flat)(jacobian(PARAMS))
    few, rows = jax.jit(objective.least_squares)(PARAMS, SAMPLES)
    assert rows.shape == (4, 3)
    assert_close(few @ few, r @ r, rtol=1e-13)
    assert_close(rows.T @ few, J.T @ r, rtol=1e-12, atol=1e-14)
    assert_close(rows.T @ rows, J.T @ J, rtol=1e-12, atol=1e-14)


# Of 20 pendulums, of which 12 are one tile.
LENGTHS = jnp.linspace(0.5, 1.5, 20)


def swung(log_mass, length):
    """How far a spring carries a pendulum's bob, beside where it is to be."""
    stiffness = lambda q: -5.0 * q
    system = ukjax.System(
        mass=lambda q, t: jnp.exp(log_mass) * jnp.eye(2), force=lambda q, v, t: falling().force(q, v, t) + stiffness(q)
    )
    start = jnp.array([-1.0, 0.0]) * length
    made = ukjax.simulate(ukjax.Mechanism(system, rod(length)), start, jnp.zeros(2), np.array([0.0, 0.3]), keep=("q",))
    return made.q[-1] - length * jnp.array([-0.9, -0.4])


OPTIMISERS = {
    "adam": optax.adam(0.1),
    "lbfgs": optax.lbfgs(),
    "levenberg-marquardt": ukjax.tuning.LevenbergMarquardt(),
    "bfgs": optx.BFGS(1e-8, 1e-8),
    "gauss-newton": optx.LevenbergMarquardt(1e-8, 1e-8),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_tuning_is_the_same_whatever_the_tiles(name):
    """Through trajectories, on two devices, whose results lie on none of them in particular."""
    scalar = lambda params, length: jnp.sum(swung(params, length) ** 2)
    function = swung if "-" in name else scalar
    run = lambda: ukjax.tune(function, jnp.asarray(0.0), OPTIMISERS[name], 4, samples=LENGTHS, progress=False)
    found = []
    for lanes in (64, 4):
        with replaced(lanes=lanes), standard_promotion():
            found.append(run())
    assert found[0].losses[-1] < found[0].losses[0]
    np.testing.assert_allclose(found[1].losses, found[0].losses, rtol=1e-9)
    assert len(found[1].params.sharding.device_set) == 1
    each = jax.jit(jax.vmap(scalar, (None, 0)))(jnp.asarray(0.0), LENGTHS)
    assert_close(np.asarray(found[0].losses[0]), np.mean(each), rtol=1e-9)


@pytest.mark.long
@replaced(lanes=64)
def test_memory_does_not_grow_with_the_samples():
    """Of the compiled gradient: ten times the samples, as many at a time, and beside all of them at once."""
    scalar = lambda params, length: jnp.sum(swung(params, length) ** 2)
    objective = Objective(scalar, None, False)
    sizes = {}
    for count in (256, 2560):
        samples = jnp.linspace(0.5, 1.5, count)
        at_once = jax.value_and_grad(lambda x, s: jnp.mean(jax.vmap(scalar, (None, 0))(x, s)))
        for way, function in (("tiles", objective.value_and_grad), ("at once", at_once)):
            compiled = jax.jit(function).lower(jnp.asarray(0.0), samples).compile()
            sizes[way, count] = compiled.memory_analysis().temp_size_in_bytes
    assert sizes["tiles", 2560] < 1.2 * sizes["tiles", 256]
    assert sizes["at once", 2560] > 5 * sizes["tiles", 2560]


def exact(a, y):
    """Where x**2 + a x = y."""
    return (jnp.sqrt(a**2 + 4 * y) - a) / 2


def by_optimistix(a, y):
    gap = lambda x, _: jnp.stack([x[0] ** 2 + x[1] - y, x[1] - a * x[0]])
    return optx.root_find(gap, optx.Newton(1e-12, 1e-12), jnp.ones(2)).value


def by_lineax(a, y):
    x, A = exact(a, y), jnp.array([[1.0, 1.0], [1.0, -1.0]])
    return lx.linear_solve(lx.MatrixLinearOperator(A), A @ jnp.stack([x, a * x])).value


@pytest.mark.parametrize("root", [by_optimistix, by_lineax])
def test_a_loss_that_solves_equations(objectives, root):
    """On several devices too, where lineax refuses its own operators inside of `jax.shard_map`."""
    devices = objectives[0].devices

    apart = Objective(lambda a, y: root(a, y) - 0.3, None, True)
    square = Objective(lambda a, y: jnp.sum((root(a, y) - 0.3) ** 2), None, False)
    apart.devices = square.devices = devices
    a, y = jnp.array(0.4), SAMPLES["y"]

    def mean(a):
        x = exact(a, y)
        return jnp.mean((x - 0.3) ** 2 + (a * x - 0.3) ** 2)

    want, slope = jax.value_and_grad(mean)(a)
    for value, gradient in (
        jax.jit(square.value_and_grad)(a, y),
        jax.jit(jax.value_and_grad(lambda a: square.scalar(a, y)))(a),
    ):
        assert_close(value, want, rtol=1e-12)
        assert_close(gradient, slope, rtol=1e-11)
    r, J = jax.jit(apart.least_squares)(a, y)
    assert_close(r @ r, want, rtol=1e-12)
    assert_close(2 * r @ J, slope[None], rtol=1e-11)
    r = jax.jit(apart.residuals)(a, y)
    assert_close(r @ r, want, rtol=1e-12)


def test_a_batch_within_what_each_device_does_has_that_device(objectives):
    ball = ukjax.Mechanism(falling(n=1))
    heights = lambda v0: ukjax.simulate_batch(ball, jnp.zeros((3, 1)), v0[None], jnp.linspace(0.0, 0.1, 2), keep=("q",))
    objective = Objective(lambda v0, y: jnp.sum(heights(v0).q[:, -1, 0]) * y, None, False)
    objective.devices = objectives[0].devices
    v0, y = jnp.array(2.0), SAMPLES["y"][:3]
    assert_close(jax.jit(objective.scalar)(v0, y), 3 * (0.2 - 0.04905) * jnp.mean(y), rtol=1e-9)
