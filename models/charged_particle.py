"""A charged particle on a sphere in a magnetic field, q = (x, y, z) [m].

           ^ B
         .-|-.            x^2 + y^2 + z^2 = R^2; force e v x B, B along z; no gravity
        (  |  ) *->
         '-|-'            invariants: the speed, and P = m (x y' - y x') + e B (x^2 + y^2) / 2

A parallel is gone round at the cyclotron's rate -e B / m, wherever it lies; without a field paths are great circles.

Source: Goldstein (1980), Classical Mechanics, chapter 1.5 (the force) and 8 (the momentum).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class ChargedParticle(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    R: Float[Array, ""]  # radius of the sphere [m]
    eB: Float[Array, ""]  # charge times field [kg/s]

    def __init__(self, m=1.0, R=1.0, eB=3.0):
        self.m, self.R, self.eB = (jnp.asarray(x, float) for x in (m, R, eB))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return self.eB * jnp.stack([v[1], -v[0], jnp.zeros_like(v[2])])

    def sphere(self, q, t):
        """phi (1,) [m^2]"""
        return (q @ q - self.R**2)[None]

    def energy(self, q, v, t):
        """[J]"""
        return self.m * (v @ v) / 2

    def momentum(self, q, v, t):
        """P [kg m^2/s]"""
        return self.m * (q[0] * v[1] - q[1] * v[0]) + self.eB * (q[0] ** 2 + q[1] ** 2) / 2


def outline(R: float) -> dict[str, np.ndarray]:
    """The equator and two meridians, name -> (61, 3) [m]."""
    angle = np.linspace(0.0, 2 * np.pi, 61)
    c, s, none = R * np.cos(angle), R * np.sin(angle), np.zeros(61)
    return {"sphere": np.stack([c, s, none], 1), "x-z": np.stack([c, none, s], 1), "y-z": np.stack([none, c, s], 1)}


def scenario(latitude: float = 0.3, speed: float = 1.0, t1: float = 12.0) -> ukjax.Scenario:
    """From a latitude [rad], to the north with `speed` [m/s]."""
    model = ChargedParticle()
    c, s = np.cos(latitude), np.sin(latitude)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.sphere)),
        jnp.array([c, 0.0, s]),
        speed * jnp.array([-s, 0.0, c]),
        t1,
        name="Charged particle on a sphere",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants={"energy [J]": model.energy, "momentum about the field [kg m^2/s]": model.momentum},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing({"particle": lambda q, t: q[None]}, trails=("particle",), scenery=outline(1.0)),
        source="Goldstein (1980), chapters 1.5 and 8",
    )
