"""Sines and cosines by arithmetic: mpmath's with 400 bits, of angles of all sizes and next to quarter turns."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import ukjax
from models import scara
from ukjax._expand._program import LARGEST, PARTS, sine_and_cosine

from ..helpers import assert_close


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
    found = jax.jit(jax.vmap(sine_and_cosine))(jnp.asarray(x))
    with mpmath.workprec(400):
        for got, exact in zip(found, (mpmath.sin, mpmath.cos), strict=True):
            want = [exact(mpmath.mpf(float(z))) for z in x]
            ulps = [abs(mpmath.mpf(float(y)) - w) / float(np.spacing(abs(float(w)))) for y, w in zip(got, want)]
            assert max(ulps) < 0.8


def test_the_parts_are_half_of_pi():
    with mpmath.workprec(400):
        assert abs(sum(map(mpmath.mpf, PARTS)) - mpmath.pi / 2) < 2.0**-131
    for part in PARTS[:3]:
        assert (part.as_integer_ratio()[0]).bit_length() <= 26  # times a number of 27 bits: exact


def test_what_has_no_sine_is_nan():
    for x in (jnp.nan, jnp.inf, -jnp.inf, LARGEST, -2 * LARGEST):
        assert all(map(jnp.isnan, sine_and_cosine(jnp.asarray(x))))
    assert not any(map(jnp.isnan, sine_and_cosine(jnp.nextafter(LARGEST, 0.0))))


def test_a_loop_over_a_batch_calls_for_no_sine():
    """Of doubles; single precision, and what is no loop, are left as they are."""
    function = lambda x: jnp.stack([jnp.sin(x[0]) * jnp.cos(x[1]), jnp.cos(x[0]), jnp.sin(x[0] + x[1])])
    program = jax.jit(jax.vmap(ukjax.expand(function)))
    x = jnp.asarray(RNG.uniform(-9.0, 9.0, (7, 2)))
    calls = lambda x: program.trace(x).lower(lowering_platforms=("cpu",)).as_text().count("stablehlo.sine")
    assert calls(x) == 0
    assert calls(x.astype(jnp.float32)) > 0
    a, b = np.asarray(x).T
    assert_close(program(x), np.stack([np.sin(a) * np.cos(b), np.cos(a), np.sin(a + b)], axis=1), atol=1e-15)


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
