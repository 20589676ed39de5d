"""What is found of one program that computes accelerations, and how ours, and others in JAX, are timed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

import ukjax

from . import _measure


class Peer(NamedTuple):
    """Seconds for an acceleration in a batch, with Jacobian, and for one state; accelerations (k, n) of some."""

    name: str
    each: float
    jacobian: float | None
    one: float | None
    found: np.ndarray
    compile_s: float | None


def of_ukjax(mechanism: ukjax.Mechanism, q: Array, v: Array, rounds: int) -> Peer:
    def acceleration(q, v):
        return ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration

    one = jax.jit(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False))
    alone = _measure.least(lambda: jax.block_until_ready(one(q[0], v[0])), rounds)
    return in_a_batch(acceleration, q, v, rounds)._replace(name="ukjax", one=alone)


def in_a_batch(acceleration: Callable[..., Any], q: Array, v: Array, rounds: int, jacobian: bool = True) -> Peer:
    (plain,) = _measure.race((jax.vmap(acceleration), q, v), rounds=rounds)
    found = Peer("", plain.run_s / len(q), None, None, np.asarray(plain.output), plain.compile_s)
    if not jacobian:
        return found
    few = max(128, len(q) // 10)
    both = lambda q, v: (acceleration(q, v), jax.jacfwd(acceleration, argnums=(0, 1))(q, v))
    (with_jacobian,) = _measure.race((jax.vmap(both), q[:few], v[:few]), rounds=min(3, rounds))
    return found._replace(jacobian=with_jacobian.run_s / few)
