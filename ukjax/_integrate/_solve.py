"""The call of diffrax."""

from typing import Any

import diffrax

from ._flow import IntegrationProblem, vector_field
from ._variants import solver_of


def solved(
    problem: IntegrationProblem,
    controller: Any,
    saveat: diffrax.SaveAt,
    loop: diffrax.AbstractAdjoint,
    adjoint: diffrax.AbstractAdjoint = diffrax.ForwardMode(),
    progress: diffrax.AbstractProgressMeter = diffrax.NoProgressMeter(),
) -> Any:
    """diffrax's solution of a problem, with the `loop` over the steps of an adjoint.

    The loop over the stages of a step is the one that diffrax takes under `adjoint`: by default that for a solve
    without derivatives.
    """
    return diffrax.diffeqsolve(
        diffrax.ODETerm(vector_field),
        solver_of(problem, adjoint),
        t0=problem.ts[0],
        t1=problem.ts[-1],
        dt0=None,
        y0=problem.y0,
        args=problem.flow,
        saveat=saveat,
        stepsize_controller=controller,
        adjoint=loop,
        max_steps=problem.max_steps,
        throw=False,
        progress_meter=progress,
    )
