"""optimistix's solvers in `tune`, one step at a time; and Levenberg and Marquardt's step by QR."""

import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import ukjax

from ..helpers import assert_close, name_of, sampled, standard_promotion


@pytest.fixture(autouse=True)
def promotion():
    with standard_promotion():
        yield


def valley(p):
    """Residuals whose squares are Rosenbrock's function."""
    return jnp.stack([10 * (p["y"] - p["x"] ** 2), 1 - p["x"]])


def rosenbrock(p):
    return jnp.sum(valley(p) ** 2)


START = {"x": jnp.asarray(-1.2), "y": jnp.asarray(1.0)}
MINIMISERS = [optx.BFGS(1e-9, 1e-9), optx.NonlinearCG(1e-9, 1e-9), optx.LBFGS(1e-9, 1e-9)]
LEAST_SQUARES = [optx.LevenbergMarquardt(1e-9, 1e-9), optx.GaussNewton(1e-9, 1e-9), optx.Dogleg(1e-9, 1e-9)]


@pytest.mark.parametrize("solver", sampled([*MINIMISERS, *LEAST_SQUARES], ["BFGS", "LevenbergMarquardt"], name_of))
def test_is_what_optimistix_does_on_its_own(solver):
    squares = solver in LEAST_SQUARES
    with_args = lambda p, args: valley(p) if squares else rosenbrock(p)
    want = (optx.least_squares if squares else optx.minimise)(with_args, solver, START, max_steps=2000)
    got = ukjax.tune(valley if squares else rosenbrock, START, solver, 2000, progress=False)
    assert got.stopped == f"Converged: {name_of(solver)}'s own test is satisfied."
    # It looks once at the start, which is no step here.
    assert len(got.losses) == int(want.stats["num_steps"]) == got.evaluations[-1]
    assert_close(got.history["x"][-1], want.value["x"], atol=1e-12)
    assert_close(got.params["y"], jnp.asarray(1.0), atol=1e-6)
    values = np.array([rosenbrock({"x": x, "y": y}) for x, y in zip(got.history["x"], got.history["y"])])
    assert_close(got.losses, values, atol=1e-12)


def test_without_derivatives():
    got = ukjax.tune(rosenbrock, START, optx.NelderMead(1e-9, 1e-9), 400, progress=False)
    assert got.stopped == "Converged: NelderMead's own test is satisfied."
    assert_close(got.params["x"], jnp.asarray(1.0), atol=1e-6)
    with pytest.raises(ValueError, match="bounds need a solver that tries one point after the other, but NelderMead"):
        ukjax.tune(rosenbrock, START, optx.NelderMead(1e-9, 1e-9), 5, bounds=(-2.0, 2.0))


@pytest.mark.parametrize("solver", [MINIMISERS[0], LEAST_SQUARES[0]], ids=name_of)
def test_within_bounds(solver):
    start = {"x": jnp.asarray(-1.2), "y": jnp.asarray(0.4)}
    loss = valley if solver in LEAST_SQUARES else rosenbrock
    got = ukjax.tune(loss, start, solver, 200, bounds=(-1.3, 0.5), progress=False)
    assert max(np.max(got.history[k]) for k in "xy") <= 0.5
    assert got.loss < 0.3 * got.losses[0]


@pytest.mark.parametrize("solver", [MINIMISERS[0], LEAST_SQUARES[1]], ids=name_of)
def test_goes_on_exactly_after_an_interruption(tmp_path, solver):
    loss = valley if solver in LEAST_SQUARES else rosenbrock
    start = {"x": jnp.asarray(-1.2), "y": jnp.asarray(3.0)}
    file = tmp_path / "state"
    tune = lambda steps, **options: ukjax.tune(loss, start, solver, steps, progress=False, **options)
    want = tune(12)
    tune(2, checkpoint=file)
    got = tune(12, checkpoint=file)
    np.testing.assert_array_equal(got.losses, want.losses)
    np.testing.assert_array_equal(got.history["y"], want.history["y"])
    np.testing.assert_array_equal(got.evaluations, want.evaluations)
    assert got.stopped == want.stopped
    other = optx.NonlinearCG(1e-9, 1e-9)
    with pytest.raises(ValueError, match="belongs to another tuning"):
        ukjax.tune(rosenbrock, start, other, 12, checkpoint=file, progress=False)


def test_patience_and_what_does_not_go_together():
    got = ukjax.tune(rosenbrock, START, optx.GradientDescent(0.5, 1e-9, 1e-9), 50, patience=3, progress=False)
    assert got.stopped == "No improvement in 3 steps."
    with pytest.raises(ValueError, match=r"must return residuals of shape \(m,\) for GaussNewton"):
        ukjax.tune(rosenbrock, START, LEAST_SQUARES[1], 5)
    options = {"samples": jnp.ones(3), "batch_size": 2}
    with pytest.raises(ValueError, match=r"batch_size must be None with optimistix\.BFGS"):
        ukjax.tune(lambda p, s: s * rosenbrock(p), START, MINIMISERS[0], 5, **options)
    with pytest.raises(TypeError, match="optimizer must be an optax optimiser"):
        ukjax.tune(rosenbrock, START, optx.Newton(1e-9, 1e-9), 5)


def test_levenberg_and_marquardts_step_survives_a_condition_number_that_the_normal_equations_do_not():
    """Linear residuals J (x - x*): with hardly any damping one step ends at x*, whatever J is."""
    rng = np.random.default_rng(1)
    (U, _), (V, _) = (np.linalg.qr(rng.normal(size=s)) for s in ((6, 3), (3, 3)))
    J, there = jnp.asarray(U @ np.diag([1.0, 1e-4, 1e-9]) @ V), jnp.asarray(rng.normal(size=3))
    optimizer = ukjax.tuning.LevenbergMarquardt(damping=1e-26)
    got = ukjax.tune(lambda x: J @ x - J @ there, jnp.zeros(3), optimizer, 1, progress=False)
    assert got.trials[-1] == 1
    assert_close(got.params, there, atol=1e-5)  # 1e9 roundings
    normal = np.linalg.solve(np.asarray(J.T @ J + 1e-26 * np.eye(3)), np.asarray(J.T @ (J @ there)))
    assert np.max(np.abs(normal - there)) > 1e-2
