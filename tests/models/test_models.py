"""The models: closed forms, consistent starts, the command; and of each one a short run, its gradient and drawing."""

import functools
import importlib
import inspect
import pkgutil
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import models
import ukjax
from models import closed_form, coordinated_robots, n_four_bar, parallelogram, scara, simple_pendulum
from ukjax import plot
from ukjax.cli import main

from ..helpers import assert_close, central_difference, command, flat_gradient, long, sampled


MODULES = {m.name: importlib.import_module(f"models.{m.name}") for m in pkgutil.iter_modules(models.__path__)}


def classes(module):
    return [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]


def factories():
    """Every function of a model that makes a scenario without being told anything, "module:function" -> it."""
    for name, module in MODULES.items():
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                signature = inspect.signature(function)
                given = all(p.default is not p.empty for p in signature.parameters.values())
                if signature.return_annotation is ukjax.Scenario and given and function.__name__[0] != "_":
                    yield f"{name}:{function.__name__}", function


FACTORIES = dict(factories())
# What compiles long, or is simulated by a shorter test too.
SLOW = {
    *("planar_mechanisms:slider_crank", "planar_mechanisms:five_bar", "planar_mechanisms:three_on_a_point"),
    *("three_rrr:scenario", "three_rrr:driven", "rr_leg:scenario"),
    "bricard:scenario",
    *("cart_pole:scenario", "coordinated_robots:scenario", "flexible_joint:scenario", "n_four_bar:scenario"),
    *("n_pendulum:scenario", "n_pendulum:closed", "parallelogram:scenario", "rolling_disc:scenario"),
    *(
        "scara:scenario",
        "scara:motors",
        "unicycle:scenario",
        "swarm:scenario",
        "log_spiral:scenario",
        "log_spiral:printed_bead",
    ),
    *("rotating_hoop:scenario", "chaplygin_sleigh:scenario", "moving_pivot:scenario", "spherical_pendulum:scenario"),
    *("constraint_examples:scenario", "log_spiral:bead", "projectile:on_wire", "ellipsoid:scenario"),
    *("two_mass_spring:scenario", "acrobot:scenario"),
    *("delta:scenario", "five_bar_leg:swinging", "five_bar_leg:standing", "governor:scenario", "heavy_top:scenario"),
    *("hoeken:scenario", "six_joint_arm:scenario", "slider_crank:scenario", "spatial_chain:closed"),
    *("spatial_chain:scenario", "stewart:scenario", "whipple_bicycle:scenario"),
    *("foucault:scenario", "elastic_pendulum:scenario", "charged_particle:scenario", "torus:scenario"),
    *("car_with_trailer:scenario", "snakeboard:scenario", "legged_chains:scenario", "legged_chains:squat"),
}


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


