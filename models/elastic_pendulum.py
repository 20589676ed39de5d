"""Elastic pendulum, q = (x [m], y [m], s [m]): a mass on a spring, whose length s is a coordinate without mass.

         o                x^2 + y^2 = s^2; gravity along -y
         /
      k  > l0             force along s: -k (s - l0)
         /
        * m               M = diag(m, m, 0) is singular, [M; A] is not

Straight up and down it is an oscillator about s = l0 + m g / k, of rate sqrt(k / m). Near k / m = 4 g / l0 a motion up
and down becomes a swing, and back.

Source: Vitt & Gorelik (1933), Oscillations of an elastic pendulum, Zh. Tekh. Fiz. 3, 294-307.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

import ukjax


class ElasticPendulum(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    k: Float[Array, ""]  # stiffness [N/m]
    l0: Float[Array, ""]  # length of the spring without a force [m]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, k=29.43, l0=1.0, g=9.81):
        self.m, self.k, self.l0, self.g = (jnp.asarray(x, float) for x in (m, k, l0, g))

    def mass(self, q, t):
        return self.m * jnp.diag(jnp.array([1.0, 1.0, 0.0]))

    def force(self, q, v, t):
        return jnp.stack([0.0 * q[0], -self.m * self.g + 0.0 * q[1], -self.k * (q[2] - self.l0)])

    def spring(self, q, t):
        """phi (1,) [m^2]"""
        return (q[0] ** 2 + q[1] ** 2 - q[2] ** 2)[None]

    def rest(self):
        """s [m] where it hangs."""
        return self.l0 + self.m * self.g / self.k

    def energy(self, q, v, t):
        """[J]"""
        return self.m * (v[0] ** 2 + v[1] ** 2) / 2 + self.m * self.g * q[1] + self.k * (q[2] - self.l0) ** 2 / 2


def scenario(stretch: float = 0.2, aside: float = 0.02, t1: float = 20.0) -> ukjax.Scenario:
    """From rest, pulled down by `stretch` from where it hangs, and `aside` [m]."""
    model = ElasticPendulum()
    y = -(model.rest() + stretch)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.spring)),
        jnp.stack([jnp.asarray(aside, float), y, jnp.hypot(aside, y)]),
        jnp.zeros(3),
        t1,
        name="Elastic pendulum",
        coordinates=("x [m]", "y [m]", "s [m]"),
        invariants={"energy [J]": model.energy},
        formulation=ukjax.formulation.PennestriDeFalco(),
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing({"spring": lambda q, t: jnp.stack([jnp.zeros(2), q[:2]])}, trails=("spring",)),
        source="Vitt & Gorelik (1933)",
    )
