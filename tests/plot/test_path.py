"""Pictures of a drawing, still and moving, and of the energy: what they show, and what has none."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import ukjax
from ukjax import plot

from ..helpers import assert_close
from ..inside import round_number, scene
from .drawn import CASES, colors_of, data_of, moved, pendulum, redrawn, robot, simulated, spherical


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_path_shows_what_the_drawing_says_to_scale(make):
    scenario = make()
    trajectory = moved(scenario)
    figure = plot.path(scenario, trajectory, positions=3)
    (axis,) = figure.axes
    names = ("x", "y", "z") if hasattr(axis, "get_zlim") else ("x", "y")
    assert [getattr(axis, f"get_{k}label")() for k in names] == [f"{k} [m]" for k in names]
    # Equal axes, and nothing outside of them.
    limits = np.array([getattr(axis, f"get_{k}lim")() for k in names])
    if len(names) == 3:
        ratio = axis._box_aspect / (limits[:, 1] - limits[:, 0])
        np.testing.assert_allclose(ratio, ratio[0])
    else:
        assert axis.get_aspect() == 1.0
    drawn = [np.stack(line.get_data_3d() if len(names) == 3 else line.get_data(), axis=1) for line in axis.lines]
    for points in drawn:
        assert np.all((points > limits[:, 0]) & (points < limits[:, 1]))
    # The links at start, middle and end are among what is drawn, computed here by a loop without jit or vmap.
    for name, link in scenario.drawing.links.items():
        for i in (0, 5, 10):
            want = np.asarray(link(trajectory.q[i], trajectory.t[i]))
            assert any(x.shape == want.shape and np.allclose(x, want, atol=1e-12) for x in drawn), name
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(scenario.drawing.links) | set(scenario.drawing.scenery) <= set(shown)
    assert f"t = {trajectory.t[0]:.3g}" in axis.get_title()


def test_arrows_are_as_long_as_the_legend_says():
    scenario, trajectory = simulated(pendulum)
    seen = scene(scenario, trajectory)
    length, newton = seen.scale
    figure = plot.path(scenario, trajectory)
    assert f"force of the rod: {newton:g} N are {length:g} m" in [t.get_text() for t in figure.legends[0].get_texts()]
    at, along = seen.vectors["force of the rod"]
    assert_close(at, np.asarray(trajectory.q), atol=1e-14)
    # The force of a rod in closed form: along it, m (v^2 + g y ...) / L, here from the acceleration.
    force = np.asarray(trajectory.acceleration) + np.array([[0.0, 9.81]])
    assert_close(along * newton / length, force, atol=1e-9)
    # Round numbers, and the longest arrow is neither tiny nor longer than that.
    assert {length / 10 ** np.floor(np.log10(length)), newton / 10 ** np.floor(np.log10(newton))} <= {1.0, 2.0, 5.0}
    longest = np.max(np.linalg.norm(along, axis=1))
    assert 0.3 * length < longest <= length


@pytest.mark.parametrize(
    ("value", "up", "want"),
    [(0.3, False, 0.2), (0.2, False, 0.2), (29.4, True, 50.0), (1e-7, True, 1e-7), (6, True, 10)],
)
def test_round_numbers(value, up, want):
    assert round_number(value, up) == pytest.approx(want, rel=1e-12)


@pytest.mark.long
def test_an_animation_draws_every_frame_at_its_time():
    film = plot.animation(*simulated(spherical), step=5)
    frames, draw = list(film.new_frame_seq()), film._func
    assert frames == [0, 5, 10]
    shown = [draw(i)[0].pixels.copy() for i in frames]
    assert all(colors_of(pixels) > 20 for pixels in shown)
    assert np.any(shown[0] != shown[1])
    assert np.any(shown[1] != shown[2])
    # What rests is the same in all, and drawing a frame again gives the same again.
    np.testing.assert_array_equal(shown[0][-60:], shown[2][-60:])
    np.testing.assert_array_equal(draw(0)[0].pixels, shown[0])
    film._draw_was_started = True  # else matplotlib warns that nobody looked at it


def test_kinetic_energy_and_power_in_closed_form():
    # A particle led along a line at x = t^2 / 2: v = t, so m t^2 / 2 and, as the force is m, the power m t.
    led = ukjax.Mechanism(
        ukjax.System(lambda q, t: 3.0 * jnp.eye(1), lambda q, v, t: jnp.zeros(1)),
        ukjax.Holonomic(lambda q, t: q - t**2 / 2),
    )
    scenario = ukjax.Scenario(led, [0.0], [0.0], 2.0)
    some = moved(scenario)
    t = some.t
    values = [t[:, None] ** 2 / 2, t[:, None], 3.0 * jnp.ones((11, 1))]
    exact = eqx.tree_at(lambda x: [x.q, x.v, x.constraint_force], some, values)
    upper, lower = plot.energy(scenario, exact).axes
    np.testing.assert_allclose(upper.lines[0].get_ydata(), 1.5 * t**2, atol=1e-14)
    np.testing.assert_allclose(lower.lines[0].get_ydata(), 3.0 * t, atol=1e-14)
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("kinetic energy [J]", "power of constraint forces [W]")
    (alone,) = plot.energy(*simulated(pendulum)).axes  # no constraint moves, so that there is no power to show
    assert alone.get_ylabel() == "kinetic energy [J]"


def test_what_has_no_picture():
    drawn, trajectory = simulated(pendulum)
    for make in (plot.path, plot.animation, plot.page):
        with pytest.raises(ValueError, match=r"has no drawing. Pass drawing=ukjax.study.Drawing\(links\)"):
            make(redrawn(drawn, None), trajectory)
        with pytest.raises(TypeError, match="trajectory must be an instance of Trajectory"):
            make(drawn, trajectory.q)
        with pytest.raises(TypeError, match="scenario must be an instance of Scenario"):
            make(drawn.mechanism, trajectory)
        with pytest.raises(ValueError, match=r"one trajectory, not a batch, but q has shape \(1, 11, 2\)"):
            make(drawn, jax.tree_util.tree_map(lambda x: jnp.asarray(x)[None], trajectory))
    endless = redrawn(drawn, ukjax.study.Drawing({"rod": lambda q, t: (q / (t - t))[None]}))
    with pytest.raises(ValueError, match=r"links\['rod'\] of the drawing is not finite at t = 0 s"):
        plot.path(endless, trajectory)
    for positions in (0, 2.5):
        with pytest.raises(ValueError, match=f"positions must be a positive integer, but is {positions}"):
            plot.path(drawn, trajectory, positions=positions)
    with pytest.raises(ValueError, match="step must be a positive integer, but is 0"):
        plot.animation(drawn, trajectory, step=0)
    with pytest.raises(ValueError, match=r"interval must be positive, but is 0\.0"):
        plot.animation(drawn, trajectory, interval=0)
    for speed, match in ((np.nan, "must be finite, but is nan"), (-1.0, "must be positive, but is -1")):
        with pytest.raises(ValueError, match=f"speed {match}"):
            plot.page(drawn, trajectory, speed=speed)


def test_what_is_no_drawing():
    rod = {"rod": lambda q, t: q[None]}
    for name, options in (("links", {}), ("forces", {"forces": [1]}), ("scenery", {"scenery": [[0.0, 0.0]]})):
        with pytest.raises(TypeError, match=f"{name} must be an instance of Mapping, such as"):
            ukjax.study.Drawing(rod if options else [1], **options)
    with pytest.raises(ValueError, match=r"scenery\['wall'\] must be finite, but scenery\['wall'\]\[1, 0\] is nan"):
        ukjax.study.Drawing(rod, scenery={"wall": [[0.0, 0.0], [np.nan, 1.0]]})


def test_a_start_that_is_no_number():
    mechanism, _ = simulated(pendulum)
    for name, q0, v0 in (("q0", [np.nan, 0.0], [0.0, 0.0]), ("v0", [1.0, 0.0], [0.0, np.inf])):
        with pytest.raises(ValueError, match=rf"{name} must be finite, but {name}\[\d\] is (nan|inf)"):
            ukjax.Scenario(mechanism.mechanism, q0, v0, 1.0)


def plate(q, t):
    """A closed polygon (5, 2) [m], whose last point is its first."""
    return q[None] + jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])


def test_a_closed_link_has_no_dot_where_it_begins_and_ends():
    links = {"plate": plate, "rod": lambda q, t: jnp.stack([jnp.zeros(2), q])}
    scenario = redrawn(pendulum(), ukjax.study.Drawing(links))
    trajectory = moved(scenario)
    figure = plot.path(scenario, trajectory, positions=1)
    dots = {len(line.get_xdata()): line.get_markevery() for line in figure.axes[0].get_lines()}
    assert dots == {5: [], 2: [0, 1]}
    assert [handle.get_marker() for handle in figure.legends[0].legend_handles] == ["", "o"]
    links = {link["name"]: link["closed"] for link in data_of(plot.page(scenario, trajectory))["links"]}
    assert links == {"plate": True, "rod": False}


@pytest.mark.parametrize("make", [spherical, robot])
def test_a_scene_in_space_fills_its_figure(make):
    scenario = make()
    figure = plot.path(scenario, moved(scenario))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., :3].min(axis=2) < 253
    rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
    assert min(rows[0], columns[0]) >= 1  # nothing is cut
    assert np.ptp(rows) > 0.9 * ink.shape[0]
    assert np.ptp(columns) > 0.85 * ink.shape[1]
    # Between title and legend no band is empty.
    assert np.max(np.diff(rows)) < 0.06 * ink.shape[0]
    np.testing.assert_allclose(10 * figure.get_size_inches() % 1, 0.0, atol=1e-9)  # of which a film can be made


def test_components_are_called_what_the_name_lists():
    shown = lambda name: [text.get_text() for text in plot.components(t, values, name).axes[0].get_legend().get_texts()]
    t, values = np.linspace(0.0, 1.0, 3), np.ones((3, 3))
    assert shown("tool x, y, z [m]") == shown(ukjax.study.Coordinate("tool x, y, z", "m")) == ["x", "y", "z"]
    assert shown("tool [m]") == [f"component {i}" for i in (1, 2, 3)]
    assert plot.components(t, values, "tool x, y, z [m]").axes[0].get_ylabel() == "tool x, y, z [m]"
