"""What a derivative remembers of a solve: little, and enough to find its steps again."""

import itertools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import ukjax
from tests.helpers import OPTIMISED, STATES, assert_close, long, pendulum
from ukjax._integrate._flow import Flow, Problem, call
from ukjax._integrate._record import CAPACITY, Recording, longest, segment_of


class Swinging(eqx.Module):
    """Van der Pol's equation, whose steps vary by a factor of ten."""

    def __call__(self, t, y):
        return jnp.stack([y[1], 5.0 * (1 - y[0] ** 2) * y[1] - y[0]])


PID = diffrax.PIDController(rtol=1e-8, atol=1e-8)


@eqx.filter_jit(compiler_options=OPTIMISED)
def recorded(controller, dt0, t1):
    """When and where diffrax says that steps end, and what the record gives back."""
    ts, y0, flow = jnp.stack([jnp.zeros(()), t1]), jnp.array([2.0, 0.0]), Flow(Swinging())
    problem = Problem(flow, y0, ts, diffrax.Tsit5(), (controller, dt0), 4096)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(call),
        problem.solver,
        t0=ts[0],
        t1=ts[1],
        dt0=dt0,
        y0=y0,
        args=flow,
        saveat=diffrax.SaveAt(t0=True, steps=True, controller_state=True),
        stepsize_controller=Recording(controller, 4096),
        adjoint=diffrax.ForwardMode(),
        max_steps=4096,
    )
    record = solution.controller_state[1]
    segments = jax.lax.map(lambda i: segment_of(problem, record, i), jnp.arange(CAPACITY))
    return solution.ts, solution.ys, record, segments


@pytest.mark.parametrize(
    ("controller", "dt0", "t1"),
    [
        pytest.param(PID, None, 1.0, id="few steps"),
        pytest.param(PID, None, 40.0, id="many"),
        long(diffrax.ConstantStepSize(), 0.01, 30.0, id="constant"),
        long(diffrax.StepTo(ts=np.linspace(0.0, 20.0, 1001)), None, 20.0, id="given"),
        pytest.param(diffrax.ClipStepSizeController(PID, step_ts=np.arange(1.0, 30.0)), None, 30.0, id="clipped"),
    ],
)
def test_the_record_gives_back_every_step(controller, dt0, t1):
    times, states, record, segments = recorded(controller, dt0, jnp.asarray(t1))
    want = np.asarray(times)[np.isfinite(times)]
    count, stride = int(record.count), int(record.stride)
    assert count == len(want) - 1
    assert (stride == 1) == (count < CAPACITY)
    # At least half of the room is taken, and no segment is longer than the buffer it is run into.
    assert stride == 1 or count // stride >= CAPACITY // 2 - 1
    assert stride <= longest(4096)
    number = int(record.segments)
    parts = [np.asarray(segments.times[i])[: int(segments.count[i]) + 1] for i in range(number)]
    for one, following in itertools.pairwise(parts):
        assert one[-1] == following[0]
    got = np.concatenate([parts[0][:1], *(part[1:] for part in parts)])
    assert_close(got, want, atol=1e-9)
    starts = np.concatenate([segments.states[i][: int(segments.count[i])] for i in range(number)])
    assert_close(starts, np.asarray(states)[:count], atol=1e-7)


def kinetic(q, t1, max_steps):
    ts = jnp.linspace(0.0, 1.0, 3) * t1
    options = {"rtol": 1e-10, "atol": 1e-10, "throw": False}
    got = ukjax.simulate(pendulum(1, ukjax.Baumgarte(4.0, 9.0)), q, jnp.zeros(2), ts, max_steps=max_steps, **options)
    return jnp.sum(jnp.sin(got.v))


@pytest.mark.long
def test_a_gradient_takes_no_memory_for_steps_that_are_not_taken():
    """The step budget by default, 16 384, beside one that the motion almost fills."""
    q = jnp.stack([jnp.array([0.6, -0.8])] * 64)
    batch = lambda max_steps: jax.vmap(jax.grad(lambda q: kinetic(q, 3.0, max_steps)))
    sizes = [
        jax.jit(batch(max_steps)).lower(q).compile().memory_analysis().temp_size_in_bytes for max_steps in (16_384, 256)
    ]
    assert sizes[0] < 2 * sizes[1]


@pytest.mark.long
def test_gradients_of_many_steps_in_a_batch_of_different_lengths():
    """More steps than there is room for, beside fewer: as one by one, and as by diffrax's own adjoint."""
    t1 = jnp.array([0.5, 9.0])
    q = jnp.array([0.6, -0.8])
    for derivative in (jax.grad, jax.jacfwd):
        one = jax.jit(derivative(lambda q, t1: kinetic(q, t1, 16_384)))
        together = jax.jit(jax.vmap(derivative(lambda q, t1: kinetic(q, t1, 16_384)), in_axes=(None, 0)))(q, t1)
        assert_close(together[0], one(q, t1[0]), rtol=1e-9)
        assert_close(together[1], one(q, t1[1]), rtol=1e-8)
    h = 1e-6
    loss = jax.jit(lambda q: kinetic(q, t1[1], 16_384))
    numeric = [(loss(q.at[i].add(h)) - loss(q.at[i].add(-h))) / (2 * h) for i in range(2)]
    assert_close(together[1], np.stack(numeric), rtol=1e-6)


class Spring(ukjax.AbstractSystem):
    """x'' = -w^2 x, of unit mass."""

    w: Array

    def mass(self, q, t):
        return jnp.eye(1)

    def force(self, q, v, t):
        return -(self.w**2) * q


@pytest.mark.parametrize("mode", [jax.jacrev, long(jax.jacfwd)], ids=["over reverse", "over forward"])
def test_second_derivatives_of_many_steps_against_a_closed_form(mode):
    ts = jnp.array([0.0, 7.0, 30.0])

    def loss(x):
        got = ukjax.simulate(
            ukjax.Mechanism(Spring(x[0])), x[1:2], jnp.zeros(1), ts, rtol=1e-10, atol=1e-10, keep=STATES
        )
        return jnp.sum(jnp.sin(got.q))

    x = jnp.array([1.3, 0.4])
    want = jax.hessian(lambda x: jnp.sum(jnp.sin(x[1] * jnp.cos(x[0] * ts))))(x)
    assert_close(jax.jit(jax.jacfwd(mode(loss)))(x), want, rtol=1e-6, atol=1e-6)
