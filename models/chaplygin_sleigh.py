"""Chaplygin sleigh, q = (x, y [m], theta [rad]) of its centre of mass: a knife edge that cannot slip sideways.

       y |      *  centre of mass, at distance a ahead of the edge
         |     / theta
         |    /                 no slip of the edge:  -x' sin(theta) + y' cos(theta) - a theta' = 0
         |   |  edge            on a level plane, otherwise free
         o-------- x

With u the speed of the edge along itself, w = theta' and J = I + m a^2: u' = a w^2, J w' = -m a u w. Its energy
(m u^2 + J w^2) / 2 = m V^2 / 2 is constant, and from u = V tanh(s), w = V sqrt(m / J) / cosh(s) with
s = s0 + a V m t / J follows theta: nonholonomic, it conserves energy and yet comes to rest turning, gliding straight
ahead with its centre of mass in front.

Source: Chaplygin (1911); Bloch (2003), Nonholonomic Mechanics and Control, section 1.7.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class ChaplyginSleigh(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    I: Float[Array, ""]  # moment of inertia about the centre of mass [kg m^2]
    a: Float[Array, ""]  # from the edge to the centre of mass [m]

    def __init__(self, m=2.0, I=0.3, a=0.4):
        self.m, self.I, self.a = (jnp.asarray(x, float) for x in (m, I, a))

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m, self.m, self.I]))

    def force(self, q, v, t):
        return jnp.zeros(3)

    def slip(self, q, v, t):
        """psi (1,) [m/s]: sideways speed of the edge."""
        return (-v[0] * jnp.sin(q[2]) + v[1] * jnp.cos(q[2]) - self.a * v[2])[None]

    def ahead(self, q, distance):
        """The point (2,) [m] at `distance` [m] ahead of the centre of mass."""
        return q[:2] + distance * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])

    def energy(self, q, v, t):
        """[J]"""
        return v @ self.mass(q, t) @ v / 2

    def state(self, theta, u, w):
        """q and v for the edge at the origin, its direction theta [rad], speed u [m/s] and angular rate w [rad/s]."""
        c, s = jnp.cos(theta), jnp.sin(theta)
        q = jnp.stack([self.a * c, self.a * s, theta])
        return q, jnp.stack([u * c - self.a * w * s, u * s + self.a * w * c, w])


def exact(t, theta0: float, u0: float, w0: float, m: float = 2.0, I: float = 0.3, a: float = 0.4):
    """theta, u, w (T,) [rad, m/s, rad/s] at times t (T,) [s] from those at t = 0, for w0 > 0."""
    J = I + m * a**2
    V = np.sqrt(u0**2 + J * w0**2 / m)
    rate = a * V * m / J
    s0 = np.arctanh(u0 / V)
    s = s0 + rate * np.asarray(t, float)
    turned = lambda s: 2 * np.arctan(np.tanh(s / 2))  # the integral of 1 / cosh
    theta = theta0 + np.sqrt(J / m) / a * (turned(s) - turned(s0))
    return theta, V * np.tanh(s), V * np.sqrt(m / J) / np.cosh(s)


START = (0.0, -1.0, 0.3)  # theta [rad], u [m/s], w [rad/s]: backwards, and about to turn round


def scenario(u: float = START[1], w: float = START[2], t1: float = 6.0) -> ukjax.Scenario:
    """The edge starts with speed `u` [m/s] along itself and the angular rate `w` [rad/s]."""
    model = ChaplyginSleigh()
    q0, v0 = model.state(jnp.asarray(START[0]), jnp.asarray(u, float), jnp.asarray(w, float))
    edge = lambda q: model.ahead(q, -model.a)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Nonholonomic(model.slip)),
        q0,
        v0,
        t1,
        name="Chaplygin sleigh",
        coordinates=("x [m]", "y [m]", "theta [rad]"),
        invariants={"energy [J]": model.energy},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {
                "edge": lambda q, t: jnp.stack([model.ahead(q, -1.3 * model.a), model.ahead(q, -0.7 * model.a)]),
                "body": lambda q, t: jnp.stack([edge(q), q[:2]]),
                "contact": lambda q, t: edge(q)[None],
            },
            trails=("contact",),
            forces={"force on the edge [N]": lambda q, t, force: (edge(q), force[:2])},
        ),
        source="Chaplygin (1911); Bloch (2003), section 1.7",
    )
