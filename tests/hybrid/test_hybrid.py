"""Events, impacts and changing constraints against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from experiments.changing_constraints import G, bead, block, bounces, rope, roped, stick_and_slip

from ..helpers import assert_close, assert_gradients, falling, long, rod


TIGHT = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize("slope", [long(0.0), 0.75])
def test_a_bead_bounces_on_a_wire(slope):
    """Steps grow from bounce to bounce, for a parabola is exact: none is missed."""
    ts = np.linspace(0.0, 2.0, 41)
    got = ukjax.simulate_hybrid(bead(0.8, slope), jnp.array([slope, 1.0]), jnp.zeros(2), ts, **TIGHT)
    want, times = bounces(1.0, G / (1 + slope**2), 0.8, ts)
    assert_close(got.q[:, 1], want, atol=1e-8)
    assert_close(got.q[:, 0], slope * want, atol=1e-8)
    assert int(got.stats["num_events"]) == len(times)
    np.testing.assert_allclose([t for t, *_ in got.happened()], times, atol=1e-9)
    assert set(got.happened()[0][1:]) == {"flight", "bounce"}
    assert np.all(np.isnan(got.event_times[len(times) :]))
    assert float(jnp.max(got.position_residual)) < 1e-9


def after_bounces(x):
    start = jnp.stack([jnp.zeros(()), x["h"]])
    return ukjax.simulate_hybrid(bead(x["e"]), start, jnp.zeros(2), jnp.linspace(0.0, 1.5, 4), max_events=4, **TIGHT)


DROP = {"e": jnp.asarray(0.8), "h": jnp.asarray(1.0)}


@pytest.mark.long
def test_a_gradient_through_bounces_in_closed_form():
    """The second bounce is at (1 + 2 e) times the first."""
    slope = jax.grad(lambda x: after_bounces(x).event_times[1])(DROP)
    first = np.sqrt(2 / G)
    assert float(slope["e"]) == pytest.approx(2 * first, abs=1e-6)
    assert float(slope["h"]) == pytest.approx(first / 2 * (1 + 2 * 0.8), abs=1e-6)


@pytest.mark.long
def test_gradients_through_bounces():
    def height(x):
        got = after_bounces(x)
        return got.q[-1, 1] + 0.3 * got.v[-2, 1] + got.event_times[1]

    assert_gradients(height, DROP)


@pytest.mark.long
def test_a_rope_gets_slack_and_taut():
    ts = np.linspace(0.0, 1.6, 17)
    want, times = roped(5.8, ts)
    got = ukjax.simulate_hybrid(
        rope(), jnp.array([0.0, -1.0]), jnp.array([5.8, 0.0]), ts, projection=ukjax.Projection(), **TIGHT
    )
    np.testing.assert_allclose([t for t, *_ in got.happened()], times, atol=1e-8)
    assert [event for *_, event in got.happened()] == ["slack", "tight"]
    assert_close(got.q, want, atol=1e-8)
    assert [got.modes[i] for i in np.unique(np.asarray(got.mode))] == ["taut", "slack"]
    assert float(jnp.max(jnp.abs(got.constraint_force[np.asarray(got.mode) == 1]))) == 0.0


@pytest.mark.long
def test_gradients_of_a_rope():
    def place(x):
        got = ukjax.simulate_hybrid(
            rope(x["L"]), jnp.stack([jnp.zeros(()), -x["L"]]), jnp.stack([x["v"], jnp.zeros(())]),
            jnp.array([0.0, 0.7, 1.5]), max_events=3, projection=ukjax.Projection(), **TIGHT,
        )  # fmt: skip
        return jnp.sum(got.q[-1]) + got.event_times[1]

    assert_gradients(place, {"L": jnp.asarray(1.0), "v": jnp.asarray(5.8)})


@pytest.mark.long
def test_a_block_sticks_and_slips():
    ts = np.linspace(0.0, 4.0, 33)
    want, times = stick_and_slip(0.4, 0.5, 0.3, ts)
    got = ukjax.simulate_hybrid(block(0.4, 0.5, 0.3), jnp.zeros(1), jnp.array([0.4]), ts, **TIGHT)
    np.testing.assert_allclose([t for t, *_ in got.happened()], times, atol=1e-8)
    assert_close(got.q[:, 0], want, atol=1e-8)


@pytest.mark.long
def test_gradients_of_stick_and_slip():
    def place(x):
        got = ukjax.simulate_hybrid(
            block(x["belt"], x["static"], x["kinetic"]), jnp.zeros(1), x["belt"][None], jnp.array([0.0, 1.7, 2.0]),
            max_events=6, **TIGHT,
        )  # fmt: skip
        return got.q[-1, 0] + got.v[1, 0]

    x = {"belt": jnp.asarray(0.4), "static": jnp.asarray(0.5), "kinetic": jnp.asarray(0.3)}
    assert_gradients(place, x)


@pytest.mark.long
def test_the_end_a_batch_and_too_many():
    """Stopped at an event; starts of a batch bounce as by themselves; infinitely many bounces are told."""
    drop = bead(0.8)["flight"]
    ts = np.linspace(0.0, 1.0, 11)
    floor = ukjax.Event(lambda q, v, t: q[1])
    got = ukjax.simulate_hybrid(
        {"fall": ukjax.Mode(drop.mechanism, {"floor": floor})}, jnp.array([0.0, 1.0]), jnp.zeros(2), ts
    )
    hit = np.sqrt(2 / G)
    assert got.happened() == [(pytest.approx(hit, abs=1e-8), "fall", "floor")]
    assert np.array_equal(np.isnan(np.asarray(got.q[:, 1])), ts > hit)
    assert np.array_equal(np.asarray(got.mode), np.where(ts > hit, -1, 0))
    heights = jnp.array([0.5, 1.0, 1.7])
    one = lambda h: ukjax.simulate_hybrid(
        bead(0.8), jnp.stack([jnp.zeros(()), h]), jnp.zeros(2), ts, max_events=4, throw=False
    )
    batch = jax.jit(jax.vmap(one))(heights)
    for i, h in enumerate(heights):
        assert_close(batch.q[i, :, 1], bounces(float(h), G, 0.8, ts)[0], atol=1e-6)
    with pytest.raises(RuntimeError, match=r"More events than max_events.*\(3 events, after 'bounce' at t = "):
        ukjax.simulate_hybrid(bead(0.3), jnp.array([0.0, 1.0]), jnp.zeros(2), ts, max_events=3)
    with pytest.raises(ValueError, match="of one trajectory"):
        batch.happened()


@pytest.mark.long
def test_an_impact_of_ones_own_and_a_joint_stop():
    """A pendulum that hits a stop at 0.4 rad with restitution; and is set back by a function."""
    stop = ukjax.Holonomic(lambda q, t: (jnp.arctan2(q[0], -q[1]) - 0.4)[None])
    pendulum = ukjax.Mechanism(falling(), [rod(), rod()])
    hits = lambda impact: {
        "swing": ukjax.Mode(pendulum, {"stop": ukjax.Event(
            lambda q, v, t: jnp.arctan2(q[0], -q[1]) - 0.4, "swing", direction="rising", impact=impact)})
    }  # fmt: skip
    q0 = jnp.array([np.sin(-0.5), -np.cos(0.5)])
    by_law = ukjax.simulate_hybrid(hits(ukjax.Impact(stop, 0.5)), q0, jnp.zeros(2), jnp.linspace(0.0, 3.0, 5), **TIGHT)
    by_hand = ukjax.simulate_hybrid(
        hits(lambda q, v, t: (q, -0.5 * v)), q0, jnp.zeros(2), jnp.linspace(0.0, 3.0, 5), **TIGHT
    )
    assert int(by_law.stats["num_events"]) >= 2
    assert_close(by_law.q, by_hand.q, atol=1e-8)
    w = np.sqrt(G)
    rate = w * np.sqrt(2 * (np.cos(0.4) - np.cos(0.5)))
    assert float(jnp.linalg.norm(by_law.event_v[0])) == pytest.approx(0.5 * rate, abs=1e-7)


def one_event(event, constraints=(), then=()):
    """Two modes, of a falling mass with these constraints, and of one with those, and the event between them."""
    modes = {
        "a": ukjax.Mode(ukjax.Mechanism(falling(), constraints), {"e": event}),
        "b": ukjax.Mode(ukjax.Mechanism(falling(), then)),
    }
    return ukjax.simulate_hybrid(modes, [0.0, -1.0], [1.0, 0.0], [0.0, 1.0])


def test_what_goes_wrong_at_events_is_told():
    late = lambda q, v, t: t - 0.5
    at = lambda **options: ukjax.Event(late, "b", direction="rising", **options)
    with pytest.raises(RuntimeError, match="An event function returned NaN"):
        one_event(ukjax.Event(lambda q, v, t: jnp.sqrt(0.5 - t), "b"))
    with pytest.raises(ValueError, match="function of event 'e' asks for 'rope', but the constraints are none"):
        one_event(ukjax.Event(lambda q, v, t, carried: carried["rope"][0], "b", multipliers=True))
    with pytest.raises(ValueError, match=r"must return a pair \(q, v\), but returned an array of shape \(2,\)"):
        one_event(at(impact=lambda q, v, t: v))


@pytest.mark.long
def test_a_mode_that_cannot_begin_is_told():
    """Rows that no velocity satisfies at the same time; a place where the mass is not; a start off the constraints."""
    at = lambda: ukjax.Event(lambda q, v, t: t - 0.5, "b", direction="rising")
    still = lambda q, t: q[:1] - 0.5
    with pytest.raises(RuntimeError, match="The mode that follows an event cannot begin there"):
        one_event(at(), then=[ukjax.Holonomic(still), ukjax.Holonomic(lambda q, t: q[:1] - t)])
    with pytest.raises(RuntimeError, match="The mode that follows an event cannot begin there"):
        one_event(at(), then=ukjax.Holonomic(lambda q, t: q[:1] - 3.0))
    with pytest.warns(ukjax.InconsistentStart, match="off the constraints"):
        one_event(at(), constraints=ukjax.Holonomic(lambda q, t: q[1:] + 2.0))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ukjax.Event(3), TypeError, "function must be a function"),
        (lambda: ukjax.Event(lambda q, v, t: q[0], 3), ValueError, "then must be the name of a mode"),
        (lambda: ukjax.Event(lambda q, v, t: q[0], direction="down"), ValueError, "direction must be one of falling"),
        (lambda: ukjax.Impact(rod(), 1.5), ValueError, "restitution must be from 0 to 1"),
        (lambda: ukjax.Impact(lambda q, t: q), TypeError, "constraint must be an instance"),
        (lambda: ukjax.Mode(3), TypeError, "mechanism must be an instance of Mechanism"),
        (lambda: ukjax.Mode(ukjax.Mechanism(falling()), {"x": 3}), TypeError, "events\\['x'\\] must be an instance"),
        (lambda: ukjax.simulate_hybrid([], [0.0], [0.0], [0.0, 1.0]), TypeError, "modes must be a mapping"),
        (
            lambda: ukjax.simulate_hybrid(
                {"a": ukjax.Mode(ukjax.Mechanism(falling()), {"x": ukjax.Event(lambda q, v, t: q[0], "b")})},
                [0.0, 0.0], [0.0, 0.0], [0.0, 1.0],
            ),
            ValueError,
            "event 'x' of mode 'a' is followed by 'b', but modes are 'a'",
        ),
        (
            lambda: ukjax.simulate_hybrid(rope(), [0.0, -1.0], [0.0, 0.0], [0.0, 1.0], start="loose"),
            ValueError,
            "start must be one of 'taut', 'slack', but is 'loose'",
        ),
        (
            lambda: ukjax.simulate_hybrid(
                {"a": ukjax.Mode(ukjax.Mechanism(falling()), {"x": ukjax.Event(lambda q, v, t: q, "a")})},
                [0.0, 0.0], [0.0, 0.0], [0.0, 1.0],
            ),
            ValueError,
            "function of event 'x' must return an array of shape",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
