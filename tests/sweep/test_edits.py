"""Studies whose definition is edited: refused, or their own results; what is only moved or renamed goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import ukjax

from ..edited import imported
from ..inside import Cases, Manner, compute_chunk


MODEL = '''
"""A weight on a spring beside a wall."""

import jax
import jax.numpy as jnp
import numpy as np

import spring_parts
import ukjax

GRAVITY = 9.81
TABLE = np.array([0.0, 0.25])


class Wall:
    def __init__(self):
        self.place = 0.5


WALL = Wall()


@jax.jit
def drag(v, factor=0.1):
    return -factor * v


def scenario(stiffness, amplitude, mass=2.0):
    """x'' = -k x."""
    k = spring_parts.softer(stiffness)

    def force(q, v, t):
        # of a spring
        pull = -k * q
        kind = jax.ShapeDtypeStruct((), q.dtype)
        host = jax.pure_callback(lambda t: np.asarray(0.0 * t), kind, t, vmap_method="sequential")
        return pull + TABLE + drag(v) + host + jnp.array([0.0, -GRAVITY])

    system = ukjax.System(lambda q, t: mass * jnp.eye(2), force)
    wall = ukjax.Holonomic(lambda q, t: q[1:] - WALL.place)
    start = jnp.stack([jnp.asarray(amplitude, float), jnp.asarray(WALL.place, float)])
    energy = lambda q, v, t: mass * v @ v / 2
    return ukjax.Scenario(
        ukjax.Mechanism(system, wall), start, jnp.zeros(2), 1.0, coordinates=["x [m]", "y [m]"],
        invariants={"energy [J]": energy},
    )


def end(trajectory):
    return trajectory.q[-1, 0]


FIGURES = {"end [m]": end}
OPTIONS = {"max_steps": 500}
VARY = {"stiffness": [1.0, 4.0], "amplitude": [1.0, 2.0]}
'''
PARTS = """
SCALE = 2.0


def softer(k):
    return k / SCALE
"""
FILES = {"spring_study": MODEL, "spring_parts": PARTS}
EDITS = {
    "a number of the module": (("spring_study", "9.81", "1.62"), "what its factory makes was changed"),
    "a sign": (("spring_study", "pull + TABLE", "pull - TABLE"), "what its factory makes"),
    "a default": (("spring_study", "mass=2.0", "mass=3.0"), "what its factory makes"),
    "a default of a compiled function": (("spring_study", "factor=0.1", "factor=0.2"), "what its factory makes"),
    "a number in another file": (("spring_parts", "2.0", "3.0"), "what its factory makes"),
    "a function in another file": (("spring_parts", "k / SCALE", "k * SCALE"), "what its factory makes"),
    "an array": (("spring_study", "[0.0, 0.25]", "[0.0, 0.5]"), "what its factory makes"),
    "an attribute": (("spring_study", "self.place = 0.5", "self.place = 0.25"), "what its factory makes"),
    "a constraint": (("spring_study", "q[1:] - WALL.place", "2 * (q[1:] - WALL.place)"), "what its factory makes"),
    "a function that is called back": (("spring_study", "0.0 * t", "0.0 * t + 1"), "what its factory makes"),
    "an invariant": (("spring_study", "mass * v @ v / 2", "mass * v @ v"), "what its factory makes"),
    "two parameters, exchanged": (
        ("spring_study", "start = jnp.stack(", "stiffness, amplitude = amplitude, stiffness\n    start = jnp.stack("),
        "what its factory makes",
    ),
    "a figure": (("spring_study", "q[-1, 0]", "q[0, 0]"), r"its figures differ in 'end \[m\]'"),
    "an option": (("spring_study", '"max_steps": 500', '"max_steps": 600'), "its options is {'max_steps': '500'}, not"),
    "a solver": (
        ("spring_study", '{"max_steps": 500}', '{"max_steps": 500, "rtol": 1e-5}'),
        "its options is {}, not {'rtol': '1e-05'}",
    ),
    "a label": (("spring_study", "x [m]", "height [m]"), "its labels is"),
    "a name": (("spring_study", '"end [m]"', '"last [m]"'), "its figures differ in 'end"),
}
SAME = {
    "place": (),
    "comments": (("spring_study", "# of a spring", "# of a soft spring\n        #"),),
    "a docstring": (("spring_study", "x'' = -k x.", "A spring."),),
    "variables": (
        ("spring_study", "k = spring", "rate = spring"),
        ("spring_study", "pull = -k * q", "back = -rate * q"),
        ("spring_study", "return pull +", "return back +"),
    ),
    "functions": (
        ("spring_study", "def force(", "def forces("),
        ("spring_study", "jnp.eye(2), force)", "jnp.eye(2), forces)"),
        ("spring_study", "def drag(", "def resistance("),  # which is compiled, with its name
        ("spring_study", "+ drag(v)", "+ resistance(v)"),
    ),
}


def run(model, out):
    return ukjax.sweep(
        model.scenario, model.VARY, out, figures=model.FIGURES, ts=np.linspace(0.0, 1.0, 3), keep="q", chunk=2,
        progress=False, **model.OPTIONS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A study, and its folder."""
    folder = tmp_path_factory.mktemp("edits")
    return run(imported(folder / "here", FILES), folder / "study"), folder / "study"


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_study_is_refused(name, kept, tmp_path):
    edit, words = EDITS[name]
    with pytest.raises(ValueError, match=f"holds another study: {words}"):
        run(imported(tmp_path / "there", FILES, edit), kept[1])


