"""Accelerations of trees: loops over the nodes, articulated bodies, derivatives in closed form.

What they are compared with are M and the bias force from node to node, which are compared with others elsewhere.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, assert_same_gradients, central_difference, long
from ..inside import (
    LARGE,
    SHORT,
    Limits,
    Lowering,
    armature,
    bias,
    free_motion,
    mass_unrolled,
    own_forces,
    posture,
    replaced,
)
from . import trees


TIME = jnp.zeros(())
KINDS = {
    "hinges": ("hinge",),
    "mixed": ("hinge", "slide", "screw", "fixed"),
    "balls": ("hinge", "ball", "free"),
}
OFF = ukjax.UdwadiaKalaba(expand=False)


def tree(name, count=14):
    """Branching, half of the driven joints with an effort."""
    kinds = KINDS[name]
    links = trees.random_links(count, 7, kinds=("hinge", "slide"))
    plain = trees.robot(links)
    ends = {key: (joint.parent, joint.child) for key, joint in plain.joints.items()}
    joints = {}
    for i, (key, link) in enumerate(zip(plain.joint_names, links, strict=True)):
        effort = rigid.Effort(3.0 + i, 0.1, 0.2 + 0.1 * i, 0.05 * i, rigid.Limit(-0.3, 0.3, 20.0, 0.1))
        driven = {"axis": link.axis, "effort": effort if i % 2 else None}
        make = {
            "hinge": lambda *ends, driven=driven: rigid.Revolute(*ends, **driven),
            "slide": lambda *ends, driven=driven: rigid.Prismatic(*ends, **driven),
            "screw": lambda *ends, driven=driven: rigid.Screw(*ends, pitch=0.2, **driven),
            "fixed": rigid.Fixed,
            "ball": lambda *ends: rigid.Spherical(*ends, rigid.Drag(0.3, 0.02)),
            "free": rigid.Free,
        }
        joints[key] = make[kinds[i % len(kinds)]](*ends[key])
    return rigid.Robot(plain.bodies, joints, frames=plain.frames)


def motion(robot, q, v, u=None):
    return ukjax.equation_of_motion(robot.mechanism(), q, v, applied=u, throw=False)


def plain(robot, q, v, u):
    """From node to node, and a dense M."""
    M = mass_unrolled(posture(robot, q), q.dtype) + jnp.diag(armature(robot, q.dtype))
    Q = own_forces(robot, q, v) - bias(robot, q, v, large=False)
    return jnp.linalg.solve(M, Q + u)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "count"),
    [("hinges", 3), long("mixed", 6), long("mixed", 11), long("hinges", 14), long("mixed", 16), long("balls", 9)],
)
def test_the_motion_and_its_derivatives(name, count):
    """At three states, of which one is at rest, under forces from outside."""
    robot = tree(name, count)
    way, n = free_motion(robot, None), robot.layout.n
    assert (way.slopes is None) == (name == "balls")
    assert (way.lowering is Lowering.SCALAR) == (n <= LARGE)
    assert (way.slopes_lowering is Lowering.SCALAR) == (n <= SHORT)
    states = [trees.random_state(robot, k) for k in range(3)]
    q, v = (jnp.asarray(np.stack(x)) for x in zip(*states, strict=True))
    v = v.at[2].set(0.0)
    u = jnp.sin(v + 1)
    of = lambda q, v, u: motion(robot, q, v, u).acceleration

    def everything(*at):
        forward, found = jax.jacfwd(of, (0, 1, 2))(*at), motion(robot, *at)
        return found, forward, jax.jacrev(of, (0, 1, 2))(*at)

    found, forward, backward = jax.jit(jax.vmap(everything))(q, v, u)
    want = jax.jit(plain)
    for k in range(3):
        assert_close(found.acceleration[k], want(robot, q[k], v[k], u[k]), rtol=1e-9, atol=1e-9)
        assert_close(found.acceleration[k], found.unconstrained_acceleration[k])
        by_q = central_difference(lambda q, k=k: want(robot, q, v[k], u[k]), q[k], 1e-6)
        by_v = central_difference(lambda v, k=k: want(robot, q[k], v, u[k]), v[k], 1e-6)
        inverse = jnp.linalg.inv(robot.mass(q[k], TIME))
        for J, differences in zip(forward, (by_q, by_v, inverse), strict=True):
            assert_close(J[k], differences, atol=1e-7 * (1 + float(np.max(np.abs(differences)))))
        for J, other in zip(forward, backward, strict=True):
            assert_close(other[k], J[k], atol=1e-10 * (1 + float(jnp.max(jnp.abs(J)))))
    assert np.all(found.result == ukjax.RESULTS.successful)


@pytest.mark.long
def test_a_batch_of_more_than_a_tile_and_forces_from_outside():
    """Masses may differ too."""
    robot = tree("hinges")
    rng = np.random.default_rng(1)
    q, v, u = (jnp.asarray(rng.normal(size=(300, 14))) for _ in range(3))
    grow = jnp.linspace(1.0, 2.0, 300)

    def one(q, v, u, factor):
        heavier = jax.tree_util.tree_map(lambda x: x * factor, robot.bodies["b5"].inertia.mass)
        changed = eqx.tree_at(lambda r: r.bodies["b5"].inertia.mass, robot, heavier)
        return ukjax.equation_of_motion(changed.mechanism(), q, v, applied=u, throw=False).acceleration

    got = jax.jit(jax.vmap(one))(q, v, u, grow)
    for k in (0, 127, 128, 299):
        changed = eqx.tree_at(lambda r: r.bodies["b5"].inertia.mass, robot, robot.bodies["b5"].inertia.mass * grow[k])
        M, Q = changed.mass(q[k], TIME), changed.force(q[k], v[k], TIME)
        assert_close(got[k], jnp.linalg.solve(M, Q + u[k]), rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_what_is_written_out_is_the_same_as_in_tiles():
    """Seven to nine speeds, whose Jacobians are written out too, and more."""
    for name, count in (("mixed", 11), ("hinges", 12)):
        robot = tree(name, count)
        states = [trees.random_state(robot, k) for k in range(3)]
        q, v = (jnp.asarray(np.stack(x)) for x in zip(*states, strict=True))

        def jacobians(q, v):
            of = jax.jacfwd(lambda q, v: motion(robot, q, v).acceleration, (0, 1))  # noqa: B023
            return jax.jit(jax.vmap(of))(q, v)

        with replaced(scalar_code=Limits(0, 0)):
            tiles = jacobians(q, v)
        for J, want in zip(jacobians(q, v), tiles, strict=True):
            assert_close(J, want, rtol=1e-9, atol=1e-10 * float(jnp.max(jnp.abs(want))))


@pytest.mark.long
def test_a_body_without_mass_at_the_end_is_reported():
    """M is singular, which this formulation is not for."""
    robot = tree("hinges")
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 3))
    tips = set(robot.bodies) - {joint.parent.split(".")[0] for joint in robot.joints.values()}
    tip = next(joint.child for joint in robot.joints.values() if joint.child in tips and joint.effort is None)
    light = eqx.tree_at(
        lambda r: r.bodies[tip].inertia, robot, replace_fn=lambda i: jax.tree_util.tree_map(jnp.zeros_like, i)
    )
    of = lambda q, v: ukjax.equation_of_motion(light.mechanism(), q, v, throw=False)
    both = jax.jit(jax.vmap(of))(jnp.stack([q, q]), jnp.stack([v, 0 * v]))
    assert np.all(both.result == ukjax.RESULTS.mass_not_positive_definite)
    assert np.all(np.isnan(both.acceleration))


@pytest.mark.long
@pytest.mark.parametrize("name", ["hinges", "mixed"])
def test_gradients_by_every_parameter_and_second_derivatives(name):
    """Through a batch in tiles, beside those of matrices; and along a direction, beside differences."""
    robot = tree(name, {"hinges": 14, "mixed": 20}[name])
    states = [trees.random_state(robot, k) for k in range(3)]
    q, v = (jnp.asarray(np.stack(x)) for x in zip(*states, strict=True))
    weights = jnp.cos(jnp.arange(float(robot.layout.n)))

    def loss(mechanism, q, formulation):
        of = lambda q, v: ukjax.equation_of_motion(mechanism, q, v, formulation=formulation, throw=False)
        return jnp.sum(jax.vmap(of)(q, v).acceleration @ weights)

    mechanism, on = robot.mechanism(), ukjax.UdwadiaKalaba()
    gradient = lambda way: jax.jit(jax.grad(lambda m: loss(m, q, way)))
    along = jax.tree_util.tree_map(lambda x: jnp.cos(x + 1.0), mechanism)
    forward = jax.jit(lambda m, dm: jax.jvp(lambda m: loss(m, q, on), (m,), (dm,))[1])(mechanism, along)
    assert_same_gradients(gradient(on)(mechanism), gradient(OFF)(mechanism), forward, along)
    slope = jax.jit(jax.grad(lambda q: loss(mechanism, q, on)))
    turned = jax.jit(lambda q: jax.jvp(jax.grad(lambda q: loss(mechanism, q, on)), (q,), (q,))[1])(q)
    differences = (slope(q * (1 + 1e-6)) - slope(q * (1 - 1e-6))) / 2e-6
    assert_close(turned, differences, atol=1e-6 * float(jnp.max(jnp.abs(differences))))


@pytest.mark.long
def test_a_trajectory_and_its_gradient():
    """Energy is kept; the gradient of what it ends in is that of differences."""
    joints = [rigid.Revolute(*ends, axis) for ends, axis in zip(_chain(), ["x", "y", "z"] * 5, strict=False)]
    body = rigid.Body(rigid.Inertia(1.0, [0.02, 0.02, 0.01], (0.0, 0.0, -0.15)), {"end": rigid.Frame((0.0, 0.0, -0.3))})
    robot = rigid.Robot({f"b{i}": body for i in range(14)}, {f"j{i}": joint for i, joint in enumerate(joints)})
    q0, v0 = 0.3 * jnp.cos(jnp.arange(14.0)), jnp.zeros(14)
    of = lambda q0: ukjax.simulate(robot.mechanism(), q0, v0, np.linspace(0, 0.3, 4), keep=("q", "v"), throw=False)
    found = jax.jit(of)(q0)
    energy = jax.vmap(robot.energy)(found.q, found.v)
    assert_close(energy, jnp.full_like(energy, energy[0]), rtol=1e-8)
    last = lambda q0: jnp.sum(jnp.sin(of(q0).q[-1]))
    got, direction = jax.jit(jax.grad(last))(q0), jnp.sin(jnp.arange(14.0))
    run = jax.jit(last)
    difference = (run(q0 + 1e-6 * direction) - run(q0 - 1e-6 * direction)) / 2e-6
    assert float(got @ direction) == pytest.approx(float(difference), rel=1e-5)


def _chain():
    return [("ground" if i == 0 else f"b{i - 1}.end", f"b{i}") for i in range(14)]


@pytest.mark.long
def test_programs_are_lowered_for_a_gpu():
    robot = tree("hinges")
    q, v = (jnp.zeros((4, 14)) for _ in range(2))
    of = lambda q, v: motion(robot, q, v).acceleration
    for function in (of, jax.jacfwd(of)):
        text = jax.jit(jax.vmap(function)).trace(q, v).lower(lowering_platforms=("cuda",)).as_text()
        assert "stablehlo.while" in text
