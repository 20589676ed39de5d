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


def alike(count=2):
    """A chain with loops of several kinds, `count` of each, which differ in lengths, axes, functions and paths."""
    sphere, plane = (lambda p: p[0] ** 2 + p[1] * p[2] - 0.1), (lambda p: p[2] - 0.2)
    ends = {f"e{k}": rigid.Frame((0.1 * k, 0.2, -0.1), None if k % 2 else (0.1, 0.2 * k, 0.3)) for k in range(count)}
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.1), dict(ends)) for name in "abcd"}
    joints = {
        "a": rigid.Universal("ground", "a"),
        "b": rigid.Revolute("a.e1", "b", (0.3, 1.0, 0.2)),
        "c": rigid.Prismatic("b", "c.e1", "y"),
        "d": rigid.Spherical("b.e0", "d"),
    }
    for k in range(count):
        joints |= {
            f"far {k}": rigid.Distance("ground", f"c.e{k}", 0.5 + 0.1 * k),
            f"near {k}": rigid.Distance(f"a.e{k}", f"d.e{k}", 0.3),
            f"hinge {k}": rigid.Revolute(f"d.e{k}", "ground", "x"),
            f"tilted {k}": rigid.Revolute("ground", f"d.e{k}", (0.1 * k, 1.0, 0.5)),
            f"on {k}": rigid.PointOn("a", f"d.e{k}", sphere),
        }
    joints["plane"] = rigid.PointOn("a", "d.e0", plane)
    return rigid.Robot(bodies, joints, stabilization=GAINS)


ROBOTS |= {"sleigh": sleigh, "alike": alike}


@pytest.mark.parametrize("name", sampled(ROBOTS, ["sleigh", "bicycle", "alike"]))
def test_together_and_each_on_its_own_they_are_the_same(name):
    robot = ROBOTS[name]()
    mechanism = robot.mechanism()
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 3))

    def each(q, v):
        errors = lambda c: (c.position_error(q, TIME), mechanism.velocity_error_of(c, q, v, TIME))
        return {k: (*mechanism.rows_of(c, q, v, TIME), *errors(c)) for k, c in mechanism.named_constraints.items()}

    together, alone = jax.jit(lambda q, v: (robot.own_rows(q, v, TIME), each(q, v)))(q, v)
    assert sorted(together) == sorted(mechanism.named_constraints)
    for key, wanted in alone.items():
        for x, y in zip(together[key], wanted, strict=True):
            assert_close(x, y, atol=1e-13 * (1 + float(jnp.max(jnp.abs(y), initial=0.0))))


@pytest.mark.parametrize("name", sampled(ROBOTS, ["sleigh", "bicycle", "alike"]))
def test_errors_and_their_derivatives_are_those_of_the_constraints(name):
    """`error_rows`, `velocity_rows` and `errors` of a mechanism, against each constraint's and slopes by JAX."""
    mechanism = ROBOTS[name]().mechanism({"further": ukjax.Holonomic(lambda q, t: q[:1] ** 2 - 0.3)})
    q, v = (jnp.asarray(x) for x in trees.random_state(ROBOTS[name](), 5))
    n = v.shape[0]

    def wanted(q, v):
        position = lambda d: mechanism.position_error(mechanism.retract(q, d, TIME), TIME)
        velocity = lambda v: mechanism.velocity_error(q, v, TIME)
        rest = jnp.zeros(n)
        return (position(rest), jax.jacfwd(position)(rest)), (velocity(v), jax.jacfwd(velocity)(v))

    def found(q, v):
        rows = mechanism.error_rows(q, v, TIME)
        of_position = rows.position[rows.of_position], rows.A[rows.of_position]
        return of_position, mechanism.velocity_rows(q, v, TIME), mechanism.errors(q, v, TIME)

    positions, velocities = jax.jit(wanted)(q, v)
    errors = positions[0], velocities[0]
    for pair, others in zip(jax.jit(found)(q, v), (positions, velocities, errors), strict=True):
        for x, y in zip(pair, others, strict=True):
            assert_close(x, y, atol=1e-12 * (1 + float(jnp.max(jnp.abs(y), initial=0.0))))


def test_loops_that_are_alike_are_traced_once():
    """Four of each take a few operations more than two, to put their numbers together and apart."""

    def length(robot):
        traced = jax.make_jaxpr(lambda q, v: robot.own_rows(q, v, TIME))(*trees.random_state(robot, 3))
        return len(traced.eqns)

    two, four, six = (length(alike(count)) for count in (2, 4, 6))
    loops = 5 * 2
    assert four - two < 10 * loops
    assert six - four < 10 * loops


@pytest.mark.long
def test_their_derivatives_are_the_same():
    robot = four_bar(coordinates="absolute", stabilization=GAINS)
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 4))
    constraint = robot.own_constraints["D"]
    alone = lambda q, v: constraint.rows(q, v, TIME, robot.kinematics)
    together = lambda q, v: robot.own_rows(q, v, TIME)["D"][:2]
    for derivative in (jax.jacfwd, jax.jacrev):
        for found, wanted in zip(derivative(together, (0, 1))(q, v), derivative(alone, (0, 1))(q, v), strict=True):
            # Of a quaternion the length too: it turns nothing.
            jax.tree_util.tree_map(lambda x, y: assert_close(x, y, atol=1e-11), found, wanted)
