"""Tuning where bounds are active: parameters that belong together end where the projected gradient vanishes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
import pytest
import scipy.optimize

import ukjax

from ..helpers import assert_close, long, standard_promotion


@pytest.fixture(autouse=True)
def promotion():
    with standard_promotion():
        yield


# The squares of the residuals are (x - 3)^2 + (x - 3) (y - 4) + (y - 4)^2.
ROOT = np.linalg.cholesky(np.array([[1.0, 0.5], [0.5, 1.0]])).T


def coupled(p):
    return jnp.asarray(ROOT) @ (jnp.stack([p["x"], p["y"]]) - jnp.array([3.0, 4.0]))


# Bounds of x and y, and the least loss within them: where x is free, 2 (x - 3) + (y - 4) = 0, and likewise for y.
BOXES = {
    "none active": ((-9.0, 9.0), (-9.0, 9.0), (3.0, 4.0)),
    "upper one of y": ((-9.0, 9.0), (-9.0, 3.0), (3.5, 3.0)),
    "lower one of x": ((4.0, 9.0), (-9.0, 9.0), (4.0, 3.5)),
    "both": ((-9.0, 2.0), (-9.0, 1.0), (2.0, 1.0)),
    "both, one of them left again": ((-9.0, 2.5), (4.0, 9.0), (2.5, 4.25)),
    "a corner where one does not hold": ((3.0, 9.0), (-9.0, 4.0), (3.0, 4.0)),
}
OPTIMISERS = {
    "lbfgs": (optax.lbfgs(), 60),
    "BFGS": (optx.BFGS(1e-9, 1e-9), 150),
    "LevenbergMarquardt": (ukjax.tuning.LevenbergMarquardt(), 40),
    "adam": (optax.adam(optax.exponential_decay(0.3, 1, 0.99)), 1500),
    "sgd": (optax.sgd(0.3), 300),
    "backtracking": (optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(20)), 200),
    "lbfgs without a search": (optax.lbfgs(0.3, linesearch=None), 400),
    "optimistix's LBFGS": (optx.LBFGS(1e-9, 1e-9), 200),
    "NonlinearCG": (optx.NonlinearCG(1e-9, 1e-9), 400),
    "optimistix's LevenbergMarquardt": (optx.LevenbergMarquardt(1e-9, 1e-9), 100),
    "GaussNewton": (optx.GaussNewton(1e-9, 1e-9), 50),
    "Dogleg": (optx.Dogleg(1e-9, 1e-9), 50),
}
ONE, LEFT = "upper one of y", "both, one of them left again"
SHORT = {("lbfgs", ONE), ("lbfgs", LEFT), ("BFGS", ONE), ("LevenbergMarquardt", ONE), ("adam", ONE), ("sgd", LEFT)}
EACH = [pytest.param(*x, marks=[] if x in SHORT else pytest.mark.long) for x in itertools.product(OPTIMISERS, BOXES)]


def of_kind(optimizer, residuals):
    """The residuals for least squares, or the sum of their squares."""
    squares = isinstance(optimizer, ukjax.tuning.LevenbergMarquardt | optx.AbstractLeastSquaresSolver)
    return residuals if squares else lambda *args: jnp.sum(residuals(*args) ** 2)


@pytest.mark.parametrize(("name", "case"), EACH)
def test_coupled_parameters_with_active_bounds(name, case):
    (optimizer, steps), (of_x, of_y, right) = OPTIMISERS[name], BOXES[case]
    low, high = ({"x": of_x[i], "y": of_y[i]} for i in (0, 1))
    start = {"x": jnp.clip(jnp.asarray(-1.0), *of_x), "y": jnp.clip(jnp.asarray(5.0), *of_y)}
    got = ukjax.tune(of_kind(optimizer, coupled), start, optimizer, steps, bounds=(low, high), progress=False)
    found = np.stack([got.params["x"], got.params["y"]])
    assert_close(found, np.array(right), atol=1e-4)
    assert np.all(found >= [of_x[0], of_y[0]])
    assert np.all(found <= [of_x[1], of_y[1]])
    assert name == "adam" or got.stopped.startswith("Converged: ")


@pytest.mark.parametrize("name", ["LevenbergMarquardt", *(long(name, id=name) for name in ("lbfgs", "BFGS", "Dogleg"))])
def test_several_active_bounds_against_scipy(name):
    """Linear least squares in a box by active sets; in five units that differ by up to a million."""
    rng = np.random.default_rng(3)
    optimizer, steps = OPTIMISERS[name]
    loss = of_kind(optimizer, lambda p, J, r: J @ p - r)
    units = np.array([1.0, 10.0, 0.1, 1.0, 1.0]) if name in ("lbfgs", "BFGS") else np.logspace(-3, 3, 5)
    active = 0
    for _ in range(6):
        J, r = rng.normal(size=(7, 5)) / units, 2 * rng.normal(size=7)
        low, high = -rng.uniform(0.1, 1.0, 5) * units, rng.uniform(0.1, 1.0, 5) * units
        want = scipy.optimize.lsq_linear(J, r, (low, high), method="bvls", tol=1e-14).x
        active += np.sum((want == low) | (want == high))
        start = jnp.where(jnp.arange(5) % 2 == 0, low, high)
        matrices = jnp.asarray(J), jnp.asarray(r)
        got = ukjax.tune(
            lambda p, J=matrices[0], r=matrices[1]: loss(p, J, r), start, optimizer, 2 * steps,
            bounds=(jnp.asarray(low), jnp.asarray(high)), progress=False,
        )  # fmt: skip
        assert_close(np.asarray(got.params) / units, want / units, atol=1e-6)
        assert got.stopped.startswith("Converged: ")
    assert active >= 6


@pytest.mark.parametrize("name", ["lbfgs", long("BFGS", id="BFGS"), long("LevenbergMarquardt", id="lm")])
def test_a_valley_that_a_bound_cuts(name):
    """Rosenbrock's function has its least value for y <= 0.5 where 2 (x - 1) = 400 x (0.5 - x^2)."""
    optimizer, _ = OPTIMISERS[name]
    residuals = lambda p: jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])
    got = ukjax.tune(
        of_kind(optimizer, residuals), jnp.array([-1.2, 0.4]), optimizer, 300, bounds=(-2.0, jnp.array([2.0, 0.5])),
        progress=False,
    )  # fmt: skip
    x = scipy.optimize.brentq(lambda x: 2 * (x - 1) - 400 * x * (0.5 - x**2), 0.6, 0.8)
    assert_close(got.params, jnp.array([x, 0.5]), atol=1e-6)
    assert got.stopped.startswith("Converged: ")


