"""Rows of all loops from one pass, beside those of each constraint on its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import ukjax
from models import bricard, delta, five_bar_leg, legged_chains, stewart, whipple_bicycle
from ukjax import rigid

from ..helpers import assert_close, sampled
from ..inside import imbalance
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
    gears = {"curved": rigid.Gear("b", "c", (0.1, 0.5, -0.3)), "sum": rigid.Gear({"b": 2.0, "c": 0.5}, None, (0.2,))}
    return rigid.Robot(bodies, joints, gears=gears, stabilization=GAINS)


ROBOTS |= {"sleigh": sleigh, "alike": alike}


@pytest.mark.parametrize("name", sampled(ROBOTS, ["sleigh", "bicycle"]))
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


@pytest.mark.parametrize("name", sampled(ROBOTS, ["sleigh", "bicycle"]))
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


def driven():
    """Loops with efforts and drags, joints with armature, and forces between bodies."""
    effort, drag = rigid.Effort(2.0, 0.1, 0.3, 0.2), rigid.Drag(0.4, 0.15)
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.1), {"e": rigid.Frame((0.4, 0.1, 0.0))}) for name in "abc"}
    joints = {
        "a": rigid.Revolute("ground", "a", "z", effort),
        "b": rigid.Spherical("a.e", "b", rigid.Drag(0.1, 0.05)),
        "c": rigid.Universal("b.e", "c"),
        "hinge": rigid.Revolute("c.e", "ground", (0.2, 1.0, 0.1), effort),
        "ball": rigid.Spherical("ground", "b.e", drag),
    }
    return rigid.Robot(bodies, joints, forces={"spring": rigid.Spring("a.e", "c.e", 30.0, 0.2)}, turns=["hinge"])


@pytest.mark.parametrize("name", sampled([*ROBOTS, "driven"], ["sleigh", "bicycle", "alike", "driven"]))
def test_the_imbalance_is_that_of_the_mass_matrix_and_the_rows(name):
    """Q - M a + A^T l and b - A a by recursive Newton-Euler, for accelerations and multipliers that solve nothing."""
    robot = driven() if name == "driven" else ROBOTS[name]()
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 3))
    a = jnp.sin(jnp.arange(1.0, 1.0 + len(v)))

    def terms(q, v, a):
        rows = robot.own_rows(q, v, TIME)
        multipliers = {k: jnp.cos(jnp.arange(len(row.b)) + len(k)) for k, row in rows.items()}
        force = robot.force(q, v, TIME) - robot.mass(q, TIME) @ a
        for k, row in rows.items():
            force = force + row.A.T @ multipliers[k]
        return (force, {k: row.b - row.A @ a for k, row in rows.items()}), multipliers

    (force, errors), multipliers = jax.jit(terms)(q, v, a)
    found, others = jax.jit(lambda *state: imbalance(robot, *state))(q, v, TIME, a, multipliers)
    assert_close(found, force, atol=1e-12 * (1 + float(jnp.max(jnp.abs(force)))))
    assert sorted(others) == sorted(errors)
    for key, wanted in errors.items():
        assert_close(others[key], wanted, atol=1e-12 * (1 + float(jnp.max(jnp.abs(wanted), initial=0.0))))


@pytest.mark.long
def test_derivatives_of_a_large_robot_with_further_constraints():
    """Forward and reverse, by the state, a force and the robot's numbers, against differences."""
    robot = legged_chains.cassie_legs().robot()
    (q, _), n = robot.assemble(), robot.layout.n
    v = 0.3 * jnp.sin(jnp.arange(1.0, 1.0 + n))
    weights = jnp.cos(jnp.arange(1.0, 1.0 + n))
    further = ukjax.Nonholonomic(lambda q, v, t: (jnp.cos(q[:1]) * (weights @ v)) - jnp.sin(t))
    mechanism = robot.mechanism({"further": further})
    numbers, rest = eqx.partition(mechanism, eqx.is_inexact_array)
    sizes = jax.tree_util.tree_map(lambda x: 1e-2 * (jnp.abs(x) + 0.1 * jnp.ones_like(x)), numbers.system.bodies)

    def work(q, v, applied, scale):
        bodies = jax.tree_util.tree_map(lambda x, size: x + scale * size, numbers.system.bodies, sizes)
        moved = eqx.combine(eqx.tree_at(lambda m: m.system.bodies, numbers, bodies), rest)
        motion = ukjax.equation_of_motion(moved, q, v, applied=applied)
        return (
            weights @ motion.acceleration
            + weights @ motion.constraint_force / 50
            + v @ motion.unconstrained_acceleration
        )

    state = q, v, 2.0 * weights, jnp.zeros(())
    along = jnp.cos(3 * q), jnp.sin(2 * v), v, jnp.ones(())
    _, forward = jax.jvp(work, state, along)
    gradient = jax.grad(work, (0, 1, 2, 3))(*state)
    at = lambda h: float(work(*(x + h * d for x, d in zip(state, along, strict=True))))
    h = 4e-5
    slope = (8 * (at(h) - at(-h)) - at(2 * h) + at(-2 * h)) / (12 * h)
    assert_close(forward, slope, rtol=1e-7)
    assert_close(sum(jnp.vdot(x, d) for x, d in zip(gradient, along, strict=True)), forward, rtol=1e-11)


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
