"""Two masses and a spring, q = (x1, x2) [m]: an underactuated servo.

      F -> [m1]--/\\/\\/\\--[m2]        spring: stiffness k, natural length l; no friction
            x1            x2         F acts on m1 only; wanted: x2 - x1 = 2 l

On the constraint F = -(1 + m1 / m2) k (x2 - x1 - l), which m1 alone must bear: not the force of an ideal constraint, of
which both masses would bear a share. The spring then pulls both masses with k l / m2 to the left, for ever faster.

Source: Liu, X. et al. (2015), A systematic approach for designing analytical dynamics and servo control of constrained
mechanical systems, IEEE/CAA Journal of Automatica Sinica 2(4), 382-393; eq. 36 to 47. The numbers are ours.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class TwoMassSpring(ukjax.AbstractSystem):
    m1: Float[Array, ""]  # [kg]
    m2: Float[Array, ""]  # [kg]
    k: Float[Array, ""]  # stiffness [N/m]
    l: Float[Array, ""]  # natural length [m]

    def __init__(self, m1=2.0, m2=3.0, k=50.0, l=0.5):
        self.m1, self.m2, self.k, self.l = (jnp.asarray(x, float) for x in (m1, m2, k, l))

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m1, self.m2]))

    def force(self, q, v, t):
        pull = self.k * (q[1] - q[0] - self.l)
        return jnp.stack([pull, -pull])

    def stretched(self, q, t):
        """phi (1,) [m]: zero at twice the natural length."""
        return (q[1] - q[0] - 2 * self.l)[None]

    def exact_control(self, q):
        """F [N], eq. 47."""
        return -(1 + self.m1 / self.m2) * self.k * (q[1] - q[0] - self.l)


ACTUATION = ((1.0,), (0.0,))

# How it is drawn: the outline of a mass, x and y [m], and the spring, along its length (1) and y [m].
BLOCK = 0.1 * np.array([[-1.0, 1.0, 1.0, -1.0, -1.0], [-1.0, -1.0, 1.0, 1.0, -1.0]])
COIL = np.stack([np.linspace(0.0, 1.0, 13), 0.05 * np.array([0, *([1, -1] * 5), 0, 0])])

STARTS = {
    "consistent": ((0.0, 1.0), (1.0, 1.0)),
    "inconsistent": ((0.0, 1.1), (1.0, 0.9)),
}


def servo(model: TwoMassSpring, alpha: float = 0.0, beta: float = 0.0) -> ukjax.Servo:
    """Keeps the spring at twice its length; an error e obeys e'' + 2 alpha e' + beta^2 e = 0."""
    return ukjax.Servo(ukjax.Holonomic(model.stretched, ukjax.Baumgarte.classic(alpha, beta)), np.array(ACTUATION))


def scenario(start: str = "consistent", alpha: float = 5.0, beta: float = 5.0, t1: float = 4.0) -> ukjax.Scenario:
    """`start` is consistent or inconsistent; gains of zero do not stabilise."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    model = TwoMassSpring()
    q0, v0 = STARTS[start]
    return ukjax.Scenario(
        ukjax.Mechanism(model),
        jnp.array(q0),
        jnp.array(v0),
        t1,
        name="Two-mass spring",
        coordinates=("x1 [m]", "x2 [m]"),
        servo=servo(model, alpha, beta),
        controls=("F [N]",),
        observables={"length of the spring [m]": lambda q, v, t: q[1] - q[0]},
        drawing=ukjax.study.Drawing(
            {
                "m1": lambda q, t: jnp.stack([q[0] + BLOCK[0], BLOCK[1]], axis=1),
                "m2": lambda q, t: jnp.stack([q[1] + BLOCK[0], BLOCK[1]], axis=1),
                "spring": lambda q, t: jnp.stack([q[0] + (q[1] - q[0]) * COIL[0], COIL[1]], axis=1),
            }
        ),
        source="Liu et al. (2015), eq. 36 to 47",
    )
