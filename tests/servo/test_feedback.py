"""Controllers of a person's own: laws, memory, samples; and linear-quadratic regulators."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import ukjax
from models import cart_pole
from ukjax.analysis import linearize

from ..helpers import STATES, assert_close, assert_gradients, falling, pendulum


PUSH = np.array([[1.0], [0.0]])
TS = jnp.linspace(0.0, 2.0, 9)
FREE = ukjax.Mechanism(ukjax.System(lambda q, t: 2.0 * jnp.eye(1), lambda q, v, t: jnp.zeros(1)))
ONE = np.array([[1.0]])


def run(controller, q=(1.0,), v=(0.0,), ts=TS, mechanism=FREE, **options):
    options = {"keep": ("q", "v", "control", "acceleration"), "rtol": 1e-10, "atol": 1e-10, **options}
    return ukjax.simulate(mechanism, jnp.array(q), jnp.array(v), ts, servo=controller, **options)


def transition(A, t):
    return scipy.linalg.expm(np.asarray(A) * float(t))


def test_a_law_of_the_state():
    """A mass of 2 kg on a spring and a damper made by a controller, against its exact solution."""
    got = run(ukjax.Feedback(lambda q, v, t: -8.0 * q - 1.0 * v, ONE))
    A = np.array([[0.0, 1.0], [-4.0, -0.5]])
    want = np.stack([transition(A, t) @ [1.0, 0.0] for t in TS])
    assert_close(got.q[:, 0], want[:, 0], atol=1e-8)
    assert_close(got.v[:, 0], want[:, 1], atol=1e-8)
    assert_close(got.control[:, 0], -8.0 * got.q[:, 0] - got.v[:, 0], atol=1e-12)
    assert_close(2 * got.acceleration, got.control, atol=1e-12)


def test_an_integrator():
    """A state of its own: the integral of the error takes the offset of a constant load away."""
    load = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: jnp.array([-3.0])))
    controller = ukjax.Feedback(
        lambda q, v, t, x: -6.0 * q - 5.0 * v - 4.0 * x, ONE, memory=[0.0], rates=lambda q, v, t, x: q
    )
    got = run(controller, mechanism=load, keep=("q", "memory", "control"))
    A = np.array([[0.0, 1.0, 0.0], [-6.0, -5.0, -4.0], [1.0, 0.0, 0.0]])
    rest = np.linalg.solve(A, [0.0, 3.0, 0.0])
    want = np.stack([rest + transition(A, t) @ (np.array([1.0, 0.0, 0.0]) - rest) for t in TS])
    assert_close(got.q[:, 0], want[:, 0], atol=1e-8)
    assert_close(got.memory[:, 0], want[:, 2], atol=1e-8)
    assert got.to_dataset()["memory"].shape == (9, 1)


@pytest.mark.parametrize("options", [{}, {"stepsize_controller": diffrax.ConstantStepSize(), "dt0": 0.03}])
def test_a_sampled_controller_holds_its_control(options):
    """Against the exact discrete solution, at samples and between."""
    h, gain = 0.1, np.array([3.0, 2.0])
    controller = ukjax.Feedback(lambda q, v, t: -(gain[0] * q + gain[1] * v), ONE, period=h)
    if options:
        options = {**options, "rtol": None, "atol": None}
    got = run(controller, ts=jnp.arange(0.0, 2.01, 0.05), **options)
    A, B = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.5])
    whole = np.zeros((3, 3))
    whole[:2, :2], whole[:2, 2] = A, B
    x, u, want, controls = np.array([1.0, 0.0]), 0.0, [], []
    for i in range(len(got.t)):
        want.append(x)
        if i % 2 == 0:
            u = -gain @ x
        controls.append(u)
        x = (scipy.linalg.expm(whole * 0.05) @ [*x, u])[:2]
    want = np.stack(want)
    assert_close(got.q[:, 0], want[:, 0], atol=1e-9)
    assert_close(got.v[:, 0], want[:, 1], atol=1e-9)
    # At a saved time that is one of a sample the control is that decided there.
    assert_close(got.control[:, 0], np.array(controls), atol=1e-9)


def test_a_delay_and_a_filter_of_samples():
    """The control of a sample acts one period later; a digital filter."""
    h = 0.2
    delayed = ukjax.Feedback(lambda q, v, t, x: -x, ONE, memory=[0.0], update=lambda q, v, t, x: 2.0 * q, period=h)
    got = run(delayed, ts=jnp.arange(0.0, 1.01, h), keep=("q", "memory"))
    q, v, x, want = 1.0, 0.0, 0.0, [1.0]
    for _ in range(5):
        u, x = -x, 2.0 * q
        q, v = q + v * h + u / 2 * h**2 / 2, v + u / 2 * h
        want.append(q)
    assert_close(got.q[:, 0], np.array(want), atol=1e-9)


def test_on_a_closed_mechanism_with_projection_and_limits():
    controller = ukjax.Feedback(lambda q, v, t: -20.0 * v[:1], PUSH, limits=(-1.5, 1.5), period=0.02)
    got = run(
        controller, (0.6, -0.8), (1.6, 1.2), ts=jnp.linspace(0.0, 3.0, 7), mechanism=pendulum(2),
        projection=ukjax.Projection(), keep=(*STATES, "control"),
    )  # fmt: skip
    assert float(jnp.max(got.position_residual)) < 1e-12
    assert float(jnp.max(jnp.abs(got.control))) <= 1.5
    assert float(jnp.linalg.norm(got.v[-1])) < 1.0 < float(jnp.linalg.norm(got.v[0]))


def gains(x, period):
    memory = {"memory": x["memory"], "rates": lambda q, v, t, z: q - z}
    controller = ukjax.Feedback(lambda q, v, t, z: -x["k"] * q - x["d"] * v - z, ONE, period=period, **memory)
    ts = jnp.linspace(0.0, 0.7, 4)
    return ukjax.simulate(
        FREE, x["q"], jnp.zeros(1), ts, servo=controller, keep=("q", "control"), rtol=1e-10, atol=1e-10
    )


@pytest.mark.long
@pytest.mark.parametrize("period", [None, 0.1])
def test_gradients(period):
    x = {"k": jnp.asarray(3.0), "d": jnp.asarray(1.0), "memory": jnp.array([0.3]), "q": jnp.array([1.0])}
    assert_gradients(lambda x: jnp.sum(gains(x, period).q ** 2) + jnp.sum(gains(x, period).control), x)


@pytest.mark.long
def test_in_batches():
    """By vmap and by the batch engine, each with its own gain."""
    gain = jnp.array([2.0, 5.0, 9.0])
    make = lambda k: ukjax.Feedback(lambda q, v, t: -k * q - 2.0 * v, ONE, period=0.1)
    one = lambda k: run(make(k), keep=("q", "control"))
    want = [one(k) for k in gain]
    mapped = jax.jit(jax.vmap(lambda k: run(make(k), keep=("q", "control"), throw=False)))(gain)
    engine = ukjax.simulate_batch(
        FREE, jnp.ones(1), jnp.zeros(1), TS, servo=make, samples=gain, keep=("q", "control"), rtol=1e-10, atol=1e-10,
        progress=False,
    )  # fmt: skip
    for got in (mapped, engine):
        assert_close(got.q, jnp.stack([x.q for x in want]), atol=1e-9)
        assert_close(got.control, jnp.stack([x.control for x in want]), atol=1e-8)


def test_computed_torque_with_a_model_that_is_wrong():
    """The nominal servo's control, computed on a model with the wrong mass, on the true one: an offset remains."""
    wanted = ukjax.Holonomic(lambda q, t: q[:1] - 0.5, ukjax.Baumgarte(8.0, 16.0))
    servo = ukjax.Servo(wanted, PUSH)
    load = lambda m: ukjax.Mechanism(falling(m), ())
    law = lambda q, v, t: ukjax.servo_control(load(1.2), servo, q, v, t, throw=False).u
    got = run(ukjax.Feedback(law, PUSH), (0.0, 0.0), (0.0, 0.0), mechanism=load(1.0))
    A = np.array([[0.0, 1.0], [-1.2 * 16, -1.2 * 8]])
    want = np.stack([0.5 + (transition(A, t) @ [-0.5, 0.0])[0] for t in TS])
    assert_close(got.q[:, 0], want, atol=1e-8)


