"""Particle on a torus, q = (x, y, z) [m]: without forces its path is a geodesic.

        .-------.           (r - a)^2 + z^2 = b^2 with r^2 = x^2 + y^2; a, b: radii of the ring and of its tube
       (  .---.  )
       ( (     ) *->        invariants: the speed, and Clairaut's x y' - y x' = r^2 phi'
       (  '---'  )
        '-------'           the outermost circle r = a + b is a geodesic, and near it a path swings about it at the
                            rate phi' sqrt((a + b) / b); the innermost, r = a - b, is one that none stays near

Source: Clairaut (1733); do Carmo (1976), Differential Geometry of Curves and Surfaces, section 4-4.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Torus(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    a: Float[Array, ""]  # radius of the ring [m]
    b: Float[Array, ""]  # of its tube [m]

    def __init__(self, m=1.0, a=1.0, b=0.4):
        self.m, self.a, self.b = (jnp.asarray(x, float) for x in (m, a, b))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return jnp.zeros_like(q)

    def surface(self, q, t):
        """phi (1,) [m^2]"""
        return ((jnp.hypot(q[0], q[1]) - self.a) ** 2 + q[2] ** 2 - self.b**2)[None]

    def energy(self, q, v, t):
        """[J]"""
        return self.m * (v @ v) / 2

    def clairaut(self, q, v, t):
        """[m^2/s]"""
        return q[0] * v[1] - q[1] * v[0]


def outline(a: float, b: float) -> dict[str, np.ndarray]:
    """Circles round the ring and round the tube, name -> (61, 3) [m]."""
    angle = np.linspace(0.0, 2 * np.pi, 61)
    c, s, none = np.cos(angle), np.sin(angle), np.zeros(61)
    ring = lambda r: np.stack([r * c, r * s, none], 1)
    tubes = {
        f"tube {i}": np.stack([(a + b * c) * np.cos(p), (a + b * c) * np.sin(p), b * s], 1)
        for i, p in enumerate(np.linspace(0.0, 2 * np.pi, 9)[:-1])
    }
    return {"torus": ring(a + b), "inner": ring(a - b)} | tubes


def scenario(heading: float = 0.6, speed: float = 1.0, t1: float = 20.0) -> ukjax.Scenario:
    """From the outermost circle, at `heading` [rad] from it, with `speed` [m/s]."""
    model = Torus()
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.surface)),
        jnp.stack([model.a + model.b, jnp.zeros(()), jnp.zeros(())]),
        speed * jnp.array([0.0, np.cos(heading), np.sin(heading)]),
        t1,
        name="Geodesic on a torus",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants={"energy [J]": model.energy, "Clairaut's integral [m^2/s]": model.clairaut},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"particle": lambda q, t: q[None]}, trails=("particle",), scenery=outline(1.0, 0.4)
        ),
        source="Clairaut (1733)",
    )
