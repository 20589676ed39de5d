"""Balls with damping and armature where they are constraints, beside closed forms and joint coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close


TIME = jnp.zeros(())


def test_a_body_on_a_ball_by_hand():
    """Its angular velocity is that of the ball: the drag adds to moments, and to the torque."""
    inertia, drag = rigid.Inertia(2.0, (0.3, 0.2, 0.25)), rigid.Drag(0.4, 0.15)
    ball = {"k": rigid.Spherical("ground", "b", drag)}
    robot = rigid.Robot({"b": rigid.Body(inertia)}, ball, coordinates="absolute", gravity=(0.0, 0.0, 0.0))
    q, v = robot.assemble({"k": [0.5, 0.5, -0.5, 0.5]}, {"k": [0.3, -0.2, 0.7]})
    M, Q = jax.jit(lambda q, v: (robot.mass(q, TIME), robot.force(q, v, TIME)))(q, v)
    assert_close(M, jnp.diag(jnp.array([2.0, 2.0, 2.0, 0.45, 0.35, 0.4])), atol=1e-14)
    w = np.array([0.3, -0.2, 0.7])
    gyroscopic = -np.cross(w, np.array([0.3, 0.2, 0.25]) * w)
    assert_close(Q[3:], jnp.asarray(gyroscopic - 0.4 * w), atol=1e-14)


@pytest.mark.long
def test_a_ball_between_frames_of_two_bodies_in_joint_and_in_absolute_coordinates():
    first = rigid.Body(
        rigid.Inertia(1.0, (0.1, 0.2, 0.25), (0.1, 0, -0.3)), {"e": rigid.Frame((0, 0.2, -0.5), (0.3, -0.2, 0.5))}
    )
    second = rigid.Body(
        rigid.Inertia(2.0, (0.3, 0.2, 0.25), (0.1, 0.2, -0.3)), {"s": rigid.Frame((0.1, 0, 0), (0.1, 0.2, 0.3))}
    )
    rng = np.random.default_rng(0)
    turned = rng.normal(size=4)
    state = {"h": 0.4, "k": turned / np.linalg.norm(turned)}, {"h": 1.2, "k": rng.normal(size=3)}

    def found(coordinates):
        joints = {
            "h": rigid.Revolute("ground", "a", "y"),
            "k": rigid.Spherical("a.e", "b.s", rigid.Drag(0.4, 0.15)),
        }
        robot = rigid.Robot({"a": first, "b": second}, joints, coordinates=coordinates)
        q, v = robot.assemble(*state)
        motion = ukjax.equation_of_motion(robot.mechanism(), q, v)
        rates = robot.kinematics.rates(q, v, TIME)
        points = lambda q, v: jnp.concatenate([robot.velocity(q, v, end) for end in ("b", "b.s", "a.e")])
        carried = robot.reactions(q, v)["k"]
        return jax.jvp(points, (q, v), (rates, motion.acceleration))[1], carried, robot.energy(q, v)

    own, absolute = found("joint"), found("absolute")
    for got, want in zip(jax.tree_util.tree_leaves(absolute), jax.tree_util.tree_leaves(own), strict=True):
        assert_close(got, want, atol=1e-10)
