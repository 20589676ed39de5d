"""The experiments on robots from files: loops beside MuJoCo, an arm that is found again, legs with closed chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import experiments.closed_legs as closed_legs
import experiments.identify_robot as identify
import experiments.loops_beside_mujoco as beside
from experiments import _arm, _loops
from models import bricard
from ukjax import rigid

from ..helpers import standard_promotion
from .test_experiments import drawn, run


STEPS = (2e-3, 1e-4)  # [s], of MuJoCo


def cells(shown, *names):
    """Those of the first line of a table that has all these."""
    line = next(line for line in shown.splitlines() if line.startswith("│") and all(name in line for name in names))
    return [cell.strip() for cell in line.split("│")[1:-1]]


@pytest.mark.long
def test_a_loop_of_the_same_text_is_soft_in_mujoco_and_exact_here():
    linkage = _loops.four_bar()
    with standard_promotion():
        measures = _loops.Measures(linkage)
        assert max(_loops.differences(linkage, count=10).values()) < 1e-13
        (ours,) = _loops.by_ukjax(linkage, (1e-8,), 1.0)
        soft = _loops.by_mujoco(linkage, 2e-3, "Euler", False, 1.0)
        stiff = _loops.by_mujoco(linkage, 1e-3, "RK4", True, 1.0)
    assert np.max(measures.violation(ours.q)) < 1e-9
    assert np.max(measures.violation(soft.q)) > 1e-5
    assert 1e-9 < np.max(measures.violation(stiff.q)) < 1e-5
    assert np.max(np.abs(measures.drift(ours))) < 1e-5 < np.max(np.abs(measures.drift(soft)))
    # Two programs that share no code agree where MuJoCo is stiff.
    assert np.max(np.linalg.norm(measures.path(ours.q) - measures.path(stiff.q), axis=1)) < 1e-4


def test_bricards_text_is_the_model():
    text, model = rigid.from_mjcf(_loops.bricard_linkage().text), bricard.robot()
    q, v, t = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4]), jnp.array([1.0, 0.5, -0.3, 0.2, 0.7]), jnp.zeros(())
    np.testing.assert_allclose(text.mass(q, t), model.mass(q, t), atol=1e-11)
    np.testing.assert_allclose(text.force(q, v, t), model.force(q, v, t), atol=1e-10)


@pytest.mark.long
def test_loops_beside_mujoco(capsys, tmp_path):
    gots = [beside.compare(linkage, 10.0, STEPS, (1e-4, 1e-7, 1e-10)) for linkage in beside.linkages()]
    shown = run(beside, capsys, tmp_path, gots=gots)
    assert all(f"{got.linkage.name}, 10 s, largest values" in shown for got in gots)
    assert drawn(tmp_path) == ["violation", "work"]
    for got in gots:
        entry = {(e.who, e.size): e for e in got.entries}
        assert max(got.difference.values()) < 1e-13
        assert got.reference < 1e-9
        assert all(e.violation < 1e-14 for e in got.entries if e.who == "ukjax")
        assert entry["ukjax", 1e-10].error < 1e-8
        assert abs(entry["ukjax", 1e-10].drift) < 1e-7
        for integrator in _loops.INTEGRATORS:
            soft = [entry[f"MuJoCo, {integrator}, {beside.LOOSE}", h] for h in STEPS]
            assert min(e.violation for e in soft) > 1e-4
            assert min(e.error for e in soft) > 1e-2  # however short the step
        coarse, fine = (entry[f"MuJoCo, RK4, {beside.STIFF}", h] for h in STEPS)
        assert fine.error < coarse.error / 100 < 1e-5
        assert 1e-11 < fine.violation < 1e-7
        assert beside.quickest(got, "MuJoCo", 1e-9) is None


def test_the_arm_starts_with_its_loop_closed_and_its_motors_at_zero():
    arm = identify.changed(rigid.from_mjcf(_arm.TEXT), identify.FITTED, identify.true_logs())
    start = _arm.start(arm)
    assert np.all(np.asarray(start @ arm.actuation()) == 0)
    apart = arm.position(start, "rod.loop_0") - arm.position(start, "forearm.loop_1")
    assert float(jnp.max(jnp.abs(apart))) < 1e-14


@pytest.mark.long
def test_the_arms_loop_stays_closed_and_its_steps_are_short_enough():
    arm, told = rigid.from_mjcf(_arm.TEXT), _arm.told(identify.COUNT)
    angles = lambda steps: jax.jit(jax.vmap(lambda sample: _arm.angles(arm, sample, steps)))(told)
    gap = lambda q: arm.position(q, "rod.loop_0") - arm.position(q, "forearm.loop_1")
    with standard_promotion():
        q = angles(_arm.STEPS)
        assert float(jnp.max(jnp.abs(jax.vmap(jax.vmap(gap))(q)))) < 1e-5
        assert float(jnp.max(jnp.abs(q - angles(10 * _arm.STEPS)))) < identify.SIGMA / 50


@pytest.mark.long
def test_an_arm_from_mjcf_is_found_again(capsys, tmp_path):
    shown = run(identify, capsys, tmp_path)
    for number in identify.FITTED:
        _, true, text, found, deviation, off = cells(shown, number.name)
        assert abs(float(off)) < 4.0
        # A fit that stayed at the text would be far off.
        assert abs(float(text) - float(true)) > 4 * float(deviation)
        assert float(found) == pytest.approx(float(true), abs=4.1 * float(deviation) + 1e-5)
    chi_squared = float(shown.split("degree of freedom ")[1].split()[0].rstrip("."))
    assert chi_squared == pytest.approx(1.0, abs=4 * np.sqrt(2 / 800))
    rank = int(shown.split("numbers: rank ")[1].split()[0])
    assert len(identify.FITTED) <= rank < len(identify.FITTED) + len(identify.OTHERS)
    assert drawn(tmp_path) == ["fit", "residuals"]


@pytest.mark.long
def test_closed_legs(capsys, tmp_path):
    with standard_promotion():
        squat, straight = closed_legs.squat(), closed_legs.straight()
    # The mean force of the ground over a squat is the weight, and the motors' work is the change of the energy.
    assert abs(squat.mean_ground - squat.weight) < 1e-6
    assert squat.missed_work < 1e-5
    # Pushed up from below: rods of the ankle carry several times the weight, the same on either side.
    np.testing.assert_allclose(squat.tension["toe_left"], squat.tension["toe_right"], rtol=1e-9)
    assert np.max(squat.tension["toe_left"]) < -squat.weight < np.max(squat.tension["achilles"]) < 0
    # Derivatives through the straight knee are those between robots built anew; the knee's own angle has none.
    np.testing.assert_allclose(straight.forward, straight.differences, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(straight.reverse, straight.forward, rtol=1e-10, atol=1e-13)
    size = np.max(np.abs(straight.at_straight))
    np.testing.assert_allclose(straight.at_straight, straight.at_straight_differences, atol=1e-8 * size)
    assert not np.isfinite(straight.by_inverse_kinematics)
    shown = run(closed_legs, capsys, tmp_path, down=squat, found=straight)
    for number in closed_legs.FITTED:
        assert abs(float(cells(shown, number.name)[-1])) < 4
    assert drawn(tmp_path) == ["ankle", "knee", "poses", "squat"]
