"""Rows of all loops from one pass, beside those of each constraint on its own."""

import jax
import jax.numpy as jnp
import pytest

import ukjax
from models import bricard, delta, five_bar_leg, stewart, whipple_bicycle
from ukjax import rigid

from ..helpers import assert_close, sampled
from . import trees
from .test_robot import KINDS, four_bar


TIME = jnp.zeros(())
GAINS = ukjax.Baumgarte(2.0, 3.0)
ROBOTS = {
    "bricard": bricard.robot,
    "delta": delta.robot,
    "leg": lambda: five_bar_leg.robot(standing=True),
    "stewart": stewart.robot,
    "bicycle": whipple_bicycle.robot,
    **{f"four-bar, {name}": lambda kind=kind: four_bar(**kind, stabilization=GAINS) for name, kind in KINDS.items()},
}


def sleigh():
    """A knife edge, and a point on a curve of a body that moves."""
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.1), {"at": rigid.Frame((0.3, 0.1, 0.0))}) for name in "ab"}
    joints = {
        "a": rigid.Free("ground", "a"),
        "b": rigid.Spherical("a.at", "b"),
        "edge": rigid.KnifeEdge("a", "b.at", (1.0, 0.5, 0.0)),
        "curve": rigid.PointOn("a", "b.at", lambda p: jnp.stack([p[0] - p[1] ** 2, p[2]])),
    }
    return rigid.Robot(bodies, joints, stabilization=ukjax.Baumgarte(1.5))


ROBOTS["sleigh"] = sleigh


@pytest.mark.parametrize("name", sampled(ROBOTS, ["sleigh", "bicycle"]))
def test_together_and_each_on_its_own_they_are_the_same(name):
    robot = ROBOTS[name]()
    mechanism = robot.mechanism()
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 3))
    each = lambda q, v: {k: mechanism.rows_of(c, q, v, TIME) for k, c in mechanism.named_constraints.items()}
    together, alone = jax.jit(lambda q, v: (robot.own_rows(q, v, TIME), each(q, v)))(q, v)
    assert sorted(together) == sorted(mechanism.named_constraints)
    for key, (A, b) in alone.items():
        assert_close(together[key][0], A, atol=1e-13 * (1 + float(jnp.max(jnp.abs(A)))))
        assert_close(together[key][1], b, atol=1e-13 * (1 + float(jnp.max(jnp.abs(b)))))


@pytest.mark.long
def test_their_derivatives_are_the_same():
    robot = four_bar(coordinates="absolute", stabilization=GAINS)
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 4))
    constraint = robot.own_constraints["D"]
    alone = lambda q, v: constraint.rows(q, v, TIME, robot.kinematics)
    together = lambda q, v: robot.own_rows(q, v, TIME)["D"]
    for derivative in (jax.jacfwd, jax.jacrev):
        for found, wanted in zip(derivative(together, (0, 1))(q, v), derivative(alone, (0, 1))(q, v), strict=True):
            # Of a quaternion the length too: it turns nothing.
            jax.tree_util.tree_map(lambda x, y: assert_close(x, y, atol=1e-11), found, wanted)
