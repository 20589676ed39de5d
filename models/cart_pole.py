"""Cart and pole, q = (x [m], theta [rad]): swings up along an energy servo constraint, with one actuator.

            * m             theta from the downward vertical (0: hanging, pi: upright)
             \\ l
       +------o------+      E = m l^2 theta'^2 / 2 - m g l cos(theta), the energy of the pole as seen from the cart
  u -> |     mc      |
       +--o-------o--+      wanted: E = m g l, the energy of the upright pole at rest
    --------- x -----------

The servo constraint is quadratic in the velocity: psi = E / (m g l) - 1, with psi' = -rate psi. On psi = 0 the pole
moves along the orbit that ends upright. Where theta' cos(theta) = 0 no force changes E, and nearby a large one would be
asked for; so a second, weak row keeps the cart in place, x'' + 2 c x' + c^2 x = 0, and the control is the least-squares
compromise of the two: it takes over where the first row has no say.

Source: Astrom & Furuta (2000), Swinging up a pendulum by energy control, Automatica 36, 287-295; here by the servo
constraint of Chen and Liu et al. (2015).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class CartPole(ukjax.AbstractSystem):
    mc: Float[Array, ""]  # cart [kg]
    m: Float[Array, ""]  # pole's mass, at its end [kg]
    l: Float[Array, ""]  # length [m]
    g: Float[Array, ""]  # [m/s^2]

    def __init__(self, mc=1.0, m=0.2, l=0.5, g=9.81):
        self.mc, self.m, self.l, self.g = (jnp.asarray(x, float) for x in (mc, m, l, g))

    def mass(self, q, t):
        c = self.m * self.l * jnp.cos(q[1])
        return jnp.stack([jnp.stack([self.mc + self.m, c]), jnp.stack([c, self.m * self.l**2])])

    def force(self, q, v, t):
        s = jnp.sin(q[1])
        return self.m * self.l * s * jnp.stack([v[1] ** 2, -self.g])

    def tip(self, q):
        """Of the pole (2,) [m]."""
        return jnp.stack([q[0] + self.l * jnp.sin(q[1]), -self.l * jnp.cos(q[1])])

    def pole_energy(self, q, v):
        """E [J]."""
        return self.m * self.l * (self.l * v[1] ** 2 / 2 - self.g * jnp.cos(q[1]))

    def off_orbit(self, q, v):
        """psi: zero on the orbit that ends upright, -2 hanging at rest."""
        return self.pole_energy(q, v) / (self.m * self.g * self.l) - 1


class SwingUp(eqx.Module):
    """psi (2,) of the servo: off the orbit, and the cart off its place."""

    model: CartPole
    centring: Float[Array, ""]  # c [1/s]
    weight: Float[Array, ""]  # of the second row [s/m]

    def __call__(self, q, v, t):
        return jnp.stack([self.model.off_orbit(q, v), self.weight * (v[0] + self.centring * q[0])])


ON_CART = ((1.0,), (0.0,))

# The outline of the cart as it is drawn [m].
CART = np.array([[-0.2, -0.1], [0.2, -0.1], [0.2, 0.1], [-0.2, 0.1], [-0.2, -0.1]])


def swing_up(
    model: CartPole, rate: float = 4.0, limit: float = 10.0, centring: float = 1.5, weight: float = 0.3
) -> ukjax.Servo:
    """The servo; `rate` and `centring` [1/s], `limit` [N], `weight` [s/m] of the cart's row."""
    psi = SwingUp(model, jnp.asarray(centring, float), jnp.asarray(weight, float))
    wanted = ukjax.Nonholonomic(psi, ukjax.Baumgarte(jnp.array([rate, centring])))
    return ukjax.Servo(wanted, np.array(ON_CART), limits=(-limit, limit), exact=False)


def scenario(rate: float = 4.0, limit: float = 10.0, t1: float = 10.0) -> ukjax.Scenario:
    """From a small swing to the upright orbit."""
    model = CartPole()
    return ukjax.Scenario(
        ukjax.Mechanism(model),
        jnp.array([0.0, 0.05]),
        jnp.array([0.0, 0.1]),
        t1,
        name="Cart-pole, swing-up by energy",
        coordinates=("x [m]", "theta [rad]"),
        servo=swing_up(model, rate, limit),
        controls=("force on the cart [N]",),
        observables={"energy error psi": lambda q, v, t: model.off_orbit(q, v)},
        drawing=ukjax.study.Drawing(
            {
                "cart": lambda q, t: jnp.stack([q[0] + CART[:, 0], CART[:, 1]], axis=1),
                "pole": lambda q, t: jnp.stack([jnp.append(q[0], 0.0), model.tip(q)]),
            },
            trails=("pole",),
            scenery={"rail": np.array([[-1.5, -0.12], [1.5, -0.12]])},
        ),
        source="Astrom & Furuta (2000)",
    )
