"""Sines and cosines by arithmetic: mpmath's with 400 bits, of angles of all sizes and next to quarter turns."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import ukjax
from models import scara

from ..helpers import assert_close


LARGEST = 2.0**53  # neighbouring doubles are further apart than a third of a turn
sine_and_cosine = jax.jit(jax.vmap(ukjax.expand(lambda x: (jnp.sin(x), jnp.cos(x)))))
RNG = np.random.default_rng(0)
QUARTERS = np.concatenate([np.arange(-400, 0), np.arange(1, 401), RNG.integers(-(2**52), 2**52, 400)])


def multiples():
    with mpmath.workprec(400):
        return np.array([float(int(k) * mpmath.pi / 2) for k in QUARTERS])


ANGLES = {
    "small": RNG.uniform(-0.8, 0.8, 800),
    "a few turns": RNG.uniform(-50.0, 50.0, 800),
    "large": RNG.uniform(-1.0, 1.0, 800) * 10.0 ** RNG.uniform(1, 15.9, 800),
    "tiny": 10.0 ** RNG.uniform(-300, -2, 200),
    "quarter turns": multiples(),
    "beside quarter turns": np.nextafter(multiples(), np.inf),
}


@pytest.mark.parametrize("which", ANGLES)
def test_both_are_right_to_an_ulp(which):
    x = ANGLES[which]
    found = sine_and_cosine(jnp.asarray(x))
    with mpmath.workprec(400):
        for got, exact in zip(found, (mpmath.sin, mpmath.cos), strict=True):
            want = [exact(mpmath.mpf(float(z))) for z in x]
            ulps = [abs(mpmath.mpf(float(y)) - w) / float(np.spacing(abs(float(w)))) for y, w in zip(got, want)]
            assert max(ulps) < 0.9


def test_what_has_no_sine_is_nan():
    x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, LARGEST, -2 * LARGEST, np.nextafter(LARGEST, 0.0)])
    for found in sine_and_cosine(x):
        assert np.isnan(found).tolist() == [True] * 5 + [False]


def test_a_program_calls_for_no_sine():
    function = lambda x: jnp.stack([jnp.sin(x[0]) * jnp.cos(x[1]), jnp.cos(x[0]), jnp.sin(x[0] + x[1])])
    program = jax.jit(jax.vmap(ukjax.expand(function)))
    x = jnp.asarray(RNG.uniform(-9.0, 9.0, (7, 2)))
    for kind, accuracy in ((jnp.float64, 1e-15), (jnp.float32, 1e-6)):
        some = x.astype(kind)
        assert program.trace(some).lower(lowering_platforms=("cpu",)).as_text().count("stablehlo.sine") == 0
        a, b = np.asarray(some, np.float64).T
        want = np.stack([np.sin(a) * np.cos(b), np.cos(a), np.sin(a + b)], axis=1).astype(kind)
        assert_close(program(some), want, atol=accuracy)


def test_a_motion_at_an_angle_too_large_is_told():
    """And changes no other."""
    case = scara.scenario("printed")
    q = jnp.stack([case.q0, case.q0.at[0].set(2 * LARGEST), case.q0.at[0].set(1e3)])
    by = lambda expand: (
        lambda q: ukjax.equation_of_motion(
            case.mechanism, q, case.v0, formulation=ukjax.UdwadiaKalaba(expand=expand), throw=False
        )
    )
    got, want = (jax.jit(jax.vmap(by(expand)))(q) for expand in (True, False))
    assert (got.result == ukjax.RESULTS.not_finite).tolist() == [False, True, False]
    assert_close(got.acceleration[::2], want.acceleration[::2], rtol=1e-9)
