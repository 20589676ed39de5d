"""Exported C on a Cortex-M7: compiled by arm-none-eabi-gcc, run by QEMU on the board mps2-an500, with the same bits.

Debian has both: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm.
"""

import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import pytest

import ukjax
from models import n_pendulum, scara, unicycle
from ukjax.cli import factories

from ..helpers import pendulum
from ..inside import replaced
from .compilers import STRICT, compile_c, first


HERE = Path(__file__).parent
# The compiler and the machine, where both are installed.
FOUND = [shutil.which(x) for x in ("arm-none-eabi-gcc", "qemu-system-arm")]
BOARDS = {"cortex-m7": FOUND} if all(FOUND) else {}
CPU = ["-mcpu=cortex-m7", "-mthumb", "-mfpu=fpv5-d16", "-mfloat-abi=hard", "-O2"]
BOARD = [HERE / "board.c", "-T", HERE / "board.ld", "--specs=rdimon.specs", "-lm"]


def run_on(board, folder, *arguments):
    """What a program prints that is compiled of these arguments."""
    compiler, qemu = BOARDS[board]
    program = folder / "program.elf"
    build = [compiler, *STRICT, *CPU, "-I", folder, *arguments, *BOARD, "-o", program]
    done = subprocess.run([*map(str, build)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    machine = [qemu, "-M", "mps2-an500", "-nographic", "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run([*machine, "-kernel", program], capture_output=True, text=True, timeout=100)
    return done.stdout


def made(folder, mechanism, q, v, **options):
    return ukjax.export(mechanism, q, v, out=folder, name="it", **options)[0]


@pytest.mark.parametrize("board", BOARDS)
def test_bits_on_a_microcontroller(tmp_path, board):
    """By the test that the file carries; and that test fails where a bit is another."""
    law = ukjax.Feedback(lambda q, v, t: -jnp.sin(3.0 * q[:1]), [[1.0], [0.5]])
    source = made(tmp_path, pendulum(), [0.6, -0.8], [0.4, 0.3], what=["control", "step"], servo=law, parameters=True)
    assert run_on(board, tmp_path, "-DIT_TEST", source).endswith("0 results differ\n")
    text = source.read_text()
    place = text.index("expected[8][")
    digit = text.index("0x", place) + 2
    source.write_text(text[:digit] + ("4" if text[digit] != "4" else "3") + text[digit + 1 :])
    assert run_on(board, tmp_path, "-DIT_TEST", source).endswith("1 results differ\n")


@pytest.mark.long
@pytest.mark.parametrize("board", BOARDS)
def test_bits_of_larger_mechanisms_on_a_microcontroller(tmp_path, board):
    arm, chain, robot = scara.scenario(), n_pendulum.closed(N=3), unicycle.scenario()
    for name, case, what in (
        ("robot", robot, ["control", "step", "jacobian"]),
        ("arm", arm, ["acceleration", "constraint_force", "multipliers"]),
        ("chain", chain, ["acceleration", "linearization", "rattle_step", "projection"]),
    ):
        source = made(tmp_path / name, case.mechanism, case.q0, case.v0, what=what, servo=case.servo)
        assert run_on(board, tmp_path / name, "-DIT_TEST", source).endswith("0 results differ\n")


GALLERY = factories("models")[0]


@pytest.mark.long
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("target", GALLERY)
def test_bits_of_the_gallery_on_a_microcontroller(tmp_path, board, target):
    """Every scenario that is scalar code, at 100 states."""
    case = GALLERY[target]()
    what = ["acceleration"] if case.servo is None else ["acceleration", "control"]
    try:
        with replaced(states_of_test=100):
            source = made(tmp_path, case.mechanism, case.q0, case.v0, t=case.t0, what=what, servo=case.servo)
    except ValueError as error:
        if "no scalar program" in str(error):
            return
        raise
    assert run_on(board, tmp_path, "-DIT_TEST", source).endswith("0 results differ\n")


RUN = """
#include <stdio.h>
#include <string.h>
#include "it.h"

int main(void)
{
    static const double q[2] = { 0.6, -0.8 }, v[2] = { 0.4, 0.3 };
    static double qs[11 * 2], vs[11 * 2];
    int i, certain = it_run(q, v, 0.0, 1e-3, 1000, 100, qs, vs);
    printf("%d\\n", certain);
    for (i = 0; i < 22; i++) {
        unsigned long bits[2];
        unsigned int words[2];
        memcpy(words, &qs[i], sizeof words);
        bits[0] = words[0];
        bits[1] = words[1];
        printf("%08lx%08lx\\n", bits[1], bits[0]);
    }
    return 0;
}
"""


@pytest.mark.long
@pytest.mark.parametrize("board", BOARDS)
def test_a_run_on_a_microcontroller(tmp_path, board):
    """A thousand steps end on the same bits as here."""
    source = made(tmp_path, pendulum(), [0.6, -0.8], [0.4, 0.3], what="run", projection=ukjax.Projection())
    (tmp_path / "run.c").write_text(RUN)
    found = run_on(board, tmp_path, tmp_path / "run.c", source)
    compile_c(first(), *STRICT, "-I", tmp_path, tmp_path / "run.c", source, "-o", tmp_path / "here", "-lm")
    want = subprocess.run([tmp_path / "here"], capture_output=True, text=True, check=True).stdout
    assert found == want
    assert found.startswith("1\n")
    options = {"to": "object", "target": "thumbv7em-none-eabihf", "cpu": "cortex-m7", "projection": ukjax.Projection()}
    code = made(tmp_path / "object", pendulum(), [0.6, -0.8], [0.4, 0.3], what="run", **options)
    assert run_on(board, tmp_path, tmp_path / "run.c", code) == want
