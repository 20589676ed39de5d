"""What is found of one program that computes accelerations, and how ours, and others in JAX, are timed."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
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


# A Jacobian has many times the numbers of its state, and what is made of a few states at a time stays in the cache.
PORTION = 128


def of_ukjax(mechanism: ukjax.Mechanism, q: Array, v: Array, rounds: int, slopes: int | None = None) -> Peer:
    acceleration = _acceleration_of(mechanism)
    one = jax.jit(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False))
    alone = _measure.least(lambda: jax.block_until_ready(one(q[0], v[0])), rounds)
    found = in_a_batch(acceleration, q, v, rounds, slopes, PORTION)
    return found._replace(name="ukjax", one=alone)


def on_all_devices(mechanism: ukjax.Mechanism, q: Array, v: Array, rounds: int, slopes: int | None = None) -> Peer:
    """A part of the batch on each: a loop over the nodes of a tree takes one core of a device."""
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    part = P("batch")

    def apart(function):
        return jax.shard_map(function, mesh=mesh, in_specs=part, out_specs=part, check_vma=False)

    q, v = (jax.device_put(x, jax.NamedSharding(mesh, part)) for x in (q, v))
    found = in_a_batch(_acceleration_of(mechanism), q, v, rounds, slopes, PORTION, apart)
    return found._replace(name=f"ukjax, {jax.device_count()} devices")


def by_handle(mechanism: ukjax.Mechanism, q: Array, v: Array, rounds: int) -> Peer:
    """By `ukjax.compile`, one state at a time from Python with arrays of NumPy, on one thread."""
    states = np.asarray(q[:64]), np.asarray(v[:64])
    start = time.perf_counter()
    acceleration = ukjax.compile(mechanism)
    found = [acceleration(states[0][0], states[1][0])]
    compile_s = time.perf_counter() - start
    found += [acceleration(*state) for state in list(zip(*states, strict=True))[1:]]
    both = ukjax.compile(mechanism, what=("acceleration", "jacobian"))
    at = states[0][0], states[1][0]
    one, jacobian = (_measure.least(lambda f=f: f(*at), rounds, 1000) for f in (acceleration, both))
    return Peer("ukjax.compile, one thread", one, jacobian, one, np.array(found), compile_s)


def _acceleration_of(mechanism: ukjax.Mechanism) -> Callable[..., Array]:
    return lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration


def in_a_batch(
    acceleration: Callable[..., Any],
    q: Array,
    v: Array,
    rounds: int,
    slopes: int | None = None,
    portion: int | None = None,
    apart: Callable[[Any], Any] = lambda function: function,
) -> Peer:
    """`slopes`: of how many states Jacobians are taken (None: a tenth; 0: of none), `portion` of them at a time (None:
    all at once); `apart`: what is done to the function of a batch, to run it on several devices.
    """
    (plain,) = _measure.race((apart(jax.vmap(acceleration)), q, v), rounds=rounds)
    found = Peer("", plain.run_s / len(q), None, None, np.asarray(plain.output), plain.compile_s)
    slopes = max(128, len(q) // 10) if slopes is None else slopes
    if not slopes:
        return found

    def both(q, v):
        return acceleration(q, v), jax.jacfwd(acceleration, argnums=(0, 1))(q, v)

    every = apart(lambda q, v: jax.lax.map(lambda state: both(*state), (q, v), batch_size=portion or slopes))
    (with_jacobian,) = _measure.race((every, q[:slopes], v[:slopes]), rounds=rounds)
    return found._replace(jacobian=with_jacobian.run_s / slopes)
