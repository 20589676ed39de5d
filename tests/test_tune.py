"""Tuning by gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ukjax

from .helpers import assert_close, falling, rod, standard_promotion


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
    loss = lambda x: jnp.sqrt(x - 1.0)
    with pytest.raises(RuntimeError, match="The loss is not finite at step 1. Take smaller steps"):
        ukjax.tune(loss, jnp.asarray(1.1), optax.sgd(1.0), 5, progress=False)
    got = ukjax.tune(loss, jnp.asarray(1.1), optax.sgd(1.0), 5, progress=False, throw=False)
    assert "not finite at step 1" in got.stopped
    assert_close(got.params, jnp.asarray(1.1))
    with pytest.raises(RuntimeError, match="The gradient is not finite at step 0"):
        ukjax.tune(jnp.sqrt, jnp.asarray(0.0), optax.sgd(1.0), 5, progress=False)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3.0, START, optax.sgd(0.1), 1), TypeError, "loss must be a function"),
        ((bowl, START, 0.1, 1), TypeError, "optimizer must be an optax optimiser"),
        ((bowl, START, optax.sgd(0.1), 0), ValueError, "steps must be an integer of at least 1, but is 0"),
        ((bowl, START, optax.sgd(0.1), 2.0), ValueError, "steps must be an integer"),
        ((lambda p: 0.0, {"n": 3}, optax.sgd(0.1), 1), ValueError, "params must hold at least one floating array"),
        ((lambda p: p["x"], START, optax.sgd(0.1), 1), ValueError, r"loss\(params\) must return a scalar"),
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
