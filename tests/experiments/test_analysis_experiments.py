"""Experiments about what is near a state."""

import numpy as np
import pytest

import experiments.bicycle_stability as bicycle
import experiments.changing_constraints as changing
import experiments.chaos as chaos
import experiments.hold_upright as upright
import experiments.long_runs as long_runs
import experiments.plan_motions as plan_motions

from .test_experiments import drawn, run


@pytest.mark.long
def test_the_bicycle(capsys, tmp_path):
    run(bicycle, capsys, tmp_path)
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


@pytest.mark.long
def test_constraints_that_come_and_go(capsys, tmp_path):
    shown = run(changing, capsys, tmp_path)
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


@pytest.mark.long
def test_chaos():
    """A shorter motion, a coarse map; one rate by SciPy as by us, pairs of sum zero, and calm where it is calm."""
    ours, theirs = chaos.followed(chaos.CHAOTIC, 2.0)
    assert ours == pytest.approx(theirs, abs=1e-8)
    wild, calm = (chaos.spectrum(phi, 80) for phi in (chaos.CHAOTIC, chaos.REGULAR))
    for found in (wild, calm):
        assert np.max(np.abs(np.sum(found.values[-10:], axis=1))) < 0.15  # like 1 / t: the volume is that of momenta
        assert found.drift < 1e-5
    assert wild.values[-1, 0] > 1.0
    assert np.max(np.abs(calm.values[-1])) < 0.15
    assert wild.values[-1, 0] == pytest.approx(chaos.by_scipy(chaos.CHAOTIC, 80), rel=0.3)
    angles, found = chaos.chart(4, 5.0)
    assert found.shape == (4, 4)
    assert np.array_equal(found, found[::-1, ::-1])
    assert np.min(found[0]) > np.max(found[1:3, 1:3])
    assert list(chaos.figure_of({"a": wild, "b": calm}, angles, found)) == ["settling", "map"]
    assert len(chaos.rows({"a": wild, "b": calm}, ours, theirs, 1.8)) == 6
