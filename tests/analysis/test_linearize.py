"""Linearisations against closed forms, SymPy's Linearizer, and differences of trajectories."""

import control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sm
import sympy.physics.mechanics as me

import ukjax
from models import cart_pole, moving_pivot, n_pendulum, rolling_disc, spherical_pendulum, whipple_bicycle
from tests.helpers import assert_close, assert_gradients, falling, pendulum, rod


def assert_eigenvalues(got, want, atol=1e-7):
    """The same set of complex numbers."""
    got, want = list(np.asarray(got)), list(np.asarray(want))
    assert len(got) == len(want)
    for value in want:
        nearest = min(got, key=lambda x: abs(x - value))
        assert abs(nearest - value) < atol, f"{value} is not among {got}"
        got.remove(nearest)


def test_a_cart_pole_hanging_and_upright():
    model = cart_pole.CartPole()
    mc, m, l, g = 1.0, 0.2, 0.5, 9.81
    outputs = lambda q, v, t: q[1:]
    for angle, sign in ((0.0, 1), (np.pi, -1)):
        found = ukjax.analysis.linearize(
            ukjax.Mechanism(model), jnp.array([0.0, angle]), actuation=np.array(cart_pole.ON_CART), outputs=outputs
        )
        A = np.zeros((4, 4))
        A[:2, 2:] = np.eye(2)
        A[2, 1], A[3, 1] = m * g / mc, -sign * (mc + m) * g / (mc * l)
        assert found.names == ("q[0]", "q[1]", "v[0]", "v[1]")
        assert_close(found.A, jnp.asarray(A), atol=1e-9)
        assert_close(found.B[:, 0], jnp.array([0.0, 0.0, 1 / mc, -sign / (mc * l)]), atol=1e-9)
        assert_close(found.C, jnp.array([[0.0, 1.0, 0.0, 0.0]]), atol=1e-9)
        assert not bool(found.stable)
        assert_close(found.rates, jnp.zeros(4), atol=1e-9)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_pendulum_in_cartesian_coordinates_with_redundant_rows_or_without(copies):
    found = ukjax.analysis.linearize(pendulum(copies), jnp.array([0.0, -1.0]))
    assert found.names == ("q[0]", "v[0]")
    assert_close(found.A, jnp.array([[0.0, 1.0], [-9.81, 0.0]]), atol=1e-9)
    modes = found.modes()
    assert modes.frequencies[0] == pytest.approx(np.sqrt(9.81), abs=1e-9)
    assert modes.damping[0] == pytest.approx(0.0, abs=1e-9)
    # The shape satisfies the constraint: the tip moves along x.
    assert_close(modes.shapes[:2, 0], np.array([1.0, 0.0], complex), atol=1e-9)


def test_a_spherical_pendulum_that_goes_round_a_cone():
    # Conical motion at angle c from the vertical with W^2 = g / cos(c); about it the angle swings with
    # w^2 = W^2 (1 + 3 cos(c)^2).
    scenario = spherical_pendulum.scenario()
    model, c = scenario.mechanism.system, 0.6
    L, g = float(model.L), float(model.g)
    W = np.sqrt(g / (L * np.cos(c)))
    q = L * jnp.array([np.sin(c), 0.0, -np.cos(c)])
    v = L * jnp.array([0.0, np.sin(c) * W, 0.0])
    height = lambda q, v, t: jnp.stack([q[2], v[2], q[0] * v[1] - q[1] * v[0]])
    found = ukjax.analysis.linearize(scenario.mechanism, q, v, states=height)
    w = W * np.sqrt(1 + 3 * np.cos(c) ** 2)
    assert_eigenvalues(found.eigenvalues, [0, 1j * w, -1j * w])
    assert_close(found.rates, jnp.zeros(3), atol=1e-9)


