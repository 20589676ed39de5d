"""Machine code that is made quickly first, and optimised when it has been evaluated often: the same bits from both."""

import os
import subprocess
import sys
import textwrap
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..inside import Machine, Tier, compiled_kernel, replaced
from .test_bind import bits
from .test_loop import members, run


@pytest.fixture
def optimised():
    """The optimised codes, in order; code is optimised after a few evaluations.

    What an earlier test left to be optimised may be done now, and does not count.
    """
    found, own, make, put = [], weakref.WeakSet(), Tier.__init__, Tier.improved

    def made(self, *args, **options):
        make(self, *args, **options)
        own.add(self)

    def noted(self, machine):
        put(self, machine)
        if self in own:
            found.append(machine)

    jax.clear_caches()
    with replaced(often=5, tier=made, improved=noted):
        yield found
    jax.clear_caches()


def until(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_states(optimised):
    function = jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.sin(x) * jnp.exp(-x[::-1]) / (2.5 + x**2))))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))
    first = bits(function(x))
    assert not optimised
    for _ in range(20):
        assert bits(function(x)) == first
    until(lambda: optimised)
    assert not optimised[0].is_quick
    for _ in range(20):
        assert bits(function(x)) == first
    assert len(optimised) == 1


def test_a_long_program_is_interpreted_until_it_is_evaluated_often(optimised):
    """For one state, for a batch, and along directions; then it is compiled."""
    at_first, then = [], []

    def noting(kernels, make):
        return lambda kernel, *args, **options: kernels.append(kernel) or make(kernel, *args, **options)

    def function(x):
        for k in range(9):
            x = jnp.where(x > 0.1 * k, jnp.sin(x) * x[::-1], x / (1.5 + x**2))
        return x

    x = jnp.asarray(np.random.default_rng(0).normal(size=(100, 5)))
    want = [bits(jax.jit(jax.vmap(ukjax.expand(function)))(y)) for y in (x, x[:1])]
    jax.clear_caches()
    with (
        replaced(long_program=100, short_program=20),
        replaced(first_machine=noting(at_first, compiled_kernel), optimised_machine=noting(then, Machine)),
    ):
        alone = jax.jit(ukjax.expand(function))
        batch = jax.jit(jax.vmap(ukjax.expand(function)))
        slopes = jax.jit(jax.vmap(jax.jacfwd(ukjax.expand(function))))
        found = bits(slopes(x))
        for _ in range(40):
            assert bits(batch(x)) == want[0]
            assert bits(alone(x[0])[None]) == want[1]
            assert bits(slopes(x)) == found
        until(lambda: len(optimised) == 3)
        assert bits(batch(x)) == want[0]
        assert bits(alone(x[0])[None]) == want[1]
        assert bits(slopes(x)) == found
    assert all(kernel.interpreters for kernel in at_first)
    assert not any(kernel.interpreters for kernel in then)


def test_a_step_that_is_interpreted_has_the_bits_of_one_that_is_compiled(optimised):
    """Also where the compiled one takes over while the loop runs."""
    x, shift, _, doubtful = (a[0] for a in members(1))
    with replaced(often=2**60):
        want = [bits(jax.jit(lambda *args: run(*args))(x, shift, jnp.asarray(k), doubtful)) for k in (3, 2_000_000)]
        batch = bits(jax.jit(lambda *args: jax.vmap(run)(*args))(*members(30)))
    jax.clear_caches()
    with replaced(long_program=1, short_program=0):
        alone = jax.jit(lambda *args: run(*args))
        assert bits(alone(x, shift, jnp.asarray(3), doubtful)) == want[0]
        assert not optimised
        assert bits(jax.jit(lambda *args: jax.vmap(run)(*args))(*members(30))) == batch
        optimised.clear()
        assert bits(alone(x, shift, jnp.asarray(2_000_000), doubtful)) == want[1]
        assert optimised  # before the run was done
        assert bits(alone(x, shift, jnp.asarray(3), doubtful)) == want[0]


def test_a_loop_goes_on_with_the_optimised_step(optimised):
    """While it runs, a second or two."""
    x, shift, _, doubtful = (a[0] for a in members(1))
    alone = jax.jit(run)
    steps = jnp.asarray(20_000_000)
    with replaced(often=2**60):
        want = bits(jax.jit(lambda *args: run(*args))(x, shift, steps, doubtful))
    jax.clear_caches()
    got = alone(x, shift, steps, doubtful)
    jax.block_until_ready(got)
    assert optimised  # before the run was done
    assert bits(got) == want
    assert bits(alone(x, shift, steps, doubtful)) == want


def test_a_run_that_is_under_way_takes_the_optimised_step(optimised):
    """Shown by one that is wrong on purpose: it adds where it is to multiply."""
    x, shift, _, doubtful = (a[0] for a in members(1))
    want = bits(jax.jit(run)(x, shift, jnp.asarray(3), doubtful))
    wrong = lambda kernel: Machine(kernel._replace(text=kernel.text.replace("fmul", "fadd")))
    with replaced(optimised_machine=wrong):
        other = jax.jit(lambda *args: run(*args))
        assert bits(other(x, shift, jnp.asarray(3), doubtful)) == want
        assert not optimised
        end, _ = other(x, shift, jnp.asarray(20_000_000), doubtful)
        assert optimised
    right, _ = jax.jit(run)(x, shift, jnp.asarray(20_000_000), doubtful)
    assert bits(end["x"]) != bits(right["x"])


def test_members_of_a_batch_while_the_code_changes(optimised):
    together = jax.jit(jax.vmap(run))
    args = members(300)
    first = bits(together(*args))
    for _ in range(5):
        assert bits(together(*args)) == first
    until(lambda: optimised)
    assert bits(together(*args)) == first


def test_code_that_is_gone_is_not_optimised(optimised):
    """Nor is what took its place in the table changed."""
    x = jnp.linspace(0.0, 1.0, 4)
    for k in range(40):
        function = jax.jit(jax.vmap(ukjax.expand(lambda x, k=k: jnp.cos(x + k))))
        for _ in range(4):
            found = function(x)
        np.testing.assert_allclose(found, np.cos(np.linspace(0.0, 1.0, 4) + k), rtol=1e-12)
        del function
        jax.clear_caches()


# Evaluated often at once, so that the optimiser is at work when the process ends.
ENDS = """
    import jax, jax.numpy as jnp, numpy as np, ukjax
    from tests.inside import replaced
    with replaced(often=5):
        def function(x):
            for k in range(60):
                x = jnp.sin(x + x[::-1]) + jnp.exp(-x**2) / (k + 1.5)
            return x
        program = jax.jit(jax.vmap(ukjax.expand(function)))
        x = np.random.default_rng(0).normal(size=(40, 12))
        for _ in range(10):
            found = program(x)
        print(np.asarray(found).tobytes().hex())
"""


def ended(**environment):
    command = [sys.executable, "-c", textwrap.dedent(ENDS)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=300)


@pytest.mark.long
def test_a_process_ends_while_code_is_optimised():
    done = ended()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_code_that_was_kept_is_the_optimised_one(tmp_path):
    """The other process needs no first tier; without a folder nothing is kept."""
    once, again = ended(UKJAX_CACHE=str(tmp_path)), None
    kept = set((tmp_path / "code").iterdir())
    again = ended(UKJAX_CACHE=str(tmp_path))
    assert once.stdout == again.stdout != ""
    assert set((tmp_path / "code").iterdir()) == kept
