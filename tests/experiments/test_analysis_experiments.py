"""Experiments about what is near a state."""

import numpy as np
import pytest

import experiments.bicycle_stability as bicycle

from .test_experiments import drawn, run


@pytest.mark.long
def test_the_bicycle(monkeypatch, capsys, tmp_path):
    run(bicycle, monkeypatch, capsys, tmp_path)
    A, speeds = bicycle.linear_system(), np.linspace(0.5, 9.5, 7)
    assert bicycle.differences(np.linalg.eigvals(np.asarray(A(speeds))), speeds) < 1e-6
    for what, speed in bicycle.critical(A).items():
        assert speed == pytest.approx(bicycle.PAPER[what], abs=1e-6)
    assert drawn(tmp_path) == ["eigenvalues"]
