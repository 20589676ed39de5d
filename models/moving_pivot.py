"""Pendulum whose pivot moves as prescribed, q = (x, y) [m] of its mass: a constraint that depends on time.

        ^
        v  o  p(t) = d cos(W t) + a t^2 / 2         |q - p(t)|^2 = L^2, gravity along -y
            \\ L
             * m        angle psi from the downward vertical:
                        L psi'' = -(g + p_y'') sin(psi) - p_x'' cos(psi)

"upright": the pivot shakes fast along the vertical, and the pendulum stays up: d^2 W^2 > 2 g L (Stephenson, Kapitza).
"wagon": the pivot is pulled along evenly; the pendulum swings as one at rest would under the gravity g - a, which gives
the closed form, and its energy in the wagon is constant.

Source: Landau & Lifshitz (1976), Mechanics, section 5, problem 3, and section 30.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from . import closed_form


class MovingPivot(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    L: Float[Array, ""]  # length [m]
    g: Float[Array, ""]  # gravity [m/s^2]
    d: Float[Array, " 2"]  # amplitude of the pivot [m]
    W: Float[Array, ""]  # its angular frequency [rad/s]
    a: Float[Array, " 2"]  # its even acceleration [m/s^2]

    def __init__(self, m=1.0, L=0.5, g=9.81, d=(0.0, 0.05), W=100.0, a=(0.0, 0.0)):
        self.m, self.L, self.g, self.d, self.W, self.a = (jnp.asarray(x, float) for x in (m, L, g, d, W, a))

    def mass(self, q, t):
        return self.m * jnp.eye(2)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, -1.0])

    def pivot(self, t):
        """p (2,) [m]"""
        return self.d * jnp.cos(self.W * t) + self.a * t**2 / 2

    def rod(self, q, t):
        """phi (1,) [m^2]"""
        arm = q - self.pivot(t)
        return (arm @ arm - self.L**2)[None]

    def energy_in_wagon(self, q, v, t):
        """[J], as seen from the pivot; constant if it does not shake."""
        arm, way = q - self.pivot(t), v - self.a * t
        return self.m * (way @ way / 2 + self.g * arm[1] + self.a @ arm)


# Acceleration of the wagon [m/s^2].
PULL = 4.0


def exact(t, psi0: float, L: float = 0.5, g: float = 9.81, pull: float = PULL):
    """psi and psi' (T,) [rad, rad/s] in the wagon at times t (T,) [s], from rest at psi0."""
    tilt = np.arctan2(pull, g)  # the pendulum at rest in the wagon hangs back by so much
    psi, rate = closed_form.pendulum(t, psi0 + tilt, 0.0, np.sqrt(np.hypot(pull, g) / L))
    return psi - tilt, rate


def scenario(start: str = "upright", angle: float | None = None, t1: float | None = None) -> ukjax.Scenario:
    """`start` is upright or wagon; released at rest on its pivot at `angle` [rad] from the downward vertical."""
    starts = {"upright": (MovingPivot(), 2.9, 5.0), "wagon": (MovingPivot(d=(0.0, 0.0), a=(PULL, 0.0)), 0.5, 4.0)}
    if start not in starts:
        raise ValueError(f"start must be one of {', '.join(starts)}, but is {start!r}.")
    model, usual, end = starts[start]
    angle = usual if angle is None else angle
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.rod)),
        model.pivot(jnp.zeros(())) + model.L * jnp.array([np.sin(angle), -np.cos(angle)]),
        jnp.zeros(2),
        end if t1 is None else t1,
        name=f"Pendulum on a moving pivot, {start}",
        coordinates=("x [m]", "y [m]"),
        observables={"height above the pivot [m]": lambda q, v, t: (q - model.pivot(t))[1]},
        invariants={"energy in the wagon [J]": model.energy_in_wagon} if start == "wagon" else {},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            {"rod": lambda q, t: jnp.stack([model.pivot(t), q])},
            trails=("rod",),
            forces={"tension [N]": lambda q, t, force: (q, force)},
        ),
        source="Landau & Lifshitz (1976), sections 5 and 30",
    )
