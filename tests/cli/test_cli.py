"""The command: what it prints, what it writes, and what it says when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from PIL import Image

import ukjax
from ukjax.cli import main

from ..helpers import command, falling, pendulum, standard_promotion
from ..inside import interrupted_tuning
from ..rigid.test_loops_of_files import leg


ROOT = Path(__file__).parents[2]
OWN = """
import jax.numpy as jnp
import ukjax

def scenario(length=1.0, label="mine", fail=False):
    system = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81]))
    held = ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None])
    force = lambda q, v, t: -9.81 * jnp.sqrt(0.1 - t) * jnp.ones(2)
    if fail:
        system = ukjax.System(lambda q, t: jnp.eye(2), force)
    energy = lambda q, v, t: v @ v / 2 + 9.81 * q[1]
    return ukjax.Scenario(ukjax.Mechanism(system, held), [-length, 0.0], [0.0, 0.0], 0.5, name=label,
                          invariants={"energy [J]": energy}, observables={"height [m]": lambda q, v, t: q[1]})

def tuning(bad=False, slow=0):
    import optax, time
    lengths = jnp.array([1.0, 2.0])

    def loss(x, sample):
        return jnp.sqrt(x["length [m]"] - 5.0) if bad else jnp.sum((x["length [m]"] - sample) ** 2)

    return ukjax.tuning.TuningProblem(loss, {"length [m]": 0.5}, optax.sgd(0.1), 20, name="A length", samples=lengths)

def nowhere():
    return ukjax.Scenario(scenario().mechanism, [jnp.nan, 0.0], [0.0, 0.0], 0.5)

def wrong():
    return 3

