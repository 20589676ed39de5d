"""Six-joint arm, like the UR5: base, shoulder, elbow and three hinges of the wrist.

          elbow o======o              each joint turns about the z of the frame before (Denavit & Hartenberg):
               //      | wrist        by its angle, then `D` along z, `A` along x and `TWIST` about x
      shoulder o       o---o tool
               |base

Moments of inertia, which the maker does not state, are those of cylinders as long as the links.

Source: Universal Robots, parameters for kinematics and dynamics of the UR5 (DH parameters, masses, centres of mass).
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


JOINTS = ("base", "shoulder", "elbow", "wrist1", "wrist2", "wrist3")
D = (0.089159, 0.0, 0.0, 0.10915, 0.09465, 0.0823)  # [m]
A = (0.0, -0.425, -0.39225, 0.0, 0.0, 0.0)  # [m]
TWIST = (np.pi / 2, 0.0, 0.0, np.pi / 2, -np.pi / 2, 0.0)  # [rad]
MASSES = (3.7, 8.393, 2.275, 1.219, 1.219, 0.1879)  # [kg]
# Seen from the frame at the end of the link [m].
CENTERS = (
    (0.0, -0.02561, 0.00193),
    (0.2125, 0.0, 0.11336),
    (0.15, 0.0, 0.0265),
    (0.0, -0.0018, 0.01634),
    (0.0, 0.0018, 0.01634),
    (0.0, 0.0, -0.001159),
)
RADIUS = 0.05  # of the cylinders [m]


def robot(payload: float = 0.0, damping: float = 0.0) -> rigid.Robot:
    """With a point mass `payload` [kg] at the tool, and `damping` in every joint [N m s/rad]."""
    bodies, joints, before = {}, {}, "ground"
    for i, name in enumerate(JOINTS):
        end = rigid.Frame((A[i], 0.0, D[i]), (TWIST[i], 0.0, 0.0))
        body = "tool" if i == 5 else f"link{i + 1}"
        center = end.pose.point(jnp.array(CENTERS[i]))
        inertia = _cylinder(MASSES[i], np.array([A[i], 0.0, D[i]]), center)
        if body == "tool":
            inertia = _loaded(inertia, payload, end.position)
        bodies[body] = rigid.Body(inertia, {"end": end})
        effort = rigid.Effort(damping=damping) if damping else None
        joints[name] = rigid.Revolute(before, body, "z", effort)
        before = f"{body}.end"
    return rigid.Robot(bodies, joints, motors={name: rigid.Motor(name) for name in JOINTS})


def _cylinder(mass: float, way: np.ndarray, center: jnp.ndarray) -> rigid.Inertia:
    """As long as `way` (3,), along it."""
    length = np.linalg.norm(way)
    along = np.outer(way, way) / length**2
    moments = mass * ((RADIUS**2 / 4 + length**2 / 12) * (np.eye(3) - along) + RADIUS**2 / 2 * along)
    return rigid.Inertia(mass, moments, center)


def _loaded(inertia: rigid.Inertia, payload: float, place: jnp.ndarray) -> rigid.Inertia:
    """With a point mass at a place (3,)."""
    m = inertia.mass + payload
    way = place - inertia.center
    reduced = inertia.mass * payload / m
    spread = way @ way * jnp.eye(3) - way[:, None] * way[None]
    return rigid.Inertia(m, inertia.moments + reduced * spread, inertia.center + payload / m * way)


START = {"base": 0.4, "shoulder": -1.2, "elbow": 1.4, "wrist1": -1.6, "wrist2": -1.4, "wrist3": 0.0}


def scenario(radius: float = 0.1, turns: float = 0.5, t1: float = 2.0) -> ukjax.Scenario:
    """The tool goes round a circle of `radius` [m] in the vertical plane, `turns` a second, and keeps its direction."""
    arm = robot()
    w = 2 * np.pi * turns
    q, v = arm.assemble(START)
    home, R = arm.position(q, "tool.end"), arm.pose(q, "tool.end").R

    def off(q, t):
        found = arm.pose(q, "tool.end")
        way = jnp.stack([jnp.zeros_like(t), radius * jnp.sin(w * t), radius * (1 - jnp.cos(w * t))])
        turned = R.T @ found.R
        skewed = jnp.stack([turned[2, 1] - turned[1, 2], turned[0, 2] - turned[2, 0], turned[1, 0] - turned[0, 1]])
        return jnp.concatenate([found.p - home - way, skewed / 2])

    q, v = ukjax.assemble(arm.mechanism({"path": ukjax.Holonomic(off)}), q, v)
    return arm.scenario(
        q,
        v,
        t1,
        name="Six-joint arm",
        servo=ukjax.Servo(ukjax.Holonomic(off, ukjax.Baumgarte.classic(20.0, 20.0)), arm.actuation()),
        controls=[f"{name} [N m]" for name in JOINTS],
        observables={"tool x, y, z [m]": lambda q, v, t: arm.position(q, "tool.end")},
        drawing=arm.drawing(trails=["tool"]),
        source="Universal Robots, UR5",
    )
