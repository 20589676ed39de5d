"""Car with a trailer, q = (x [m], y [m], theta [rad], psi [rad]): three axles that roll and do not slide sideways.

                     l           front
        o----d----o=======o  /   (x, y): middle of the car's rear axle, where the trailer is hitched
      psi         theta     delta, the angle of the front wheels, which is held

    rear     -x' sin(theta) + y' cos(theta) = 0
    front    -x' sin(theta + delta) + y' cos(theta + delta) + l theta' cos(delta) = 0
    trailer  -x' sin(psi) + y' cos(psi) - d psi' = 0

The constraints are nonholonomic and do no work: it coasts at a constant energy. With the wheels held the car's rear
axle goes round a circle of radius R = l / tan(delta), and the trailer's comes to follow one of radius sqrt(R^2 - d^2).

Source: Rouchon, Fliess, Levine & Martin (1993), Flatness and motion planning: the car with n trailers.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class CarWithTrailer(ukjax.AbstractSystem):
    m: Float[Array, ""]  # of the car, its centre above the rear axle [kg]
    J: Float[Array, ""]  # [kg m^2]
    trailer_m: Float[Array, ""]  # its centre above its axle [kg]
    trailer_J: Float[Array, ""]  # [kg m^2]
    l: Float[Array, ""]  # between the car's axles [m]
    d: Float[Array, ""]  # from the hitch to the trailer's axle [m]
    delta: Float[Array, ""]  # angle of the front wheels [rad]

    def __init__(self, m=1000.0, J=1500.0, trailer_m=400.0, trailer_J=400.0, l=2.5, d=3.0, delta=0.3):
        self.m, self.J, self.trailer_m, self.trailer_J = (jnp.asarray(x, float) for x in (m, J, trailer_m, trailer_J))
        self.l, self.d, self.delta = (jnp.asarray(x, float) for x in (l, d, delta))

    def kinetic(self, q, v, t):
        """[J]"""
        axle = v[:2] - self.d * v[3] * jnp.stack([-jnp.sin(q[3]), jnp.cos(q[3])])
        own = self.m * (v[:2] @ v[:2]) + self.J * v[2] ** 2
        return (own + self.trailer_m * (axle @ axle) + self.trailer_J * v[3] ** 2) / 2

    def mass(self, q, t):
        s, c = self.trailer_m * self.d * jnp.sin(q[3]), self.trailer_m * self.d * jnp.cos(q[3])
        both, zero = self.m + self.trailer_m, jnp.zeros_like(self.m)
        own = self.trailer_J + self.trailer_m * self.d**2
        rows = [both, zero, zero, s], [zero, both, zero, -c], [zero, zero, self.J, zero], [s, -c, zero, own]
        return jnp.stack([jnp.stack(row) for row in rows])

    def force(self, q, v, t):
        push = self.trailer_m * self.d * v[3] ** 2
        zero = jnp.zeros_like(push)
        return jnp.stack([-push * jnp.cos(q[3]), -push * jnp.sin(q[3]), zero, zero])

    def wheels(self, q, v, t):
        """psi (3,) [m/s]: how the axles slide."""
        side = lambda angle: v[1] * jnp.cos(angle) - v[0] * jnp.sin(angle)
        front = side(q[2] + self.delta) + self.l * v[2] * jnp.cos(self.delta)
        return jnp.stack([side(q[2]), front, side(q[3]) - self.d * v[3]])

    def axle(self, q):
        """Of the trailer (2,) [m]."""
        return q[:2] - self.d * jnp.stack([jnp.cos(q[3]), jnp.sin(q[3])])

    def front(self, q):
        """Middle of the front axle (2,) [m]."""
        return q[:2] + self.l * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])


def scenario(speed: float = 4.0, delta: float = 0.3, t1: float = 15.0) -> ukjax.Scenario:
    """In line with the trailer, along x, the front wheels turned already."""
    model = CarWithTrailer(delta=delta)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Nonholonomic(model.wheels)),
        jnp.zeros(4),
        speed * jnp.array([1.0, 0.0, np.tan(delta) / 2.5, 0.0]),
        t1,
        name="Car with a trailer",
        coordinates=("x [m]", "y [m]", "theta [rad]", "psi [rad]"),
        invariants={"energy [J]": model.kinetic},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {
                "car": lambda q, t: jnp.stack([q[:2], model.front(q)]),
                "trailer": lambda q, t: jnp.stack([q[:2], model.axle(q)]),
            },
            trails=("car", "trailer"),
        ),
        source="Rouchon et al. (1993)",
    )
