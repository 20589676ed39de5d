"""Kinematics and dynamics of trees, beside MuJoCo and Pinocchio."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, central_difference, long, sampled
from ..inside import bias, mass_by_loops, mass_unrolled, posture, solve_by_loops, stacked, times_by_loops
from . import trees


TIME = jnp.zeros(())


@pytest.mark.parametrize(("count", "seed"), [(1, 0), (7, 1), long(12, 2), long(30, 3), long(30, 4)])
def test_mass_bias_poses_and_jacobians_against_both(count, seed):
    links = trees.random_links(count, seed)
    robot, theirs, others = trees.robot(links), trees.InMujoco(links), trees.InPinocchio(links)
    of = jax.jit(lambda q, v: (robot.mass(q, TIME), robot.force(q, v, TIME)))
    last = f"b{count - 1}"
    poses = jax.jit(lambda q: robot.pose(q, last))
    velocity = jax.jit(lambda q, v: robot.velocity(q, v, last))
    for k in range(3):
        q, v = trees.random_state(robot, 10 * seed + k)
        M, Q = of(jnp.asarray(q), jnp.asarray(v))
        for found in (theirs.at(q, v), others.at(q, v)):
            assert_close(M, found[0], atol=1e-12 * np.max(np.abs(M)))
            assert_close(-Q, found[1], atol=1e-11 * np.max(np.abs(Q)))
        R, p = poses(jnp.asarray(q))
        assert_close(R, theirs.pose(last)[0], atol=1e-13)
        assert_close(p, theirs.pose(last)[1], atol=1e-13)
        assert_close(velocity(jnp.asarray(q), jnp.asarray(v)), theirs.jacobian(last)[0] @ v, atol=1e-11)


@pytest.mark.long
def test_inverse_dynamics_against_both():
    links = trees.random_links(8, 5)
    robot, theirs, others = trees.robot(links), trees.InMujoco(links), trees.InPinocchio(links)
    q, v = trees.random_state(robot, 5)
    wanted = np.random.default_rng(6).normal(size=robot.layout.n)
    inverse = robot.mass(jnp.asarray(q), TIME) @ wanted - robot.force(jnp.asarray(q), jnp.asarray(v), TIME)
    assert_close(inverse, theirs.inverse(q, v, wanted), atol=1e-11)
    assert_close(inverse, others.inverse(q, v, wanted), atol=1e-11)


@pytest.mark.long
def test_constrained_accelerations_against_pinocchio():
    # Two branches of four bodies each, whose ends are joined.
    branches = [-1, 0, 1, 2, 3, 0, 5, 6, 7]
    given = trees.random_links(9, 7, kinds=("hinge", "ball"))
    links = [link._replace(parent=parent) for link, parent in zip(given, branches, strict=True)]
    tree = trees.robot(links)
    joints = {**tree.joints, "loop": rigid.Spherical("b4", "b8")}
    named = {name: joints[name] for name in (*tree.joint_names, "loop")}
    robot = rigid.Robot(tree.bodies, named, frames=tree.frames)
    for k in range(3):
        q, v = ukjax.assemble(robot.mechanism(), *trees.random_state(robot, k))
        found = ukjax.equation_of_motion(robot.mechanism(), q, v)
        assert int(found.rank) == 3
        want = trees.InPinocchio(links).constrained(q, v, [(4, 8)])
        assert_close(found.acceleration, want, atol=1e-8 * np.max(np.abs(want)))


@pytest.mark.long
def test_mass_by_jacobians_as_the_paper_has_it():
    """Xu & Liu (2017), eq. 22 to 26: M is the sum over bodies of J^T I J, and C follows from the derivatives of M."""
    links = trees.random_links(5, 8, kinds=("hinge", "slide"))
    robot = trees.robot(links)
    q, v = (jnp.asarray(x) for x in trees.random_state(robot, 8))

    def twist(q, v, i):
        # The body's velocity and angular velocity from its pose alone.
        (R, _), (dR, dp) = jax.jvp(lambda q: tuple(robot.pose(q, f"b{i}")), (q,), (v,))
        spin = R.T @ dR
        return jnp.concatenate([R.T @ dp, jnp.stack([spin[2, 1], spin[0, 2], spin[1, 0]])])

    def kinetic(q, v):
        total = jnp.zeros(())
        for i, link in enumerate(links):
            V = twist(q, v, i)
            at_center = V[:3] + jnp.cross(V[3:], link.center)
            total += link.mass * at_center @ at_center / 2 + V[3:] @ link.moments @ V[3:] / 2
        return total

    def potential(q):
        centers = (robot.pose(q, f"b{i}").point(jnp.asarray(link.center)) for i, link in enumerate(links))
        return 9.81 * sum(link.mass * center[2] for link, center in zip(links, centers, strict=True))

    system = ukjax.LagrangianSystem(lambda q, v, t: kinetic(q, v), lambda q, t: potential(q))
    assert_close(robot.mass(q, TIME), system.mass(q, TIME), atol=1e-12)
    assert_close(robot.force(q, v, TIME), system.force(q, v, TIME), atol=1e-11)


JOINTS = {
    "screw": lambda: rigid.Screw("a.out", "b.in", 0.2, (1.0, 2.0, -1.0)),
    "cylindrical": lambda: rigid.Cylindrical("a.out", "b.in", (1.0, 2.0, -1.0)),
    "universal": lambda: rigid.Universal("a.out", "b.in", "x", "y"),
    "planar": lambda: rigid.Planar("a.out", "b.in", "y"),
    "spherical": lambda: rigid.Spherical("a.out", "b.in"),
    "free": lambda: rigid.Free("a.out", "b.in"),
    "fixed": lambda: rigid.Fixed("a.out", "b.in"),
    "prismatic": lambda: rigid.Prismatic("a.out", "b.in", "z"),
    "revolute": lambda: rigid.Revolute("a.out", "b.in", (0.0, 1.0, 1.0)),
}


def pair(joint, **options):
    """A body on the ground by a universal joint, and another on it."""
    rng = np.random.default_rng(11)
    frame = lambda: rigid.Frame(0.3 * rng.normal(size=3), rng.normal(size=3))
    inertia = lambda: rigid.Inertia(rng.uniform(0.5, 2.0), [0.2, 0.3, 0.4], 0.1 * rng.normal(size=3))
    bodies = {"a": rigid.Body(inertia(), {"in": frame(), "out": frame()}), "b": rigid.Body(inertia(), {"in": frame()})}
    joints = {"base": rigid.Universal("ground.at", "a.in", "y", "z"), "on": joint}
    return rigid.Robot(bodies, joints, frames={"at": frame()}, **options)


def moving(robot, seed):
    """A state with no joint at rest."""
    q, v = trees.random_state(robot, seed)
    return jnp.asarray(q) * 0.5 + jnp.concatenate(list(_rests(robot))) * 0.5, jnp.asarray(v)


def _rests(robot):
    for node in robot.layout.nodes:
        size = node.q[1] - node.q[0]
        yield jnp.zeros(size).at[max(size - 4, 0)].set(1.0 if size >= 4 else 0.0) if size else jnp.zeros(0)


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(JOINTS, ["revolute"]))
def test_a_joint_as_coordinates_and_as_a_constraint_is_the_same(name):
    """Every body's acceleration, in the coordinates of joints and with all joints as constraints; reactions too."""
    tree, whole = pair(JOINTS[name]()), pair(JOINTS[name](), coordinates="absolute")
    q, v = moving(tree, 3)
    of = lambda which, x: {node.joint: x[slice(*getattr(node, which))] for node in tree.layout.nodes}
    q_whole, v_whole = whole.assemble(of("q", q), of("v", v))
    gaps = whole.mechanism().position_error(q_whole, TIME)
    assert_close(gaps, jnp.zeros_like(gaps), atol=1e-12)
    for end in ("a", "b.in"):
        assert_close(whole.position(q_whole, end), tree.position(q, end), atol=1e-12)
        assert_close(whole.velocity(q_whole, v_whole, end), tree.velocity(q, v, end), atol=1e-12)
    motion, of_whole = (
        ukjax.equation_of_motion(r.mechanism(), *state) for r, state in ((tree, (q, v)), (whole, (q_whole, v_whole)))
    )
    for end in ("a", "b.in"):
        change = lambda r, q, v, a, end=end: jax.jvp(
            lambda q, v: r.velocity(q, v, end), (q, v), (r.mechanism().rates(q, v, TIME), a)
        )[1]
        want = change(tree, q, v, motion.acceleration)
        assert_close(change(whole, q_whole, v_whole, of_whole.acceleration), want, atol=1e-9)
    assert int(of_whole.rank) == 12 - tree.layout.n
    here, there = tree.reactions(q, v), whole.reactions(q_whole, v_whole)
    assert list(here) == list(there) == ["base", "on"]
    for joint in here:
        assert_close(here[joint].force, there[joint].force, atol=1e-8)
        assert_close(here[joint].torque, there[joint].torque, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(JOINTS, ["fixed"]))
