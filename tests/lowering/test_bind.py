"""Machine code within JAX: batches of any size, threads, devices, states computed the sure way, and freed code."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close
from ..inside import (
    CodeFolder,
    SureWay,
    Traceable,
    can_be_called,
    codes,
    interface,
    interface_of,
    mended,
    replaced,
    without_codes,
)


def tangle(x, p):
    """Numbers of several kinds, some of which depend on what all states share only."""
    y = jnp.sin(x) * jnp.exp(p[0]) + jnp.roll(x, 1) ** 3 / (2 + jnp.cos(p[1]))
    return y, jnp.sum(y) > p[0], jnp.sum(x > 0), (y * 2).astype(jnp.float32)


tangled = jax.jit(jax.vmap(ukjax.expand(tangle), (0, None)))
ALONE = jax.jit(ukjax.expand(tangle))
P = jnp.array([0.3, -0.7])


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree_util.tree_leaves(tree)]


@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 9, 16, 23, 40_003])
def test_a_state_has_the_same_bits_in_every_batch(size):
    x = jnp.asarray(np.random.default_rng(size).normal(size=(size, 3)))
    got, want = tangled(x, P), jax.vmap(tangle, (0, None))(x, P)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, rtol=1e-6 if a.dtype == np.float32 else 1e-13, atol=1e-14)
    for i in {0, size // 2, size - 1} & set(range(size)):
        assert bits(ALONE(x[i], P)) == bits([y[i] for y in got])


def test_several_threads_call_at_a_time():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20_000, 3)))
    want, found = bits(tangled(x, P)), []
    threads = [threading.Thread(target=lambda: found.extend(bits(tangled(x, P)) for _ in range(20))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(x == want for x in found)


def sure(x, k):
    """The singular values of x on a diagonal for states of which k is set, and -x for the others."""
    way = SureWay(Traceable.of(jax.make_jaxpr(lambda x: jnp.linalg.svd(jnp.diag(x))[1])(jnp.zeros(3))), (True,))
    return jax.jit(lambda x, k: mended(way, k, [x], [-x])[0])(x, k)


@pytest.mark.parametrize("wanted", [0, 1, 15, 16, 17, 40, 128, 129, 300])
def test_states_that_need_it_are_computed_the_sure_way(wanted):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(400, 3)))
    k = jnp.arange(400) < wanted
    got = sure(x, k)
    want = jnp.where(k[:, None], -jnp.sort(-jnp.abs(x), axis=1), -x)
    assert_close(got, want, rtol=1e-13)


def test_the_sure_way_is_compiled_only_where_it_is_needed():
    made = []
    mechanism = ukjax.Mechanism(
        ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])),
        ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0])),
    )
    of = jax.jit(jax.vmap(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration))
    compiled = SureWay._of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SureWay, "_of", lambda self, *args: (made.append(args), compiled(self, *args))[1])
        q = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]])
        jax.block_until_ready(of(q, 0 * q))
        assert not made
        # In the middle the row vanishes, and what it asks for does not.
        got = of(q.at[1].set(0.0), jnp.zeros((3, 2)).at[1].set(1.0))
        assert np.isfinite(np.asarray(got)[::2]).all()
        assert made
    assert bits(got[::2]) == bits(of(q, 0 * q)[::2])


def test_what_goes_wrong_on_the_sure_way_is_told():
    def slow(x):
        return jax.pure_callback(lambda x: 1 / 0, x, x)

    way = SureWay(Traceable.of(jax.make_jaxpr(slow)(jnp.zeros(3))), (True,))
    with pytest.raises(Exception, match=r"(?s)division by zero|callback"):
        jax.block_until_ready(jax.jit(lambda k, x: mended(way, k, [x], [x]))(jnp.array([True]), jnp.ones((1, 3))))


def test_many_programs_meet_uncertain_states_at_a_time():
    """More than XLA has threads: each waits for its own sure way, and none for another."""
    slow = lambda x: jnp.linalg.svd(jnp.diag(x) + 1.0)[1]
    way = SureWay(Traceable.of(jax.make_jaxpr(slow)(jnp.zeros(3))), (True,))
    of = jax.jit(lambda k, x: mended(way, k, [x], [x])[0])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 3)))
    want, found = np.asarray(jax.vmap(slow)(x)), []

    def work():
        found.extend(np.asarray(of(jnp.ones(64, bool), x)) for _ in range(5))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 60
    for y in found:
        assert_close(y, want, rtol=1e-12, atol=1e-13)


@pytest.mark.long
def test_code_is_freed_with_its_last_user():
    def one(k):
        return jax.jit(ukjax.expand(lambda x: jnp.sin(x) * (k + 0.5)))

    before, _ = codes()
    for k in range(240):
        assert_close(one(k)(1.0), jnp.sin(1.0) * (k + 0.5), rtol=1e-15)
        if k % 20 == 19:
            jax.clear_caches()
            gc.collect()
    in_use, retired = codes()
    assert in_use < before + 128 + 40
    assert retired <= 65


@pytest.mark.long
def test_a_program_that_nobody_keeps_goes_on_to_its_end():
    """JAX computes in the background: XLA may have a program when JAX and Python have forgotten it."""

    def program():
        return jax.jit(ukjax.expand(lambda x: jnp.sin(x) * 1.25)).lower(0.5).compile().runtime_executable()

    for begin in (lambda: None, program):  # before it, all that other tests have left is forgotten
        kept = begin()
        jax.clear_caches()
        gc.collect()
    for k in range(3):
        assert float(jax.jit(ukjax.expand(lambda x, k=k: x * (k + 0.25)))(1.0)) == k + 0.25
    (found,) = kept.execute([jnp.asarray(0.5)])
    assert_close(found, np.sin(0.5) * 1.25, rtol=1e-15)


def test_code_that_is_gone_is_an_error():
    """And no crash: a program that outlives the table's entry."""
    of = jax.jit(ukjax.expand(lambda x: x * 3.25 - 1.0))
    assert of(2.0) == 5.5
    with without_codes(), pytest.raises(Exception, match="machine code of this program is not in"):
        jax.block_until_ready(of(2.0))
    assert of(2.0) == 5.5


