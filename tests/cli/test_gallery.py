"""`ukjax gallery`: a contact sheet and a page for each scenario."""

import re
from io import BytesIO

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import ukjax
from models import simple_pendulum
from tests.helpers import assert_close
from ukjax import plot

from ..inside import measured, work_of
from .test_cli import run as command  # noqa: F401  (a fixture)


OWN = '''
"""A stone.

   o  falls, m x'' = -m g

Source: nobody. (Of indented lines alone Python 3.13 takes the margin away.)
"""

import jax.numpy as jnp
import ukjax

def scenario() -> ukjax.Scenario:
    free = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81]))
    energy = lambda q, v, t: v @ v / 2 + 9.81 * q[1]
    point = ukjax.study.Drawing({"stone": lambda q, t: q[None]})
    return ukjax.Scenario(ukjax.Mechanism(free), [0.0, 0.0], [1.0, 2.0], 0.5, name="Stone | thrown", drawing=point,
                          source="Me", invariants={"energy [J]": energy})

def unseen() -> ukjax.Scenario:
    free = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2))
    return ukjax.Scenario(ukjax.Mechanism(free), [0.0, 0.0], [1.0, 2.0], 0.5, name="Unseen")

def stops() -> ukjax.Scenario:
    free = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.sqrt(0.1 - t) * jnp.ones(2))
    return ukjax.Scenario(ukjax.Mechanism(free), [0.0, 0.0], [1.0, 2.0], 0.5, name="Stops")

def fails() -> ukjax.Scenario:
    raise KeyError("nothing")
'''


@pytest.mark.long
def test_a_page_for_each_an_index_and_a_sheet(command, tmp_path):  # noqa: F811
    (tmp_path / "own.py").write_text(OWN)
    status, shown, _ = command("gallery", "own.py", "--out", "shown")
    assert status == 0
    assert "Left out: own.py:fails fails: KeyError: 'nothing'" in shown
    assert "Left out: own.py:stops fails: RuntimeError:" in shown
    folder = tmp_path / "shown"
    stems = ["own-py-scenario", "own-py-unseen"]
    wanted = {
        "index.md",
        "sheet.png",
        "own-py-scenario-film.html",
        "own-py-scenario-live.html",
        "own-py-scenario.webp",
        *(f"{x}.{kind}" for x in stems for kind in ("md", "png")),
    }
    assert {path.name for path in folder.iterdir()} == wanted
    page = (folder / "own-py-scenario.md").read_text()
    for words in (
        "# Stone \\| thrown\n",
        "n = 2 coordinates; m = 0 rows of constraints, of rank 0 at the\nstart: none.",
        "ukjax simulate own.py:scenario\n",
        "   o  falls, m x'' = -m g\n",
        '<iframe src="own-py-scenario-live.html"',
        "ukjax animate own.py:scenario --live\n",
        "[The film on a page of its own](own-py-scenario-film.html)",
    ):
        assert words in page
    (drift,) = re.findall(r"drift of energy \\\[J\\\], which is 2.5 \| (\S+) \|", page)
    assert float(drift) < 1e-7
    (drift,) = re.findall(r"at most [\d.]+ J, less the work of all forces \\\[J\\\] \| (\S+) \|", page)
    assert float(drift) < 1e-7
    assert "iframe" not in (folder / "own-py-unseen.md").read_text()
    index = (folder / "index.md").read_text()
    assert index.count("## Without constraints") == index.count("\n## ") == 1
    picture = "![Stone \\| thrown](own-py-scenario.webp){ loading=lazy }"
    assert f"[{picture}<br>**Stone \\| thrown**](own-py-scenario.md)<br>n = 2, m = 0, rank 0<br>none<br>Me\n" in index
    assert "(own-py-unseen.png)" in index
    assert page.startswith("[Gallery](index.md) · [Unseen →](own-py-unseen.md)\n")
    with Image.open(folder / "own-py-scenario.webp") as film:
        assert film.is_animated
        assert film.n_frames > 10
        drawn = np.asarray(film.convert("RGBA"))
        assert drawn[0, 0, 3] == 0  # no background
        assert drawn[..., 3].max() == 255
    links = {
        x for name in wanted if name.endswith(".md") for x in re.findall(r"\]\(([^)]+)\)", (folder / name).read_text())
    }
    assert links <= wanted
    for name in ("sheet.png", "own-py-scenario.png"):
        assert np.ptp(np.asarray(Image.open(folder / name).convert("L"))) > 100


