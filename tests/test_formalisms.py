"""Kane, Lagrange's multipliers and Newton-Euler, each independent of ukjax, against the Udwadia-Kalaba equation."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sm
import sympy.physics.mechanics as me
from sympy.matrices.exceptions import NonInvertibleMatrixError
from sympy.solvers.solveset import NonlinearError

import ukjax
from benchmarks import _formalism_cases, _formalisms

from . import sympy_models
from .helpers import assert_close, long, sampled


CASES = {case.name: case for case in _formalism_cases.cases()}
NONHOLONOMIC = ("particle with y' = z x'", "Chaplygin's sleigh", "upright coin", "rolling disc")


@eqx.filter_jit
def terms_of(mechanism, q, v, t):
    return mechanism.terms(q, v, t)


@eqx.filter_jit
def solve(formulation, terms):
    return formulation.solve(terms)


def motion_of(mechanism, q, v, t, formulation=ukjax.UdwadiaKalaba()):
    """In two steps, so that systems of one size share the compiled second."""
    return solve(formulation, terms_of(mechanism, q, v, t))


def by_multipliers(case, copies=1):
    """Acceleration and constraint force by NumPy, from the augmented matrix."""
    terms = terms_of(case.mechanism, jnp.array(case.q), jnp.array(case.v), jnp.asarray(case.t))
    M, Q, A, b = (np.asarray(x) for x in (terms.M, terms.Q, terms.A, terms.b))
    A, b = np.tile(A, (copies, 1)), np.tile(b, copies)
    n, m = len(Q), len(b)
    augmented = np.block([[M, -A.T], [A, np.zeros((m, m))]])
    solved = np.linalg.solve(augmented, np.concatenate([Q, b]))
    return solved[:n], A.T @ solved[n:]


def by_kane(case):
    """Acceleration by SymPy's Kane's method, solved by NumPy, from the speeds that belong to the rates."""
    kane = case.kane()
    at = {**dict(zip(kane.q, case.q)), sympy_models.t: case.t}
    kinematics = kane._k_ku_implicit, kane._k_kqdot_implicit, kane._f_k_implicit
    K_u, K_v, k = (sympy_models.numbers(x, at) for x in kinematics)
    u = np.linalg.solve(K_u, -K_v @ case.v - k[:, 0])
    v, _, acceleration = sympy_models.kane_derivative(kane, {}, case.q, u, case.t)
    assert_close(v, case.v, atol=1e-13)
    return acceleration


@pytest.mark.parametrize("name", sampled(CASES, set(CASES) - {"rolling disc", "double pendulum, Cartesian"}))
def test_all_formalisms_have_one_acceleration(name):
    case = CASES[name]
    state = jnp.array(case.q), jnp.array(case.v), jnp.asarray(case.t)
    motion = motion_of(case.mechanism, *state)
    assert motion.result == ukjax.RESULTS.successful
    got, moved = motion.acceleration, np.max(np.abs(motion.constraint_force))
    assert moved > 0.1, "a constraint that does nothing shows nothing"
    assert_close(got, by_kane(case), atol=1e-10)
    acceleration, force = by_multipliers(case)
    assert_close(got, acceleration, atol=1e-10)
    assert_close(motion.constraint_force, force, atol=1e-10)
    lagrange = case.lagrange()
    assert_close(got, sympy_models.lagrange_acceleration(lagrange, {}, case.q, case.v, case.t), atol=1e-10)
    multiplied = motion_of(case.mechanism, *state, ukjax.formulation.LagrangeMultiplier())
    assert_close(multiplied.acceleration, got, atol=1e-10)
    assert_close(multiplied.constraint_force, motion.constraint_force, atol=1e-10)
    # And what SymPy wrote, by the Udwadia-Kalaba equation.
    assert_close(motion_of(ukjax.from_sympy(lagrange), *state).acceleration, got, atol=1e-10)


@pytest.mark.parametrize("name", sampled(NONHOLONOMIC, set(NONHOLONOMIC) - {"rolling disc"}))
def test_kanes_equations_by_the_udwadia_kalaba_equation(name):
    case = CASES[name]
    state = jnp.array(case.q), jnp.array(case.v), jnp.asarray(case.t)
    mechanism = ukjax.from_sympy(case.kane())
    got, want = motion_of(mechanism, *state), motion_of(case.mechanism, *state)
    assert_close(got.acceleration, want.acceleration, atol=1e-10)
    assert_close(got.constraint_force, want.constraint_force, atol=1e-10)


LONG = [long(name) for name in NONHOLONOMIC[1:]]


@pytest.mark.parametrize("name", [NONHOLONOMIC[0], *LONG])
def test_these_are_nonholonomic(name):
    case = CASES[name]
    diagnosis = ukjax.diagnose(case.mechanism, case.q, case.v, case.t)
    assert not np.all(diagnosis.holonomic)


def test_redundant_rows_need_no_choice():
    """A row written twice: the augmented matrix and Kane's elimination are singular, the motion is not."""
    case = CASES["pendulum, Cartesian"]
    doubled = ukjax.Mechanism(case.mechanism.system, case.mechanism.constraints * 2)
    state = jnp.array(case.q), jnp.array(case.v), jnp.asarray(case.t)
    got = motion_of(doubled, *state)
    assert got.result == ukjax.RESULTS.successful
    assert int(got.rank) == 1
    assert_close(got.acceleration, by_multipliers(case)[0], atol=1e-10)
    with pytest.raises(np.linalg.LinAlgError):
        by_multipliers(case, copies=2)
    rod = lambda q, v, t: q[0] ** 2 + q[1] ** 2 + q[2] ** 2 - 4
    kane, _ = _formalism_cases.points([1.3], 3, [rod, rod], dependent=[1, 2])
    with pytest.raises(NonInvertibleMatrixError):
        kane()


