"""An exported controller and an exported plant, stepped in C, move as they do here."""

import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import scara

from ..helpers import long
from .compilers import STRICT, compile_c, first


LOOP = """
#include <stdio.h>
#include "arm.h"

int main(void)
{
    double q[ARM_COORDINATES] = { %(q)s }, v[ARM_SPEEDS] = { %(v)s };
    int i, k, certain = 1;
    for (k = 0; k < %(steps)d; k++) {
%(body)s
    }
    for (i = 0; i < ARM_COORDINATES; i++) printf("%%.17g %%.17g\\n", q[i], v[i]);
    return !certain;
}
"""
SAMPLED = """
        double u[ARM_CONTROLS];
        certain &= arm_control(q, v, k * 1e-3, u);
        certain &= arm_plant_step(q, v, k * 1e-3, u, 1e-3, q, v);
"""
SMOOTH = """
        certain &= arm_step(q, v, k * 1e-3, 1e-3, q, v);
"""


def servoed():
    """The SCARA with a motor at each joint, which lead its tool along the helix."""
    arm = scara.Scara()
    helix = ukjax.Holonomic(arm.on_helix, ukjax.Baumgarte.classic(10.0, 10.0))
    q, v = (jnp.array(x) for x in scara.STARTS["printed"])
    return ukjax.Mechanism(arm), ukjax.Servo(helix, jnp.eye(4)), q, v


def run_in_c(folder, body, seconds):
    """q and v after some seconds of steps of a millisecond."""
    mechanism, servo, q, v = servoed()
    what = ["control", "plant_step", "step"]
    source, _ = ukjax.export(mechanism, q, v, servo=servo, what=what, out=folder, name="arm")
    listed = lambda x: ", ".join(float(y).hex() for y in x)
    text = LOOP % {"q": listed(q), "v": listed(v), "steps": round(1000 * seconds), "body": body}
    (folder / "loop.c").write_text(text)
    compile_c(first(), *STRICT, "-I", folder, folder / "loop.c", source, "-o", folder / "loop", "-lm")
    done = subprocess.run([folder / "loop"], capture_output=True, text=True)
    assert done.returncode == 0, "a state was not certain"
    return np.array([line.split() for line in done.stdout.splitlines()], float).T


@pytest.mark.parametrize("seconds", [1.0, long(10.0)])
def test_a_servo_sampled_at_a_kilohertz(tmp_path, seconds):
    mechanism, servo, q, v = servoed()
    law = lambda q, v, t: ukjax.servo_control(mechanism, servo, q, v, t, throw=False).u
    sampled = ukjax.Feedback(law, jnp.eye(4), period=1e-3)
    want = ukjax.simulate(
        mechanism, q, v, np.array([0.0, seconds]), servo=sampled, rtol=1e-12, atol=1e-12, max_steps=200_000
    )
    found = run_in_c(tmp_path, SAMPLED, seconds)
    assert np.max(np.abs(found[0] - want.q[-1])) < 1e-10
    assert np.max(np.abs(found[1] - want.v[-1])) < 1e-10


@pytest.mark.long
def test_a_servo_that_acts_all_the_time(tmp_path):
    mechanism, servo, q, v = servoed()
    want = ukjax.simulate(mechanism, q, v, np.array([0.0, 1.0]), servo=servo, rtol=1e-11, atol=1e-11)
    found = run_in_c(tmp_path, SMOOTH, 1.0)
    assert np.max(np.abs(found[0] - want.q[-1])) < 1e-9
    assert np.max(np.abs(found[1] - want.v[-1])) < 1e-9
