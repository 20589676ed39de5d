"""What is compiled: how often, how much of it, and whether JAX's persistent compilation cache takes it."""

import json
import re
import subprocess
import sys

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from .helpers import SIDE, assert_close, pendulum, rod


TS = jnp.linspace(0.0, 1.0, 5)
Q = jnp.array([-1.0, 0.0])


class Counted(ukjax.AbstractSystem):
    """A particle whose mass is asked for in Python, which is counted: once for every trace."""

    calls: list = eqx.field(static=True)

    def mass(self, q, t):
        self.calls.append(1)
        return jnp.eye(2)

    def force(self, q, v, t):
        return jnp.array([0.0, -9.81])


def test_a_plain_call_is_compiled_once():
    calls = []
    mechanism = ukjax.Mechanism(Counted(calls), rod())
    servo = ukjax.Servo(SIDE, jnp.eye(2))
    held = lambda q, t: (q @ q - 1.0)[None]  # the same function again is the same program, wherever it is wrapped
    for call in (
        lambda q: ukjax.equation_of_motion(mechanism, q, jnp.zeros(2)).acceleration,
        lambda q: ukjax.servo_control(ukjax.Mechanism(mechanism.system), servo, q, jnp.zeros(2)).u,
        lambda q: (
            ukjax.equation_of_motion(
                ukjax.Mechanism(mechanism.system, ukjax.Holonomic(held)), q, q, applied=[1.0, 2.0]
            ).acceleration
        ),
    ):
        first, traces = call(Q), len(calls)
        assert traces > 0
        assert_close(call(Q), first)
        call(2 * Q)
        assert len(calls) == traces
        calls.clear()


def simulated(**options):
    return lambda q: ukjax.simulate(pendulum(), q, jnp.zeros(2), TS, **options)


def loss(q):
    return jnp.sum(simulated(throw=False)(q).q)


@pytest.mark.parametrize(
    "program",
    [
        simulated(throw=False),
        jax.value_and_grad(loss),
        simulated(throw=False, stepsize_controller=diffrax.StepTo(ts=np.linspace(0.0, 1.0, 9))),
        simulated(throw=False, stepsize_controller=diffrax.ConstantStepSize(), dt0=0.01),
        simulated(throw=False, projection=ukjax.Projection()),
        lambda q: ukjax.equation_of_motion(pendulum(), q, q, throw=False),
        lambda q: ukjax.servo_control(pendulum(), ukjax.Servo(SIDE, jnp.eye(2)), q, q, throw=False),
    ],
    ids=["adaptive", "gradient", "fixed", "constant", "projection", "equation", "servo"],
)
def test_nothing_calls_back_to_python_unless_it_is_to_throw(program):
    assert "callback" not in jax.jit(program).lower(Q).as_text()


def test_throwing_inside_of_jit_calls_back():
    assert "callback" in jax.jit(simulated()).lower(Q).as_text()


def marked(q, t):
    """A mass with an operation that nothing else has."""
    return jnp.eye(2) * (2.0 + jnp.arctan2(q[0], 5.0 + q[1]))


@pytest.mark.long
@pytest.mark.parametrize(("keep", "copies"), [(None, 2), (("q", "v", "position_residual"), 1)])
@pytest.mark.parametrize("expand", [False, True])
def test_how_often_a_program_holds_the_equation_of_motion(keep, copies, expand):
    """As scalar code twice: once for where it is certain, once for where it is not."""
    mechanism = ukjax.Mechanism(ukjax.System(marked, lambda q, v, t: jnp.array([0.0, -9.81])), rod())
    options = {"keep": keep, "formulation": ukjax.UdwadiaKalaba(expand=expand), "throw": False}
    run = lambda q: ukjax.simulate(mechanism, q, jnp.zeros(2), TS, **options)
    copies *= 1 + expand
    text = jax.jit(run).lower(Q).compile().as_text()
    assert len(re.findall(r"= \S+ atan2\(", text)) == copies


