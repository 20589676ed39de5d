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
from models import whipple_bicycle
from tests.helpers import OPTIMISED, STATES, assert_close, long, pendulum

from ..inside import (
    PARTS,
    Dynamics,
    IntegrationProblem,
    Integrator,
    Layout,
    ScalarLoop,
    finer_of,
    room_for,
    segment_of,
    segments_of,
    vector_field,
)


class Swinging(eqx.Module):
    """Van der Pol's equation, whose steps vary by a factor of ten."""

    def __call__(self, t, y):
        return jnp.stack([y[1], 5.0 * (1 - y[0] ** 2) * y[1] - y[0]])


PID = diffrax.PIDController(rtol=1e-8, atol=1e-8)


@eqx.filter_jit(compiler_options=OPTIMISED)
def recorded(controller, dt0, t1, max_steps, alone):
    """When and where diffrax says that steps end, the record, and its segments found in either order."""
    ts, y0, flow = jnp.stack([jnp.zeros(()), t1]), jnp.array([2.0, 0.0]), Dynamics(Swinging())
    method = controller, None if dt0 is None else jnp.asarray(dt0)
    problem = IntegrationProblem(flow, y0, ts, diffrax.Tsit5(), method, max_steps, room_for(2, alone))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(vector_field),
        problem.solver,
        t0=ts[0],
        t1=ts[1],
        dt0=dt0,
        y0=y0,
        args=flow,
        saveat=diffrax.SaveAt(t0=True, steps=True),
        stepsize_controller=controller,
        adjoint=diffrax.ForwardMode(),
        max_steps=max_steps,
    )
    _, record, _ = Integrator(None, max_steps, diffrax.NoProgressMeter())._record(problem, True)
    count = segments_of(problem, record)
    last = 1024

    def found(finer, i):
        # Beyond the last there is nothing, in any order.
        segment, finer = segment_of(problem, record, finer, i)
        return finer, segment

    forward = jax.lax.scan(found, finer_of(problem, record), jnp.arange(last))[1]
    backward = jax.lax.scan(found, finer_of(problem, record), count - 1 - jnp.arange(last))[1]
    return solution.ts, solution.ys, record, count, (forward, backward)


@pytest.mark.parametrize(
    ("controller", "dt0", "t1", "max_steps", "alone"),
    [
        pytest.param(PID, None, 1.0, 4096, False, id="few steps"),
        pytest.param(PID, None, 40.0, 4096, False, id="many"),
        pytest.param(PID, None, 400.0, 16_384, False, id="finer"),
        pytest.param(PID, None, 0.3, 33, False, id="every"),
        pytest.param(PID, None, 40.0, 16_384, True, id="alone"),
        long(PID, None, 400.0, 16_384, True, id="alone, many"),
        pytest.param(PID, None, 30.0, 1000, True, id="alone, every"),
        long(diffrax.ConstantStepSize(), 0.01, 30.0, 4096, False, id="constant"),
        long(diffrax.ConstantStepSize(), 0.01, 150.0, 16_384, False, id="constant, finer"),
        long(diffrax.StepTo(ts=np.linspace(0.0, 20.0, 1001)), None, 20.0, 4096, False, id="given"),
        pytest.param(
            diffrax.ClipStepSizeController(PID, step_ts=np.arange(1.0, 30.0)), None, 30.0, 4096, False, id="clipped"
        ),
    ],
)
def test_the_record_gives_back_every_step(controller, dt0, t1, max_steps, alone):
    layout = Layout.of(max_steps, room_for(2, alone))
    times, states, record, number, orders = recorded(controller, dt0, jnp.asarray(t1), max_steps, alone)
    want = np.asarray(times)[np.isfinite(times)]
    count, stride, number = int(record.count), int(record.stride), int(number)
    assert count == len(want) - 1
    assert (stride == 1) == (count < layout.checkpoints)
    numbers = record.checkpoints.number
    slots = np.asarray(jax.vmap(record.slot)(numbers))
    kept = np.asarray(numbers)
    assert np.all((kept < 0) | (slots == np.arange(len(kept))) | (kept % stride > 0))
    # At least half of the room is taken, and what lies between two checkpoints fits.
    assert stride == 1 or count // stride >= layout.checkpoints // 2 - 1
    assert stride <= layout.steps * PARTS**layout.layers
    for segments, order in zip(
        jax.tree.map(np.asarray, orders), (range(number), range(number - 1, -1, -1)), strict=True
    ):
        at = [list(order).index(i) for i in range(number)]
        parts = [np.asarray(segments.times[i])[: int(segments.count[i]) + 1] for i in at if segments.count[i] > 0]
        for one, following in itertools.pairwise(parts):
            assert_close(one[-1], following[0], rtol=1e-14)
        got = np.concatenate([parts[0][:1], *(part[1:] for part in parts)])
        # The last bits of a step size may differ, and what follows with them; more so after the short steps at a time
        # that must not be passed.
        near = 1e-5 if isinstance(controller, diffrax.ClipStepSizeController) else 1e-8
        assert_close(got, want, atol=near)
        starts = np.concatenate([segments.states[i][: int(segments.count[i])] for i in at])
        assert_close(starts, np.asarray(states)[:count], atol=10 * near)


