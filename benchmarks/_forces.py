"""What people write in a force, beside a force of arithmetic: branches, tables, systems of equations.

A trajectory, the like of many at once, and its gradient, per step; of each the least of some rounds, all in turn.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax

from . import _measure


MEMBERS, ROUNDS = 512, 30
HEADER = ("force", "a step", "beside arithmetic", "of 512 at once", "beside", "with gradient", "beside")
PLACES, VALUES = np.linspace(-2.0, 2.0, 11), np.sin(3 * np.linspace(-2.0, 2.0, 11))


def _matrix(q: Any) -> Any:
    J = jnp.stack([jnp.stack([jnp.cos(q[0]), jnp.cos(q[1])]), jnp.stack([jnp.sin(q[0]), jnp.sin(q[1])])])
    return J @ J.T + jnp.eye(2)


FORCES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda q, v, t: jnp.stack([-jnp.sin(q[0]), -q[1]]),
    "jnp.tile": lambda q, v, t: jnp.tile(-jnp.sin(q[:1]), 2) - q,
    "jnp.interp, 11 places": lambda q, v, t: jnp.stack([jnp.interp(q[0], PLACES, VALUES), -q[1]]),
    "x[i]": lambda q, v, t: -q * jnp.asarray(VALUES)[jnp.clip(jnp.floor(q[0] + 2).astype(int), 0, 9)],
    "lax.cond": lambda q, v, t: jax.lax.cond(
        q[0] > 0.3, lambda: jnp.stack([-10 * (q[0] - 0.3) - v[0], -q[1]]), lambda: -q
    ),
    "jnp.select": lambda q, v, t: jnp.stack(
        [jnp.select([q[0] > 0.3, q[0] < -0.3], [-q[0], -2 * q[0]], jnp.zeros(())), -q[1]]
    ),
    "jnp.linalg.solve": lambda q, v, t: -jnp.linalg.solve(_matrix(q), q),
    "jnp.linalg.inv": lambda q, v, t: -jnp.linalg.inv(_matrix(q)) @ q,
    "cho_solve": lambda q, v, t: -jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(_matrix(q)), q),
}


def rows(report: Callable[[str], None], members: int = MEMBERS, rounds: int = ROUNDS) -> list[tuple[str, ...]]:
    found = {}
    for name, force in FORCES.items():
        report(name)
        found[name] = _seconds(force, members, rounds)
    plain = found["arithmetic"]
    return [_row(name, times, plain) for name, times in found.items()]


def _seconds(force: Callable[..., Any], members: int, rounds: int) -> tuple[float, ...]:
    """Seconds a step of a trajectory, of many for each, and of a gradient."""
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 2.0])), force)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q[0] + q[1] ** 3 - 1.5)[None]))
    q0, v0 = ukjax.assemble(mechanism, [0.5, 1.0], [0.3, 0.0])
    ts = np.linspace(0.0, 10.0, 101)

    def run(v0: Any) -> Any:
        return ukjax.simulate(mechanism, q0, v0, ts, throw=False)

    steps = lambda v: jnp.sum(jax.vmap(lambda v: run(v).stats["num_steps"])(v))
    loss = lambda v: jnp.sum(run(v).q ** 2)
    vs = jnp.linspace(0.5, 1.5, members)[:, None] * v0[None]
    timings = _measure.race((run, v0), (jax.vmap(run), vs), (jax.value_and_grad(loss), v0), rounds=rounds)
    counts = [int(jax.jit(steps)(x)) for x in (v0[None], vs, v0[None])]
    return tuple(timing.run_s / count for timing, count in zip(timings, counts, strict=True))


def _row(name: str, times: tuple[float, ...], plain: tuple[float, ...]) -> tuple[str, ...]:
    pairs = ((f"{x * 1e6:.2f} µs", f"{x / y:.1f}") for x, y in zip(times, plain, strict=True))
    return (name, *(text for pair in pairs for text in pair))
