"""The files, and what is said of what cannot be exported, before anything is written."""

import subprocess

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import flexible_joint

from ..helpers import falling, pendulum, sampled
from .compilers import COMPILERS, STRICT, compile_c, first


Q, V = [0.6, -0.8], [0.0, 0.0]
HELD = ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]], period=0.1)
LAW = ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]])


def refused(tmp_path, error, match, *given, **options):
    with pytest.raises(error, match=match):
        ukjax.export(*(given or (pendulum(), Q, V)), **{"out": tmp_path / "a" / "b", **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"to": "fmu2"}, "to must be of 'c', 'object', 'wasm', 'casadi', 'fmu', but is 'fmu2'"),
        ({"to": None}, "to must be of"),
        ({"what": "speed"}, "what must be of 'acceleration', .*, but is or has 'speed'"),
        ({"what": []}, "is empty"),
        ({"what": ["acceleration", 3]}, "but is or has 3"),
        ({"what": "control"}, "there is no servo. Pass servo="),
        ({"what": "plant_step"}, "there is no servo"),
        ({"what": "step", "servo": HELD}, 'memory or samples. Export "control", and "plant"'),
        ({"name": ""}, "name must be one that C takes"),
        ({"name": "2bars"}, "name must be one that C takes.*'2bars'"),
        ({"name": "a-b"}, "name must be one that C takes"),
        ({"name": "größe"}, "name must be one that C takes"),
        ({"name": "../up"}, "name must be one that C takes"),
        ({"name": "x" * 65}, "at most 64"),
        ({"cpu": "cortex-m7"}, 'are for to="object"'),
        ({"parameters": ["mass"]}, "parameters must be of system_m, system_g, .*; not 'mass'"),
        ({"coordinates": ["x [m]"]}, "coordinates must be 2 names"),
        ({"controls": ["u [N]", "w [N]"], "servo": LAW}, "controls must be 1 names"),
    ],
)
def test_values_that_are_refused(tmp_path, options, match):
    refused(tmp_path, ValueError, match, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"what": 3}, "what must be a name, or a tuple of names"),
        ({"name": 3}, "name must be text"),
        ({"out": None}, "out must be a path"),
        ({"parameters": "system_m"}, "parameters must be True, False or a list"),
        ({"solver": diffrax.KenCarp4()}, "solver must be an instance of AbstractERK"),
        ({"projection": True}, "projection must be"),
        ({"servo": 3}, "servo must be"),
        ({"to": "object", "target": 3}, "target must be text"),
    ],
)
def test_kinds_that_are_refused(tmp_path, options, match):
    refused(tmp_path, TypeError, match, **options)


def test_states_that_are_refused(tmp_path):
    refused(tmp_path, TypeError, "mechanism must be", "robot", Q, V)
    refused(tmp_path, ValueError, "must have the same shape", pendulum(), Q, [0.0])
    refused(tmp_path, ValueError, "q must be finite", pendulum(), [np.nan, 0.0], V)
    refused(tmp_path, ValueError, "t must be finite", pendulum(), Q, V, np.nan)
    plain = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: -q)
    refused(tmp_path, ValueError, "there are none: numbers within", ukjax.Mechanism(plain), Q, V, parameters=True)
    with pytest.raises(TypeError, match="export writes files"):
        jax.jit(lambda q: ukjax.export(pendulum(), q, jnp.zeros(2), out=tmp_path / "a"))(jnp.zeros(2))


