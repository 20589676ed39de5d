"""Atwood's machine, q = (y1 [m], y2 [m], theta [rad]): two masses on a rope over a pulley that has inertia.

          ( o )  J, R          y1, y2: heights of the masses; theta: turn of the pulley, towards the first mass
          |   |                the rope neither stretches nor slips: y1 + R theta = c1, y2 - R theta = c2
       m1 *   |
              * m2             y1'' = -a, y2'' = a,  a = (m1 - m2) g / (m1 + m2 + J / R^2)
                               tensions T1 = m1 (g - a), T2 = m2 (g + a), (T1 - T2) R = J a / R

Two constraints that have names: `multipliers` are the tensions on either side, which differ by what turns the pulley.

Source: Atwood (1784), A Treatise on the Rectilinear Motion and Rotation of Bodies; any textbook.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

import ukjax


class Atwood(ukjax.AbstractSystem):
    m1: Float[Array, ""]  # masses [kg]
    m2: Float[Array, ""]
    J: Float[Array, ""]  # of the pulley [kg m^2]
    R: Float[Array, ""]  # its radius [m]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m1=1.2, m2=1.0, J=0.01, R=0.1, g=9.81):
        self.m1, self.m2, self.J, self.R, self.g = (jnp.asarray(x, float) for x in (m1, m2, J, R, g))

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m1, self.m2, self.J]))

    def force(self, q, v, t):
        return -self.g * jnp.stack([self.m1, self.m2, jnp.zeros_like(self.J)])

    def first(self, q, t):
        """phi (1,) [m]: the rope from the first mass to the pulley."""
        return (q[0] + self.R * q[2])[None]

    def second(self, q, t):
        """phi (1,) [m]: from the second."""
        return (q[1] - self.R * q[2])[None]

    def acceleration(self):
        """a [m/s^2]"""
        return (self.m1 - self.m2) * self.g / (self.m1 + self.m2 + self.J / self.R**2)

    def energy(self, q, v, t):
        """[J]"""
        return v @ (self.mass(q, t) @ v) / 2 + self.g * (self.m1 * q[0] + self.m2 * q[1])


def scenario(m1: float = 1.2, m2: float = 1.0, t1: float = 1.5) -> ukjax.Scenario:
    """From rest."""
    model = Atwood(m1, m2)
    rope = {"first": ukjax.Holonomic(model.first), "second": ukjax.Holonomic(model.second)}
    hangs = lambda x, y: jnp.stack([jnp.stack([x, 0.0 * y]), jnp.stack([x, y - 1.5])])
    return ukjax.Scenario(
        ukjax.Mechanism(model, rope),
        jnp.zeros(3),
        jnp.zeros(3),
        t1,
        name="Atwood's machine",
        coordinates=("y1 [m]", "y2 [m]", "theta [rad]"),
        invariants={"energy [J]": model.energy},
        drawing=ukjax.study.Drawing(
            {
                "first mass": lambda q, t: hangs(-model.R, q[0]),
                "second mass": lambda q, t: hangs(model.R, q[1]),
                "pulley": lambda q, t: model.R * jnp.stack([jnp.zeros(2), jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2])])]),
            },
        ),
        source="Atwood (1784)",
    )
