"""Acrobot: two rods, a motor between them only, q = (theta1, theta2) [rad].

      o  pivot        theta1: first rod, from hanging straight down (pi: upright)
      |\\              theta2: second rod, against the first
      | \\ L1
         o  u         M, and the force, by Lagrange's equation from the two energies
        /
       / L2           gravity along -y

Parameters: masses and lengths one, rods slender, as in the literature on its swing-up.

Source: Spong (1995), The swing up control problem for the acrobot, IEEE Control Systems 15(1), 49-55.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Acrobot(eqx.Module):
    m: Float[Array, " 2"]  # masses [kg]
    L: Float[Array, " 2"]  # lengths [m]
    g: Float[Array, ""]  # [m/s^2]

    def __init__(self, m=(1.0, 1.0), L=(1.0, 1.0), g=9.81):
        self.m, self.L, self.g = (jnp.asarray(x, float) for x in (m, L, g))

    def joints(self, q):
        """Pivot, elbow and tip (3, 2) [m]."""
        along = jnp.stack([q[0], q[0] + q[1]])
        rods = self.L[:, None] * jnp.stack([jnp.sin(along), -jnp.cos(along)], axis=1)
        return np.tri(3, 2, -1) @ rods

    def centres(self, q):
        """Of the rods (2, 2) [m]."""
        joints = self.joints(q)
        return (joints[1:] + joints[:-1]) / 2

    def kinetic(self, q, v, t):
        speeds = jax.jvp(self.centres, (q,), (v,))[1]
        turning = jnp.stack([v[0], v[0] + v[1]])
        return jnp.sum(self.m * (jnp.sum(speeds**2, axis=1) + self.L**2 / 12 * turning**2)) / 2

    def potential(self, q, t):
        return self.g * jnp.sum(self.m * self.centres(q)[:, 1])

    def energy(self, q, v, t):
        """[J]"""
        return self.kinetic(q, v, t) + self.potential(q, t)

    def mechanism(self) -> ukjax.Mechanism:
        return ukjax.Mechanism(ukjax.LagrangianSystem(self.kinetic, self.potential))


AT_ELBOW = ((0.0,), (1.0,))
UPRIGHT = (float(np.pi), 0.0)


def scenario(theta1: float = 1.0, theta2: float = 0.5, t1: float = 10.0) -> ukjax.Scenario:
    """Let go at rest, its motor off."""
    model = Acrobot()
    return ukjax.Scenario(
        model.mechanism(),
        jnp.array([theta1, theta2]),
        jnp.zeros(2),
        t1,
        name="Acrobot",
        coordinates=("theta1 [rad]", "theta2 [rad]"),
        invariants={"energy [J]": model.energy},
        drawing=ukjax.study.Drawing(
            {
                "upper rod": lambda q, t: model.joints(q)[:2],
                "lower rod": lambda q, t: model.joints(q)[1:],
            },
            trails=("lower rod",),
            scenery={"pivot": np.zeros((1, 2))},
        ),
        source="Spong (1995)",
    )
