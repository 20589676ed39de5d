"""`ukjax modes`, and the pictures of what is linear."""

import numpy as np
import pytest
from PIL import Image

import ukjax
from models import simple_pendulum
from ukjax import plot

from .test_cli import ROOT
from .test_cli import run as command  # noqa: F401  (a fixture)


@pytest.mark.long
def test_a_table_and_an_animation(command, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT))
    status, shown, _ = command("modes", "models.simple_pendulum:scenario", "--mode", "1", "--out", "here")
    assert status == 0
    assert "about the equilibrium: neither stable nor unstable" in shown
    assert f"{np.sqrt(9.81) / (2 * np.pi):.6g}" in shown
    assert {p.name for p in (tmp_path / "here").iterdir()} == {"mode-1.gif", "mode-1.html"}
    with Image.open(tmp_path / "here" / "mode-1.gif") as film:
        assert film.n_frames == 60


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--mode", "7"], "--mode 7: index must be one of 1 modes"),
        (["--out", "here"], "--out is for an animation"),
        (["--at", "top"], "Invalid value"),
        (["--mode", "0"], "Invalid value"),
    ],
)
def test_errors_of_use(command, monkeypatch, arguments, match):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT))
    status, _, errors = command("modes", "models.simple_pendulum:scenario", *arguments)
    assert status == 2
    assert match.removeprefix("--mode 7: index must be ") in errors


def test_a_mode_stays_on_the_constraints():
    scenario = simple_pendulum.scenario()
    q = ukjax.analysis.equilibrium(scenario.mechanism, scenario.q0, scenario.v0 * 0).q
    shown, motion = plot.mode(scenario, q, ukjax.analysis.linearize(scenario.mechanism, q).modes(), frames=8)
    lengths = np.linalg.norm(np.asarray(motion.q), axis=1)
    np.testing.assert_allclose(lengths, lengths[0], atol=1e-9)
    assert float(motion.t[1] * 8) == pytest.approx(2 * np.pi / np.sqrt(9.81), abs=1e-9)
    assert "mode 1" in shown.name


def test_eigenvalues_over_a_parameter():
    x = np.linspace(0.0, 2.0, 5)
    values = np.stack([1 - x + 1j, 1 - x - 1j], axis=1)
    figure = plot.eigenvalues(x, values, "gain [1/s]", "mine")
    real, imaginary = figure.axes
    assert (real.get_ylabel(), imaginary.get_xlabel()) == ("real part [1/s]", "gain [1/s]")
    with pytest.raises(ValueError, match="values must have shape"):
        plot.eigenvalues(x, values[:3], "gain")
