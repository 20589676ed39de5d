"""The general projection method: whichever operator on to the kernel, in whichever levels, the motion is one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, assert_gradients, falling, long, name_of, rod, sampled
from .test_recursive import system_of, terms


KERNELS = (
    ukjax.formulation.OrthogonalProjector(),
    ukjax.formulation.ObliqueProjector(),
    ukjax.formulation.OrthogonalComplement(),
    ukjax.formulation.Orthonormalization(),
)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
one_kernel = pytest.mark.parametrize("kernel", sampled(KERNELS, ["OrthogonalComplement"], name_of))
M, Q, A, b = terms(3)
LEVELS = [(2, 3), *(long(x) for x in (None, (5,), (1,) * 5, (3, 2)))]


@each_kernel
def test_each_operator_spans_the_kernel(kernel):
    """Proposition 3.1: A S = 0, and the rank of S is that of the kernel; with dependent rows as well."""
    S = np.asarray(jax.jit(lambda A: kernel.onto(A, ukjax.SVD()))(jnp.asarray(A)))
    assert np.max(np.abs(A @ S)) < 1e-12 * np.max(np.abs(A))
    assert np.linalg.matrix_rank(S, tol=1e-8) == 3
    idempotent, symmetric = np.allclose(S @ S, S, atol=1e-11), np.allclose(S, S.T, atol=1e-11)
    assert (idempotent, symmetric) == {
        "OrthogonalProjector": (True, True),
        "ObliqueProjector": (True, False),
        "OrthogonalComplement": (False, False),
        "Orthonormalization": (True, True),
    }[type(kernel).__name__]


@one_kernel
@pytest.mark.parametrize("levels", LEVELS, ids=str)
def test_the_motion_is_that_of_the_equation(kernel, levels):
    """Theorem 3.2; the last two rows of five depend on the others."""
    state = jnp.zeros(6), jnp.zeros(6)
    mechanism = system_of(M, Q, A, b)
    push = lambda q, v, t, ideal: 0.3 * jnp.arange(6.0) - 0.1 * ideal
    for nonideal in (None, push):
        mechanism = ukjax.Mechanism(mechanism.system, mechanism.constraints, nonideal)
        want = ukjax.equation_of_motion(mechanism, *state)
        got = ukjax.equation_of_motion(
            mechanism, *state, formulation=ukjax.formulation.KernelProjection(levels, kernel)
        )
        assert_close(got.acceleration, want.acceleration, atol=1e-10)
        assert_close(got.constraint_force, want.constraint_force, atol=1e-10)
        assert_close(got.nonideal_force, want.nonideal_force, atol=1e-10)
        assert got.rank == want.rank == 3


@one_kernel
def test_singular_mass(kernel):
    """A massless coordinate that the constraints hold; and one that nothing holds, which is reported."""
    massless = np.diag([2.0, 1.0, 0.0])
    rows, right = np.array([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0]]), np.array([0.5, 1.0])
    mechanism = system_of(massless, np.array([3.0, -1.0, 1.0]), rows, right)
    formulation = ukjax.formulation.KernelProjection((1, 1), kernel)
    got = ukjax.equation_of_motion(mechanism, jnp.zeros(3), jnp.zeros(3), formulation=formulation)
    # x1 moves the mass 2 under the force 3 + 1; x3 = x1 - 0.5.
    assert_close(got.acceleration, jnp.array([2.0, -1.0, 1.5]), atol=1e-12)
    loose = system_of(massless, np.array([3.0, -1.0, 0.0]), rows[:, [0, 2, 1]], right)
    with pytest.raises(RuntimeError, match="not unique"):
        ukjax.equation_of_motion(loose, jnp.zeros(3), jnp.zeros(3), formulation=formulation)


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients(kernel):
    formulation = ukjax.formulation.KernelProjection((2, 3), kernel)
    mix = jnp.array(np.random.default_rng(2).normal(size=(5, 3)))

    def f(x):
        # All five rows from three: the rank stays what it is.
        rows, right = mix @ x["A"], mix @ x["b"]
        L = x["L"]
        terms = ukjax.Terms(L @ L.T + jnp.eye(6), x["Q"], rows, right)
        return jnp.sum(jnp.arange(1.0, 7.0) * formulation.solve(terms).acceleration)

    rng = np.random.default_rng(5)
    shapes = {"A": (3, 6), "b": (3,), "L": (6, 6), "Q": (6,)}
    assert_gradients(f, {k: jnp.asarray(rng.normal(size=s)) for k, s in shapes.items()}, rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_without_constraints_and_along_a_trajectory():
    free = ukjax.equation_of_motion(
        ukjax.Mechanism(falling()), jnp.ones(2), jnp.ones(2), formulation=ukjax.formulation.KernelProjection()
    )
    assert_close(free.acceleration, jnp.array([0.0, -9.81]), atol=1e-12)
    swing = ukjax.Mechanism(falling(), rod(1.0))
    start = jnp.array([1.0, 0.0]), jnp.zeros(2), jnp.linspace(0.0, 1.0, 5)
    formulation = ukjax.formulation.KernelProjection(1, ukjax.formulation.OrthogonalComplement())
    got = ukjax.simulate(swing, *start, formulation=formulation, rtol=1e-10, atol=1e-10)
    want = ukjax.simulate(swing, *start, rtol=1e-10, atol=1e-10)
    assert_close(got.q, want.q, atol=1e-8)


def test_bad_arguments():
    with pytest.raises(TypeError, match="kernel must be such as ukjax.formulation.OrthogonalProjector"):
        ukjax.formulation.KernelProjection(kernel="orthogonal")
    with pytest.raises(ValueError, match="levels must be numbers of rows"):
        ukjax.formulation.KernelProjection((1, 0))
    formulation = ukjax.formulation.KernelProjection((1, 2))
    with pytest.raises(ValueError, match=r"levels must add up to the 5 rows .* add up to 3"):
        ukjax.equation_of_motion(system_of(M, Q, A, b), jnp.zeros(6), jnp.zeros(6), formulation=formulation)
    with pytest.raises(ValueError, match="weight must be positive"):
        ukjax.formulation.ObliqueProjector(weight=[1.0, -1.0])
