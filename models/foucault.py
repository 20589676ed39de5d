"""Foucault's pendulum, q = (x, y, z) [m] as seen from the turning ground.

          o  ^ w               x^2 + y^2 + z^2 = L^2; the ground turns about the vertical at the rate w
         /|  |
      L / |                    force: gravity, Coriolis' -2 m w e_z x v, and the centrifugal m w^2 (x, y, 0)
       *  |
                               invariants: Jacobi's integral E - w J, and J = m (x y' - y x') + m w (x^2 + y^2)

Seen from outside it is the spherical pendulum, whatever the ground does: so here its motion is that one, turned back by
w t, and the plane in which a pendulum swings turns at the rate -w. On the Earth w is 7.29e-5 rad/s times the sine of
the latitude; here it is larger, to be seen.

Source: Foucault (1851), Comptes rendus 32, 135-138.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Foucault(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    L: Float[Array, ""]  # length [m]
    w: Float[Array, ""]  # rate of the ground about the vertical [rad/s]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, L=1.0, w=0.1, g=9.81):
        self.m, self.L, self.w, self.g = (jnp.asarray(x, float) for x in (m, L, w, g))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        level = jnp.array([1.0, 1.0, 0.0])
        coriolis = 2 * self.w * jnp.stack([v[1], -v[0], jnp.zeros_like(v[2])])
        return self.m * (coriolis + self.w**2 * level * q - self.g * jnp.array([0.0, 0.0, 1.0]))

    def rod(self, q, t):
        """phi (1,) [m^2]"""
        return (q @ q - self.L**2)[None]

    def jacobi(self, q, v, t):
        """E - w J [J]"""
        return self.m * (v @ v / 2 + self.g * q[2] - self.w**2 * (q[0] ** 2 + q[1] ** 2) / 2)

    def spin(self, q, v, t):
        """J, the angular momentum about the vertical, seen from outside [kg m^2/s]."""
        return self.m * (q[0] * v[1] - q[1] * v[0] + self.w * (q[0] ** 2 + q[1] ** 2))


def scenario(angle: float = 0.4, w: float = 0.1, t1: float = 16.0) -> ukjax.Scenario:
    """Let go at `angle` to the vertical [rad], at rest as seen from the ground."""
    model = Foucault(w=w)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.rod)),
        jnp.array([np.sin(angle), 0.0, -np.cos(angle)]),
        jnp.zeros(3),
        t1,
        name="Foucault's pendulum",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants={"Jacobi's integral [J]": model.jacobi, "angular momentum [kg m^2/s]": model.spin},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing({"rod": lambda q, t: jnp.stack([jnp.zeros(3), q])}, trails=("rod",)),
        source="Foucault (1851)",
    )
