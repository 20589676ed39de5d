"""Servos as scalar code are what they are by matrices: control, motion, verdict and derivatives."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import coordinated_robots, unicycle
from ukjax import RESULTS

from ..helpers import assert_close, assert_same_gradients, long, sampled
from ..inside import controlled_by_matrices, controlled_motion, replaced


ON, OFF = ukjax.UdwadiaKalaba(expand=True), ukjax.UdwadiaKalaba(expand=False)


def three(*rows, constraints=()):
    """Three coupled masses, of which some combinations are to follow the time."""
    M = jnp.array([[2.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 1.0]])
    system = ukjax.System(lambda q, t: M.astype(q.dtype) + jnp.diag(q**2), lambda q, v, t: -jnp.sin(q) - 0.1 * v)
    wanted = ukjax.Holonomic(lambda q, t: jnp.stack([row(q) - t for row in rows]), ukjax.Baumgarte(2.0, 3.0))
    return ukjax.Mechanism(system, constraints), wanted


def limited():
    mechanism, wanted = three(lambda q: q[0] * q[1])
    return mechanism, ukjax.Servo(wanted, jnp.eye(3)[:, :2], limits=([-0.5, -2.0], 0.7))


def weighted():
    mechanism, wanted = three(lambda q: q[0] + q[1] ** 2, constraints=ukjax.Holonomic(lambda q, t: (q[1] - q[2])[None]))
    weight = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    return mechanism, ukjax.Servo(wanted, jnp.eye(3)[:, 1:], lambda q, v, t: v[:2], weight=weight)


def redundant():
    """Rows of the mechanism, and of the servo, that are there twice."""
    twice = ukjax.Holonomic(lambda q, t: jnp.stack([q[1] - q[2], 2 * (q[1] - q[2])]))
    mechanism, wanted = three(lambda q: q[0], lambda q: q[0], constraints=twice)
    return mechanism, ukjax.Servo(wanted, jnp.eye(3))


def nearest():
    """More rows than actuators, which come as near as they can."""
    mechanism, wanted = three(
        lambda q: q[0] + q[1] ** 2,
        lambda q: q[1] * q[2],
        lambda q: q[2] - q[0],
        constraints=ukjax.Holonomic(lambda q, t: (q[1] - q[2] ** 2)[None]),
    )
    weight, free = jnp.array([2.0, 1.0]), lambda q, v, t: v[:2]
    return mechanism, ukjax.Servo(wanted, jnp.eye(3)[:, :2], free, weight=weight, limits=(-9.0, 9.0), exact=False)


def from_scenario(case):
    return case.mechanism, case.servo


CASES = {
    "robots": lambda: from_scenario(coordinated_robots.scenario()),
    "unicycle": lambda: from_scenario(unicycle.scenario()),
    "limited": limited,
    "weighted": weighted,
    "redundant": redundant,
    "nearest": nearest,
}


@ft.cache
def states(name, size=6):
    mechanism, servo = CASES[name]()
    start = {"robots": coordinated_robots.scenario().q0, "unicycle": unicycle.scenario().q0}.get(name, jnp.ones(3))
    rng = np.random.default_rng(0)
    q = start[None] + 0.1 * jnp.asarray(rng.normal(size=(size, len(start))))
    return mechanism, servo, q, jnp.asarray(rng.normal(size=q.shape)), jnp.asarray(rng.normal(size=size))


def controls(mechanism, servo, q, v, t, formulation):
    servos = servo if isinstance(servo, tuple) else (servo,)
    of = lambda q, v, t: controlled_motion(mechanism, servos, formulation, q, v, t)
    return jax.jit(jax.vmap(of))(q, v, t)


def assert_same(got, want, tolerance=1e-12):
    for x, y in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        if jnp.issubdtype(x.dtype, jnp.floating):
            size = np.max(np.abs(y), initial=0.0, where=np.isfinite(y))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * (1 + size))  # NaN where there is no motion
        else:
            assert np.array_equal(x, y)


def lost():
    """Whatever goes by matrices is NaN."""

    def nothing(*args):
        blank = lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return jax.tree_util.tree_map(blank, controlled_by_matrices(*args))

    return replaced(controlled_by_matrices=nothing)


@pytest.mark.parametrize("name", sampled(CASES, ["limited", "nearest"]))
def test_scalar_code_and_matrices_agree(name):
    given = states(name)
    want = controls(*given, OFF)
    assert bool(jnp.all(want[1].result == RESULTS.successful))
    with lost():
        assert_same(controls(*given, ON), want)
        alone = jax.jit(lambda q, v, t: controlled_motion(given[0], _several(given[1]), ON, q, v, t))
        assert_same(alone(*(x[0] for x in given[2:])), jax.tree_util.tree_map(lambda x: x[0], want))
    if name == "limited":
        assert 0 < int(jnp.sum(want[1].saturated)) < want[1].saturated.size


def _several(servo):
    return servo if isinstance(servo, tuple) else (servo,)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_both_agree(name):
    """With respect to the state and all parameters; forward mode and reverse mode; with redundant rows, too."""
    mechanism, servo, q, v, t = states(name)

    @eqx.filter_jit
    def gradients(mechanism, servo, q, v, formulation):
        def loss(moving, rest):
            mechanism, servo, q, v = eqx.combine(moving, rest)
            motion, control = controls(mechanism, servo, q, v, t, formulation)
            forces = jnp.sum(jnp.cos(control.u)) + jnp.sum(motion.constraint_force)
            return jnp.sum(jnp.sin(motion.acceleration)) + 0.1 * forces

        moving, rest = eqx.partition((mechanism, servo, q, v), eqx.is_inexact_array)
        along = jax.tree_util.tree_map(jnp.cos, moving)
        return jax.grad(loss)(moving, rest), jax.jvp(lambda x: loss(x, rest), (moving,), (along,))[1], along

    (got, forward, along), (want, *_) = (gradients(mechanism, servo, q, v, way) for way in (ON, OFF))
    assert_same_gradients(got, want, forward, along)


@pytest.mark.long
def test_second_derivatives_of_both_agree():
    mechanism, servo, q, v, t = states("weighted")
    of = lambda q, way: jnp.sum(jnp.sin(controls(mechanism, servo, q[None], v[:1], t[:1], way)[1].u))
    got, want = (jax.jacfwd(jax.grad(lambda q, way=way: of(q, way)))(q[0]) for way in (ON, OFF))
    assert_close(got, want, atol=1e-9)


def test_one_bad_state_changes_no_other():
    """Out of reach, contradictory, not actuated, without mass, and NaN: each is told as it is by matrices."""
    M = lambda q, t: jnp.diag(jnp.stack([q[2], jnp.ones(()), jnp.ones(())]))
    wanted = ukjax.AccelerationConstraint(
        lambda q, v, t: jnp.stack([jnp.array([1.0, 0.0, 0.0]), jnp.array([1.0, 0.0, 0.0]) + v[1] * jnp.eye(3)[1]]),
        lambda q, v, t: jnp.stack([t, t + v[2]]),
    )
    servo = ukjax.Servo(wanted, lambda q, t: jnp.stack([jnp.stack([q[0], q[0] * 0, q[0] * 0])], axis=1))
    mechanism = ukjax.Mechanism(ukjax.System(M, lambda q, v, t: -q))
    good = jnp.array([0.4, 0.3, 1.2])
    q = jnp.stack([good, good, good, good.at[0].set(0.0), good.at[2].set(-1.0), good.at[1].set(jnp.nan), good])
    v = jnp.zeros((7, 3)).at[1, 2].set(1.0).at[2, 1].set(1.0).at[2, 2].set(1.0)
    t = jnp.ones(7)
    got, want = controls(mechanism, servo, q, v, t, ON), controls(mechanism, servo, q, v, t, OFF)
    names = [
        *("successful", "servo_contradict", "servo_unreachable", "servo_not_actuated"),
        *("mass_not_positive_definite", "not_finite", "successful"),
    ]
    for i, name in enumerate(names):
        assert bool((want[1].result == getattr(RESULTS, name))[i]), name
    assert_same(got, want)


@pytest.mark.parametrize(
    "what", ["met", "contradictory", *map(long, ["of little effect", "weighed together", "not actuated"])]
)
def test_a_control_that_comes_near_is_judged_as_by_matrices(what):
    mechanism, _, q, v, t = states("nearest")
    mass, force = mechanism.system.mass, mechanism.system.force
    rows, weight, effect, at = jnp.eye(3), jnp.ones(2), jnp.ones(2), lambda q, t: jnp.eye(3)
    if what == "contradictory":
        rows = rows.at[2].set(rows[1])
    elif what == "of little effect":
        effect, at = jnp.array([1.0, 1e-5]), mass
    elif what == "not actuated":
        effect = jnp.array([1.0, 0.0])
    elif what == "weighed together":
        weight = jnp.array([[1.0, 1 - 1e-10], [1 - 1e-10, 1.0]])

    def actuation(q, t):
        return at(q, t)[:, :2] @ jnp.diag(effect)

    def wanted(q, v, t):
        # What the two actuators can do; and unless that is all, more of the last coordinate.
        reached = jnp.linalg.solve(mass(q, t), force(q, v, t) + actuation(q, t) @ jnp.sin(v[:2]))
        return rows @ reached + jnp.array([0.0, 0.0, 0.0 if what == "met" else 1.0])

    asked = ukjax.AccelerationConstraint(lambda q, v, t: rows, wanted)
    servo = ukjax.Servo(asked, actuation, weight=weight, exact=False)
    free = ukjax.Mechanism(mechanism.system)
    got, want = controls(free, servo, q, v, t, ON), controls(free, servo, q, v, t, OFF)
    assert_same(got, want, 1e-10)
    assert bool(jnp.all(want[1].consistent == (what == "met")))
    assert bool(jnp.all(want[1].contradictory == (what == "contradictory")))
    assert set(np.asarray(want[1].rank).tolist()) == {2 if what in ("met", "contradictory") else 1}


@pytest.mark.parametrize("what", ["self-consistent", "following", "another pseudoinverse", long("non-ideal")])
def test_what_scalar_code_does_not_know_goes_by_matrices(what):
    mechanism, servo, *state = states("weighted")
    constraint, G = servo.constraint, servo.actuation
    if what == "self-consistent":
        servo = ukjax.Servo(constraint, G, reading="self_consistent")
    elif what == "following":
        servo = ukjax.ConstraintFollowing(ukjax.Nonholonomic(lambda q, v, t: v[:1] - t), jnp.eye(3), 0.5)
    elif what == "another pseudoinverse":
        servo = ukjax.Servo(constraint, G, pseudoinverse=ukjax.pseudoinverse.RowGramSchmidt())
    else:
        mechanism = ukjax.Mechanism(mechanism.system, mechanism.constraints, lambda q, v, t, ideal: -0.1 * ideal)
    assert_same(controls(mechanism, servo, *state, ON), controls(mechanism, servo, *state, OFF))


def test_a_batch_of_controls_goes_by_scalar_code_unasked():
    mechanism, servo, q, v, t = states("weighted")
    want = controls(mechanism, servo, q, v, t, OFF)[1]
    of = lambda formulation: jax.vmap(
        lambda q, v, t: ukjax.servo_control(mechanism, servo, q, v, t, formulation=formulation, throw=False)
    )(q, v, t)
    with lost():
        assert_same(of(ukjax.UdwadiaKalaba()), want)
        assert bool(jnp.all(jnp.isnan(of(OFF).u)))


def test_single_precision_is_certain_of_itself():
    mechanism, servo, *state = states("limited")
    want = controls(mechanism, servo, *state, OFF)[1]
    to_single = lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x
    single = lambda tree: jax.tree_util.tree_map(to_single, tree)
    with lost():
        got = controls(*single((mechanism, servo)), *single(state), ON)[1]
    assert got.u.dtype == jnp.float32
    assert_close(got.u.astype(float), want.u, atol=1e-4 * float(jnp.max(jnp.abs(want.u))))


def test_programs_are_lowered_for_a_gpu():
    mechanism, servo, *state = states("limited")
    of = lambda *state: controlled_motion(mechanism, (servo,), ON, *state)[1].u
    batch = lambda *state: jnp.sum(jax.vmap(of)(*state))
    for function in (batch, jax.grad(batch)):
        text = jax.jit(function).trace(*state).lower(lowering_platforms=("cuda",)).as_text()
        assert "lapack" not in text.lower()


@pytest.mark.long
@pytest.mark.parametrize("case", ["robots", "unicycle"])
def test_trajectories_and_their_gradients(case):
    """With servo and projection, within somebody's `jit`: against matrices."""
    scenario = {"robots": coordinated_robots, "unicycle": unicycle}[case].scenario()
    ts = np.linspace(0.0, 0.3, 4)

    def loss(q0, formulation):
        got = ukjax.simulate(
            scenario.mechanism, q0, scenario.v0, ts, servo=scenario.servo, formulation=formulation,
            projection=ukjax.Projection(), throw=False, keep=("q", "control"),
        )  # fmt: skip
        assert got.q is not None
        assert got.control is not None
        return jnp.sum(got.q**2) + 1e-3 * jnp.sum(got.control**2), got.result

    way = lambda formulation: jax.jit(jax.value_and_grad(lambda q0: loss(q0, formulation), has_aux=True))(scenario.q0)
    ((got, result), slope), ((want, _), steepness) = way(ukjax.UdwadiaKalaba()), way(OFF)
    assert bool(result == RESULTS.successful)
    assert float(got) == pytest.approx(float(want), rel=1e-11)
    assert_close(slope, steepness, atol=1e-8 * float(jnp.max(jnp.abs(steepness))))


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, cotangent: (2 * cotangent,))