def test_functions_that_are_not_scalar(tmp_path):
    scenario = flexible_joint.scenario()
    given = scenario.mechanism, scenario.q0, scenario.v0
    refused(
        tmp_path,
        ValueError,
        "what='acceleration' cannot be exported, for it is no scalar program: .*ConstraintFollowing",
        *given,
        servo=scenario.servo,
    )
    asked = lambda q, v, t: jax.pure_callback(lambda q: np.asarray(q), jax.ShapeDtypeStruct((2,), q.dtype), q)
    refused(
        tmp_path,
        ValueError,
        "M, Q, A and b of the mechanism are no scalar program: a call of Python",
        ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), asked)),
        Q,
        V,
    )
    special = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jax.scipy.special.erf(q))
    refused(
        tmp_path,
        ValueError,
        "M, Q, A and b of the mechanism are no scalar program: .*erf",
        ukjax.Mechanism(special),
        Q,
        V,
    )


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="out=.*cannot be written to: Not a directory|File exists"):
        ukjax.export(pendulum(), Q, V, out=tmp_path / "file")
    assert [x.name for x in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_files_are_replaced_all_or_none(tmp_path):
    (tmp_path / "rod.h").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    special = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jax.scipy.special.erf(q))
    with pytest.raises(ValueError, match="erf"):
        ukjax.export(ukjax.Mechanism(special), Q, V, out=tmp_path, name="rod")
    assert (tmp_path / "rod.h").read_text() == "old"
    assert [x.name for x in ukjax.export(pendulum(), Q, V, out=tmp_path, name="rod")] == ["rod.c", "rod.h"]
    assert sorted(x.name for x in tmp_path.iterdir()) == ["notes.txt", "rod.c", "rod.h"]
    assert "rod_acceleration" in (tmp_path / "rod.h").read_text()


def test_the_same_mechanism_makes_the_same_files(tmp_path):
    texts = [[x.read_text() for x in ukjax.export(pendulum(), Q, V, out=tmp_path / str(i))] for i in range(2)]
    assert texts[0] == texts[1]


EVERYTHING = (
    *("acceleration", "control", "constraint_force", "jacobian", "step", "plant", "plant_jacobian", "plant_step"),
    *("inverse_dynamics", "projection"),
)


@pytest.mark.parametrize("compiler", sampled(list(COMPILERS), [first()]))
def test_the_main_of_the_file_compares_bits(tmp_path, compiler):
    """All functions, with parameters; and it fails where a bit is another."""
    rod = ukjax.Mechanism(falling(), ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None], ukjax.Baumgarte(2.0, 1.0)))
    options = {
        "servo": LAW,
        "what": EVERYTHING,
        "parameters": True,
        "name": "Rod",
        "coordinates": ["x */ [m]", "ü\\ [m]"],
    }
    source, head = ukjax.export(rod, Q, V, out=tmp_path, **options)
    for name in EVERYTHING:
        assert f"int Rod_{name}(const double q[ROD_COORDINATES], " in head.read_text()
    compile_c(compiler, *STRICT, "-DROD_TEST", source, "-o", tmp_path / "test", "-lm")
    done = subprocess.run([tmp_path / "test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Rod_projection: 8 states" in done.stdout
    assert done.stdout.endswith("0 results differ\n")
    text = source.read_text()
    place = text.index("expected[8][2] = {") + text[text.index("expected[8][2] = {") :].index("0x")
    changed = text[: place + 2] + ("4" if text[place + 2] != "4" else "3") + text[place + 3 :]
    (tmp_path / "Wrong.c").write_text(changed)
    compile_c(compiler, *STRICT, "-DROD_TEST", tmp_path / "Wrong.c", "-o", tmp_path / "wrong", "-lm")
    done = subprocess.run([tmp_path / "wrong"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 results differ")


def test_code_needs_ieee_arithmetic(tmp_path):
    source, _ = ukjax.export(pendulum(), Q, V, out=tmp_path)
    with pytest.raises(AssertionError, match="without -ffast-math"):
        compile_c(first(), "-std=c99", "-ffast-math", "-c", source, "-o", tmp_path / "x.o")


def test_units_stand_in_the_header(tmp_path):
    _, head = ukjax.export(
        pendulum(), Q, V, out=tmp_path, what=["acceleration", "constraint_force"], coordinates=["x [m]", "angle [rad]"]
    )
    text = head.read_text()
    for words in (
        "x [m], angle [rad]",
        "x' [m/s], angle' [rad/s]",
        "x'' [m/s^2], angle'' [rad/s^2]",
        "x [N], angle [N m]",
    ):
        assert words in text
