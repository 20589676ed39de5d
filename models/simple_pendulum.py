"""Simple pendulum in Cartesian coordinates q = (x, y) [m]: A01 of the IFToMM benchmark library.

      o--- x       x^2 + y^2 = L^2, released at rest from (-1, 0)
       \\ L
        * m        gravity along -y

Source: IFToMM Technical Committee for Multibody Dynamics, Library of Computational Benchmark Problems, A01. Accepted
there: an energy error below 5e-5 J over 10 s.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from . import closed_form


class Pendulum(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    L: Float[Array, ""]  # length [m]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, L=1.0, g=9.81):
        self.m, self.L, self.g = (jnp.asarray(x, float) for x in (m, L, g))

    def mass(self, q, t):
        return self.m * jnp.eye(2)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, -1.0])

    def rod(self, q, t):
        """phi (1,) [m^2]"""
        return (q @ q - self.L**2)[None]

    def energy(self, q, v):
        """[J]"""
        return self.m * (v @ v / 2 + self.g * q[1])


def exact(t):
    """(x, y) (T, 2) [m] at times t (T,) [s], for the parameters of the benchmark."""
    psi, _ = closed_form.pendulum(t, -np.pi / 2, 0.0, np.sqrt(9.81))
    return np.stack([np.sin(psi), -np.cos(psi)], axis=1)


def scenario(t1: float = 10.0) -> ukjax.Scenario:
    model = Pendulum()
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.rod)),
        jnp.array([-1.0, 0.0]),
        jnp.zeros(2),
        t1,
        name="Simple pendulum (IFToMM A01)",
        coordinates=("x [m]", "y [m]"),
        invariants={"energy [J]": lambda q, v, t: model.energy(q, v)},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"rod": lambda q, t: jnp.stack([jnp.zeros(2), q])},
            trails=("rod",),
            forces={"tension [N]": lambda q, t, force: (q, force)},
        ),
        source="IFToMM benchmark A01",
    )
