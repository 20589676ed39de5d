"""Spherical pendulum in Cartesian coordinates q = (x, y, z) [m].

          o            x^2 + y^2 + z^2 = L^2, gravity along -z
         /|\\
      L / | \\          invariants: the energy E and the angular momentum J about the vertical
       /  |  \\
      *   z           the height swings between two turning points z1 < z2:
      (  -+-  )       z = z1 + (z2 - z1) sn^2(s t | k^2)

With e = E / m and j = J / m, L^2 z'^2 = 2 (e - g z) (L^2 - z^2) - j^2 is a cubic of roots z1 < z2 < z3 in z; so
s = sqrt(g (z3 - z1) / 2) / L and k^2 = (z2 - z1) / (z3 - z1). Turning points that coincide are the conical pendulum: it
goes round at the rate sqrt(-g / z).

Source: Whittaker (1937), A Treatise on the Analytical Dynamics of Particles and Rigid Bodies, chapter IV.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ellipj, ellipk

import ukjax


class SphericalPendulum(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    L: Float[Array, ""]  # length [m]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, L=1.0, g=9.81):
        self.m, self.L, self.g = (jnp.asarray(x, float) for x in (m, L, g))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, 0.0, -1.0])

    def rod(self, q, t):
        """phi (1,) [m^2]"""
        return (q @ q - self.L**2)[None]

    def energy(self, q, v, t):
        """E [J]"""
        return self.m * (v @ v / 2 + self.g * q[2])

    def spin(self, q, v, t):
        """J, the angular momentum about the vertical [kg m^2/s]."""
        return self.m * (q[0] * v[1] - q[1] * v[0])


def turning_points(lowest: float, speed: float, L: float = 1.0, g: float = 9.81):
    """z1 <= z2 < z3 [m] of the motion that passes its turning point `lowest` [m] with `speed` [m/s]."""
    e, j = speed**2 / 2 + g * lowest, speed * np.sqrt(L**2 - lowest**2)
    return np.sort(np.roots([2 * g, -2 * e, -2 * g * L**2, 2 * e * L**2 - j**2]).real)


def height(t, lowest: float, speed: float, L: float = 1.0, g: float = 9.81):
    """z (T,) [m] at times t (T,) [s] from the turning point at t = 0."""
    z1, z2, z3 = turning_points(lowest, speed, L, g)
    k2 = (z2 - z1) / (z3 - z1)
    # Where it starts from the upper turning point, it is half a period late.
    late = 0.0 if abs(lowest - z1) < abs(lowest - z2) else ellipk(k2)
    sn, _, _, _ = ellipj(np.sqrt(g * (z3 - z1) / 2) / L * np.asarray(t, float) + late, k2)
    return z1 + (z2 - z1) * sn**2


def conical_speed(angle: float, L: float = 1.0, g: float = 9.81) -> float:
    """The horizontal speed [m/s] at which it keeps its `angle` from the vertical [rad]."""
    return float(np.sqrt(g * L * np.sin(angle) * np.tan(angle)))


def scenario(angle: float = 1.0, speed: float = 1.5, t1: float = 10.0) -> ukjax.Scenario:
    """From `angle` to the vertical [rad], pushed sideways with `speed` [m/s]."""
    model = SphericalPendulum()
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.rod)),
        jnp.array([np.sin(angle), 0.0, -np.cos(angle)]),
        jnp.array([0.0, speed, 0.0]),
        t1,
        name="Spherical pendulum",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants={"energy [J]": model.energy, "angular momentum about z [kg m^2/s]": model.spin},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"rod": lambda q, t: jnp.stack([jnp.zeros(3), q])},
            trails=("rod",),
            forces={"tension [N]": lambda q, t, force: (q, force)},
        ),
        source="Whittaker (1937), chapter IV",
    )
