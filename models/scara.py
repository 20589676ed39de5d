"""SCARA robot on a helix, q = (q1, q2, q3 [rad], q4 [m]).

        y
        |        l2     + q3, q4 along z (the tool)
        |     o--------+
        |  l1/  q2         q1, q2, q3 turn about z, measured from the y axis, counter-clockwise
        |   /              q4 lifts the tool: z = l0 + q4
        o--------- x
       q1                  r1, r2: distance of a link's centre of mass from its joint

Helix of the tool: x = 0.05 sin(0.4 pi t), y = 0.35 + 0.05 cos(0.4 pi t), z = 0.02 t [m], with q1 + q2 + q3 = 0 [rad].

Source: Xu, Y. and Liu, R. (2017), Dynamic modeling of SCARA robot based on Udwadia-Kalaba theory, Advances in
Mechanical Engineering 9(10), 1-12; eq. 34 to 36 (M, C, G), 39 (tool), 48 (constraint), 49 (A and b). The paper prints
q2(0) = 55 degrees; only -55 degrees puts the tool near the helix.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


RADIUS = 0.05  # of the helix [m]
CENTRE = 0.35  # y of its axis [m]
RATE = 0.4 * jnp.pi  # angular rate [rad/s]
CLIMB = 0.02  # [m/s]
ARM = 0.5  # height at which the arm is drawn, above the tool at q4 = 0 [m]


class Scara(ukjax.AbstractSystem):
    m1: Float[Array, ""]  # mass of link 1 [kg]
    m2: Float[Array, ""]  # link 2 [kg]
    m3: Float[Array, ""]  # wrist [kg]
    m4: Float[Array, ""]  # tool [kg]
    l0: Float[Array, ""]  # height of the tool at q4 = 0 [m]
    l1: Float[Array, ""]  # length of link 1 [m]
    l2: Float[Array, ""]  # length of link 2 [m]
    r1: Float[Array, ""]  # centre of mass of link 1 [m]
    r2: Float[Array, ""]  # centre of mass of link 2 [m]
    Iz1: Float[Array, ""]  # moment of inertia about z [kg m^2]
    Iz2: Float[Array, ""]
    Iz3: Float[Array, ""]
    Iz4: Float[Array, ""]
    g: Float[Array, ""]  # gravity, along -z [m/s^2]

    def __init__(
        self,
        m1=20.0,
        m2=15.0,
        m3=15.0,
        m4=0.5,
        l0=0.0,
        l1=0.2,
        l2=0.25,
        r1=0.1,
        r2=0.125,
        Iz1=0.27,
        Iz2=0.31,
        Iz3=0.02,
        Iz4=0.0001,
        g=9.81,
    ):
        to = lambda x: jnp.asarray(x, float)
        self.m1, self.m2, self.m3, self.m4 = to(m1), to(m2), to(m3), to(m4)
        self.l0, self.l1, self.l2, self.r1, self.r2 = to(l0), to(l1), to(l2), to(r1), to(r2)
        self.Iz1, self.Iz2, self.Iz3, self.Iz4 = to(Iz1), to(Iz2), to(Iz3), to(Iz4)
        self.g = to(g)

    def inertia(self):
        """alpha, beta, gamma, delta below eq. 34 [kg m^2]; with m4 they are all that the motion depends on."""
        tip = self.m3 + self.m4
        alpha = self.Iz1 + self.r1**2 * self.m1 + self.l1**2 * (self.m2 + tip)
        beta = self.Iz2 + self.Iz3 + self.Iz4 + self.l2**2 * tip + self.m2 * self.r2**2
        gamma = self.l1 * self.l2 * tip + self.l1 * self.m2 * self.r2
        delta = self.Iz3 + self.Iz4
        return alpha, beta, gamma, delta

    def mass(self, q, t):
        alpha, beta, gamma, delta = self.inertia()
        c2 = jnp.cos(q[1])
        zero = jnp.zeros_like(c2)
        return jnp.array(
            [
                [alpha + beta + 2 * gamma * c2, beta + gamma * c2, delta, zero],
                [beta + gamma * c2, beta, delta, zero],
                [delta, delta, delta, zero],
                [zero, zero, zero, self.m4],
            ]
        )

    def coriolis(self, q, v):
        """C(q, v) of eq. 35, shape (4, 4)."""
        _, _, gamma, _ = self.inertia()
        s = gamma * jnp.sin(q[1])
        zero = jnp.zeros_like(s)
        return jnp.array(
            [
                [-s * v[1], -s * (v[0] + v[1]), zero, zero],
                [s * v[0], zero, zero, zero],
                [zero, zero, zero, zero],
                [zero, zero, zero, zero],
            ]
        )

    def gravity(self):
        """G of eq. 36, shape (4,) [N m, N]."""
        zero = jnp.zeros_like(self.m4)
        return jnp.stack([zero, zero, zero, self.m4 * self.g])

    def force(self, q, v, t):
        return -self.coriolis(q, v) @ v - self.gravity()

    def tool(self, q):
        """Position of the tool (3,) [m], eq. 39."""
        s1, c1 = jnp.sin(q[0]), jnp.cos(q[0])
        s12, c12 = jnp.sin(q[0] + q[1]), jnp.cos(q[0] + q[1])
        return jnp.array([-self.l1 * s1 - self.l2 * s12, self.l1 * c1 + self.l2 * c12, self.l0 + q[3]])

    def links(self, q):
        """Column, elbow and wrist (4, 3) [m], from the ground at the height of the arm."""
        elbow = self.l1 * jnp.stack([-jnp.sin(q[0]), jnp.cos(q[0])])
        level = jnp.full((3, 1), ARM) + self.l0
        plan = jnp.stack([jnp.zeros(2), elbow, self.tool(q)[:2]])
        return jnp.concatenate([jnp.zeros((1, 3)), jnp.concatenate([plan, level], axis=1)])

    def tool_force(self, q, force):
        """What the helix does to the tool (3,) [N], from the generalised constraint force (4,)."""
        return jnp.linalg.solve(jax.jacfwd(lambda x: self.on_helix(x, 0.0))(q).T, force)[jnp.array([0, 1, 3])]

    def on_helix(self, q, t):
        """phi of eq. 48: zero while the tool is on the helix with its orientation fixed, (4,) [m, m, rad, m]."""
        x, y, z = self.tool(q) - helix(t)
        return jnp.array([x, y, q[0] + q[1] + q[2], z])

    def joints(self, tool):
        """Coordinates (4,) that put the tool at `tool` (3,) [m] with its orientation fixed, elbow as in the paper."""
        x, y, z = tool
        q2 = -jnp.arccos((x**2 + y**2 - self.l1**2 - self.l2**2) / (2 * self.l1 * self.l2))
        q1 = jnp.arctan2(-x, y) - jnp.arctan2(self.l2 * jnp.sin(q2), self.l1 + self.l2 * jnp.cos(q2))
        return jnp.array([q1, q2, -q1 - q2, z - self.l0])


def helix(t):
    """Wanted position of the tool (3,) [m], eq. 40."""
    return jnp.array([RADIUS * jnp.sin(RATE * t), CENTRE + RADIUS * jnp.cos(RATE * t), CLIMB * t])


STARTS = {
    # Exactly on the helix, by inverse kinematics.
    "consistent": (
        (0.5367501772287113, -0.9581921787462742, 0.42144200151756284, 0.0),
        (-0.05 * RATE / 0.4, 0.0, 0.05 * RATE / 0.4, CLIMB),
    ),
    # The same position with the velocities that the paper prints.
    "printed_velocities": (
        (0.5367501772287113, -0.9581921787462742, 0.42144200151756284, 0.0),
        (-0.157, 0.0001, 0.157, 0.0195),
    ),
    # The printed angles as well, 30, -55 and 24 degrees, with the sign of q2 put right.
    "printed": (
        (jnp.pi / 6, -55 * jnp.pi / 180, 24 * jnp.pi / 180, 0.0),
        (-0.157, 0.0001, 0.157, 0.0195),
    ),
}


def _drawing(scara: Scara, t1: float) -> ukjax.study.Drawing:
    with jax.ensure_compile_time_eval():  # the path is drawn, also where the arm's parameters are known only later
        path = np.asarray(jax.vmap(helix)(jnp.linspace(0.0, t1, max(2, round(12 * t1)))))
    return ukjax.study.Drawing(
        {
            "column": lambda q, t: scara.links(q)[:2],
            "link 1": lambda q, t: scara.links(q)[1:3],
            "link 2": lambda q, t: scara.links(q)[2:],
            "tool": lambda q, t: jnp.stack([scara.links(q)[3], scara.tool(q)]),
        },
        trails=("tool",),
        forces={"of the helix on the tool [N]": lambda q, t, force: (scara.tool(q), scara.tool_force(q, force))},
        scenery={"helix": path},
    )


def scenario(
    start: str = "printed_velocities", damping: float = 0.5, stiffness: float = 200.0, t1: float = 20.0
) -> ukjax.Scenario:
    """The robot on its helix. `start` is consistent, printed_velocities or printed; gains of zero do not stabilise."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    scara = Scara()
    q0, v0 = STARTS[start]
    return ukjax.Scenario(
        ukjax.Mechanism(scara, ukjax.Holonomic(scara.on_helix, ukjax.Baumgarte(damping, stiffness))),
        jnp.array(q0),
        jnp.array(v0),
        t1,
        name="SCARA robot on a helix",
        coordinates=("q1 [rad]", "q2 [rad]", "q3 [rad]", "q4 [m]"),
        observables={
            "tool x, y, z [m]": lambda q, v, t: scara.tool(q),
            "tool error x, y, z [m]": lambda q, v, t: scara.tool(q) - helix(t),
        },
        drawing=_drawing(scara, t1),
        source="Xu & Liu (2017)",
    )


def motors(damping: float = 1.0, stiffness: float = 100.0, t1: float = 10.0) -> ukjax.Scenario:
    """A motor at each joint leads the tool along the helix, from the printed start; what pushes the arm moves it."""
    scara = Scara()
    q0, v0 = STARTS["printed"]
    return ukjax.Scenario(
        ukjax.Mechanism(scara),
        jnp.array(q0),
        jnp.array(v0),
        t1,
        name="SCARA robot with motors",
        coordinates=("q1 [rad]", "q2 [rad]", "q3 [rad]", "q4 [m]"),
        servo=ukjax.Servo(ukjax.Holonomic(scara.on_helix, ukjax.Baumgarte(damping, stiffness)), jnp.eye(4)),
        controls=("motor 1 [N m]", "motor 2 [N m]", "motor 3 [N m]", "motor 4 [N]"),
        observables={"tool error x, y, z [m]": lambda q, v, t: scara.tool(q) - helix(t)},
        drawing=dataclasses.replace(_drawing(scara, t1), forces={}),
        source="Xu & Liu (2017), with the helix as a servo constraint",
    )
