"""Objects: the same functions, linked to C of this machine; and object files for other machines."""

import numpy as np
import pytest

import ukjax
from models import unicycle

from ..helpers import pendulum
from .compilers import Library


def exported(folder, **options):
    scenario = unicycle.scenario()
    given = scenario.mechanism, scenario.q0, scenario.v0
    return ukjax.export(*given, servo=scenario.servo, out=folder, name="it", **options)


@pytest.mark.long
def test_an_object_has_the_bits_of_c(tmp_path):
    scenario, what = unicycle.scenario(), ["acceleration", "control", "step", "jacobian"]
    code, objects = (exported(tmp_path, to=to, what=what, parameters=True) for to in ("c", "object"))
    assert [x.name for x in (*code, *objects)] == ["it.c", "it.h", "it.o", "it.h"]
    c, machine = Library(code[0], "it"), Library(objects[0], "it")
    p = [np.zeros(64), np.zeros(64)]
    for one, values in zip((c, machine), p, strict=True):
        one.functions.it_defaults(np.ctypeslib.as_ctypes(values))
    np.testing.assert_array_equal(*p)
    random, q, v = np.random.default_rng(0), np.asarray(scenario.q0), np.asarray(scenario.v0)
    found = set()
    for scale in (0.0, 1e-9, 0.1, 1e10, np.nan):
        q_, v_ = q + scale * random.normal(size=3), v + scale * random.normal(size=3)
        for name, more, gives in (
            ("acceleration", (), [3]), ("control", (), [2]), ("step", (1e-3,), [3, 3]), ("jacobian", (), [18])
        ):  # fmt: skip
            one, other = (x(name, q_, v_, 0.3, *more, p[0], gives=gives) for x in (c, machine))
            assert one[0] == other[0]
            np.testing.assert_array_equal(np.concatenate(one[1]), np.concatenate(other[1]))
            found.add(one[0])
    assert found == {0, 1}


# First bytes of a file, and the machine's number in an ELF file.
@pytest.mark.parametrize(
    ("target", "cpu", "magic", "number"),
    [
        ("aarch64-linux-gnu", "cortex-a72", b"\x7fELF\x02", 183),
        ("thumbv7em-none-eabihf", "cortex-m7", b"\x7fELF\x01", 40),
        ("i686-linux-gnu", "pentium4", b"\x7fELF\x01", 3),
        ("riscv64-unknown-elf", "", b"\x7fELF\x02", 243),
        ("wasm32-unknown-unknown", "", b"\0asm", None),
    ],
)
def test_objects_for_other_machines(tmp_path, target, cpu, magic, number):
    code = exported(tmp_path, to="object", target=target, cpu=cpu)[0].read_bytes()
    assert code.startswith(magic)
    assert number is None or int.from_bytes(code[18:20], "little") == number
    assert b"it_acceleration" in code
    assert b"it_control" in code


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target": "toaster"}, 'no code for toaster.*"toaster"'),
        ({"target": "x86_64-linux-gnu", "cpu": "abacus"}, "no code for x86_64-linux-gnu abacus: 'abacus' is not"),
        ({"target": "x86_64-linux-gnu", "features": "+wings"}, "'\\+wings' is not a recognized feature"),
        ({"target": "armv7-none-eabihf"}, "armv7-none-eabihf: it would have to call fma.* Name a processor"),
        ({"target": "nvptx64-nvidia-cuda"}, "can't emit a file of this type"),
    ],
)
def test_no_such_target(tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        ukjax.export(pendulum(), [0.6, -0.8], [0.0, 0.0], out=tmp_path / "new", to="object", **options)
    assert not list(tmp_path.iterdir())
