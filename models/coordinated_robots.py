"""Two planar three-link robots that carry one object, q = (theta1, ..., theta5) [rad]: redundantly actuated.

             theta2  o-----3-----o  theta4        link 3 is the object; theta_i from the horizontal
                2  /               \\  4           gravity along -y
                 /                   \\
                o                     o           u1, u6: torques at the bases
              1  \\                   / 5           u2, u5: at the elbows, u3, u4: at the grips
                  \\                 /
        u1 -->  ---o--- L = 3 l ---o---  <-- u6

Closed chain: sum l_i cos(theta_i) = L, sum l_i sin(theta_i) = 0. Wanted of the object's centre, with T = 2 pi:
x3 = 1.5 l, y3 = l/2 (1 - cos t), theta3 = 0. Three rows, six actuators, five coordinates, three degrees of freedom.

Source: Liu, X. et al. (2015), A systematic approach for designing analytical dynamics and servo control of constrained
mechanical systems, IEEE/CAA Journal of Automatica Sinica 2(4), 382-393; section V. Its table of initial angles is lost;
at rest at t = 0 on the wanted path they are (60, -60, 0, 60, -60) degrees. (58) lacks a minus sign.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


# Torque of each actuator on each link, eq. 70.
ACTUATION = (
    (1.0, -1.0, 0.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, -1.0, 0.0, 0.0, 0.0),
    (0.0, 0.0, 1.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, 0.0, -1.0, 1.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, -1.0, 1.0),
)

# How much of each link lies between the left base and the centre of each link. A product and not a cumulative sum: for
# one row of that, JAX 0.10.2 compiles a wrong gradient on the CPU.
UP_TO_CENTRE = np.tri(5) - np.eye(5) / 2


class CoordinatedRobots(eqx.Module):
    """The chain of five links and its energies."""

    m: Float[Array, " 5"]  # masses [kg]
    I: Float[Array, " 5"]  # moments of inertia about the centres of mass [kg m^2]
    l: Float[Array, " 5"]  # lengths [m]
    g: Float[Array, ""]  # [m/s^2]
    L: Float[Array, ""]  # distance of the bases [m]

    def __init__(self, m=(1.0,) * 5, I=(1.0,) * 5, l=(1.0,) * 5, g=9.8, L=3.0):
        self.m, self.I, self.l, self.g, self.L = (jnp.asarray(x, float) for x in (m, I, l, g, L))

    def centres(self, q):
        """Positions of the centres of mass (5, 2) [m]."""
        return UP_TO_CENTRE @ (self.l[:, None] * jnp.stack([jnp.cos(q), jnp.sin(q)], axis=1))

    def kinetic(self, q, v, t):
        velocities = UP_TO_CENTRE @ ((self.l * v)[:, None] * jnp.stack([-jnp.sin(q), jnp.cos(q)], axis=1))
        return jnp.sum(self.m[:, None] * velocities**2) / 2 + jnp.sum(self.I * v**2) / 2

    def potential(self, q, t):
        return self.g * jnp.sum(self.m * self.centres(q)[:, 1])

    def closure(self, q, t):
        """phi (2,) [m] of the closed chain."""
        return jnp.stack([jnp.sum(self.l * jnp.cos(q)) - self.L, jnp.sum(self.l * jnp.sin(q))])

    def joints(self, q):
        """Positions of the joints from the left base to the right one (6, 2) [m]."""
        return np.tri(6, 5, -1) @ (self.l[:, None] * jnp.stack([jnp.cos(q), jnp.sin(q)], axis=1))

    def base_force(self, q, force):
        """What the right base does to the chain (2,) [N], from the generalised constraint force (5,)."""
        # The closure is the place of the chain's end, so the force there is the multiplier of its rows.
        rows = jax.jacfwd(self.closure)(q, 0.0)
        return jnp.linalg.lstsq(rows.T, force)[0]

    def object(self, q):
        """x3, y3 [m], theta3 [rad] (3,)."""
        x, y = self.centres(q)[2]
        return jnp.stack([x, y, q[2]])

    def wanted(self, t):
        """The same, as it should be, eq. 64."""
        l = self.l[0]
        return jnp.stack([1.5 * l, l / 2 * (1 - jnp.cos(t)), jnp.zeros_like(t)])

    def off_path(self, q, t):
        """phi (3,) [m, m, rad] of the servo."""
        return self.object(q) - self.wanted(t)

    def mechanism(self) -> ukjax.Mechanism:
        """The closed chain."""
        return ukjax.Mechanism(ukjax.LagrangianSystem(self.kinetic, self.potential), ukjax.Holonomic(self.closure))

    def servo(self, alpha=0.0, beta=0.0, **options) -> ukjax.Servo:
        """Raises and lowers the object; further options are those of `ukjax.Servo`."""
        path = ukjax.Holonomic(self.off_path, ukjax.Baumgarte.classic(alpha, beta))
        return ukjax.Servo(path, np.array(ACTUATION), **options)


START = (jnp.pi / 3, -jnp.pi / 3, 0.0, jnp.pi / 3, -jnp.pi / 3)


def scenario(
    reading: Literal["least_norm", "self_consistent"] = "least_norm",
    alpha: float = 5.0,
    beta: float = 5.0,
    t1: float = 2 * float(np.pi),
) -> ukjax.Scenario:
    """The object rises and returns. `reading` is least_norm or self_consistent: see `ukjax.Servo`."""
    robots = CoordinatedRobots()
    link = lambda i: lambda q, t: robots.joints(q)[i : i + 2]
    return ukjax.Scenario(
        robots.mechanism(),
        jnp.array(START),
        jnp.zeros(5),
        t1,
        name="Two coordinated robots",
        coordinates=tuple(f"theta{i} [rad]" for i in range(1, 6)),
        servo=robots.servo(alpha, beta, reading=reading),
        controls=tuple(f"u{i} [N m]" for i in range(1, 7)),
        observables={"object x3, y3 [m]": lambda q, v, t: robots.object(q)[:2]},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {
                **{f"link {i + 1}": link(i) for i in range(5)},
                "centre of the object": lambda q, t: robots.object(q)[None, :2],
            },
            trails=("centre of the object",),
            forces={"on the right base's joint [N]": lambda q, t, f: (robots.joints(q)[5], robots.base_force(q, f))},
            scenery={"bases": np.array([[0.0, 0.0], [3.0, 0.0]])},
        ),
        source="Liu et al. (2015), section V",
    )
