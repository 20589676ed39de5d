"""Equilibria and steady motions against closed forms and SciPy's minimisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import ukjax
from models import cart_pole, n_pendulum, rolling_disc, rotating_hoop
from tests.helpers import assert_close, assert_gradients, long, pendulum


def catenary(N, end, L, weight):
    """Angles (N,) of equal rods between the origin and `end` by statics, with SciPy's root finder.

    H, V: horizontal and vertical force in the chain. What a rod's ends take of it has no moment about its middle:
    tan(phi_i) = (V + (i + 1/2) weight) / H.
    """
    angles = lambda H, V: np.arctan2(V + (np.arange(N) + 0.5) * weight, H)
    gap = lambda x: L * np.array([np.cos(angles(*x)).sum(), np.sin(angles(*x)).sum()]) - end
    found = scipy.optimize.root(gap, [N * weight / 4, -N * weight / 2], method="hybr", tol=1e-14)
    assert np.max(np.abs(gap(found.x))) < 1e-11
    return angles(*found.x)


@pytest.mark.long
@pytest.mark.parametrize("N", [5, long(20)])
def test_a_hanging_closed_chain(N):
    scenario = n_pendulum.closed(N)
    model = scenario.mechanism.system
    found = ukjax.analysis.equilibrium(scenario.mechanism, scenario.q0)
    want = catenary(N, np.asarray(model.end), float(model.L[0]), float(model.m[0] * model.g))
    q, v = model.state(jnp.asarray(want), jnp.zeros(N))
    assert_close(found.q, q, atol=1e-9)
    assert_close(found.v, v)
    assert int(found.freedom) == 0
    lowest = scipy.optimize.minimize(  # and of all shapes nearby it is the lowest
        lambda q: float(jnp.sum(q[1::3])), np.asarray(scenario.q0), jac=lambda q: np.eye(3 * N)[1::3].sum(0),
        constraints=[{"type": "eq", "fun": lambda q: np.asarray(model.joints(jnp.asarray(q), 0.0))}], method="SLSQP",
        options={"maxiter": 200},
    )  # fmt: skip
    assert float(jnp.sum(found.q[1::3])) == pytest.approx(lowest.fun, abs=1e-6)


def spring_mechanism(k, l0=0.6):
    """A pendulum of 1 m and 2 kg, its tip held to (1, 0) by a spring."""
    anchor = jnp.array([1.0, 0.0])

    def force(q, v, t):
        away = q - anchor
        length = jnp.sqrt(away @ away)
        return 2.0 * jnp.array([0.0, -9.81]) - k * (length - l0) * away / length

    system = ukjax.System(lambda q, t: 2.0 * jnp.eye(2), force)
    return ukjax.Mechanism(system, [ukjax.Holonomic(lambda q, t: jnp.stack([q @ q - 1.0]))] * 2)


@pytest.mark.long
def test_a_spring_mechanism_and_how_it_changes_with_the_spring():
    def energy(angle, k):
        tip = np.array([np.sin(angle), -np.cos(angle)])
        return 2.0 * 9.81 * tip[1] + k / 2 * (np.linalg.norm(tip - [1.0, 0.0]) - 0.6) ** 2

    k = 30.0
    best = scipy.optimize.minimize_scalar(
        lambda a: energy(a, k), bounds=(0.0, 1.5), method="bounded", options={"xatol": 1e-13}
    )
    found = ukjax.analysis.equilibrium(spring_mechanism(k), jnp.array([0.3, -0.9]))
    root = scipy.optimize.brentq(
        lambda a: (energy(a + 1e-4, k) - energy(a - 1e-4, k)) / 2e-4, best.x - 0.1, best.x + 0.1, xtol=1e-13
    )
    assert float(jnp.arctan2(found.q[0], -found.q[1])) == pytest.approx(root, abs=1e-7)
    # By the moment about the pivot: the closed form of the condition.
    q, anchor = np.asarray(found.q), np.array([1.0, 0.0])
    away = q - anchor
    pull = -k * (np.linalg.norm(away) - 0.6) * away / np.linalg.norm(away) + [0.0, -2 * 9.81]
    assert abs(q[0] * pull[1] - q[1] * pull[0]) < 1e-9
    assert int(found.freedom) == 0
    assert_gradients(
        lambda k: ukjax.analysis.equilibrium(spring_mechanism(k), jnp.array([0.3, -0.9])).q[0], jnp.asarray(k)
    )


@pytest.mark.parametrize("W", [long(2.0), long(5.0)])
def test_a_bead_on_a_turning_hoop_on_both_sides_of_the_bifurcation(W):
    scenario = rotating_hoop.scenario(W=W, theta=0.9 if W > 3.2 else 0.3)
    model = scenario.mechanism.system
    angle = lambda q, v, t: jnp.stack(jax.jvp(model.theta, (q, t), (v, jnp.ones(()))))
    found = ukjax.analysis.equilibrium(scenario.mechanism, scenario.q0, scenario.v0, constant=angle)
    assert float(model.theta(found.q, 0.0)) == pytest.approx(rotating_hoop.equilibrium(W=W), abs=1e-9)
    # It stays there as the hoop turns.
    run = ukjax.simulate(
        scenario.mechanism, found.q, found.v, jnp.linspace(0.0, 1.0, 5), projection=ukjax.Projection(), keep=("q",)
    )
    angles = jax.vmap(model.theta)(run.q, run.t)
    assert_close(angles, jnp.full_like(angles, angles[0]), atol=1e-7)


@pytest.mark.long
def test_a_disc_rolls_round_a_circle():
    scenario = rolling_disc.scenario()
    model, heading, lean = scenario.mechanism.system, 1.2, 0.4
    q, v = model.state(jnp.asarray(lean), jnp.array([heading, 0.0, 3.0]))
    steady = lambda q, v, t: jnp.concatenate([q[4:5], v[3:]])
    found = ukjax.analysis.equilibrium(scenario.mechanism, q, v, constant=steady, keep={"q": [0, 1, 3, 4, 5], "v": [3]})
    assert float(found.v[5]) == pytest.approx(float(model.circling(jnp.asarray(lean), heading)), abs=1e-9)


def test_inputs_that_hold_a_state():
    model = cart_pole.CartPole()
    mechanism = ukjax.Mechanism(model)
    spring = lambda q, t: jnp.array([[1.0, 0.0], [0.0, 1.0]])
    found = ukjax.analysis.equilibrium(mechanism, jnp.array([0.0, 0.7]), actuation=spring, keep={"q": [0, 1]})
    q, v, u = found
    assert_close(u, jnp.array([0.0, 0.2 * 0.5 * 9.81 * np.sin(0.7)]), atol=1e-9)
    assert_close(q, jnp.array([0.0, 0.7]))
    assert_close(v, jnp.zeros(2))
    # Without being kept the cart may be anywhere: one of many.
    assert int(ukjax.analysis.equilibrium(mechanism, jnp.array([0.2, 0.1])).freedom) == 1
    assert "One of many" in str(ukjax.analysis.equilibrium(mechanism, jnp.array([0.2, 0.1])))


def test_it_can_be_differentiated_once_and_says_so():
    found = lambda k: jnp.sum(ukjax.analysis.equilibrium(spring_mechanism(k), jnp.array([0.3, -0.95])).q)
    with pytest.raises(Exception, match="equilibrium can be differentiated once only"):
        jax.hessian(found)(jnp.asarray(40.0))


@pytest.mark.long
def test_in_a_batch_and_compiled():
    stiffness = jnp.array([10.0, 30.0, 90.0])
    each = jax.jit(
        jax.vmap(lambda k: ukjax.analysis.equilibrium(spring_mechanism(k), jnp.array([0.3, -0.9]), throw=False).q)
    )
    batch = each(stiffness)
    for k, q in zip(stiffness, batch, strict=True):
        assert_close(q, ukjax.analysis.equilibrium(spring_mechanism(k), jnp.array([0.3, -0.9])).q, atol=1e-9)


def test_where_there_is_none():
    free = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81])))
    with pytest.raises(RuntimeError, match="No equilibrium was found"):
        ukjax.analysis.equilibrium(free, jnp.zeros(2))
    broken = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, jnp.nan])))
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        ukjax.analysis.equilibrium(broken, jnp.zeros(2))
    failed = ukjax.analysis.equilibrium(free, jnp.zeros(2), throw=False)
    assert np.all(np.isnan(failed.q))
    assert str(failed) == "No equilibrium was found."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": [0.0, -1.0], "v": [1.0, 0.0]}, "v must be zero where everything is to rest"),
        ({"q": [0.0, -1.0], "keep": {"q": [0, 1]}}, "keep keeps everything"),
        ({"q": [0.0, -1.0], "keep": {"q": [2]}}, "keep"),
        ({"q": [0.0, -1.0], "u": [1.0]}, "u has no effect without an actuation"),
        ({"q": [0.0, -1.0], "actuation": [[1.0], [0.0]], "u": [1.0, 2.0]}, "u must return an array of shape"),
        ({"q": [0.0, np.nan]}, "q must be finite"),
        ({"q": [0.0, -1.0], "keep": {"u": [3]}}, r"keep\[\"u\"\] must hold indices below 0, the number of inputs"),
        ({"q": [0.0, -1.0], "atol": "small"}, "atol must be a number"),
        ({"q": [0.0, -1.0], "max_steps": 0}, "max_steps must be a positive integer"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ukjax.analysis.equilibrium(pendulum(), **arguments)
    with pytest.raises(TypeError, match="mechanism must be an instance of Mechanism"):
        ukjax.analysis.equilibrium("pendulum", [0.0, -1.0])
    with pytest.raises(TypeError, match="constant must be a function"):
        ukjax.analysis.equilibrium(pendulum(), [0.0, -1.0], constant=3)