number = 5
"""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command in an empty folder; returns exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)

    def run(*arguments):
        status = command(main, *arguments)
        shown = capsys.readouterr()
        # The width of the terminal must not matter.
        return status, " ".join(shown.out.split()), " ".join(shown.err.split())

    return run


def test_simulates_a_persons_own_file(run, tmp_path):
    status, shown, _ = run("simulate", "own.py:scenario", "--set", "length=2.0", "--points", "51", "--out", "here")
    assert status == 0
    for word in ("mine", "0 to 0.5 s", "accepted", "1, of rank 1; 2 coordinates", "largest position error"):
        assert word in shown
    assert "drift of energy [J]" in shown
    assert "time to compile" in shown
    assert "time to run" in shown
    written = {p.name for p in (tmp_path / "here").iterdir()}
    assert written == {"trajectory.nc", "overview.png", "height.png", "energy.png"}
    assert all(f"wrote here/{name}" in shown for name in written)
    with xr.open_dataset(tmp_path / "here" / "trajectory.nc") as data:
        assert data.sizes == {"time": 51, "coordinate": 2}
        assert data.attrs["title"] == "mine"
        np.testing.assert_allclose((data.q**2).sum("coordinate"), 4.0, atol=1e-6)
    for name in written - {"trajectory.nc"}:
        with Image.open(tmp_path / "here" / name) as image:
            assert len(np.unique(np.asarray(image.convert("L")))) > 20  # something is drawn


def test_tables_and_pictures_to_print(run, tmp_path):
    status, _, _ = run("simulate", "own.py:scenario", "--points", "5", "--csv", "--format", "pdf", "--format", "svg")
    assert status == 0
    folder = tmp_path / "out" / "mine"
    stems = ("overview", "height", "energy")
    assert {p.name for p in folder.iterdir()} == {
        "trajectory.nc", "trajectory.csv", *(f"{stem}.{kind}" for stem in stems for kind in ("pdf", "svg"))
    }  # fmt: skip
    assert (folder / "height.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (folder / "height.svg").read_text()
    head, *rows = (folder / "trajectory.csv").read_text().splitlines()
    table = {name: [float(row.split(",")[i]) for row in rows] for i, name in enumerate(head.split(","))}
    assert table["t [s]"] == list(np.linspace(0, 0.5, 5))
    assert table["height [m]"] == table["q2"]
    with xr.open_dataset(folder / "trajectory.nc") as data:
        np.testing.assert_array_equal(data.height, data.q[:, 1])
        assert data.height.attrs == {"long_name": "height", "units": "m"}
        assert data.energy.attrs["units"] == "J"
    status, _, err = run("simulate", "own.py:scenario", "--format", "bmp")
    assert status == 2
    assert "'bmp' is not one of 'png', 'pdf', 'svg'" in err


def test_version(run):
    assert run("--version") == (0, f"ukjax {ukjax.__version__}", "")


def test_module_target_options_and_default_folder(run, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT))
    status, shown, _ = run("simulate", "models.two_mass_spring:scenario", "--t1", "0.2", "--rtol", "1e-6", "--points",
                           "11", "--set", "start=inconsistent", "--set", "alpha=2.0")  # fmt: skip
    assert status == 0
    assert "0 to 0.2 s" in shown
    assert (tmp_path / "out" / "two-mass-spring" / "trajectory.nc").exists()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            ["own.py:scenario", "--set", "lenght=2.0"],
            "nothing called 'lenght' to set. It takes: length=1.0, label=",
        ),
        (["own.py:scenario", "--set", "length"], "--set takes name=value, but got 'length'"),
        (["own.py:scenario", "--set", "length=1", "--set", "length=2"], "--set length is given twice"),
        (["own.py:scenario", "--set", "length='x'"], "could not make a scenario with (length='x')"),
        (["own.py:nowhere"], "could not make a scenario: q0 must be finite, but q0[0] is nan."),
        (["own.py:scenario", "--t1", "-1"], "--t1 must be later than the start, 0.0 s, but is -1.0 s"),
        (["own.py:scenario", "--rtol", "1e-20", "--atol", "1e-20"], "out of reach of float64"),
        (["own.py"], "TARGET must also name a function in own.py: own.py:scenario or own.py:tuning"),
        (["robot.xml"], "there is no file 'robot.xml'"),
        (["own.py:nothing"], "own.py has no factory 'nothing'. Functions there: scenario, tuning, nowhere, wrong."),
        (["models.delta:nothing"], "models.delta has no factory 'nothing'. Functions there: scenario."),
        (["own.py:number"], "own.py:number must be a function that returns a ukjax.Scenario, but is int"),
        (["own.py:wrong"], "must return a ukjax.Scenario, but returned int"),
        (["other.py:scenario"], "There is no file other.py"),
        (["no.such.module:scenario"], "There is no module 'no.such.module'"),
        (["broken.py:scenario"], "broken.py does not import: ZeroDivisionError"),
        (["needs.py:scenario"], "needs.py does not import: No module named 'not_there'"),
        (["own.py:scenario", "--out", "own.py"], "--out own.py cannot be written to"),
        (["own.py:scenario", "--out", "own.py/below"], "--out own.py/below cannot be written to"),
    ],
)
def test_errors_of_use_end_in_one_message_and_leave_nothing(run, tmp_path, arguments, match):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needs.py").write_text("import not_there")
    status, shown, errors = run("simulate", *arguments)
    assert status == 2
    assert match in errors
    assert errors.startswith("Error: ")
    assert shown == ""
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert sorted(p.name for p in left) == ["broken.py", "needs.py", "own.py"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--vary", "length=nan:1:3"], "vary['length'] must be finite, but is nan."),
        (["--vary", "length=2:1:3"], "vary['length'] must go from low to high, but goes from 2 to 1."),
        (["--vary", "lenght=1:2:3"], "nothing called 'lenght' to set"),
    ],
)
def test_a_study_that_cannot_be_begun_leaves_no_folder(run, tmp_path, arguments, match):
    status, shown, errors = run("sweep", "own.py:scenario", *arguments, "--out", "study")
    assert status == 2
    assert match in errors
    assert shown == ""
    assert not (tmp_path / "study").exists()


def test_a_study_is_made_or_looked_at(run, tmp_path):
    """Not both by one command; and what was damaged since is not drawn."""
    made = ["sweep", "own.py:scenario", "--vary", "length=1:2:3", "--t1", "0.1", "--points", "2"]
    status, _, errors = run(*made, "--status", "study")
    assert status == 2
    assert "but not both" in " ".join(errors.split())
    assert run(*made, "--out", "study")[0] == 0
    chunk = tmp_path / "study" / "data.zarr" / "q" / "0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    status, _, errors = run("sweep", "--plot", "study")
    assert status == 2
    assert "1 of 1 chunks of study are not as they were written, beginning with chunk 0" in " ".join(errors.split())


@pytest.mark.long
def test_a_study_without_its_scheduler_leaves_no_folder(run, tmp_path):
    """In a process of its own: Dask's client stays what others of its process ask, also where it found nobody."""
    arguments = ["sweep", "own.py:scenario", "--vary", "length=1:2:3", "--scheduler", "nowhere", "--out", "study"]
    code = "import sys; from ukjax.cli import main; sys.argv[0] = 'ukjax'; main()"
    shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 2
    assert "--scheduler nowhere: there is no scheduler" in " ".join(shown.stderr.split())
    assert not (tmp_path / "study").exists()


