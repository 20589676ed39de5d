"""Mass matrices that are singular, and non-ideal constraints, against closed forms and reduced coordinates."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import ukjax
from models import closed_form

from ..helpers import STRATEGIES, assert_close, long


GENERAL = (
    ukjax.formulation.PennestriDeFalco,
    ukjax.formulation.UdwadiaPhohomsiri,
    ukjax.formulation.LagrangeMultiplier,
)
every_general = pytest.mark.parametrize("formulation", GENERAL, ids=lambda f: f.__name__)
# A trajectory takes long to compile: the first of them always, all of them in the long tests.
every_general_run = pytest.mark.parametrize(
    "formulation",
    [GENERAL[0], *(long(f) for f in GENERAL[1:])],
    ids=lambda f: f.__name__,
)


def trajectory(mechanism, q0, v0, ts, formulation, projection=ukjax.Projection()):
    return ukjax.simulate(mechanism, q0, v0, jnp.asarray(ts), rtol=1e-12, atol=1e-12, solver=diffrax.Dopri8(),
                          formulation=formulation, projection=projection)  # fmt: skip


def chain():
    """Two masses: x1, p = x1 + d where the second spring starts, and the elongation x2 of that."""
    m1, m2, k1, k2, d = 2.0, 1.0, 30.0, 20.0, 0.4
    kinetic = lambda q, v, t: m1 * v[0] ** 2 / 2 + m2 * (v[1] + v[2]) ** 2 / 2
    potential = lambda q, t: k1 * q[0] ** 2 / 2 + k2 * q[2] ** 2 / 2
    mechanism = ukjax.Mechanism(
        ukjax.LagrangianSystem(kinetic, potential), ukjax.Holonomic(lambda q, t: (q[1] - q[0] - d)[None])
    )
    M, K = np.array([[m1 + m2, m2], [m2, m2]]), np.diag([k1, k2])
    generator = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.linalg.solve(M, K), np.zeros((2, 2))]])
    exact = lambda t: expm(generator * t) @ np.array([0.1, -0.05, 0.3, 0.2])
    return mechanism, [0.1, 0.5, -0.05], [0.3, 0.3, 0.2], exact


@pytest.mark.long
@every_general
def test_two_mass_chain(formulation):
    mechanism, q0, v0, exact = chain()
    ts = [0.0, 2.0, 5.0]
    t = trajectory(mechanism, q0, v0, ts, formulation())
    want = np.array([exact(s) for s in ts])
    assert_close(t.q[:, jnp.array([0, 2])], jnp.asarray(want[:, :2]), atol=1e-9)
    assert_close(t.v[:, jnp.array([0, 2])], jnp.asarray(want[:, 2:]), atol=1e-9)
    assert_close(t.q[:, 1], t.q[:, 0] + 0.4, atol=1e-12)


def massless_angle(redundant):
    """q = (x, y, theta) with M = diag(m, m, 0)."""
    m, l = 0.7, 1.2
    system = ukjax.System(
        lambda q, t: jnp.diag(jnp.array([m, m, 0.0])), lambda q, v, t: jnp.array([0.0, -9.81 * m, 0.0])
    )
    rows = lambda q, t: jnp.array([q[0] - l * jnp.sin(q[2]), q[1] + l * jnp.cos(q[2])])
    circle = lambda q, t: (q[0] ** 2 + q[1] ** 2 - l**2)[None]
    constraints = [ukjax.Holonomic(rows)] + [ukjax.Holonomic(circle)] * redundant
    q0 = [1.091156912190818, 0.4993762038565709, 2.0]
    return ukjax.Mechanism(system, constraints), q0, [0.0, 0.0, 0.0], np.sqrt(9.81 / l)


@pytest.mark.long
@every_general_run
@pytest.mark.parametrize("redundant", [long(0), 1])
def test_pendulum_with_a_massless_angle(formulation, redundant):
    mechanism, q0, v0, w = massless_angle(redundant)
    ts = [0.0, 2.5, 6.0]
    t = trajectory(mechanism, q0, v0, ts, formulation())
    angle, rate = closed_form.pendulum(ts, 2.0, 0.0, w)
    assert_close(t.q[:, 2], jnp.asarray(angle), atol=1e-9)
    assert_close(t.v[:, 2], jnp.asarray(rate), atol=1e-9)
    assert t.rank.tolist() == [2, 2, 2]


def E(p):
    return jnp.array([[-p[1], p[0], p[3], -p[2]], [-p[2], -p[3], p[0], p[1]], [-p[3], p[2], -p[1], p[0]]])


def body(mass, center, g):
    """A rigid body about a fixed point in Euler parameters; M = 4 E^T J E is singular along p."""
    J, center = jnp.diag(jnp.array([0.3, 0.5, 0.7])), jnp.array(center)

    def rotated(p):  # R(p) r, quadratic in p
        v = p[1:]
        return (p[0] ** 2 - v @ v) * center + 2 * (v @ center) * v + 2 * p[0] * jnp.cross(v, center)

    kinetic = lambda p, v, t: 2 * (E(p) @ v) @ J @ (E(p) @ v)
    potential = lambda p, t: mass * g * rotated(p)[2]
    unit = ukjax.Holonomic(lambda p, t: (p @ p - 1)[None])
    return ukjax.Mechanism(ukjax.LagrangianSystem(kinetic, potential), unit)


def euler(p0, w0, ts, mass, center, g):
    """The same by Euler's equations in the body's frame, with SciPy."""
    J, center = np.diag([0.3, 0.5, 0.7]), np.asarray(center)

    def right(t, y):
        p, w = y[:4], y[4:]
        e = np.asarray([[-p[1], p[0], p[3], -p[2]], [-p[2], -p[3], p[0], p[1]], [-p[3], p[2], -p[1], p[0]]])
        s = np.array([[0, -p[3], p[2]], [p[3], 0, -p[1]], [-p[2], p[1], 0]])
        R = np.eye(3) + 2 * p[0] * s + 2 * s @ s
        down = R.T @ np.array([0.0, 0.0, -mass * g])
        return np.concatenate([e.T @ w / 2, np.linalg.solve(J, np.cross(center, down) - np.cross(w, J @ w))])

    done = solve_ivp(right, (ts[0], ts[-1]), np.concatenate([p0, w0]), "DOP853", ts, rtol=1e-13, atol=1e-13)
    return done.y[:4].T


BODIES = {
    "free": (
        (0.0, [0.0, 0.0, 0.0], 0.0),
        [0.9233805168766387, 0.10259783520851541, -0.30779350562554625, 0.20519567041703082],
        [0.605327227730241, -0.3719171526308684, 1.854455871393916, 0.2436698586202241],
        [0.1, 4.0, 0.05],
        [0.0, 2.5, 5.0],
    ),
    "heavy": (
        (1.5, [0.05, -0.02, 0.3], 9.81),
        [0.9233805168766387, 0.30779350562554625, -0.20519567041703082, 0.10259783520851541],
        [-0.425781016115339, -0.3642223149902297, -1.0824071614498376, 2.7598817671090643],
        [0.5, -0.4, 6.0],
        [0.0, 1.5, 3.0],
    ),
}


@pytest.mark.long
@every_general_run
@pytest.mark.parametrize("name", ["free", "heavy"])
def test_rigid_body_in_quaternions(formulation, name):
    what, p0, v0, w0, ts = BODIES[name]
    t = trajectory(body(*what), p0, v0, ts, formulation())
    assert_close(t.q, jnp.asarray(euler(p0, w0, ts, *what)), atol=1e-9)
    assert np.max(t.position_residual) < 1e-12


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@every_general
def test_every_strategy_finds_the_same_acceleration_and_gradient_with_a_singular_mass(formulation, strategy):
    mechanism, q0, v0, _ = massless_angle(1)
    q0, v0 = jnp.array(q0), jnp.array([jnp.cos(2.0) * 1.2, jnp.sin(2.0) * 1.2, 1.0])

    def f(gravity):
        system = ukjax.System(mechanism.system.mass, lambda q, v, t: gravity * mechanism.system.force(q, v, t))
        scaled = ukjax.Mechanism(system, mechanism.constraints)
        motion = ukjax.equation_of_motion(scaled, q0, v0, formulation=formulation(strategy), throw=False)
        return motion.acceleration[2]

    value, slope = jax.jit(jax.value_and_grad(f))(jnp.asarray(1.0))
    assert_close(value, jnp.asarray(-9.81 / 1.2 * np.sin(2.0)), atol=1e-10)
    assert_close(slope, value, atol=1e-10)  # the acceleration is proportional to gravity


@every_general_run
def test_what_is_not_unique_is_reported(formulation):
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 0.0])), lambda q, v, t: jnp.array([1.0, 0.0]))
    with pytest.raises(RuntimeError, match="not unique"):
        ukjax.equation_of_motion(ukjax.Mechanism(system), [0.0, 0.0], [0.0, 0.0], formulation=formulation())
    row = ukjax.Holonomic(lambda q, t: (q[0] - t)[None])
    motion = ukjax.equation_of_motion(
        ukjax.Mechanism(system, row), [0.0, 0.0], [0.0, 0.0], formulation=formulation(), throw=False
    )
    assert bool(motion.result == ukjax.RESULTS.acceleration_not_unique)
    assert np.all(np.isfinite(motion.acceleration))
    held = ukjax.Mechanism(system, [row, ukjax.Holonomic(lambda q, t: (q[1] - q[0])[None])])
    motion = ukjax.equation_of_motion(held, [0.0, 0.0], [1.0, 1.0], formulation=formulation())
    assert_close(motion.acceleration, jnp.zeros(2), atol=1e-12)
    assert np.all(np.isnan(motion.unconstrained_acceleration))


DEFINITE = [
    ukjax.UdwadiaKalaba(),
    long(ukjax.formulation.RangeSpace()),
    long(ukjax.formulation.Recursive(levels=(2, 1), expand=False)),
]


@pytest.mark.parametrize("formulation", DEFINITE, ids=lambda f: type(f).__name__)
def test_rows_make_up_for_a_singular_mass(formulation):
    """A pendulum: g sin / l of an angle without mass; the force of its rod, and derivatives, batched too."""
    mechanism, q0, _, w = massless_angle(1)
    states = jnp.array(q0), jnp.array([jnp.cos(2.0) * 1.2, jnp.sin(2.0) * 1.2, 1.0])

    def found(scale, q, v):
        system = ukjax.System(lambda q, t: scale * mechanism.system.mass(q, t), mechanism.system.force)
        moved = ukjax.Mechanism(system, mechanism.constraints)
        motion = ukjax.equation_of_motion(moved, q, v, formulation=formulation, throw=False)
        return motion.acceleration[2], motion.constraint_force, motion.result, motion.unconstrained_acceleration

    one = jnp.ones(())
    angle, force, result, free = jax.jit(found)(one, *states)
    assert bool(result == ukjax.RESULTS.successful)
    assert_close(angle, jnp.asarray(-(w**2) * np.sin(2.0)), atol=1e-10)
    want = ukjax.equation_of_motion(
        mechanism, *states, formulation=ukjax.formulation.PennestriDeFalco()
    ).constraint_force
    assert_close(force, want, atol=1e-10)
    assert np.all(np.isnan(free))
    # Gravity stays what it is as the mass grows: the acceleration goes with its inverse, but for the speed.
    for mode in (jax.jacrev, jax.jacfwd):
        slope = jax.jit(jax.vmap(mode(lambda *x: found(*x)[0]), in_axes=(0, None, None)))(one[None], *states)
        assert_close(slope, -angle[None], atol=1e-9)


@pytest.mark.parametrize("formulation", DEFINITE[:2], ids=lambda f: type(f).__name__)
def test_a_mass_that_rows_do_not_make_up_for_is_reported(formulation):
    motion = lambda M, *rows: ukjax.equation_of_motion(
        ukjax.Mechanism(
            ukjax.System(lambda q, t: jnp.diag(jnp.array(M)), lambda q, v, t: jnp.array([0.0, -1.0, 0.0])),
            [ukjax.Holonomic(lambda q, t, i=i: q[i][None]) for i in rows],
        ),
        jnp.zeros(3), jnp.zeros(3), formulation=formulation,
    )  # fmt: skip
    assert_close(motion((1.0, 2.0, 0.0), 2).acceleration, jnp.array([0.0, -0.5, 0.0]), atol=1e-12)
    with pytest.raises(RuntimeError, match="not symmetric positive definite, nor do the constraints make up for it"):
        motion((1.0, 2.0, 0.0), 0)
    # Though the rows would hold it.
    with pytest.raises(RuntimeError, match="not symmetric positive definite"):
        motion((1.0, 2.0, -1e-3), 2)


def circle(nonideal, gravity):
    m, R = 2.0, 1.5
    system = ukjax.System(lambda q, t: m * jnp.eye(2), lambda q, v, t: jnp.array([0.0, -m * gravity]))
    return ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q @ q - R**2)[None]), nonideal)


def coulomb(mu, normal):
    def force(q, v, t, ideal):
        return -mu * jnp.linalg.norm(ideal) * v / jnp.linalg.norm(v) + normal * q / jnp.linalg.norm(q)

    return force


@pytest.mark.parametrize(
    "formulation",
    [ukjax.UdwadiaKalaba, *(long(f) for f in (ukjax.formulation.RangeSpace, *GENERAL))],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("normal", [long(0.0), 7.0])
def test_coulomb_friction_on_a_circle(formulation, normal):
    # omega' = -mu omega^2; a part of c along the normal must not act.
    mechanism = circle(coulomb(0.3, normal), 0.0)
    q0, v0 = [1.3815914910043277, 0.5841275134629758], [-1.1682550269259515, 2.7631829820086553]
    t = trajectory(mechanism, q0, v0, [0.0, 3.0, 6.0], formulation())
    angle = 0.4 + np.log(1 + 0.3 * 2.0 * np.asarray(t.t)) / 0.3
    assert_close(t.q, jnp.asarray(1.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)), atol=1e-8)


@pytest.mark.long
def test_coulomb_friction_on_a_vertical_circle():
    q0, v0 = [-0.7191383079063045, -1.3163738428355591], [4.6073084499244565, -2.5169840776720656]
    t = trajectory(circle(coulomb(0.2, 0.0), 9.81), q0, v0, [0.0, 0.3, 0.6], ukjax.UdwadiaKalaba())
    start = np.arctan2(q0[1], q0[0])
    rate = (q0[0] * v0[1] - q0[1] * v0[0]) / 1.5**2

    def right(_, y):
        normal = 2.0 * (9.81 * np.sin(y[0]) - 1.5 * y[1] ** 2)
        return [y[1], -9.81 * np.cos(y[0]) / 1.5 - 0.2 * abs(normal) * np.sign(y[1]) / (2.0 * 1.5)]

    done = solve_ivp(right, (0.0, 0.6), [start, rate], "DOP853", [0.0, 0.3, 0.6], rtol=1e-12, atol=1e-12)
    want = 1.5 * np.stack([np.cos(done.y[0]), np.sin(done.y[0])], axis=1)
    assert_close(t.q, jnp.asarray(want), atol=1e-8)


@pytest.mark.long
def test_viscous_force_on_a_parabola():
    mx, my, k, eta = 2.0, 5.0, 0.8, 1.5
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([mx, my])), lambda q, v, t: jnp.array([0.0, -my * 9.81]))
    c = lambda q, v, t, ideal: jnp.stack([-eta * v[0], jnp.zeros(())])
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q[1] - k * q[0] ** 2)[None]), c)
    t = trajectory(mechanism, [1.0, 0.8], [0.5, 0.8], [0.0, 2.0, 5.0], ukjax.UdwadiaKalaba())

    def right(_, y):
        x, v = y
        inertia = mx + my * (2 * k * x) ** 2
        return [v, (-my * 9.81 * 2 * k * x - eta * v - my * 4 * k**2 * x * v**2) / inertia]

    done = solve_ivp(right, (0.0, 5.0), [1.0, 0.5], "DOP853", [0.0, 2.0, 5.0], rtol=1e-12, atol=1e-12)
    assert_close(t.q[:, 0], jnp.asarray(done.y[0]), atol=1e-8)
