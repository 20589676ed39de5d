"""Plain calls are compiled to be done soon, and nothing else is."""

import gc
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import ukjax

from .helpers import assert_close, pendulum
from .inside import jit_fast_compile, light_options, not_tracing, seldom_collecting


Q, V = jnp.array([0.6, -0.8]), jnp.array([0.4, 0.3])
AS_THE_TESTS_COMPILE = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"


@pytest.fixture
def said(monkeypatch):
    """What XLA_FLAGS seems to hold."""

    def say(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        light_options.cache_clear()

    yield say
    light_options.cache_clear()


def acceleration(q, mass=1.0):
    free = pendulum().system
    system = ukjax.System(lambda q, t: mass * jnp.eye(2), lambda q, v, t: free.force(q, v, t))
    rod = ukjax.Holonomic(lambda q, t: (q @ q - mass)[None])
    return ukjax.equation_of_motion(ukjax.Mechanism(system, rod), q, V, throw=False).acceleration


def test_a_plain_call_takes_options_and_a_part_of_a_program_none(said, monkeypatch):
    """JAX refuses options for what is part of a larger program, also where only a closure tells that it is."""
    made = []
    filter_jit = eqx.filter_jit
    spy = lambda function, **options: (made.append(options), filter_jit(function, **options))[1]
    monkeypatch.setattr(eqx, "filter_jit", spy)
    said("")
    double = jit_fast_compile(lambda x: 2.0 * x)
    assert made == [{}]
    assert double(1.5) == 3.0
    assert made[1:] == [{"compiler_options": light_options()}]
    assert light_options()["xla_backend_optimization_level"] == 0
    hidden = lambda m: jnp.sum(double(jnp.ones(2)) * m)
    for program in (jax.jit, jax.grad, jax.jacfwd, jax.hessian, lambda f: jax.vmap(f, axis_size=2, in_axes=None)):
        program(hidden)(1.5)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda f: f(1.0), True),
        (lambda f: jax.jit(f)(1.0), False),
        (lambda f: jax.grad(f)(1.0), False),
        (lambda f: jax.vmap(f)(jnp.ones(2)), False),
        (lambda f: jax.eval_shape(f, 1.0), False),
        (lambda f: jax.lax.scan(lambda c, _: (f(c), None), 1.0, length=2), False),
    ],
)
def test_what_is_plain(program, expected):
    seen = []
    program(lambda x: (seen.append(not_tracing()), x)[1])
    assert set(seen) == {expected}
    assert not_tracing()


def test_the_answer_is_the_same(said):
    want = acceleration(Q)
    said("")
    light = acceleration(Q)
    assert_close(light, want, rtol=1e-13, atol=1e-13)
    assert_close(jax.jit(acceleration)(Q), want, rtol=1e-13, atol=1e-13)
    closed_over = lambda m: jnp.sum(acceleration(Q, m))
    difference = (closed_over(1.0 + 1e-6) - closed_over(1.0 - 1e-6)) / 2e-6
    assert_close(jax.grad(closed_over)(1.0), difference, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (AS_THE_TESTS_COMPILE, {}),
        ("--xla_backend_optimization_level=3", {"xla_cpu_use_fusion_emitters": False}),
        ("--xla_cpu_use_fusion_emitters=true", {"xla_backend_optimization_level": 0}),
    ],
)
def test_what_a_person_says_counts(said, flags, options):
    said(flags)
    if jax.__version_info__[:2] != (0, 10):
        options = {name: value for name, value in options.items() if "fusion" not in name}
    assert light_options() == options


@pytest.mark.parametrize(
    ("usual", "meanwhile"),
    [((700, 10, 10), (4_000_000, 10, 10)), ((0, 10, 10), (0, 10, 10)), ((5_000_000, 9, 9), (5_000_000, 9, 9))],
)
def test_the_collector_is_left_as_it_was(usual, meanwhile):
    """And what somebody else said meanwhile counts."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(*usual)
        with seldom_collecting():
            assert gc.get_threshold() == meanwhile
            with pytest.raises(ValueError, match="inside"), seldom_collecting():
                raise ValueError("inside")
            assert gc.get_threshold() == meanwhile
        assert gc.get_threshold() == usual
        with seldom_collecting():
            gc.set_threshold(5, 5, 5)
        assert gc.get_threshold() == (5, 5, 5)
    finally:
        gc.set_threshold(*before)


TEN_PROGRAMS = """
import gc
from tests.inside import replaced, seldom_collecting
collections, kept = [], []
gc.collect()
gc.callbacks.append(lambda phase, known: collections.append(known["generation"]))
with replaced(aged=0, most_aged=900_000):
    for _ in range(10):
        with seldom_collecting():
            kept.append([[] for _ in range(100_000)])
        print(2 in collections, gc.get_count()[0] < 10_000, gc.get_freeze_count())
"""


def test_many_new_objects_are_looked_through_seldom():
    """Those of a program that has been traced are not, until there are very many.

    In a process of its own: another thread here may be within a program.
    """
    root = Path(__file__).parents[1]
    ended = subprocess.run([sys.executable, "-c", TEN_PROGRAMS], capture_output=True, text=True, cwd=root)
    shown = ended.stdout.splitlines()
    assert shown[:8] == ["False True 0"] * 8, ended.stderr
    assert shown[-1] == "True True 0"


def test_an_import_leaves_the_collector_as_it_was():
    """Its thresholds, nothing frozen, and few objects that count as new."""
    shown = "gc.get_threshold() == before, gc.get_freeze_count(), gc.get_count()[0] < 10_000"
    code = f"import gc; before = gc.get_threshold(); import ukjax; print({shown})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["True", "0", "True"], ended.stderr
