"""Scenario, and what its numbers are called."""

import copy
import importlib.metadata

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import ukjax
from models import simple_pendulum

from .helpers import SIDE, assert_close, pendulum


@pytest.mark.parametrize(
    ("text", "name", "unit"),
    [
        ("q1 [rad]", "q1", "rad"),
        ("tool x, y, z [m]", "tool x, y, z", "m"),
        ("torque [N m] ", "torque", "N m"),
        ("x[0]", "x[0]", ""),
        ("x[0] [1/s]", "x[0]", "1/s"),
        ("plain", "plain", ""),
        ("[m]", "[m]", ""),
    ],
)
def test_a_text_is_a_name_and_a_unit(text, name, unit):
    got = ukjax.study.Coordinate(text)
    assert (got.name, got.unit) == (name, unit)
    assert got == text.strip()
    again = ukjax.study.Coordinate(name, unit)
    assert again == got
    assert {got: 1}[text.strip()] == 1
    assert (copy.deepcopy(again).name, copy.deepcopy(again).unit) == (name, unit)
    assert ukjax.study.Coordinate(again) is again


def test_names_of_components():
    assert ukjax.study.Coordinate("tool x, y, z [m]").parts == ["x", "y", "z"]
    assert ukjax.study.Coordinate("height [m]").parts == ["height"]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3,), TypeError, "must be text, such as 'q1', 'rad', but are 3"),
        (("q", 3), TypeError, "must be text"),
        (("q", "[m]"), ValueError, r"unit must be without brackets, such as 'rad', but is '\[m\]'"),
    ],
)
def test_what_is_no_name(arguments, error, match):
    with pytest.raises(error, match=match):
        ukjax.study.Coordinate(*arguments)


def scenario(**options):
    """A pendulum, off its constraint by a drift that a projection would take away."""
    return ukjax.Scenario(pendulum(), [0.6, -0.8], [0.8, 0.6], 0.5, **options)


def test_names_and_texts_serve_alike():
    names = [ukjax.study.Coordinate("x", "m"), "y [m]"]
    height = {ukjax.study.Coordinate("height", "m"): lambda q, v, t: q[1], "drift [J]": lambda q, v, t: q[0]}
    got = scenario(coordinates=names, observables=height)
    assert got.coordinates == ("x [m]", "y [m]")
    assert [name.unit for name in (*got.coordinates, *got.observables)] == ["m", "m", "m", "J"]
    assert [name.name for name in scenario().coordinates] == ["q1", "q2"]


def test_units_are_attributes_of_the_data_and_of_its_file(tmp_path):
    got = scenario(coordinates=["x [m]", ukjax.study.Coordinate("phi", "rad")]).simulate(jnp.linspace(0.0, 0.1, 3))
    data = got.to_dataset(["x [m]", ukjax.study.Coordinate("phi", "rad")])
    data.to_netcdf(tmp_path / "data.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "data.nc", engine="scipy") as file:
        assert list(file.name.values) == ["x", "phi"]
        assert list(file.unit.values) == ["m", "rad"]
        assert file.coordinate.attrs["units"] == file.q.attrs["units"] == "m, rad"
        assert file.v.attrs["units"] == "m/s, rad/s"
        assert file.acceleration.attrs["units"] == "m/s^2, rad/s^2"
        assert file.constraint_force.attrs["units"] == "N, N m"
    assert got.to_dataset(["x [m]", "y [m]"]).q.attrs["units"] == "m"
    assert got.to_dataset().q.attrs["units"] == "m, rad"
    plain = scenario().simulate(jnp.linspace(0.0, 0.1, 3))
    assert plain.names is None or plain.names.coordinates is None
    assert "units" not in plain.to_dataset().q.attrs


def test_controls_have_units_too():
    servo = ukjax.Servo(SIDE, np.eye(2)[:, :1])
    plain = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: 0 * q))
    case = ukjax.Scenario(plain, jnp.zeros(2), jnp.array([1.0, 0.0]), 0.1, servo=servo, controls=["push [N]"])
    data = case.simulate(jnp.linspace(0.0, 0.1, 3)).to_dataset(controls=case.controls)
    assert data.control.attrs["units"] == "N"
    assert list(data.actuator_name.values) == ["push"]
    with pytest.raises(ValueError, match="controls must be 1 names, one per actuator"):
        case.simulate(jnp.linspace(0.0, 0.1, 3)).to_dataset(controls=["a", "b"])


@pytest.mark.long
def test_a_scenario_simulates_itself():
    case = simple_pendulum.scenario(0.5)
    got = case.simulate()
    assert_close(got.t, jnp.linspace(case.t0, case.t1, 1001))
    ts = jnp.linspace(0.0, 0.5, 1001)
    options = {"servo": case.servo, "formulation": case.formulation, "projection": case.projection}
    assert_close(got.q, ukjax.simulate(case.mechanism, case.q0, case.v0, ts, **options).q, atol=1e-14)
    assert case.projection is not None
    few = case.simulate(ts[::100], projection=None, formulation=ukjax.formulation.RangeSpace(), rtol=1e-5, atol=1e-5)
    assert few.q.shape == (11, 2)
    assert np.max(few.position_residual) > 1e-9  # it drifts


def test_version():
    assert ukjax.__version__ == importlib.metadata.version("ukjax")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observables": {"x [m]": lambda q, v, t: "far"}}, r"observables\['x \[m\]'\] must be .* but fails at q0"),
        ({"observables": {"x [m]": lambda q, v, t: float(q[0])}}, "in jax.numpy, but fails at q0: Concretization"),
        ({"observables": {"x [m]": lambda q, v, t: q[:, None]}}, r"a number or a vector, but returned shape \(2, 1\)"),
        ({"observables": {"x [m]": lambda q, v, t: (q, v)}}, "a number or a vector, but returned tuple"),
        (
            {"invariants": {"e [J]": lambda q, v, t: {}["no"]}},
            r"invariants\['e \[J\]'\] .* fails at q0: KeyError: 'no'",
        ),
        ({"invariants": {"e [J]": lambda q, v, t: v}}, r"must return a number, but returned shape \(2,\)"),
    ],
)
def test_observables_and_invariants_are_tried_at_the_start(options, message):
    with pytest.raises(ValueError, match=message):
        scenario(**options)
