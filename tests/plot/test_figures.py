"""Figures over time and over parameters: panels, units, axes of the caller's, styles, and display in notebooks."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import proj3d

import ukjax
from ukjax import plot

from ..helpers import assert_close
from ..inside import scene, seen_from_afar
from .drawn import moved, pendulum, redrawn, simulated, spherical


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def run():
    return simulated(pendulum)[1]


def labels(figure):
    return [axis.get_ylabel() for axis in figure.axes]


def test_there_is_a_panel_for_what_is_there(run):
    names = ["x [m]", "y [m]"]
    assert labels(plot.overview(run, names)) == [
        "x, y [m]",
        "rate of x, y [m/s]",
        "constraint force of x, y [N]",
        "constraint error (norm, SI)",
    ]
    free = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: -q))
    ts = np.linspace(0.0, 1.0, 5)
    unconstrained = ukjax.simulate(free, [1.0, 0.0], [0.0, 1.0], ts)
    assert labels(plot.overview(unconstrained, names)) == ["x, y [m]", "rate of x, y [m/s]"]
    angle = plot.overview(unconstrained, ["x [m]", "angle [rad]"])
    assert labels(angle) == ["x [m]", "angle [rad]", "rate of x [m/s]", "rate of angle [rad/s]"]
    assert [axis.get_legend() for axis in angle.axes] == [None] * 4
    few = ukjax.simulate(free, [1.0, 0.0], [0.0, 1.0], ts, keep=("q",))
    assert labels(plot.overview(few, names)) == ["x, y [m]"]
    with pytest.raises(ValueError, match=r"nothing to draw of the trajectory: simulate with keep=\('q', 'v'\)"):
        plot.overview(ukjax.simulate(free, [1.0, 0.0], [0.0, 1.0], ts, keep=("rank",)))


def test_every_panel_spans_the_time_and_one_legend_names_the_curves(run):
    figure = plot.overview(run)
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    assert [axis.get_legend() is not None for axis in figure.axes] == [True, False, False, True]
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "", "", "time t [s]"]
    assert figure.get_suptitle() == ""


def test_errors_are_drawn_to_the_smallest_that_tells_something(run):
    errors = np.full(len(run.t), 1e-9)
    errors[1:4] = [0.0, 1e-256, np.nan]
    some = eqx.tree_at(lambda x: [x.position_residual, x.velocity_residual], run, [errors, errors])
    axis = plot.overview(some).axes[-1]
    drawn = axis.get_lines()[0].get_ydata()
    assert axis.get_yscale() == "log"
    np.testing.assert_array_equal(drawn[:4], [1e-9, 1e-18, 1e-18, np.nan])
    assert len(drawn) == len(run.t)


@pytest.mark.parametrize(
    ("size", "unit", "want", "factor"),
    [
        (2.5e-6, "m", "µm", 1e6),
        (2.5e-3, "rad", "rad", 1),
        (2.5e-4, "rad", "µrad", 1e6),
        (3e4, "N m", "kN m", 1e-3),
        (3e4, "rad", "$10^{3}$ rad", 1e-3),
        (3e-7, "m/s^2", "nm/s^2", 1e9),
        (3e-7, "m^2", "$10^{-9}$ m^2", 1e9),
        (3e-7, "kg", "$10^{-9}$ kg", 1e9),
        (3e-7, "", "$10^{-9}$", 1e9),
        (0.0, "m", "m", 1),
    ],
)
def test_units_suit_the_size(size, unit, want, factor):
    t, values = np.linspace(0.0, 1.0, 3), np.array([0.0, -size, np.nan])
    name = f"error [{unit}]" if unit else "error"
    (axis,) = plot.components(t, values, name).axes
    assert axis.get_ylabel() == f"error [{want}]"
    np.testing.assert_allclose(axis.get_lines()[0].get_ydata(), factor * values, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "low", "high"), [([4.902, 4.908], 0.0, 5.3988), ([-4.9, -4.9], -5.39, 0.0), ([0.0, 0.0], -1.0, 1.0)]
)
def test_a_ripple_is_seen_beside_zero(values, low, high):
    (axis,) = plot.components([0.0, 1.0], values, "force [N]").axes
    np.testing.assert_allclose(axis.get_ylim(), (low, high), rtol=1e-12)
    (wide,) = plot.components([0.0, 1.0], [4.0, 5.0], "force [N]").axes
    assert wide.get_ylim()[0] > 3.9


@pytest.mark.parametrize(
    ("t", "values", "match"),
    [
        (
            [0.0, 1.0, 2.0],
            [1.0, 2.0],
            r"values must have shape \(T,\) or \(T, k\) .*, but have \(2,\) for \(3,\)",
        ),
        ([], [], r"but have \(0,\) for \(0,\)"),
        ([0.0, 1.0], ["a", "b"], "t and values must be numbers: could not convert"),
        ([0.0, 1.0], [[1.0], [1.0, 2.0]], "t and values must be numbers"),
    ],
)
def test_what_is_no_quantity_over_time(t, values, match):
    with pytest.raises(ValueError, match=match):
        plot.components(t, values, "x [m]")


def test_axes_of_the_callers_are_drawn_into(run):
    figure = Figure()
    axes = figure.subplots(2, 2)
    assert plot.overview(run, ax=axes) is figure
    assert all(axis.get_lines() for axis in axes.ravel())
    assert {axis.get_xlabel() for axis in axes.ravel()} == {"time t [s]"}
    one = Figure().subplots()
    assert plot.components(run.t, run.q, "x, y [m]", ax=one) is one.figure
    assert len(one.get_lines()) == 2
    logarithmic = Figure().subplots()
    logarithmic.set_yscale("log")
    assert plot.components(run.t, run.q**2, "squares x, y [m^2]", ax=logarithmic).axes[0].get_yscale() == "log"
    with pytest.raises(ValueError, match=r"ax must be 4 axes .*: pass those of figure.subplots\(4\)"):
        plot.overview(run, ax=axes[0])
    with pytest.raises(ValueError, match="ax must be axes of matplotlib, such as figure.subplots"):
        plot.components(run.t, run.q, "x, y [m]", ax="one")
    with pytest.raises(ValueError, match="title and figsize are of a new figure"):
        plot.components(run.t, run.q, "x, y [m]", ax=one, figsize=(3, 2))


def test_a_path_in_axes_of_the_callers():
    scenario, motion = simulated(pendulum)
    axis = Figure().subplots()
    assert plot.path(scenario, motion, ax=axis) is axis.figure
    assert axis.get_aspect() == 1.0
    assert "rod" in [text.get_text() for text in axis.get_legend().get_texts()]
    solid = spherical()
    with pytest.raises(ValueError, match=r'ax must be axes in space: pass figure.add_subplot\(projection="3d"\)'):
        plot.path(solid, moved(solid), ax=axis)
    with pytest.raises(ValueError, match=r"ax must be axes in the plane: pass figure.add_subplot\(\)"):
        plot.path(scenario, motion, ax=Figure().add_subplot(projection="3d"))


@pytest.mark.parametrize("make", [pendulum, spherical])
def test_the_size_is_what_was_asked_for(make):
    scenario = make()
    figure = plot.path(scenario, moved(scenario), figsize=(5.0, 4.0))
    np.testing.assert_allclose(figure.get_size_inches(), (5.0, 4.0))
    np.testing.assert_allclose(plot.overview(moved(scenario), figsize=(3.0, 8.0)).get_size_inches(), (3.0, 8.0))
    for wrong in (3.0, (1.0, 2.0, 3.0)):
        with pytest.raises(ValueError, match="figsize must be a width and a height in inches"):
            plot.overview(moved(scenario), figsize=wrong)
    with pytest.raises(ValueError, match="figsize must be positive"):
        plot.overview(moved(scenario), figsize=(3.0, -1.0))


def test_a_style_is_of_one_figure(run):
    plain = plot.components(run.t, run.q, "x, y [m]")
    dark = plot.components(run.t, run.q, "x, y [m]", style="dark_background")
    thick = plot.components(run.t, run.q, "x, y [m]", style=["dark_background", {"lines.linewidth": 7.0}])
    assert plain.get_facecolor() == plot.components(run.t, run.q, "x, y [m]").get_facecolor() == (1, 1, 1, 1)
    assert dark.get_facecolor() == thick.get_facecolor() == (0, 0, 0, 1)
    assert thick.axes[0].get_lines()[0].get_linewidth() == 7.0
    for wrong in ("none such", {"no.setting": 1}, 3):
        with pytest.raises(ValueError, match="style must be one of matplotlib.style.available"):
            plot.components(run.t, run.q, "x, y [m]", style=wrong)


def test_an_option_that_no_figure_has():
    scenario, motion = simulated(pendulum)
    with pytest.raises(TypeError, match="A figure has the options ax, figsize, style, but got dpi, figsiz"):
        plot.overview(motion, figsiz=(3, 2), dpi=100)
    with pytest.raises(TypeError, match="but got axes"):
        plot.path(scenario, motion, axes=None)


def test_a_notebook_shows_a_figure_a_page_and_a_film():
    scenario, motion = simulated(pendulum)
    assert plot.path(scenario, motion)._repr_png_().startswith(PNG)
    page = plot.page(scenario, motion)
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!')
    assert "<script>" in page
    assert "<script>" not in page._repr_html_()
    assert plot.animation(scenario, motion, step=5)._repr_html_().count("data:image/png") == 3


def study(**variables):
    """Four samples of a study over two parameters, and three times."""
    okay = xr.Dataset(
        {"result": ("sample", np.zeros(4)), **variables},
        coords={
            "time": [0.0, 0.5, 1.0],
            "c": ("sample", [1.0, 1.0, 10.0, 10.0], {"long_name": "damping", "units": "N s/m", "scale": "log"}),
            "k": ("sample", [1.0, 2.0, 1.0, 2.0], {"long_name": "stiffness"}),
        },
    )
    return okay.assign_attrs(varied=["c", "k"])


def test_an_observable_over_what_was_varied():
    values = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, 0.0], [0.0, 0.0, 4.0], [-5.0, 0.0, 0.0]])
    data = study(lift=(("sample", "time"), 1e-6 * values, {"long_name": "lift", "units": "m"}))
    chart, bar = plot.over_parameters(data, "lift").axes
    assert (chart.get_xlabel(), chart.get_ylabel()) == ("damping [N s/m]", "stiffness")
    assert (chart.get_xscale(), chart.get_yscale()) == ("log", "linear")
    assert bar.get_ylabel() == "largest lift [µm]"
    (mesh,) = chart.collections
    np.testing.assert_allclose(mesh.get_array(), [[2.0, 4.0], [3.0, 5.0]])
    # Cells meet halfway between their values, on a logarithmic axis at the geometric mean.
    edges = mesh.get_coordinates()
    np.testing.assert_allclose(edges[0, :, 0], np.sqrt([0.1, 10.0, 1000.0]))
    np.testing.assert_allclose(edges[:, 0, 1], [0.5, 1.5, 2.5])
    one = data.assign_attrs(varied=["c"])
    (axis,) = plot.over_parameters(one, "lift").axes
    assert (axis.get_xlabel(), axis.get_xscale()) == ("damping [N s/m]", "log")
    np.testing.assert_allclose(axis.get_lines()[0].get_xydata(), [[1, 2], [1, 3], [10, 4], [10, 5]])
    (bands,) = plot.quantiles(data, "lift").axes
    assert bands.get_ylabel() == "lift [nm]"
    np.testing.assert_allclose(bands.get_lines()[0].get_ydata(), 1e3 * np.median(values, axis=0), atol=1e-9)
    upper = bands.collections[0].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(upper, 1e3 * np.percentile(values, 95, axis=0).max())


def test_a_number_without_a_unit_has_none():
    data = study(steps=("sample", [50, 51, 50, 51], {"long_name": "number of steps"})).assign_attrs(varied=["k"])
    (axis,) = plot.over_parameters(data, "steps").axes
    assert axis.get_ylabel() == "number of steps"
    assert axis.get_ylim()[0] == 0


def test_a_small_picture_of_a_scene_in_space_is_what_its_axes_show():
    solid = spherical()
    whole = scene(solid, moved(solid))
    small = seen_from_afar(whole)
    assert (whole.dimension, small.dimension, small.arrows) == (3, 2, {})
    axis = plot.path(solid, moved(solid)).axes[0]
    points = np.concatenate(list(whole.links.values()), axis=1)[0]
    flat = np.concatenate(list(small.links.values()), axis=1)[0]
    # The axes' own projection, up to a scale and a shift.
    axis.figure.draw_without_rendering()
    x, y, _ = proj3d.proj_transform(*points.T, axis.get_proj())
    theirs, ours = np.stack([x, y], axis=1), flat
    theirs, ours = (z - z.mean(axis=0) for z in (theirs, ours))
    assert np.linalg.norm(ours) > 0.1
    assert_close(ours / np.linalg.norm(ours), theirs / np.linalg.norm(theirs), atol=1e-9)


def test_a_small_picture_goes_along_with_what_travels():
    far = lambda q, t: jnp.stack([q + 50.0 * t, q + 50.0 * t + jnp.array([1.0, 0.0])])
    scenario = redrawn(pendulum(), ukjax.study.Drawing({"sled": far}, trails=["sled"]))
    seen = scene(scenario, moved(scenario))
    assert seen.travels
    assert not scene(*simulated(pendulum)).travels
    small = seen_from_afar(seen)
    assert (small.trails, small.scenery) == ({}, {})
    assert_close(small.links["sled"], np.tile([[-0.5, 0.0], [0.5, 0.0]], (len(seen.t), 1, 1)), atol=1e-12)


def test_pictures_are_an_attribute_too():
    """Also where nobody has imported them, as matplotlib is not needed to simulate."""
    assert ukjax.__getattr__("plot") is plot
