"""The equation of motion at one state: principles of mechanics, independent formulas, gradients, failures."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from scipy.linalg import null_space, sqrtm

import ukjax

from .helpers import (
    assert_close,
    assert_gradients,
    central_difference,
    falling,
    long,
    pendulum,
    random_mechanism,
    random_state,
    rod,
)


motion = jax.jit(ukjax.equation_of_motion, static_argnames="throw")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("copies", [1, 2])
def test_agrees_with_the_literal_formula_and_with_lagrange_multipliers(seed, copies):
    mechanism, (q, v, t) = random_mechanism(seed, copies=copies), random_state(seed)
    got = motion(mechanism, q, v, t)
    terms = mechanism.terms(q, v, t)
    M, Q, A, b = (np.asarray(x) for x in (terms.M, terms.Q, terms.A, terms.b))
    root, a = sqrtm(M), np.linalg.solve(M, Q)
    literal = root @ np.linalg.pinv(A @ np.linalg.inv(root), rcond=1e-10) @ (b - A @ a)
    assert_close(got.constraint_force, literal, atol=1e-11)
    assert_close(got.acceleration, a + np.linalg.solve(M, literal), atol=1e-11)
    assert_close(got.unconstrained_acceleration, a, atol=1e-11)
    m = A.shape[0] // copies  # the multipliers need independent rows
    augmented = np.block([[M, -A[:m].T], [A[:m], np.zeros((m, m))]])
    assert_close(got.acceleration, np.linalg.solve(augmented, np.concatenate([Q, b[:m]]))[:5], atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_dalembert_and_gauss(seed):
    mechanism, (q, v, t) = random_mechanism(seed), random_state(seed)
    got, terms = motion(mechanism, q, v, t), mechanism.terms(q, v, t)
    admissible = null_space(np.asarray(terms.A))
    assert np.max(np.abs(admissible.T @ np.asarray(got.constraint_force))) < 1e-12
    assert float(got.residual) < 1e-12

    zwang = lambda x: (x - got.unconstrained_acceleration) @ terms.M @ (x - got.unconstrained_acceleration)
    least = zwang(got.acceleration)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1.0, 100.0):
        other = got.acceleration + size * admissible @ rng.normal(size=admissible.shape[1])
        assert np.max(np.abs(terms.A @ other - terms.b)) < 1e-11 * max(1.0, size)
        assert zwang(other) > least


def test_duplicated_rows_change_nothing_but_the_redundancy():
    q, v, t = random_state(4)
    once, thrice = (motion(random_mechanism(4, copies=k), q, v, t) for k in (1, 3))
    assert int(once.rank) == int(thrice.rank) == 3
    assert random_mechanism(4, copies=3).terms(q, v, t).b.shape == (9,)
    assert_close(thrice.acceleration, once.acceleration, atol=1e-12)
    assert_close(thrice.constraint_force, once.constraint_force, atol=1e-12)


def test_scaling_and_order_of_rows_change_nothing():
    q, v, t = random_state(5)
    plain = random_mechanism(5)
    phi = plain.constraints[0].phi
    scaled = ukjax.Mechanism(
        plain.system, ukjax.Holonomic(lambda q, t: jnp.array([1e3, 1.0, 1e-2]) * phi(q, t)[jnp.array([2, 0, 1])])
    )
    assert_close(motion(scaled, q, v, t).acceleration, motion(plain, q, v, t).acceleration, atol=1e-10)


def test_no_constraint_and_many_kinds_together():
    q, v = jnp.array([0.1, 0.2, 0.3]), jnp.array([1.0, -1.0, 0.5])
    free = motion(ukjax.Mechanism(falling(n=3)), q, v)
    assert_close(free.acceleration, jnp.array([0.0, 0.0, -9.81]), atol=1e-14)
    assert int(free.rank) == 0
    together = ukjax.Mechanism(
        falling(n=3),
        [
            ukjax.Holonomic(lambda q, t: (q[0] - q[2])[None]),
            ukjax.Nonholonomic(lambda q, v, t: (v[1] - t * v[0])[None]),
            ukjax.AccelerationConstraint(
                lambda q, v, t: jnp.array([[1.0, 0.0, 0.0]]), lambda q, v, t: jnp.array([2.0])
            ),
        ],
    )
    got = motion(together, q, v, jnp.asarray(3.0))
    assert_close(got.acceleration, jnp.array([2.0, 3.0 * 2.0 + 1.0, 2.0]), atol=1e-12)
    assert int(got.rank) == 3


def test_applied_force_and_nonideal_constraint():
    # Block on a horizontal table, pushed along x, with Coulomb friction: m x'' = F - mu m g.
    m, g, mu = 2.0, 9.81, 0.3
    friction = lambda q, v, t, ideal: -mu * jnp.linalg.norm(ideal) * v / jnp.linalg.norm(v)
    table = ukjax.Holonomic(lambda q, t: q[1:])
    block = ukjax.Mechanism(falling(m, g), table, friction)
    got = ukjax.equation_of_motion(block, jnp.zeros(2), jnp.array([1.0, 0.0]), applied=jnp.array([10.0, 0.0]))
    assert_close(got.acceleration, jnp.array([10.0 / m - mu * g, 0.0]), atol=1e-13)
    assert_close(got.constraint_force, jnp.array([0.0, m * g]), atol=1e-13)
    assert_close(got.nonideal_force, jnp.array([-mu * m * g, 0.0]), atol=1e-13)
    # Only its part along admissible directions acts.
    pressing = ukjax.Mechanism(falling(m, g), table, lambda q, v, t, ideal: jnp.array([1.0, 7.0]))
    got = ukjax.equation_of_motion(pressing, jnp.zeros(2), jnp.zeros(2))
    assert_close(got.nonideal_force, jnp.array([1.0, 0.0]), atol=1e-13)


def test_jit_vmap_and_the_loop_agree():
    mechanism = random_mechanism(6)
    states = [random_state(k) for k in range(4)]
    batch = [jnp.stack(x) for x in zip(*states)]
    many = jax.vmap(lambda q, v, t: ukjax.equation_of_motion(mechanism, q, v, t))(*batch)
    for k, state in enumerate(states):
        assert_close(many.acceleration[k], ukjax.equation_of_motion(mechanism, *state).acceleration, atol=1e-12)
        assert_close(many.acceleration[k], motion(mechanism, *state).acceleration, atol=1e-12)


@pytest.mark.parametrize("v", [jnp.zeros(2), jnp.array([0.8, 0.6])], ids=["at rest", "moving"])
@pytest.mark.parametrize("copies", [long(1), 2])
def test_gradients_at_awkward_points(v, copies):
    """M = m I, v = 0, redundant rows: closed form, both modes, and differences."""
    q = jnp.array([0.6, -0.8])
    f = lambda m, g, L: (
        ukjax.equation_of_motion(
            ukjax.Mechanism(falling(m, g), [rod(L, ukjax.Baumgarte(2.0, 3.0))] * copies), q, v, throw=False
        ).acceleration
    )
    # With n = q / |q|: q'' = (I - n n^T) g - n (|v|^2 + 2 (q.v) + 3 (q.q - L^2) / 2) / |q|
    weights = jnp.array([1.0, -2.0])
    assert_gradients(lambda p: weights @ f(*p), (jnp.asarray(2.0), jnp.asarray(9.81), jnp.asarray(1.0)))
    by_m, by_g, by_L = jax.jacrev(f, argnums=(0, 1, 2))(jnp.asarray(2.0), jnp.asarray(9.81), jnp.asarray(1.0))
    assert_close(by_m, jnp.zeros(2), atol=1e-12)
    assert_close(by_g, -(jnp.array([0.0, 1.0]) - q * q[1]), atol=1e-12)
    assert_close(by_L, 3.0 * q, atol=1e-12)


def test_gradient_with_respect_to_the_state_and_second_order():
    mechanism, (q, v, t) = random_mechanism(7), random_state(7)
    f = lambda x: jnp.sum(jnp.sin(motion(mechanism, x[:5], x[5:], t, throw=False).acceleration))
    x = jnp.concatenate([q, v])
    assert_gradients(f, x, atol=1e-7)
    hessian = jax.jit(jax.hessian(f))(x)
    assert_close(hessian, central_difference(jax.jit(jax.grad(f)), x), rtol=1e-5, atol=1e-4)


def test_failures_are_reported_and_the_message_says_whose_fault_it_is():
    q, v = jnp.zeros(2), jnp.zeros(2)
    contradiction = ukjax.Mechanism(
        falling(), [ukjax.Holonomic(lambda q, t: q[:1]), ukjax.Holonomic(lambda q, t: q[:1] - t**2)]
    )
    with pytest.raises(RuntimeError, match="constraints contradict each other.*The model is at fault"):
        ukjax.equation_of_motion(contradiction, q, v)
    got = ukjax.equation_of_motion(contradiction, q, v, throw=False)
    assert_close(got.acceleration, jnp.array([1.0, -9.81]), atol=1e-12)  # least squares, and said so
    assert_close(got.residual, jnp.sqrt(2.0), atol=1e-12)
    assert bool(got.result == ukjax.RESULTS.constraints_contradict)
    with pytest.raises(RuntimeError, match="contradict"):
        jax.jit(lambda q: ukjax.equation_of_motion(contradiction, q, v).acceleration)(q)

    for mass in (-jnp.eye(2), jnp.array([[1.0, 0.2], [0.0, 1.0]])):
        bad = ukjax.Mechanism(ukjax.System(lambda q, t, mass=mass: mass, lambda q, v, t: q))
        with pytest.raises(RuntimeError, match="mass matrix is not symmetric positive definite"):
            ukjax.equation_of_motion(bad, q, v)
    nan = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.sqrt(q - 1)))
    with pytest.raises(RuntimeError, match="NaN or infinity.*function returned a number that is not finite"):
        ukjax.equation_of_motion(nan, q, v)
    nan = ukjax.Mechanism(falling(), nonideal=lambda q, v, t, ideal: v / jnp.linalg.norm(v))
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        ukjax.equation_of_motion(nan, q, v)


def test_consistent_tolerance_is_an_argument():
    nearly = ukjax.Mechanism(
        falling(), [ukjax.Holonomic(lambda q, t: q[:1]), ukjax.Holonomic(lambda q, t: q[:1] - 1e-9 * t**2)]
    )
    at = (jnp.zeros(2), jnp.zeros(2))
    # All terms of these rows are of the size of the contradiction, so relative to them it is large.
    assert bool(ukjax.equation_of_motion(nearly, *at, throw=False).result == ukjax.RESULTS.constraints_contradict)
    loose = ukjax.UdwadiaKalaba(consistency_rtol=2.0)
    assert bool(ukjax.equation_of_motion(nearly, *at, formulation=loose).result == ukjax.RESULTS.successful)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([1.0, 0.0], [0.0]), "q and v must have the same shape"),
        (([[1.0, 0.0]], [[0.0, 0.0]]), r"q must have shape \(n,\), one state per call.*jax.vmap"),
        (([1.0, 0.0], [0.0, 0.0], [0.0, 1.0]), "t must be a scalar"),
        ((["a", "b"], [0.0, 0.0]), "q must be an array of real numbers"),
        (([1j, 0.0], [0.0, 0.0]), "q must be an array of real numbers, but has dtype complex"),
    ],
)
def test_wrong_states(arguments, match):
    with pytest.raises(ValueError, match=match):
        ukjax.equation_of_motion(pendulum(), *arguments)


def test_wrong_kinds():
    with pytest.raises(TypeError, match="mechanism must be an instance of Mechanism"):
        ukjax.equation_of_motion(falling(), [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(TypeError, match="formulation must be an instance of AbstractFormulation.*the class UdwadiaKal"):
        ukjax.equation_of_motion(pendulum(), [0.0, 1.0], [0.0, 0.0], formulation=ukjax.UdwadiaKalaba)
    with pytest.raises(TypeError, match="mechanism must be an instance of Mechanism"):
        ukjax.assemble(falling(), [0.0, 0.0], [0.0, 0.0])


def test_wrong_shapes_of_mass_force_applied_and_nonideal():
    at = (jnp.zeros(2), jnp.zeros(2))
    good = falling()
    force = lambda q, v, t: jnp.zeros(3)
    cases = [
        (ukjax.System(lambda q, t: jnp.eye(3), good.force), r"mass\(q, t\) must return .* \(2, 2\), but .* \(3, 3\)"),
        (
            ukjax.System(good.mass, force),
            r"force\(q, v, t\) must return .* \(2,\), but .* \(3,\)",
        ),
    ]
    for system, match in cases:
        with pytest.raises(ValueError, match=match):
            ukjax.equation_of_motion(ukjax.Mechanism(system), *at)
    with pytest.raises(ValueError, match=r"applied must return|applied must"):
        ukjax.equation_of_motion(ukjax.Mechanism(good), *at, applied=jnp.zeros(3))
    with pytest.raises(ValueError, match="nonideal"):
        ukjax.equation_of_motion(ukjax.Mechanism(good, nonideal=lambda q, v, t, ideal: jnp.zeros(3)), *at)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ukjax.Mechanism(lambda q, t: q), "system must be a ukjax.System"),
        (
            lambda: ukjax.Mechanism(falling(), lambda q, t: q),
            "constraints must be a .*Wrap your function",
        ),
        (lambda: ukjax.Mechanism(falling(), [rod(), 3]), r"constraints\[1\] must be a ukjax.Holonomic.*but is int"),
        (lambda: ukjax.Mechanism(falling(), None), "constraints must be a .*but is NoneType"),
        (lambda: ukjax.Mechanism(falling(), ukjax.Baumgarte(1.0)), "constraints must be a .*but is Baumgarte"),
        (lambda: ukjax.Mechanism(falling(), rod(), nonideal=3), "nonideal must be a function"),
    ],
)
def test_what_is_no_mechanism(make, match):
    with pytest.raises(TypeError, match=match):
        make()


@pytest.mark.long
@pytest.mark.parametrize("size", [5_000, 50_000])
def test_large_batches_of_accelerations_and_gradients_finish(size):
    """In a process of its own, which is given a minute: the failure to catch is one that never returns."""
    code = f"""
