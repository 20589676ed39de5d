"""Newton's sequential quadratic programming against known minima; the curvature of a plan against differences."""

import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import pendulum
from ..inside import (
    MotionOptions,
    PlanLimits,
    PlanRequest,
    Point,
    curvature,
    descend,
    given_start,
    independent_rows,
    look,
    problem_of,
)


def minimum(f, g, bend, c, J, bends, met, begin, steps=60):
    """Of f with conditions c, given with slopes and curvatures."""
    point = lambda x: Point(x, f(x), g(x), c(x), J(x), met)
    curved = lambda x, m: bend(x) - np.einsum("i,ijk->jk", m, bends(x))
    x, done, _ = descend(point, curved, np.asarray(begin, float), steps, 1e-12, lambda x: None)
    assert done
    return x


def test_a_published_minimum_with_conditions_of_both_kinds():
    """Hock and Schittkowski (1981), problem 71, its bounds as conditions."""

    def bend(x):
        H = np.zeros((4, 4))
        H[0] = [2 * x[3], x[3], x[3], 2 * x[0] + x[1] + x[2]]
        H[1:3, 3] = x[0]
        return H + H.T - np.diag(np.diag(H))

    def bends(x):
        product = np.array([[0.0 if i == j else np.prod(np.delete(x, [i, j])) for j in range(4)] for i in range(4)])
        return np.concatenate([[2 * np.eye(4)], [product], np.zeros((8, 4, 4))])

    x = minimum(
        f=lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        g=lambda x: np.array(
            [x[3] * (2 * x[0] + x[1] + x[2]), x[0] * x[3], x[0] * x[3] + 1, x[0] * (x[0] + x[1] + x[2])]
        ),
        bend=bend,
        c=lambda x: np.concatenate([[x @ x - 40, np.prod(x) - 25], x - 1, 5 - x]),
        J=lambda x: np.concatenate([[2 * x], [np.prod(x) / x], np.eye(4), -np.eye(4)]),
        bends=bends, met=1, begin=[1.0, 5.0, 5.0, 1.0],
    )  # fmt: skip
    np.testing.assert_allclose(x, [1.0, 4.74299963, 3.82114998, 1.37940829], atol=1e-7)


@pytest.mark.parametrize("copies", [1, 3])
def test_nearest_point_of_an_ellipse_with_repeated_rows(copies):
    """From inside, where the curvature of the model is negative in some directions; multipliers are not unique."""
    D = np.diag([1 / 9, 1.0])
    x = minimum(
        f=lambda x: float(np.sum((x - 2.0) ** 2)), g=lambda x: 2 * (x - 2.0), bend=lambda x: 2 * np.eye(2),
        c=lambda x: np.tile(x @ D @ x - 1, copies), J=lambda x: np.tile(2 * D @ x, (copies, 1)),
        bends=lambda x: np.tile(2 * D, (copies, 1, 1)), met=copies, begin=[-0.5, 0.1],
    )  # fmt: skip
    assert abs(x @ D @ x - 1) < 1e-9
    across = D @ x  # and there the way to the given point is at right angles to the ellipse
    assert abs(across[0] * (2 - x[1]) - across[1] * (2 - x[0])) < 1e-9


def test_no_way_out_is_said():
    """x^2 + 1 = 0 has no root: the search ends, and says that it did not arrive."""
    point = lambda x: Point(x, 0.0, np.zeros(1), x**2 + 1, np.array([2 * x]), 1)
    curved = lambda x, m: -2 * m[0] * np.eye(1)
    _, done, why = descend(point, curved, np.array([0.7]), 50, 1e-9, lambda x: None)
    assert not done
    assert "no way down" in why or "limit" in why


def test_where_there_is_no_slope_it_ends():
    point = lambda x: Point(x, 0.0, np.zeros(1), x, np.array([[np.nan]]), 1)
    _, done, why = descend(point, lambda x, m: np.eye(1), np.ones(1), 9, 1e-9, lambda x: None)
    assert not done
    assert "no slope" in why


@pytest.mark.long
def test_the_curvature_of_a_plan():
    """On constraints with redundant rows, with limits of the path and a free duration, against differences."""
    there = (jnp.array([np.sin(0.5), -np.cos(0.5)]), jnp.zeros(2))
    asked = PlanRequest(
        pendulum(2), np.eye(2), [0.0, -1.0], [0.0, 0.0], there, (0.5, 1.0, 2.0), 0.0, "cubic", 5, "effort", None,
        lambda q, v, t: jnp.stack([5.0 - v @ v, q[1] + 2.0]), 1.0, 3,
        MotionOptions(ukjax.UdwadiaKalaba(), ukjax.Projection(), 1e-11),
    )  # fmt: skip
    problem, box, middle = problem_of(asked)
    x = given_start(None, problem, PlanLimits(problem, box), middle)
    x = x + 0.05 * np.sin(np.arange(len(x)))
    joined = independent_rows(problem, x)
    slopes = lambda x: look(problem, x, joined).J
    weights = np.random.default_rng(0).normal(size=slopes(x).shape[0])
    H = curvature(problem, x, joined, weights)
    np.testing.assert_allclose(H, H.T, atol=1e-9)
    for seed in range(3):
        d, h = np.random.default_rng(seed).normal(size=len(x)), 1e-5
        change = weights @ (slopes(x + h * d) - slopes(x - h * d)) / (2 * h)
        np.testing.assert_allclose(H @ d, change, rtol=0, atol=1e-5 * np.max(np.abs(change)))
