"""Modes that begin at an event: sections, touching bodies, what comes to rest, times of events as saved times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import ukjax
from experiments.changing_constraints import G

from ..helpers import assert_close, assert_gradients, long


TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def swinging(then, direction="rising", function=lambda q, v, t: q[0], damping=0.0, **options):
    """An oscillator of frequency one in a mode for each name in `then`, which tells what follows an event there."""
    spring = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: -q - damping * v))
    event = lambda after: ukjax.Event(function, after, direction=direction, **options)
    return {name: ukjax.Mode(spring, {"passes": event(after)}) for name, after in then.items()}


def times(run):
    return [t for t, *_ in run.happened()]


ON = {"on": "on"}
QUARTER = np.pi / 2


@pytest.mark.parametrize(
    ("modes", "q0", "v0", "expected"),
    [
        # Begins on the section, and goes on in another mode there: the second passage is a period after the first.
        (swinging({"one": "two", "two": None}), 0.0, 1.0, [4 * QUARTER, 8 * QUARTER]),
        long(swinging(ON), 0.5, 0.0, [3 * QUARTER, 7 * QUARTER, 11 * QUARTER]),
        long(swinging(ON, "both"), 0.0, 1.0, [2 * QUARTER * k for k in range(1, 7)]),
        long(swinging({"1": "2", "2": "3", "3": None}, "falling"), 0.5, 0.0, [QUARTER, 5 * QUARTER, 9 * QUARTER]),
        # Turning points, from rest at one of them.
        long(swinging(ON, "rising", lambda q, v, t: v[0]), 0.5, 0.0, [2 * QUARTER, 6 * QUARTER, 10 * QUARTER]),
        long(swinging(ON, "falling", lambda q, v, t: v[0]), 0.5, 0.0, [4 * QUARTER, 8 * QUARTER, 12 * QUARTER]),
        # What is only touched, from where it is touched; and what stays zero.
        long(swinging(ON, "both", lambda q, v, t: q[0] - 0.5), 0.5, 0.0, []),
        long(swinging(ON, "both", lambda q, v, t: 0.0 * q[0]), 0.5, 0.0, []),
        # A clock, and strikes of a hammer after each of which it goes on as before.
        long(swinging(ON, "rising", lambda q, v, t: jnp.sin(2 * jnp.pi * t)), 0.5, 0.0, np.arange(1.0, 20.0)),
        long(
            swinging(ON, impact=lambda q, v, t: (q, v + 0.1), damping=0.1), 0.0, 0.5,
            [2 * np.pi / np.sqrt(1 - 0.05**2) * k for k in (1, 2, 3)],
        ),
        # Below zero for a hundredth of a second between two looks at a long step.
        long(swinging(ON, "falling", lambda q, v, t: 0.9995 + jnp.cos(2 * jnp.pi * t)), 0.5, 0.0,
             [k + np.arccos(-0.9995) / (2 * np.pi) for k in range(20)]),
    ],
)  # fmt: skip
def test_sections(modes, q0, v0, expected):
    run = ukjax.simulate_hybrid(modes, [q0], [v0], [0.0, 10.0, 19.9], **TIGHT)
    assert len(times(run)) == len(expected)
    np.testing.assert_allclose(times(run), expected, atol=1e-7)


@pytest.mark.long
def test_two_sections_at_a_time():
    plane = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: -q))
    events = {"x": ukjax.Event(lambda q, v, t: q[0], "on"), "y": ukjax.Event(lambda q, v, t: q[1], "on")}
    run = ukjax.simulate_hybrid({"on": ukjax.Mode(plane, events)}, [0.5, 0.7], [0.0, 0.0], [0.0, 9.0])
    assert [event for *_, event in run.happened()] == ["x", "y", "x", "y"]
    np.testing.assert_allclose(times(run), [QUARTER, QUARTER, 5 * QUARTER, 5 * QUARTER], atol=1e-7)


def cradle(masses, restitution=1.0):
    """Balls on a line, a diameter of two apart if they touch."""
    m = jnp.asarray(masses)
    balls = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.diag(m), lambda q, v, t: jnp.zeros(len(masses))))

    def meeting(i):
        gap = lambda q, t: (q[i + 1] - q[i] - 2.0)[None]
        law = ukjax.Impact(ukjax.Holonomic(gap), restitution)
        return ukjax.Event(lambda q, v, t: gap(q, t)[0], "line", impact=law)

    return {"line": ukjax.Mode(balls, {f"pair {i}": meeting(i) for i in range(len(masses) - 1)})}


def test_touching_balls():
    """Two-body collisions, one after the other: what comes in at one end goes out at the other."""
    modes, ts = cradle([1.0, 1.0, 1.0]), jnp.linspace(0.0, 3.0, 4)
    run = jax.jit(lambda q0, v0: ukjax.simulate_hybrid(modes, q0, v0, ts, throw=False))
    for gap in (0.0, 4e-16, -4e-16, 1e-3):
        hit = run(jnp.array([-3.0, 0.0, 2.0 + gap]), jnp.array([1.0, 0.0, 0.0]))
        assert_close(hit.v[-1], np.array([0.0, 0.0, 1.0]), atol=1e-12)
        assert_close(hit.q[-1], np.array([-2.0, gap, 4.0]), atol=1e-12)
        assert [event for *_, event in hit.happened()] == ["pair 0", "pair 1"]
    touching = jnp.array([0.0, 2.0, 4.0])
    assert_close(run(touching, jnp.array([1.0, 0.0, 0.0])).v[-1], np.array([0.0, 0.0, 1.0]), atol=1e-12)
    assert_close(run(touching, jnp.array([1.0, 1.0, 0.0])).v[-1], np.array([0.0, 1.0, 1.0]), atol=1e-12)
    assert not run(touching, jnp.zeros(3)).happened()
    both = run(jnp.array([-3.0, 0.0, 3.0]), jnp.array([1.0, 0.0, -1.0]))
    assert_close(both.v[-1], np.array([-1.0, 0.0, 1.0]), atol=1e-12)


@pytest.mark.long
def test_cradles_of_more_balls():
    for n in (4, 5):
        modes = cradle([1.0] * n)
        for incoming in range(1, n):
            v0 = np.where(np.arange(n) < incoming, 1.0, 0.0)
            for apart in (0.0, 1e-3):
                q0 = 2.0 * np.arange(n) + apart * np.arange(n)
                run = ukjax.simulate_hybrid(modes, q0, v0, [0.0, 1.0])
                assert_close(run.v[-1], v0[::-1], atol=1e-12)
    masses = np.array([1.0, 2.0, 5.0])
    run = ukjax.simulate_hybrid(cradle(list(masses)), [-3.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 2.0])
    # Each by itself: v' = (m1 - m2) / (m1 + m2), 2 m1 / (m1 + m2).
    assert_close(run.v[-1], np.array([-1 / 3, 2 / 3 * -3 / 7, 2 / 3 * 4 / 7]), atol=1e-12)


@pytest.mark.long
def test_gradients_through_events_at_one_time():
    modes = cradle([1.0, 2.0, 1.5])

    def place(x):
        zero = 0.0 * x["far"]
        q0, v0 = jnp.stack([x["far"], zero, zero + 2.0]), jnp.stack([x["fast"], zero, zero])
        run = ukjax.simulate_hybrid(modes, q0, v0, jnp.array([0.0, 1.5, 3.0]), throw=False, max_events=4)
        return run.q[-1] @ jnp.array([1.0, 2.0, 3.0])

    assert_gradients(place, {"far": jnp.asarray(-3.0), "fast": jnp.asarray(1.1)})


@pytest.mark.long
@pytest.mark.parametrize("raised", [1, 2])
def test_a_cradle_of_pendulums(raised):
    """In absolute coordinates, touching at rest: those raised are up on the other side after half a period."""
    n, angle, apart = 3, 0.4, 0.2
    hung = apart * np.arange(n)
    rod = lambda i: ukjax.Holonomic(lambda q, t: (q[2 * i] - hung[i]) ** 2 + q[2 * i + 1 : 2 * i + 2] ** 2 - 1.0)
    weights = ukjax.System(lambda q, t: jnp.eye(2 * n), lambda q, v, t: jnp.tile(jnp.array([0.0, -G]), n))

    def meeting(i):
        gap = lambda q, t: (q[2 * i + 2] - q[2 * i] - apart)[None]
        law = ukjax.Impact(ukjax.Holonomic(gap), 1.0)
        return ukjax.Event(lambda q, v, t: gap(q, t)[0], "swings", impact=law)

    rods = ukjax.Mechanism(weights, [rod(i) for i in range(n)])
    modes = {"swings": ukjax.Mode(rods, {f"pair {i}": meeting(i) for i in range(n - 1)})}
    angles = np.where(np.arange(n) < raised, -angle, 0.0)
    q0 = np.stack([hung + np.sin(angles), -np.cos(angles)], axis=1).reshape(-1)
    period = 4 * scipy.special.ellipk(np.sin(angle / 2) ** 2) / np.sqrt(G)
    ts = period * np.arange(5) / 2
    run = ukjax.simulate_hybrid(modes, q0, np.zeros(2 * n), ts, projection=ukjax.Projection())
    swung = np.arcsin(np.asarray(run.q)[:, ::2] - hung)
    assert_close(swung, np.array([angles, -angles[::-1]] * 2 + [angles]), atol=1e-6)
    assert len(run.happened()) == 4 * raised * (n - raised)
    assert float(jnp.max(run.position_residual)) < 1e-14


SLOPE, HEIGHT = 0.3, 1.0


def sliding(restitution, rest="slides"):
    """A ball that falls on a slope without friction, in Cartesian coordinates."""
    ball = ukjax.System(lambda q, t: 2.0 * jnp.eye(2), lambda q, v, t: 2.0 * jnp.array([0.0, -G]))
    ground = ukjax.Holonomic(lambda q, t: q[1:] + SLOPE * q[:1])
    hit = ukjax.Event(lambda q, v, t: q[1] + SLOPE * q[0], "flies", impact=ukjax.Impact(ground, restitution), rest=rest)
    flies = ukjax.Mode(ukjax.Mechanism(ball), {"hits": hit})
    return {"flies": flies, "slides": ukjax.Mode(ukjax.Mechanism(ball, ground))}


def test_a_ball_settles_on_a_slope():
    """Across the slope it bounces as with g cos, and rests after (1 + e) / (1 - e) first falls; along it slides."""
    e, ts = 0.54, jnp.linspace(0.0, 4.0, 41)
    run = ukjax.simulate_hybrid(sliding(e), [0.0, HEIGHT], [0.0, 0.0], ts)
    first = np.sqrt(2 * HEIGHT / G)
    *_, before, last = run.happened()
    assert last[1:] == ("flies", "hits to rest")
    assert before[1:] == ("flies", "hits")
    assert last[0] == pytest.approx(first * (1 + e) / (1 - e), abs=1e-6)
    assert np.all(np.diff(times(run)) >= 0)
    c = 1 / np.sqrt(1 + SLOPE**2)
    along = np.asarray(run.q) @ np.array([c, -SLOPE * c])
    assert_close(along, -SLOPE * c * HEIGHT + G * SLOPE * c / 2 * np.asarray(ts) ** 2, atol=1e-9)
    gap = np.asarray(run.q) @ np.array([SLOPE, 1.0])
    assert np.min(gap) > -1e-9
    assert np.max(np.abs(gap[np.asarray(run.mode) == 1])) < 1e-9
    # The ground carries m g cos, and nothing before.
    carried = np.linalg.norm(np.asarray(run.constraint_force), axis=1)
    assert_close(carried, np.where(np.asarray(run.mode) == 1, 2.0 * G * c, 0.0), atol=1e-9)
    assert np.array_equal(run.rank, run.mode)


@pytest.mark.long
def test_what_comes_to_rest_without_a_mode_for_it_is_an_error():
    with pytest.raises(RuntimeError, match=r"Something comes to rest at an event.*rest=.*after 'hits' at t = 1.511"):
        ukjax.simulate_hybrid(sliding(0.54, None), [0.0, HEIGHT], [0.0, 0.0], [0.0, 4.0])
    for q0, v0, e in (([0.0, 0.0], [0.0, 0.0], 0.5), ([0.0, HEIGHT], [0.0, 0.0], 0.0)):
        with pytest.raises(RuntimeError, match="Something comes to rest at an event"):
            ukjax.simulate_hybrid(sliding(e, None), q0, v0, [0.0, 1.0])
        run = ukjax.simulate_hybrid(sliding(e), q0, v0, [0.0, 1.0])
        assert run.happened()[-1][1:] == ("flies", "hits to rest")
        assert run.modes[int(run.mode[-1])] == "slides"


@pytest.mark.long
def test_an_event_function_that_jumps_is_an_error():
    fall = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: jnp.array([-G])))
    jumps = ukjax.Event(lambda q, v, t: jnp.where(v[0] < -1.0, -1.0, 1.0), "falls")
    with pytest.raises(RuntimeError, match="An event function jumps over zero"):
        ukjax.simulate_hybrid({"falls": ukjax.Mode(fall, {"fast": jumps})}, [1.0], [0.0], [0.0, 1.0])


def deciding(e, driven=False):
    """A ball that bounces while it is fast, and stays on the floor otherwise, where a motor may push it along."""
    plane = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -G]))
    floor = ukjax.Holonomic(lambda q, t: q[1:])
    hit = ukjax.Event(
        lambda q, v, t: q[1], {"flight": lambda q, v, t: v[1] < -1.5, "floor": None}, impact=ukjax.Impact(floor, e)
    )
    push = ukjax.Feedback(lambda q, v, t: 3.0 * t[None], [[1.0], [0.0]]) if driven else None
    return {
        "flight": ukjax.Mode(ukjax.Mechanism(plane), {"hits": hit}),
        "floor": ukjax.Mode(ukjax.Mechanism(plane, {"floor": floor}), servo=push),
    }


@pytest.mark.long
def test_the_next_mode_depends_on_the_state():
    """It hits with 4.43, 2.21 and 1.11 m/s, and stays; then the motor pushes, and the floor carries it."""
    ts, first = np.linspace(0.0, 2.0, 21), np.sqrt(2 / G)
    run = ukjax.simulate_hybrid(deciding(0.5, True), [0.0, 1.0], [0.0, 0.0], ts, keep="all")
    lands = 2.5 * first
    np.testing.assert_allclose(times(run), [first, 2 * first, lands], atol=1e-8)
    on = ts > lands
    assert np.array_equal(run.mode, on.astype(int))
    assert_close(run.multipliers["floor"][on, 0], np.full(np.sum(on), G), atol=1e-9)
    assert_close(run.control[on, 0], 3 * ts[on], atol=1e-12)
    assert np.all(np.isnan(run.control[~on]))
    assert np.all(np.isnan(run.multipliers["floor"][~on]))
    assert_close(run.q[on, 0], ts[on] ** 3 / 2 - lands**3 / 2 - 1.5 * lands**2 * (ts[on] - lands), atol=1e-7)
    assert np.max(np.abs(run.q[on, 1])) < 1e-12
    for name in ("event_q", "event_v", "event_times"):
        assert np.array_equal(np.all(np.isnan(getattr(run, name).reshape(32, -1)), axis=1), np.arange(32) >= 3)
    assert np.all(np.asarray(run.event_mode[3:]) == -1)


def bouncing(e=0.8):
    ball = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: jnp.array([-G])))
    law = ukjax.Impact(ukjax.Holonomic(lambda q, t: q), e)
    return {"flight": ukjax.Mode(ball, {"bounce": ukjax.Event(lambda q, v, t: q[0], "flight", impact=law)})}


@pytest.mark.long
def test_saved_at_its_own_events_from_a_late_start():
    """Begins with a bounce at t = 1000 s, and is saved at the times of the others: the states before."""
    modes = bouncing()
    run = jax.jit(lambda ts: ukjax.simulate_hybrid(modes, [0.0], [-1.0], ts, max_events=8, throw=False))
    bounces = 1000.0 + 2 * 0.8 / G * np.concatenate([[0.0], np.cumsum(0.8 ** np.arange(4))])
    ts = jnp.concatenate([bounces, 1000.0 + jnp.array([0.53])])
    for _ in range(2):
        got = run(ts)
        np.testing.assert_allclose(times(got), bounces, atol=1e-9)
        assert_close(got.v[1:-1, 0], -(0.8 ** np.arange(1, 5)), atol=1e-9)
        ts = jnp.concatenate([got.event_times[:5], ts[-1:]])
    # A rounding error later they are still those times.
    rates = jnp.diag(jax.jacfwd(lambda ts: run(ts).q[:, 0])(ts.at[1:-1].add(3e-13)))
    assert float(rates[-1]) == pytest.approx(0.8**5 - G * (1000.53 - bounces[-1]), abs=1e-8)
    # At the others the state is the one before the bounce, and moves as it does.
    assert_close(rates[1:-1], got.v[1:-1, 0], atol=1e-8)


@pytest.mark.long
def test_gradients_by_the_last_time():
    modes, first = bouncing(), np.sqrt(2 / G)

    def height(end):
        ts = jnp.stack([0.0 * end, end / 2, end])
        return ukjax.simulate_hybrid(modes, [1.0], [0.0], ts, throw=False, max_events=3).q[-1, 0]

    for end, rate in ((0.3, -G * 0.3), (0.7, 0.8 * G * first - G * (0.7 - first))):
        for derivative in (jax.jacfwd, jax.jacrev):
            assert float(derivative(height)(end)) == pytest.approx(rate, abs=1e-7)


@pytest.mark.long
def test_the_curvature_of_a_landing():
    """The time sqrt(2 h / g)."""
    falls = {"falls": ukjax.Mode(bouncing()["flight"].mechanism, {"lands": ukjax.Event(lambda q, v, t: q[0])})}

    def time(h):
        run = ukjax.simulate_hybrid(falls, h[None], jnp.zeros(1), jnp.array([0.0, 2.0]), max_events=1, keep="q")
        return run.event_times[0]

    second = jax.jacfwd(jax.jacfwd(lambda h: time(h)))(jnp.array(1.0))
    assert float(second) == pytest.approx(-np.sqrt(2 / G) / 4, abs=1e-7)


END = 1.0


def landing(h):
    """The time of the second bounce from a height, (1 + 2 e) sqrt(2 h / g), and the height at END."""
    run = ukjax.simulate_hybrid(
        bouncing(), h[None], jnp.zeros(1), jnp.array([0.0, END, 1.2]), max_events=2, throw=False, **TIGHT
    )
    return jnp.stack([run.event_times[1], run.q[1, 0]])


@pytest.mark.long
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_second_derivatives_through_bounces(inner):
    h, e = 0.9, 0.8
    t1 = np.sqrt(2 * h / G)
    # By h: t1' = t1 / (2 h), t1'' = -t1 / (4 h^2); after one bounce x = e g t1 s - g s^2 / 2 with s = END - t1.
    d, dd, s = t1 / (2 * h), -t1 / (4 * h**2), END - t1
    x = e * G * (dd * s - 2 * d * d - t1 * dd) - G * (d * d - s * dd)
    assert t1 < END < (1 + 2 * e) * t1 < 1.2
    assert_close(jax.jacfwd(inner(landing))(jnp.array(h)), np.array([(1 + 2 * e) * dd, x]), atol=1e-6)


@pytest.mark.long
def test_other_orders_of_second_derivatives_are_refused():
    for inner in (jax.jacfwd, jax.jacrev):
        with pytest.raises(NotImplementedError, match=r"taken forwards.*jax.jacfwd\(jax.grad\(f\)\)"):
            jax.jacrev(inner(landing))(jnp.array(0.9))


@pytest.mark.long
def test_a_rimless_wheel_walks_down_a_slope():
    """The simplest walker: a pendulum upside down on each spoke, and at the next one cos(2 alpha) of its speed is left.

    Of the energy, w'^2 = cos(2 alpha)^2 (w^2 + 2 g / l (cos(gamma - alpha) - cos(gamma + alpha))). McGeer (1990).
    """
    half, slope = np.pi / 8, 0.08
    wheel = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: G * jnp.sin(q)))
    falls = lambda q, v, t: q[0] - half - slope
    to_the_next = lambda q, v, t: (q - 2 * half, jnp.cos(2 * half) * v)
    step = ukjax.Event(falls, "rolls", direction="rising", impact=to_the_next)
    modes = {"rolls": ukjax.Mode(wheel, {"step": step})}
    run = ukjax.simulate_hybrid(modes, [slope - half], [2.0], [0.0, 9.0], max_events=32, **TIGHT)
    speeds, w = [], 2.0
    for _ in range(len(run.happened())):
        w = np.cos(2 * half) * np.sqrt(w**2 + 2 * G * (np.cos(slope - half) - np.cos(slope + half)))
        speeds.append(w)
    assert len(speeds) > 8
    assert_close(run.event_v[: len(speeds), 0], np.array(speeds), atol=1e-7)
