"""Exported C: the time of a call, state by state, beside the same function as machine code called from Python.

A call is timed five times and the least is taken. The states that took longest are timed again later, many times: a
state that is slow is slow then too, and an interruption of the machine is not. The worst is that of a million states.
"""

import shutil
import subprocess
import tempfile
import timeit
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import ukjax
from models import n_pendulum, scara, six_joint_arm


HEADER = ("exported C, on one core", "median", "worst / median", "code", "from Python", "certain")
STATES, CALLS = 1_000_000, 5
SLOWEST, ROUNDS = 1000, 50
OPTIONS = ["-O2", "-march=native", "-ffp-contract=off"]
TIMED = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "it.h"

static unsigned long long seed = 88172645463325252ull;
static double drawn(void)
{
    double x = 0;
    int i;
    for (i = 0; i < 12; i++) {
        seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
        x += (double)(seed >> 11) / 9007199254740992.0;
    }
    return x - 6;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

struct timed { double time; unsigned long long seed; };

static int order(const void *x, const void *y)
{
    double a = ((const struct timed *)x)->time, b = ((const struct timed *)y)->time;
    return (a > b) - (a < b);
}

static double empty = 1e9, sum = 0;

/* The least time of some calls at the state that a seed gives; the seed is another one then. */
static double least(int calls, int *sure)
{
    static const double q0[] = { %(q)s }, v0[] = { %(v)s };
    double q[IT_COORDINATES], v[IT_SPEEDS], found[IT_SPEEDS + 64], time = 1e9, spread = %(spread)s;
    int i;
    for (i = 0; i < IT_COORDINATES; i++) q[i] = q0[i] + spread * drawn();
    for (i = 0; i < IT_SPEEDS; i++) v[i] = v0[i] + spread * drawn();
    for (i = 0; i < calls; i++) {
        double t = now();
        *sure = it_%(what)s(q, v, 0.1, found);
        t = now() - t;
        if (t < time) time = t;
    }
    sum += found[0] == found[0] ? found[0] : 0;
    return time - empty;
}

int main(void)
{
    static struct timed all[%(states)d];
    struct timed *slowest = all + %(states)d - %(slowest)d;
    int k, round, sure, certain = 0;
    double worst;
    for (k = 0; k < 1000; k++) {
        double t = now();
        t = now() - t;
        if (t < empty) empty = t;
    }
    for (k = 0; k < %(states)d; k++) {
        all[k].seed = seed;
        all[k].time = least(%(calls)d, &sure);
        certain += sure;
    }
    qsort(all, %(states)d, sizeof *all, order);
    for (round = 0; round < %(rounds)d; round++)
        for (k = 0; k < %(slowest)d; k++) {
            double time;
            seed = slowest[k].seed;
            time = least(%(calls)d, &sure);
            if (time < slowest[k].time) slowest[k].time = time;
        }
    worst = slowest[-1].time;
    printf("%%g %%g ", all[%(states)d / 2].time, slowest[-1].time);
    for (k = 0; k < %(slowest)d; k++)
        if (slowest[k].time > worst) worst = slowest[k].time;
    printf("%%g %%d %%g\\n", worst, certain, sum);
    return 0;
}
"""


def _cases():
    arm = scara.Scara()
    helix = ukjax.Holonomic(arm.on_helix, ukjax.Baumgarte.classic(10.0, 10.0))
    start = [jnp.array(x) for x in scara.STARTS["consistent"]]
    servo = ukjax.Servo(helix, jnp.eye(4))
    yield "SCARA: control of its servo", ukjax.Mechanism(arm), servo, *start, "control", 0.3
    case = scara.scenario()
    yield "SCARA on its helix: acceleration", case.mechanism, None, case.q0, case.v0, "acceleration", 0.3
    case = n_pendulum.closed()
    yield "closed chain of five rods: acceleration", case.mechanism, None, case.q0, case.v0, "acceleration", 0.01
    case = six_joint_arm.scenario()
    yield "arm of six joints: control of its servo", case.mechanism, case.servo, case.q0, case.v0, "control", 0.1


def rows(say) -> list[tuple[str, ...]]:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return [("no C compiler", "", "", "", "", "")]
    return [_row(say, compiler, *case) for case in _cases()]


def _row(say, compiler, name, mechanism, servo, q, v, what, spread):
    say(name)
    handle = ukjax.compile(mechanism, servo=servo, what=what)
    q, v = np.asarray(q), np.asarray(v)
    handle(q, v, 0.1)
    python = min(timeit.repeat(lambda: handle(q, v, 0.1), number=2000, repeat=7)) / 2000
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        source, _ = ukjax.export(mechanism, q, v, servo=servo, what=what, out=here, name="it")
        listed = lambda x: ", ".join(float(y).hex() for y in x)
        text = TIMED % {
            "q": listed(q), "v": listed(v), "states": STATES, "calls": CALLS, "what": what, "spread": spread,
            "slowest": SLOWEST, "rounds": ROUNDS,
        }  # fmt: skip
        (here / "timed.c").write_text(text)
        build = [compiler, *OPTIONS]
        subprocess.run([*build, "-std=c99", "-c", source, "-o", here / "it.o"], check=True)
        subprocess.run([*build, here / "timed.c", here / "it.o", "-o", here / "timed", "-lm"], check=True)
        size = subprocess.run(["size", here / "it.o"], check=True, capture_output=True, text=True).stdout
        done = subprocess.run([here / "timed"], check=True, capture_output=True, text=True).stdout
    median, late, worst, certain, _ = map(float, done.split())
    return (
        name,
        f"{median / 1e3:.2f} µs",
        f"{worst / median:.1f} (of 999 in 1000 {late / median:.2f})",
        f"{int(size.splitlines()[1].split()[0]) / 1e3:.1f} kB",
        f"{1e6 * python:.2f} µs",
        f"{certain / STATES:.1%}",
    )
