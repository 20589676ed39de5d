"""Checkpoints of a tuning whose definition is edited: refused; what is only moved or renamed goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ukjax

from ..edited import imported
from ..helpers import standard_promotion
from ..inside import Objective, Samples, Stopping, definition_of


@pytest.fixture(autouse=True)
def promotion():
    with standard_promotion():
        yield


MODEL = '''
"""How far a weight falls that something holds back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fall_parts
import ukjax

GRAVITY = 9.81
TARGET = np.array([0.5, 1.5])


@eqx.filter_jit
def checked(x):
    return eqx.error_if(x, x > 1e6, "far away")


class Plan:
    def __init__(self):
        self.weight = 2.0


PLAN = Plan()


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -10.0, 10.0)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, c: (1.0 * c,))


@jax.custom_jvp
def rounded(x):
    return x + 0.0


@rounded.defjvp
def _(primals, tangents):
    return rounded(*primals), 1.5 * tangents[0]


def on_the_host(x):
    return np.asarray(0.0 * x)


@jax.custom_jvp
def watched(x):
    kind = jax.ShapeDtypeStruct((), x.dtype)
    return x + jax.pure_callback(on_the_host, kind, x, vmap_method="sequential")


@watched.defjvp
def _(primals, tangents):
    return watched(*primals), tangents[0]


def loss(p, sample, power=2):
    """The square of what is missed."""
    # of two times
    place = checked(p["place"])
    fallen = GRAVITY / 2 * TARGET**2 - fall_parts.held_back(clipped(p["force"]), TARGET) * sample
    missed = fallen - rounded(place)
    return PLAN.weight * jnp.sum(missed**power) + watched(p["place"]) ** 2