def test_where_the_interface_is_unknown_there_is_a_warning_and_no_machine_code():
    with replaced(known_interface={"XLA_FFI_CallFrame": "int something_else;"}):
        interface.cache_clear()
        can_be_called.cache_clear()
        try:
            with pytest.warns(UserWarning, match="foreign function interface"):
                assert not can_be_called()
            of = jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.sin(x) + x[0])))
            assert "ukjax_machine_code" not in of.lower(jnp.ones((3, 2))).as_text()
            assert_close(of(jnp.ones((3, 2))), jnp.sin(jnp.ones((3, 2))) + 1.0, rtol=1e-14)
        finally:
            interface.cache_clear()
            can_be_called.cache_clear()


def test_the_interface_is_recognised_by_the_layout_of_its_structures():
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    assert interface_of(header) == interface()
    # Of another name is what a pointer points to in JAX 0.11.
    assert interface_of(header.replace("XLA_FFI_ExecutionContext*", "XLA_FFI_InvokeContext*")) == interface()
    stage = "  XLA_FFI_ExecutionStage stage;"
    assert stage in header
    assert interface_of(header.replace(stage, f"  int64_t more;\n{stage}")) is None
    assert interface_of(header.replace("API_MAJOR 0", "API_MAJOR 1")) is None
    assert interface_of("") is None


def test_an_exported_program_has_no_machine_code_in_it():
    x = jnp.ones((3, 2))
    of = jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.sin(x) + x[0])))
    exported = jax.export.export(of)(x)
    assert "ukjax_machine_code" not in exported.mlir_module()
    assert_close(exported.call(x), of(x), rtol=1e-14)


def test_debug_nans_and_leaks():
    x = jnp.array([[0.5, 1.0], [2.0, -1.0]])
    with jax.checking_leaks():
        assert np.isfinite(np.asarray(jax.jit(jax.vmap(ukjax.expand(jnp.sin)))(x))).all()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(jax.jit(jax.vmap(ukjax.expand(jnp.sqrt)))(x - 1))