import jax, jax.numpy as jnp, ukjax
from models.scara import scenario
jax.config.update("jax_enable_x64", True)
case = scenario("printed")
f = lambda q: jnp.sum(ukjax.equation_of_motion(case.mechanism, q, case.v0, throw=False).acceleration)
q = case.q0 + jnp.linspace(0.0, 0.1, {size})[:, None]
for g in (jax.jit(jax.vmap(f)), jax.jit(jax.vmap(jax.grad(f)))):
    for _ in range(5):
        jax.block_until_ready(g(q))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_force_that_raises_where_it_fails_in_a_batch():
    """As optimistix does, unless told otherwise: what calls Python is no scalar code, and is called where meant."""

    def force(q, v, t):
        squeezed = optx.root_find(lambda x, _: x + x**3 - q, optx.Newton(1e-12, 1e-12), q).value
        return jnp.array([0.0, -9.81]) - squeezed

    mechanism = ukjax.Mechanism(ukjax.System(mass=lambda q, t: jnp.eye(2), force=force), rod(1.0))
    angles = jnp.linspace(-1.0, 1.0, 3)
    q = jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=1)
    got = jax.vmap(lambda q: ukjax.equation_of_motion(mechanism, q, jnp.zeros(2)).acceleration)(q)
    for a, x in zip(got, q, strict=True):
        root = np.array([next(r.real for r in np.roots([1, 0, 1, -c]) if abs(r.imag) < 1e-12) for c in x])
        pull = np.array([0.0, -9.81]) - root
        assert_close(a, pull - (pull @ x) * x, atol=1e-12)