ROBOT = """<mujoco><worldbody><body name="arm"><joint name="hip" axis="0 1 0" range="-1 1" limited="true"/>
<inertial pos="0.5 0 0" mass="1" diaginertia="0.01 0.1 0.1"/></body></worldbody></mujoco>"""


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_robots_file_is_a_target(run, tmp_path):
    (tmp_path / "robot.xml").write_text(ROBOT)
    status, shown, warned = run("simulate", "robot.xml", "--set", "hip=0.3", "--t1", "0.1", "--points", "3")
    assert status == 0
    assert warned.startswith("Warning:")
    assert "limits of joints (hip)" in warned
    assert "from_urdf(" not in warned  # a line of the library's source
    assert "drift of energy [J]" in shown
    with xr.open_dataset(tmp_path / "out" / "robot" / "trajectory.nc") as data:
        assert list(data.name.values) == ["hip"]
        assert float(data.q[0, 0]) == 0.3
    status, shown, _ = run("list", "robot.xml")
    assert status == 0
    assert "robot.xml" in shown
    status, _, errors = run("inspect", "robot.xml", "--set", "knee=1")
    assert status == 2
    assert "coordinates has 'knee'" in errors


def test_loops_beside_a_urdf_are_closed_and_a_robot_that_cannot_move_says_so(run, tmp_path):
    (tmp_path / "leg.urdf").write_text(leg())
    loops = "closed_loop: [[loop1_A, loop1_B]]\ntype: [3D]\njoint_name: [free_rod]\njoint_type: [SPHERICAL]\n"
    (tmp_path / "loops.yaml").write_text(loops)
    status, shown, _ = run("simulate", "leg.urdf", "--loops", "loops.yaml", "--t1", "0.01", "--points", "3")
    assert status == 0
    assert "3, of rank 3; 6 coordinates" in shown
    status, _, errors = run("simulate", "leg.urdf", "--loops", "none.yaml")
    assert (status, "loops must be a path to a YAML file" in errors) == (2, True)
    status, _, errors = run("simulate", "own.py:scenario", "--trusted", ".")
    assert (status, "--trusted is for a robot's file (.xml, .urdf)" in errors) == (2, True)
    (tmp_path / "still.urdf").write_text('<robot name="r"><link name="a"/></robot>')
    status, _, errors = run("simulate", "still.urdf")
    assert (status, "no joint of it moves, so there is nothing to simulate" in errors) == (2, True)


