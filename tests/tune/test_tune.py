"""Tuning by gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ukjax

from ..helpers import assert_close, falling, long, rod, standard_promotion
from ..inside import interrupted_tuning


@pytest.fixture(autouse=True)
def promotion():
    with standard_promotion():
        yield


def bowl(p):
    return jnp.sum((p["x"] - 3.0) ** 2) + (p["y"] + 1.0) ** 2


START = {"x": jnp.zeros(2), "y": 0.5, "name": "kept", "count": 3}


def test_finds_the_minimum_and_keeps_the_history():
    got = ukjax.tune(bowl, START, optax.adam(0.3), 200, progress=False)
    assert_close(got.params["x"], jnp.full(2, 3.0), atol=1e-3)
    assert_close(got.params["y"], jnp.asarray(-1.0), atol=1e-3)
    assert (got.params["name"], got.params["count"]) == ("kept", 3)
    assert got.losses.shape == got.gradient_norms.shape == (201,)
    assert got.history["x"].shape == (201, 2)
    assert got.losses[0] == bowl(START)
    assert_close(got.gradient_norms[0], np.sqrt(2 * 36.0 + 9.0), atol=1e-12)
    assert got.loss == got.losses.min() == got.losses[got.step]
    assert got.stopped == ""


def test_keeps_the_best_not_the_last():
    got = ukjax.tune(lambda x: jnp.sum(x**2), jnp.ones(2), optax.sgd(1.5), 5, progress=False)  # diverges
    assert got.step == 0
    assert_close(got.params, jnp.ones(2))


@pytest.mark.long
def test_through_a_trajectory_with_a_mechanism_as_parameter():
    # The length of a pendulum from where it is after half a second.
    ts = jnp.linspace(0.0, 0.5, 6)

    def path(mechanism):
        length = mechanism.constraints[0].phi.length
        return ukjax.simulate(mechanism, jnp.stack([length, 0 * length]), jnp.zeros(2), ts).q

    measured = path(ukjax.Mechanism(falling(), rod(1.2)))
    lengths = lambda m: m.constraints[0].phi.length
    frozen = ukjax.Mechanism(falling(), rod(1.0))

    def loss(log_length):
        return jnp.mean((path(eqx.tree_at(lengths, frozen, jnp.exp(log_length))) - measured) ** 2)

    got = ukjax.tune(loss, jnp.asarray(0.0), optax.adam(0.05), 60, progress=False)
    assert abs(float(jnp.exp(got.params)) - 1.2) < 1e-3


def test_progress_bar(capsys):
    ukjax.tune(bowl, START, optax.sgd(0.1), 3)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss=" in shown
    assert "gradient=" in shown
    ukjax.tune(bowl, START, optax.sgd(0.1), 3, progress=False)
    assert capsys.readouterr().err == ""


def test_a_loss_that_stops_being_finite_is_reported():
    loss = lambda x: jnp.where(x == 1.1, x**2, jnp.nan)  # finite nowhere but at the start
    with pytest.raises(RuntimeError, match="The loss is not finite at step 1. Take smaller steps"):
        ukjax.tune(loss, jnp.asarray(1.1), optax.sgd(1.0), 5, progress=False)
    got = ukjax.tune(loss, jnp.asarray(1.1), optax.sgd(1.0), 5, progress=False, throw=False)
    assert "not finite at step 1" in got.stopped
    assert_close(got.params, jnp.asarray(1.1))
    with pytest.raises(RuntimeError, match="The gradient is not finite at step 0"):
        ukjax.tune(jnp.sqrt, jnp.asarray(0.0), optax.sgd(1.0), 5, progress=False)
    stuck = ukjax.tune(loss, jnp.asarray(1.1), optax.lbfgs(), 5, progress=False)
    assert "not finite at any length of step" in stuck.stopped


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3.0, START, optax.sgd(0.1), 1), TypeError, "loss must be a function"),
        ((bowl, START, 0.1, 1), TypeError, "optimizer must be an optax optimiser"),
        ((bowl, START, optax.sgd(0.1), 0), ValueError, "steps must be an integer of at least 1, but is 0"),
        ((bowl, START, optax.sgd(0.1), 2.0), ValueError, "steps must be an integer"),
        ((lambda p: 0.0, {"n": 3}, optax.sgd(0.1), 1), ValueError, "params must hold at least one floating array"),
        (
            (lambda p: jnp.eye(2), START, optax.sgd(0.1), 1),
            ValueError,
            r"loss\(params\) must return a scalar or residuals",
        ),
        ((bowl, START, ukjax.tuning.LevenbergMarquardt(), 1), ValueError, r"must return residuals of shape \(m,\)"),
    ],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        ukjax.tune(*arguments, progress=False)


def test_compiles_the_loss_once():
    traced = []

    def loss(x):
        traced.append(1)
        return jnp.sum(x**2)

    ukjax.tune(loss, jnp.ones(2), optax.sgd(0.1), 20, progress=False)
    assert len(traced) <= 2  # once for its shape, once to compile
    assert jax.config.jax_enable_x64


def shifted(p, target):
    """Least over all targets at their mean."""
    return jnp.sum((p - target) ** 2)


def shifted_residuals(p, target):
    return p - target


TARGETS = jnp.array([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0], [7.0, 2.0], [4.0, 7.0]])


def test_over_all_samples_at_once():
    got = ukjax.tune(shifted, jnp.zeros(2), optax.sgd(0.2), 60, samples=TARGETS, progress=False)
    assert_close(got.params, jnp.mean(TARGETS, axis=0), atol=1e-6)
    np.testing.assert_array_equal(got.losses, got.full_losses)


def test_minibatches_are_judged_by_all_samples():
    options = {"samples": TARGETS, "batch_size": 2, "progress": False}
    got = ukjax.tune(shifted, jnp.zeros(2), optax.sgd(0.05), 30, seed=3, **options)
    due = np.isfinite(got.full_losses)
    assert np.flatnonzero(due).tolist() == list(range(0, 31, 3))  # three batches an epoch
    assert got.loss == np.nanmin(got.full_losses)
    assert due[got.step]
    assert got.loss == pytest.approx(float(jnp.mean(jnp.sum((got.params[None] - TARGETS) ** 2, axis=1))))
    again = ukjax.tune(shifted, jnp.zeros(2), optax.sgd(0.05), 30, seed=3, **options)
    np.testing.assert_array_equal(got.losses, again.losses)
    other = ukjax.tune(shifted, jnp.zeros(2), optax.sgd(0.05), 30, seed=4, **options)
    assert np.any(got.losses != other.losses)


def test_bounds():
    bounds = ({"x": -1.0, "y": 0.0, "name": None, "count": None}, 2.0)
    got = ukjax.tune(bowl, START, optax.adam(0.3), 50, bounds=bounds, progress=False)
    assert_close(got.params["x"], jnp.full(2, 2.0))
    assert_close(got.params["y"], jnp.asarray(0.0))
    with pytest.raises(ValueError, match=r"y = 0.5 is not within 1.0 and 2.0"):
        ukjax.tune(bowl, START, optax.sgd(0.1), 1, bounds=({**START, "x": -1.0, "y": 1.0}, 2.0))
    with pytest.raises(ValueError, match="bounds must be a pair"):
        ukjax.tune(bowl, START, optax.sgd(0.1), 1, bounds=3.0)
    with pytest.raises(ValueError, match="the lower one does not fit params"):
        ukjax.tune(bowl, START, optax.sgd(0.1), 1, bounds=({"z": 1.0}, 2.0))


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def test_line_searches_are_counted_and_used():
    got = ukjax.tune(rosenbrock, jnp.array([-1.2, 1.0]), optax.lbfgs(), 40, progress=False)
    assert_close(got.params, jnp.ones(2), atol=1e-4)
    assert got.evaluations[0] == 1
    assert np.all(np.diff(got.evaluations) >= 1)
    assert got.evaluations[-1] < 80
    assert_close(got.losses, np.asarray(jax.vmap(rosenbrock)(got.history)), atol=1e-12)
    plain = ukjax.tune(rosenbrock, jnp.array([-1.2, 1.0]), optax.sgd(1e-4), 3, progress=False)
    np.testing.assert_array_equal(plain.evaluations, [1, 2, 3, 4])
    # A step on to a bound is not where the line search ended: the loss is computed there.
    box = ukjax.tune(rosenbrock, jnp.array([-1.2, 0.4]), optax.lbfgs(), 15, bounds=(-1.3, 0.5), progress=False)
    assert_close(box.losses, np.asarray(jax.vmap(rosenbrock)(box.history)), atol=1e-12)
    assert np.max(box.history) <= 0.5


def valley(x):
    return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])  # whose squares are rosenbrock's


def test_least_squares_takes_a_handful_of_steps():
    got = ukjax.tune(valley, jnp.array([-1.2, 1.0]), ukjax.tuning.LevenbergMarquardt(), 20, progress=False)
    assert_close(got.params, jnp.ones(2), atol=1e-8)
    assert_close(got.losses, np.asarray(jax.vmap(rosenbrock)(got.history)), atol=1e-12)
    slopes = np.asarray(jax.vmap(jax.grad(rosenbrock))(got.history))
    assert_close(got.gradient_norms, np.linalg.norm(slopes, axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(got.evaluations, np.arange(1, len(got.losses) + 1))
    assert got.stopped.startswith("Converged: ")
    assert len(got.losses) < 21
    assert got.trials[0] == 0
    assert np.all(np.diff(got.trials) >= 1)
    box = ukjax.tune(
        valley, jnp.array([-1.2, 0.4]), ukjax.tuning.LevenbergMarquardt(), 15, bounds=(-1.3, 0.5), progress=False
    )
    assert np.max(box.history) <= 0.5
    assert_close(box.losses, np.asarray(jax.vmap(rosenbrock)(box.history)), atol=1e-12)


def test_least_squares_over_samples_is_linear_regression():
    rng = np.random.default_rng(4)
    rows, wanted = rng.normal(size=(6, 5, 3)), rng.normal(size=(6, 5))
    residuals = lambda x, sample: sample[0] @ x - sample[1]
    samples = (jnp.asarray(rows), jnp.asarray(wanted))
    optimizer = ukjax.tuning.LevenbergMarquardt(damping=1e-9)
    got = ukjax.tune(residuals, jnp.zeros(3), optimizer, 2, samples=samples, progress=False)
    x, (left,), _, _ = np.linalg.lstsq(rows.reshape(30, 3), wanted.ravel(), rcond=None)
    assert_close(got.params, jnp.asarray(x), atol=1e-8)
    assert_close(got.loss, left / 6, atol=1e-12)
    # Any other optimiser takes the same loss as a mean of squares.
    mean = lambda x, sample: jnp.sum(residuals(x, sample) ** 2)
    of = lambda loss: ukjax.tune(loss, jnp.zeros(3), optax.adam(0.1), 5, samples=samples, progress=False).losses
    assert_close(of(residuals), of(mean), atol=1e-12)


def test_least_squares_steps_around_what_is_not_finite():
    # The full step from 3 would leave where the logarithm is defined; and one parameter changes nothing.
    residuals = lambda x: jnp.stack([jnp.log(x[0])])
    got = ukjax.tune(residuals, jnp.array([5.0, 7.0]), ukjax.tuning.LevenbergMarquardt(1e-3), 10, progress=False)
    assert_close(got.params, jnp.array([1.0, 7.0]), atol=1e-6)
    assert got.trials[1] > 1


@pytest.mark.parametrize("option", [{"damping": 0.0}, {"grow": 1.0}, {"shrink": 1.0}, {"damping": "much"}])
def test_senseless_least_squares_options_are_named(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} must"):
        ukjax.tuning.LevenbergMarquardt(**option)


def test_a_problem_is_tuned_and_says_what_it_is_about():
    problem = ukjax.tuning.TuningProblem(bowl, START, optax.adam(0.3), 5)
    got = problem.tune(progress=False)
    assert set(problem.shown(got.history)) == {"x[0]", "x[1]", "y"}
    named = ukjax.tuning.TuningProblem(
        bowl, START, optax.adam(0.3), 5, quantities={"both [m]": lambda p: jnp.sum(p["x"])}
    )
    assert named.shown(got.history)["both [m]"].shape == (6,)
    with pytest.raises(TypeError, match="loss must be a function"):
        ukjax.tuning.TuningProblem(3, START, optax.adam(0.3), 5)
    with pytest.raises(TypeError, match=r"quantities\['a'\] must be a function"):
        ukjax.tuning.TuningProblem(bowl, START, optax.adam(0.3), 5, quantities={"a": 1})


def test_stops_early():
    got = ukjax.tune(lambda x: jnp.sum(x**2), jnp.ones(2), optax.sgd(1.5), 50, patience=4, progress=False)
    assert got.losses.shape == (5,)
    assert got.step == 0
    assert got.stopped == "No improvement in 4 steps."


@pytest.mark.parametrize(
    ("batch_size", "optimizer"),
    [
        (None, optax.adam(0.3)),
        (2, optax.adam(0.3)),
        long(None, optax.lbfgs(0.01)),
        (2, ukjax.tuning.LevenbergMarquardt(3.0)),
    ],
)
def test_goes_on_after_an_interruption(tmp_path, batch_size, optimizer):
    loss = shifted_residuals if isinstance(optimizer, ukjax.tuning.LevenbergMarquardt) else shifted
    options = {"samples": TARGETS, "batch_size": batch_size, "progress": False}
    want = ukjax.tune(loss, jnp.zeros(2), optimizer, 20, **options)

    class Stop(Exception):
        pass

    file = tmp_path / "state.npz"
    with interrupted_tuning(8, Stop), pytest.raises(Stop):
        ukjax.tune(loss, jnp.zeros(2), optimizer, 20, checkpoint=file, **options)
    got = ukjax.tune(loss, jnp.zeros(2), optimizer, 20, checkpoint=file, **options)
    np.testing.assert_array_equal(got.losses, want.losses)
    np.testing.assert_array_equal(got.history, want.history)
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]
    # More steps than the first time; and once more, with nothing left to do.
    longer = ukjax.tune(loss, jnp.zeros(2), optimizer, 30, checkpoint=file, **options)
    whole = ukjax.tune(loss, jnp.zeros(2), optimizer, 30, **options)
    np.testing.assert_array_equal(longer.losses, whole.losses)
    with pytest.raises(ValueError, match="steps must be at least 30"):
        ukjax.tune(loss, jnp.zeros(2), optimizer, 10, checkpoint=file, **options)
    with pytest.raises(ValueError, match="belongs to another tuning, which differs in loss, params"):
        ukjax.tune(loss, jnp.zeros(3), optimizer, 30, checkpoint=file, progress=False, samples=jnp.ones((2, 3)))


def test_a_senseless_checkpoint_is_named(tmp_path):
    (tmp_path / "text").write_text("no")
    with pytest.raises(ValueError, match="is not a file that ukjax.tune wrote"):
        ukjax.tune(bowl, START, optax.sgd(0.1), 1, checkpoint=tmp_path / "text")
    with pytest.raises(ValueError, match="folder that does not exist"):
        ukjax.tune(bowl, START, optax.sgd(0.1), 1, checkpoint=tmp_path / "no" / "state")


def test_the_history_as_labelled_data():
    data = ukjax.tune(bowl, START, optax.adam(0.3), 5, progress=False).to_dataset()
    assert data.sizes["step"] == 6
    assert data["x"].dims == ("step", "x_dim0")
    assert data["y"].dims == data["loss"].dims == ("step",)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 2}, "batch_size needs samples"),
        ({"batch_size": 9, "samples": TARGETS}, "from 1 to the 5 samples"),
        ({"samples": (TARGETS, jnp.ones(3))}, "one common leading axis"),
        ({"samples": 1.0}, "one common leading axis"),
        ({"patience": 0}, "patience must be an integer of at least 1"),
        ({"seed": 1}, "seed is of the order in which minibatches are drawn"),
    ],
)
def test_senseless_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        ukjax.tune(shifted, jnp.zeros(2), optax.sgd(0.1), 2, **options)
