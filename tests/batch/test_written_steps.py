"""Steps of many lanes as scalar code, as on a GPU: the same steps, to the same states, as of runs of machine code."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import long
from ..inside import ScalarLaneStep, replaced
from .test_simulate_batch import AT_REST, TS, assert_same, start, swinging


COUNT = 80
MANY = {"length": jnp.linspace(0.5, 1.5, COUNT), "mass": jnp.linspace(2.0, 1.0, COUNT)}


@pytest.fixture
def programs():
    """The operations of the steps of lanes, which stand in for runs; few trajectories are enough for that."""
    found, call = [], ScalarLaneStep.__call__

    def spy(self, *arguments):
        found.append(self.operation.program.program.operations)
        return call(self, *arguments)

    jax.clear_caches()
    with replaced(runs=lambda *_: None, written_step=spy, worth_steps=1):
        yield found


def both(begin=start, mechanism=swinging, v0=AT_REST, **options):
    one = lambda s: ukjax.simulate(mechanism(s), begin(s), v0, TS, throw=False, **options)
    got = ukjax.simulate_batch(mechanism, begin, v0, TS, samples=MANY, lanes=40, progress=False, throw=False, **options)
    return got, jax.jit(jax.vmap(one))(MANY)


@pytest.mark.parametrize(
    "options",
    [
        long({}),
        long({"solver": diffrax.Heun(), "rtol": 1e-5, "atol": 1e-5}),
        long({"solver": diffrax.Dopri5(), "projection": ukjax.Projection(), "rtol": 1e-5, "atol": 1e-5}),
    ],
    ids=["the last stage is the first of the next", "it is not", "it is, but for the projection"],
)
def test_the_same_steps(programs, options):
    """More trajectories than lanes: those that begin do not know their first stage, which the others do."""
    options["keep"] = ("q", "v")
    assert_same(*both(**options), tolerance=1e-11)
    assert programs
    assert max(programs) > 100


@pytest.mark.long
def test_what_is_not_certain_and_what_fails(programs):
    """Of two rows that are almost the same it is not certain whether they are one; one start is no number."""

    def almost_redundant(sample):
        system = ukjax.System(lambda q, t: sample["mass"] * jnp.eye(2), lambda q, v, t: jnp.zeros(2))
        first = lambda q, t: (q[0] - 0.1 * t)[None]
        second = lambda q, t: first(q, t) + 10 ** (-10 + 9 * t) * (q[1] - 1.0)
        return ukjax.Mechanism(system, [ukjax.Holonomic(first), ukjax.Holonomic(second)])

    begin = lambda s: jnp.where(s["mass"] > 1.98, jnp.nan, 1.0) * jnp.array([0.0, 1.0])
    with pytest.warns(ukjax.FailedTrajectories, match="2 of 80"):
        got, want = both(begin, almost_redundant, jnp.array([0.1, 0.0]), keep=("q", "v", "rank"))
    assert programs
    assert set(np.unique(want.rank[2:])) == {1, 2}
    assert np.array_equal(got.result._value, want.result._value)
    assert_same(got.q[2:], want.q[2:], tolerance=1e-11)
    assert np.array_equal(got.rank[2:], want.rank[2:])


@pytest.mark.long
def test_constraints_that_begin_to_contradict_each_other(programs):
    """Of every other trajectory, half way."""

    def parting(sample):
        system = ukjax.System(lambda q, t: sample["mass"] * jnp.eye(2), lambda q, v, t: jnp.zeros(2))
        apart = jnp.where(sample["mass"] > 1.5, 1.0, 0.0)
        first = lambda q, t: (q[0] - 0.1 * t)[None]
        second = lambda q, t: first(q, t) - apart * jnp.maximum(t - 0.5, 0.0) ** 2
        return ukjax.Mechanism(system, [ukjax.Holonomic(first), ukjax.Holonomic(second)])

    with pytest.warns(ukjax.FailedTrajectories, match="40 of 80"):
        got, want = both(lambda s: jnp.array([0.0, 1.0]), parting, jnp.array([0.1, 0.0]), keep=("q",))
    assert programs
    for failed in (got.result, want.result):
        assert np.array_equal(failed != ukjax.RESULTS.successful, MANY["mass"] > 1.5)
    assert np.array_equal(got.stats["num_steps"], want.stats["num_steps"])


@pytest.mark.long
def test_what_is_too_long_goes_as_it_is(programs):
    with replaced(lane_step=50):
        assert_same(*both(keep=("q",)))
    assert not programs
