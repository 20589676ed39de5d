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
from ..inside import declared, entry_of, rank_of
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

COMPUTED = """
import ukjax
BOOK = "By hand"

def chain(n: int = 3) -> ukjax.Scenario:
    return ukjax.Scenario(n, name=f"Chain of {n} rods", source=BOOK)

def quoted(*, n=1) -> "ukjax.Scenario":
    return _made(n)

def loose(n=1) -> ukjax.Scenario:
    '''Its first line

    and more.
    '''
    return other(n)

def _made(n):
    return ukjax.Scenario(n, name="By a helper", source=BOOK)
"""


@pytest.fixture
def listed(command, monkeypatch, tmp_path):  # noqa: F811
    package = tmp_path / "robots"
    (package / "deep").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "good.py": GOOD,
        "helper.py": HELPER,
        "garbled.py": "1 /",
        "_hidden.py": "1 / 0",
        "deep/__init__.py": "",
        "deep/more.py": HELPER,
    }.items():
        (package / name).write_text(text)
    for name in [name for name in sys.modules if name.split(".")[0] == "robots"]:
        monkeypatch.delitem(sys.modules, name)
    return lambda *arguments: command("list", *arguments)


def test_lists_what_a_package_declares(listed):
    """Without importing it: a module that would fail is listed, one that cannot be read is left out."""
    status, shown, _ = listed("robots")
    assert status == 0
    assert "robots.good:skate A skate [own]. Me, 2026" in shown
    assert "robots.good:fails" in shown
    assert "robots.helper:plane Free" in shown
    assert "robots.deep.more:plane Free" in shown
    assert "Left out: robots.garbled cannot be read: SyntaxError" in shown
    assert "Run one: ukjax simulate robots.deep.more:plane" in shown
    for name in ("_hidden", "needs(", "good:needs", "_private", "unannotated", "number", "good:plane"):
        assert name not in shown
    assert "robots.good" not in sys.modules


def test_what_scenarios_are_like_at_their_start(listed, monkeypatch, tmp_path):
    monkeypatch.setenv("UKJAX_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        status, shown, _ = listed("robots", "--rank")
        assert status == 0
        # 3 coordinates, 4 rows of which one is twice another: rank 3.
        assert "robots.good:skate 3 4 3 nonholonomic (1) A skate [own] holonomic (2) Me, 2026 acceleration (1)" in shown
        assert "robots.helper:plane 2 0 0 none Free" in shown
        assert "Left out: robots.good:fails fails: KeyError: 'nothing\\nhere'" in shown
        assert "Left out: robots.good:wrong fails: UsageError: robots.good:wrong must return a ukjax.Scenario" in shown
        # What is kept is not computed again.
        monkeypatch.setattr("ukjax.cli._list.entry", None)
    (kept,) = (tmp_path / "cache" / "lists").iterdir()
    assert "robots.good:skate" in kept.read_text()
    # An edit of the package, and it is.
    (tmp_path / "robots" / "helper.py").write_text(HELPER.replace("Free", "Freed"))
    _, shown, _ = listed("robots", "--rank")
    assert "robots.helper:plane 2 0 0" not in shown


def test_lists_a_module_and_a_file(listed, tmp_path):
    (tmp_path / "robots" / "helper.py").write_text('"""A plane.\n\n   o--->  its sketch\n"""\n' + HELPER)
    for place in ("robots.helper", "robots/helper.py"):
        status, shown, _ = listed(place)
        assert status == 0
        assert f"{place}:plane Free" in shown
        assert "o---> its sketch" in shown


def test_names_that_are_not_plain_text(listed, tmp_path):
    (tmp_path / "computed.py").write_text(COMPUTED)
    _, shown, _ = listed("computed.py")
    assert "computed.py:chain Chain of ... rods. By hand" in shown
    assert "computed.py:quoted By a helper. By hand" in shown
    assert "computed.py:loose Its first line" in shown


def test_an_empty_package_and_none(listed, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1")
    status, shown, _ = listed("empty")
    assert status == 0
    assert "No scenarios in empty: no public function there is annotated to return a ukjax.Scenario" in shown
    status, _, errors = listed("no_such_package")
    assert status == 2
    assert "There is no module 'no_such_package' here or among the installed packages" in errors
    status, _, errors = listed("no_such_file.py")
    assert status == 2
    assert "There is no file no_such_file.py" in errors
    status, _, errors = listed("no_such_robot.xml")
    assert status == 2
    assert "There is no file no_such_robot.xml" in errors


def test_the_examples_are_listed_by_default(listed):
    status, shown, _ = listed()
    assert status == 0
    assert "ukjax.examples.simple_pendulum:scenario Simple pendulum (IFToMM A01). IFToMM benchmark A01" in shown


def test_what_is_declared_is_what_is_made(monkeypatch):
    """Of every model: names and sources as the scenarios have them, unless they are computed."""
    monkeypatch.chdir(Path(__file__).parents[2])
    found, failures = declared("models")
    assert failures == []
    assert {one.target for one in found} == cli.factories("models")[0].keys()
    for one in found:
        if one.target in (
            "models.simple_pendulum:scenario",
            "models.coordinated_robots:scenario",
            "models.scara:scenario",
        ):
            made = cli.factories("models")[0][one.target]()
            assert (one.name, one.source) == (made.name, made.source)


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
