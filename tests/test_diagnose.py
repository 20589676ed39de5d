"""What `diagnose` and `ukjax inspect` say about mechanisms of which it is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_four_bar, parallelogram
from ukjax.cli import main

from .helpers import assert_close, command, falling, long, pendulum, rod, sampled


def test_the_parallelogram_in_general_and_in_line():
    case = parallelogram.scenario()
    state = case.mechanism.system.state
    found = ukjax.diagnose(case.mechanism, *state(jnp.asarray(-0.7), jnp.asarray(2.0)))
    assert (found.rows, found.coordinates, int(found.rank), int(found.degrees_of_freedom)) == (12, 12, 11, 1)
    assert np.flatnonzero(found.redundant).tolist() == [11]
    assert bool(found.consistent)
    assert bool(jnp.all(found.holonomic))
    assert_close(found.mass_condition, jnp.asarray(20.0), rtol=1e-12)
    assert float(found.position_error) < 1e-14
    in_line = ukjax.diagnose(case.mechanism, *state(jnp.asarray(0.0), jnp.asarray(2.0)))
    assert int(in_line.rank) == 10
    assert int(jnp.sum(in_line.redundant)) == 2
    assert bool(in_line.consistent)
    text = str(found)
    for part in ("12, of rank 11", "constraints[0] (Holonomic) row 11", "positive definite, condition number 20"):
        assert part in text


def test_condition_and_distance():
    rows = ukjax.Holonomic(lambda q, t: jnp.array([q[0], q[0] + 0.1 * q[1] - 0.02]))
    found = ukjax.diagnose(ukjax.Mechanism(falling(m=4.0), rows), [0.3, 0.0], [0.0, 1.0])
    B = np.array([[1.0, 0.0], np.array([1.0, 0.1]) / np.hypot(1, 0.1)])
    assert_close(found.constraint_condition, jnp.asarray(np.linalg.cond(B)), rtol=0.2)  # rows of about unit length
    assert_close(found.position_error, jnp.asarray(np.hypot(0.3, 0.28)), atol=1e-14)
    assert_close(found.velocity_error, jnp.asarray(0.1), atol=1e-14)
    assert int(found.degrees_of_freedom) == 0


def test_redundant_and_contradictory_rows():
    same = ukjax.diagnose(pendulum(copies=3), [1.0, 0.0], [0.0, 1.0])
    assert same.redundant.tolist() == [False, True, True]
    assert same.labels[2] == "constraints[2] (Holonomic) row 0"
    assert bool(same.consistent)
    apart = ukjax.Mechanism(falling(), [rod(), ukjax.Holonomic(lambda q, t: (q @ q - 1 - t**2)[None])])
    found = ukjax.diagnose(apart, [1.0, 0.0], [0.0, 1.0])
    assert not bool(found.consistent)
    assert float(found.residual) > 0.1
    assert "NO, |A q'' - b|" in str(found)


def test_the_rows_of_a_position_error_are_closed_forms():
    """Also where the speeds leave no room for the coordinates but a path: a wheel on a circle."""
    wheel = ukjax.Kinematics(lambda q, v, t: jnp.stack([v[0] * jnp.cos(q[2]), v[0] * jnp.sin(q[2]), v[1]]))
    system = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2), kinematics=wheel)
    circle = ukjax.Holonomic(lambda q, t: (q[0] ** 2 + q[1] ** 2 - 1.0)[None])
    pushed = ukjax.Nonholonomic(lambda q, v, t: (v[1] - q[0] * v[0])[None])
    found = ukjax.diagnose(ukjax.Mechanism(system, [pushed, circle]), [1.0, 0.0, 1.2], [0.0, 0.0])
    assert float(found.curl[1]) == 0.0
    assert bool(found.holonomic[1])


# One Pfaffian row alpha dx + beta dy + gamma dz, by Lemma 1 of Zhao et al. (2018).
ROWS = {
    "scleronomic, example 2": (lambda q: jnp.stack([jnp.ones(()), 2 * q[1], jnp.ones(())]), 0.0, True),
    "rheonomic, example 3": (lambda q: jnp.stack([jnp.ones(()), 2 * q[1], jnp.ones(())]), 1.0, True),
    "nonholonomic, example 4": (lambda q: jnp.stack([jnp.ones(()), 2 * q[2], jnp.ones(())]), 0.0, False),
    "with an integrating factor": (lambda q: jnp.exp(q[0] * q[1]) * jnp.stack([q[1], q[0], 1 + q[2] ** 2]), 0.0, True),
    "the contact form": (lambda q: jnp.stack([-q[1], jnp.zeros(()), jnp.ones(())]), 0.0, False),
    "flat at the origin": (lambda q: jnp.stack([q[1] ** 3, jnp.zeros(()), jnp.ones(())]), 0.0, False),
}


def lemma_1(form, q):
    a, b, c = np.asarray(form(q))
    D = np.asarray(jax.jacfwd(form)(q))
    return a * (D[1, 2] - D[2, 1]) + b * (D[2, 0] - D[0, 2]) + c * (D[0, 1] - D[1, 0])


EXAMPLES = ("rheonomic, example 3", "nonholonomic, example 4", "flat at the origin")


@pytest.mark.parametrize("name", sampled(ROWS, EXAMPLES))
@pytest.mark.parametrize("as_acceleration", [False, long(True)])
def test_one_row_in_three_coordinates_is_lemma_1(name, as_acceleration):
    form, rate, holonomic = ROWS[name]
    q = jnp.zeros(3) if "origin" in name else jnp.array([0.3, -0.7, 0.4])
    if as_acceleration:
        row = ukjax.AccelerationConstraint(lambda q, v, t: form(q)[None], lambda q, v, t: jnp.zeros(1))
    else:
        row = ukjax.Nonholonomic(lambda q, v, t: (form(q) @ v - rate)[None])
    found = ukjax.diagnose(ukjax.Mechanism(falling(n=3), row), q, jnp.array([0.1, 0.2, 0.3]))
    assert found.holonomic.tolist() == [holonomic]
    away = lemma_1(form, q + jnp.array([0.0, 0.5, 0.2]))
    assert (abs(away) < 1e-12) == holonomic


@pytest.mark.long
def test_rows_together():
    # Rolling: x' = R phi' alone can be integrated, the disc that may turn cannot.
    rolling = ukjax.Nonholonomic(lambda q, v, t: (v[0] - 0.5 * v[1])[None])
    assert bool(ukjax.diagnose(ukjax.Mechanism(falling(n=2), rolling), [0.0, 0.0], [0.5, 1.0]).holonomic[0])

    def disc(q, v, t):  # q = (x, y, heading, turn)
        return jnp.stack([v[0] - 0.5 * jnp.cos(q[2]) * v[3], v[1] - 0.5 * jnp.sin(q[2]) * v[3]])

    free = ukjax.Mechanism(falling(n=4), ukjax.Nonholonomic(disc))
    at = [0.0, 0.0, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0]
    assert ukjax.diagnose(free, *at).holonomic.tolist() == [False, False]
    # With its heading held it goes straight: all rows together can be integrated.
    held = ukjax.Mechanism(falling(n=4), [ukjax.Nonholonomic(disc), ukjax.Holonomic(lambda q, t: (q[2] - 0.3)[None])])
    assert ukjax.diagnose(held, *at).holonomic.tolist() == [True, True, True]


def test_a_row_that_is_not_linear_in_the_velocity():
    speed = ukjax.Nonholonomic(lambda q, v, t: (v @ v - 1.0)[None])
    found = ukjax.diagnose(ukjax.Mechanism(falling(), speed), [0.0, 0.0], [1.0, 0.0])
    assert found.holonomic.tolist() == [False]
    assert np.isinf(found.curl[0])
    assert "all but constraints[0] (Nonholonomic) row 0" in str(found)


def test_singular_masses():
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 0.0])), lambda q, v, t: jnp.zeros(2))
    alone = ukjax.diagnose(ukjax.Mechanism(system), [0.0, 0.0], [0.0, 0.0])
    assert not bool(alone.mass_definite)
    assert not bool(alone.unique)
    assert "not unique" in str(alone)
    assert "no rows" in str(alone)
    held = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q[1] - q[0])[None]))
    found = ukjax.diagnose(held, [0.0, 0.0], [0.0, 0.0])
    assert bool(found.unique)
    assert bool(found.consistent)
    assert np.isinf(found.mass_condition)


def test_under_jit_and_vmap():
    mechanism = pendulum(copies=2)
    angles = jnp.array([0.0, 1.0])
    at = lambda a: (jnp.stack([jnp.cos(a), jnp.sin(a)]), jnp.stack([-jnp.sin(a), jnp.cos(a)]))
    found = jax.jit(jax.vmap(lambda a: ukjax.diagnose(mechanism, *at(a))))(angles)
    assert found.rank.tolist() == [1, 1]
    assert found.redundant.tolist() == [[False, True]] * 2


@pytest.mark.parametrize(("arguments", "error", "match"), [
    ((falling(), [0.0, 0.0], [0.0, 0.0]), TypeError, "mechanism must be an instance of Mechanism"),
    ((pendulum(), [0.0, 0.0], [0.0]), ValueError, "same shape"),
    ((pendulum(), [0.0, np.nan], [0.0, 0.0]), ValueError, "q must be finite"),
    ((pendulum(), [0.0, 1.0], [0.0, 0.0], np.inf), ValueError, "t must be finite"),
])  # fmt: skip
def test_what_cannot_be_diagnosed_is_named(arguments, error, match):
    with pytest.raises(error, match=match):
        ukjax.diagnose(*arguments)


def test_the_command(capsys):
    assert command(main, "inspect", "models.n_four_bar:scenario", "--set", "windows=1") == 0
    shown = capsys.readouterr().out
    assert "8, of rank 8" in shown
    assert "constraints[0] (Holonomic) row 7" in shown
    assert command(main, "inspect", "models.n_four_bar:nothing") == 2
    assert "no factory 'nothing'" in capsys.readouterr().err


@pytest.mark.long
def test_the_command_in_line(capsys, tmp_path):
    (tmp_path / "lying.py").write_text(
        "import jax.numpy as jnp, ukjax\nfrom models import n_four_bar\n"
        "def make():\n    case = n_four_bar.scenario(2)\n"
        "    q0, v0 = case.mechanism.system.state(jnp.zeros(()), jnp.ones(()))\n"
        "    return ukjax.Scenario(case.mechanism, q0, v0, 1.0)\n"
    )
    assert command(main, "inspect", f"{tmp_path}/lying.py:make") == 0
    shown = capsys.readouterr().out
    rank = int(shown.split("14, of rank ")[1].split()[0])
    assert rank < 14
    assert n_four_bar.NFourBar(2).windows == 2


def test_models_refuse_nonsense():
    with pytest.raises(ValueError, match="start must be one of"):
        parallelogram.scenario("sideways")
    with pytest.raises(ValueError, match="windows must be at least 1"):
        n_four_bar.scenario(0)