@pytest.mark.long
def test_a_scenario_with_projection_through_the_command(capsys, tmp_path):
    arguments = ("models.n_four_bar:scenario", "--t1", "1", "--points", "11", "--out", tmp_path)
    assert command(main, "simulate", *arguments) == 0
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
        long("coordinated_robots", ["2, of rank 2"]),
        long("flexible_joint", ["largest servo velocity error"]),
        long("cart_pole", ["largest acceleration missed"]),
        long("unicycle", ["1, of rank 1"]),
    ],
)
def test_a_scenario_with_a_servo_through_the_command(capsys, tmp_path, target, rows):
    assert command(main, "simulate", f"models.{target}:scenario", "--t1", "0.5", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    assert all(row in shown for row in rows)
    assert {"control.png", "overview.png", "trajectory.nc"} <= {path.name for path in tmp_path.iterdir()}


# What is stiff, or turns fast, takes shorter steps [s].
SHORTER = {"governor:scenario": 1e-4, "heavy_top:scenario": 1e-3, "slider_crank:scenario": 5e-3}
# Differences by which parts are changed that are small themselves, such as moments of inertia.
FINER = {"heavy_top:scenario": 1e-7}
# Whose rods are so slender that differences would have to be too fine for what else there is: coarse ones, of fourth
# order.
SLENDER = {"spatial_chain:scenario": 5e-5, "spatial_chain:closed": 5e-5}
# Whose bodies are so different that one difference would be too coarse or too fine for some of them.
DIFFERENT = {"legged_chains:squat"}


class Ran(NamedTuple):
    """A scenario, its first moments, and the gradient of its end by reverse mode and by central differences."""

    scenario: ukjax.Scenario
    trajectory: ukjax.Trajectory
    reverse: np.ndarray
    numeric: np.ndarray


@functools.cache
def ran(target) -> Ran:
    """Five steps of 10 ms, or more shorter ones, all equal: what an adaptive controller does is no smooth function.

    Without projection, which has next to nothing to do in so short a time, and takes as long again to compile.
    """
    case = FACTORIES[target]()
    ts = jnp.linspace(case.t0, case.t0 + 0.05, 3)
    options: dict[str, Any] = {"formulation": case.formulation}
    options |= {"stepsize_controller": diffrax.ConstantStepSize(), "dt0": SHORTER.get(target, 0.01), "max_steps": 1000}
    parts, start = (case.mechanism, case.servo), jnp.concatenate([case.q0, case.v0])
    weights = jnp.cos(jnp.arange(1.0 * start.size))

    # One function for the value and the gradient, to compile once.
    @eqx.filter_jit
    @functools.partial(eqx.filter_value_and_grad, has_aux=True)
    def end(x):
        (mechanism, servo), (q0, v0) = x
        trajectory = ukjax.simulate(mechanism, q0, v0, ts, servo=servo, **options)
        return weights @ jnp.concatenate([trajectory.q[-1], trajectory.v[-1]]), trajectory

    (_, trajectory), (by_parts, by_start) = end((parts, (case.q0, case.v0)))
    ways = directions(case, trajectory)
    moved = lambda s: tuple(jnp.split(start + ways @ s, [case.q0.size]))
    by_differences = lambda h: central_difference(lambda x: end((x, (case.q0, case.v0)))[0][0], parts, h)[0]
    h = (SLENDER | FINER).get(target, 1e-5)
    reverse = [flat_gradient(by_parts), ways.T @ np.concatenate(by_start)]
    if target in DIFFERENT:
        among, changed = together(parts)
        reverse[0] = among.T @ reverse[0]
        of_parts = central_difference(lambda s: end((changed(s), (case.q0, case.v0)))[0][0], jnp.zeros(3), 1e-6)[0]
    else:
        of_parts = (4 * by_differences(h / 2) - by_differences(h)) / 3 if target in SLENDER else by_differences(h)
    numeric = [of_parts, central_difference(lambda s: end((parts, moved(s)))[0][0], jnp.zeros(ways.shape[1]))[0]]
    return Ran(case, trajectory, np.concatenate(reverse), np.concatenate(numeric))


def together(parts):
    """Three directions among all numbers of `parts`, each by the largest of its array; and the parts along them."""
    floating, static = eqx.partition(parts, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(floating)
    largest, _ = ravel_pytree(jax.tree_util.tree_map(lambda x: jnp.full(x.shape, jnp.max(jnp.abs(x))), floating))
    among = largest[:, None] * jnp.asarray(np.random.default_rng(5).normal(size=(flat.size, 3)))
    return among, lambda s: eqx.combine(unravel(flat + among @ s), static)


def directions(case, trajectory):
    """Directions (n_q + n, k) of the start (q, v): all, or those along the constraints where rows are redundant.

    Across them the rank changes, and no derivative exists.
    """
    t, start = jnp.asarray(case.t0), jnp.concatenate([case.q0, case.v0])
    rows = case.mechanism.terms(case.q0, case.v0, t).A.shape[0]
    if int(trajectory.rank[0]) == rows:
        return np.eye(start.shape[0])

    def errors(y):
        q, v = jnp.split(y, [case.q0.size])
        return jnp.concatenate([case.mechanism.position_error(q, t), case.mechanism.velocity_error(q, v, t)])

    _, sizes, ways = np.linalg.svd(np.asarray(jax.jacfwd(errors)(start)))
    return ways[int(np.sum(sizes > 1e-9 * sizes[0])) :].T


def test_every_model_has_a_scenario():
    has = {target.split(":")[0] for target in FACTORIES}
    without = {name for name, module in MODULES.items() if classes(module) and name not in has}
    assert not without
    assert set(FACTORIES) >= SLOW


RUN = [pytest.param(target, marks=[pytest.mark.long] if target in SLOW else []) for target in FACTORIES]


@pytest.mark.parametrize("target", RUN)
def test_every_scenario_runs_and_keeps_its_invariants(target):
    case, trajectory, *_ = ran(target)
    for values in (trajectory.q, trajectory.v, trajectory.acceleration, trajectory.constraint_force):
        assert np.all(np.isfinite(values))
    assert trajectory.control is None or np.all(np.isfinite(trajectory.control))
    for invariant in case.invariants.values():
        values = jax.vmap(invariant)(trajectory.q, trajectory.v, trajectory.t)
        assert_close(values, np.full(3, values[0]), rtol=1e-7, atol=1e-7)
    for observable in case.observables.values():
        assert np.all(np.isfinite(jax.vmap(observable)(trajectory.q, trajectory.v, trajectory.t)))
    # A picture and an animation of it.
    plot.path(case, trajectory).canvas.draw()
    assert "<canvas" in plot.page(case, trajectory)


@pytest.mark.parametrize("target", RUN)
def test_gradients_of_every_scenario(target):
    _, _, reverse, numeric = ran(target)
    assert np.all(np.isfinite(reverse))
    assert np.max(np.abs(reverse)) > 0.1
    # Differences of what does not matter are rounding: some 1e-8 where torques of 10 N m come out of it.
    assert_close(reverse, numeric, rtol=1e-5, atol=max(1e-7, 1e-11 * np.max(np.abs(reverse))))


# Whose loops, or tips, take long to place.
CLOSED = {
    "delta:scenario",
    "stewart:scenario",
    "whipple_bicycle:scenario",
    "five_bar_leg:swinging",
    "five_bar_leg:standing",
    "six_joint_arm:scenario",
    "spatial_chain:closed",
    "legged_chains:squat",
}


@pytest.mark.parametrize("target", sampled(FACTORIES, set(FACTORIES) - CLOSED))
def test_every_scenario_says_how_it_looks_and_where_it_is_from(target):
    case = FACTORIES[target]()
    assert case.source
    assert case.drawing is not None
    t = jnp.full(3, case.t0)
    # A picture takes all times at once; of what a force is, only the shape matters here.
    q, force = jnp.stack([case.q0] * 3), jnp.ones((3, case.q0.shape[0]))
    links = {name: jax.vmap(link)(q, t) for name, link in case.drawing.links.items()}
    points = {name: np.asarray(x)[None] for name, x in case.drawing.scenery.items()} | links
    (dimension,) = {x.shape[-1] for x in points.values()}
    assert dimension in (2, 3)
    for x in points.values():
        assert x.ndim == 3
        assert np.all(np.isfinite(x))
    for arrow in case.drawing.forces.values():
        for x in jax.vmap(arrow)(q, t, force):
            assert x.shape == (3, dimension)
            assert np.all(np.isfinite(x))


def test_the_forces_drawn_do_the_work_of_the_generalised_ones():
    rng = np.random.default_rng(8)
    force, v = jnp.array(rng.normal(size=4)), jnp.array([0.7, -0.4, -0.3, 1.2])  # the tool keeps its orientation
    case, model = scara.scenario(), scara.Scara()
    velocity = jax.jvp(model.tool, (case.q0,), (v,))[1]
    assert_close(model.tool_force(case.q0, force) @ velocity, force @ v, rtol=1e-12)
    robots, at_base = coordinated_robots.CoordinatedRobots(), jnp.array(rng.normal(size=2))
    q = jnp.array(coordinated_robots.START)
    _, pull = jax.vjp(lambda q: robots.joints(q)[5], q)
    assert_close(robots.base_force(q, *pull(at_base)), at_base, atol=1e-12)
