"""Disc that rolls on a plane, q = (x, y, z [m], psi, alpha, phi [rad]): its centre, heading, lean and roll.

       e3 ^   e1            e1 = (cos psi, sin psi, 0), the heading
        .-|-./              e2 = cos(alpha) (-sin psi, cos psi, 0) + sin(alpha) z, the axle
       (  o--)--> e2        e3 = e1 x e2, from the contact P = r - R e3 to the centre r
        '-.-'
    ------P----------       w = psi' z + alpha' e1 + phi' e2

One holonomic row keeps the contact in the plane, z = R cos(alpha); two nonholonomic ones keep it from slipping: the
horizontal part of r' - w x R e3 is zero. Only where the disc lies flat, alpha = +-pi / 2, is the mass matrix singular.

It rolls round a circle with even lean if, A and D its moments of inertia about axle and diameter, W = psi' and
w2 = phi' + W sin(alpha), (A + m R^2) w2 W cos(alpha) = D W^2 sin(alpha) cos(alpha) - m g R sin(alpha); its centre
then moves with the speed R w2.

`from_parts` is the same disc as a body that rolls, with a unit quaternion and the angular velocity seen from the disc.

Source: Appell (1900) and Korteweg (1900); Bloch (2003), Nonholonomic Mechanics and Control, section 1.5.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax
from ukjax import rigid


class RollingDisc(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    R: Float[Array, ""]  # radius [m]
    A: Float[Array, ""]  # moment of inertia about the axle [kg m^2]
    D: Float[Array, ""]  # about a diameter [kg m^2]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, R=0.5, A=0.125, D=0.0625, g=9.81):
        self.m, self.R, self.A, self.D, self.g = (jnp.asarray(x, float) for x in (m, R, A, D, g))

    def mass(self, q, t):
        s, c = jnp.sin(q[4]), jnp.cos(q[4])
        zero = jnp.zeros_like(s)
        turning = [
            [self.A * s**2 + self.D * c**2, zero, self.A * s],
            [zero, self.D, zero],
            [self.A * s, zero, self.A],
        ]
        block = jnp.stack([jnp.stack(row) for row in turning])
        off = jnp.zeros((3, 3))
        return jnp.concatenate(
            [jnp.concatenate([self.m * jnp.eye(3), off], axis=1), jnp.concatenate([off, block], axis=1)]
        )

    def force(self, q, v, t):
        # From T = (A (phi' + psi' sin)^2 + D (alpha'^2 + psi'^2 cos^2)) / 2, by Lagrange.
        s, c = jnp.sin(q[4]), jnp.cos(q[4])
        heading, lean, roll = v[3:]
        twist = 2 * (self.A - self.D) * s * c * heading
        zero = jnp.zeros_like(s)
        return jnp.stack(
            [
                zero,
                zero,
                -self.m * self.g,
                -lean * (twist + self.A * c * roll),
                heading * (twist / 2 + self.A * c * roll),
                -self.A * c * lean * heading,
            ]
        )

    def frame(self, q):
        """e1, e2, e3, each (3,)."""
        (cp, sp), (ca, sa) = ((jnp.cos(x), jnp.sin(x)) for x in (q[3], q[4]))
        zero = jnp.zeros_like(cp)
        return (
            jnp.stack([cp, sp, zero]),
            jnp.stack([-ca * sp, ca * cp, sa]),
            jnp.stack([sa * sp, -sa * cp, ca]),
        )

    def contact(self, q):
        """P (3,) [m]"""
        return q[:3] - self.R * self.frame(q)[2]

    def touching(self, q, t):
        """phi (1,) [m]"""
        return (q[2] - self.R * jnp.cos(q[4]))[None]

    def slip(self, q, v, t):
        """psi (2,) [m/s]: the horizontal velocity of the disc's material at the contact, along e1 and across."""
        forward, _, _ = self.frame(q)
        across = jnp.stack([-forward[1], forward[0]])
        return jnp.stack(
            [
                v[:2] @ forward[:2] - self.R * (v[5] + v[3] * jnp.sin(q[4])),
                v[:2] @ across + self.R * v[4] * jnp.cos(q[4]),
            ]
        )

    def energy(self, q, v, t):
        """[J]"""
        return v @ self.mass(q, t) @ v / 2 + self.m * self.g * q[2]

    def state(self, alpha, rates):
        """q and v with the contact at the origin, heading along x, for `rates` psi', alpha', phi' (3,) [rad/s]."""
        q = jnp.zeros(6).at[4].set(alpha)
        _, e2, e3 = self.frame(q)
        q = q.at[:3].set(self.R * e3)
        along = jnp.array([1.0, 0.0, 0.0]) * (rates[2] + rates[0] * jnp.sin(alpha))
        return q, jnp.concatenate([self.R * (along - rates[1] * e2), rates])

    def circling(self, alpha, heading):
        """phi' [rad/s] with which the disc goes round a circle at lean `alpha` [rad] and psi' = `heading` [rad/s]."""
        s, c = jnp.sin(alpha), jnp.cos(alpha)
        turn = (self.D * heading**2 * c - self.m * self.g * self.R) * s
        return turn / ((self.A + self.m * self.R**2) * heading * c) - heading * s

    def rim(self, q):
        """The outline (41, 3) [m]."""
        angle = jnp.linspace(0.0, 2 * jnp.pi, 41) + q[5]
        e1, _, e3 = self.frame(q)
        return q[None, :3] + self.R * (jnp.sin(angle)[:, None] * e1[None] + jnp.cos(angle)[:, None] * e3[None])