AWKWARD = {
    "control flow": lambda q, v, t: jax.lax.cond(q[0] > 0, lambda: v[:2], lambda: q[:2]),
    "a loop": lambda q, v, t: jax.lax.while_loop(lambda x: jnp.sum(x**2) > 1, lambda x: x / 2, v[:2]),
    "random numbers": lambda q, v, t: v[:2] + jax.random.normal(jax.random.fold_in(jax.random.key(0), 1), (2,)),
    "linear algebra": lambda q, v, t: jnp.linalg.solve(jnp.eye(2) * 3 + v[:2, None] * v[None, :2], q[:2]),
    "custom_vjp": lambda q, v, t: doubled(v[:2]),
    "a gather": lambda q, v, t: q[jnp.argsort(q)][:2],
    "complex": lambda q, v, t: jnp.real(jnp.fft.fft(q)[:2]),
    "a callback": lambda q, v, t: jax.pure_callback(np.tanh, q[:2], q[:2], vmap_method="sequential"),
}


@pytest.mark.parametrize("name", sampled(AWKWARD, ["control flow", "a callback"]))
def test_what_users_write_passes_through_or_around(name):
    mechanism, servo, *state = states("weighted")
    force = mechanism.system.force
    system = ukjax.System(mechanism.system.mass, lambda q, v, t: force(q, v, t).at[:2].add(AWKWARD[name](q, v, t)))
    mechanism = ukjax.Mechanism(system, mechanism.constraints)
    servo = ukjax.Servo(servo.constraint, servo.actuation, AWKWARD[name])
    assert_same(controls(mechanism, servo, *state, ON), controls(mechanism, servo, *state, OFF))


