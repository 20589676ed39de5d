"""The module of a live page: it moves as `simulate` does, and knows the hand, the drawing and the parameters."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum, scara, simple_pendulum, whipple_bicycle
from ukjax import plot

from ..helpers import assert_close, long
from ..plot.drawn import data_of
from .modules import Module


class Page:
    """The module and the numbers of a page, used as its script uses them."""

    def __init__(self, scenario, trajectory, parameters=()):
        self.data = data_of(plot.live(scenario, trajectory, parameters=parameters))
        self.module = Module(base64.b64decode(self.data["code"]), "live")
        self.n_q, self.n = self.data["coordinates"], self.data["speeds"]
        self.p = [np.array([x["value"] for x in self.data["parameters"]])] if self.data["parameters"] else []

    def march(self, y, t, h, count, f=None):
        """q and v together after so many steps, and how many of them are certain."""
        place, force = self.module.place(np.array(y)), self.module.place(np.zeros(self.n) if f is None else f)
        more = [self.module.place(self.p[0])] if self.p else []
        done = self.module["march"](place, t, h, count, force, *more)
        return self.module.read(place, self.n_q + self.n), done

    def __call__(self, what, *arguments, gives):
        certain, found = self.module(what, *arguments, *self.p, gives=gives)
        assert certain == 1
        return found

    def measures(self, y, t):
        """Invariants, then the errors of positions and of speeds."""
        return self("measures", y[: self.n_q], y[self.n_q :], t, gives=[len(self.data["measured"]) + 2])[0]


def simulated(scenario, count=201, **options):
    return scenario.simulate(jnp.linspace(scenario.t0, scenario.t1, count), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: n_pendulum.scenario(N=1, t1=2.0),
        long(n_pendulum.closed),
        long(scara.scenario),
        long(whipple_bicycle.scenario),
    ],
    ids=["one_rod", "five_rods", "scara", "bicycle"],
)
def test_the_module_moves_as_simulate_does(make):
    """Energy at the end, and errors of constraints at every picture; both start from the nearest consistent state."""
    scenario = make()
    run = simulated(scenario, rtol=1e-10, atol=1e-10, projection=scenario.projection or ukjax.Projection())
    page = Page(scenario, run)
    y = np.concatenate(
        page("projection", *map(np.asarray, (scenario.q0, scenario.v0)), scenario.t0, gives=[page.n_q, page.n])
    )
    first, worst, pictures = page.measures(y, scenario.t0), 0.0, 100
    count = int(np.ceil((scenario.t1 - scenario.t0) / pictures / page.data["step"]))
    h = (scenario.t1 - scenario.t0) / pictures / count
    for i in range(pictures):
        y, done = page.march(y, scenario.t0 + i * count * h, h, count)
        assert done == count
        w = page.measures(y, scenario.t0 + (i + 1) * count * h)
        worst = max(worst, *w[-2:])
    assert worst < 1e-9
    there = page.measures(np.concatenate([run.q[-1], run.v[-1]]), scenario.t1)
    size = max(1.0, np.max(np.abs(first[:-2])))
    assert np.max(np.abs(w[:-2] - there[:-2])) < 1e-8 * size
    if page.data["measured"][0]["kept"]:
        assert np.max(np.abs(w[:-2] - first[:-2])) < 1e-10 * size
    assert np.max(np.abs(y - np.concatenate([run.q[-1], run.v[-1]]))) < 1e-5


@pytest.fixture(scope="module")
def rod():
    scenario = n_pendulum.scenario(N=1, t1=0.5)
    return scenario, Page(scenario, simulated(scenario, 21), ["system_L", "system_g"])


def test_a_force_of_the_hand_acts_as_one_that_is_applied(rod):
    scenario, page = rod
    q, v = map(np.asarray, n_pendulum.Chain([1.0], [1.5]).state(jnp.array([0.3]), jnp.array([2.0])))
    F = np.sin(np.arange(4.0))
    (f,) = page("pull", q, v, 0.0, F, gives=[3])
    points = lambda q: jnp.concatenate([jnp.ravel(g(q, 0.0)) for g in scenario.drawing.links.values()])
    assert_close(f, np.asarray(jax.jacfwd(points)(jnp.asarray(q))).T @ F, rtol=1e-13, atol=1e-13)
    _, a = page("derivative", q, v, 0.0, f, gives=[3, 3])
    want = ukjax.equation_of_motion(scenario.mechanism, q, v, applied=f).acceleration
    assert_close(a, want, rtol=1e-9, atol=1e-9)


def test_the_drawing_has_the_parameters_of_the_sliders(rod):
    """A length that a slider changes is that of the picture too, and of the energy."""
    scenario, page = rod
    assert [x["name"] for x in page.data["parameters"]] == ["L 0", "g"]
    q, v = np.asarray(scenario.q0), np.zeros(3)
    longer = n_pendulum.Chain([1.0], [0.8], 5.0)
    p, page.p = page.p, [np.array([0.8, 5.0])]
    try:
        (X,) = page("points", q, v, 0.0, gives=[4])
        assert_close(X.reshape(1, 2, 2), np.stack(longer.tips(jnp.asarray(q)), axis=1), rtol=1e-14)
        w = page.measures(np.concatenate([q, v]), 0.0)
        assert_close(w[:2], np.array([longer.energy(q, v, 0.0), np.max(np.abs(longer.joints(q, 0.0)))]), rtol=1e-13)
    finally:
        page.p = p


def test_where_it_is_not_certain_it_stops_at_the_last_state_that_was():
    """A rod on two pivots that meet at t = 1: the rank of its rows falls there."""
    scenario = simple_pendulum.scenario()
    two = lambda q, t: jnp.stack([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]])
    mechanism = ukjax.Mechanism(scenario.mechanism.system, ukjax.Holonomic(two))
    fixed = ukjax.Scenario(
        mechanism, [0.0, -1.0], [0.0, 0.0], 0.9, drawing=scenario.drawing, projection=ukjax.Projection()
    )
    page = Page(fixed, simulated(fixed, 21))
    # A step begins where the rows are alike, but not quite.
    y, done = page.march([0.0, -1.0, 0.0, 0.0], -1e-5, 0.1, 20)
    assert 9 <= done <= 10
    assert_close(y, np.array([0.0, -1.0, 0.0, 0.0]), atol=1e-12)


@pytest.mark.long
def test_a_servo_does_not_know_of_the_hand():
    """A push moves the arm as if no motor were there, beside what the motors do."""
    scenario = scara.motors(t1=0.5)
    page = Page(scenario, simulated(scenario, 11))
    q, v = np.asarray(scenario.q0), np.asarray(scenario.v0)
    f = np.array([1.0, -2.0, 0.5, 3.0])
    moved, rest = (page("derivative", q, v, 0.2, x, gives=[4, 4])[1] for x in (f, np.zeros(4)))
    M = np.asarray(scenario.mechanism.system.mass(scenario.q0, 0.0))
    assert_close(moved - rest, np.linalg.solve(M, f), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"drawing": None}, "has no drawing"),
        ({"servo": ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]], period=0.1)}, "no controller with memory or"),
    ],
)
def test_scenarios_that_are_refused(change, match):
    plain = simple_pendulum.scenario()
    run = simulated(plain, 5)
    options = {"drawing": plain.drawing, "servo": None, **change}
    with pytest.raises(ValueError, match=match):
        plot.live(ukjax.Scenario(plain.mechanism, plain.q0, plain.v0, plain.t1, **options), run)


def test_values_that_are_refused():
    scenario = simple_pendulum.scenario()
    run = simulated(scenario, 5)
    with pytest.raises(ValueError, match=r"parameters must be of system_m, .*; not 'mass'"):
        plot.live(scenario, run, parameters=["mass"])
    with pytest.raises(ValueError, match="speed must be positive"):
        plot.live(scenario, run, speed=0.0)
    with pytest.raises(TypeError, match="scenario must be"):
        plot.live("pendulum", run)
    small = [np.asarray(x, np.float32) for x in (scenario.q0, scenario.v0)]
    point = ukjax.study.Drawing({"point": lambda q, t: q[None]})
    single = ukjax.Scenario(scenario.mechanism, *small, scenario.t1, drawing=point)
    with pytest.raises(ValueError, match="computes in double precision, but the scenario's q0 is float32"):
        plot.live(single, run)
    special = ukjax.study.Drawing({"a": lambda q, t: jax.scipy.special.erf(q)[None]})
    drawn = ukjax.Scenario(scenario.mechanism, scenario.q0, scenario.v0, 1.0, drawing=special)
    with pytest.raises(ValueError, match="'points' cannot be exported.*erf"):
        plot.live(drawn, run)
