"""Kernels of threads on a GPU that is made of this CPU: their numbers are those of the CPU, and so are their errors."""

import contextlib
import ctypes
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray

import ukjax
from ukjax import cli

from ..helpers import assert_close, long
from ..inside import (
    REMAINDER,
    Library,
    SureWay,
    Traceable,
    allows_machine_code,
    by_matrices,
    gpu_for,
    longest_first,
    mended,
    replaced,
)
from . import test_bind, test_loop
from .gpu import CpuAsGpu, assembled, on_gpu
from .test_bind import P, bits, elsewhere
from .test_models import scenario_of
from .test_ptx import NO_LOOPS


@pytest.fixture
def gpu():
    with on_gpu() as found:
        yield found


def on_cpu(function, *args):
    """What a function gives on the CPU; it is compiled anew."""
    with replaced(gpu_of=lambda platform: None):
        jax.clear_caches()
        return jax.block_until_ready(function(*args))


def of_states(function, *args):
    return jax.jit(jax.vmap(ukjax.expand(function), (0, *[None] * (len(args) - 1))))(*args)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 300])
def test_a_state_has_the_bits_of_a_cpu(gpu, size):
    x = jnp.asarray(np.random.default_rng(size).normal(size=(size, 3)))
    got = bits(of_states(test_bind.tangle, x, P))
    before = gpu.launches.value
    assert got == bits(of_states(test_bind.tangle, x, P))
    assert (gpu.launches.value > before) == (size > 0)
    assert got == bits(on_cpu(of_states, test_bind.tangle, x, P))


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_a_remainder_is_that_of_a_cpu(gpu, dtype):
    rng = np.random.default_rng(0)
    awkward = [0.0, -0.0, 1e-30, 1e30, np.inf, -np.inf, np.nan, 1.0, -2.0, 3.0, 0.1]
    pairs = [(x, y) for x in awkward for y in awkward]
    pairs += zip(rng.normal(size=300) * 10.0 ** rng.integers(-20, 20, 300), rng.normal(size=300), strict=True)
    x = jnp.asarray(pairs, dtype)
    (got,) = of_states(lambda x: (jax.lax.rem(x[0], x[1]),), x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.fmod(*np.asarray(x).T))


def test_a_remainder_of_very_small_numbers():
    """Threads of XLA on a CPU take these for zero, and a GPU does not."""
    text = REMAINDER.replace("define internal", "define")
    declared = "declare double @llvm.fabs.f64(double)\ndeclare double @llvm.copysign.f64(double, double)\n"
    library = Library(declared + text)
    of = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(library.address("remainder"))
    small = [5e-324, -3e-310, 1e-308, 1.7e308, 0.1]
    for x in small:
        for y in small:
            assert of(x, y) == np.fmod(x, y)


@pytest.mark.parametrize("wanted", [0, 1, 17, 129])
def test_states_that_need_it_are_computed_the_sure_way(gpu, wanted):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(400, 3)))
    k = jnp.asarray(np.random.default_rng(1).permutation(400) < wanted)
    want = np.where(np.asarray(k)[:, None], -np.sort(-np.abs(x), axis=1), -x)
    assert_close(test_bind.sure(x, k), want, rtol=1e-13)


@pytest.mark.parametrize("size", [0, 1, 3, 13, 200])
def test_members_of_a_loop(gpu, size):
    """Also where there are more of them than threads, which take another when they are done with one."""
    args = test_loop.members(size)
    end, rows = jax.jit(jax.vmap(test_loop.run))(*args)
    for i in range(size):
        x, want, marks = test_loop.by_hand(*(np.asarray(a[i]) for a in args))
        assert_close(end["x"][i], x, rtol=1e-13)
        assert_close(rows[i], want, rtol=1e-13)
        assert int(end["marks"][i]) == int(marks)
    assert bits((end, rows)) == bits(on_cpu(jax.jit(jax.vmap(test_loop.run)), *args))


@pytest.mark.parametrize("own", [False, True])
def test_rows_of_tables(gpu, own):
    """They are read, gathered, and marked, also after a step that was made the sure way."""
    rng, size = np.random.default_rng(0), 40
    integers = (jnp.asarray(rng.integers(a, b, size)) for a, b in ((0, 13), (-1, 21)))
    args = (*integers, jnp.asarray(rng.normal(size=size)))
    args += tuple(jnp.asarray(rng.normal(size=(size, n, 2))) for n in (12, 20)) if own else ()
    of = lambda: jax.jit(jax.vmap(lambda *args: test_loop.run_backwards(*args)))(*args)
    assert bits(of()) == bits(on_cpu(of))


