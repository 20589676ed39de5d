"""Consistent states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import ukjax

from ..helpers import assert_close, central_difference, falling, pendulum, random_mechanism, rod


METRIC = jnp.diag(jnp.array([1.0, 4.0]))
HEAVY = ukjax.System(lambda q, t: METRIC, lambda q, v, t: jnp.zeros(2))


@pytest.mark.parametrize("copies", [1, 2])
def test_nearest_state_in_the_mass_metric(copies):
    q, v = jnp.array([1.5, 0.6]), jnp.array([1.0, -0.5])
    got_q, got_v = ukjax.assemble(ukjax.Mechanism(HEAVY, [rod()] * copies), q, v)
    options = {"method": "SLSQP", "options": {"ftol": 1e-15}}
    metric = lambda x, y: (x[0] - y[0]) ** 2 + 4 * (x[1] - y[1]) ** 2
    on_circle = {"type": "eq", "fun": lambda x: x @ x - 1}
    want_q = minimize(metric, [0.9, 0.3], args=(np.asarray(q),), constraints=on_circle, **options).x
    along = {"type": "eq", "fun": lambda w: w @ np.asarray(got_q)}
    want_v = minimize(metric, [0.0, 0.0], args=(np.asarray(v),), constraints=along, **options).x
    assert_close(got_q, want_q, atol=1e-6)  # as far as SLSQP goes
    assert_close(got_v, want_v, atol=1e-6)
    # What marks the nearest point: the way there is along A^T in the mass metric.
    lever = METRIC @ (q - got_q)
    assert abs(float(lever[0] * got_q[1] - lever[1] * got_q[0])) < 1e-13
    assert abs(float(got_q @ got_q - 1)) < 1e-14
    assert abs(float(got_q @ got_v)) < 1e-14


def test_from_afar_and_from_inside():
    for q in ([5.0, 0.1], [0.01, 0.02], [-30.0, 40.0]):
        got, _ = ukjax.assemble(pendulum(), q, [0.0, 0.0])
        assert_close(got, jnp.array(q) / np.hypot(*q), atol=1e-12)  # equal masses: along the ray


def test_time_dependent_and_nonholonomic_constraints_and_a_consistent_state_stays():
    moving = ukjax.Mechanism(
        falling(),
        [
            ukjax.Holonomic(lambda q, t: (q[0] - jnp.sin(t))[None]),
            ukjax.Nonholonomic(lambda q, v, t: (v @ v - 4.0)[None]),
        ],
    )
    q, v = ukjax.assemble(moving, [0.0, 3.0], [0.0, 1.0], 0.5)
    assert_close(q, jnp.array([jnp.sin(0.5), 3.0]), atol=1e-13)
    assert_close(v, jnp.array([jnp.cos(0.5), jnp.sqrt(4 - jnp.cos(0.5) ** 2)]), atol=1e-12)
    again = ukjax.assemble(moving, q, v, 0.5)
    assert_close(again[0], q, atol=1e-14)
    assert_close(again[1], v, atol=1e-14)
    free = ukjax.assemble(ukjax.Mechanism(falling()), [1.0, 2.0], [3.0, 4.0])
    assert_close(free[0], jnp.array([1.0, 2.0]))


def test_random_redundant_mechanism():
    mechanism = random_mechanism(1, copies=2)
    target, _ = ukjax.assemble(mechanism, 0.1 * jnp.ones(5), jnp.zeros(5), 0.3)
    assert np.max(np.abs(mechanism.position_error(target, jnp.asarray(0.3)))) < 1e-13


def test_gradients_in_both_modes():
    def f(L):
        q, v = ukjax.assemble(ukjax.Mechanism(HEAVY, [rod(L)] * 2), jnp.array([1.5, 0.6]), jnp.array([1.0, -0.5]))
        return jnp.concatenate([q, v])

    L = jnp.asarray(1.1)
    numeric = central_difference(f, L)[:, 0]
    assert_close(jax.jacfwd(f)(L), numeric, atol=1e-8)
    assert_close(np.asarray(jax.jacrev(f)(L)), numeric, atol=1e-8)


def test_batch():
    qs = jnp.array([[2.0, 0.0], [0.0, 0.0], [0.0, -3.0]])
    got, _ = jax.vmap(lambda q: ukjax.assemble(pendulum(), q, jnp.zeros(2), throw=False))(qs)
    assert_close(got[::2], jnp.array([[1.0, 0.0], [0.0, -1.0]]), atol=1e-12)
    assert np.isnan(got[1]).all()  # at the centre every direction is as good as any


@pytest.mark.parametrize(
    ("constraints", "match"),
    [
        (
            [rod(1.0), rod(1.1)],
            r"No state.*position of constraints\[0\] \(Holonomic\): row 0 by 0.105; .*\[1\]",
        ),
        (
            [ukjax.Holonomic(lambda q, t: q[:1] - t), ukjax.Holonomic(lambda q, t: q[:1])],
            r"velocity of constraints\[0\] \(Holonomic\): row 0 by 0.5",
        ),
        ([ukjax.Nonholonomic(lambda q, v, t: (v @ v + 1.0)[None])], r"velocity of constraints\[0\] \(Nonholonomic\)"),
    ],
)
def test_what_could_not_be_satisfied_is_named(constraints, match):
    with pytest.raises(RuntimeError, match=match):
        ukjax.assemble(ukjax.Mechanism(falling(), constraints), [1.0, 1.0], [1.0, 1.0])


def test_other_failures():
    with pytest.raises(ValueError, match=r"q must be finite, but q\[1\] is nan"):
        ukjax.assemble(pendulum(), [1.0, jnp.nan], [0.0, 0.0])
    with pytest.raises(ValueError, match=r"v must be finite, but v\[0\] is inf"):
        ukjax.assemble(pendulum(), [1.0, 0.0], [jnp.inf, 0.0])
    bad = ukjax.Mechanism(ukjax.System(lambda q, t: -jnp.eye(2), lambda q, v, t: q), rod())
    with pytest.raises(RuntimeError, match="mass matrix is not symmetric positive definite"):
        ukjax.assemble(bad, [1.0, 0.0], [0.0, 0.0])
    with pytest.raises(RuntimeError, match="No state that satisfies the constraints"):
        jax.jit(lambda q: ukjax.assemble(pendulum(), q, jnp.zeros(2)))(jnp.zeros(2))