def test_a_double_pendulum_in_absolute_coordinates():
    # Two uniform rods, hanging: M = m L^2 [[4/3, 1/2], [1/2, 1/3]], K = m g L diag(3/2, 1/2).
    chain = n_pendulum.Chain((1.0, 1.0), (0.5, 0.5))
    q, v = chain.state(jnp.full(2, -np.pi / 2), jnp.zeros(2))
    found = ukjax.analysis.linearize(chain.mechanism(), q, v)
    M, K = 0.25 * np.array([[4 / 3, 0.5], [0.5, 1 / 3]]), 9.81 * 0.5 * np.diag([1.5, 0.5])
    w = np.sqrt(np.linalg.eigvals(np.linalg.solve(M, K)))
    assert_eigenvalues(found.eigenvalues, [*(1j * w), *(-1j * w)])
    modes = found.modes()
    # Every shape satisfies the joints.
    J = jax.jacfwd(lambda q: chain.joints(q, 0.0))(q)
    assert np.max(np.abs(np.asarray(J) @ modes.shapes[:6])) < 1e-9
    assert np.max(np.abs(np.asarray(J) @ modes.shapes[6:])) < 1e-9


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_a_rolling_disc_is_stable_above_its_critical_speed(ratio):
    # Rolling straight with phi' = w2: lean'' (D + m R^2) = m g R lean - w2 A' ..., stable for
    # w2^2 > m g R D / ((A + m R^2) A).
    model = rolling_disc.RollingDisc()
    m, R, A, D, g = (float(x) for x in (model.m, model.R, model.A, model.D, model.g))
    critical = np.sqrt(m * g * R * D / ((A + m * R**2) * A))
    q, v = model.state(jnp.zeros(()), jnp.array([0.0, 0.0, ratio * critical]))
    mechanism = rolling_disc.scenario().mechanism
    lean = lambda q, v, t: jnp.stack([q[4], v[4], v[3], v[5]])
    found = ukjax.analysis.linearize(mechanism, q, v, states=lean)
    s2 = (A + m * R**2) * A * (ratio * critical) ** 2 / (D * (D + m * R**2)) - m * g * R / (D + m * R**2)
    root = 1j * np.sqrt(complex(s2))
    assert_eigenvalues(found.eigenvalues, [0, 0, root, -root], atol=1e-6)
    assert (np.max(np.asarray(found.eigenvalues).real) < 1e-6) == (ratio > 1)


@pytest.mark.long
def test_the_bicycle_by_four_states():
    # Published eigenvalues at 5 m/s: Meijaard et al. (2007), table 2.
    bicycle = whipple_bicycle.robot()
    q, v = whipple_bicycle.straight(bicycle, 5.0)

    def states(q, v, t):
        lean, steer = lambda q: whipple_bicycle.lean(bicycle, q), lambda q: bicycle.coordinate(q, "steering")
        both = lambda q: jnp.stack([lean(q), steer(q)])
        return jnp.concatenate(jax.jvp(both, (q,), (bicycle.mechanism().rates(q, v, t),)))

    found = ukjax.analysis.linearize(bicycle.mechanism(), q, v, states=states)
    weave, castering, capsize = -0.77534188219585 + 4.46486771378823j, -14.07838969279822, -0.32286642900409
    assert_eigenvalues(found.eigenvalues, [weave, np.conj(weave), castering, capsize], atol=1e-6)
    assert bool(found.stable)


def from_kane():
    """A pendulum by Kane's method: SymPy's linearisation of it, and the mechanism."""
    q1, u1 = me.dynamicsymbols("q1 u1")
    t, (m, L, g) = me.dynamicsymbols._t, sm.symbols("m L g")
    N = me.ReferenceFrame("N")
    A = N.orientnew("A", "axis", [q1, N.z])
    A.set_ang_vel(N, u1 * N.z)
    pivot = me.Point("O")
    pivot.set_vel(N, 0)
    P = pivot.locatenew("P", L * A.x)
    P.v2pt_theory(pivot, N, A)
    kane = me.KanesMethod(N, q_ind=[q1], u_ind=[u1], kd_eqs=[u1 - q1.diff(t)])
    kane.kanes_equations([me.Particle("P", P, m)], [(P, m * g * N.x)])
    values = {m: 2.0, L: 0.7, g: 9.81}
    A, _, _ = kane.linearize(A_and_B=True, op_point={q1: 0, u1: 0}, simplify=True)
    return kane, values, np.array(A.subs(values), float)


def from_lagrange():
    """A pendulum in Cartesian coordinates with a constraint by Lagrange's method, likewise."""
    q1, q2 = me.dynamicsymbols("q1:3")
    t, (m, L, g) = me.dynamicsymbols._t, sm.symbols("m L g")
    N = me.ReferenceFrame("N")
    P = me.Point("O").locatenew("P", q1 * N.x + q2 * N.y)
    P.set_vel(N, q1.diff(t) * N.x + q2.diff(t) * N.y)
    particle = me.Particle("P", P, m)
    constraint = sm.Matrix([q1**2 + q2**2 - L**2])
    lagrangian = me.Lagrangian(N, particle)
    lagrange = me.LagrangesMethod(lagrangian, [q1, q2], hol_coneqs=constraint, forcelist=[(P, m * g * N.x)], frame=N)
    lagrange.form_lagranges_equations()
    point = {q1: L, q2: 0, q1.diff(t): 0, q2.diff(t): 0}
    multipliers = lagrange.solve_multipliers(point)
    A, _, _ = lagrange.linearize(
        q_ind=[q2], qd_ind=[q2.diff(t)], q_dep=[q1], qd_dep=[q1.diff(t)], op_point=point | multipliers, A_and_B=True
    )
    values = {m: 2.0, L: 0.7, g: 9.81}
    return lagrange, values, np.array(A.subs(values), float)


