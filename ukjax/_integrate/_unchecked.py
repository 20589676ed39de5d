"""diffrax without its checks at run time.

`diffrax.diffeqsolve` checks the times to save at, the first step and the times of a `StepTo` while the compiled program
runs. Such a check is a call from the program back to Python, and JAX's persistent compilation cache does not take a
program that calls back. Here known values are checked before the work starts, and others as data
(`RESULTS.times_do_not_fit`).

Both classes stand in while diffrax checks, and hand over the real times and steps to its loop.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array


class KnownFirstStep(diffrax.AbstractStepSizeController):
    """A step size controller that knows its first step."""

    controller: diffrax.AbstractStepSizeController
    dt0: Array | None

    def wrap(self, direction):
        forward = isinstance(self.controller, diffrax.StepTo)  # times increase, so that nothing need be reversed
        return KnownFirstStep(self.controller if forward else self.controller.wrap(direction), self.dt0)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        if isinstance(self.controller, diffrax.StepTo):
            return self.controller.ts[1], 2
        return self.controller.init(terms, t0, t1, y0, self.dt0, args, func, error_order)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        return self.controller.adapt_step_size(t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state)


class SavesAt(diffrax.AbstractAdjoint):
    """An adjoint whose solve saves at `ts` where its `saveat` asks diffrax to save the end.

    It goes with `KnownFirstStep`. The `diffrax.SubSaveAt(t1=True)` to replace is the only one, or the one named "ts".
    """

    adjoint: diffrax.AbstractAdjoint
    ts: Array

    def loop(self, *, saveat: Any, init_state: Any, stepsize_controller: Any, **others: Any) -> Any:
        several = isinstance(saveat.subs, dict)
        wanted = diffrax.SubSaveAt(ts=self.ts)
        subs = {**saveat.subs, "ts": wanted} if several else wanted
        saveat = diffrax.SaveAt(subs=subs, controller_state=saveat.controller_state)
        state = init_state.save_state["ts"] if several else init_state.save_state
        room = lambda x: jnp.full((self.ts.shape[0], *x.shape[1:]), jnp.inf, x.dtype)
        state = eqx.tree_at(lambda s: (s.ts, s.ys), state, (room(state.ts), room(state.ys)))
        states = {**init_state.save_state, "ts": state} if several else state
        init_state = eqx.tree_at(lambda s: s.save_state, init_state, states)
        controller = stepsize_controller
        controller = controller.controller if isinstance(controller, KnownFirstStep) else controller
        return self.adjoint.loop(saveat=saveat, init_state=init_state, stepsize_controller=controller, **others)