CACHED = """
import json, sys
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
import ukjax
from tests.helpers import pendulum

def count(work):
    del events[:]
    jax.block_until_ready(work())
    return [sum(name.endswith(kind) for name in events) for kind in ("cache_hits", "cache_misses")]

q, ts = jnp.array([-1.0, 0.0]), jnp.linspace(0.0, 1.0, 5)
run = lambda q, **options: ukjax.simulate(pendulum(), q, jnp.zeros(2), ts, **options).q
loss = lambda q: jnp.sum(run(q, throw=False))
print(json.dumps({
    "simulate": count(lambda: run(q)),
    "gradient": count(lambda: jax.jit(jax.value_and_grad(loss))(q)),
    "equation": count(lambda: ukjax.equation_of_motion(pendulum(), q, jnp.zeros(2)).acceleration),
}))
"""


@pytest.mark.long
def test_a_second_process_compiles_nothing_large(tmp_path):
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", CACHED, str(tmp_path)], check=True, capture_output=True, text=True, timeout=500
            ).stdout
        )
        for _ in range(2)
    )
    for work in ("simulate", "gradient", "equation"):
        assert first[work][1] > 0, work
        assert second[work] == [first[work][1], 0], work


DEVICES = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_cpu_use_fusion_emitters=false"
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import ukjax
from tests.helpers import SIDE, falling, rod

MESH = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
P = jax.sharding.PartitionSpec
# Two devices that call LAPACK at a time may wait for each other forever.
GRAM_SCHMIDT = ukjax.pseudoinverse.RowGramSchmidt()
FORMULATION = ukjax.UdwadiaKalaba(GRAM_SCHMIDT)
PROJECTION = ukjax.Projection(pseudoinverse=GRAM_SCHMIDT) if "projection" in sys.argv else None
TS = jnp.linspace(0.0, 1.0, 5)

def run(g, length, q):
    mechanism = ukjax.Mechanism(falling(g=g), ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None]))
    options = {"projection": PROJECTION, "formulation": FORMULATION, "throw": False, "keep": ("q", "v")}
    return ukjax.simulate(mechanism, q, jnp.zeros(2), TS, **options).q

def accelerate(g, length, q):
    mechanism = ukjax.Mechanism(falling(g=g), ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None]))
    motion = ukjax.equation_of_motion(mechanism, q, q, formulation=FORMULATION, throw=False)
    servo = ukjax.Servo(SIDE, jnp.eye(2), pseudoinverse=GRAM_SCHMIDT)
    return motion.acceleration + ukjax.servo_control(mechanism, servo, q, q, formulation=FORMULATION, throw=False).u

f = accelerate if "equation" in sys.argv else run
each = lambda g, length, q: jax.vmap(lambda q: f(g, length, q))(q)
gradient = lambda g, length, q: jax.grad(lambda *x: jnp.sum(jnp.sin(each(*x))), argnums=(0, 1, 2))(g, length, q)
at = (jnp.asarray(9.81), jnp.asarray(1.0), jnp.array([[-1.0, 0.0], [0.6, -0.8]]))
split = (at[0], at[1], jax.device_put(at[2], jax.NamedSharding(MESH, P("i"))))
specs = (P(), P(), P("i"))
shard = lambda f, out: jax.jit(jax.shard_map(f, mesh=MESH, in_specs=specs, out_specs=out))
close = lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=1e-11)

want, wanted = jax.jit(each)(*at), jax.jit(gradient)(*at)
close(shard(each, P("i"))(*split), want)
for got, expected in zip(shard(gradient, specs)(*split), wanted):  # inside; JAX sums over what is shared
    close(got, expected)
outside = jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(shard(each, P("i"))(*x))), argnums=(0, 1, 2)))
for got, expected in zip(outside(*split), wanted):
    close(got, expected)
close(jax.pmap(lambda q: f(*at[:2], q))(at[2]), want)
print("same")
"""


@pytest.mark.long
@pytest.mark.parametrize("case", ["plain", "projection", "equation"])
def test_on_two_devices_as_on_one(case):
    """In shard_map, which checks what varies over the mesh, and in pmap; with parameters that a closure holds."""
    done = subprocess.run(
        [sys.executable, "-c", DEVICES, case], check=False, capture_output=True, text=True, timeout=1200
    )
    assert done.stdout.strip() == "same", done.stderr