def test_a_law_that_is_no_number_is_told():
    with pytest.raises(RuntimeError, match=r"NaN or infinity.*\(at t = 0 s\)"):
        run(ukjax.Feedback(lambda q, v, t: q * jnp.nan, ONE))


def upright(period=None):
    mechanism = ukjax.Mechanism(cart_pole.CartPole())
    linear = linearize(mechanism, jnp.array([0.0, np.pi]), actuation=PUSH)
    return mechanism, linear, ukjax.analysis.lqr(linear, jnp.array([1.0, 5.0, 0.1, 0.1]), 0.1, period=period)


def test_a_regulator_is_that_of_python_control():
    import control

    _, linear, regulator = upright()
    Q, R = np.diag([1.0, 5.0, 0.1, 0.1]), np.array([[0.1]])
    K, S, values = control.lqr(np.asarray(linear.A), np.asarray(linear.B), Q, R)
    assert_close(regulator.K, K, atol=1e-8)
    assert_close(regulator.S, S, atol=1e-8)
    assert_close(np.sort(regulator.eigenvalues.real), np.sort(values.real), atol=1e-8)


@pytest.mark.parametrize("period", [None, 0.25])
def test_a_regulator_costs_what_it_says_and_no_other_gain_costs_less(period):
    """The cost from a start, along the closed loop by SciPy, is x^T S x; with samples the control is held between."""
    _, linear, regulator = upright(period)
    A, B, R = np.asarray(linear.A), np.asarray(linear.B), 0.1
    Q, start = np.diag([1.0, 5.0, 0.1, 0.1]), np.array([0.2, -0.1, 0.3, 0.1])

    def spent(K):
        def change(t, y, u):
            x = y[:4]
            u = u if period else -K @ x
            return [*(A @ x + B @ u), x @ Q @ x + R * u @ u]

        y = np.append(start, 0.0)
        for i in range(round(20.0 / (period or 20.0))):
            span = (i * (period or 20.0), (i + 1) * (period or 20.0))
            found = scipy.integrate.solve_ivp(
                change, span, y, args=(-K @ y[:4],), rtol=1e-10, atol=1e-12, method="DOP853"
            )
            y = found.y[:, -1]
        assert np.max(np.abs(y[:4])) < 1e-4  # it is home
        return y[4]

    K = np.asarray(regulator.K)
    assert spent(K) == pytest.approx(start @ np.asarray(regulator.S) @ start, rel=1e-6)
    for i in range(4):
        assert all(spent(K + step * np.eye(4)[i]) > spent(K) for step in (-0.02, 0.02))


