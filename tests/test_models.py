"""The models with closed forms: those forms themselves, consistent starts, and the command."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import ukjax
from models import closed_form, n_four_bar, parallelogram, simple_pendulum
from ukjax.cli import _app

from .helpers import assert_close


@pytest.mark.parametrize(
    ("psi0", "rate0"),
    [(0.3, 0.0), (2.0, 0.0), (-1.0, 2.0), (1.0, -3.0), (0.0, 8.0), (0.5, -8.0), (np.pi, -1.0), (0.0, 1.0)],
)
def test_the_pendulum_in_closed_form(psi0, rate0):
    w, ts = 3.1, np.linspace(0.0, 12.0, 7)
    right = lambda t, y: [y[1], -(w**2) * np.sin(y[0])]
    want = solve_ivp(right, (0.0, 12.0), [psi0, rate0], "DOP853", ts, rtol=1e-12, atol=1e-12).y
    psi, rate = closed_form.pendulum(ts, psi0, rate0, w)
    assert_close(np.cos(psi), np.cos(want[0]), atol=2e-8)
    assert_close(np.sin(psi), np.sin(want[0]), atol=2e-8)
    assert_close(rate, want[1], atol=1e-7)


def test_periods_of_the_parallelogram():
    w = np.sqrt(3.5 * 9.81 / 3.05)
    periods = {"swing": 1.94752692087424, "crossing": 2.86134166922414, "rotation": 1.04034152801943}
    for start, period in periods.items():
        theta, rate = parallelogram.STARTS[start]
        assert_close(closed_form.period(theta + np.pi / 2, rate, w), period, rtol=1e-12)
        angle, _ = parallelogram.exact([0.0, period], start)
        turn = 2 * np.pi if start == "rotation" else 0.0
        assert_close(angle[1] - angle[0], np.float64(turn), atol=1e-9)


def test_the_highest_point_takes_forever():
    with pytest.raises(ValueError, match="forever"):
        closed_form.pendulum([0.0], np.pi, 0.0, 1.0)


def test_known_answers_of_the_benchmarks():
    assert_close(simple_pendulum.exact([10.0]), np.array([[-0.2750874625764018, -0.9614192050990436]]), atol=1e-12)
    place, velocity = n_four_bar.exact([10.0], 2)
    assert_close(place, np.array([[0.32845811153380416, 0.9445185381810391]]), atol=1e-11)
    assert_close(velocity, np.array([[1.4230514701915438, -0.4948688454698466]]), atol=1e-10)
    assert_close(n_four_bar.exact([10.0], 40)[0], np.array([[0.1805122266811059, 0.9835727405833434]]), atol=1e-11)


@pytest.mark.parametrize(("model", "rate"), [
    (parallelogram.Parallelogram(), lambda c: -3.5 * 9.81 / 3.05 * c),
    (n_four_bar.NFourBar(3), lambda c: -9.81 * 5.0 / (13 / 3) * c),
])  # fmt: skip
def test_states_are_consistent_and_move_as_one_degree_of_freedom(model, rate):
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.joints))
    q, v = model.state(jnp.asarray(0.8), jnp.asarray(-1.5))
    assert np.max(np.abs(mechanism.position_error(q, jnp.zeros(())))) < 1e-14
    assert np.max(np.abs(mechanism.velocity_error(q, v, jnp.zeros(())))) < 1e-14
    tangent = jax.jvp(lambda x: model.state(x, jnp.asarray(-1.5))[0], (jnp.asarray(0.8),), (jnp.asarray(-1.5),))[1]
    assert_close(v, tangent, atol=1e-14)
    motion = ukjax.equation_of_motion(mechanism, q, v)
    assert_close(motion.acceleration[2], jnp.asarray(rate(np.cos(0.8))), atol=1e-10)


def test_a_scenario_with_projection_through_the_command(monkeypatch, capsys, tmp_path):
    arguments = [
        "ukjax",
        "simulate",
        "models.n_four_bar:scenario",
        "--t1",
        "1",
        "--points",
        "11",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", arguments)
    monkeypatch.setattr(_app.console, "width", 160)
    with pytest.raises(SystemExit, match="0"):
        _app.main()
    shown = capsys.readouterr().out
    position = float(shown.split("largest position error")[1].split(",")[0].strip(" │"))
    assert position < 1e-13
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_a_scenario_checks_its_formulation_and_projection():
    case = simple_pendulum.scenario()
    make = lambda **options: ukjax.Scenario(case.mechanism, case.q0, case.v0, 1.0, **options)
    with pytest.raises(TypeError, match="formulation must be"):
        make(formulation=ukjax.UdwadiaKalaba)
    with pytest.raises(TypeError, match="projection must be"):
        make(projection=True)


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        ("two_mass_spring", ["largest control"]),
        pytest.param("coordinated_robots", ["2, of rank 2"], marks=pytest.mark.long),
        pytest.param("flexible_joint", ["largest servo velocity error"], marks=pytest.mark.long),
        pytest.param("cart_pole", ["largest acceleration missed"], marks=pytest.mark.long),
        pytest.param("unicycle", ["1, of rank 1"], marks=pytest.mark.long),
    ],
)
def test_a_scenario_with_a_servo_through_the_command(monkeypatch, capsys, tmp_path, target, rows):
    monkeypatch.setattr(_app.console, "width", 120)
    arguments = ["ukjax", "simulate", f"models.{target}:scenario", "--t1", "0.5", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as end:
        _app.main()
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(row in shown for row in rows)
    assert {"control.png", "overview.png", "trajectory.nc"} <= {path.name for path in tmp_path.iterdir()}
