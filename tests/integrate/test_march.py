"""The loop over the steps does what diffrax's own does."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import ukjax

from ..helpers import OPTIMISED, assert_close, long
from ..inside import Dynamics, Integrator, vector_field


TS = jnp.array([0.0, 0.3, 0.31, 1.7, 4.0])
PID = diffrax.PIDController(rtol=1e-8, atol=1e-8)
WITH_MEMORY = diffrax.PIDController(rtol=1e-7, atol=1e-9, pcoeff=0.2, icoeff=0.4, dcoeff=0.1, safety=0.8)
SHORT = diffrax.PIDController(rtol=1e-4, atol=1e-4, dtmin=1e-4, dtmax=0.02)
AT_TIMES = diffrax.ClipStepSizeController(diffrax.PIDController(rtol=1e-4, atol=1e-4), step_ts=np.array([0.7, 0.71]))
AT_JUMPS = diffrax.ClipStepSizeController(PID, jump_ts=np.array([0.5, 2.0]))


class Swinging(eqx.Module):
    """Van der Pol's equation, pushed from 0.5 to 2.0 s, suddenly or smoothly; no motion where y[0] exceeds a limit."""

    limit: Array
    sudden: bool = False

    def __call__(self, t, y):
        suddenly = jnp.where((t > 0.5) & (t < 2.0), 3.0, 0.0)
        push = suddenly if self.sudden else 3.0 * jnp.exp(-4.0 * (t - 1.25) ** 2)
        change = jnp.stack([y[1], 5.0 * (1 - y[0] ** 2) * y[1] - y[0] + push])
        return jnp.where(y[0] < self.limit, change, jnp.nan)


@eqx.filter_jit(compiler_options=OPTIMISED)
def both(solver, controller, dt0, max_steps, limit, y0):
    """What the loop gives, and what diffrax's own does.

    Only where steps end at the sudden changes is the sequence of steps that of rounded numbers: elsewhere the last bit
    of an error decides whether a step that meets one is kept.
    """
    flow = Dynamics(Swinging(limit, getattr(controller, "jump_ts", None) is not None))
    integrate = Integrator(None, max_steps, diffrax.NoProgressMeter())
    ours = integrate(flow, y0, TS, solver, (controller, dt0))
    theirs = diffrax.diffeqsolve(
        diffrax.ODETerm(vector_field),
        solver,
        t0=TS[0],
        t1=TS[-1],
        dt0=dt0,
        y0=y0,
        args=flow,
        saveat=diffrax.SaveAt(ts=TS),
        stepsize_controller=controller,
        adjoint=diffrax.ForwardMode(),
        max_steps=max_steps,
        throw=False,
    )
    return ours, theirs


@pytest.mark.parametrize(
    ("solver", "controller", "dt0"),
    [
        pytest.param(diffrax.Dopri8(), PID, None, id="adaptive"),
        long(diffrax.Tsit5(), PID, jnp.asarray(0.5), id="hands on a stage, first step rejected"),
        long(diffrax.Dopri5(), WITH_MEMORY, None, id="the controller has a memory"),
        long(diffrax.Heun(), SHORT, None, id="steps within bounds"),
        long(diffrax.Ralston(), AT_TIMES, None, id="steps end at times"),
        pytest.param(diffrax.Bosh3(), diffrax.ConstantStepSize(), jnp.asarray(0.003), id="constant"),
        long(diffrax.Dopri5(), diffrax.StepTo(ts=np.linspace(0.0, 4.0, 801)), None, id="given"),
        pytest.param(diffrax.Tsit5(), AT_JUMPS, None, id="jumps"),
        pytest.param(diffrax.Kvaerno3(), PID, None, id="implicit"),
    ],
)
def test_states_and_statistics(solver, controller, dt0):
    (ys, (t, y), counts, result), theirs = both(solver, controller, dt0, 4096, jnp.asarray(9.0), jnp.array([2.0, 0.0]))
    assert bool(theirs.result == diffrax.RESULTS.successful)
    assert bool(result == ukjax.RESULTS.successful)
    assert_close(ys, theirs.ys, atol=1e-9)
    assert float(t) == 4.0
    assert_close(y, ys[-1], atol=1e-9)
    for name, count in counts.items():
        assert int(count) == int(theirs.stats[name])


@pytest.mark.parametrize(("max_steps", "limit"), [(20, 9.0), (4096, 2.1)], ids=["too few steps", "no motion"])
def test_a_run_that_does_not_get_through(max_steps, limit):
    """A place that cannot be passed, at which steps grow ever smaller, ends the run as too few steps do."""
    y0 = jnp.array([2.0, 3.0])
    (ys, (t, y), counts, _), theirs = both(diffrax.Dopri8(), PID, None, max_steps, jnp.asarray(limit), y0)
    assert bool(theirs.result == diffrax.RESULTS.max_steps_reached)
    assert int(counts["num_steps"]) == int(theirs.stats["num_steps"]) == max_steps
    reached = np.isfinite(np.asarray(theirs.ys)).all(axis=1)
    np.testing.assert_array_equal(np.isfinite(np.asarray(ys)).all(axis=1), reached)
    assert_close(ys[reached], theirs.ys[reached], atol=1e-9)
    assert 0.0 < float(t) < 4.0
    assert np.all(np.isfinite(y))


def test_a_batch_is_each_of_its_members():
    y0s = jnp.array([[2.0, 0.0], [0.1, -3.0], [1.0, 1.0]])
    flow, integrate = Dynamics(Swinging(jnp.asarray(9.0))), Integrator(None, 4096, diffrax.NoProgressMeter())
    run = lambda y0: integrate(flow, y0, TS, diffrax.Dopri8(), (AT_JUMPS, None))[::2]
    together = jax.jit(jax.vmap(run), compiler_options=OPTIMISED)(y0s)
    alone = jax.jit(run, compiler_options=OPTIMISED)
    for i, y0 in enumerate(y0s):
        pairs = zip(jax.tree_util.tree_leaves(together), jax.tree_util.tree_leaves(alone(y0)), strict=True)
        for batch, one in pairs:
            np.testing.assert_allclose(batch[i], one, rtol=1e-9)