def test_against_the_linearizer_of_sympy_for_kane():
    kane, values, A = from_kane()
    mechanism = ukjax.from_sympy(kane, values)
    found = ukjax.analysis.linearize(mechanism, jnp.zeros(1), jnp.zeros(1))
    assert_close(found.A, jnp.asarray(A), atol=1e-9)


def test_against_the_linearizer_of_sympy_for_lagrange():
    lagrange, values, A = from_lagrange()
    mechanism = ukjax.from_sympy(lagrange, values)
    found = ukjax.analysis.linearize(mechanism, jnp.array([0.7, 0.0]), jnp.zeros(2))
    assert found.names == ("q[1]", "v[1]")
    assert_close(found.A, jnp.asarray(A), atol=1e-9)


@pytest.mark.long
def test_servos_and_gradients():
    # A servo holds the tip of a double mass; its natural dynamics is that of Baumgarte.
    wanted = ukjax.Holonomic(lambda q, t: q[:1] - 0.3, ukjax.Baumgarte(3.0, 25.0))
    servo = ukjax.Servo(wanted, np.array([[1.0], [0.0]]))
    found = ukjax.analysis.linearize(ukjax.Mechanism(cart_pole.CartPole()), jnp.array([0.3, 0.0]), servo=servo)
    assert_eigenvalues(found.eigenvalues, [*np.roots([1, 3, 25]), 1j * np.sqrt(9.81 / 0.5), -1j * np.sqrt(9.81 / 0.5)])

    def stiffness(length):
        q = jnp.array([0.0, -1.0]) * length
        mechanism = ukjax.Mechanism(falling(), [rod(length)] * 2)
        return ukjax.analysis.linearize(mechanism, q, states=ukjax.analysis.Independent((0,), (0,))).A[1, 0]

    assert float(jax.jit(stiffness)(0.8)) == pytest.approx(-9.81 / 0.8, abs=1e-9)
    assert_gradients(stiffness, jnp.asarray(0.8))


@pytest.mark.long
def test_along_a_trajectory_in_a_batch():
    scenario = moving_pivot.scenario()
    mechanism = scenario.mechanism
    run = scenario.simulate(jnp.linspace(0.0, 0.5, 4), keep=("q", "v"))
    states = ukjax.analysis.independent(mechanism, run.q[0], run.v[0], run.t[0])
    at = lambda q, v, t: ukjax.analysis.linearize(mechanism, q, v, t, states=states, throw=False)
    along = jax.jit(jax.vmap(at))(run.q, run.v, run.t)
    assert along.A.shape == (4, len(along.names), len(along.names))
    for i in (0, 3):
        assert_close(along.A[i], at(run.q[i], run.v[i], run.t[i]).A, atol=1e-8)
    with pytest.raises(ValueError, match="is of one linearisation"):
        along.modes()


def test_the_result_says_what_is_wrong():
    with pytest.raises(RuntimeError, match="off the constraints"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.1, -1.0]))
    with pytest.raises(RuntimeError, match="states depend on each other"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0]), states=lambda q, v, t: jnp.stack([q[1], v[0]]))
    with pytest.raises(RuntimeError, match="do not tell how they"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0]), states=lambda q, v, t: v[:1])
    with pytest.raises(ValueError, match="states must be given where"):
        jax.jit(lambda q: ukjax.analysis.linearize(pendulum(), q).A)(jnp.array([0.0, -1.0]))
    with pytest.raises(ValueError, match="holds 7"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0]), states=ukjax.analysis.Independent((7,), (0,)))
    with pytest.raises(TypeError, match="states must be a function"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0]), states=[0, 1])
    with pytest.raises(ValueError, match="u has no effect"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0]), u=[1.0])
    with pytest.raises(ValueError, match="needs inputs: pass actuation=G"):
        ukjax.analysis.linearize(pendulum(), jnp.array([0.0, -1.0])).to_scipy()


def test_hands_over_to_scipy_and_to_python_control():
    found = ukjax.analysis.linearize(
        pendulum(), jnp.array([0.0, -1.0]), actuation=np.array([[1.0], [0.0]]), outputs=lambda q, v, t: q[:1]
    )
    assert found.to_scipy().A.shape == (2, 2)
    system = found.to_control()
    assert system.state_labels == ["q[0]", "v[0]"]
    # The force on a mass of 1 kg at rest: x = F / g for a slow one.
    assert float(np.squeeze(control.dcgain(system))) == pytest.approx(1 / 9.81, abs=1e-9)
