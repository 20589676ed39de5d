"""Exported functions in CasADi: values, derivatives, sparsity, and a plan by IPOPT."""

import casadi
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import cart_pole, scara, spatial_chain, unicycle

from ..helpers import assert_close, falling, long, pendulum


def loaded(folder, what, *given, **options):
    paths = ukjax.export(*given, out=folder, to="casadi", what=what, name="it", **options)
    assert [x.name for x in paths] == [f"it_{name}.casadi" for name in what]
    return [casadi.Function.load(str(x)) for x in paths]


@pytest.mark.parametrize(
    "case",
    [scara.scenario, unicycle.scenario, long(spatial_chain.scenario)],
    ids=["scara", "unicycle", "spatial_chain"],
)
def test_values_and_slopes_are_ours(tmp_path, case):
    scenario = case()
    given = scenario.mechanism, scenario.q0, scenario.v0
    acceleration, jacobian = loaded(tmp_path, ["acceleration", "jacobian"], *given, servo=scenario.servo)
    handle = ukjax.compile(scenario.mechanism, servo=scenario.servo, what=("acceleration", "jacobian"))
    q, v, t = np.asarray(scenario.q0), np.asarray(scenario.v0), 0.3
    a, J = handle(q, v, t)
    assert handle.certain
    found, certain = acceleration(q, v, t)
    assert certain == 1
    assert_close(np.asarray(found)[:, 0], a, rtol=1e-9, atol=1e-9)
    found, _ = jacobian(q, v, t)
    assert_close(np.asarray(found)[:, 0].reshape(J.shape), J, rtol=1e-7, atol=1e-7)
    by_q, by_v = acceleration.jacobian()(q, v, t, 0, 0)[:2]
    assert_close(np.concatenate([np.asarray(by_q), np.asarray(by_v)], axis=1), J, rtol=1e-7, atol=1e-7)


def test_zeros_of_a_slope_are_known(tmp_path):
    """Bodies that do not touch each other."""
    masses = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(8), lambda q, v, t: -jnp.sin(q) - v**3))
    (acceleration,) = loaded(tmp_path, ["acceleration"], masses, np.zeros(8), np.zeros(8))
    assert acceleration.jacobian().sparsity_out(0).nnz() == 8


def test_the_last_result_says_whether_the_others_are_certain(tmp_path):
    two = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]]))
    (acceleration,) = loaded(tmp_path, ["acceleration"], ukjax.Mechanism(pendulum().system, two), [0.6, -0.8], [0.0, 0])
    for t, want in ((0.0, 1), (1.0 - 1e-5, 0)):
        assert acceleration([0.6, -0.8], [0.8, 0.6], t)[1] == want


def test_parameters_are_symbols(tmp_path):
    """The slope of a fall by gravity."""
    (acceleration,) = loaded(
        tmp_path, ["acceleration"], ukjax.Mechanism(falling()), np.zeros(2), np.zeros(2), parameters=["system_g"]
    )
    assert acceleration.name_in() == ["q", "v", "t", "p"]
    slope = acceleration.jacobian()([0.0, 0.0], [0.0, 0.0], 0.0, 9.81, 0, 0)[3]
    assert_close(np.asarray(slope)[:, 0], [0.0, -1.0], atol=1e-14)


def test_what_casadi_has_not(tmp_path):
    force = lambda q, v, t: q * jnp.asarray(jnp.asarray(10.0 * q[0], int) // 3, float)
    with pytest.raises(ValueError, match="cannot be exported to CasADi: convert_element_type of int64"):
        loaded(
            tmp_path,
            ["acceleration"],
            ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), force)),
            [0.0, 0],
            [0.0, 0],
        )
    assert not list(tmp_path.iterdir())


def test_without_casadi(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "ukjax\[casadi\]"'):
        ukjax.export(pendulum(), [0.6, -0.8], [0.0, 0.0], out=tmp_path, to="casadi")


@pytest.mark.long
def test_ipopt_finds_the_plan_that_ukjax_finds(tmp_path):
    """A cart moves by half a metre, and its pendulum hangs still at the end, with the least effort."""
    mechanism, push, K, T = ukjax.Mechanism(cart_pole.CartPole()), np.array(cart_pole.ON_CART), 10, 2.0
    law = ukjax.Feedback(lambda q, v, t: jnp.zeros(1, q.dtype), push)
    (step,) = loaded(tmp_path, ["plant_step"], mechanism, np.zeros(2), np.zeros(2), servo=law)
    u = casadi.SX.sym("u", K)
    q, v = casadi.DM.zeros(2), casadi.DM.zeros(2)
    for k in range(K):
        for _ in range(10):
            q, v, _ = step(q, v, 0.0, u[k], T / K / 10)
    ends = casadi.vertcat(q - casadi.DM([0.5, 0.0]), v)
    problem = {"x": u, "f": T / K * casadi.sumsqr(u), "g": ends}
    silent = {"ipopt.print_level": 0, "print_time": False, "ipopt.tol": 1e-12}
    found = casadi.nlpsol("plan", "ipopt", problem, silent)(x0=np.zeros(K), lbg=0.0, ubg=0.0)
    goal = (jnp.array([0.5, 0.0]), jnp.zeros(2))
    ours = ukjax.plan(
        mechanism, push, np.zeros(2), np.zeros(2), goal, T, curve="constant", points=K, progress=False, atol=1e-5
    )
    assert float(found["f"]) == pytest.approx(float(ours.cost), rel=1e-5)
    assert_close(np.asarray(found["x"])[:, 0], np.asarray(ours.curve.points)[:, 0], atol=1e-3)
