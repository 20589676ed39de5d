"""The wheel, built, installed elsewhere, and used there."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import hatchling.build
import pytest


ROOT = Path(__file__).parent.parent
USE = """
import sys
import jax, jax.numpy as jnp, ukjax
jax.config.update("jax_enable_x64", True)
assert ukjax.__file__.startswith(sys.argv[1]), ukjax.__file__
system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
q0 = jnp.array([-1.0, 0.0])
drawing = ukjax.study.Drawing({"bob": lambda q, t: q[None]})
scenario = ukjax.Scenario(ukjax.Mechanism(system, rod), q0, 0 * q0, 0.5, drawing=drawing)
from ukjax import plot
print(ukjax.__version__, len(plot.page(scenario, scenario.simulate(jnp.linspace(0.0, 0.5, 11)))))
"""


@pytest.mark.long
def test_the_wheel_works_elsewhere(tmp_path):
    pip = [sys.executable, "-m", "pip", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"ukjax/py.typed", "ukjax/plot/_page.html", "ukjax/__init__.py"} <= set(names)
    assert {f"ukjax/examples/{path.name}" for path in (ROOT / "models").glob("*.py")} <= set(names)
    assert not [name for name in names if name.split("/")[0] in ("tests", "models", "experiments", "docs")]
    target = tmp_path / "elsewhere"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-c", USE, str(target)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    version, size = ended.stdout.split()
    assert f"-{version}-" in wheel.name
    assert int(size) > 5_000
    code = "from ukjax.cli import main; main()"
    for arguments in (["list"], ["simulate", "ukjax.examples.simple_pendulum:scenario", "--t1", "0.1"]):
        command = [sys.executable, "-c", code, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "ukjax.examples.scara:scenario" in ended.stdout or "wrote out" in ended.stdout


def test_an_editable_install_hides_nobodys_modules(tmp_path, monkeypatch):
    """It has `ukjax` alone, and neither the folders beside it nor copies of files."""
    monkeypatch.chdir(ROOT)
    wheel = hatchling.build.build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
        texts = {name: file.read(name).decode() for name in names}
    assert not [name for name in names if name.startswith("ukjax/")]
    (mapped,) = [text for name, text in texts.items() if name.endswith(".py")]
    assert re.findall(r"map_module\('(\w+)'", mapped) == ["ukjax"]
    for name, text in texts.items():
        assert not name.endswith(".pth") or str(ROOT) not in text
