"""What rolls and glides: closed forms, reactions, models by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import chaplygin_sleigh
from ukjax import rigid

from ..helpers import assert_close, central_difference, long


TIME = jnp.zeros(())
TILT, G, R = 0.3, 9.81, 0.2


def ramp(moment, mass=1.5, axis=None, **options):
    """A wheel or a ball on a plane that falls off towards x."""
    body = rigid.Body(rigid.Inertia(mass, moment))
    joints = {"free": rigid.Free("ground", "ball"), "roll": rigid.Rolling("ground.ramp", "ball", R, axis, **options)}
    return rigid.Robot({"ball": body}, joints, frames={"ramp": rigid.Frame((0.0, 0.0, 0.0), (0.0, TILT, 0.0))})


def placed(robot, speed, edge=0.0):
    """On the plane, rolling down at a speed."""
    down, out = jnp.array([np.cos(TILT), 0.0, -np.sin(TILT)]), jnp.array([np.sin(TILT), 0.0, np.cos(TILT)])
    quaternion = rigid.Frame((0.0, 0.0, 0.0), (0.0, TILT, 0.0)).quaternion
    q = jnp.concatenate([(R + edge) * out, quaternion])
    return q, jnp.array([speed, 0.0, 0.0, 0.0, speed / (R + edge), 0.0]), down, out


@pytest.mark.long
@pytest.mark.parametrize(("axis", "edge"), [long(None, 0.0), long("y", 0.0), ("y", 0.05)])
def test_down_a_ramp_in_closed_form(axis, edge):
    mass, arm = 1.5, R + edge
    moment = 2 / 5 * mass * arm**2
    robot = ramp(moment, mass, axis, edge=edge)
    q, v, down, out = placed(robot, 0.7, edge)
    mechanism = robot.mechanism()
    assert_close(mechanism.position_error(q, TIME), jnp.zeros(1), atol=1e-14)
    assert_close(mechanism.velocity_error(q, v, TIME), jnp.zeros(3), atol=1e-14)
    motion = ukjax.equation_of_motion(mechanism, q, v)
    assert int(motion.rank) == 3
    pose = robot.pose(q, "ball")
    at_center = pose.R @ (motion.acceleration[:3] + jnp.cross(v[3:], v[:3]))
    assert_close(at_center, 5 / 7 * G * np.sin(TILT) * down, atol=1e-12)
    # The plane carries the weight across it, and holds back two sevenths of it along.
    force = pose.R @ robot.reactions(q, v)["roll"].force
    assert_close(force, mass * G * (np.cos(TILT) * out - 2 / 7 * np.sin(TILT) * down), atol=1e-11)
    torque = robot.reactions(q, v)["roll"].torque
    assert_close(torque, jnp.array([0.0, arm * 2 / 7 * mass * G * np.sin(TILT), 0.0]), atol=1e-11)


def test_a_planar_wheel_rolls_as_one_in_space():
    mass, moment = 1.5, 0.04
    joints = {"free": rigid.Planar("ground", "wheel"), "roll": rigid.Rolling("ground", "wheel", R, "z", "y")}
    wheel = rigid.Body(rigid.Inertia(mass, [0.03, 0.03, moment]))
    gravity = (G * np.sin(TILT), -G * np.cos(TILT), 0.0)
    robot = rigid.Robot({"wheel": wheel}, joints, gravity=gravity, planar=True)
    q, v = jnp.array([0.0, R, 0.5]), jnp.array([0.7, 0.0, -0.7 / R])
    assert_close(robot.mechanism().velocity_error(q, v, TIME), jnp.zeros(2), atol=1e-15)
    motion = ukjax.equation_of_motion(robot.mechanism(), q, v)
    want = G * np.sin(TILT) / (1 + moment / (mass * R**2))
    assert_close(motion.acceleration, jnp.array([want, 0.0, -want / R]), atol=1e-12)


@pytest.mark.long
def test_a_ball_on_a_turntable_goes_round_at_two_sevenths_of_its_rate():
    rate, radius = 3.0, 0.1
    bodies = {"table": rigid.Body(rigid.Inertia(1.0, 0.1)), "ball": rigid.Body(rigid.Inertia.sphere(0.2, radius))}
    joints = {
        "turn": rigid.Revolute("ground", "table"),
        "free": rigid.Free("ground", "ball"),
        "roll": rigid.Rolling("table", "ball", radius, None),
    }
    robot = rigid.Robot(bodies, joints)
    steady = {"drive": ukjax.Holonomic(lambda q, t: (q[0] - rate * t)[None])}
    mechanism = robot.mechanism(steady)
    # At rest, the ball is taken along by the table: it goes round a centre that is not the table's.
    rates = {"turn": rate, "free": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
    q, v = robot.assemble({"free": [0.3, 0.0, radius, 1.0, 0.0, 0.0, 0.0]}, rates)
    q, v = ukjax.assemble(mechanism, q, v)
    ts = jnp.linspace(0.0, 4.0, 9)
    run = ukjax.simulate(mechanism, q, v, ts, rtol=1e-10, atol=1e-10, projection=ukjax.Projection())
    at = jax.vmap(lambda q: robot.position(q, "ball"))(run.q)
    speed = robot.velocity(q, v, "ball")[:2]
    w = 2 / 7 * rate
    # Velocities turn by w t, so that places go round a circle.
    turned = lambda t: jnp.stack([jnp.sin(w * t), jnp.cos(w * t) - 1]) / w
    s, c = turned(ts)
    x = at[0, 0] + s * speed[0] + c * speed[1]
    y = at[0, 1] - c * speed[0] + s * speed[1]
    assert_close(at, jnp.stack([x, y, jnp.full(9, radius)], axis=1), atol=1e-7)


@pytest.mark.parametrize("planar", [True, False])
def test_a_knife_edge_is_the_sleigh_by_hand(planar):
    model = chaplygin_sleigh.ChaplyginSleigh()
    body = rigid.Body(rigid.Inertia(model.m, model.I), {"edge": rigid.Frame(jnp.array([-1.0, 0.0, 0.0]) * model.a)})
    joints = {"plane": rigid.Planar("ground", "sleigh"), "edge": rigid.KnifeEdge("ground", "sleigh.edge")}
    robot = rigid.Robot({"sleigh": body}, joints, gravity=(0.0, 0.0, 0.0), planar=planar)
    by_hand = ukjax.Mechanism(model, ukjax.Nonholonomic(model.slip))
    q, v = model.state(jnp.asarray(0.7), jnp.asarray(-1.0), jnp.asarray(0.3))
    assert robot.mechanism().named_constraints.keys() == {"edge slip"}
    ours, theirs = (ukjax.equation_of_motion(m, q, v, reactions=True) for m in (robot.mechanism(), by_hand))
    assert_close(ours.acceleration, theirs.acceleration, atol=1e-12)
    force = robot.reactions(q, v)["edge"].force
    across = jnp.array([-jnp.sin(q[2]), jnp.cos(q[2])]) @ theirs.constraint_force[:2]
    assert_close(force, jnp.array([0.0, 1.0, 0.0]) * across, atol=1e-11)


@pytest.mark.long
def test_gradients_of_what_rolls_at_rest_and_moving():
    robot = ramp(0.03, 1.5, "y", edge=0.02)
    # Leaning, so that everything of the contact counts.
    q = jnp.array([0.1, 0.2, 0.3, 0.9, 0.3, -0.2, 0.1])
    for v in (jnp.zeros(6), jnp.array([0.3, -0.2, 0.5, 1.0, -2.0, 0.7])):
        of = lambda mechanism, v=v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration
        forward = jax.jacfwd(of)(robot.mechanism())
        flat = jnp.concatenate([jnp.reshape(x, (6, -1)) for x in jax.tree_util.tree_leaves(forward)], axis=1)
        assert_close(flat, central_difference(of, robot.mechanism(), 1e-6), atol=1e-6)
        backward = jax.jacrev(of)(robot.mechanism())
        jax.tree_util.tree_map(lambda x, y: assert_close(x, y, atol=1e-9), backward, forward)


BODY = rigid.Body(rigid.Inertia(1.0, 0.1))
FREE = {"free": rigid.Free("ground", "b")}


def on(**joints):
    return rigid.Robot({"b": BODY}, {**FREE, **joints})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rigid.Rolling("ground", "b", 0.0), "radius must be positive"),
        (lambda: rigid.Rolling("ground", "b", 0.1, edge=-0.1), "edge must not be negative"),
        (lambda: rigid.Rolling("ground", "b", 0.1, (0.0, 0.0, 0.0)), "axis of the Rolling from 'ground' to 'b'"),
        (lambda: rigid.Rolling("ground", "b", 0.1, normal="up"), 'normal must be "x", "y", "z"'),
        (lambda: rigid.KnifeEdge("ground", "b", (0.0, 0.0, 0.0)), "direction of the KnifeEdge"),
        (lambda: rigid.Robot({"b": BODY}, {"w": rigid.Rolling("ground", "b", 0.1)}), "'b' hang on nothing"),
        (lambda: on(**{"w": rigid.Rolling("ground", "b", 0.1), "w slip": rigid.Fixed("ground", "b")}), "'w slip' is"),
        (
            lambda: rigid.Robot(
                {"b": BODY}, {"free": rigid.Planar("ground", "b"), "w": rigid.Rolling("ground", "b", 0.1)}, planar=True
            ),
            "joints\\['w'\\], a Rolling, leads out of the plane",
        ),
        (
            lambda: rigid.Robot(
                {"b": BODY},
                {"A": rigid.Revolute("ground", "b")},
                gears={"A": rigid.Gear("A", None, 0.0)},
            ),
            "gears has 'A', but a joint already has that name",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(make, match):
    with pytest.raises(ValueError, match=match):
        make()