def test_no_choice_of_dependent_speeds():
    """With y' dependent Kane's equations divide by y: they fail in the horizontal, where the motion does not."""
    case = CASES["pendulum, Cartesian"]
    kane = case.kane()
    at = {**dict(zip(kane.q, [2.0, 0.0])), **dict(zip(kane.u, [0.0, 1.5]))}
    assert kane.mass_matrix.subs(at).has(sm.nan, sm.zoo) or kane.forcing.subs(at).has(sm.nan, sm.zoo)
    motion = motion_of(case.mechanism, jnp.array([2.0, 0.0]), jnp.array([0.0, 1.5]), jnp.zeros(()))
    assert_close(motion.acceleration, np.array([-(1.5**2) / 2.0, -9.81]), atol=1e-13)


def test_a_constraint_that_is_not_linear_in_velocities():
    """Constant speed, |v|^2 = 4: a = g - (g . v) v / v^2. Kane's method takes linear constraints only."""
    squared = lambda q, v, t: (v @ v - 4.0)[None]
    system = ukjax.System(lambda q, t: 0.7 * jnp.eye(2), lambda q, v, t: 0.7 * jnp.array([0.0, -9.81]))
    v = 2.0 * jnp.array([jnp.cos(0.4), jnp.sin(0.4)])
    motion = motion_of(ukjax.Mechanism(system, ukjax.Nonholonomic(squared)), jnp.zeros(2), v, jnp.zeros(()))
    gravity = np.array([0.0, -9.81])
    assert_close(motion.acceleration, gravity - (gravity @ v) * v / 4, atol=1e-13)
    kane, _ = _formalism_cases.points([0.7], 2, nonholonomic=[lambda q, v, t: v[0] ** 2 + v[1] ** 2 - 4], dependent=[1])
    with pytest.raises(NonlinearError):
        kane()


@pytest.mark.long
def test_the_table_of_formalisms():
    row = _formalisms._row(CASES["Chaplygin's sleigh"], lambda what: None)
    assert len(row) == len(_formalisms.HEADER)
    assert row[:2] == ("Chaplygin's sleigh", "3, 1")
    assert float(row[-1]) < 1e-12


# Newton-Euler about a point P that is not the centre of mass, Zhao et al. (2018), eq. 37 ------------------------------

MASS = 2.3
CENTRE = np.array([0.2, -0.15, 0.3])  # of mass, from P
INERTIA = np.array([[0.5, 0.03, -0.02], [0.03, 0.4, 0.05], [-0.02, 0.05, 0.6]])  # about the centre of mass
OMEGA = np.array([0.7, -1.1, 0.9])
FORCE, MOMENT = np.array([1.0, 2.0, -3.0]), np.array([0.4, -0.2, 0.5])  # at P and about P


def cross(a):
    return np.array([[0, -a[2], a[1]], [a[2], 0, -a[0]], [-a[1], a[0], 0]])


