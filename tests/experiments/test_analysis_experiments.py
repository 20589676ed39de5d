"""Experiments about what is near a state."""

import numpy as np
import pytest

import experiments.bicycle_stability as bicycle
import experiments.hold_upright as upright

from .test_experiments import drawn, run


@pytest.mark.long
def test_the_bicycle(monkeypatch, capsys, tmp_path):
    run(bicycle, monkeypatch, capsys, tmp_path)
    A, speeds = bicycle.linear_system(), np.linspace(0.5, 9.5, 7)
    assert bicycle.differences(np.linalg.eigvals(np.asarray(A(speeds))), speeds) < 1e-6
    for what, speed in bicycle.critical(A).items():
        assert speed == pytest.approx(bicycle.PAPER[what], abs=1e-6)
    assert drawn(tmp_path) == ["eigenvalues"]


@pytest.mark.long
def test_regulators_hold_what_falls():
    """On a coarser grid, each from a region about the equilibrium; the picture."""
    for case in (upright.pole(), upright.arch()):
        always, seldom = upright.regions(case, 7)
        assert np.max(np.real(upright.open_loop(case).eigenvalues)) > 4
        for region in (always, seldom):
            assert np.max(np.real(region.regulator.eigenvalues)) < -1
            assert region.home[3, 3]
            assert np.all(region.home[2:4, 3])
            assert 0.2 < np.mean(region.home) < 0.8
        assert np.mean(always.home) >= np.mean(seldom.home)
        assert len(upright.figure_of(case, [always, seldom]).axes) == 2
