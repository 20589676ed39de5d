"""Closing loops from far away: by closed forms, first-order conditions, and the search that `ukjax.assemble` makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import ukjax
from ukjax import rigid

from ..helpers import assert_close, long
from ..inside import chain_of, in_tree, rotation_vector


TIME = jnp.zeros(())
BOX = rigid.Inertia.box(1.0, (1.0, 0.1, 0.2), (0.5, 0.0, 0.0))
BAR = rigid.Body(BOX, {"tip": rigid.Frame((1.0, 0.0, 0.0)), "turned": rigid.Frame((1.0, 0.1, 0.0), (0.3, -0.2, 0.5))})


def at(x, y, z=0.0):
    return {"end": rigid.Frame((x, y, z))}


def elbow(end, **options):
    """Two bars of 1 m in a plane, whose tip a ball holds at an end."""
    joints = {
        "A": rigid.Revolute("ground", "a"),
        "B": rigid.Revolute("a.tip", "b"),
        "hold": rigid.Spherical("ground.end", "b.tip"),
    }
    return rigid.Robot({"a": BAR, "b": BAR}, joints, frames=at(*end), **options)


KINDS = {
    "weld": rigid.Fixed("a.turned", "c.tip"),
    "hinge": rigid.Revolute("a.turned", "c.tip", (0.3, 1.0, -0.2)),
    "slide": rigid.Prismatic("a.turned", "c.tip", "y"),
    "screw": rigid.Screw("a.turned", "c.tip", 0.1, (0.3, 1.0, -0.2)),
    "cylinder": rigid.Cylindrical("a.turned", "c.tip", "x"),
    "cross": rigid.Universal("a.turned", "c.tip", "x", "z"),
    "plane": rigid.Planar("a.turned", "c.tip", "y"),
    "ball": rigid.Spherical("a.turned", "c.tip"),
    "rod": rigid.Distance("a.turned", "c.tip", 0.7),
}


def mixed(loop, **options):
    """One of each motion in a tree, and a loop between two branches."""
    bodies = dict.fromkeys("abcdefgh", BAR)
    joints = {
        "float": rigid.Free("ground", "h"),
        "ball": rigid.Spherical("h.turned", "a"),
        "screw": rigid.Screw("a.tip", "b.tip", 0.2, (1.0, 2.0, 0.0)),
        "slide": rigid.Prismatic("b.turned", "d", "z"),
        "cross": rigid.Universal("ground", "e", "x", "y"),
        "cylinder": rigid.Cylindrical("e.turned", "f", (0.0, 1.0, 1.0)),
        "plane": rigid.Planar("f", "g.turned", "y"),
        "hinge": rigid.Revolute("g.tip", "c.turned", (0.1, 0.2, 1.0)),
    }
    return rigid.Robot(bodies, joints | {"loop": loop}, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_the_slopes_of_their_differences_and_the_mass_is_the_robots(kind):
    """At a state far from closed, where errors are angles, by displacements of every kind of motion."""
    robot = mixed(KINDS[kind])
    chain, rng = chain_of(robot), np.random.default_rng(1)
    q = chain.retract(np.asarray(in_tree(robot, {}, "coordinates")), 0.6 * rng.normal(size=chain.n))
    state = chain.state(q)
    M = np.asarray(robot.mass(jnp.asarray(q), TIME))
    np.testing.assert_allclose(chain.mass(state), M, atol=1e-12)
    J, h = chain.rows(q, state)[1], 1e-6
    for i, step in enumerate(h * np.eye(chain.n)):
        ends = [chain.retract(q, sign * step) for sign in (1, -1)]
        ahead, back = (chain.rows(end, chain.state(end))[0]["loop"] for end in ends)
        np.testing.assert_allclose(J[:, i], (ahead - back) / (2 * h), atol=2e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_curvatures_are_those_of_differences_of_the_slopes(kind):
    """Of weighted errors far from closed, also of a gear that is not linear, by a displacement of every motion."""
    robot = mixed(KINDS[kind], gears={"cam": rigid.Gear("hinge", "slide", coefficients=(0.1, 0.3, 0.4, -0.2))})
    chain, rng = chain_of(robot), np.random.default_rng(1)
    q = chain.retract(np.asarray(in_tree(robot, {}, "coordinates")), 0.6 * rng.normal(size=chain.n))
    d, h = 0.3 * rng.normal(size=chain.n), 1e-5

    def rows(d):
        end = chain.retract(q, d)
        return chain.rows(end, chain.state(end))[1] @ chain.slope_of_retraction(d)

    weights = rng.normal(size=len(rows(d)))
    H = [weights @ (rows(d + step) - rows(d - step)) / (2 * h) for step in h * np.eye(chain.n)]
    np.testing.assert_allclose(chain.curvature(q, d, weights), H, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["weld", "cross", "screw"])
def test_what_is_closed_meets_the_robots_own_rows_and_is_nearest(kind):
    """Errors as `simulate` reports them; of the speeds, M (w - v) in the row space of A."""
    robot = mixed(KINDS[kind])
    start = {"cross": (0.3, -0.4), "hinge": 0.8}
    found = robot.assemble(start, {"slide": 1.0, "ball": (0.3, 0.2, -1.0)})
    mechanism, M = robot.mechanism(), np.asarray(robot.mass(in_tree(robot, start, "coordinates"), TIME))
    error = mechanism.position_error(found.q, TIME)
    assert_close(error, jnp.zeros_like(error), atol=1e-13)
    A = np.asarray(mechanism.terms(found.q, found.v, TIME).A)
    pull = M @ np.asarray(found.moved_v)
    np.testing.assert_allclose(A @ np.asarray(found.v), 0.0, atol=1e-12)
    np.testing.assert_allclose(pull - A.T @ np.linalg.lstsq(A.T, pull)[0], 0.0, atol=1e-10)
    # No closed state nearby is nearer.
    chain = chain_of(robot)
    for seed in range(5):
        step = 1e-3 * np.random.default_rng(seed).normal(size=chain.n)
        aside = chain.retract(np.asarray(found.q), step - np.linalg.pinv(A) @ (A @ step))
        other = {node.joint: aside[slice(*node.q)] for node in robot.layout.nodes}
        assert far(robot, start, robot.assemble(other).q) > far(robot, start, found.q)


def far(robot, start, q):
    """d^T M d from a start to a state."""
    M, d = np.asarray(robot.mass(in_tree(robot, start, "coordinates"), TIME)), []
    given = np.asarray(in_tree(robot, start, "coordinates"))
    for node in robot.layout.nodes:
        before, after = given[slice(*node.q)], np.asarray(q)[slice(*node.q)]
        if len(before) == node.v[1] - node.v[0]:
            d += list(after - before)
            continue
        (R, p), (S, r) = (robot.joints[node.joint].motion.pose(jnp.asarray(x)) for x in (before, after))
        turned = Rotation.from_matrix(np.asarray(R).T @ np.asarray(S)).as_rotvec()
        d += [*(np.asarray(R).T @ np.asarray(r - p) if len(before) == 7 else []), *turned]
    return np.array(d) @ M @ np.array(d)


@pytest.mark.long
def test_it_is_the_state_that_the_compiled_search_finds():
    """The elbow in space, whose bars have several ways to the end: from nearby both find the nearest."""
    robot = elbow((1.2, 0.4))
    q, v = jnp.array([-0.2, 1.3]), jnp.array([1.0, 0.0])
    want = ukjax.assemble(robot.mechanism(), q, v)
    got = robot.assemble({"A": q[0], "B": q[1]}, {"A": 1.0})
    assert_close(got.q, want.q, atol=1e-11)
    assert_close(got.v, want.v, atol=1e-11)
    assert_close(got.moved_q, got.q - q, atol=1e-14)


def test_a_weld_half_a_turn_off_is_open_and_closed_by_turning_it():
    """Two equal bars on balls at one point, half a turn apart: each goes a quarter."""
    joints = {
        "A": rigid.Spherical("ground", "a"),
        "B": rigid.Spherical("ground", "b"),
        "weld": rigid.Fixed("a", "b"),
    }
    robot = rigid.Robot({"a": BAR, "b": BAR}, joints)
    found = robot.assemble({"B": (0.0, 0.0, 0.0, 1.0)})
    assert_close(robot.pose(found.q, "a").R, robot.pose(found.q, "b").R, atol=1e-12)
    moved = jnp.abs(found.moved_q)
    assert_close(moved[:4], moved[jnp.array([7, 6, 5, 4])], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"planar": True}, long({"planar": True, "coordinates": "absolute"}), long({})],
    ids=["plane", "absolute", "space"],
)
@pytest.mark.parametrize("loop", ["weld", long("slide")])
def test_the_compiled_search_finds_no_loop_closed_half_a_turn_off(options, loop):
    """Two bars on hinges at one point, half a turn apart, to be welded or slid: sines of angles are zero there."""
    of = {"weld": rigid.Fixed("a", "b"), "slide": rigid.Prismatic("a", "b", "x")}[loop]
    joints = {"A": rigid.Revolute("ground", "a"), "B": rigid.Revolute("ground", "b"), "loop": of}
    robot = rigid.Robot({"a": BAR, "b": BAR}, joints, **options)
    q, v = robot.assemble({"A": 0.2, "B": 0.2})
    start = q.at[-1].add(np.pi - 0.01)
    found = ukjax.assemble(robot.mechanism(), start, v)
    assert_close(robot.pose(found.q, "a").R, robot.pose(found.q, "b").R, atol=1e-12)
    assert jnp.abs(found.moved_q[-1]) > 1.0


def test_rotation_vectors_are_those_of_scipy_also_near_half_a_turn():
    rng = np.random.default_rng(0)
    for angle in (0.0, 1e-7, 1e-3, 1.0, 2.5, np.pi - 1e-3, np.pi - 1e-6, np.pi - 1e-9):
        axis = rng.normal(size=3)
        w = angle * axis / np.linalg.norm(axis)
        R = jnp.asarray(Rotation.from_rotvec(w).as_matrix())
        assert_close(rotation_vector(R), jnp.asarray(w), atol=2e-9 if angle > 3 else 1e-14)
        slope = jax.jacfwd(lambda d, R=R: rotation_vector(R @ matrix_of(d)))(jnp.zeros(3))
        assert jnp.all(jnp.isfinite(slope))
        # A turn about the same axis adds to the angle.
        assert_close(slope @ (axis / np.linalg.norm(axis)), jnp.asarray(axis / np.linalg.norm(axis)), atol=1e-5)


def matrix_of(w):
    K = jnp.array([[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]])
    return jnp.eye(3) + K


def test_a_start_from_which_no_step_leads_on_is_left():
    """Both bars straight out along x, and the end at 1 m on x: errors change along x only to second order."""
    robot = elbow((1.0, 0.0))
    found = robot.assemble()
    assert_close(jnp.abs(found.q), jnp.array([np.pi / 3, 2 * np.pi / 3]), atol=1e-9)


def test_bounds_select_the_branch_and_are_met():
    robot = elbow((1.0, 0.5))
    free, bounded = robot.assemble({"A": 0.0, "B": 0.5}), robot.assemble({"B": 0.5}, bounds={"B": (-3.0, -0.1)})
    assert free.q[1] > 0.0
    assert_close(bounded.q[1], -free.q[1], atol=1e-10)
    again = elbow((1.0, 0.5), ranges={"B": (-3.0, -0.1)})
    assert_close(again.assemble({"B": 0.5}, bounds=again.ranges).q, bounded.q, atol=0.0)
    with pytest.raises(ValueError, match=r"ranges\['B'\] must be the least and the greatest"):
        elbow((1.0, 0.5), ranges={"B": (1.0, 0.1)})
    with pytest.raises(RuntimeError, match="'hold' is open by .* Within bounds: 'B'"):
        robot.assemble(bounds={"B": (0.0, 0.1)})
    with pytest.raises(ValueError, match="keep holds 'A' at 0.3, outside of its bounds, 0.5 to 1"):
        robot.assemble({"A": 0.3}, keep="A", bounds={"A": (0.5, 1.0)})
    for wrong in ({"A": ("low", "high")}, {"hold": (0.0, 1.0)}, {"A": (1.0, 0.0)}, {"A": 1.0}, {"none": (0.0, 1.0)}):
        with pytest.raises(ValueError, match=r"bounds\['\w+'\] must be the least and the greatest"):
            robot.assemble(bounds=wrong)
    with pytest.raises(TypeError, match="bounds must be a mapping"):
        robot.assemble(bounds=[0.0, 1.0])
    with pytest.raises(ValueError, match="bounds are for robots in joint coordinates"):
        jax.jit(lambda a: elbow((1.0, 0.5)).assemble({"A": a}, bounds={"B": (0.0, 1.0)}).q)(0.1)


def test_what_cannot_be_closed_is_said_with_its_distance_and_direction():
    """Parallel hinges, whose ends lie 10 mm apart along the axes."""
    with pytest.raises(RuntimeError, match=r"'hold' is open by 10 mm, along \(0, 0, -1\) seen from the ground\.$"):
        elbow((1.0, 0.5, 0.01)).assemble({"A": 0.1, "B": 0.3})
    with pytest.raises(RuntimeError, match=r"'hold' is open by 1000 mm, along \(-1, 0, 0\).* Kept: 'A'"):
        elbow((3.0, 0.0)).assemble({"A": 0.0, "B": 0.0}, keep=["A"])
    tilted = rigid.Frame((0.0, 0.0, 0.0), (0.1, 0.0, 0.0))
    joints = {"A": rigid.Revolute("ground", "a"), "weld": rigid.Fixed("ground.end", "a")}
    with pytest.raises(RuntimeError, match=r"'weld' turned by 5.73 deg, about \(-1, 0, 0\)"):
        rigid.Robot({"a": BAR}, joints, frames={"end": tilted}).assemble()


def test_gears_and_kept_speeds():
    joints = {"A": rigid.Revolute("ground", "a"), "B": rigid.Revolute("a.tip", "b")}
    robot = rigid.Robot({"a": BAR, "b": BAR}, joints, gears={"g": rigid.Gear("A", "B", [0.1, 2.0, 0.5])})
    found = robot.assemble({"A": 1.0}, {"A": 3.0}, keep=["A"])
    assert_close(found.q[0], jnp.asarray(1.0), atol=0.0)
    assert_close(0.1 + 2.0 * found.q[1] + 0.5 * found.q[1] ** 2, jnp.asarray(1.0), atol=1e-13)
    assert_close(found.v, jnp.array([3.0, 3.0 / (2.0 + found.q[1])]), atol=1e-13)
    with pytest.raises(RuntimeError, match="the gear 'g' by"):
        robot.assemble({"A": -4.0, "B": 0.0}, keep=["A"])


@pytest.mark.parametrize("tilt", [5e-17, 2e-14, 1e-3])
def test_a_tilt_that_nothing_can_turn_counts_unless_it_is_rounding_errors(tilt):
    """A square of hinges about z, one of which is tilted: rows of its tilt move with no joint."""
    end = rigid.Frame((1.0, 0.0, 0.0))
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.1), {"e": end}) for name in "ab"}
    bodies["c"] = rigid.Body(rigid.Inertia(1.0, 0.1), {"e": rigid.Frame((1.0, 0.0, 0.0), (tilt, 0.0, 0.0))})
    joints = {
        "a": rigid.Revolute("ground", "a"),
        "b": rigid.Revolute("a.e", "b"),
        "c": rigid.Revolute("ground.at", "c"),
        "loop": rigid.Revolute("b.e", "c.e"),
    }
    mechanism = rigid.Robot(bodies, joints, frames={"at": end}).mechanism()
    start = [1.5, -1.4, 1.6]
    if tilt > 1e-8:
        with pytest.raises(RuntimeError, match="the position of 'loop' .*row"):
            ukjax.assemble(mechanism, start, [0.0, 0.0, 0.0])
        return
    q, v = ukjax.assemble(mechanism, start, [1.0, 0.0, 0.0])
    assert_close(q, jnp.array([q[0], -q[0], q[0]]), atol=1e-14)
    assert_close(v, jnp.array([v[0], -v[0], v[0]]), atol=1e-14)
