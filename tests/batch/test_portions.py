"""A batch in portions: how many trajectories at a time, on which devices."""

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

from ..helpers import assert_close, falling, long
from ..inside import LANES, TOGETHER, Tiles, allocate_like, replaced
from .test_simulate_batch import assert_same


def beads(rates, **options):
    """On a ring."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.zeros(2))
    ring = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    q0, v0 = np.array([1.0, 0.0]), jnp.outer(jnp.asarray(rates), jnp.array([0.0, 1.0]))
    return ukjax.simulate_batch(ukjax.Mechanism(system, ring), q0, v0, np.linspace(0.0, 0.1, 3), **options)


@pytest.mark.parametrize("most", [1, 31, 128, None])
@pytest.mark.parametrize("count", [1, 2, 10, 257, 5000])
def test_tiles(count, most):
    """All are there once, in their order, and no device has a tile more than it needs."""
    tiles = Tiles(count, jax.devices()[:2], most)
    assert tiles.width <= (most or LANES["cpu"])
    share = -(-count // len(tiles.devices))
    assert share <= tiles.rounds * tiles.width < share + tiles.rounds
    numbers, due = tiles.arranged(np.arange(count))
    assert np.sum(due) == count
    assert sorted(numbers[due]) == list(range(count))
    assert len(numbers) == len(tiles.devices) * tiles.rounds * tiles.width
    np.testing.assert_array_equal(tiles.gathered(numbers), np.arange(count))


@pytest.mark.parametrize("count", [long(1), 5, long(9)])
def test_what_is_no_loop_of_machine_code(count):
    """A few at a time on each device; with one that fails, and in a larger program."""
    rates = np.linspace(1.0, 20.0, count)
    want = beads(rates, progress=False, keep=("q", "v"))
    with replaced(runs=lambda *_, **__: None):
        jax.clear_caches()
        got = beads(rates, progress=False, lanes=2, keep=("q", "v"))
        inside = jax.jit(lambda v: beads(v, progress=False, lanes=2, keep=("q", "v")))(rates)
        with pytest.warns(ukjax.FailedTrajectories, match="1 of 2"):
            failing = beads([np.nan, 3.0], progress=False, keep=("q",))
    jax.clear_caches()
    for run in (got, inside):
        assert_close(run.q, want.q, atol=1e-9)
        assert_close(run.v, want.v, atol=1e-9)
        np.testing.assert_array_equal(run.stats["num_steps"], want.stats["num_steps"])
    assert np.array_equal(failing.result == ukjax.RESULTS.successful, [False, True])
    assert np.all(np.isfinite(failing.q[1]))


def test_a_batch_on_a_device_that_is_not_the_first():
    mechanism, v0 = ukjax.Mechanism(falling(n=1)), jnp.array([[1.0], [2.0], [3.0]])
    second = jax.devices()[1:2]
    got = ukjax.simulate_batch(mechanism, jnp.zeros(1), v0, np.array([0.0, 0.1]), devices=second, progress=False)
    assert_close(got.q[:, 1], 0.1 * v0 - 0.5 * 9.81 * 0.01, atol=1e-9)


def test_a_portion_is_no_larger_than_memory_allows():
    want = beads(np.arange(1.0, 8.0), progress=False)
    with replaced(portion=1):
        assert_same(beads(np.arange(1.0, 8.0), progress=False), want)


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
