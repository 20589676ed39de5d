"""Planned motions against closed forms of optimal control."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, assert_gradients, long, pendulum
from ..inside import Curve


ONE = np.array([[1.0]])
MASS = ukjax.Mechanism(ukjax.System(lambda q, t: 2.0 * jnp.eye(1), lambda q, v, t: jnp.zeros(1)))
QUIET = {"progress": False}


@pytest.mark.parametrize("kind", ["constant", "linear", "cubic"])
def test_curves_and_their_effort(kind):
    """The basis is one in sum, stays within its control points, and its effort is the integral."""
    points = jnp.asarray(np.random.default_rng(1).normal(size=(7, 2)))
    curve = Curve(points, jnp.asarray(0.5), jnp.asarray(3.0), kind)
    s = np.linspace(0.5, 3.5, 20_001)
    u = jax.vmap(curve)(jnp.asarray(s))
    ones = Curve(jnp.ones((7, 1)), jnp.asarray(0.5), jnp.asarray(3.0), kind)
    assert_close(jax.vmap(ones)(jnp.asarray(s))[:, 0], jnp.ones(len(s)), atol=1e-12)
    assert float(jnp.max(u)) <= float(jnp.max(points)) + 1e-12
    weights = np.array([1.0, 2.0])
    numeric = np.trapezoid(np.asarray(u) ** 2 @ weights, s)
    assert float(curve.effort(jnp.asarray(weights))) == pytest.approx(numeric, rel=1e-3)
    if kind == "cubic":
        assert_gradients(
            lambda x: jnp.sum(Curve(x["z"], jnp.zeros(()), x["T"], kind)(0.7)), {"z": points, "T": curve.duration}
        )


@pytest.mark.long
@pytest.mark.parametrize(("segments", "search"), [long(4, "newton"), long(4, "slsqp"), (1, "slsqp"), long(1, "newton")])
def test_the_least_effort_of_a_mass(segments, search):
    """From rest to rest over d in T: u is linear in time, and the effort 12 m^2 d^2 / T^3."""
    got = ukjax.plan(MASS, ONE, [0.0], [0.0], ([1.5], [0.0]), 2.0, points=6, segments=segments, search=search, **QUIET)
    assert got.success
    assert got.cost == pytest.approx(12 * 4.0 * 1.5**2 / 8.0, rel=1e-6)
    s = jnp.linspace(0.0, 2.0, 9)
    assert_close(jax.vmap(got.curve)(s)[:, 0], 6 * 2.0 * 1.5 / 4.0 * (1 - s), atol=1e-4)
    assert np.max(np.abs(got.missed)) < 1e-6
    run = ukjax.simulate(MASS, [0.0], [0.0], s, servo=got.controller())
    assert_close(run.q[-1], jnp.array([1.5]), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("search", ["slsqp", "newton"])
def test_the_least_time_of_a_mass(search):
    """Bang-bang: T = 2 (m d / limit)^(1/2)."""
    got = ukjax.plan(
        MASS, ONE, [0.0], [0.0], ([1.0], [0.0]), (0.5, 2.0, 5.0), cost="time", limits=(-4.0, 4.0), curve="constant",
        points=16, search=search, **QUIET,
    )  # fmt: skip
    assert got.success
    assert got.cost == pytest.approx(2 * np.sqrt(2.0 * 1.0 / 4.0), rel=1e-6)
    assert float(jnp.max(jnp.abs(got.trajectory.control))) <= 4.0 + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("search", ["slsqp", "newton"])
def test_limits_of_the_path_and_a_goal_of_ones_own(search):
    """The speed is limited: a trapezoid, which needs more effort."""
    slow = ukjax.plan(
        MASS, ONE, [0.0], [0.0], lambda q, v: jnp.concatenate([q - 1.5, v]), 2.0, points=14,
        path=lambda q, v, t: 0.9 - v, segments=4, search=search, **QUIET,
    )  # fmt: skip
    assert slow.success
    assert float(jnp.max(slow.trajectory.v)) < 0.91
    assert slow.cost > 1.05 * 12 * 4.0 * 1.5**2 / 8.0


@pytest.mark.long
@pytest.mark.parametrize(("copies", "search"), [(1, "slsqp"), (2, "slsqp"), (2, "newton")])
def test_on_constraints_and_with_redundant_rows(copies, search):
    """A pendulum in Cartesian coordinates is brought to rest elsewhere, and stays on its circle."""
    there = jnp.array([np.sin(0.5), -np.cos(0.5)])
    got = ukjax.plan(
        pendulum(copies), np.eye(2), [0.0, -1.0], [0.0, 0.0], (there, jnp.zeros(2)), 1.0, points=6, segments=3,
        search=search, **QUIET,
    )  # fmt: skip
    assert got.success
    if search == "newton":
        assert "came to a minimum" in got.message
        assert got.simulations < 20  # with a wrong curvature, or first states that wander off their circle, hundreds
    assert_close(got.trajectory.q[-1], there, atol=2e-4)
    assert float(jnp.max(got.trajectory.position_residual)) < 1e-9


FAR = {
    "mechanism": MASS, "actuation": ONE, "q0": [0.0], "v0": [0.0], "goal": ([100.0], [0.0]), "duration": 1.0,
    "points": 6, "limits": (-1.0, 1.0), "segments": 4, "steps": 5,
}  # fmt: skip


@pytest.mark.long
def test_no_way_is_told():
    with pytest.raises(RuntimeError, match="No start reaches the goal: it is missed by"):
        ukjax.plan(
            MASS, ONE, [0.0], [0.0], ([100.0], [0.0]), 1.0, points=5, limits=(-1.0, 1.0), segments=2, steps=5, **QUIET
        )
    failed = ukjax.plan(
        MASS, ONE, [0.0], [0.0], ([100.0], [0.0]), 1.0, points=5, limits=(-1.0, 1.0), segments=2, steps=5, throw=False,
        **QUIET,
    )  # fmt: skip
    assert not failed.success
    assert np.all(np.isnan(failed.costs))
    with pytest.raises(RuntimeError, match="No start stays within limits: the goal is reached, but path"):
        ukjax.plan(
            MASS, ONE, [0.0], [0.0], ([1.0], [0.0]), 1.0, points=5, path=lambda q, v, t: 0.5 - t[None], segments=2,
            search="newton", steps=5, **QUIET,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"curve": "quintic"}, ValueError, "curve must be one of 'constant', 'linear', 'cubic'"),
        ({"search": "bfgs"}, ValueError, "search must be one of 'slsqp', 'newton'"),
        ({"goal": lambda q, v: q / 0.0}, ValueError, "goal\\(q, v\\) must be finite, but is .nan. at q0, v0"),
        ({"path": lambda q, v, t: q - 0.5}, ValueError, "must not be negative on the way, but is .-0.5. at q0, v0"),
        ({"path": lambda q, v, t: q / 0.0}, ValueError, "path\\(q, v, t\\) must be finite"),
        ({"points": 3}, ValueError, "points must be at least 4 for a cubic curve"),
        ({"cost": "fuel"}, ValueError, 'cost must be "effort" or "time"'),
        ({"cost": "time"}, ValueError, 'cost="time" needs limits, and a duration that is free'),
        ({"duration": (1.0, 3.0, 2.0)}, ValueError, "in this order"),
        ({"duration": 0.0}, ValueError, "duration must be positive"),
        ({"goal": 3}, TypeError, "goal must be a pair"),
        ({"goal": ([1.0, 2.0], [0.0, 0.0])}, ValueError, "q of the goal must have shape"),
        ({"goal": ([np.nan], [0.0])}, ValueError, "q of the goal must be finite"),
        ({"guess": np.zeros((2, 2))}, ValueError, "guess must have shape"),
        ({"guess": 9 * np.ones((16, 1)), "limits": (-1.0, 1.0)}, ValueError, "guess must lie within limits"),
        ({"weights": [-1.0]}, ValueError, "weights must be positive"),
        ({"rtol": -1.0}, ValueError, "rtol must be positive"),
        (
            {"mechanism": pendulum(), "actuation": np.eye(2), "q0": [0.0, -2.0], "v0": [0.0, 0.0]},
            ValueError,
            "q0, v0 must be on the constraints",
        ),
        (
            {
                "mechanism": pendulum(),
                "actuation": np.eye(2),
                "q0": [0.0, -1.0],
                "v0": [0.0, 0.0],
                "goal": ([0.0, -2.0], [0.0, 0.0]),
            },
            ValueError,
            "goal must be on the constraints",
        ),
        ({"weights": [1.0, 2.0]}, ValueError, "weights must return an array of shape"),
        ({"actuation": [1.0]}, ValueError, "actuation must have shape"),
        ({"q0": [np.nan]}, ValueError, "q0 must be finite"),
        ({"segments": 0}, ValueError, "segments must be a positive integer"),
        ({"mechanism": 3}, TypeError, "mechanism must be an instance of Mechanism"),
    ],
)
def test_bad_arguments(change, error, message):
    given = {"mechanism": MASS, "actuation": ONE, "q0": [0.0], "v0": [0.0], "goal": ([1.0], [0.0]), "duration": 1.0}
    with pytest.raises(error, match=message):
        ukjax.plan(**{**given, **change}, **QUIET)