def test_loops_over_the_nodes_and_one_after_the_other_are_the_same(name):
    forces = {"spring": rigid.Spring("ground", "b", 30.0, 0.2, 1.0), "push": rigid.Load("a.out", (1.0, 2.0, 3.0))}
    robot = pair(JOINTS[name](), forces=forces)
    q, v = moving(robot, 5)
    M = mass_unrolled(posture(robot, q), q.dtype)
    stack = stacked(robot, q, v)
    assert_close(mass_by_loops(stack), M, atol=1e-14)
    assert_close(bias(robot, q, v, large=True), bias(robot, q, v, large=False), atol=1e-12)
    rotor = jnp.cos(jnp.arange(1.0, v.size + 1)) ** 2
    M = M + jnp.diag(rotor)
    assert_close(times_by_loops(stack, v, rotor), M @ v, atol=1e-13)
    x, (pivots, diagonal) = solve_by_loops(stack, v, rotor)
    assert_close(x, jnp.linalg.solve(M, v), rtol=1e-11, atol=1e-12)
    assert_close(diagonal, jnp.diag(M), atol=1e-13)
    assert_close(jnp.prod(pivots), jnp.linalg.det(M), rtol=1e-11)


@pytest.mark.long
def test_every_length_mass_and_inertia_is_one_leaf_with_its_gradient():
    robot = pair(JOINTS["screw"](), coordinates="joint")
    q, v = moving(robot, 4)
    of = lambda mechanism: ukjax.equation_of_motion(mechanism, q, v).acceleration
    mechanism = robot.mechanism()
    forward, differences = jax.jacfwd(of)(mechanism), central_difference(of, mechanism, 1e-6)
    flat = jnp.concatenate([jnp.reshape(x, (3, -1)) for x in jax.tree_util.tree_leaves(forward)], axis=1)
    assert_close(flat, differences, atol=2e-7 * float(np.max(np.abs(differences))))
    backward = jax.jacrev(of)(mechanism)
    same = jax.tree_util.tree_map(lambda x, y: assert_close(x, y, atol=1e-9), backward, forward)
    assert same is not None
