"""`to="wasm"`: a module that imports nothing, with the bits of machine code, and JavaScript that calls it."""

import ctypes
import json

import jax.numpy as jnp
import numpy as np
import pytest
from py_mini_racer import MiniRacer

import ukjax
from models import governor, n_pendulum, scara, unicycle

from ..helpers import falling, long, pendulum
from ..inside import replaced
from .modules import Module, fused
from .test_c import GALLERY, awkward, bits, of_gallery


def edges(random, n):
    """Factors and addends: any bits; alike numbers; sums that cancel; results next to the smallest numbers and to the
    largest; short numbers, whose sums are ties."""
    sign, part = random.choice([-1.0, 1.0], size=(n, 3)), 1 + random.integers(0, 2**52, size=(n, 3)) / 2**52
    short, at = sign * random.integers(1, 9, size=(n, 3)), random.integers(-1074, 100, size=n)
    yield random.integers(0, 2**64, size=(n, 3), dtype=np.uint64).view(float)
    yield (near := random.normal(size=(n, 3)))
    yield np.stack([near[:, 0], near[:, 1], -near[:, 0] * near[:, 1]], axis=1)
    for mantissa in (sign * part, short):
        low = np.stack([at, np.clip(random.integers(-1080, -1014, size=n) - at, -1080, 1000)], axis=1)
        yield np.ldexp(mantissa, np.column_stack([low, random.integers(-1080, -1000, size=n)]))
        high = random.integers(0, 1023, size=n)
        tops = np.column_stack([high, 1018 - high + random.integers(0, 4, size=n), random.integers(960, 1020, size=n)])
        yield np.ldexp(mantissa, tops)
        yield np.ldexp(mantissa, np.column_stack([at // 4, 0 * at, at // 4 + random.integers(-170, 170, size=n)]))
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, np.finfo(float).max, 1.0, -1.0, 1.5]
    yield random.choice(special, size=(n, 3))


@pytest.mark.parametrize("count", [2_000, long(100_000)])
def test_fused_products_are_rounded_once(count):
    """As by the C library of this machine, which was not written here."""
    fma = ctypes.CDLL("libm.so.6").fma
    fma.restype, fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    with np.errstate(over="ignore"):
        cases = np.concatenate(list(edges(np.random.default_rng(1), count)))
    want = np.array([fma(*map(float, row)) for row in cases])
    np.testing.assert_array_equal(bits(fused(cases)), bits(want))


def compared(scenario, folder, what, count):
    """Compares the module with machine code at awkward states; returns how many of them are certain."""
    given = scenario.mechanism, scenario.q0, scenario.v0, scenario.t0
    path, _ = ukjax.export(*given, out=folder, to="wasm", what=what, servo=scenario.servo, name="it")
    module, sure = Module(path), 0
    handles = {name: ukjax.compile(scenario.mechanism, servo=scenario.servo, what=name) for name in what}
    with replaced(sure_way=lambda *_: None):
        for q, v, t in awkward(scenario, count):
            for name, handle in handles.items():
                want = handle(q, v, t)
                certain, (found,) = module(name, q, v, t, gives=[want.size])
                assert certain == handle.certain, (name, q, v, t)
                want = want.ravel() if certain else np.full(want.size, np.nan)
                np.testing.assert_array_equal(bits(found), bits(want))
                sure += certain
    return sure


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (unicycle.scenario, ["acceleration", "control"]),
        long(scara.scenario, ["acceleration", "constraint_force", "jacobian"]),
        long(governor.scenario, ["acceleration"]),
        long(n_pendulum.closed, ["acceleration"]),
    ],
    ids=lambda x: getattr(x, "__module__", "-"),
)
def test_bits_are_those_of_machine_code(case, what, tmp_path):
    scenario = case()
    assert 20 * len(what) < compared(scenario, tmp_path, what, 100) < 100 * len(what)


@pytest.mark.long
@pytest.mark.parametrize("target", GALLERY)
def test_bits_of_the_gallery(target, tmp_path):
    """Every scenario that is scalar code, with its servo; some are nowhere certain."""
    scenario, what, scalar = of_gallery(target)
    if scalar:
        assert compared(scenario, tmp_path, what, 100) <= 100 * len(what)


