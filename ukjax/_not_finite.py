"""Search for the function of a mechanism that returned NaN or infinity, for the message of an error."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from ._mechanism import Mechanism
from ._program import jit_fast_compile
from ._result import RESULTS
from ._system import applied_force
from ._trajectory import Trajectory
from ._types import Coordinates, Scalar, Vector


def culprit(mechanism: Mechanism, states: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> str:
    """Returns a sentence about the first function that is not finite at the first of these states where one is not.

    Empty if all functions are finite at all states that are themselves finite.
    """
    for state in states:
        if not all(np.all(np.isfinite(x)) for x in state):
            continue
        found = _finite(mechanism, *map(jnp.asarray, state))
        bad = [name for name, okay in found.items() if not okay]
        if bad:
            q, v = (np.array2string(np.asarray(x), precision=6, threshold=12) for x in state[:2])
            return f" {bad[0]} is not finite at q = {q}, v = {v}, t = {np.asarray(state[2]).item():.6g}."
    return ""


def culprit_along(mechanism: Mechanism, trajectory: Trajectory) -> str:
    """Returns a sentence about the function that ended a trajectory; empty if that is not why, or cannot be found.

    The states that are tried lead from the last saved one to where the run stopped, and a little beyond.
    """
    kept = vars(trajectory)
    if bool(trajectory.result != RESULTS.not_finite) or kept["q"] is None or kept["v"] is None:
        return ""
    q, v, t = (np.asarray(x) for x in (trajectory.q, trajectory.v, trajectory.t))
    whole = np.flatnonzero(np.isfinite(q).all(axis=1) & np.isfinite(v).all(axis=1))
    i = whole[-1] if len(whole) else 0
    further = float(trajectory.stats["t_reached"] - t[i])
    step = max(further, (t[-1] - t[0]) / len(t))
    start = tuple(map(jnp.asarray, (q[i], v[i], t[i])))
    rates = np.asarray(mechanism.rates(*start))
    ahead = [0.0, *(further + part * step for part in (0.0, 1e-6, 1e-3, 0.1, 1.0))]
    return culprit(mechanism, [(q[i] + dt * rates, v[i], t[i] + dt) for dt in ahead])


@jit_fast_compile
def _finite(mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> dict[str, Array]:
    """Whether each function of a mechanism is finite at a state."""
    kind = type(mechanism.system).__name__
    found = {f"The mass matrix of the {kind}": mechanism.mass(q, t, v.shape[0])}
    found[f"The force of the {kind}"] = applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)")
    for name, constraint in mechanism.named_constraints.items():
        called = f"{name!r} ({type(constraint).__name__})"
        error = jnp.append(constraint.position_error(q, t), mechanism.velocity_error_of(constraint, q, v, t))
        found[f"The value of the constraint {called}"] = error
        found[f"A derivative of the constraint {called}"] = jnp.append(*mechanism.rows_of(constraint, q, v, t))
    if mechanism.nonideal is not None:
        found["The nonideal force, without an ideal one,"] = mechanism.nonideal(q, v, t, jnp.zeros_like(v))
    return {name: jnp.all(jnp.isfinite(x)) for name, x in found.items()}
