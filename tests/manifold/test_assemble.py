"""Consistent states."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import ukjax
from benchmarks import _linkages

from ..formulation.test_singular_mass import BODIES, body, massless_angle
from ..helpers import (
    STATES,
    assert_close,
    assert_gradients,
    central_difference,
    falling,
    long,
    pendulum,
    random_mechanism,
    rod,
)
from ..units import CASES


METRIC = jnp.diag(jnp.array([1.0, 4.0]))
COUPLED_MASS = np.array([[3.0, 0.5, 0.2], [0.5, 1.0, 0.3], [0.2, 0.3, 2.0]])
COUPLED = ukjax.System(lambda q, t: jnp.asarray(COUPLED_MASS), lambda q, v, t: q)
HEAVY = ukjax.System(lambda q, t: METRIC, lambda q, v, t: jnp.zeros(2))


@pytest.mark.long
def test_a_long_chain_with_light_ends_is_closed_from_near_by():
    """The shortest way turns the last rods, which are light, by so much that the way there is far from straight."""
    linkage = _linkages.chain(10)
    mechanism = linkage.mechanism()
    noise = np.random.default_rng(0).normal(size=(2, 64, 10))
    starts = linkage.near + 0.1 * noise[0], noise[1]
    got = jax.jit(jax.vmap(lambda q, v: ukjax.assemble(mechanism, q, v, throw=False)))(*starts)
    gaps = jax.vmap(lambda q: mechanism.position_error(q, jnp.zeros(())))(got.q)
    assert_close(gaps, jnp.zeros_like(gaps), atol=1e-12)
    # Nearest by the first order conditions: M (q - q0) lies in the row space.
    A = jax.vmap(jax.jacfwd(lambda q: mechanism.position_error(q, jnp.zeros(()))))(got.q)
    pull = jnp.einsum("kij,kj->ki", jax.vmap(lambda q: mechanism.system.mass(q, 0.0))(starts[0]), got.q - starts[0])
    left = [p - a.T @ np.linalg.lstsq(a.T, p)[0] for a, p in zip(np.asarray(A), np.asarray(pull), strict=True)]
    assert_close(np.array(left), np.zeros_like(pull), atol=1e-10)


def test_the_nearest_point_of_a_circle_is_found_from_a_hundredth_to_a_million_radii():
    mechanism = ukjax.Mechanism(falling(), rod())
    starts = jnp.outer(jnp.array([0.01, 0.5, 2.0, 10.0, 1e3, 1e6]), jnp.array([1.0, -0.5]))
    got = jax.jit(jax.vmap(lambda q: ukjax.assemble(mechanism, q, jnp.zeros(2), throw=False).q))(starts)
    assert_close(got, jnp.broadcast_to(jnp.array([2.0, -1.0]) / np.sqrt(5.0), got.shape), atol=1e-9)


@pytest.mark.long
def test_a_slider_crank_is_assembled_where_a_search_of_all_its_states_finds_the_nearest():
    """From half a radian and half a metre away; the few others are as near as a place can be without being nearest."""
    case = CASES["slider-crank"]()
    mechanism, q0 = case.plain(), np.array([0.8, np.arcsin(-0.3 * np.sin(0.8)), 0.0])
    q0[2] = 0.3 * np.cos(q0[0]) + np.cos(q0[1])
    a = np.linspace(-2 * np.pi, 2 * np.pi, 40_001)
    rods = np.arcsin(-0.3 * np.sin(a))
    rods = np.stack([b + 2 * np.pi * k for b in (rods, np.pi - rods) for k in (-1, 0, 1)])
    every = np.stack([np.broadcast_to(a, rods.shape), rods, 0.3 * np.cos(a) + np.cos(rods)], axis=-1).reshape(-1, 3)
    starts = q0 + 0.5 * np.random.default_rng(0).normal(size=(64, 3))
    got = jax.jit(jax.vmap(lambda q: ukjax.assemble(mechanism, q, jnp.zeros(3), throw=False).q))(jnp.asarray(starts))
    nearest = 0
    for start, q in zip(starts, np.asarray(got), strict=True):
        M = np.asarray(case.mass(jnp.asarray(start), 0.0, 1.0))
        length = lambda d, M=M: np.sqrt(np.einsum("ki,ij,kj->k", d, M, d))
        nearest += length((q - start)[None])[0] < 1.001 * length(every - start).min()
    assert nearest >= 61


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


@pytest.mark.long
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


class Scaled(eqx.Module):
    """phi of a rod, written in another unit."""

    factor: float = eqx.field(static=True)
    length: float = eqx.field(static=True, default=1.0)

    def __call__(self, q, t):
        return self.factor * (q @ q - self.length**2)[None]


@pytest.mark.parametrize("factor", [1e-5, long(1e5)])
def test_the_unit_of_a_row_does_not_matter(factor):
    level = ukjax.Holonomic(lambda q, t: (q[2] - 0.5)[None])
    sphere = ukjax.Mechanism(falling(n=3), [level, ukjax.Holonomic(Scaled(factor))])
    q, v = ukjax.assemble(sphere, [2.0, 0.0, 0.4], [1.0, 1.0, 1.0])
    assert_close(q, jnp.array([np.sqrt(0.75), 0.0, 0.5]), atol=1e-12)
    assert_close(v, jnp.array([0.0, 1.0, 0.0]), atol=1e-12)


def test_a_small_unit_does_not_make_a_wrong_state_satisfied():
    # The second rod would be missed by 2e-11 in its own unit, which is 0.1 m.
    contradictory = ukjax.Mechanism(falling(), [rod(), ukjax.Holonomic(Scaled(1e-10, 1.1))])
    with pytest.raises(RuntimeError, match=r"position of constraints\[1\]"):
        ukjax.assemble(contradictory, [1.0, 1.0], [0.0, 0.0])


def test_large_terms_that_cancel_in_rows_do_not_matter():
    """Sizes of cancelled terms are no scales of rows: with them states of long chains were refused."""
    J = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    far = 1e7 * jnp.tril(jnp.ones((4, 4)), -1)

    def rows(q, t):
        return jnp.sum((far + J) * q[None], axis=1) - jnp.sum(far * q[None], axis=1) - J @ jnp.ones(4)

    mechanism = ukjax.Mechanism(falling(n=4), ukjax.Holonomic(rows))
    q, v = ukjax.assemble(mechanism, [1.1, 0.9, 0.8, 1.0], [0.1, 0.2, 0.3, 0.4])
    assert_close(q, jnp.ones(4), atol=1e-8)  # rounding of 1e7
    assert_close(v, jnp.zeros(4), atol=1e-8)


def test_a_coordinate_that_rows_hold_by_rounding_errors_only_stays():
    mechanism = ukjax.Mechanism(falling(), ukjax.Holonomic(lambda q, t: (q[0] + 1e-90 * q[1] - 1.0)[None]))
    q, v = ukjax.assemble(mechanism, [0.5, 2.0], [0.3, 0.7])
    assert_close(q, jnp.array([1.0, 2.0]), atol=1e-15)
    assert_close(v, jnp.array([0.0, 0.7]), atol=1e-15)


def test_a_singular_mass_of_a_quaternion():
    mechanism = body(*BODIES["heavy"][0])
    p, v = jnp.array(BODIES["heavy"][1]) * 1.3, jnp.array([0.4, -0.3, 2.0, 1.0])
    got_p, got_v = ukjax.assemble(mechanism, p, v)
    unit = p / jnp.linalg.norm(p)  # a change of length has no mass
    assert_close(got_p, unit, atol=1e-12)
    assert_close(got_v, v - (unit @ v) * unit, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("redundant", [0, 1])
def test_a_massless_coordinate_follows_however_curved_its_constraints_are(redundant):
    mechanism, *_ = massless_angle(redundant)

    def state(start):
        return jnp.concatenate(ukjax.assemble(mechanism, start, jnp.array([0.3, 0.2, 0.1])))

    start = jnp.array([2.0, 0.9, 1.6])
    x, y, angle, *v = state(start)
    near = 1.2 * start[:2] / jnp.linalg.norm(start[:2])  # the nearest point of the circle: the angle has no say
    assert_close(jnp.stack([x, y]), near, atol=1e-12)
    assert_close(angle, jnp.arctan2(x, -y), atol=1e-12)
    along = jnp.array([-y, x]) / 1.2
    rate = along @ jnp.array([0.3, 0.2])
    assert_close(jnp.stack(v), jnp.concatenate([rate * along, (rate / 1.2)[None]]), atol=1e-12)
    if not redundant:
        assert_gradients(lambda start: jnp.sum(jnp.sin(state(start))), start, rtol=1e-6, atol=1e-8)


def test_a_direction_without_mass_and_constraint_is_named():
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 0.0])), lambda q, v, t: q)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: q[:1]))
    with pytest.raises(RuntimeError, match="not unique.*keep"):
        ukjax.assemble(mechanism, [1.0, 2.0], [3.0, 4.0])
    q, v = ukjax.assemble(mechanism, [1.0, 2.0], [3.0, 4.0], keep={"q": [1], "v": [1]})
    assert q.tolist() == [0.0, 2.0]
    assert v.tolist() == [0.0, 4.0]


@pytest.mark.parametrize("kept", [[0], [-3], np.array([True, False, False])], ids=["index", "from the end", "mask"])
def test_what_is_kept_stays_to_the_bit_and_the_rest_goes_the_shortest_way(kept):
    sphere = ukjax.Mechanism(COUPLED, [rod()] * 2)
    q, v = jnp.array([0.6, 0.3, 0.9]), jnp.array([20.0, 1.0, -2.0])
    got_q, got_v = ukjax.assemble(sphere, q, v, keep={"q": kept, "v": kept})
    assert got_q[0] == q[0]
    assert got_v[0] == v[0]
    assert abs(float(got_q @ got_q - 1)) < 1e-14
    assert abs(float(got_q @ got_v)) < 1e-13
    free = COUPLED_MASS[1:, 1:]
    tangent = np.array([-got_q[2], got_q[1]])  # of the circle that is left of the sphere
    assert abs(tangent @ free @ np.asarray(got_q - q)[1:]) < 1e-13
    assert abs(tangent @ free @ np.asarray(got_v - v)[1:]) < 1e-12


@pytest.mark.long
def test_gradients_with_something_kept():
    def f(x):
        mechanism = ukjax.Mechanism(HEAVY, [rod(x["L"])] * 2)
        state = ukjax.assemble(mechanism, x["q"], x["v"], keep={"q": [0], "v": [0]})
        return jnp.sum(jnp.sin(jnp.concatenate(state)))

    x = {"L": jnp.asarray(1.1), "q": jnp.array([0.6, 0.4]), "v": jnp.array([20.0, 1.0])}
    assert_gradients(f, x, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("keep", "match"), [
    ({"q": [0, 1]}, r"position of constraints\[0\] \(Holonomic\): row 0 by 1.25. Kept: q\[0\], q\[1\]"),
    ({"q": [0]}, r"position of constraints\[0\].*Kept: q\[0\]"),
    ({"v": [0, 1]}, r"velocity of constraints\[0\] \(Holonomic\): row 0 by .*Kept: v\[0\], v\[1\]"),
])  # fmt: skip
def test_what_keeps_a_state_from_being_consistent_is_named(keep, match):
    with pytest.raises(RuntimeError, match=match):
        ukjax.assemble(pendulum(), [1.5, 0.0], [1.0, 1.0], keep=keep)


@pytest.mark.parametrize(("keep", "error", "match"), [
    ([0], TypeError, "keep must be a mapping"),
    ({"x": [0]}, ValueError, "but names 'x'"),
    ({"q": [2]}, ValueError, r'keep\["q"\] must hold indices below 2.*holds 2'),
    ({"v": [-3]}, ValueError, r'keep\["v"\] must hold indices below 2'),
    ({"q": [0.5]}, ValueError, "must hold indices"),
    ({"q": [True]}, ValueError, r"mask must have shape \(2,\)"),
])  # fmt: skip
def test_what_cannot_be_kept_is_named(keep, error, match):
    with pytest.raises(error, match=match):
        ukjax.assemble(pendulum(), [1.0, 0.0], [0.0, 0.0], keep=keep)


def test_an_assembly_is_a_pair_that_tells_how_far_it_moved():
    found = ukjax.assemble(pendulum(), [3.0, 0.0], [0.5, 2.0])
    q, v = found
    assert len(found) == 2
    assert found[0] is found.q
    assert found[-1] is found.v
    assert_close(found.moved_q, q - jnp.array([3.0, 0.0]), atol=0.0)
    assert_close(found.moved_v, v - jnp.array([0.5, 2.0]), atol=0.0)
    assert str(found).splitlines()[1:] == [
        "  q  1, 0",
        "  v  0, 2",
        "  q[0] moved by -2, from 3 to 1",
        "  v[0] moved by -0.5, from 0.5 to 0",
    ]
    assert_close(jnp.concatenate(found), jnp.concatenate([q, v]), atol=0.0)
    run = ukjax.simulate(pendulum(), *found, [0.0, 0.1], keep=STATES)
    assert_close(run.q[0], q)

    batch = jax.jit(jax.vmap(lambda q: ukjax.assemble(pendulum(), q, jnp.zeros(2), throw=False)))
    many = batch(jnp.array([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    assert_close(many[0][::2], jnp.array([[1.0, 0.0], [0.0, 1.0]]), atol=1e-12)
    assert "Of a batch (3,) the largest moves:" in str(many)
    assert "q[0] moved by -2, from 3 to 1" in str(many)
    assert "no consistent state" in str(ukjax.assemble(pendulum(), [0.0, 0.0], [0.0, 0.0], throw=False))