def test_inspect_says_what_of_a_file_was_followed_what_was_not_and_where_it_starts(run, tmp_path):
    more = """<equality><joint name="tie" joint1="hip" active="false"/></equality>
      <actuator><motor name="m" joint="hip" gear="3"/><motor name="idle" joint="hip" group="1"/></actuator>
      <keyframe><key name="up" qpos="0.25" qvel="0.5"/></keyframe></mujoco>"""
    text = ROBOT.replace('range="-1 1"', 'range="-1 1" damping="0.1" ref="-0.5"').replace("</mujoco>", more)
    (tmp_path / "robot.xml").write_text(text.replace("<worldbody>", '<option actuatorgroupdisable="1"/><worldbody>'))
    status, shown, _ = run("inspect", "robot.xml")
    assert status == 0
    shown = " ".join(shown.replace("│", " ").split())
    for part in (
        "Followed", "bodies arm", "hinges hip", "dampers of joints hip", "motors m gravity [m/s^2] 0, 0, -9.81",
        "Switched off by the file", "equalities tie", "actuators idle", "Not simulated", "limits of joints hip",
        "names up", "hip [rad] -0.00872665", "degrees of freedom 1",
    ):  # fmt: skip
        assert part in shown
    status, shown, _ = run("inspect", "robot.xml", "--set", "keyframe=up")
    assert "hip [rad] │ 0.25" in shown
    assert "hip [rad/s] │ 0.5" in shown
    status, _, errors = run("inspect", "robot.xml", "--set", "keyframe=down")
    assert status == 2
    assert "which has 'up', but is 'down'" in errors


def test_a_run_that_fails_says_why_and_writes_nothing(run, tmp_path):
    status, _, errors = run("simulate", "own.py:scenario", "--set", "fail=True", "--out", "here")
    assert status == 1
    assert "Failed: NaN or infinity" in errors
    assert "reached t = 0.1 s of 0.5 s; nothing was written" in errors
    assert list((tmp_path / "here").iterdir()) == []


def test_nothing_half_written_when_the_disk_gives_up(run, tmp_path, monkeypatch):
    import matplotlib.figure

    def full(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    status, _, errors = run("simulate", "own.py:scenario", "--out", "here")
    assert status == 2
    assert "No space left on device. Nothing was left there." in errors
    assert list((tmp_path / "here").iterdir()) == []


def test_tunes_a_persons_own_problem(run, tmp_path):
    with standard_promotion():
        status, shown, _ = run("tune", "own.py:tuning", "--steps", "30")
    assert status == 0
    assert "length [m]" in shown
    assert "best (step 30)" in shown
    folder = tmp_path / "out" / "a-length"
    assert sorted(p.name for p in folder.iterdir()) == ["convergence.png", "tuning.nc"]
    with xr.open_dataset(folder / "tuning.nc", engine="scipy") as data:
        assert data.sizes["step"] == 31
        assert abs(float(data["length [m]"][-1]) - 1.5) < 1e-2
    with Image.open(folder / "convergence.png") as image:
        assert len(np.unique(np.asarray(image.convert("L")))) > 20


def test_a_tuning_goes_on_after_an_interruption(run, tmp_path):
    with standard_promotion():
        with interrupted_tuning(8, KeyboardInterrupt):
            status, shown, _ = run("tune", "own.py:tuning", "--out", "here")
        assert status == 130
        assert "The same command goes on from here" in shown
        # With other settings it is another problem.
        _, shown, _ = run("tune", "own.py:tuning", "--out", "here", "--set", "slow=1")
        assert "Going on" not in shown
        status, shown, _ = run("tune", "own.py:tuning", "--out", "here")
        assert status == 0
        assert "Going on where an earlier run was interrupted" in shown
        assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["convergence.png", "tuning.nc"]


@pytest.mark.parametrize(
    ("arguments", "status", "match"),
    [
        (["own.py:scenario"], 2, "must return a ukjax.tuning.TuningProblem, but returned Scenario"),
        (["own.py:tuning", "--steps", "0"], 2, "steps must be an integer of at least 1"),
        (["own.py:tuning", "--set", "bad=True"], 1, "The loss is not finite at step 0"),
        (["own.py:nothing"], 2, "own.py has no factory 'nothing'"),
    ],
)
def test_a_tuning_that_cannot_be_says_why(run, tmp_path, arguments, status, match):
    with standard_promotion():
        got, _, errors = run("tune", *arguments, "--out", "here")
    assert got == status
    assert match in errors
    assert not (tmp_path / "here").exists() or list((tmp_path / "here").iterdir()) == []


def test_help_is_enough_to_get_going(run):
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "ukjax.cli", "--help"]
    shown = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    assert "ukjax simulate ukjax.examples.scara:scenario" in shown
    status, shown, _ = run("simulate", "--help")
    assert status == 0
    for word in ("--set", "--t1", "--rtol", "--out", "module:factory", "file.py:factory", "TARGET", "End time [s]"):
        assert word in shown