START = {"force": jnp.array(1.0), "place": jnp.array(0.5)}
OPTIMIZER = optax.adam(0.1)
OPTIONS = {"samples": jnp.array([1.0, 1.25]), "bounds": (-5.0, 5.0), "rtol": 1e-9, "patience": 50}
'''
PARTS = """
MASS = 2.0


def held_back(force, t):
    return force / MASS * t**2 / 2
"""
FILES = {"fall_loss": MODEL, "fall_parts": PARTS}
EDITS = {
    "a number of the module": (("fall_loss", "9.81", "1.62"), "loss"),
    "a sign": (("fall_loss", "TARGET**2 - fall", "TARGET**2 + fall"), "loss"),
    "a default": (("fall_loss", "power=2", "power=4"), "loss"),
    "a number in another file": (("fall_parts", "2.0", "3.0"), "loss"),
    "a function in another file": (("fall_parts", "t**2 / 2", "t**3 / 6"), "loss"),
    "an array": (("fall_loss", "[0.5, 1.5]", "[0.5, 1.0]"), "loss"),
    "an attribute": (("fall_loss", "self.weight = 2.0", "self.weight = 3.0"), "loss"),
    "a rule for reverse mode": (("fall_loss", "(1.0 * c,)", "(2.0 * c,)"), "loss"),
    "a rule for both modes": (("fall_loss", "1.5 * tangents", "1.0 * tangents"), "loss"),
    "a function that is called back": (("fall_loss", "0.0 * x", "0.0 * x + 1"), "loss"),
    "two parameters, exchanged": (
        ("fall_loss", "# of two times", "p = {'force': p['place'], 'place': p['force']}"),
        "loss",
    ),
    "a start": (("fall_loss", "jnp.array(0.5)", "jnp.array(0.6)"), "params"),
    "a learning rate": (("fall_loss", "adam(0.1)", "adam(0.2)"), "optimizer"),
    "a setting of the optimiser": (("fall_loss", "adam(0.1)", "adam(0.1, b1=0.8)"), "optimizer"),
    "a schedule": (
        ("fall_loss", "adam(0.1)", "adam(optax.exponential_decay(0.1, 10, 0.9))"),
        "optimizer",
    ),
    "samples": (("fall_loss", "[1.0, 1.25]", "[1.0, 1.5]"), "samples"),
    "bounds": (("fall_loss", "(-5.0, 5.0)", "(-4.0, 5.0)"), "bounds"),
    "a tolerance": (("fall_loss", "1e-9", "1e-6"), r"rtol \(1e-09, not 1e-06\)"),
    "an absolute tolerance": (("fall_loss", '"rtol"', '"atol": 0.5, "rtol"'), r"atol \(1e-12, not 0\.5\)"),
    "a patience": (("fall_loss", '"patience": 50', '"patience": 60'), r"patience \(50, not 60\)"),
    "a size of batches": (("fall_loss", '"rtol"', '"batch_size": 1, "rtol"'), r"batch_size \(None, not 1\)"),
    "an order of batches": (
        ("fall_loss", '"rtol"', '"batch_size": 1, "seed": 7, "rtol"'),
        r"batch_size \(None, not 1\), seed \(\w+, not 7\)",
    ),
}
SAME = {
    "place": (),
    "comments": (("fall_loss", "# of two times", "# of two times, in seconds\n    #"),),
    "a docstring": (("fall_loss", "The square of what is missed.", "Squares."),),
    "variables": (
        ("fall_loss", "    missed = fallen -", "    error = fallen -"),
        ("fall_loss", "missed**power", "error**power"),
    ),
    "functions": (
        ("fall_loss", "def loss(", "def squares("),
        ("fall_loss", "START =", "loss = squares\nSTART ="),
        ("fall_loss", "def checked(", "def examined("),  # which is compiled, with its name
        ("fall_loss", "checked(p[", "examined(p["),
    ),
}


def run(model, file, steps=4):
    return ukjax.tune(
        model.loss, model.START, model.OPTIMIZER, steps, checkpoint=file, progress=False, **model.OPTIONS
    )  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A tuning, and its checkpoint."""
    folder = tmp_path_factory.mktemp("edits")
    with standard_promotion():
        return run(imported(folder / "here", FILES), folder / "state"), folder / "state"


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_tuning_is_refused(name, kept, tmp_path):
    edit, words = EDITS[name]
    before = kept[1].read_bytes()
    with pytest.raises(ValueError, match=f"belongs to another tuning, which differs in {words}\\. Pass"):
        run(imported(tmp_path / "there", FILES, edit), kept[1], steps=8)
    assert kept[1].read_bytes() == before


def test_an_unchanged_tuning_goes_on(kept, tmp_path):
    """Elsewhere, with other comments and names; no step is taken again, after which the file would be written."""
    written = kept[1].stat()
    for name, edits in SAME.items():
        again = run(imported(tmp_path / name, FILES, *edits), kept[1])
        np.testing.assert_array_equal(again.losses, kept[0].losses)
        np.testing.assert_array_equal(again.history["force"], kept[0].history["force"])
        assert (kept[1].stat().st_mtime_ns, kept[1].stat().st_ino) == (written.st_mtime_ns, written.st_ino)


def test_the_number_of_devices_does_not_count():
    """Of a loss that goes through a batch; here are two devices."""
    spring = ukjax.System(mass=lambda q, t: jnp.eye(1), force=lambda q, v, t: -q)
    ts = np.linspace(0.0, 1.0, 2)

    def loss_on(devices):
        def loss(p):
            starts = p * jnp.ones((4, 1))
            batch = ukjax.simulate_batch(ukjax.Mechanism(spring), starts, jnp.zeros(1), ts, devices=devices)
            return jnp.sum(batch.q**2)

        samples, stopping = Samples(None, None, None), Stopping(None, 0.0, None)
        return definition_of(Objective(loss, None, False), jnp.ones(()), optax.sgd(0.1), None, samples, stopping)

    assert len(jax.devices()) > 1
    assert loss_on(None) == loss_on(jax.devices()[:1]) != loss_on(jax.devices())


@pytest.mark.long
def test_another_process_goes_on(tmp_path):
    """With other seeds of hashes, in other folders, on another number of devices: as if it had not been interrupted."""
    code = "import sys, jax; jax.config.update('jax_enable_x64', True); import fall_loss as m, ukjax; "
    code += "print(ukjax.tune(m.loss, m.START, m.OPTIMIZER, int(sys.argv[1]), checkpoint=sys.argv[2], progress=False, "
    code += "**m.OPTIONS).losses.tolist())"

    def losses(folder, steps, file, seed):
        imported(tmp_path / folder, FILES)
        path = os.pathsep.join([str(Path(ukjax.__file__).parents[1]), str(tmp_path / folder)])
        others = {"PYTHONPATH": path, "PYTHONHASHSEED": seed, "JAX_NUM_CPU_DEVICES": seed}
        command = [sys.executable, "-c", code, str(steps), tmp_path / file]
        found = subprocess.run(command, env={**os.environ, **others}, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    whole = losses("one", 6, "whole", "1")
    part = losses("two", 3, "state", "1")
    assert part == whole[:4]
    np.testing.assert_allclose(losses("three", 6, "state", "2"), whole, rtol=1e-12)


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_before_is_refused(version, kept, tmp_path):
    header, rest = kept[1].read_bytes().split(b"\n", 1)
    about = {k: x for k, x in json.loads(header).items() if k != "definition"} | {"version": version, "leaves": []}
    (tmp_path / "old").write_bytes(json.dumps(about).encode() + b"\n" + rest)
    with pytest.raises(ValueError, match=r"earlier version of ukjax, which did not keep what is tuned.*Pass another"):
        run(imported(tmp_path / "here", FILES), tmp_path / "old")


def test_a_checkpoint_of_other_packages_is_refused(kept, tmp_path):
    header, rest = kept[1].read_bytes().split(b"\n", 1)
    about = json.loads(header)
    about["definition"]["jax"] = "0.1"
    (tmp_path / "old").write_bytes(json.dumps(about).encode() + b"\n" + rest)
    with pytest.raises(ValueError, match=r"which differs in jax \(0\.1, not"):
        run(imported(tmp_path / "here", FILES), tmp_path / "old")
