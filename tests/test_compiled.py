"""A mechanism as machine code: the values of `equation_of_motion`, by matrices where the rank is not certain."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum, parallelogram, scara, simple_pendulum, six_joint_arm

from .helpers import assert_close, long, pendulum
from .inside import replaced


def states(scenario, count=3):
    random = np.random.default_rng(0)
    q, v = np.asarray(scenario.q0), np.asarray(scenario.v0)
    for _ in range(count):
        yield ukjax.assemble(scenario.mechanism, q + 0.05 * random.normal(size=q.shape), v, throw=False)[:2]


def of_matrices(mechanism, q, v, t=0.0):
    way = ukjax.UdwadiaKalaba(expand=False)
    return ukjax.equation_of_motion(mechanism, q, v, t, formulation=way)


@pytest.mark.parametrize("case", [long(scara.scenario), lambda: n_pendulum.closed(N=3), long(parallelogram.scenario)])
def test_accelerations_and_forces_are_those_of_matrices(case):
    scenario = case()
    handle = ukjax.compile(scenario.mechanism, what=("acceleration", "constraint_force"))
    for q, v in states(scenario):
        acceleration, force = handle(np.asarray(q), np.asarray(v))
        want = of_matrices(scenario.mechanism, q, v)
        assert handle.certain
        assert handle.operations
        assert_close(acceleration, want.acceleration, rtol=1e-9, atol=1e-9)
        assert_close(force, want.constraint_force, rtol=1e-9, atol=1e-8)


@pytest.mark.long
def test_a_tree_goes_by_its_recursion():
    mechanism = six_joint_arm.scenario().mechanism
    handle = ukjax.compile(mechanism)
    q, v = jnp.linspace(-0.4, 0.5, 6), jnp.linspace(1.0, -0.7, 6)
    assert_close(handle(q, v), of_matrices(mechanism, q, v).acceleration, rtol=1e-11, atol=1e-11)
    assert handle.certain
    slope = ukjax.compile(mechanism, what="jacobian")
    want = jax.jacfwd(lambda q, v: of_matrices(mechanism, q, v).acceleration, argnums=(0, 1))(q, v)
    assert_close(slope(q, v), jnp.concatenate(want, axis=1), rtol=1e-9, atol=1e-9)
    assert slope.certain


def test_the_jacobian_is_that_of_central_differences():
    mechanism = n_pendulum.closed(N=3).mechanism
    (q, v), *_ = states(n_pendulum.closed(N=3))
    q, v = np.asarray(q), np.asarray(v)
    jacobian, acceleration = ukjax.compile(mechanism, what="jacobian"), ukjax.compile(mechanism)
    J, n, h = jacobian(q, v), q.size, 1e-6
    assert jacobian.certain
    for k in range(2 * n):
        d = np.eye(2 * n)[k] * h
        slope = (acceleration(q + d[:n], v + d[n:]) - acceleration(q - d[:n], v - d[n:])) / (2 * h)
        # Off the constraints rows contradict each other, so a step along them counts only where it is exact.
        np.testing.assert_allclose(J[:, k], slope, atol=1e-5 * np.max(np.abs(J)))


def test_a_servo_acts_and_its_control_is_that_of_servo_control():
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([2.0, 1.0])), lambda q, v, t: -0.3 * v)
    wanted = ukjax.Holonomic(lambda q, t: q[:1] - jnp.sin(t), ukjax.Baumgarte.classic(5.0, 5.0))
    servo, cart = ukjax.Servo(wanted, actuation=[[1.0], [0.0]]), ukjax.Mechanism(system)
    handle = ukjax.compile(cart, servo=servo, what=("control", "acceleration"))
    q, v, t = np.array([0.1, 0.2]), np.array([0.9, -0.1]), 0.3
    control, acceleration = handle(q, v, t)
    assert handle.certain
    want = ukjax.servo_control(cart, servo, q, v, t)
    assert_close(control, want.u, rtol=1e-12)
    assert_close(acceleration[:1], (control - 0.3 * v[:1]) / 2.0, rtol=1e-12)


def test_a_feedback_acts():
    law = ukjax.Feedback(lambda q, v, t: -2.0 * q[:1] + t, actuation=[[1.0], [0.0]])
    handle = ukjax.compile(pendulum(), servo=law)
    q, v = np.array([0.6, -0.8]), np.array([0.4, 0.3])
    want = ukjax.equation_of_motion(pendulum(), q, v, 0.5, applied=[-2.0 * 0.6 + 0.5, 0.0])
    assert_close(handle(q, v, 0.5), want.acceleration, rtol=1e-12)


def doubled():
    """A pendulum whose rod is written twice, the second time with a factor, which goes through zero at t = 1."""
    system = pendulum().system
    rod = lambda q, t: jnp.array([q @ q - 1.0, (1.0 - t) * (q @ q - 1.0)])
    return ukjax.Mechanism(system, ukjax.Holonomic(rod))


def test_where_the_rank_is_not_certain_the_result_is_that_of_matrices():
    handle, q, v = ukjax.compile(doubled()), np.array([0.6, -0.8]), np.array([0.8, 0.6])
    usual = of_matrices(pendulum(), q, v).acceleration
    for t in (0.0, 1.0 - 1e-7, 1.0):
        assert_close(handle(q, v, t), of_matrices(doubled(), q, v, t).acceleration, rtol=1e-7, atol=1e-7)
    assert_close(handle(q, v, 0.0), usual, rtol=1e-12)


WANTED = ukjax.Holonomic(lambda q, t: q[:1] - jnp.sin(t), ukjax.Baumgarte.classic(5.0, 5.0))
SERVO = ukjax.Servo(WANTED, actuation=[[1.0], [0.0]])
POINT = [0.6, -0.8], [0.8, 0.6]


@pytest.mark.parametrize(
    ("make", "servo", "state", "is_certain"),
    [
        (lambda: n_pendulum.closed(N=3).mechanism, None, next(iter(states(n_pendulum.closed(N=3), 1))), True),
        (lambda: ukjax.Mechanism(pendulum().system), SERVO, (*POINT, 0.3), True),
        long(doubled, None, (*POINT, 1.0), False),
    ],
)
def test_a_jacobian_by_columns_is_the_one_that_is_written_out(make, servo, state, is_certain):
    """Between other results, under a servo, and where the rank is not certain, which goes the sure way."""
    mechanism, what = make(), ("acceleration", "jacobian", "constraint_force", "jacobian")
    whole = ukjax.compile(mechanism, servo=servo, what=what)
    expected = whole(*state)
    with replaced(written_out=0):
        handle = ukjax.compile(mechanism, servo=servo, what=what)
        found = handle(*state)
    for got, want in zip(found, expected, strict=True):
        assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert handle.certain == whole.certain == is_certain
    assert handle.operations != whole.operations


def test_a_contradiction_is_an_error():
    there = ukjax.Holonomic(lambda q, t: jnp.array([q[0], q[0] - t**2]))
    handle = ukjax.compile(ukjax.Mechanism(pendulum().system, there))
    with pytest.raises(RuntimeError, match="contradict"):
        handle([0.0, 0.0], [0.0, 0.0], 0.0)


def test_results_are_written_where_they_belong():
    handle = ukjax.compile(pendulum())
    out = np.zeros((3, 2))
    for k in range(3):
        assert handle([0.6, -0.8], [0.4 * k, 0.3 * k], out=out[k]).base is out
    for k in range(3):
        assert_close(out[k], handle([0.6, -0.8], [0.4 * k, 0.3 * k]))
    assert handle([0.6, -0.8], [0.0, 0.0]) is not handle([0.6, -0.8], [0.0, 0.0])


def test_threads_have_results_of_their_own():
    handle, found = ukjax.compile(pendulum()), {}
    angles = np.linspace(0.0, 6.0, 8)

    def work(angle):
        q, v = np.array([np.sin(angle), -np.cos(angle)]), np.zeros(2)
        found[angle] = [handle(q, v) for _ in range(200)]

    threads = [threading.Thread(target=work, args=(angle,)) for angle in angles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for angle in angles:
        # A rod at rest: gravity less its part along the rod.
        want = -9.81 * np.sin(angle) * np.array([np.cos(angle), np.sin(angle)])
        np.testing.assert_allclose(found[angle], np.broadcast_to(want, (200, 2)), atol=1e-12)


def test_without_a_compiler_all_goes_by_matrices():
    with replaced(has_compiler=lambda: False):
        handle = ukjax.compile(pendulum())
        got = handle([0.6, -0.8], [0.4, 0.3])
    assert handle.operations is None
    assert not handle.certain
    assert_close(got, of_matrices(pendulum(), jnp.array([0.6, -0.8]), jnp.array([0.4, 0.3])).acceleration, rtol=1e-12)


def test_functions_with_tables_and_callbacks_go_around():
    def table(q, v, t):
        return jnp.interp(q, jnp.linspace(-2.0, 2.0, 400), jnp.linspace(1.0, 3.0, 400))

    def called(q, v, t):
        twice = jax.ShapeDtypeStruct((2,), q.dtype)
        return jax.pure_callback(lambda q: np.asarray(q) * 2.0, twice, q, vmap_method="sequential")

    q, v = jnp.array([0.6, -0.8]), jnp.array([0.4, 0.3])
    for force in (table, called):
        mechanism = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), force), pendulum().constraints)
        assert_close(ukjax.compile(mechanism)(q, v), of_matrices(mechanism, q, v).acceleration, rtol=1e-12)


def test_nonsense_is_named():
    with pytest.raises(TypeError, match="mechanism must be"):
        ukjax.compile(pendulum().system)
    with pytest.raises(ValueError, match="what must be of 'acceleration'"):
        ukjax.compile(pendulum(), what="speed")
    with pytest.raises(ValueError, match="is empty"):
        ukjax.compile(pendulum(), what=())
    with pytest.raises(ValueError, match="Pass servo="):
        ukjax.compile(pendulum(), what="control")
    law = ukjax.Feedback(lambda q, v, t, x: x[:1], [[1.0], [0.0]], memory=[0.0], rates=lambda q, v, t, x: x)
    with pytest.raises(ValueError, match="without memory"):
        ukjax.compile(pendulum(), servo=law)
    handle = ukjax.compile(pendulum())
    with pytest.raises(RuntimeError, match="has not called"):
        _ = handle.certain
    with pytest.raises(ValueError, match="shape"):
        handle([0.6], [0.4, 0.3])
    handle([0.6, -0.8], [0.4, 0.3])
    for q, v in (([0.6], [0.4, 0.3]), ([[0.6], [0.8]], [0.4, 0.3]), (0.6, [0.4, 0.3])):
        with pytest.raises((ValueError, TypeError), match="shape|number|len"):
            handle(q, v)
    with pytest.raises(TypeError, match="a tuple of names"):
        ukjax.compile(pendulum(), what=3)
    with pytest.raises(ValueError, match="q and v must be real numbers"):
        handle("ab", [0.0, 0.0])
    with pytest.raises(TypeError, match="q and v must be real numbers"):
        handle([0.6, 1j], [0.0, 0.0])
    with pytest.raises(TypeError, match="use ukjax.equation_of_motion"):
        jax.jit(lambda q: handle(q, q))(jnp.ones(2))
    with pytest.raises(RuntimeError, match="finite"):
        handle([np.nan, 0.0], [0.0, 0.0])


def test_one_coordinate():
    handle = ukjax.compile(simple_pendulum.scenario().mechanism)
    scenario = simple_pendulum.scenario()
    want = of_matrices(scenario.mechanism, scenario.q0, scenario.v0)
    assert_close(handle(scenario.q0, scenario.v0), want.acceleration, rtol=1e-12)
