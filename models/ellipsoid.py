"""Particle on an ellipsoid, q = (x, y, z) [m]: without gravity its path is a geodesic.

           .-----.              x^2 / a^2 + y^2 / b^2 + z^2 / c^2 = 1, semi-axes a, b, c
        .-'   *-> '-.
       (             )          invariants without gravity: the speed, and Joachimsthal's integral
        '-.       .-'           (x^2 / a^4 + y^2 / b^4 + z^2 / c^4) (x'^2 / a^2 + y'^2 / b^2 + z'^2 / c^2)
           '-----'

With gravity g along -z, of these only the energy remains.

Source: Joachimsthal (1843) and Jacobi (1839); Arnold (1989), Mathematical Methods of Classical Mechanics, appendix 15.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Ellipsoid(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    axes: Float[Array, " 3"]  # semi-axes a, b, c [m]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, axes=(1.5, 1.0, 0.7), g=0.0):
        self.m, self.axes, self.g = (jnp.asarray(x, float) for x in (m, axes, g))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, 0.0, -1.0])

    def surface(self, q, t):
        """phi (1,)"""
        return (jnp.sum((q / self.axes) ** 2) - 1)[None]

    def energy(self, q, v, t):
        """[J]"""
        return self.m * (v @ v / 2 + self.g * q[2])

    def joachimsthal(self, q, v, t):
        """[1/s^2]; constant without gravity."""
        return jnp.sum((q / self.axes**2) ** 2) * jnp.sum((v / self.axes) ** 2)

    def start(self, longitude, latitude, heading, speed):
        """q and v at parametric `longitude` and `latitude` [rad]; `heading` [rad] from the parallel, `speed` [m/s]."""
        (cu, su), (cv, sv) = ((jnp.cos(x), jnp.sin(x)) for x in (longitude, latitude))
        east = self.axes * jnp.stack([-su, cu, jnp.zeros_like(su)])
        north = self.axes * jnp.stack([-sv * cu, -sv * su, cv])
        way = jnp.cos(heading) * east / jnp.linalg.norm(east) + jnp.sin(heading) * north / jnp.linalg.norm(north)
        return self.axes * jnp.stack([cv * cu, cv * su, sv]), speed * way / jnp.linalg.norm(way)


def outline(axes) -> dict[str, np.ndarray]:
    """The three principal ellipses, name -> (61, 3) [m]."""
    angle = np.linspace(0.0, 2 * np.pi, 61)
    ring = np.stack([np.cos(angle), np.sin(angle), np.zeros(61)], axis=1)
    turns = {"x-y": (0, 1, 2), "y-z": (2, 0, 1), "x-z": (0, 2, 1)}
    return {f"ellipse {plane}": ring[:, list(order)] * np.asarray(axes)[None] for plane, order in turns.items()}


def scenario(heading: float = 0.6, speed: float = 1.0, g: float = 0.0, t1: float = 30.0) -> ukjax.Scenario:
    """From the long axis, at `heading` [rad] from the equator with `speed` [m/s]; `g` [m/s^2] along -z."""
    model = Ellipsoid(g=g)
    q0, v0 = model.start(*(jnp.asarray(x, float) for x in (0.0, 0.0, heading, speed)))
    geodesic = {"Joachimsthal's integral [1/s^2]": model.joachimsthal} if g == 0.0 else {}
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.surface)),
        q0,
        v0,
        t1,
        name="Geodesic on an ellipsoid" if g == 0.0 else "Particle on an ellipsoid",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants={"energy [J]": model.energy, **geodesic},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"particle": lambda q, t: q[None]},
            trails=("particle",),
            forces={"force of the surface [N]": lambda q, t, force: (q, force)},
            scenery=outline(model.axes),
        ),
        source="Joachimsthal (1843); Arnold (1989), appendix 15",
    )