def runs_and_gradients(scenario, count):
    """Some trajectories, and their gradients in their velocities."""
    q0, v0 = (np.asarray(x, float) for x in (scenario.q0, scenario.v0))
    vs = jnp.asarray(v0[None] + 1e-3 * np.random.default_rng(0).normal(size=(count, *v0.shape)))
    ts = jnp.linspace(0.0, 0.2, 5)

    def run(v):
        settings = {"servo": scenario.servo, "projection": scenario.projection, "throw": False}
        return ukjax.simulate(scenario.mechanism, q0, v, ts, **settings).q

    return jax.jit(jax.vmap(lambda v: (run(v), jax.grad(lambda v: jnp.sum(run(v) ** 2))(v))))(vs)


LONG = [name for name in cli.factories("models")[0] if name != "models.scara:scenario"]


@pytest.mark.parametrize("name", ["models.scara:scenario", *map(long, LONG)])
def test_trajectories_and_gradients_have_the_bits_of_a_cpu(gpu, name):
    scenario = scenario_of(name)
    before, got = gpu.launches.value, jax.block_until_ready(runs_and_gradients(scenario, 5))
    assert gpu.launches.value > before or name in NO_LOOPS
    assert bits(got) == bits(on_cpu(runs_and_gradients, scenario, 5))


