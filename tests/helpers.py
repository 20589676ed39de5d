"""What tests share: an assertion, finite differences, and small mechanisms with known answers."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import ukjax


FORMULATIONS = (
    ukjax.UdwadiaKalaba,
    ukjax.formulation.RangeSpace,
    ukjax.formulation.PennestriDeFalco,
    ukjax.formulation.UdwadiaPhohomsiri,
    ukjax.formulation.LagrangeMultiplier,
)


# Every one of the library's: a new pseudoinverse is tested without another line here.
STRATEGIES = (ukjax.SVD(), *(public() for name, public in vars(ukjax.pseudoinverse).items() if name[0].isupper()))


# For what is compared to the last digits: compiled as it is for a user, not as quickly as the other tests.
OPTIMISED = {"xla_backend_optimization_level": 3}


# What takes no equation of motion at the saved times, which is half of what there is to compile.
STATES = ("q", "v", "position_residual", "velocity_residual")


def long(*values, id=None):
    """A parameter set that only the long run takes."""
    return pytest.param(*values, id=id, marks=pytest.mark.long)


def sampled(values, short, name=str):
    """Parameter sets of which only those with a name in `short` are in the short run, as a sample of what all do."""
    names = [name(value) for value in values]
    assert set(short) <= set(names), f"{set(short) - set(names)} is none of {names}"
    return [pytest.param(x, id=k) if k in short else long(x, id=k) for x, k in zip(values, names, strict=True)]


def name_of(thing):
    """That of a function or a class, or of the class of an object."""
    return getattr(thing, "__name__", type(thing).__name__)


def assert_close(got, want, *, rtol=0.0, atol=0.0):
    """Equal shape, equal dtype, and values within tolerance; NaN equals nothing."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape} is not {want.shape}"
    assert got.dtype == want.dtype, f"dtype {got.dtype} is not {want.dtype}"
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, equal_nan=False)


def central_difference(f, x, h=1e-5):
    """Jacobian of `f` with respect to the floating arrays of the pytree `x`, as (outputs, inputs)."""
    floating, static = eqx.partition(x, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(floating)
    at = lambda z: np.ravel(f(eqx.combine(unravel(z), static)))
    columns = []
    for i in range(flat.size):
        step = h * max(1.0, abs(float(flat[i])))
        columns.append((at(flat.at[i].add(step)) - at(flat.at[i].add(-step))) / (2 * step))
    return np.stack(columns, axis=1)


def flat_gradient(gradient):
    """The floating arrays of a gradient, in the order of `central_difference`."""
    return np.asarray(ravel_pytree(eqx.filter(gradient, eqx.is_inexact_array))[0])


def assert_gradients(f, x, *, rtol=1e-6, atol=1e-9, h=1e-5):
    """Forward and reverse mode agree with each other and with central differences; `f` returns a scalar."""
    both = eqx.filter_jit(eqx.filter_value_and_grad(f))  # one program for the value and the gradient
    numeric = central_difference(lambda x: both(x)[0], x, h)[0]
    reverse = flat_gradient(both(x)[1])
    floating, static = eqx.partition(x, eqx.is_inexact_array)
    forward = flat_gradient(jax.jit(jax.jacfwd(lambda z: f(eqx.combine(z, static))))(floating))
    assert np.all(np.isfinite(reverse))
    assert_close(forward, reverse, rtol=1e-8, atol=atol)
    assert_close(reverse, numeric, rtol=rtol, atol=atol)


class Falling(ukjax.AbstractSystem):
    """A free particle in n dimensions; gravity along the last coordinate, downward."""

    m: Float[Array, ""]  # [kg]
    g: Float[Array, ""]  # [m/s^2]
    n: int = eqx.field(static=True)

    def mass(self, q, t):
        return self.m * jnp.eye(self.n)

    def force(self, q, v, t):
        return jnp.zeros(self.n).at[-1].set(-self.m * self.g)


def assert_same_gradients(got, want, forward, along, tolerance=1e-9):
    """Two gradients agree, and the derivative `forward` along a direction is that of the first."""
    got, want, along = (jax.tree_util.tree_leaves(x) for x in (got, want, along))
    for x, y in zip(got, want, strict=True):
        assert_close(x, y, atol=tolerance * (1 + float(jnp.max(jnp.abs(y), initial=0.0))))
    inner = sum(float(jnp.sum(x * y)) for x, y in zip(got, along, strict=True))
    assert float(forward) == pytest.approx(inner, rel=1e-9, abs=1e-9)


@contextlib.contextmanager
def without_matrices(strategy=ukjax.UdwadiaKalaba):
    """What this way solves is no number meanwhile: what is a number all the same was found in another way."""
    solve = strategy.solve

    def lost(self, terms):
        motion = solve(self, terms)
        return eqx.tree_at(lambda m: m.acceleration, motion, jnp.full_like(motion.acceleration, jnp.nan))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy, "solve", lost)
        yield