def newton_euler(m, c, I, omega, sign=1.0):
    """The matrix and the velocity terms; with `sign` -1 the lower left block as it is printed."""
    about_P = I - m * cross(c) @ cross(c)
    matrix = np.block([[m * np.eye(3), -m * cross(c)], [sign * m * cross(c), about_P]])
    return matrix, np.concatenate([m * cross(omega) @ cross(omega) @ c, cross(omega) @ about_P @ omega])


def rotation(angles):
    """Body axes by turns about x, then the new y, then the new z."""
    (a, b, c), one, zero = angles, jnp.ones_like(angles[0]), jnp.zeros_like(angles[0])
    matrix = lambda *rows: jnp.stack([jnp.stack(row) for row in rows])
    X = matrix([one, zero, zero], [zero, jnp.cos(a), -jnp.sin(a)], [zero, jnp.sin(a), jnp.cos(a)])
    Y = matrix([jnp.cos(b), zero, jnp.sin(b)], [zero, one, zero], [-jnp.sin(b), zero, jnp.cos(b)])
    Z = matrix([jnp.cos(c), -jnp.sin(c), zero], [jnp.sin(c), jnp.cos(c), zero], [zero, zero, one])
    return X @ Y @ Z


def spin(q, v):
    """Angular velocity in body axes, from R^T R'."""
    R, dR = jax.jvp(rotation, (q[3:],), (v[3:],))
    W = R.T @ dR
    return jnp.stack([W[2, 1], W[0, 2], W[1, 0]])


def free_body():
    """The same body in coordinates: P and three angles; by its kinetic energy."""

    def kinetic(q, v, t):
        place = lambda q: q[:3] + rotation(q[3:]) @ jnp.asarray(CENTRE)
        moving, omega = jax.jvp(place, (q,), (v,))[1], spin(q, v)
        return MASS / 2 * moving @ moving + omega @ jnp.asarray(INERTIA) @ omega / 2

    def applied(q, v, t):  # the force and the moment are fixed to the body
        S = jax.jacobian(spin, argnums=1)(q, v)
        return jnp.concatenate([rotation(q[3:]) @ jnp.asarray(FORCE), jnp.zeros(3)]) + S.T @ jnp.asarray(MOMENT)

    return ukjax.LagrangianSystem(kinetic, lambda q, t: jnp.zeros_like(t), applied)


@jax.jit
def body_state():
    q = jnp.array([0.3, -0.1, 0.5, 0.4, -0.7, 1.1])
    S = jax.jacobian(spin, argnums=1)(q, jnp.zeros(6))[:, 3:]
    return q, jnp.concatenate([jnp.array([0.2, 0.5, -0.3]), jnp.linalg.solve(S, jnp.asarray(OMEGA))])


@jax.jit
def in_body_axes(q, v, acceleration):
    """a_P and alpha in body axes."""
    alpha = jax.jvp(spin, (q, v), (v, acceleration))[1]
    return jnp.concatenate([rotation(q[3:]).T @ acceleration[:3], alpha])


def test_newton_euler_about_another_point():
    matrix, rest = newton_euler(MASS, CENTRE, INERTIA, OMEGA)
    want = np.linalg.solve(matrix, np.concatenate([FORCE, MOMENT]) - rest)
    q, v = body_state()
    motion = motion_of(ukjax.Mechanism(free_body()), q, v, jnp.zeros(()))
    assert_close(in_body_axes(q, v, motion.acceleration), want, atol=1e-10)
    # A second derivation: Newton's and Euler's laws about the centre of mass, and the acceleration of P from its.
    alpha = np.linalg.solve(INERTIA, MOMENT - np.cross(CENTRE, FORCE) - np.cross(OMEGA, INERTIA @ OMEGA))
    at_P = FORCE / MASS - np.cross(alpha, CENTRE) - np.cross(OMEGA, np.cross(OMEGA, CENTRE))
    assert_close(np.concatenate([at_P, alpha]), want, atol=1e-12)
    printed, _ = newton_euler(MASS, CENTRE, INERTIA, OMEGA, sign=-1.0)
    assert np.max(np.abs(np.linalg.solve(printed, np.concatenate([FORCE, MOMENT]) - rest) - want)) > 0.1


