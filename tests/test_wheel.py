"""The wheel, built, installed elsewhere, and used there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

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
