"""`ukjax export`: files of a scenario and of a robot's file, and what it says of nonsense."""

import subprocess

import pytest

from ..export.compilers import STRICT, compile_c, first
from .test_cli import ROOT
from .test_cli import run as command  # noqa: F401  (a fixture)


ARM = """
<mujoco>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" axis="0 1 0"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.5"/>
      <body name="lower" pos="0 0 -0.5">
        <joint name="elbow" axis="0 1 0"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_a_scenario_is_exported_and_passes_its_test(command, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT))
    options = ("--what", "control", "--what", "step", "--name", "robot", "--out", "here")
    status, shown, errors = command("export", "models.unicycle:scenario", *options)
    assert status == 0, errors
    assert shown.split() == ["wrote", "here/robot.c", "wrote", "here/robot.h"]
    head = (tmp_path / "here" / "robot.h").read_text()
    assert "#define ROBOT_CONTROLS 2" in head
    assert "x [m], y [m]" in head
    compile_c(first(), *STRICT, "-DROBOT_TEST", tmp_path / "here" / "robot.c", "-o", tmp_path / "test", "-lm")
    assert subprocess.run([tmp_path / "test"]).returncode == 0


def test_a_robot_of_a_file_has_the_name_of_the_file(command, tmp_path):  # noqa: F811
    (tmp_path / "two-link.xml").write_text(ARM)
    status, shown, errors = command("export", "two-link.xml", "--to", "object", "--what", "inverse_dynamics")
    assert status == 0, errors
    assert shown.split() == ["wrote", "out/two-link/two_link.o", "wrote", "out/two-link/two_link.h"]
    assert "shoulder [rad], elbow [rad]" in (tmp_path / "out" / "two-link" / "two_link.h").read_text()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--to", "fmu2"], "to must be of 'c', 'object', 'wasm', 'casadi', 'fmu', but is 'fmu2'"),
        (["--what", "speed"], "what must be of 'acceleration', 'control'"),
        (["--what", "control"], "there is no servo"),
        (["--name", "2"], "name must be one that C takes"),
        (["--set", "label=机器人"], "makes no name that C takes. Pass --name"),
        (["--to", "fmu", "--what", "step"], "what must be one of 'acceleration', 'plant', 'control'"),
        (["--cpu", "cortex-m7"], 'are for to="object"'),
        (["--to", "object", "--target", "toaster"], "LLVM makes no code for toaster"),
        (["--parameters", "--parameter", "system_m"], "but not both"),
        (["--parameter", "mass"], "parameters must be of"),
        (["--out", "own.py"], "cannot be written to"),
    ],
)
def test_nonsense_leaves_nothing(command, tmp_path, arguments, match):  # noqa: F811
    before = sorted(x.name for x in tmp_path.iterdir() if x.name != "__pycache__")
    status, _, errors = command("export", "own.py:scenario", *arguments)
    assert status == 2
    assert match in errors
    assert sorted(x.name for x in tmp_path.iterdir() if x.name != "__pycache__") == before