@pytest.mark.long
def test_every_step_is_run_again_once_for_each_layer_and_once_more():
    """3 000 steps, one checkpoint every 256, segments of 32: two layers of finer ones in between."""
    asked: list[None] = []

    class Counted(eqx.Module):
        def __call__(self, t, y):
            jax.debug.callback(lambda: asked.append(None))
            return -y

    ts, flow = jnp.array([0.0, 30.0]), Dynamics(Counted())
    problem = IntegrationProblem(
        flow, jnp.ones(1), ts, diffrax.Tsit5(), (diffrax.ConstantStepSize(), jnp.asarray(0.01)), 16_384
    )
    _, record, _ = Integrator(None, 16_384, diffrax.NoProgressMeter())._record(problem, True)
    jax.effects_barrier()
    once = len(asked)
    assert (int(record.count), int(record.stride)) == (3000, 256)
    for backwards, most in ((False, 1), (True, 3)):
        asked.clear()
        order = jnp.arange(int(segments_of(problem, record)))
        find = lambda finer, i: segment_of(problem, record, finer, i)[::-1]
        jax.block_until_ready(jax.lax.scan(find, finer_of(problem, record), order[::-1] if backwards else order))
        jax.effects_barrier()
        # The stage handed on from step to step is evaluated anew for each segment, 32 steps of six stages.
        assert 0.9 * once < len(asked) < (most + 0.1) * once


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("max_steps", [1, 33, 34, 256, 575, 576, 16_384, 10**6, 10**9])
def test_there_is_room_for_every_step_in_little_memory(max_steps, alone):
    room = room_for(100, alone)
    layout = Layout.of(max_steps, room)
    assert max_steps < layout.checkpoints * layout.steps * PARTS**layout.layers
    assert layout.complete == (max_steps < layout.checkpoints)
    assert layout.checkpoints + layout.finer + layout.steps <= 50 + 5 * np.log(max_steps) + (2 * room if alone else 0)