def test_newton_euler_of_a_body_made_of_particles():
    """Four particles and the six distances between them, by the Udwadia-Kalaba equation: no inertia tensor at all."""
    rng = np.random.default_rng(3)
    masses, at = np.array([0.5, 0.8, 0.4, 0.6]), rng.normal(size=(4, 3))  # from P = the origin
    pairs = [(i, j) for i in range(4) for j in range(i)]
    forces = rng.normal(size=(4, 3))
    distances = lambda q, t: jnp.stack([jnp.sum((q.reshape(4, 3)[i] - q.reshape(4, 3)[j]) ** 2) for i, j in pairs])
    system = ukjax.System(
        lambda q, t: jnp.diag(jnp.asarray(np.repeat(masses, 3))), lambda q, v, t: jnp.asarray(forces.ravel())
    )
    held = ukjax.Holonomic(lambda q, t: distances(q, t) - distances(jnp.asarray(at.ravel()), t))
    velocity = np.array([0.3, -0.2, 0.1]) + np.cross(OMEGA, at)
    motion = motion_of(
        ukjax.Mechanism(system, held), jnp.asarray(at.ravel()), jnp.asarray(velocity.ravel()), jnp.zeros(())
    )
    assert int(motion.rank) == 6
    m = np.sum(masses)
    c = masses @ at / m
    I = sum(mass * (d @ d * np.eye(3) - np.outer(d, d)) for mass, d in zip(masses, at - c))
    matrix, rest = newton_euler(m, c, I, OMEGA)
    moment = np.sum(np.cross(at, forces), axis=0)
    solved = np.linalg.solve(matrix, np.concatenate([np.sum(forces, axis=0), moment]) - rest)
    want = solved[:3] + np.cross(solved[3:], at) + np.cross(OMEGA, np.cross(OMEGA, at))
    assert_close(motion.acceleration, want.ravel(), atol=1e-10)


def test_newton_euler_of_a_body_held_at_a_point():
    """P fixed: rows a_P = 0 on eq. 37 itself; the force that holds P is found with the motion."""
    matrix, rest = newton_euler(MASS, CENTRE, INERTIA, OMEGA)
    given = np.concatenate([FORCE, MOMENT]) - rest
    system = ukjax.System(lambda q, t: jnp.asarray(matrix), lambda q, v, t: jnp.asarray(given))
    fixed = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(3, 6), lambda q, v, t: jnp.zeros(3))
    motion = motion_of(ukjax.Mechanism(system, fixed), jnp.zeros(6), jnp.zeros(6), jnp.zeros(()))
    about_P = INERTIA + MASS * (CENTRE @ CENTRE * np.eye(3) - np.outer(CENTRE, CENTRE))  # Steiner
    alpha = np.linalg.solve(about_P, MOMENT - np.cross(OMEGA, about_P @ OMEGA))
    assert_close(motion.acceleration, np.concatenate([np.zeros(3), alpha]), atol=1e-12)
    moved = np.cross(alpha, CENTRE) + np.cross(OMEGA, np.cross(OMEGA, CENTRE))  # of the centre of mass
    assert_close(motion.constraint_force, np.concatenate([MASS * moved - FORCE, np.zeros(3)]), atol=1e-11)


def test_kane_needs_the_centre_of_mass_too():
    """SymPy's rigid body takes its inertia about any point, and carries it to the centre of mass."""
    N, O, C = me.ReferenceFrame("N"), me.Point("O"), me.Point("C")
    C.set_pos(O, 2 * N.x)
    body = me.RigidBody("body", C, N, 3, (me.inertia(N, 0, 13, 13), O))
    assert body.central_inertia == me.inertia(N, 0, 1, 1)


@pytest.mark.long
def test_the_code_of_the_page():
    text = (Path(__file__).parent.parent / "docs" / "formalisms.md").read_text()
    printed: list = []
    names = {"print": lambda *values: printed.extend(values)}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    by_hand, from_kane, from_lagrange, gradient, alpha, force = printed
    # At heading 0, f' = a w^2 along the skate; y'' is f w.
    assert_close(by_hand[:2], np.array([0.3 * 1.3**2, -1.3]), atol=1e-12)
    assert_close(from_kane, by_hand, atol=1e-12)
    assert_close(from_lagrange, by_hand, atol=1e-12)
    assert {name: round(float(x), 9) for name, x in gradient.items()} == {"m": 0.0, "I": 0.0, "a": 1.69}
    about_P = names["about_P"]
    assert_close(alpha, np.linalg.solve(about_P, -np.cross(names["w"], about_P @ names["w"])), atol=1e-12)
    assert force.shape == (3,)
