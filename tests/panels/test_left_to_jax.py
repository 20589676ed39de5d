"""Forces that are no scalar code: a batch of them goes by panels, with derivatives in closed form."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import ukjax

from ..helpers import assert_close, long


PLACES, HEIGHTS = jnp.linspace(-2.0, 2.0, 5001), jnp.sin(3 * jnp.linspace(-2.0, 2.0, 5001))
DRAWN = jax.random.normal(jax.random.key(0), (3,))


def table(x):
    return jnp.interp(x, PLACES, HEIGHTS)


def keys(x):
    return jax.random.normal(jax.random.key(0), (3,)) @ jnp.stack([x, x**2, jnp.ones(())])


def root(x):
    """y of y^3 + y = x."""
    newton = optx.Newton(1e-12, 1e-12)
    return optx.root_find(lambda y, x: y**3 + y - x, newton, jnp.asarray(0.1), x, throw=False).value


def decay(x):
    """x e^-1, by diffrax with its own reverse mode, which has no other."""
    controller = diffrax.PIDController(1e-10, 1e-12)
    solve = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, _: -y), diffrax.Tsit5(), 0.0, 1.0, 0.1, x, stepsize_controller=controller
    )
    return solve.ys[0]


def root_of(x):
    return min(np.roots([1.0, 0.0, 1.0, -x]), key=lambda y: abs(y.imag)).real


def slope_of_table(x):
    i = np.searchsorted(PLACES, x)
    return float((HEIGHTS[i] - HEIGHTS[i - 1]) / (PLACES[i] - PLACES[i - 1]))


# f, f and f' in closed form.
FORCES = {
    "a table": (table, lambda x: float(np.interp(x, PLACES, HEIGHTS)), slope_of_table),
    "random keys": (keys, lambda x: DRAWN @ np.array([x, x**2, 1.0]), lambda x: DRAWN @ np.array([1.0, 2 * x, 0.0])),
    "optimistix": (root, root_of, lambda x: 1 / (3 * root_of(x) ** 2 + 1)),
    "diffrax": (decay, lambda x: x * np.exp(-1.0), lambda x: np.exp(-1.0)),
}


# Without constraints there are empty arrays, among which XLA forgot how to call machine code.
EACH = [(name, guided) for name in FORCES for guided in (True, False)]
SHORT = [("a table", True), ("random keys", False)]


@pytest.mark.parametrize(("name", "guided"), [x if x in SHORT else long(*x) for x in EACH])
def test_derivatives_of_a_batch(name, guided):
    """(2 + x^2) x'' = k f(x); beside it y, on a line or a pendulum's angle, of which nothing depends on k."""
    f, value, slope = FORCES[name]
    line = [ukjax.Holonomic(lambda q, t: q[1:] - 0.5)] if guided else []

    def mechanism(k):
        mass = lambda q, t: jnp.diag(jnp.stack([2.0 + q[0] ** 2, jnp.ones(())]))
        return ukjax.Mechanism(ukjax.System(mass, lambda q, v, t: jnp.stack([k * f(q[0]), -jnp.sin(q[1])])), *line)

    def batch(qs, k):
        of = lambda q: ukjax.equation_of_motion(mechanism(k), q, jnp.zeros(2), throw=False)
        motion = jax.vmap(of)(qs)
        return motion.acceleration[:, 0] + motion.constraint_force[:, 0], motion.acceleration[:, 1]

    x, k = np.array([0.3, -0.9, 1.2]), 1.7
    qs = jnp.stack([jnp.asarray(x), jnp.full(3, 0.5)], axis=1)
    fs, slopes = (np.array([float(g(x)) for x in x]) for g in (value, slope))
    d = 2.0 + x**2

    def total(qs, k):
        first, rest = batch(qs, k)
        return jnp.sum(first), (first, rest)

    (_, (got, rest)), (by_q, by_k) = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(qs, k)
    assert_close(got, k * fs / d, rtol=1e-8)
    assert_close(rest, np.full(3, 0.0 if guided else -np.sin(0.5)), atol=1e-12)
    want = k * (slopes * d - fs * 2 * x) / d**2
    assert_close(by_q, np.stack([want, np.zeros(3)], axis=1), rtol=1e-7, atol=1e-9)
    assert_close(by_k, np.asarray(np.sum(fs / d)), rtol=1e-7)
    if name in ("random keys", "optimistix"):
        forward = jax.jit(jax.jacfwd(lambda k: batch(qs, k)[0]))(k)
        assert_close(forward, fs / d, rtol=1e-7)