def test_a_short_step_is_no_convergence():
    """Steps of 1e-14 satisfy Cauchy's criterion anywhere, without bounds and at one of them."""
    slow, loss = optax.sgd(1e-14), lambda x: jnp.sum((x - jnp.array([3.0, 4.0])) ** 2)
    for options in ({}, {"bounds": (-5.0, 3.5)}):
        got = ukjax.tune(loss, jnp.array([2.0, 3.5]), slow, 8, progress=False, **options)
        assert (len(got.losses), got.stopped) == (9, "")


@pytest.mark.parametrize("name", [long("lbfgs", id="lbfgs"), "BFGS"])
def test_goes_on_within_bounds_after_an_interruption(tmp_path, name):
    optimizer, _ = OPTIMISERS[name]
    loss, start = of_kind(optimizer, coupled), {"x": jnp.asarray(-1.0), "y": jnp.asarray(2.0)}
    tune = lambda steps, **options: ukjax.tune(
        loss, start, optimizer, steps, bounds=(-9.0, 3.0), progress=False, **options
    )
    want = tune(12)
    for steps in (2, 5, 12):
        got = tune(steps, checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(got.losses, want.losses)
    np.testing.assert_array_equal(got.history["x"], want.history["x"])
    assert got.stopped == want.stopped


def test_bounds_with_samples():
    """The mean over samples is least where it is for their mean, (3, 4)."""
    targets = jnp.array([[2.0, 3.0], [4.0, 5.0], [3.0, 4.0]])
    residuals = lambda p, target: jnp.asarray(ROOT) @ (p - target)
    optimizer, high = ukjax.tuning.LevenbergMarquardt(), jnp.array([9.0, 3.0])
    got = ukjax.tune(residuals, jnp.zeros(2), optimizer, 40, bounds=(-9.0, high), samples=targets, progress=False)
    assert_close(got.params, jnp.array([3.5, 3.0]), atol=1e-6)


def test_the_projected_gradient_vanishes_where_it_says_converged():
    loss = lambda x: jnp.sum((x - 1.0) ** 4) + jnp.sum(x[:-1] * x[1:])
    got = ukjax.tune(loss, jnp.full(4, 0.5), optax.lbfgs(), 80, bounds=(-0.2, 0.9), progress=False)
    x, g = got.params, jax.grad(loss)(got.params)
    free = ~(((x <= -0.2) & (g > 0)) | ((x >= 0.9) & (g < 0)))
    assert got.stopped.startswith("Converged: ")
    assert np.max(np.abs(np.where(free, g, 0.0))) < 1e-6
