"""Bead on a hoop that is turned about its vertical diameter, q = (x, y, z) [m].

         | W
       .-|-.          on the hoop's sphere,  x^2 + y^2 + z^2 = R^2,
      /  |  \\         and in its plane,      y cos(W t) - x sin(W t) = 0, a row that depends on time
      |  o--|
      \\  |\\ /         theta from the downward vertical: theta'' = (W^2 cos(theta) - g / R) sin(theta)
       '-|-*          It rests at theta = 0 and, where R W^2 > g, at cos(theta) = g / (R W^2) instead.

The motor that turns the hoop does work, so that the energy E is not constant; Jacobi's integral E - W J is, J the
angular momentum about the vertical.

Source: Goldstein, Poole & Safko (2002), Classical Mechanics, chapter 2, exercise 18.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class RotatingHoop(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass of the bead [kg]
    R: Float[Array, ""]  # radius of the hoop [m]
    W: Float[Array, ""]  # its angular rate [rad/s]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, R=1.0, W=5.0, g=9.81):
        self.m, self.R, self.W, self.g = (jnp.asarray(x, float) for x in (m, R, W, g))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, 0.0, -1.0])

    def on_hoop(self, q, t):
        """phi (2,) [m^2, m]: on the sphere, and in the plane of the hoop."""
        sideways = q[1] * jnp.cos(self.W * t) - q[0] * jnp.sin(self.W * t)
        return jnp.stack([q @ q - self.R**2, sideways])

    def at(self, theta, t):
        """The point (3,) [m] of the hoop at the angle theta [rad] from its lowest point."""
        s = jnp.sin(theta)
        return self.R * jnp.stack([s * jnp.cos(self.W * t), s * jnp.sin(self.W * t), -jnp.cos(theta)])

    def theta(self, q, t):
        """[rad]"""
        return jnp.arctan2(q[0] * jnp.cos(self.W * t) + q[1] * jnp.sin(self.W * t), -q[2])

    def jacobi(self, q, v, t):
        """E - W J [J]"""
        return self.m * (v @ v / 2 + self.g * q[2] - self.W * (q[0] * v[1] - q[1] * v[0]))

    def outline(self, t):
        """The hoop (61, 3) [m]."""
        angle = jnp.linspace(0.0, 2 * jnp.pi, 61)
        return self.at(angle, t * jnp.ones_like(angle)).T


def equilibrium(R: float = 1.0, W: float = 5.0, g: float = 9.81) -> float:
    """Where the bead rests on the hoop and returns to [rad]."""
    return float(np.arccos(min(1.0, g / (R * W**2))))


def scenario(W: float = 5.0, theta: float = 0.3, t1: float = 10.0) -> ukjax.Scenario:
    """The hoop turns at `W` [rad/s]; the bead starts at rest on it, at `theta` [rad] from its lowest point."""
    model = RotatingHoop(W=W)
    q0 = model.at(jnp.asarray(theta), jnp.zeros(()))
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.on_hoop)),
        q0,
        model.W * q0[0] * jnp.array([0.0, 1.0, 0.0]),
        t1,
        name="Bead on a rotating hoop",
        coordinates=("x [m]", "y [m]", "z [m]"),
        observables={"theta [rad]": lambda q, v, t: model.theta(q, t)},
        invariants={"Jacobi's integral [J]": model.jacobi},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"hoop": lambda q, t: model.outline(t), "bead": lambda q, t: q[None]},
            trails=("bead",),
            forces={"force of the hoop [N]": lambda q, t, force: (q, force)},
            scenery={"axis": np.array([[0.0, 0.0, -1.3], [0.0, 0.0, 1.3]])},
        ),
        source="Goldstein et al. (2002), chapter 2, exercise 18",
    )
