"""Experiments about what is near a state."""

import numpy as np
import pytest

import experiments.bicycle_stability as bicycle
import experiments.changing_constraints as changing
import experiments.hold_upright as upright
import experiments.long_runs as long_runs
import experiments.plan_motions as plan_motions

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


def test_constraints_that_come_and_go(monkeypatch, capsys, tmp_path):
    shown = run(changing, monkeypatch, capsys, tmp_path)
    for line in shown.splitlines():
        if any(name in line for name in ("bead", "rope", "belt")):
            off, late = (float(x) for x in line.split("│")[3:5])
            assert off < 1e-8
            assert late < 1e-8
    assert drawn(tmp_path) == ["changing_constraints"]


@pytest.mark.long
def test_long_runs():
    """A hundredth of the million steps: RATTLE's energy is no worse in the end; projection's drifts; the pictures."""
    long, work = long_runs.study(10_000)
    assert [len(runs) for runs in long.values()] == [4, 4, 4]
    for runs in long.values():
        rattle = next(iter(runs.values()))
        tenth = len(rattle.off) // 10
        assert np.max(rattle.off[-tenth:]) < 1.5 * np.max(rattle.off[: 3 * tenth])
    rows = long_runs.rows(long)
    assert len(rows) == 12
    assert len(long_runs.energies(long).axes) == len(long_runs.works(work).axes) == 3


@pytest.mark.long
def test_planned_motions():
    """Swing-ups reach the top and cost what collocation's do; robots spend less than their servo."""
    for case in (plan_motions.pole(), plan_motions.bot()):
        plan = plan_motions.planned(case)
        assert np.max(np.abs(plan.missed)) < 1e-3
        assert plan.cost < 1.05 * plan_motions.reference(case, plan).cost
    case = plan_motions.robots()
    plan = plan_motions.planned(case)
    assert np.max(np.abs(plan.missed)) < 1e-3
    assert plan.cost < plan_motions.servo_effort(case)
