"""`ukjax list`: the scenarios of a package, a module or a file, as a table."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import parallelogram, unicycle
from ukjax import cli

from ..helpers import long
from ..inside import entry_of, rank_of
from .test_cli import run as command  # noqa: F401  (a fixture)


GOOD = """
from __future__ import annotations
import jax.numpy as jnp
import ukjax
from .helper import plane

class Skate(ukjax.AbstractSystem):
    def mass(self, q, t):
        return jnp.eye(3)

    def force(self, q, v, t):
        return jnp.zeros(3)

    def edge(self, q, v, t):
        return (v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2]))[None]

    def spin(self, q, t):
        return jnp.stack([q[2] - t, 2 * q[2] - 2 * t])

def skate(speed: float = 1.0) -> ukjax.Scenario:
    model = Skate()
    given = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(3)[:1], lambda q, v, t: jnp.zeros(1))
    return ukjax.Scenario(ukjax.Mechanism(model, [ukjax.Nonholonomic(model.edge), ukjax.Holonomic(model.spin), given]),
                          jnp.zeros(3), jnp.array([speed, 0.0, 1.0]), 1.0, name="A skate [own]", source="Me, 2026")

def fails() -> ukjax.Scenario:
    raise KeyError("nothing\\nhere")

def wrong() -> ukjax.Scenario:
    return 3

def needs(length) -> ukjax.Scenario:
    return skate()

def _private() -> ukjax.Scenario:
    return skate()

def unannotated():
    return skate()

def number() -> float:
    return 1.0
"""
HELPER = """
import jax.numpy as jnp
import ukjax

def plane(**options) -> ukjax.Scenario:
    free = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2))
    return ukjax.Scenario(ukjax.Mechanism(free), [0.0, 0.0], [1.0, 0.0], 1.0, name="Free")
"""


@pytest.fixture
def listed(command, monkeypatch, tmp_path):  # noqa: F811
    package = tmp_path / "robots"
    (package / "deep").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "good.py": GOOD,
        "helper.py": HELPER,
        "broken.py": "1 / 0",
        "needs.py": "import not_there",
        "_hidden.py": "1 / 0",
        "deep/__init__.py": "",
        "deep/more.py": HELPER,
    }.items():
        (package / name).write_text(text)
    for name in [name for name in sys.modules if name.split(".")[0] == "robots"]:
        monkeypatch.delitem(sys.modules, name)
    return lambda *arguments: command("list", *arguments)


def test_lists_a_persons_own_package(listed):
    status, shown, _ = listed("robots")
    assert status == 0
    # 3 coordinates, 4 rows of which one is twice another: rank 3.
    assert "robots.good:skate 3 4 3 nonholonomic (1) A skate [own] holonomic (2) Me, 2026 acceleration (1)" in shown
    assert "robots.helper:plane 2 0 0 none Free" in shown
    assert "robots.deep.more:plane 2 0 0 none Free" in shown
    assert "Left out: robots.broken does not import: ZeroDivisionError: division by zero" in shown
    assert "Left out: robots.needs does not import: No module named 'not_there'" in shown
    assert "Left out: robots.good:fails fails: KeyError: 'nothing\\nhere'" in shown
    assert "Left out: robots.good:wrong fails: TypeError: what it returns must be an instance of Scenario" in shown
    for name in ("_hidden", "needs(", "_private", "unannotated", "number", "good:plane"):
        assert name not in shown


def test_lists_a_module_and_a_file(listed):
    for place in ("robots.helper", "robots/helper.py"):
        status, shown, _ = listed(place)
        assert status == 0
        assert f"{place}:plane 2 0 0 none Free" in shown


def test_an_empty_package_and_none(listed, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1")
    status, shown, _ = listed("empty")
    assert status == 0
    assert "No scenarios in empty: no public function there is annotated to return a ukjax.Scenario" in shown
    status, _, errors = listed("no_such_package")
    assert status == 2
    assert "There is no module 'no_such_package' here or among the installed packages" in errors


def test_every_module_of_models_is_found(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    found, failures = cli.factories("models")
    assert failures == []
    files = [path for path in Path("models").glob("*.py") if "\ndef scenario(" in path.read_text()]
    assert len(files) > 8
    assert {f"models.{path.stem}:scenario" for path in files} <= found.keys()


@pytest.mark.parametrize("model", [long(parallelogram), unicycle])
def test_rows_and_rank_are_those_of_diagnose(model):
    scenario = model.scenario()
    entry = entry_of(scenario)
    diagnosis = ukjax.diagnose(scenario.mechanism, scenario.q0, scenario.v0, scenario.t0)
    assert (entry.coordinates, entry.rows, entry.rank) == (diagnosis.coordinates, diagnosis.rows, diagnosis.rank)
    assert entry.name == scenario.name
    assert ("servo: " in entry.kinds) == (scenario.servo is not None)


def test_the_rank_is_that_of_the_equation_of_motion():
    """A row that one test took for rounding and the other did not."""
    M, Q, A, b = np.eye(2), np.zeros(2), np.array([[1.0, 0.0], [1e-10, 1e-12]]), np.array([0.0, 1e-12])
    terms = ukjax.Terms(*(jnp.asarray(x) for x in (M, Q, A, b)))
    assert rank_of(M, Q, A, b) == int(jax.jit(ukjax.UdwadiaKalaba().solve)(terms).rank) == 2
    assert (
        rank_of(np.diag([1.0, 0.0]), Q, A, b)
        == int(jax.jit(ukjax.formulation.PennestriDeFalco().solve)(terms).rank)
        == 2
    )