def test_an_unchanged_study_goes_on(kept, tmp_path):
    """Elsewhere, with other comments and names; nothing is computed again, and then written."""
    written = lambda: {path: path.stat().st_mtime_ns for path in kept[1].glob("done/*")}
    before = written()
    assert before
    for name, edits in SAME.items():
        again = run(imported(tmp_path / name, FILES, *edits), kept[1])
        assert again.identical(kept[0])
    assert written() == before


CHECKSUMS = """
import sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
from ukjax._sweep._cases import Cases
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    import spring_study as model
    ends = [{k: x[i] for k, x in model.VARY.items()} for i in (0, -1)]
    times = np.linspace(0.0, 1.0, 3)
    cases = Cases(model.scenario, {}, tuple(model.VARY), times, "q", model.FIGURES, model.OPTIONS, ends)
    print(cases.traceable, cases.sums)
    del sys.modules["spring_study"], sys.modules["spring_parts"]
"""
BRANCHING = ("spring_study", "k = spring", "k = 1.0 if stiffness > 8 else spring")


@pytest.mark.long
def test_another_process_finds_the_same(tmp_path):
    """With another seed of hashes, in another folder, on other devices; of a factory that is traced, and of others."""
    processes = []
    for seed in ("1", "7"):
        folder = tmp_path / seed
        folder.mkdir()
        imported(folder / "traced", FILES)
        imported(folder / "branching", FILES, BRANCHING)
        others = {"PYTHONHASHSEED": seed, "JAX_NUM_CPU_DEVICES": seed, "PYTHONPATH": Path(ukjax.__file__).parents[1]}
        command = [sys.executable, "-c", CHECKSUMS, folder / "traced", folder / "branching"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env={**os.environ, **others}, **pipes))
    one, other = (process.communicate(timeout=300)[0] for process in processes)
    traced, branching = one.splitlines()
    assert traced.startswith("True ('")
    assert branching.startswith("False ('")
    assert one == other


@pytest.mark.long
def test_an_edit_of_what_only_samples_in_between_do(tmp_path):
    """The factory branches on a value, which is neither that of the first nor that of the last sample."""
    line = "k = spring_parts.softer(stiffness)\n"
    branch = ("spring_study", line, f"{line}    if stiffness == 2.0:\n        k = spring_parts.other(SHARE)\n")
    share = ("spring_study", "TABLE =", "SHARE = 0.5\nTABLE =")
    other = ("spring_parts", "SCALE = 2.0", "SCALE = 2.0\n\n\ndef other(share):\n    # half\n    return 3.0 * share\n")
    ends = [{"stiffness": k, "amplitude": 1.0} for k in (1.0, 3.0)]
    names, ts = ("stiffness", "amplitude"), np.linspace(0.0, 1.0, 3)

    def sums(folder, *edits):
        model = imported(tmp_path / folder, FILES, branch, share, other, *edits)
        cases = Cases(model.scenario, {}, names, ts, "q", model.FIGURES, model.OPTIONS, ends)
        assert not cases.traceable
        return cases.sums

    first = sums("first")
    assert sums("moved", ("spring_parts", "# half", "# a half of it")) == first
    assert sums("helper", ("spring_parts", "3.0 * share", "4.0 * share")) != first
    assert sums("number", ("spring_study", "SHARE = 0.5", "SHARE = 0.25")) != first
    assert sums("branch", ("spring_study", "stiffness == 2.0", "stiffness == 2.5")) != first


def test_a_study_of_before_can_be_read_but_not_continued(kept, tmp_path):
    folder = kept[1]
    old = tmp_path / "old"
    old.mkdir()
    for path in sorted(folder.rglob("*")):
        to = old / path.relative_to(folder)
        to.mkdir(exist_ok=True) if path.is_dir() else to.write_bytes(path.read_bytes())
    about = json.loads((old / "sweep.json").read_text())
    for name in ("scenario", "labels"):
        del about[name]
    (old / "sweep.json").write_text(json.dumps(about | {"version": 1, "figures": {}}))
    assert ukjax.study.sweep_status(old, thoroughly=True).done == 4
    assert ukjax.study.sweep_export(old, tmp_path / "arrays")["counts"]["train"] == 4
    with pytest.raises(ValueError, match=r"earlier version of ukjax.* Its results can still be read"):
        run(imported(tmp_path / "here", FILES), old)


def test_a_worker_whose_files_differ_is_refused(tmp_path):
    model = imported(tmp_path / "here", FILES)
    ends = [{k: x[i] for k, x in model.VARY.items()} for i in (0, -1)]
    recipe = (model.scenario, {}, tuple(model.VARY), np.linspace(0.0, 1.0, 3), "q", {}, {}, ends)
    sums, packed = Cases(*recipe).sums, cloudpickle.dumps(recipe)
    imported(tmp_path / "there", FILES, EDITS["a number in another file"][0])
    values = {k: np.asarray(x) for k, x in model.VARY.items()}
    with pytest.raises(RuntimeError, match="A worker has another version of what makes the scenario"):
        compute_chunk(packed, "mark", sums, values, 2, Manner.here())
