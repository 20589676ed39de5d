"""Snakeboard, q = (x, y, theta, psi, phi) [m, m, rad, rad, rad]: it moves because its rider turns.

        \\                     /       (x, y): middle of the board; theta: its heading
         \\ -phi              / phi    +-phi: how the wheels' axles are turned, at distance l before and behind
          o======(psi)======o         psi: turn of a rotor on the board, which stands for the rider
        back     rotor     front

    front wheels  -x' sin(theta + phi) + y' cos(theta + phi) + l theta' cos(phi) = 0
    back wheels   -x' sin(theta - phi) + y' cos(theta - phi) - l theta' cos(phi) = 0

Two motors turn rotor and wheels to and fro, as servo constraints; nothing pushes the board. The wheels leave it one
speed u, ahead, with theta' = u tan(phi) / l, for which with D = m + J tan(phi)^2 / l^2 and the whole inertia J

    d/dt (sqrt(D) u) = -Jr psi'' tan(phi) / (l sqrt(D)):  an integral, for psi and phi are given functions of time.

Turned in step, rotor and wheels drive it ahead; out of step it swings and goes nowhere.

Source: Ostrowski, Lewis, Murray & Burdick (1994), Nonholonomic mechanics and locomotion: the snakeboard example. The
numbers are ours.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

import ukjax


class Snakeboard(ukjax.AbstractSystem):
    m: Float[Array, ""]  # of all [kg]
    J: Float[Array, ""]  # of all, about the middle [kg m^2]
    Jr: Float[Array, ""]  # of the rotor [kg m^2]
    Jw: Float[Array, ""]  # of both axles together, which turn against each other [kg m^2]
    l: Float[Array, ""]  # from the middle to an axle [m]

    def __init__(self, m=60.0, J=5.0, Jr=3.0, Jw=0.05, l=0.3):
        self.m, self.J, self.Jr, self.Jw, self.l = (jnp.asarray(x, float) for x in (m, J, Jr, Jw, l))

    def mass(self, q, t):
        zero = jnp.zeros_like(self.m)
        rows = [
            [self.m, zero, zero, zero, zero],
            [zero, self.m, zero, zero, zero],
            [zero, zero, self.J, self.Jr, zero],
            [zero, zero, self.Jr, self.Jr, zero],
            [zero, zero, zero, zero, self.Jw],
        ]
        return jnp.stack([jnp.stack(row) for row in rows])

    def force(self, q, v, t):
        return jnp.zeros(5)

    def wheels(self, q, v, t):
        """psi (2,) [m/s]: how the wheels slide, in front and behind."""
        side = lambda angle: v[1] * jnp.cos(angle) - v[0] * jnp.sin(angle)
        turn = self.l * v[2] * jnp.cos(q[4])
        return jnp.stack([side(q[2] + q[4]) + turn, side(q[2] - q[4]) - turn])

    def along(self, q, ahead, left=0.0):
        """The point (2,) [m] of the board so far ahead and to the left of its middle [m]."""
        way = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        return q[:2] + ahead * way + left * jnp.stack([-way[1], way[0]])

    def axle(self, q, side, half=0.12):
        """Its two ends (2, 2) [m], in front (1) or behind (-1)."""
        angle = q[2] + side * q[4]
        across = half * jnp.stack([-jnp.sin(angle), jnp.cos(angle)])
        middle = self.along(q, side * self.l)
        return jnp.stack([middle + across, middle - across])


class Gait(eqx.Module):
    """What rotor and wheels do: psi = a sin(w t), phi = b sin(w t + lead)."""

    a: Float[Array, ""]  # [rad]
    b: Float[Array, ""]  # [rad]
    w: Float[Array, ""]  # [rad/s]
    lead: Float[Array, ""]  # [rad]

    def __init__(self, a=0.7, b=0.5, w=4.0, lead=0.0):
        self.a, self.b, self.w, self.lead = (jnp.asarray(x, float) for x in (a, b, w, lead))

    def __call__(self, t):
        """(psi, phi) (2,) [rad]."""
        return jnp.stack([self.a * jnp.sin(self.w * t), self.b * jnp.sin(self.w * t + self.lead)])

    def rates(self, t):
        """[rad/s]"""
        return self.w * jnp.stack([self.a * jnp.cos(self.w * t), self.b * jnp.cos(self.w * t + self.lead)])


MOTORS = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0))


class OffGait(eqx.Module):
    """phi (2,) [rad] of the servo."""

    gait: Gait

    def __call__(self, q, t):
        return q[3:] - self.gait(t)


def scenario(lead: float = 0.0, a: float = 0.7, b: float = 0.5, w: float = 4.0, t1: float = 12.0) -> ukjax.Scenario:
    """From rest, but for the rotor and the wheels; the wheels `lead` the rotor by this angle [rad]."""
    model, gait = Snakeboard(), Gait(a, b, w, lead)
    start, rates = gait(0.0), gait.rates(0.0)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Nonholonomic(model.wheels)),
        jnp.concatenate([jnp.zeros(3), start]),
        jnp.concatenate([jnp.zeros(3), rates]),
        t1,
        name="Snakeboard",
        coordinates=("x [m]", "y [m]", "theta [rad]", "psi [rad]", "phi [rad]"),
        servo=ukjax.Servo(ukjax.Holonomic(OffGait(gait), ukjax.Baumgarte.classic(5.0, 5.0)), jnp.array(MOTORS)),
        controls=("rotor [N m]", "wheels [N m]"),
        observables={"speed ahead [m/s]": lambda q, v, t: v[0] * jnp.cos(q[2]) + v[1] * jnp.sin(q[2])},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {
                "board": lambda q, t: jnp.stack([model.along(q, model.l), model.along(q, -model.l)]),
                "front wheels": lambda q, t: model.axle(q, 1.0),
                "back wheels": lambda q, t: model.axle(q, -1.0),
                "rotor": lambda q, t: jnp.stack(
                    [q[:2] + s * 0.15 * jnp.stack([jnp.cos(q[2] + q[3]), jnp.sin(q[2] + q[3])]) for s in (1.0, -1.0)]
                ),
            },
            trails=("rotor",),
        ),
        source="Ostrowski et al. (1994)",
    )