def elsewhere(program, devices=1, **environment):
    """What a program prints in a process of its own, with so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    others = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=others, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHARED_OUT = """
    import jax, jax.numpy as jnp, numpy as np, ukjax
    mechanism = ukjax.Mechanism(
        ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])),
        ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0])),
    )
    of = lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration
    angle = jnp.linspace(0.0, 6.0, 64)
    q = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1).at[40].set(0.0)  # of one state it is not certain
    v = 0.3 * q[:, ::-1]
    parts, work = jax.P("x"), lambda q, v: jnp.sum(jnp.sin(of(q, v)))
    for way in (of, jax.grad(work), jax.grad(work, 1), jax.jacfwd(of, (0, 1)), jax.jacrev(of, (0, 1))):
        kinds = {} if way is of else {"axis_types": (jax.sharding.AxisType.Auto,)}
        mesh = jax.make_mesh((2,), ("x",), **kinds)
        there = jax.NamedSharding(mesh, parts)
        placed, whole = jax.device_put((q, v), there), jax.vmap(way)
        want = jax.jit(whole)(q, v)
        shared = jax.jit(whole, in_shardings=there, out_shardings=there)
        text = shared.lower(q, v).compile().as_text()
        assert "all-gather" not in text, text
        mapped = jax.jit(jax.shard_map(whole, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False))
        for got in (shared(*placed), mapped(*placed), jax.jit(whole)(*placed)):
            for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                np.testing.assert_array_equal(x, y)
    print("the same")
"""


@pytest.mark.long
def test_a_batch_is_shared_out_among_devices_with_the_same_bits():
    """Accelerations and their derivatives, also of the one state whose are computed the sure way."""
    assert "the same" in elsewhere(SHARED_OUT, devices=2)


KEPT = """
    import jax, jax.numpy as jnp, numpy as np, sys, ukjax
    jax.config.update("jax_compilation_cache_dir", sys.argv[1] if len(sys.argv) > 1 else {folder!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    mechanism = ukjax.Mechanism(
        ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])),
        ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0])),
    )
    hits = []
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if "cache_hits" in name else None)
    of = jax.jit(jax.vmap(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration))
    q = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.6, 0.8]])
    found = np.asarray(of(q, 0 * q))
    print(found.tobytes().hex(), len(hits))
"""


@pytest.mark.long
def test_a_program_that_xla_keeps_on_disk_finds_its_code_in_another_process(tmp_path):
    first, again = (elsewhere(KEPT.format(folder=str(tmp_path))).split() for _ in range(2))
    assert first[0] == again[0]
    assert int(again[1]) > int(first[1])


FORKED = """
    import multiprocessing, warnings, jax, jax.numpy as jnp, numpy as np, ukjax
    warnings.simplefilter("ignore")
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
    handle = ukjax.compile(ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))))
    want = handle([1.0, 0.0], [0.0, 0.0])
    def call(queue):
        queue.put(handle([1.0, 0.0], [0.0, 0.0]))
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=call, args=(queue,))
    child.start()
    assert np.array_equal(queue.get(), want)
    child.join()
    print("the same")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_handle_is_called_in_a_forked_process():
    with warnings.catch_warnings():
        assert "the same" in elsewhere(FORKED)


COMPILED = """
    import jax, jax.numpy as jnp, ukjax
    of = jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.sin(x) * x[0] + 0.25)))
    print(of(jnp.ones((5, 3))).tobytes().hex())
"""


@pytest.mark.long
def test_code_is_kept_on_disk_where_the_user_says_so(tmp_path):
    first = elsewhere(COMPILED, UKJAX_CACHE=str(tmp_path))
    kept = {file: file.stat().st_ctime_ns for file in (tmp_path / "code").iterdir()}
    assert kept
    assert all(re.fullmatch("[0-9a-f]{64}", file.name) for file in kept)
    assert elsewhere(COMPILED, UKJAX_CACHE=str(tmp_path)) == first
    assert set((tmp_path / "code").iterdir()) == set(kept)
    assert elsewhere(COMPILED, UKJAX_CACHE="off") == first


def test_the_folder_of_code_is_bounded_and_forgets_what_was_not_used_for_longest(tmp_path):
    folder = CodeFolder(tmp_path / "code", largest=1000)
    for k in range(70):
        folder.put(f"{k:02}", bytes(100))
        os.utime(tmp_path / "code" / f"{k:02}", (k, k))
    left = sorted(file.name for file in (tmp_path / "code").iterdir())
    assert len(left) <= 10 + 32
    assert left[-1] == "69"
    assert folder.get("00") is None
    assert folder.get("69") == bytes(100)
    CodeFolder(tmp_path / "code" / "69").put("nowhere", b"x")  # a folder that cannot be made is no error