def test_what_stands_in_brackets_is_no_markup(run):
    status, _, errors = run("simulate", "own.py:scenario", "--set", "x [m]=1", "--set", "length=1")
    assert status == 2
    assert "nothing called 'x [m]' to set" in errors


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"mechanism": falling()}, TypeError, "mechanism must be a ukjax.Mechanism"),
        ({"t1": 0.0}, ValueError, "t1 must be later than t0 = 0.0 s"),
        ({"v0": [0.0]}, ValueError, "q0 and v0 must have the same shape"),
        ({"coordinates": ["x"]}, ValueError, "coordinates must be 2 names"),
        ({"observables": {"a": 3}}, TypeError, r"observables\['a'\] must be a function"),
    ],
)
def test_what_is_no_scenario(changes, error, match):
    with pytest.raises(error, match=match):
        ukjax.Scenario(**{"mechanism": pendulum(), "q0": jnp.zeros(2), "v0": jnp.zeros(2), "t1": 1.0, **changes})


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ((0, 10, 2), "", " --xla_cpu_use_fusion_emitters=false"),
        ((0, 10, 2), "--xla_cpu_use_fusion_emitters=true", "--xla_cpu_use_fusion_emitters=true"),
        ((0, 12, 0), "--other", "--other"),  # which would abort on a flag that it does not know
    ],
)
def test_the_flag_that_halves_the_time_to_compile(monkeypatch, version, before, after):
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr(jax, "__version_info__", version)
    assert command(main, "list", "--no-such-option") == 2  # what holds for every command is done before
    assert os.environ["XLA_FLAGS"] == after


BROKEN = """
import warnings

import numpy as np
import ukjax

def scenario(kind="numpy"):
    warnings.warn("look out", stacklevel=1)
    if kind == "key":
        return {}["nothing"]
    system = ukjax.System(lambda q, t: np.eye(2), pushed)
    return ukjax.Scenario(ukjax.Mechanism(system), [1.0, 0.0], [0.0, 0.0], 0.5)

def pushed(q, v, t):
    return np.sin(q)
"""


@pytest.mark.filterwarnings("always::UserWarning")
def test_errors_in_a_users_file_show_that_file_alone(run, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    status, _, shown = run("simulate", "broken.py:scenario")
    assert status == 1
    assert "Traceback in your own files:" in shown
    assert "broken.py" in shown
    assert "return np.sin(q)" in shown
    assert "Write jnp.sin for np.sin" in shown
    assert "Warning: look out Traceback" in shown  # without a line of source
    for word in ("typer", "click", "site-packages", "/ukjax/cli/"):
        assert word not in shown
    status, _, shown = run("simulate", "broken.py:scenario", "--set", "kind=key")
    assert status == 1
    assert "KeyError: 'nothing'" in shown


def test_targets_that_are_nearly_right(run):
    status, _, shown = run("simulate", "own.py")
    assert status == 2
    assert "TARGET must also name a function in own.py: own.py:scenario or own.py:tuning" in shown
    status, _, shown = run("simulate", "ukjax.stduy:scenario")
    assert status == 2
    assert "There is no module 'ukjax.stduy' here or among the installed packages. Did you mean ukjax.study?" in shown