def test_what_cannot_be_shown_leaves_nothing(command, tmp_path):  # noqa: F811
    (tmp_path / "own.py").write_text(OWN.partition("def scenario")[0] + "def fails" + OWN.partition("def fails")[2])
    status, shown, errors = command("gallery", "own.py", "--out", "shown")
    assert status == 2
    assert "Left out: own.py:fails fails: KeyError" in shown
    assert "There is nothing to show in own.py: ukjax list own.py says what there is." in errors
    assert list((tmp_path / "shown").iterdir()) == []
    (tmp_path / "file").write_text("")
    status, _, errors = command("gallery", "own.py", "--out", "file")
    assert status == 2
    assert "--out file cannot be written to" in errors


def test_what_is_measured_is_what_the_trajectory_says():
    scenario = simple_pendulum.scenario()
    run = scenario.simulate(np.linspace(0.0, 1.0, 11))
    found = measured(scenario, run)
    (name,) = [x for x in found if x.startswith("drift of energy [J], which is ")]
    energy = np.array([scenario.invariants["energy [J]"](*state) for state in zip(run.q, run.v, run.t, strict=True)])
    assert found[name] == f"{np.max(np.abs(energy - energy[0])):.1e}"
    assert found["largest position error of the constraints"] == f"{np.max(run.position_residual):.1e}"


def test_a_contact_sheet_and_what_is_none():
    figure = Figure(figsize=(1, 1))
    stream = BytesIO()
    figure.savefig(stream, format="png")
    png = stream.getvalue()
    sheet = plot.contact_sheet([png] * 5, ["a", "b", "c", "d", "e"], columns=3)
    assert [axis.get_title() for axis in sheet.axes] == ["a", "b", "c", "d", "e", ""]
    for none in ([], [b"text"], "text", [3]):
        with pytest.raises(ValueError, match="pictures must be at least one PNG file, as bytes"):
            plot.contact_sheet(none, ["a"])
    with pytest.raises(ValueError, match="captions must be as many as pictures, 1, but are 2"):
        plot.contact_sheet([png], ["a", "b"])
    with pytest.raises(ValueError, match="columns must be a positive integer"):
        plot.contact_sheet([png], ["a"], columns=0)


def test_the_kinetic_energy_is_what_the_forces_worked():
    """A mass that grows, driven; and not so if the accelerations were others."""
    driven = ukjax.System(lambda q, t: (1 + t) * jnp.eye(1), lambda q, v, t: jnp.cos(9.0 * t) - v)
    scenario = ukjax.Scenario(ukjax.Mechanism(driven), [0.0], [1.0], 2.0)
    run = scenario.simulate(np.linspace(0.0, 2.0, 1001), rtol=1e-11, atol=1e-11)
    kinetic, work = work_of(scenario, run)
    assert_close(kinetic, (1 + run.t) * run.v[:, 0] ** 2 / 2, atol=1e-14)
    assert np.ptp(kinetic) > 0.1
    assert_close(kinetic - kinetic[0], work, atol=1e-10)
    # M v' + M' v = (M v)' is the force: of it less M' v / 2 the work is made.
    power = (jnp.cos(9.0 * run.t) - run.v[:, 0] + run.v[:, 0] / 2) * run.v[:, 0]
    assert_close(work[-1], np.trapezoid(power, run.t), atol=1e-5)
    other = eqx.tree_at(lambda run: run.acceleration, run, run.acceleration + 0.1)
    kinetic, work = work_of(scenario, other)
    assert np.max(np.abs(kinetic - kinetic[0] - work)) > 0.01