def bead(rows):
    """A bead on a ring, whose row is there several times."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
    return ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0] * rows)))


def test_a_batch_with_a_member_that_fails(gpu):
    """It has its reason, and changes no other; of some states the GPU makes no step."""
    mechanism, q0 = bead(1), np.array([1.0, 0.0])
    v0 = np.array([[0.0, 0.1 * k] for k in range(40)])
    v0[7] = np.nan

    def batch():
        settings = {"progress": False, "keep": ("q", "v")}
        with pytest.warns(ukjax.FailedTrajectories, match="1 of 40"):
            found = ukjax.simulate_batch(mechanism, q0, v0, np.linspace(0.0, 0.1, 3), **settings)
        return found.q, found.v, found.stats

    before, got = gpu.launches.value, batch()
    assert gpu.launches.value > before
    assert bits(got) == bits(on_cpu(batch))


def test_threads_take_the_longest_first(gpu):
    """Beads on a ring, some faster than others, which take more steps."""
    taken = []
    v0 = jnp.array([[0.0, 4.0 * 2.0**k] for k in (2, 0, 3, 1)])

    def order(op, arrays, flags):
        found = longest_first(op, arrays, flags)
        jax.debug.callback(lambda x: taken.append(x.tolist()), found)
        return found

    def run(v):
        return ukjax.simulate(bead(1), jnp.array([1.0, 0.0]), v, jnp.linspace(0.0, 0.1, 3), throw=False).q

    with replaced(longest_first=order):
        jax.block_until_ready(jax.jit(jax.vmap(run))(v0))
        jax.effects_barrier()
    assert [2, 0, 3, 1] in taken


def test_redundant_rows_and_a_singular_state(gpu):
    """In the middle the row vanishes."""
    mechanism = bead(2)

    def of(q):
        found = jax.jit(jax.vmap(lambda q: ukjax.equation_of_motion(mechanism, q, 0 * q, throw=False)))(q)
        return found.acceleration, found.rank

    q = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0], [0.0, -1.0]])
    assert bits(of(q)) == bits(on_cpu(of, q))


@pytest.mark.long
def test_several_gpus():
    """A batch on all of them, what a `jax.shard_map` computes, and float32 where JAX knows no float64."""
    program = """
    from tests.lowering.test_gpu import *
    settings = {"keep": ("q",), "rtol": 1e-5, "atol": 1e-5}
    q0, ts, v0 = jnp.array([1.0, 0.0]), jnp.linspace(0.0, 0.3, 4), jnp.array([[0.0, 0.1 * k] for k in range(10)])
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    one = lambda v: ukjax.simulate(bead(1), q0, v, ts, throw=False, **settings).q
    share = jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"), check_vma=False)
    there = lambda v: jax.device_put(v, jax.NamedSharding(mesh, jax.P("i")))
    whole = lambda v: ukjax.simulate_batch(bead(1), q0, v, ts, progress=False, **settings).q
    of = {
        "batch": (whole, v0),
        "gradient": (jax.jit(jax.grad(lambda v: jnp.sum(whole(v) ** 2))), v0),
        "share": (jax.jit(share), v0),
        "by itself": (jax.jit(jax.vmap(one)), there(v0)),
    }
    for name, (function, v) in of.items():
        with on_gpu() as gpu:
            before, got = gpu.launches.value, jax.block_until_ready(function(v))
            launched = gpu.launches.value > before
        print(name, launched, bits(got) == bits(function(v)), sep=";")
    """
    for x64 in ("1", "0"):
        found = dict(
            line.split(";", 1) for line in elsewhere(program, devices=2, JAX_ENABLE_X64=x64).split("\n") if line
        )
        # Where XLA shares arrays out by itself it compiles what they go through.
        assert found == dict.fromkeys(("batch", "gradient", "share"), "True;True") | {"by itself": "False;True"}


def test_an_error_of_the_driver_is_one_of_the_call(gpu):
    x, of = jnp.ones((3, 3)), jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.sin(x) * x)))
    jax.block_until_ready(of(x))
    gpu.fails.value = 2
    try:
        with pytest.raises(
            Exception, match=r"ukjax: cuLaunchKernel .*: out of patience \(2\)\. Memory is short.*FRACTION"
        ):
            jax.block_until_ready(of(x))
    finally:
        gpu.fails.value = 0
    jax.block_until_ready(of(x))


def test_a_kernel_that_needs_more_memory_than_there_is_goes_by_xla(gpu):
    args, x = test_loop.members(9), jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))

    def of():
        end, rows = jax.jit(jax.vmap(test_loop.run))(*args)
        return end["x"], end["steps"], rows, of_states(test_bind.tangle, x, P)

    want = jax.block_until_ready(of())
    jax.clear_caches()
    full = CpuAsGpu("ukjax_kernel_without_room")
    with replaced(gpu_of=lambda platform: full if platform == "cpu" else None, is_right=lambda *_: True):
        full.memory.value, before = 100_000, gpu.launches.value
        try:
            got = jax.block_until_ready(of())
        finally:
            full.memory.value = 0
    assert gpu.launches.value == before
    for a, b in zip(*map(jax.tree_util.tree_leaves, (got, want)), strict=True):
        assert_close(a, b, rtol=1e-6 if a.dtype == np.float32 else 1e-12)


def test_a_kernel_that_the_driver_does_not_take_goes_by_xla(gpu):
    args, x = test_loop.members(9), jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))
    of = lambda: (jax.jit(jax.vmap(test_loop.run))(*args)[1], of_states(lambda x: jnp.cos(jnp.cos(x)), x))
    other = CpuAsGpu("ukjax_kernel_that_is_refused")
    with replaced(gpu_of=lambda platform: other if platform == "cpu" else None, is_right=lambda *_: True):
        other.refuses.value, before = 1, gpu.launches.value
        try:
            with pytest.warns(UserWarning, match=r"left to XLA.*out of patience \(218\)\. line 7: I do not like it"):
                got = jax.block_until_ready(of())
        finally:
            other.refuses.value = 0
    assert gpu.launches.value == before
    for a, b in zip(got, on_cpu(of), strict=True):
        assert_close(a, b, rtol=1e-12)


def test_operations_of_jax_between_kernels(gpu):
    """Those that need more memory than there is go by XLA as a whole; a sure way may have very many arrays."""
    x, table = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3))), np.arange(5.0) ** 2
    of = lambda x: of_states(lambda x: jnp.interp(jnp.sin(x), jnp.arange(5.0), table) * x, x)
    before, got = gpu.launches.value, jax.block_until_ready(of(x))
    assert gpu.launches.value > before
    assert bits(got) == bits(on_cpu(of, x))
    full = CpuAsGpu("ukjax_kernel_between_without_room")
    with replaced(gpu_of=lambda platform: full if platform == "cpu" else None, is_right=lambda *_: True):
        jax.clear_caches()
        full.memory.value, before = 100_000, gpu.launches.value
        try:
            assert_close(jax.block_until_ready(of(x)), got, rtol=1e-14)
        finally:
            full.memory.value = 0
    assert gpu.launches.value == before


def test_a_sure_way_of_very_many_arrays(gpu):
    arrays = [jnp.full((4, 2), float(k)) for k in range(300)]
    closed = jax.make_jaxpr(lambda *xs: [-x for x in xs])(*(x[0] for x in arrays))
    way = SureWay(Traceable.of(closed), (True,) * 300)
    needed = jnp.array([False, True, False, True])
    before = gpu.launches.value
    got = jax.block_until_ready(jax.jit(lambda k, *xs: mended(way, k, xs, xs))(needed, *arrays))
    assert gpu.launches.value > before
    for x, y in zip(got, arrays, strict=True):
        np.testing.assert_array_equal(x, np.where(needed[:, None], -y, y))


def test_what_nobody_uses_is_unloaded_when_all_work_is_done(gpu):
    """The driver in driver.c refuses it otherwise."""
    x = jnp.ones((3, 2))
    jax.block_until_ready(of_states(lambda x: x * 3.25, x))
    jax.clear_caches()
    jax.block_until_ready(of_states(lambda x: x * 4.25, x))
    gpu.unused.append(ctypes.c_void_p(1))
    before = gpu.unloaded.value
    jax.block_until_ready(of_states(lambda x: x * 5.25, x))
    assert gpu.unloaded.value > before


def test_a_user_s_settings_are_not_those_of_the_trial():
    first, x = CpuAsGpu("ukjax_kernel_of_a_trial"), jnp.ones((3, 3))
    with replaced(gpu_of=lambda platform: first if platform == "cpu" else None, assembly=assembled):
        jax.clear_caches()
        with warnings.catch_warnings(), jax.transfer_guard("disallow_explicit"), jax.debug_nans(True):
            warnings.simplefilter("error")
            assert gpu_for(["cpu"]) is first
        jax.block_until_ready(of_states(lambda x: x * 2.0, x))
    jax.clear_caches()


@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_the_sure_way_is_computed_apart(on):
    """In a thread of its own, on a device of its own, whatever mesh the call is in; an error there changes nothing."""
    seen = []

    def trace():
        seen.append((threading.get_ident(), jax.sharding.get_abstract_mesh().empty, jnp.zeros(1).devices()))
        return jax.make_jaxpr(lambda x: -x)(jnp.zeros(3))

    three = [ShapedArray((3,), np.dtype(float))]
    x, k = jnp.ones((4, 3)), jnp.arange(4) < 2
    with on_gpu() if on == "gpu" else contextlib.nullcontext():
        way = SureWay(Traceable(trace, three, three, False), (True,))
        made = jax.jit(lambda x, k: mended(way, k, [x], [x])[0]).lower(x, k).compile()
        mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        with jax.set_mesh(mesh):
            got = jax.block_until_ready(made(x, k))
    np.testing.assert_array_equal(got, np.where(np.asarray(k)[:, None], -x, x))
    ((thread, is_empty, devices),) = seen
    assert thread != threading.get_ident()
    assert is_empty
    assert not devices & set(jax.devices())


def test_a_compilation_that_fails_leaves_machine_code_allowed():
    with pytest.raises(ValueError, match="of the user"), by_matrices():
        raise ValueError("of the user")
    assert allows_machine_code()


def test_a_kernel_of_very_many_arrays_goes_by_xla(gpu):
    x = [jnp.full(3, float(k)) for k in range(520)]
    of = jax.jit(jax.vmap(ukjax.expand(lambda *x: x[0] + x[-1])))
    before, got = gpu.launches.value, jax.block_until_ready(of(*x))
    assert gpu.launches.value == before
    np.testing.assert_array_equal(got, np.full(3, 519.0))


@pytest.mark.parametrize(("fails", "why"), [(0, "other numbers than the CPU"), (3, "out of patience")])
def test_a_gpu_that_does_not_work_is_left_to_xla(fails, why):
    wrong, x = CpuAsGpu(f"ukjax_kernel_that_is_wrong_{fails}"), jnp.ones((3, 3))
    of_sine = lambda text, *kind: assembled(text.replace("fmul double", "fadd double"), *kind)
    with replaced(gpu_of=lambda platform: wrong if platform == "cpu" else None, assembly=of_sine):
        jax.clear_caches()
        wrong.fails.value = fails
        try:
            with pytest.warns(UserWarning, match=why):
                got = jax.jit(jax.vmap(ukjax.expand(lambda x: x * x)))(x)
        finally:
            wrong.fails.value = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.block_until_ready(jax.jit(jax.vmap(ukjax.expand(lambda x: x + x)))(x))
    jax.clear_caches()
    np.testing.assert_array_equal(got, 1.0)


def test_where_nothing_is_known_of_a_gpu_there_is_none():
    """On this machine JAX has no GPU, and the tests leave none behind."""
    assert gpu_for(["cuda"]) is None
    assert gpu_for(["cpu"]) is None
    assert gpu_for(["cpu", "cuda"]) is None
