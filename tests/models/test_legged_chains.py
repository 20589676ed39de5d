"""Robots with closed chains in space: they close, move, and have the accelerations that forty digits give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from benchmarks import _closed
from models import legged_chains
from models.legged_chains import BASE, Chain, Rod

from ..helpers import assert_close, long
from ..inside import replaced


RANKS = {"five_bar": (3, 2), "kangaroo_ankle": (6, 6), "cassie_legs": (12, 10), "digit_leg": (18, 18),
         "wl16_legs": (30, 30)}  # fmt: skip


@pytest.mark.parametrize("name", ["five_bar", "kangaroo_ankle", *map(long, ["cassie_legs", "digit_leg", "wl16_legs"])])
def test_accelerations_of_a_closed_state_are_those_of_forty_digits(name):
    """They are compared in a batch and by a plain call. The drawn pose is open by rounded lengths."""
    case = _closed.Case(getattr(legged_chains, name)(), _closed.CHECKED)
    q, v = jnp.asarray(case.q), jnp.asarray(case.v)
    motion = jax.jit(jax.vmap(lambda q, v: ukjax.equation_of_motion(case.mechanism, q, v, throw=False)))(q, v)
    plain = ukjax.equation_of_motion(case.mechanism, q[0], v[0])
    gaps = jax.jit(jax.vmap(lambda q: case.mechanism.position_error(q, jnp.zeros(()))))(q)
    assert np.max(np.abs(gaps)) < 1e-12
    assert (case.rows, case.rank) == RANKS[name]
    assert np.all(motion.rank == case.rank)
    assert case.off(np.asarray(motion.acceleration)) < 1e-9
    scale = float(np.max(np.abs(case.exact[0])))
    assert_close(plain.acceleration, jnp.asarray(case.exact[0]), atol=1e-9 * scale)


def rolling_five_bar() -> Chain:
    """The five-bar on a hinge about x: the plane of its rods turns."""
    flat = legged_chains.five_bar()
    roll = Rod("roll", BASE, "continuous", legged_chains.X, (0.0, 0.0, 0.1), (0.1, 0.0, 0.0), 2.0)
    carried = [rod._replace(on="roll") if rod.on == BASE else rod for rod in flat.rods]
    return flat._replace(rods=(roll, *carried))


def test_a_loop_in_a_plane_that_turns_is_projected_onto():
    """One of the three rows of its ball is nothing but rounding errors. No projection needs matrices for that."""
    robot = rolling_five_bar().robot()
    mechanism = robot.mechanism()
    q, v = robot.assemble({"roll_joint": 0.4}, {"roll_joint": 1.0})
    ts = jnp.linspace(0.0, 0.5, 6)
    with replaced(projected_by_matrices=lambda solver, at: jnp.full_like(at.size, jnp.nan)):
        run = ukjax.simulate(mechanism, q, v, ts, projection=ukjax.Projection(), keep="all")
    assert np.all(run.rank == 2)
    assert np.max(run.position_residual) < 1e-14
    assert int(run.stats["num_steps"]) < 200
    energy = jax.vmap(robot.energy)(run.q, run.v, ts)
    assert_close(energy, jnp.full_like(energy, energy[0]), atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cassie_legs", "digit_leg", "wl16_legs"])
def test_they_stay_closed_as_they_fall(name):
    robot = getattr(legged_chains, name)().robot()
    q, v = robot.assemble()
    ts = jnp.linspace(0.0, 0.2, 5)
    run = ukjax.simulate(robot.mechanism(), q, v, ts, projection=ukjax.Projection())
    assert np.max(run.position_residual) < 1e-12
    energy = jax.vmap(robot.energy)(run.q, run.v, ts)
    assert_close(energy, jnp.full_like(energy, energy[0]), atol=1e-6)