def command(main, *arguments, **options):
    """The exit status of a program, as if it were called with these arguments in a wide terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["program", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            main(**options)
        except SystemExit as end:
            return end.code or 0
    return 0


def standard_promotion():
    """optax's Adam multiplies floats and int32 counts, so tuning needs JAX's ordinary promotion of dtypes."""
    return jax.numpy_dtype_promotion("standard")


def falling(m=1.0, g=9.81, n=2):
    return Falling(jnp.asarray(m, float), jnp.asarray(g, float), n)


class Distance(eqx.Module):
    """phi of a rod; a module, so that all lengths share one compiled function."""

    length: Float[Array, ""]

    def __call__(self, q, t):
        return (q @ q - self.length**2)[None]


def rod(length=1.0, stabilization=None):
    """Keeps a particle at `length` from the origin."""
    return ukjax.Holonomic(Distance(jnp.asarray(length, float)), stabilization)


def pendulum(copies=1, stabilization=None):
    """Point pendulum in Cartesian coordinates, with its one row repeated."""
    return ukjax.Mechanism(falling(), [rod(1.0, stabilization)] * copies)


def random_mechanism(seed, n=5, m=3, copies=1):
    """Smooth made-up system with M(q) > 0, and m holonomic rows, written `copies` times."""
    rng = np.random.default_rng(seed)
    K, C, D = (jnp.array(rng.normal(size=s)) for s in ((n, n), (m, n), (m, n)))
    mass = lambda q, t: jnp.eye(n) + (K * jnp.cos(q)[None]) @ (K * jnp.cos(q)[None]).T
    force = lambda q, v, t: jnp.sin(K @ q) - 0.3 * v * jnp.cos(t)
    phi = lambda q, t: jnp.sin(C @ q + t) + (D @ q) ** 2
    return ukjax.Mechanism(ukjax.System(mass, force), [ukjax.Holonomic(phi)] * copies)


def random_state(seed, n=5):
    rng = np.random.default_rng(seed)
    return jnp.array(rng.normal(size=n)), jnp.array(rng.normal(size=n)), jnp.asarray(rng.normal())


def run(scenario, points=21, **options):
    """The trajectory of a scenario at `points` times."""
    return scenario.simulate(jnp.linspace(scenario.t0, scenario.t1, points), **options)


def assert_steady(scenario, trajectory, *, atol):
    """The invariants of the scenario are what they were at the start, all along the trajectory."""
    assert scenario.invariants, f"{scenario.name} has no invariants"
    for invariant in scenario.invariants.values():
        values = jax.vmap(invariant)(trajectory.q, trajectory.v, trajectory.t)
        assert_close(values, jnp.full_like(values, values[0]), atol=atol)


# A servo constraint on the first coordinate.
SIDE = ukjax.Holonomic(lambda q, t: (q[0] - jnp.sin(t))[None])