@pytest.mark.parametrize("size", [0, 1, 8, 100, 101, 10**5])
def test_what_stands_alone_has_room_for_more_checkpoints_and_these_are_bounded(size):
    few, room = room_for(size, False), room_for(size, True)
    assert few <= room <= 1024
    assert room % 2 == few % 2 == 0
    assert room * size <= max(few * size, 2**16)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_finer_checkpoints_take_the_place_of_older_ones_in_their_layer(layers):
    layout, kept = Layout(18, layers, 32, False), {}
    for part in range(1, PARTS**layers):
        place = int(layout.place(jnp.asarray(part)))
        assert place < layout.finer
        kept[place] = part
        # Of each layer there are the parts since the last one of the coarser layer.
        want = {part - part % PARTS**i - j * PARTS**i for i in range(layers) for j in range(part // PARTS**i % PARTS)}
        assert want <= set(kept.values())
    assert int(layout.place(jnp.asarray(PARTS**layers))) >= layout.finer


def kinetic(q, t1, max_steps):
    ts = jnp.linspace(0.0, 1.0, 3) * t1
    options = {"rtol": 1e-10, "atol": 1e-10, "throw": False}
    got = ukjax.simulate(pendulum(1, ukjax.Baumgarte(4.0, 9.0)), q, jnp.zeros(2), ts, max_steps=max_steps, **options)
    return jnp.sum(jnp.sin(got.v))


# Eight steps need no layer of finer checkpoints: 161 KB for 64 trajectories, where a budget of 16 384 takes 393 and one
# of a million 478 (32 steps: 385), because each layer that a budget may need has its place.
@pytest.mark.long
@pytest.mark.parametrize(
    ("t1", "enough", "most"), [(0.02, 8, 3.2), (0.3, 32, 1.8), (2.5, 256, 1.8), (9.0, 800, 1.8), (20.0, 2000, 1.8)]
)
def test_a_gradient_takes_no_memory_for_steps_that_are_not_taken(t1, enough, most):
    """A step budget that the motion almost fills, the one by default, and a huge one: `most` times as much memory."""
    q = jnp.stack([jnp.array([0.6, -0.8])] * 64)
    batch = lambda max_steps: jax.jit(jax.vmap(jax.grad(lambda q: kinetic(q, t1, max_steps)))).lower(q).compile()
    size = lambda compiled: compiled.memory_analysis().temp_size_in_bytes
    tight = batch(enough)
    for max_steps in (16_384, 10**6):
        large = batch(max_steps)
        assert size(large) < most * size(tight)
        assert_close(large(q), tight(q), rtol=1e-7)


@pytest.mark.long
def test_gradients_of_many_steps_in_a_batch_of_different_lengths():
    """More steps than there is room for, beside fewer: as one by one, and as by diffrax's own adjoint."""
    t1 = jnp.array([0.5, 9.0, 20.0])
    q = jnp.array([0.6, -0.8])
    for derivative in (jax.grad, jax.jacfwd):
        one = jax.jit(derivative(lambda q, t1: kinetic(q, t1, 16_384)))
        together = jax.jit(jax.vmap(derivative(lambda q, t1: kinetic(q, t1, 16_384)), in_axes=(None, 0)))(q, t1)
        for got, end in zip(together, t1, strict=True):
            assert_close(got, one(q, end), rtol=1e-8)
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


@pytest.mark.parametrize("mode", [long(jax.jacrev), long(jax.jacfwd)], ids=["over reverse", "over forward"])
def test_second_derivatives_of_many_steps_against_a_closed_form(mode):
    ts = jnp.array([0.0, 7.0, 30.0, 60.0])

    def loss(x):
        got = ukjax.simulate(
            ukjax.Mechanism(Spring(x[0])), x[1:2], jnp.zeros(1), ts, rtol=1e-10, atol=1e-10, keep=STATES
        )
        return jnp.sum(jnp.sin(got.q))

    x = jnp.array([1.3, 0.4])
    want = jax.hessian(lambda x: jnp.sum(jnp.sin(x[1] * jnp.cos(x[0] * ts))))(x)
    assert_close(jax.jit(jax.jacfwd(mode(loss)))(x), want, rtol=1e-6, atol=1e-6)


@pytest.fixture
def loops(monkeypatch):
    """What the loops of machine code that are made repeat."""
    made, make = [], ScalarLoop.__init__

    def noted(self, repeats, state, *others, **options):
        make(self, repeats, state, *others, **options)
        made.append(type(state).__name__)

    monkeypatch.setattr(ScalarLoop, "__init__", noted)
    return made


def test_gradients_of_many_runs_are_loops_of_machine_code(loops):
    """Their steps, the steps between checkpoints, and the steps backwards."""
    mechanism, ts = pendulum(), jnp.linspace(0.0, 1.0, 3)
    loss = lambda q, v: jnp.sum(ukjax.simulate(mechanism, q, v, ts, throw=False, keep=("q",)).q ** 2)
    jax.jit(jax.vmap(jax.grad(loss))).lower(jnp.eye(2), jnp.zeros((2, 2)))
    assert set(loops) == {"Member", "_Again", "Pullback"}


@pytest.mark.parametrize("curved", [False, long(True)])
def test_a_run_of_a_robot_that_rolls_is_a_loop_with_its_projection(loops, curved):
    """Its rows are picked from arrays by places, which its step has to know; a `curved` row is not affine in v."""
    scenario, ts = whipple_bicycle.scenario(), jnp.linspace(0.0, 0.1, 3)
    further = {"further": ukjax.Nonholonomic(lambda q, v, t: (v[:1] * v[1:2]) ** 2 - 1.0)} if curved else {}
    mechanism = whipple_bicycle.robot().mechanism(further)

    def run(q, v):
        return ukjax.simulate(mechanism, q, v, ts, projection=ukjax.Projection(), throw=False, keep=("q",)).q

    jax.jit(run).lower(scenario.q0, scenario.v0)
    assert loops == ["Member"]
