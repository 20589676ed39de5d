"""A batch in portions: how many lanes, which trajectories first, on which devices."""

import os
import signal
import threading
import time

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, falling
from ..inside import (
    BLOCK,
    LANES,
    PORTION_BYTES,
    TOGETHER,
    Size,
    allocate_like,
    in_order,
    lanes_of,
    replaced,
)


def beads(rates, **options):
    """On a ring: diffrax begins with the same step for all of them."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.zeros(2))
    ring = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    q0, v0 = np.array([1.0, 0.0]), np.outer(rates, [0.0, 1.0])
    return ukjax.simulate_batch(ukjax.Mechanism(system, ring), q0, v0, np.linspace(0.0, 0.1, 3), **options)


@pytest.mark.long
def test_the_fast_ones_begin_first():
    seen = []
    with replaced(in_order=lambda *args: seen.append(args) or in_order(*args), runs=lambda *_: None):
        batch = beads([1.0, 20.0, 3.0])
    (pace, count), steps = seen[0], batch.stats["num_steps"]
    assert count == 3
    np.testing.assert_array_equal(in_order(pace, count)[:3], [1, 2, 0])
    assert steps[1] > steps[2] >= steps[0]


def test_what_is_not_to_be_done_is_last():
    """Of equal ones the first is first; likewise as part of a program."""
    pace = np.array([1.0, np.nan, 3.0, 2.0, 9.0, 3.0])[[0, 1, 2, 3, 5, 4]]
    for order in (in_order(pace, 5), jax.jit(in_order)(pace, 5)):
        np.testing.assert_array_equal(order, [2, 4, 3, 0, 1, 5])


@pytest.mark.parametrize("share", [1, 10, 31, 33, 100, 1000, 5000, 123_456])
def test_lanes_fill_blocks(share):
    """A rest that fills no vector takes as long as a block."""
    size = Size(2 * share - 1, 2, lanes_of(jax.devices("cpu"), share), 8)
    assert size.lanes <= LANES["cpu"]
    assert size.lanes == share if share < BLOCK else size.lanes % BLOCK == 0
    assert 2 * share <= size.whole < 2 * (share + size.lanes * max(1, share // size.lanes))
    assert size.share % size.lanes == 0


def test_a_batch_on_a_device_that_is_not_the_first():
    mechanism, v0 = ukjax.Mechanism(falling(n=1)), jnp.array([[1.0], [2.0], [3.0]])
    second = jax.devices()[1:2]
    got = ukjax.simulate_batch(mechanism, jnp.zeros(1), v0, np.array([0.0, 0.1]), devices=second, progress=False)
    assert_close(got.q[:, 1], 0.1 * v0 - 0.5 * 9.81 * 0.01, atol=1e-9)


@pytest.mark.parametrize("most", [1, 20, 33, 100, 1000])
def test_a_portion_is_no_larger_than_memory_allows(most):
    size = Size(100_000, 2, lanes_of(jax.devices("cpu"), 50_000), PORTION_BYTES // (2 * most))
    assert size.share == size.lanes if most < BLOCK else size.lanes % BLOCK == 0
    assert most / 2 < size.share <= most


@pytest.mark.parametrize("together", [0, TOGETHER])
def test_results_lie_where_jax_need_not_copy_them(together):
    """In one piece of memory or each in its own, next to each other and not upon each other."""
    like = (np.zeros((2, 3)), np.zeros(2, bool), np.zeros((2, 5), np.float32), np.zeros((2, 0)), np.zeros(2, int))
    with replaced(together=together):
        room = allocate_like(like, 7)
    for i, (x, y) in enumerate(zip(room, like, strict=True)):
        assert (x.shape, x.dtype) == ((7, *y.shape[1:]), y.dtype)
        assert x.ctypes.data % 64 == 0 or not x.size
        x[...] = i
    for i, x in enumerate(room):
        assert np.all(x == x.dtype.type(i))
    assert len({id(x.base) for x in room}) == (1 if together else len(like))


def test_an_interruption_stops_the_runs():
    """Of runs of hours; what comes after it is as ever."""
    before = beads([1.0, 2.0], progress=False).q
    mechanism, steps = ukjax.Mechanism(falling(n=1)), diffrax.ConstantStepSize()
    options = {"dt0": 1e-6, "stepsize_controller": steps, "max_steps": 2**40, "keep": ("q",), "progress": False}

    def run(t1):
        return ukjax.simulate_batch(mechanism, jnp.zeros(1), jnp.ones((1000, 1)), np.array([0.0, t1]), **options)

    run(1e-3)  # compiled
    sent = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    sent.start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run(1e5)
    assert time.perf_counter() - begin < 60
    # Nothing goes on in the background, on any device.
    begin = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - begin < 0.4
    np.testing.assert_array_equal(beads([1.0, 2.0], progress=False).q, before)
