"""The control at one state, against closed forms, a quadratic programme by SciPy, and finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize

import ukjax
from models import coordinated_robots, two_mass_spring
from ukjax import RESULTS

from ..helpers import SIDE, STRATEGIES, assert_close, assert_gradients, falling, long, rod, run
from ..inside import controlled_motion


control = eqx.filter_jit(ukjax.servo_control)
motion_of = eqx.filter_jit(ukjax.equation_of_motion)


def test_two_mass_spring_is_the_closed_form():
    model = two_mass_spring.TwoMassSpring()
    mechanism, servo = ukjax.Mechanism(model), two_mass_spring.servo(model)
    for q, v in (((0.0, 1.0), (1.0, 1.0)), ((0.3, 1.7), (-1.0, 0.4)), ((1.0, 1.2), (0.0, 0.0))):
        got = control(mechanism, servo, jnp.array(q), jnp.array(v))
        assert_close(got.u, model.exact_control(jnp.array(q))[None], atol=1e-12)
        assert int(got.rank) == 1
        assert bool(got.consistent & got.controllable & ~got.contradictory)
        assert float(got.residual) < 1e-12
    # Both masses would share an ideal force; m1 bears it alone.
    ideal = motion_of(ukjax.Mechanism(model, servo.constraint), jnp.array([0.0, 1.0]), jnp.zeros(2))
    assert abs(float(ideal.constraint_force[1])) > 1.0


@pytest.mark.parametrize("formulation", [ukjax.UdwadiaKalaba(), ukjax.formulation.RangeSpace()])
def test_the_motion_under_control_is_that_under_its_force(formulation):
    """All fields of it, as if the control had been a force from the start."""
    model = two_mass_spring.TwoMassSpring()
    mechanism, servo = ukjax.Mechanism(model, ukjax.Holonomic(lambda q, t: (q[1] - 2 * q[0])[None])), SIDE_OF_FIRST
    q, v, t = jnp.array([0.3, 0.6]), jnp.array([0.2, 0.4]), jnp.asarray(0.1)
    got, found = eqx.filter_jit(controlled_motion)(mechanism, (servo,), formulation, q, v, t)
    want = motion_of(mechanism, q, v, t, applied=servo.actuation @ found.u, formulation=formulation)
    assert float(jnp.abs(found.u[0])) > 1.0
    for name in ("acceleration", "unconstrained_acceleration", "constraint_force", "nonideal_force"):
        assert_close(getattr(got, name), getattr(want, name), atol=1e-10)


SIDE_OF_FIRST = ukjax.Servo(SIDE, jnp.array([[1.0], [0.0]]))
ROBOTS = coordinated_robots.CoordinatedRobots()


@pytest.fixture(scope="module")
def raised():
    """The two robots over one period."""
    return run(coordinated_robots.scenario(), rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def on_the_way():
    """A state of that motion, found without a simulation: on all constraints, those of the servo too."""
    together = ukjax.Mechanism(ROBOTS.mechanism().system, [*ROBOTS.mechanism().constraints, ROBOTS.servo().constraint])
    case, t = coordinated_robots.scenario(), jnp.asarray(0.7)
    return *ukjax.assemble(together, case.q0, case.v0, t), t


@pytest.mark.long
def test_coordinated_robots_follow(raised):
    wanted = jax.vmap(ROBOTS.wanted)(raised.t)
    assert_close(jax.vmap(ROBOTS.object)(raised.q), wanted, atol=1e-8)
    assert np.max(raised.position_residual) < 1e-10
    assert np.max(raised.servo_residual) < 1e-10
    # The configuration in the middle of the motion is known.
    assert_close(raised.q[10], jnp.deg2rad(jnp.array([90.0, 0.0, 0.0, 0.0, -90.0])), atol=1e-8)
    u = np.asarray(raised.control)
    assert np.max(np.abs(u[:, [0, 1, 2]] + u[:, [5, 4, 3]])) < 1e-7  # mirror symmetric
    assert u[:, 0].max() == pytest.approx(8.225, abs=1e-3)
    assert u[:, 2].min() == pytest.approx(-8.225, abs=1e-3)


@pytest.mark.long
def test_coordinated_robots_use_the_smallest_control(raised):
    """Against a quadratic programme over u, q'' and multipliers, which knows nothing of pseudoinverses."""
    mechanism, servo = ROBOTS.mechanism(), ROBOTS.servo(5.0, 5.0)
    G = np.array(coordinated_robots.ACTUATION)
    for k in (2, 7):
        q, v, t = raised.q[k], raised.v[k], raised.t[k]
        terms, wanted = eqx.filter_jit(lambda *at: (mechanism.terms(*at), servo.constraint.rows(*at)))(q, v, t)
        M, Q, A, b = (np.asarray(x) for x in (terms.M, terms.Q, terms.A, terms.b))
        As, bs = (np.asarray(x) for x in wanted)
        # x = (u (6,), q'' (5,), lambda (2,)): M q'' = Q + A^T lambda + G u, A q'' = b, As q'' = bs.
        rows = np.block(
            [[-G, M, -A.T], [np.zeros((2, 6)), A, np.zeros((2, 2))], [np.zeros((3, 6)), As, np.zeros((3, 2))]]
        )
        right = np.concatenate([Q, b, bs])
        done = minimize(
            lambda x: x[:6] @ x[:6] / 2,
            np.linalg.lstsq(rows, right, rcond=None)[0],
            jac=lambda x: np.concatenate([x[:6], np.zeros(7)]),
            constraints=LinearConstraint(rows, right, right),
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 200},
        )
        got = control(mechanism, servo, q, v, t)
        assert_close(got.u, jnp.asarray(done.x[:6]), atol=1e-6)
        # And exactly: stationarity of the same programme, as one linear system.
        size = rows.shape[1]
        W = np.diag([1.0] * 6 + [0.0] * 7)
        KKT = np.block([[W, rows.T], [rows, np.zeros((10, 10))]])
        exact = np.linalg.lstsq(KKT, np.concatenate([np.zeros(size), right]), rcond=None)[0][:6]
        assert_close(got.u, jnp.asarray(exact), atol=1e-9)


@pytest.mark.long
def test_the_free_part_changes_the_control_and_not_the_motion(raised):
    mechanism = ROBOTS.mechanism()
    q, v, t = raised.q[3], raised.v[3], raised.t[3]
    plain = control(mechanism, ROBOTS.servo(), q, v, t)
    for free in (jnp.array([3.0, -1.0, 2.0, 0.5, 4.0, -2.0]), lambda q, v, t: 10 * jnp.cos(t + jnp.arange(6.0))):
        for reading in ("least_norm", "self_consistent"):
            got = control(mechanism, ROBOTS.servo(free=free, reading=reading), q, v, t)
            assert float(jnp.linalg.norm(got.u - plain.u)) > 0.1
            assert float(got.residual) < 1e-10
            apply = lambda u: motion_of(mechanism, q, v, t, applied=jnp.array(coordinated_robots.ACTUATION) @ u)
            assert_close(apply(got.u).acceleration, apply(plain.u).acceleration, atol=1e-10)


@pytest.mark.long
def test_the_two_readings(raised):
    q, v, t = raised.q[5], raised.v[5], raised.t[5]
    mechanism = ROBOTS.mechanism()
    least, other = (control(mechanism, ROBOTS.servo(reading=r), q, v, t) for r in ("least_norm", "self_consistent"))
    assert float(least.u @ least.u) < float(other.u @ other.u)
    # Eq. 35 literally, in NumPy, with the passive force that belongs to the control.
    G = jnp.array(coordinated_robots.ACTUATION)
    passive = motion_of(mechanism, q, v, t, applied=G @ other.u).constraint_force
    terms = mechanism.terms(q, v, t)
    A, b = ROBOTS.servo().constraint.rows(q, v, t)
    inverse = np.linalg.inv(np.asarray(terms.M))
    u = np.linalg.pinv(np.asarray(A) @ inverse @ np.asarray(G)) @ np.asarray(b - A @ (inverse @ (terms.Q + passive)))
    assert_close(other.u, jnp.asarray(u), atol=1e-9)


@pytest.mark.long
def test_weights(on_the_way):
    q, v, t = on_the_way
    mechanism = ROBOTS.mechanism()
    weight = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    vector = control(mechanism, ROBOTS.servo(weight=weight), q, v, t)
    matrix = control(mechanism, ROBOTS.servo(weight=jnp.diag(weight)), q, v, t)
    plain = control(mechanism, ROBOTS.servo(), q, v, t)
    effort = lambda u: float(jnp.sum(weight * u**2))
    assert_close(vector.u, matrix.u, atol=1e-10)
    assert effort(vector.u) < effort(plain.u)
    assert float(vector.residual) < 1e-10
    # The gradient of the effort is perpendicular to what changes nothing.
    G = jnp.array(coordinated_robots.ACTUATION)
    moved = lambda u: np.asarray(motion_of(mechanism, q, v, t, applied=G @ u).acceleration)
    response = np.stack([moved(e) - moved(jnp.zeros(6)) for e in jnp.eye(6)], axis=1)  # it is linear
    C = np.asarray(ROBOTS.servo().constraint.rows(q, v, t)[0]) @ response
    idle = np.eye(6) - np.linalg.pinv(C) @ C
    assert np.max(np.abs(idle @ np.asarray(weight * vector.u))) < 1e-9


def test_limits_and_what_they_cost():
    model = two_mass_spring.TwoMassSpring()
    servo = ukjax.Servo(ukjax.Holonomic(model.stretched), [[1.0], [0.0]], limits=(-20.0, 20.0))
    got = control(ukjax.Mechanism(model), servo, jnp.array([0.0, 1.0]), jnp.zeros(2))
    assert_close(got.u, jnp.array([-20.0]))
    assert got.saturated.tolist() == [True]
    assert float(got.residual) == pytest.approx((125 / 3 - 20) / 2)  # the missing force on m1 = 2 kg
    assert bool(got.consistent)
    inside = control(ukjax.Mechanism(model), servo, jnp.array([0.0, 0.6]), jnp.zeros(2))
    assert inside.saturated.tolist() == [False]
    lopsided = ukjax.Servo(ukjax.Holonomic(model.stretched), [[1.0], [0.0]], limits=(jnp.array([-5.0]), 100.0))
    assert float(control(ukjax.Mechanism(model), lopsided, jnp.array([0.0, 1.0]), jnp.zeros(2)).u[0]) == -5.0


@pytest.mark.long
def test_out_of_reach_is_reported_with_its_direction():
    # Two rows, one actuator that moves the sum of both coordinates.
    servo = ukjax.Servo(ukjax.Holonomic(lambda q, t: q - jnp.array([1.0, 2.0]) * t**2), [[1.0], [1.0]])
    got = ukjax.servo_control(ukjax.Mechanism(falling(g=0.0)), servo, jnp.zeros(2), jnp.zeros(2), throw=False)
    assert bool(got.result == RESULTS.servo_unreachable)
    assert not bool(got.consistent | got.controllable | got.contradictory)
    assert_close(got.unreachable, jnp.array([-1.0, 1.0]), atol=1e-12)
    with pytest.raises(RuntimeError, match=r"out of reach.*missed of each row: -1, 1"):
        ukjax.servo_control(ukjax.Mechanism(falling(g=0.0)), servo, jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(RuntimeError, match="out of reach"):
        ukjax.simulate(ukjax.Mechanism(falling(g=0.0)), jnp.zeros(2), jnp.zeros(2), [0.0, 1.0], servo=servo)
    near = ukjax.Servo(servo.constraint, servo.actuation, exact=False)
    got = control(ukjax.Mechanism(falling(g=0.0)), near, jnp.zeros(2), jnp.zeros(2))
    assert_close(got.u, jnp.array([3.0]), atol=1e-12)
    assert float(got.residual) == pytest.approx(np.sqrt(2))


def test_a_servo_that_asks_for_nan_is_told():
    rows = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(2), lambda q, v, t: jnp.array([jnp.nan, 1.0]))
    for exact in (True, False):
        with pytest.raises(RuntimeError, match="NaN or infinity"):
            ukjax.servo_control(
                ukjax.Mechanism(falling()), ukjax.Servo(rows, [[1.0], [0.0]], exact=exact), [1.0, 0.0], [0.0, 1.0]
            )


def test_no_actuation_where_it_is_wanted():
    servo = ukjax.Servo(SIDE, [[0.0], [1.0]])
    with pytest.raises(RuntimeError, match="have no actuation"):
        ukjax.servo_control(ukjax.Mechanism(falling()), servo, jnp.zeros(2), jnp.zeros(2), 1.0)
    # A passive constraint that takes every force away leaves no actuation either.
    held = ukjax.Mechanism(falling(), ukjax.Holonomic(lambda q, t: q[:1]))
    with pytest.raises(RuntimeError, match="have no actuation"):
        ukjax.servo_control(held, ukjax.Servo(SIDE, [[1.0], [0.0]]), jnp.zeros(2), jnp.zeros(2), 1.0)


def test_contradictory_rows():
    rows = ukjax.AccelerationConstraint(
        lambda q, v, t: jnp.array([[1.0, 0.0], [1.0, 0.0]]), lambda q, v, t: jnp.array([1.0, 2.0])
    )
    servo = ukjax.Servo(rows, jnp.eye(2))
    got = ukjax.servo_control(ukjax.Mechanism(falling()), servo, jnp.zeros(2), jnp.zeros(2), throw=False)
    assert bool(got.contradictory)
    assert not bool(got.consistent)
    with pytest.raises(RuntimeError, match="servo constraints contradict"):
        ukjax.servo_control(ukjax.Mechanism(falling()), servo, jnp.zeros(2), jnp.zeros(2))


def test_a_large_row_hides_no_contradiction():
    A = jnp.array([[1e12, 0.0], [0.0, 1.0], [0.0, 1.0]])
    rows = ukjax.AccelerationConstraint(lambda q, v, t: A, lambda q, v, t: jnp.array([1e12, 1.0, 1.001]))
    got = control(ukjax.Mechanism(falling()), ukjax.Servo(rows, jnp.eye(2)), jnp.zeros(2), jnp.zeros(2), throw=False)
    assert bool(got.contradictory)
    assert not bool(got.consistent)


@pytest.mark.parametrize(
    "strategy",
    [ukjax.SVD(), *(long(s) for s in STRATEGIES if not isinstance(s, ukjax.SVD))],
    ids=lambda s: type(s).__name__,
)
def test_every_pseudoinverse(strategy, on_the_way):
    got = control(ROBOTS.mechanism(), ROBOTS.servo(pseudoinverse=strategy), *on_the_way)
    assert_close(got.u, control(ROBOTS.mechanism(), ROBOTS.servo(), *on_the_way).u, atol=1e-9)
    assert int(got.rank) == 3


def test_several_servos_are_solved_together(on_the_way):
    q, v, t = on_the_way
    G = jnp.array(coordinated_robots.ACTUATION)
    parts = (
        ukjax.Servo(ukjax.Holonomic(lambda q, t: ROBOTS.off_path(q, t)[:2]), G[:, :3]),
        ukjax.Servo(ukjax.Holonomic(lambda q, t: ROBOTS.off_path(q, t)[2:]), G[:, 3:]),
    )
    got = control(ROBOTS.mechanism(), parts, q, v, t)
    assert_close(got.u, control(ROBOTS.mechanism(), ROBOTS.servo(), q, v, t).u, atol=1e-10)
    with pytest.raises(ValueError, match="same reading"):
        ukjax.servo_control(ROBOTS.mechanism(), (ROBOTS.servo(), ROBOTS.servo(reading="self_consistent")), q, v, t)
    law = ukjax.ConstraintFollowing(SIDE, jnp.eye(2), 1.0)
    with pytest.raises(ValueError, match=r"ukjax\.Servo only"):
        ukjax.servo_control(
            ukjax.Mechanism(falling()), (law, ukjax.Servo(SIDE, jnp.eye(2))), jnp.zeros(2), jnp.zeros(2)
        )


@pytest.mark.long
def test_a_force_of_the_constraint_that_depends_on_the_control():
    """Coulomb friction on a rod that the control presses on: found by Newton's method."""
    friction = lambda q, v, t, ideal: -0.3 * jnp.linalg.norm(ideal) * v / jnp.linalg.norm(v)
    mechanism = ukjax.Mechanism(falling(2.0), rod(), friction)
    angular = ukjax.AccelerationConstraint(
        lambda q, v, t: jnp.stack([-q[1], q[0]])[None], lambda q, v, t: jnp.array([0.7])
    )
    servo = ukjax.Servo(angular, [[1.0], [0.0]])
    q, v = jnp.array([0.6, 0.8]), jnp.array([-1.6, 1.2])
    got = control(mechanism, servo, q, v)
    motion = motion_of(mechanism, q, v, applied=jnp.stack([got.u[0], jnp.zeros(())]))
    assert float(-q[1] * motion.acceleration[0] + q[0] * motion.acceleration[1]) == pytest.approx(0.7, abs=1e-9)
    assert float(got.residual) < 1e-9