def test_a_batch_of_nothing():
    mechanism, servo, q, v, t = states("weighted")
    motion, control = controls(mechanism, servo, q[:0], v[:0], t[:0], ON)
    assert (motion.acceleration.shape, control.u.shape) == ((0, 3), (0, 2))


def test_units_change_nothing():
    """Rows, coordinates and controls in any unit: the same motion, by scalar code."""
    M = np.array([[2.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 1.0]])
    A, H, G = np.array([[0.0, 1.0, -1.0]]), np.array([[1.0, 0.5, 0.0]]), np.eye(3)[:, :2]

    def motion(columns, row, wanted, control):
        change = np.diag(columns)
        system = ukjax.System(lambda q, t: change @ M @ change + 0 * t, lambda q, v, t: change @ np.ones(3) + 0 * q)
        of = lambda matrix, b: ukjax.AccelerationConstraint(
            lambda q, v, t: matrix @ change + 0 * t, lambda q, v, t: b + 0 * t
        )
        mechanism = ukjax.Mechanism(system, of(row * A, row * np.array([0.3])))
        servo = ukjax.Servo(of(wanted * H, wanted * np.array([0.7])), change @ G * control)
        state = jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(2)
        found = controls(mechanism, servo, *state, ON)
        return columns[None] * found[0].acceleration, control * found[1].u

    with lost():
        got, want = motion(np.array([1e-3, 1.0, 1e4]), 1e6, 1e-7, 1e3), motion(np.ones(3), 1.0, 1.0, 1.0)
    for x, y in zip(got, want, strict=True):
        assert_close(x, y, rtol=1e-9, atol=1e-12)