@pytest.mark.parametrize("period", [None, 0.02])
def test_a_regulator_holds_a_cart_pole_upright(period):
    """From near by it does what the linear closed loop does; with samples, the exact discrete solution."""
    mechanism, linear, regulator = upright(period)
    h = 0.02
    ts = jnp.arange(0.0, 20.5 * h, h)
    start = 1e-5 * jnp.array([1.0, 2.0, 0.0, -1.0])
    got = run(
        ukjax.Feedback(regulator, PUSH, period=regulator.period), jnp.array([0.0, np.pi]) + start[:2], start[2:],
        ts=ts, mechanism=mechanism, rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    step = scipy.linalg.expm(np.asarray(regulator.A) * h) if period is None else np.asarray(regulator.A)
    x = np.asarray(start)
    for i in range(len(ts)):
        have = np.concatenate([got.q[i] - np.array([0.0, np.pi]), got.v[i]])
        np.testing.assert_allclose(have, x, rtol=0.0, atol=2e-9)
        x = step @ x
    assert np.max(np.abs(np.asarray(linear.eigenvalues.real))) > 4  # and it would have fallen
    assert np.max(np.asarray(regulator.eigenvalues.real)) < 0


def test_a_sampled_regulator_becomes_the_continuous_one():
    always, seldom, often = (upright(h)[2] for h in (None, 0.02, 0.002))
    off = lambda x: float(jnp.max(jnp.abs(x.K - always.K)))
    assert off(often) < off(seldom) / 8


@pytest.mark.long
def test_gradients_of_a_regulator():
    def cost(x):
        mechanism = ukjax.Mechanism(cart_pole.CartPole(m=x["m"]))
        states = ukjax.analysis.Independent((0, 1), (0, 1))
        linear = linearize(mechanism, jnp.array([0.0, np.pi]), actuation=PUSH, states=states)
        both = ukjax.analysis.lqr(linear, x["Q"], 0.3), ukjax.analysis.lqr(linear, x["Q"], 0.3, period=0.05)
        return sum(jnp.sum(jnp.sin(r.S)) + jnp.sum(r.K) for r in both)

    assert_gradients(cost, {"m": jnp.asarray(0.2), "Q": jnp.array([1.0, 2.0, 0.3, 0.1])}, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ukjax.Feedback(3, ONE), TypeError, "law must be a function"),
        (lambda: ukjax.Feedback(lambda q, v, t: q, [1.0]), ValueError, "actuation must have shape"),
        (lambda: ukjax.Feedback(lambda q, v, t: q, ONE, memory=[0.0]), ValueError, "memory never changes"),
        (lambda: ukjax.Feedback(lambda q, v, t: q, ONE, rates=lambda *a: 0), ValueError, "rates has nothing to change"),
        (
            lambda: ukjax.Feedback(lambda q, v, t, x: q, ONE, memory=[0.0], update=lambda *a: 0),
            ValueError,
            "update needs a sampling period",
        ),
        (lambda: ukjax.Feedback(lambda q, v, t: q, ONE, period=0.0), ValueError, "period must be positive"),
        (lambda: ukjax.Feedback(lambda q, v, t: q, ONE, limits=(1.0, -1.0)), ValueError, "lower <= upper"),
        (lambda: run(ukjax.Feedback(lambda q, v, t: jnp.zeros(2), ONE)), ValueError, "law\\(q, v, t\\) must return"),
        (lambda: run(ukjax.Feedback(lambda q, v, t: q, ONE), keep=("memory",)), ValueError, "keep must name fields"),
        (
            lambda: run(
                ukjax.Feedback(lambda q, v, t: q, ONE, period=0.1), rtol=None, atol=None,
                stepsize_controller=diffrax.StepTo(ts=TS),
            ),
            ValueError,
            "does not go with a controller that takes samples",
        ),
        (
            lambda: linearize(FREE, jnp.zeros(1), servo=ukjax.Feedback(lambda q, v, t: -q, ONE, period=0.1)),
            ValueError,
            "without memory or samples",
        ),
        (lambda: ukjax.analysis.lqr(upright()[1], jnp.ones(3), 1.0), ValueError, "Q must return an array of shape"),
        (lambda: ukjax.analysis.lqr(upright()[1], jnp.ones(4), -1.0), ValueError, "R must be positive definite"),
        (lambda: ukjax.analysis.lqr(upright()[1], -jnp.ones(4), 1.0), ValueError, "Q must be positive semidefinite"),
        (
            lambda: ukjax.analysis.lqr(linearize(FREE, jnp.zeros(1)), jnp.ones(2), 1.0),
            ValueError,
            "linearization has no inputs",
        ),
        (
            lambda: ukjax.analysis.lqr(
                linearize(ukjax.Mechanism(falling()), jnp.zeros(2), actuation=PUSH), jnp.ones(4), 1.0
            ),
            ValueError,
            "does not stay",
        ),
        (
            lambda: ukjax.analysis.lqr(
                linearize(ukjax.Mechanism(falling(g=0.0)), jnp.zeros(2), actuation=PUSH), jnp.ones(4), 1.0
            ),
            ValueError,
            "cannot be stabilised",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_control_at_a_sample_is_that_decided_there():
    """A clock as a law, sampled every 0.25 s: u is the time of the last sample, at the sample its own."""
    cart = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: 0.0 * q))
    clock = ukjax.Feedback(lambda q, v, t: t[None], np.array([[1.0]]), period=0.25)
    ts = jnp.array([0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.9, 1.0])
    run = ukjax.simulate(cart, jnp.zeros(1), jnp.zeros(1), ts, servo=clock, keep=("control", "acceleration"))
    want = np.array([0.0, 0.0, 0.25, 0.25, 0.5, 0.75, 0.75, 1.0])
    np.testing.assert_allclose(run.control[:, 0], want, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(run.acceleration[:, 0], want, rtol=0.0, atol=1e-12)