def from_parts(model: RollingDisc | None = None) -> rigid.Robot:
    """A free body on a `Rolling`, its axle along y; its mass matrix is never singular."""
    m = RollingDisc() if model is None else model
    inertia = rigid.Inertia(m.m, jnp.stack([m.D, m.A, m.D]))
    joints = {"free": rigid.Free("ground", "disc"), "rim": rigid.Rolling("ground", "disc", m.R, "y")}
    disc = rigid.Body(inertia, shapes=rigid.Shape.circle(float(m.R), "y"))
    return rigid.Robot({"disc": disc}, joints, gravity=jnp.stack([0.0, 0.0, -m.g]))


def parts_state(model: RollingDisc, q, v):
    """The state of `from_parts` that is (q, v) of the model."""
    e1, e2, e3 = model.frame(q)
    c, s = jnp.cos(q[5]), jnp.sin(q[5])
    axes = jnp.stack([c * e1 - s * e3, e2, s * e1 + c * e3], axis=1)
    turning = v[3] * jnp.array([0.0, 0.0, 1.0]) + v[4] * e1 + v[5] * e2
    pose = rigid.Frame(q[:3], axes)
    return jnp.concatenate([q[:3], jnp.asarray(pose.quaternion)]), jnp.concatenate([axes.T @ v[:3], axes.T @ turning])


def _drawing(model: RollingDisc) -> ukjax.study.Drawing:
    square = 1.5 * np.array([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]])
    return ukjax.study.Drawing(
        {
            "rim": lambda q, t: model.rim(q),
            "spoke": lambda q, t: jnp.stack([q[:3], model.rim(q)[0]]),
            "contact": lambda q, t: model.contact(q)[None],
        },
        trails=("contact",),
        forces={"force of the plane [N]": lambda q, t, force: (model.contact(q), force[:3])},
        scenery={"plane": square},
    )


def scenario(lean: float = 0.3, heading: float = -1.0, nudge: float = 0.5, t1: float = 6.0) -> ukjax.Scenario:
    """Round a circle at `lean` [rad] and psi' = `heading` [rad/s], but for a `nudge` of alpha' [rad/s]."""
    model = RollingDisc()
    roll = model.circling(jnp.asarray(lean, float), jnp.asarray(heading, float))
    q0, v0 = model.state(jnp.asarray(lean, float), jnp.stack([jnp.asarray(heading), jnp.asarray(nudge), roll]))
    return ukjax.Scenario(
        ukjax.Mechanism(model, (ukjax.Holonomic(model.touching), ukjax.Nonholonomic(model.slip))),
        q0,
        v0,
        t1,
        name="Rolling disc",
        coordinates=("x [m]", "y [m]", "z [m]", "psi [rad]", "alpha [rad]", "phi [rad]"),
        observables={"contact x, y [m]": lambda q, v, t: model.contact(q)[:2]},
        invariants={"energy [J]": model.energy},
        projection=ukjax.Projection(),
        drawing=_drawing(model),
        source="Appell (1900); Bloch (2003), section 1.5",
    )
