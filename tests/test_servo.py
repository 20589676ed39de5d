"""Servo constraints against closed forms, least squares by SciPy, and finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize

import ukjax
from models import cart_pole, coordinated_robots, flexible_joint, two_mass_spring, unicycle
from ukjax import RESULTS

from .helpers import STRATEGIES, assert_close, assert_gradients, falling, rod


control = eqx.filter_jit(ukjax.servo_control)
motion_of = eqx.filter_jit(ukjax.equation_of_motion)


def run(scenario, points=21, **options):
    return ukjax.simulate(
        scenario.mechanism,
        scenario.q0,
        scenario.v0,
        jnp.linspace(scenario.t0, scenario.t1, points),
        servo=scenario.servo,
        projection=scenario.projection,
        **options,
    )


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


@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 4.0), *(pytest.param(x, x, marks=pytest.mark.long) for x in (0.0, 5.0))]
)
def test_two_mass_spring_off_the_constraint(alpha, beta):
    # e'' + 2 alpha e' + beta^2 e = 0 from e = 0.1, e' = -0.1.
    scenario = two_mass_spring.scenario("inconsistent", alpha, beta)
    got = run(scenario, rtol=1e-10, atol=1e-12)
    t, w = np.asarray(got.t), np.sqrt(complex(beta**2 - alpha**2))
    sine = t if w == 0 else (np.sin(w * t) / w).real
    want = np.exp(-alpha * t) * (0.1 * np.cos(w * t).real + (-0.1 + alpha * 0.1) * sine)
    assert_close(got.q[:, 1] - got.q[:, 0] - 1.0, jnp.asarray(want), atol=1e-8)


ROBOTS = coordinated_robots.CoordinatedRobots()


@pytest.fixture(scope="module")
def raised():
    """The two robots over one period."""
    return run(coordinated_robots.scenario(), rtol=1e-10, atol=1e-10)


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


def test_coordinated_robots_use_the_smallest_control(raised):
    """Against a quadratic programme over u, q'' and multipliers, which knows nothing of pseudoinverses."""
    mechanism, servo = ROBOTS.mechanism(), ROBOTS.servo(5.0, 5.0)
    G = np.array(coordinated_robots.ACTUATION)
    for k in (2, 7):
        q, v, t = raised.q[k], raised.v[k], raised.t[k]
        terms = mechanism.terms(q, v, t)
        M, Q, A, b = (np.asarray(x) for x in (terms.M, terms.Q, terms.A, terms.b))
        As, bs = (np.asarray(x) for x in servo.constraint.rows(q, v, t))
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


def test_weights(raised):
    q, v, t = raised.q[4], raised.v[4], raised.t[4]
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
    response = jax.jacfwd(
        lambda u: motion_of(mechanism, q, v, t, applied=jnp.array(coordinated_robots.ACTUATION) @ u).acceleration
    )
    A, _ = ROBOTS.servo().constraint.rows(q, v, t)
    C = np.asarray(A @ response(vector.u))
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


SIDE = ukjax.Holonomic(lambda q, t: (q[0] - jnp.sin(t))[None])


def test_out_of_reach_is_reported_with_its_direction():
    # Two rows, one actuator that moves the sum of both coordinates.
    servo = ukjax.Servo(ukjax.Holonomic(lambda q, t: q - jnp.array([1.0, 2.0]) * t**2), [[1.0], [1.0]])
    got = control(ukjax.Mechanism(falling(g=0.0)), servo, jnp.zeros(2), jnp.zeros(2), throw=False)
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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_every_pseudoinverse(strategy, raised):
    q, v, t = raised.q[6], raised.v[6], raised.t[6]
    got = control(ROBOTS.mechanism(), ROBOTS.servo(5.0, 5.0, pseudoinverse=strategy), q, v, t)
    assert_close(got.u, raised.control[6], atol=1e-9)
    assert int(got.rank) == 3


def test_several_servos_are_solved_together(raised):
    q, v, t = raised.q[6], raised.v[6], raised.t[6]
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


def test_constraint_following_decays_at_its_rate():
    scenario = flexible_joint.scenario(P=0.25, t1=2.0)
    got = run(scenario, rtol=1e-10, atol=1e-10)
    beta = np.asarray(got.v[:, 0] + got.v[:, 1])
    assert_close(beta, 0.9 * np.exp(-np.asarray(got.t) / 0.25), atol=1e-8)
    # Eq. 72 with K (q1 - q2), in NumPy.
    model = flexible_joint.FlexibleJoint()
    for k in (0, 5, 20):
        q, v = np.asarray(got.q[k]), np.asarray(got.v[k])
        D, A = np.asarray(model.inertia(q)), np.ones((1, 2))
        inverse = np.linalg.inv(D)
        load = np.asarray(model.coriolis(q, v[:2])) @ v[:2] + np.asarray(model.gravity(q)) + model.K * (q[:2] - q[2:])
        ideal = A.T @ np.linalg.solve(A @ inverse @ A.T, A @ inverse @ np.asarray(load))
        u = ideal - D @ A.T[:, 0] / 2 * beta[k] / 0.25
        assert_close(got.control[k], jnp.asarray(u), atol=1e-8)


@pytest.mark.parametrize(
    "P", [0.5, jnp.array([0.5, 0.1]), jnp.array([[0.5, 0.1], [0.1, 0.2]])], ids=["scalar", "vector", "matrix"]
)
def test_constraint_following_of_several_rows(P):
    law = ukjax.ConstraintFollowing(ukjax.Nonholonomic(lambda q, v, t: v - jnp.stack([t, jnp.cos(t)])), jnp.eye(2), P)
    got = ukjax.simulate(ukjax.Mechanism(falling(3.0)), jnp.zeros(2), jnp.ones(2), [0.0, 0.3, 0.7], servo=law)
    beta = np.asarray(got.v) - np.stack([got.t, np.cos(got.t)], axis=1)
    P = np.broadcast_to(np.asarray(P, float), (2,)) if np.ndim(P) < 2 else np.asarray(P)
    values, vectors = np.linalg.eigh(np.diag(P) if P.ndim == 1 else P)
    for k, t in enumerate([0.0, 0.3, 0.7]):
        assert_close(beta[k], vectors @ np.diag(np.exp(-t / values)) @ vectors.T @ beta[0], atol=1e-7)


def test_constraint_following_on_a_constrained_mechanism():
    """A bead on a rod: only what the rod leaves is controlled."""
    mechanism = ukjax.Mechanism(falling(2.0), rod())
    spin = ukjax.Nonholonomic(lambda q, v, t: (q[0] * v[1] - q[1] * v[0] - 2.0)[None])
    law = ukjax.ConstraintFollowing(spin, jnp.eye(2), 0.2)
    got = ukjax.simulate(
        mechanism,
        [1.0, 0.0],
        [0.0, 0.0],
        [0.0, 0.1, 0.5],
        servo=law,
        projection=ukjax.Projection(),
        rtol=1e-10,
        atol=1e-10,
    )
    rate = got.q[:, 0] * got.v[:, 1] - got.q[:, 1] * got.v[:, 0]
    assert_close(rate - 2.0, -2.0 * jnp.exp(-got.t / 0.2), atol=1e-8)
    assert np.max(got.position_residual) < 1e-12


@pytest.mark.long
def test_unicycle_tracks_without_slipping():
    got = run(unicycle.scenario(3.0, 3.0, t1=6.0), 13, rtol=1e-10, atol=1e-10)
    model, path = unicycle.Unicycle(), unicycle.Eight()
    error = np.asarray(jax.vmap(model.point)(got.q) - jax.vmap(path)(got.t))
    rate = -np.asarray(jax.jacfwd(path)(jnp.asarray(0.0)))  # at rest
    t = np.asarray(got.t)[:, None]
    assert_close(error, (error[0] + (rate + 3.0 * error[0]) * t) * np.exp(-3.0 * t), atol=1e-7)
    assert np.max(got.velocity_residual) < 1e-12
    # A point on the axle cannot be moved sideways.
    on_axle = unicycle.Unicycle(d=0.0)
    with pytest.raises(RuntimeError, match="out of reach"):
        ukjax.servo_control(
            ukjax.Mechanism(on_axle, ukjax.Nonholonomic(on_axle.slip)),
            unicycle.tracking(on_axle, path), jnp.array([0.0, 0.3, 0.0]), jnp.zeros(3),
        )  # fmt: skip


def test_cart_pole_swings_up():
    got = run(cart_pole.scenario(), 201)
    model = cart_pole.CartPole()
    psi = np.asarray(jax.vmap(model.off_orbit)(got.q, got.v))
    assert psi[0] < -1.9
    assert np.max(np.abs(psi[160:])) < 0.01
    # On the orbit that ends upright, every swing comes close to it.
    assert np.max(-np.cos(np.asarray(got.q[100:, 1]))) > 0.99
    assert np.max(np.abs(got.q[:, 0])) < 2.0
    assert np.max(np.abs(got.control)) <= 10.0


def test_gradients_of_a_closed_loop():
    """With respect to gains, masses, stiffness, actuation and `free`, forward and reverse, against differences."""
    q0, v0 = jnp.array([0.0, 1.1]), jnp.array([1.0, 0.9])

    def loss(inputs):
        model, gains, actuation, free, weight = inputs
        servo = ukjax.Servo(ukjax.Holonomic(model.stretched, gains), actuation, free, weight=weight)
        got = ukjax.simulate(
            ukjax.Mechanism(model), q0, v0, jnp.linspace(0.0, 0.6, 4), servo=servo, rtol=1e-12, atol=1e-12
        )
        return jnp.sum(jnp.sin(got.q)) + jnp.sum(jnp.square(got.control)) / 1000

    model = two_mass_spring.TwoMassSpring()
    actuation, free, weight = jnp.array([[1.0, 0.3], [0.1, -0.5]]), jnp.array([0.5, 2.0]), jnp.array([1.0, 2.0])
    inputs = (model, ukjax.Baumgarte(6.0, 30.0), actuation, free, weight)
    assert_gradients(loss, inputs, rtol=1e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("reading", ["least_norm", "self_consistent"])
def test_gradients_of_the_control_of_a_closed_chain(reading, raised):
    q, v, t = raised.q[3], raised.v[3], raised.t[3]

    def loss(inputs):
        robots, free, q = inputs
        servo = robots.servo(5.0, 3.0, free=free, reading=reading)
        return jnp.sum(jnp.sin(ukjax.servo_control(robots.mechanism(), servo, q, v, t, throw=False).u))

    assert_gradients(loss, (ROBOTS, jnp.arange(6.0), q), rtol=1e-6, atol=1e-6)


def test_a_batch_is_the_loop(raised):
    at = lambda q, v, t: ukjax.servo_control(ROBOTS.mechanism(), ROBOTS.servo(5.0, 5.0), q, v, t, throw=False).u
    batch = jax.jit(jax.vmap(at))(raised.q, raised.v, raised.t)
    assert_close(batch, raised.control, atol=1e-9)


def spring(**options):
    model = two_mass_spring.TwoMassSpring()
    return ukjax.Servo(ukjax.Holonomic(model.stretched), [[1.0], [0.0]], **options)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ukjax.Servo("follow", jnp.eye(2)), TypeError, "constraint must be an instance of AbstractConstraint"),
        (lambda: ukjax.Servo(SIDE, jnp.ones(2)), ValueError, r"actuation must have shape \(n, p\)"),
        (lambda: ukjax.Servo(SIDE, jnp.zeros((2, 0))), ValueError, r"actuation must have shape \(n, p\)"),
        (lambda: ukjax.Servo(SIDE, [[jnp.nan], [0.0]]), ValueError, "actuation must be finite"),
        (lambda: spring(weight=-1.0), ValueError, "weight must be a vector or a square matrix"),
        (lambda: spring(weight=[-1.0]), ValueError, "weight must be positive"),
        (lambda: spring(weight=[[1.0, 2.0], [2.0, 1.0]]), ValueError, "weight must be symmetric positive definite"),
        (lambda: spring(limits=5.0), ValueError, "limits must be a pair"),
        (lambda: spring(limits=(1.0, -1.0)), ValueError, "lower <= upper"),
        (lambda: spring(free=1.0), ValueError, r"free must have shape \(p,\)"),
        (lambda: spring(reading="literal"), ValueError, "reading must be one of 'least_norm', 'self_consistent'"),
        (lambda: spring(exact=1), TypeError, "exact must be True or False"),
        (lambda: spring(pseudoinverse="SVD"), TypeError, "pseudoinverse must be an instance"),
        (lambda: spring(consistency_rtol=-1.0), ValueError, "consistency_rtol must not be negative"),
        (lambda: ukjax.ConstraintFollowing(SIDE, jnp.eye(2), 0.0), ValueError, "P must be positive"),
        (
            lambda: ukjax.ConstraintFollowing(rod(1.0, ukjax.Baumgarte(1.0)), jnp.eye(2), 1.0),
            ValueError, "must have no stabilization",
        ),
    ],
)  # fmt: skip
def test_senseless_servos_are_named(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("servo", "error", "match"),
    [
        ("servo", TypeError, "servo must be an instance of AbstractServo"),
        ((), ValueError, "servo must hold at least one"),
        ((1,), TypeError, r"servo\[0\] must be an instance"),
        (ukjax.Servo(SIDE, jnp.ones((3, 1))), ValueError, r"actuation must return an array of shape \(2, p\)"),
        (ukjax.Servo(SIDE, lambda q, t: jnp.ones(2)), ValueError, r"actuation\(q, t\) must return"),
        (ukjax.Servo(SIDE, jnp.eye(2), free=jnp.ones(3)), ValueError, "free must return an array of shape"),
        (ukjax.Servo(SIDE, jnp.eye(2), weight=jnp.ones(3)), ValueError, "weight must return an array of shape"),
        (ukjax.Servo(SIDE, jnp.eye(2), limits=(jnp.zeros(3), 1.0)), ValueError, "limits must return an array of shape"),
        (ukjax.ConstraintFollowing(SIDE, jnp.eye(2), jnp.ones(3)), ValueError, "P must return an array of shape"),
        (
            ukjax.ConstraintFollowing(
                ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2)), jnp.eye(2), 1.0
            ),
            ValueError, "velocities",
        ),
    ],
)  # fmt: skip
def test_servos_that_do_not_fit_are_named(servo, error, match):
    for call in (
        lambda: ukjax.servo_control(ukjax.Mechanism(falling()), servo, jnp.zeros(2), jnp.zeros(2)),
        lambda: ukjax.simulate(ukjax.Mechanism(falling()), jnp.zeros(2), jnp.zeros(2), [0.0, 1.0], servo=servo),
    ):
        with pytest.raises(error, match=match):
            call()


def test_a_scenario_names_its_controls():
    scenario = coordinated_robots.scenario()
    assert scenario.controls == tuple(f"u{i} [N m]" for i in range(1, 7))
    with pytest.raises(ValueError, match="controls must be 1 names"):
        ukjax.Scenario(ukjax.Mechanism(falling()), [0.0, 0.0], [0.0, 0.0], 1.0, servo=spring(), controls=("a", "b"))
    with pytest.raises(ValueError, match="there is no servo"):
        ukjax.Scenario(ukjax.Mechanism(falling()), [0.0, 0.0], [0.0, 0.0], 1.0, controls=("a",))


def test_labelled_data(raised):
    data = raised.to_dataset()
    assert data["control"].dims == ("time", "actuator")
    assert data["servo_residual"].attrs["long_name"].startswith("norm of the accelerations")
