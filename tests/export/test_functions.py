"""The values of exported functions: by other functions of ours, closed forms, and their own differences."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum, scara, unicycle

from ..helpers import assert_close, falling, long, pendulum, sampled
from ..inside import replaced
from .compilers import COMPILERS, Library, first


def exported(folder, mechanism, q, v, what, **options):
    return Library(ukjax.export(mechanism, q, v, out=folder, what=what, name="it", **options)[0], "it")


Q, V, U = np.array([0.3, -0.4, 0.2, 0.1]), np.array([0.5, 0.1, -0.3, 0.2]), np.array([1.0, -2.0, 0.5, 3.0])


def arm():
    return ukjax.Mechanism(scara.Scara()), ukjax.Feedback(lambda q, v, t: -q, np.eye(4))


def test_a_plant_moves_as_its_control_asks(tmp_path):
    mechanism, law = arm()
    call = exported(tmp_path, mechanism, Q, V, ["plant", "plant_jacobian", "inverse_dynamics"], servo=law)
    certain, (a,) = call("plant", Q, V, 0.0, U, gives=[4])
    assert certain == 1
    assert_close(a, ukjax.equation_of_motion(mechanism, Q, V, applied=U).acceleration, rtol=1e-12)
    _, (force,) = call("inverse_dynamics", Q, V, 0.0, a, gives=[4])
    assert_close(force, U, rtol=1e-9, atol=1e-9)
    _, (J,) = call("plant_jacobian", Q, V, 0.0, U, gives=[48])
    for k, d in enumerate(1e-6 * np.eye(12)):
        moved = [call("plant", Q + s * d[:4], V + s * d[4:8], 0.0, U + s * d[8:], gives=[4])[1][0] for s in (1, -1)]
        assert_close(J.reshape(4, 12)[:, k], (moved[0] - moved[1]) / 2e-6, rtol=1e-6, atol=1e-6)


def test_a_step_follows_a_parabola_and_may_overwrite_its_start(tmp_path):
    mechanism = ukjax.Mechanism(falling())
    call = exported(tmp_path, mechanism, np.zeros(2), np.zeros(2), "step")
    q, v, h = np.array([1.0, 2.0]), np.array([0.5, 3.0]), 0.25
    _, (q1, v1) = call("step", q, v, 0.0, h, gives=[2, 2])
    assert_close(q1, q + h * v + np.array([0.0, -9.81 * h**2 / 2]), rtol=1e-14)
    assert_close(v1, v + np.array([0.0, -9.81 * h]), rtol=1e-14)
    places = [ctypes.c_void_p(x.ctypes.data) for x in (q, v)]
    call.functions.it_step(*places, ctypes.c_double(0.0), ctypes.c_double(h), *places)
    np.testing.assert_array_equal(np.concatenate([q, v]), np.concatenate([q1, v1]))


@pytest.mark.long
def test_a_projection_returns_to_the_constraints(tmp_path):
    scenario = n_pendulum.closed(N=3)
    mechanism, back = scenario.mechanism, ukjax.Projection(iterations=3)
    call = exported(tmp_path, mechanism, scenario.q0, scenario.v0, ["projection", "step"], projection=back)
    q, v = np.asarray(scenario.q0) + 1e-3 * np.sin(np.arange(9.0)), np.asarray(scenario.v0) + 0.1
    certain, (q1, v1) = call("projection", q, v, 0.0, gives=[9, 9])
    assert certain == 1
    nearest = ukjax.assemble(mechanism, q, v)
    assert_close(q1, nearest.q, atol=1e-6)
    errors = lambda q, v: np.concatenate([mechanism.position_error(q, 0.0), mechanism.velocity_error(q, v, 0.0)])
    assert np.max(np.abs(errors(q1, v1))) < 1e-13
    certain, end = call("step", q1, v1, 0.0, 1e-2, gives=[9, 9])
    assert certain == 1
    assert np.max(np.abs(errors(*end))) < 1e-12


def test_controllers_with_memory(tmp_path):
    mechanism, push = ukjax.Mechanism(falling()), np.array([[1.0], [0.5]])
    law = lambda q, v, t, x: (x[:1] - q[:1]) * jnp.cos(t)
    sampled = ukjax.Feedback(
        law, push, memory=[0.2, 0.3], update=lambda q, v, t, x: 0.5 * x + q, period=0.1, limits=(-0.4, 0.4)
    )
    q, v, x, t = np.array([0.7, -0.1]), np.zeros(2), np.array([1.5, 0.3]), 0.4
    call = exported(tmp_path / "a", mechanism, q, v, ["control", "plant_step"], servo=sampled)
    certain, (u, after) = call("control", q, v, t, x, gives=[1, 2])
    assert certain == 1
    assert_close(u, [0.4], rtol=1e-15)
    assert_close(after, 0.5 * x + q, rtol=1e-15)
    smooth = ukjax.Feedback(law, push, memory=[0.2, 0.3], rates=lambda q, v, t, x: v - x)
    call = exported(tmp_path / "b", mechanism, q, v, None, servo=smooth)
    _, (u, rate) = call("control", q, v, t, x, gives=[1, 2])
    assert_close(u, [0.8 * np.cos(0.4)], rtol=1e-14)
    assert_close(rate, -x, rtol=1e-15)
    _, (a,) = call("plant", q, v, t, u, gives=[2])
    assert_close(a, np.array([0.0, -9.81]) + push[:, 0] * u[0], rtol=1e-14)


def test_a_sample_without_memory_is_a_function_of_the_state(tmp_path):
    held = ukjax.Feedback(lambda q, v, t: -3.0 * q[:1], [[1.0], [0.0]], period=0.1)
    call = exported(tmp_path, ukjax.Mechanism(falling()), np.zeros(2), np.zeros(2), "control", servo=held)
    assert_close(call("control", np.array([0.5, 0.0]), np.zeros(2), 0.0, gives=[1])[1][0], [-1.5])


def test_parameters_are_arguments(tmp_path):
    """Those of the mechanism and of the servo; the values they had are the defaults."""
    scenario = unicycle.scenario()
    names, call = {}, {}
    for chosen in (True, False):
        paths = ukjax.export(
            scenario.mechanism, scenario.q0, scenario.v0, out=tmp_path / str(chosen), what=["control"], name="it",
            servo=scenario.servo, parameters=chosen,
        )  # fmt: skip
        call[chosen] = Library(paths[0], "it")
        names[chosen] = [x.strip(" ,") for x in paths[1].read_text().splitlines() if x.startswith("    IT_P_")]
    assert not names[False]
    p = np.zeros(len(names[True]))
    call[True].functions.it_defaults(ctypes.c_void_p(p.ctypes.data))
    q, v = np.asarray(scenario.q0), np.asarray(scenario.v0)
    want = call[False]("control", q, v, 0.2, gives=[2])[1][0]
    assert_close(call[True]("control", q, v, 0.2, p, gives=[2])[1][0], want, rtol=1e-9)
    for i, (name, leaf) in enumerate(zip(names[True], p, strict=True)):
        assert name.startswith(("IT_P_SYSTEM", "IT_P_SERVO", "IT_P_CONSTRAINTS")), name
        assert np.isfinite(leaf), i


def test_one_parameter_is_an_argument(tmp_path):
    """The mass of a falling body, under a force of its own; the others stay constants."""
    system = falling()
    law = ukjax.Feedback(lambda q, v, t: jnp.ones(2, q.dtype), np.eye(2))
    call = exported(
        tmp_path, ukjax.Mechanism(system), np.zeros(2), np.zeros(2), "acceleration", servo=law, parameters=["system_m"]
    )
    for mass in (1.0, 4.0):
        _, (a,) = call("acceleration", np.zeros(2), np.zeros(2), 0.0, np.array([mass]), gives=[2])
        assert_close(a, np.array([1.0 / mass, 1.0 / mass - 9.81]), rtol=1e-14)


def everything(q, v, t):
    """A force that takes every operation for which there is machine code."""
    x, y = q[0], v[0]
    n = jnp.asarray(10 * x, int)
    small = jnp.clip(x, -0.9, 0.9)
    values = [
        *(f(x) for f in (jnp.sin, jnp.cos, jnp.tan, jnp.arctan, jnp.sinh, jnp.cosh, jnp.tanh, jnp.arcsinh, jnp.exp)),
        *(f(x) for f in (jnp.expm1, jnp.exp2, jnp.cbrt, jnp.abs, jnp.sign, jnp.floor, jnp.ceil, jnp.round, jnp.sqrt)),
        *(f(small) for f in (jnp.arcsin, jnp.arccos, jnp.arctanh, jnp.log1p, jax.nn.sigmoid, jnp.square)),
        jnp.log(jnp.abs(x)), jnp.arccosh(1 + jnp.abs(x)), jnp.arctan2(x, y), jnp.abs(x) ** y, x**5, x**-2,
        jax.lax.rsqrt(jnp.abs(y)), jnp.maximum(x, y), jnp.minimum(x, y), jax.lax.rem(x, y), jnp.where(x > y, x, -y),
        *(jnp.asarray(k, float) for k in (n // 3, n % 7, jax.lax.rem(n, 5), n * n, -n, n & 12, n | 3, n ^ 5, ~n)),
        *(jnp.asarray(jnp.asarray(x, kind), float) for kind in (jnp.uint8, jnp.int16, jnp.uint64, jnp.float32)),
        *(jnp.asarray(k, float) for k in (n > 2, abs(n), jnp.sign(n), (x > 0) ^ (y < 1), jnp.isfinite(x))),
    ]  # fmt: skip
    return jnp.stack(values)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("part", [4000, long(40)])
def test_every_operation_has_the_bits_of_machine_code(tmp_path, compiler, part):
    n = jax.eval_shape(everything, jnp.zeros(1), jnp.zeros(1), 0.0).shape[0]
    system = ukjax.System(lambda q, t: jnp.eye(n), everything)
    mechanism, zero = ukjax.Mechanism(system), np.zeros(n)
    with replaced(c_part=part):
        paths = ukjax.export(mechanism, zero, zero, out=tmp_path, name="it")
    assert ("it_acceleration_part1" in paths[0].read_text()) == (part == 40)
    call, handle = Library(paths[0], "it", compiler), ukjax.compile(mechanism)
    numbers = [
        0.0,
        -0.0,
        1e-310,
        1e-20,
        0.1,
        0.7,
        -0.7,
        1.0,
        -2.5,
        3.5,
        20.0,
        -750.0,
        1e5,
        1e17,
        -1e300,
        np.inf,
        np.nan,
    ]
    with replaced(sure_way=lambda *_: None):
        for x in numbers:
            for y in numbers:
                q, v = zero + x, zero + y
                certain, (found,) = call("acceleration", q, v, 0.0, gives=[n])
                want = handle(q, v)
                assert certain == handle.certain
                different = (found != want) & ~(np.isnan(found) & np.isnan(want)) if certain else np.isfinite(found)
                assert not np.any(different), (x, y, np.flatnonzero(different))


@pytest.mark.parametrize("compiler", sampled(list(COMPILERS), [first()]))
def test_single_precision(tmp_path, compiler):
    weight = lambda q, v, t: jnp.stack([jnp.sin(q[0]), jnp.float32(-9.81)]) * jnp.maximum(q[1], 0.1)
    system = ukjax.System(lambda q, t: jnp.eye(2, dtype=q.dtype), weight)
    rod = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    mechanism = ukjax.Mechanism(system, rod)
    q, v = np.array([0.6, -0.8], np.float32), np.array([0.4, 0.3], np.float32)
    paths = ukjax.export(mechanism, q, v, out=tmp_path, name="it", what=["acceleration", "step"])
    assert "double" not in paths[1].read_text()
    call, handle = Library(paths[0], "it", compiler), ukjax.compile(mechanism)
    for k in range(20):
        turned = np.array([np.sin(k), -np.cos(k)], np.float32)
        certain, (found,) = call("acceleration", turned, v, 0.0, gives=[2])
        want = handle(turned, v)
        assert certain == handle.certain == True  # noqa: E712
        np.testing.assert_array_equal(found.view(np.uint32), want.view(np.uint32))


def test_where_the_rank_is_not_certain_results_are_not_numbers(tmp_path):
    """Two rows of which one turns into the other: next to t = 1 the rank is a matter of tolerance."""
    two = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]]))
    call = exported(tmp_path, ukjax.Mechanism(pendulum().system, two), [0.6, -0.8], [0.8, 0.6], "acceleration")
    for t, want in ((0.0, 1), (1.0 - 1e-5, 0)):
        certain, (a,) = call("acceleration", np.array([0.6, -0.8]), np.array([0.8, 0.6]), t, gives=[2])
        assert certain == want
        assert np.all(np.isfinite(a)) == want
        assert np.all(np.isnan(a)) != want
