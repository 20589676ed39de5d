"""Cart and pole, q = (x [m], theta [rad]): swings up along an energy servo constraint, with one actuator.

            * m             theta from the downward vertical (0: hanging, pi: upright)
             \\ l
       +------o------+      E = m l^2 theta'^2 / 2 - m g l cos(theta), the energy of the pole as seen from the cart
  u -> |     mc      |
       +--o-------o--+      wanted: E = m g l, the energy of the upright pole at rest
    --------- x -----------

The servo constraint is quadratic in the velocity: psi = E / (m g l) - 1, with psi' = -rate psi as long as the force
suffices. It has no force to ask for where theta' cos(theta) = 0, and asks for a large one nearby; hence the limits. On
psi = 0 the pole moves along the orbit that ends upright.

Source: Astrom & Furuta (2000), Swinging up a pendulum by energy control, Automatica 36, 287-295; here by the servo
constraint of Chen and Liu et al. (2015).
"""

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

    def pole_energy(self, q, v):
        """E [J]."""
        return self.m * self.l * (self.l * v[1] ** 2 / 2 - self.g * jnp.cos(q[1]))

    def off_orbit(self, q, v, t):
        """psi (1,): zero on the orbit that ends upright, -2 hanging at rest."""
        return (self.pole_energy(q, v) / (self.m * self.g * self.l) - 1)[None]


ON_CART = ((1.0,), (0.0,))


def swing_up(model: CartPole, rate: float = 2.0, limit: float = 10.0) -> ukjax.Servo:
    """The energy servo; `rate` [1/s], `limit` [N]."""
    orbit = ukjax.Nonholonomic(model.off_orbit, ukjax.Baumgarte(rate))
    return ukjax.Servo(orbit, np.array(ON_CART), limits=(-limit, limit))


def scenario(rate: float = 2.0, limit: float = 10.0, t1: float = 4.0) -> ukjax.Scenario:
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
        observables={"energy error psi": lambda q, v, t: model.off_orbit(q, v, t)[0]},
    )
