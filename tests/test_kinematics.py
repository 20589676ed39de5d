"""Speeds that are no rates: bodies that turn, and nonholonomic speeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import ukjax

from .helpers import STATES, assert_close


INERTIA = np.diag([0.3, 0.7, 0.9])
MASS, ARM, GRAVITY = 1.3, np.array([0.1, 0.2, -0.4]), 9.81


def product(p, q):
    """Of two quaternions, the scalar part first."""
    s, u = p[0] * q[0] - p[1:] @ q[1:], p[0] * q[1:] + q[0] * p[1:] + jnp.cross(p[1:], q[1:])
    return jnp.concatenate([s[None], u])


def rotation(q):
    w, u = q[0], q[1:]
    K = jnp.array([[0.0, -u[2], u[1]], [u[2], 0.0, -u[0]], [-u[1], u[0], 0.0]])
    return jnp.eye(3) + 2 * (w * K + K @ K) / (q @ q)


def turned(q, d, t):
    """By the rotation vector d, seen from the body."""
    squared = d @ d
    small = squared < 1e-12
    angle = jnp.sqrt(jnp.where(small, 1.0, squared))
    factor = jnp.where(small, 0.5 - squared / 48, jnp.sin(angle / 2) / angle)
    cosine = jnp.where(small, 1 - squared / 8, jnp.cos(angle / 2))
    new = product(q, jnp.concatenate([cosine[None], factor * d]))
    return new / jnp.linalg.norm(new)


TURNING = ukjax.Kinematics(lambda q, v, t: product(q, jnp.concatenate([jnp.zeros(1), v])) / 2, turned)


def body(arm=ARM, inertia=INERTIA):
    """A body about a fixed point, its mass off it by `arm`; v: angular velocity, seen from the body."""
    inertia, arm = jnp.asarray(inertia), jnp.asarray(arm)
    about = inertia + MASS * (arm @ arm * jnp.eye(3) - jnp.outer(arm, arm))
    weight = jnp.array([0.0, 0.0, -MASS * GRAVITY])

    def torque(q, v, t):
        return jnp.cross(arm, rotation(q).T @ weight) - jnp.cross(v, about @ v)

    return ukjax.System(lambda q, t: about, torque, TURNING), about


Q0, V0 = jnp.array([0.8, 0.2, -0.4, 0.4]), jnp.array([1.1, -0.7, 2.0])
TS = jnp.linspace(0.0, 2.0, 21)


def test_a_body_that_turns_freely_keeps_energy_and_momentum_and_its_quaternion_unit_length():
    system, about = body(arm=np.zeros(3))
    run = ukjax.simulate(ukjax.Mechanism(system), Q0, V0, TS, rtol=1e-11, atol=1e-11, projection=ukjax.Projection())
    momentum = jax.vmap(lambda q, v: rotation(q) @ about @ v)(run.q, run.v)
    energy = jnp.einsum("ti,ij,tj->t", run.v, about, run.v) / 2
    assert run.q.shape == (21, 4)
    assert run.v.shape == run.acceleration.shape == run.constraint_force.shape == (21, 3)
    assert_close(momentum, jnp.broadcast_to(momentum[0], momentum.shape), atol=1e-9)
    assert_close(energy, jnp.broadcast_to(energy[0], energy.shape), atol=1e-9)
    assert_close(jnp.linalg.norm(run.q, axis=1), jnp.ones(21), atol=4e-16)


def test_a_heavy_body_moves_as_scipy_integrates_its_rotation_matrix():
    system, about = body()
    run = ukjax.simulate(ukjax.Mechanism(system), Q0, V0, TS, rtol=1e-11, atol=1e-11, keep=STATES)
    weight, about = np.array([0.0, 0.0, -MASS * GRAVITY]), np.asarray(about)

    def change(t, y):
        R, v = y[:9].reshape(3, 3), y[9:]
        spin = np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])
        torque = np.cross(ARM, R.T @ weight) - np.cross(v, about @ v)
        return np.concatenate([(R @ spin).ravel(), np.linalg.solve(about, torque)])

    start = np.concatenate([np.asarray(rotation(Q0)).ravel(), V0])
    want = scipy.integrate.solve_ivp(change, (0, 2), start, t_eval=TS, rtol=1e-12, atol=1e-12, method="DOP853").y
    assert_close(run.v, want[9:].T, atol=1e-8)
    assert_close(jax.vmap(rotation)(run.q), want[:9].T.reshape(-1, 3, 3), atol=1e-8)


def hinged():
    """The body on a hinge along x: a point of its axis is held, the one row twice."""
    system, about = body()
    along = jnp.array([1.0, 0.0, 0.0])
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (rotation(q) @ along)[jnp.array([1, 2, 1])]))
    return mechanism, about


@pytest.mark.long
def test_a_body_on_a_hinge_is_a_pendulum():
    mechanism, about = hinged()
    angle, rate = 0.7, 1.2
    q, v = jnp.array([np.cos(angle / 2), np.sin(angle / 2), 0.0, 0.0]), jnp.array([rate, 0.0, 0.0])
    arm = np.array([ARM[1] * np.cos(angle) - ARM[2] * np.sin(angle), ARM[1] * np.sin(angle) + ARM[2] * np.cos(angle)])
    want = -MASS * GRAVITY * arm[0] / about[0, 0]
    for formulation in (
        ukjax.UdwadiaKalaba(),
        ukjax.UdwadiaKalaba(expand=True),
        ukjax.formulation.LagrangeMultiplier(),
    ):
        motion = ukjax.equation_of_motion(mechanism, q, v, formulation=formulation)
        assert_close(motion.acceleration, jnp.array([want, 0.0, 0.0]), atol=1e-12)
        assert int(motion.rank) == 2
    found = ukjax.diagnose(mechanism, q, v)
    assert int(found.rank) == 2
    assert int(found.degrees_of_freedom) == 1
    assert bool(found.holonomic.all())


@pytest.mark.long
def test_assembly_and_projection_return_to_the_hinge_and_to_unit_length():
    mechanism, _ = hinged()
    angle = 0.7
    exact = jnp.array([np.cos(angle / 2), np.sin(angle / 2), 0.0, 0.0])
    off = 1.01 * turned(exact, jnp.array([0.02, 0.03, -0.02]), 0.0)
    q, v = ukjax.assemble(mechanism, off, V0)
    assert_close(jnp.linalg.norm(q), jnp.ones(()), atol=1e-15)
    assert_close(mechanism.position_error(q, 0.0), jnp.zeros(3), atol=1e-14)
    assert_close(mechanism.velocity_error(q, v, 0.0), jnp.zeros(3), atol=1e-14)
    for expand in (False, True):
        near = jnp.concatenate([1.001 * turned(exact, jnp.array([0.0, 1e-5, -2e-5]), 0.0), V0])
        y = ukjax.Projection()(mechanism, jnp.zeros(()), near, expand, 4)
        assert_close(jnp.linalg.norm(y[:4]), jnp.ones(()), atol=4e-16)
        assert_close(mechanism.position_error(y[:4], 0.0), jnp.zeros(3), atol=1e-15)
        assert_close(mechanism.velocity_error(y[:4], y[4:], 0.0), jnp.zeros(3), atol=1e-15)


@pytest.mark.long
def test_speeds_of_a_nonholonomic_system_move_it_as_the_constraint_on_rates_does():
    # A knife edge: along itself, and about; or x, y, theta with a constraint.
    force = jnp.array([0.3, -0.2, 0.1])
    speeds = ukjax.System(
        lambda q, t: jnp.diag(jnp.array([2.0, 0.5])),
        lambda q, v, t: jnp.stack([jnp.cos(q[2]) * force[0] + jnp.sin(q[2]) * force[1], force[2]]),
        lambda q, v, t: jnp.stack([v[0] * jnp.cos(q[2]), v[0] * jnp.sin(q[2]), v[1]]),
    )
    rates = ukjax.System(lambda q, t: jnp.diag(jnp.array([2.0, 2.0, 0.5])), lambda q, v, t: force)
    edge = ukjax.Nonholonomic(lambda q, v, t: (v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2]))[None])
    q0, options = jnp.array([0.1, 0.2, 0.3]), {"rtol": 1e-11, "atol": 1e-11, "keep": ("q",)}
    some = ukjax.simulate(ukjax.Mechanism(speeds), q0, jnp.array([1.0, 0.4]), TS, **options)
    v0 = jnp.array([np.cos(0.3), np.sin(0.3), 0.4])
    all_ = ukjax.simulate(ukjax.Mechanism(rates, edge), q0, v0, TS, **options)
    assert_close(some.q, all_.q, atol=1e-9)
    # Through it a constraint on q is one on the speeds, and without one on q it is nonholonomic.
    assert not ukjax.diagnose(ukjax.Mechanism(rates, edge), q0, v0).holonomic.any()
    line = ukjax.Mechanism(speeds, ukjax.Holonomic(lambda q, t: (q[1] - 0.2)[None]))
    assert ukjax.diagnose(line, q0, jnp.array([0.0, 0.4])).holonomic.all()


@pytest.mark.long
def test_a_servo_turns_a_body_about_its_hinge():
    mechanism, _about = hinged()
    q = jnp.array([np.cos(0.35), np.sin(0.35), 0.0, 0.0])
    upright = ukjax.Holonomic(lambda q, t: (q[1] / q[0])[None], ukjax.Baumgarte(2.0, 4.0))
    servo = ukjax.Servo(upright, jnp.array([[1.0], [0.0], [0.0]]))
    run = ukjax.simulate(
        mechanism, q, jnp.zeros(3), jnp.linspace(0, 8.0, 9), servo=servo, projection=ukjax.Projection()
    )
    assert_close(run.q[-1], jnp.array([1.0, 0.0, 0.0, 0.0]), atol=2e-3)
    control = jax.vmap(lambda q, v: ukjax.servo_control(mechanism, servo, q, v).u)(run.q, run.v)
    assert_close(control, run.control, atol=1e-9)


@pytest.mark.long
def test_gradients_of_the_acceleration_against_differences():
    mechanism, _ = hinged()
    f = lambda x: ukjax.equation_of_motion(mechanism, x[:4], x[4:], throw=False).acceleration
    x = jnp.concatenate([jnp.array([np.cos(0.3), np.sin(0.3), 0.0, 0.0]), jnp.array([1.2, 0.0, 0.0])])
    # Along what the body may do: across it the rows that are one twice are two.
    along = jnp.concatenate([mechanism.rates(x[:4], x[4:], 0.0), jnp.array([0.7, 0.0, 0.0])])
    numeric = (f(x + 1e-5 * along) - f(x - 1e-5 * along)) / 2e-5
    assert_close(jax.jvp(f, (x,), (along,))[1], numeric, atol=1e-8)
    assert_close(jax.jacrev(f)(x) @ along, numeric, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("projection", [None, ukjax.Projection()])
def test_gradients_in_both_modes_against_differences(projection):
    def end(p):
        system, _ = body(arm=ARM * p[0], inertia=INERTIA * p[1])
        along = jnp.array([1.0, 0.0, 0.0])
        hinge = ukjax.Holonomic(lambda q, t: (rotation(q) @ along - p[2] * along)[1:])
        q0 = jnp.stack([jnp.cos(p[3]), jnp.sin(p[3]), 0.0 * p[3], 0.0 * p[3]])
        v0 = jnp.array([0.4, 0.0, 0.0])
        options = {"rtol": 1e-10, "atol": 1e-10, "projection": projection, "keep": ("q",)}
        return ukjax.simulate(ukjax.Mechanism(system, hinge), q0, v0, TS[:6], throw=False, **options).q[-1]

    p = jnp.array([1.0, 1.0, 1.0, 0.3])
    end = jax.jit(end)
    forward, backward = jax.jit(jax.jacfwd(end))(p), jax.jit(jax.jacrev(end))(p)
    steps = 1e-5 * jnp.eye(4)
    differences = jnp.stack([(end(p + h) - end(p - h)) / 2e-5 for h in steps], axis=1)
    assert_close(forward, differences, atol=1e-8)
    assert_close(backward, forward, atol=1e-12)


def test_scalar_code_and_matrices_agree_in_a_batch():
    mechanism, _ = hinged()
    angles = jnp.linspace(-3.0, 3.0, 40)
    qs = jax.vmap(lambda a: jnp.stack([jnp.cos(a / 2), jnp.sin(a / 2), 0.0, 0.0]))(angles)
    vs = jnp.linspace(-2.0, 2.0, 40)[:, None] * jnp.array([[1.0, 0.0, 0.0]])

    def of(expand):
        one = lambda q, v: ukjax.equation_of_motion(
            mechanism, q, v, formulation=ukjax.UdwadiaKalaba(expand=expand), throw=False
        )
        return jax.jit(jax.vmap(one))(qs, vs)

    fast, slow = of(None), of(False)
    assert_close(fast.acceleration, slow.acceleration, atol=1e-12)
    assert_close(fast.rank, slow.rank)


def test_labels_of_speeds():
    system, _ = body()
    turns = [f"omega {k} [rad/s]" for k in "xyz"]
    scenario = ukjax.Scenario(ukjax.Mechanism(system), Q0, V0, 1.0, speeds=turns)
    data = scenario.simulate(TS[:3]).to_dataset(scenario.coordinates, speeds=scenario.speeds)
    assert data.q.dims == ("time", "coordinate")
    assert data.v.dims == ("time", "speed")
    assert data.v.attrs["units"] == "rad/s"
    assert data.acceleration.attrs["units"] == "rad/s^2"
    assert data.constraint_force.attrs["units"] == "N m"
    assert list(data.speed_name.values) == ["omega x", "omega y", "omega z"]
    assert list(scenario.simulate(TS[:3]).to_dataset().speed.values) == turns
    plain = ukjax.simulate(ukjax.Mechanism(system), Q0, V0, TS[:3]).to_dataset()
    assert list(plain.speed.values) == ["v1", "v2", "v3"]
    with pytest.raises(ValueError, match="speeds must be 3 names"):
        ukjax.Scenario(ukjax.Mechanism(system), Q0, V0, 1.0, speeds=["a"])


class Unaware(ukjax.AbstractConstraint):
    """For systems whose v are the rates of q."""

    def rows(self, q, v, t):
        return jnp.ones((1, q.shape[0])), jnp.zeros(1)

    def position_error(self, q, t):
        return jnp.zeros(0)

    def velocity_error(self, q, v, t):
        return jnp.zeros(0)


def test_a_constraint_of_ones_own_that_knows_no_kinematics():
    system, _ = body()
    with pytest.raises(
        TypeError, match=r"constraints\[0\] is a Unaware, .* Let both take \(q, v, t, kinematics=None\)"
    ):
        ukjax.Mechanism(system, Unaware())
    plain = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: -q), Unaware())
    motion = ukjax.equation_of_motion(plain, jnp.array([1.0, 2.0]), jnp.zeros(2))
    assert_close(motion.acceleration, jnp.array([0.5, -0.5]), atol=1e-14)


def test_what_does_not_fit_is_named():
    system, _ = body()
    mechanism = ukjax.Mechanism(system)
    with pytest.raises(ValueError, match=r"q has shape \(3,\) and v shape \(3,\), (which|but) the kinematics"):
        ukjax.equation_of_motion(mechanism, jnp.ones(3), V0)
    with pytest.raises(ValueError, match=r"q0 has shape \(4,\) and v0 shape \(4,\)"):
        ukjax.simulate(mechanism, Q0, jnp.ones(4), TS)
    with pytest.raises(TypeError, match="kinematics must be a function"):
        ukjax.System(lambda q, t: jnp.eye(3), lambda q, v, t: v, 3)
    with pytest.raises(TypeError, match="retract must be a function"):
        ukjax.Kinematics(lambda q, v, t: v, 3)
    wrong = ukjax.System(lambda q, t: jnp.eye(4), lambda q, v, t: jnp.zeros(3), TURNING)
    with pytest.raises(ValueError, match=r"mass\(q, t\) must return an array of shape \(3, 3\).*3 speeds"):
        ukjax.equation_of_motion(ukjax.Mechanism(wrong), Q0, V0)
    with pytest.raises(ValueError, match="system has a kinematics"):
        ukjax.modular.Module(system, ("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="q and v must have the same shape"):
        ukjax.equation_of_motion(ukjax.Mechanism(ukjax.System(wrong.mass, wrong.force)), Q0, V0)