@pytest.mark.long
@pytest.mark.parametrize("reading", ["least_norm", "self_consistent"])
def test_gradients_of_the_control_of_a_closed_chain(reading, raised):
    q, v, t = raised.q[3], raised.v[3], raised.t[3]

    def loss(inputs):
        robots, free, q = inputs
        servo = robots.servo(5.0, 3.0, free=free, reading=reading)
        return jnp.sum(jnp.sin(ukjax.servo_control(robots.mechanism(), servo, q, v, t, throw=False).u))

    assert_gradients(loss, (ROBOTS, jnp.arange(6.0), q), rtol=1e-6, atol=1e-6)


@pytest.mark.long
def test_a_batch_is_the_loop(on_the_way):
    q, v, t = on_the_way
    states = q[None] + jnp.linspace(0.0, 0.1, 3)[:, None], jnp.stack([v, -v, 2 * v]), t + jnp.arange(3.0)
    at = lambda q, v, t: ukjax.servo_control(ROBOTS.mechanism(), ROBOTS.servo(), q, v, t, throw=False).u
    batch = jax.jit(jax.vmap(at))(*states)
    each = [control(ROBOTS.mechanism(), ROBOTS.servo(), *state, throw=False).u for state in zip(*states, strict=True)]
    assert_close(batch, jnp.stack(each), atol=1e-9)


@pytest.mark.long
def test_labelled_data(raised):
    data = raised.to_dataset()
    assert data["control"].dims == ("time", "actuator")
    assert data["servo_residual"].attrs["long_name"].startswith("norm of the accelerations")