def test_remainders_and_single_precision(tmp_path):
    """A force with the remainder of a division, and one in single precision with a sine."""
    wound = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.stack([jnp.fmod(q[0], v[0]), q[1] % v[1]]))
    path, _ = ukjax.export(ukjax.Mechanism(wound), [0.0, 0.0], [1.0, 1.0], out=tmp_path, to="wasm", name="it")
    module, handle = Module(path), ukjax.compile(ukjax.Mechanism(wound))
    for q, v in np.exp(np.random.default_rng(0).normal(size=(50, 2, 2)) * 20):
        _, (found,) = module("acceleration", q, v, 0.0, gives=[2])
        assert found[0] == np.fmod(q[0], v[0])
        np.testing.assert_array_equal(bits(found), bits(np.asarray(handle(q, v))))
    turn = lambda q, v, t: jnp.stack([jnp.sin(q[0]), jnp.float32(-9.81)])
    rod = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    small = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2, dtype=q.dtype), turn), rod)
    q, v = np.array([0.6, -0.8], np.float32), np.array([0.4, 0.3], np.float32)
    path, script = ukjax.export(small, q, v, out=tmp_path, to="wasm", name="small")
    assert "Float32Array" in script.read_text()
    _, (found,) = Module(path, "small")("acceleration", q, v, 0.0, gives=[2])
    np.testing.assert_array_equal(found.view(np.uint32), ukjax.compile(small)(q, v).view(np.uint32))


def test_javascript_calls_it(tmp_path):
    """The script that is written beside, in the engine that browsers have."""
    law = ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]])
    mechanism = ukjax.Mechanism(falling())
    path, script = ukjax.export(
        mechanism, [0.0, 0.0], [0.0, 0.0], out=tmp_path, to="wasm", name="stone", servo=law,
        what=["acceleration", "plant_step"], parameters=["system_m"], coordinates=["x */ [m]", "y [m]"],
    )  # fmt: skip
    assert [x.name for x in (path, script)] == ["stone.wasm", "stone.js"]
    text = script.read_text()
    assert "q: coordinates: x * / [m], y [m]" in text
    assert "plant_step(q, v, t, u, h, p) -> {certain, q_next, v_next}: A step" in text
    engine = MiniRacer()
    engine.eval(text.replace("export ", "") + f"const BYTES = new Uint8Array({list(path.read_bytes())});")
    at_once = "instance: new WebAssembly.Instance(new WebAssembly.Module(bytes))"
    engine.eval(f"WebAssembly.instantiate = async bytes => ({{ {at_once} }})")
    engine.eval("let stone, said; load(BYTES).then(x => { stone = x; })")
    shown = lambda code: json.loads(engine.eval(f"JSON.stringify({code})"))
    assert shown("[SIZES, PARAMETERS]") == [
        {"COORDINATES": 2, "SPEEDS": 2, "CONTROLS": 1, "PARAMETERS": 1}, {"system_m": 1.0}
    ]  # fmt: skip
    got = shown("stone.acceleration([3, 1], [0, 0], 0, [2])")
    assert got == {"certain": True, "a": {"0": -1.5, "1": -9.81}}
    got = shown("stone.plant_step([0, 0], [1, 2], 0, [4], 0.5, [2])")
    np.testing.assert_allclose(list(got["v_next"].values()), [2.0, 2.0 - 9.81 / 2], rtol=1e-14)
    for wrong, words in (("[0]", "q has 2 numbers"), ("[0, 0], [0, 0]", "acceleration takes q, v, t, p")):
        call = f"stone.acceleration({wrong if ',' in wrong else wrong + ', [0, 0], 0, [1]'})"
        assert words in engine.eval(f"try {{ {call}; 'nothing' }} catch (error) {{ error.message }}")


def test_what_is_uncertain_is_no_number(tmp_path):
    two = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]]))
    mechanism = ukjax.Mechanism(pendulum().system, two)
    path, _ = ukjax.export(mechanism, [0.6, -0.8], [0.8, 0.6], out=tmp_path, to="wasm", name="it")
    module = Module(path)
    for t, want in ((0.0, 1), (1.0 - 1e-5, 0)):
        certain, (a,) = module("acceleration", np.array([0.6, -0.8]), np.array([0.8, 0.6]), t, gives=[2])
        assert certain == want
        assert np.all(np.isfinite(a)) == want
