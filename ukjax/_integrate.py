"""One call of diffrax, under whichever adjoint."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from ._adjoint import both_modes
from ._result import RESULTS


class Integrator(eqx.Module):
    """Integrates y' = field(t, y) from ts[0] to ts[-1]. Nothing in it is an array."""

    adjoint: diffrax.AbstractAdjoint | None = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    progress: diffrax.AbstractProgressMeter = eqx.field(static=True)

    def __call__(
        self,
        field: Callable,
        y0: Array,
        ts: Array,
        solver: diffrax.AbstractSolver,
        controller: diffrax.AbstractStepSizeController,
        dt0: Array | None,
    ) -> tuple[Array, tuple[Array, Array], dict[str, Array], Any]:
        """The states at ts, where the run ended (t, y), its statistics, and its `RESULTS`."""
        inputs = (field, y0, ts, solver, controller, dt0)
        if self.adjoint is None:
            ys, rest = both_modes(self._solve, inputs)
        else:
            ys, rest = self._solve(inputs, self.adjoint)
        return ys, *rest

    def _solve(self, inputs: Any, adjoint: diffrax.AbstractAdjoint) -> tuple[Array, Any]:
        field, y0, ts, solver, controller, dt0 = inputs
        # The end tells why a run failed; the backsolve adjoint has room for one kind of output only.
        at_ts, at_end = diffrax.SubSaveAt(ts=ts), diffrax.SubSaveAt(t1=True)
        both = not isinstance(adjoint, diffrax.BacksolveAdjoint)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(_call),
            solver,
            t0=ts[0],
            t1=ts[-1],
            dt0=dt0,
            y0=y0,
            args=field,
            saveat=diffrax.SaveAt(subs=[at_ts, at_end] if both else at_ts),
            stepsize_controller=controller,
            adjoint=adjoint,
            max_steps=self.max_steps,
            throw=False,
            progress_meter=self.progress,
        )
        assert solution.ts is not None
        assert solution.ys is not None
        ys = solution.ys[0] if both else solution.ys
        # A run that fails at once saves nothing; its first row is known all the same.
        ys = jnp.where(jnp.isfinite(ys), ys, jnp.nan).at[0].set(y0)
        end = _last_finite(ts, ys)
        if both:
            reached, last = solution.ts[1][0], solution.ys[1][0]
            finite = jnp.all(jnp.isfinite(last))
            end = jnp.where(finite, reached, end[0]), jnp.where(finite, last, end[1])
        counts = {k: solution.stats[k] for k in ("num_steps", "num_accepted_steps", "num_rejected_steps")}
        return ys, (stop_gradient(end), counts, RESULTS.promote(solution.result))


@eqx.filter_jit
def _call(t, y, field):
    # One call in the traced program, and one derivative of it, instead of a copy at every place diffrax uses it.
    return field(t, y)


def _last_finite(ts: Array, ys: Array) -> tuple[Array, Array]:
    reached = jnp.all(jnp.isfinite(ys), axis=1)
    last = jnp.sum(reached) - 1
    return ts[last], ys[last]
