"""Planar two-wheeled robot on rolling wheels, q = (x, y [m], theta [rad]): tracks a path.

             y        P: a point ahead of the axle, at distance d, which is to follow the path
             |      P
             |     /  theta      rolling: no motion along the axle, -x' sin(theta) + y' cos(theta) = 0
             |   =o=             wheels of radius r at distance w from the middle, driven by torques u1 (right), u2
             o--------- x        the centre of mass lies on the axle's middle

The rolling constraint is passive and nonholonomic; the path is a servo constraint of two rows for two motors. The point
must lie ahead of the axle: for one on the axle (d = 0) the sideways row is out of the motors' reach.

Source: a standard example; look-ahead control in Siciliano et al. (2009), Robotics: Modelling, Planning and Control,
section 11.5. Numbers are ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Unicycle(ukjax.AbstractSystem):
    m: Float[Array, ""]  # [kg]
    I: Float[Array, ""]  # about the centre of mass [kg m^2]
    r: Float[Array, ""]  # radius of the wheels [m]
    w: Float[Array, ""]  # half the distance of the wheels [m]
    d: Float[Array, ""]  # look-ahead distance [m]

    def __init__(self, m=5.0, I=0.2, r=0.05, w=0.15, d=0.1):
        self.m, self.I, self.r, self.w, self.d = (jnp.asarray(x, float) for x in (m, I, r, w, d))

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m, self.m, self.I]))

    def force(self, q, v, t):
        return jnp.zeros(3)

    def slip(self, q, v, t):
        """psi (1,) [m/s]: speed along the axle."""
        return (-v[0] * jnp.sin(q[2]) + v[1] * jnp.cos(q[2]))[None]

    def actuation(self, q, t):
        """G (3, 2) [1/m, 1/m, 1]: force and moment of a unit torque at the right and the left wheel."""
        ahead = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        column = lambda side: jnp.concatenate([ahead, side * self.w[None]]) / self.r
        return jnp.stack([column(1.0), column(-1.0)], axis=1)

    def place(self, q, ahead, left):
        """The point (2,) [m] so far ahead and to the left of the axle's middle [m]."""
        way = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        return q[:2] + ahead * way + left * jnp.stack([-way[1], way[0]])

    def point(self, q):
        """P (2,) [m]."""
        return q[:2] + self.d * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])


class Eight(eqx.Module):
    """A figure of eight, once round in `period`."""

    size: Float[Array, ""]  # [m]
    period: Float[Array, ""]  # [s]

    def __init__(self, size=1.0, period=12.0):
        self.size, self.period = jnp.asarray(size, float), jnp.asarray(period, float)

    def __call__(self, t):
        phase = 2 * jnp.pi * t / self.period
        return self.size * jnp.stack([jnp.sin(phase), jnp.sin(phase) * jnp.cos(phase)])


class OffPath(eqx.Module):
    """phi (2,) [m] of the servo."""

    model: Unicycle
    path: Eight

    def __call__(self, q, t):
        return self.model.point(q) - self.path(t)


def tracking(model: Unicycle, path: Eight, alpha: float = 3.0, beta: float = 3.0) -> ukjax.Servo:
    """An error e of the point obeys e'' + 2 alpha e' + beta^2 e = 0."""
    return ukjax.Servo(ukjax.Holonomic(OffPath(model, path), ukjax.Baumgarte.classic(alpha, beta)), model.actuation)


def _drawing(model: Unicycle, path: Eight) -> ukjax.study.Drawing:
    eight = jax.vmap(path)(jnp.linspace(0.0, path.period, 121))
    return ukjax.study.Drawing(
        {
            "axle": lambda q, t: jnp.stack([model.place(q, 0.0, model.w), model.place(q, 0.0, -model.w)]),
            **{f"{name} wheel": _wheel(model, side) for name, side in (("left", 1.0), ("right", -1.0))},
            "P": lambda q, t: jnp.stack([q[:2], model.point(q)]),
        },
        trails=("P",),
        forces={"force on the wheels [N]": lambda q, t, force: (q[:2], force[:2])},
        scenery={"path": np.asarray(eight)},
    )


def _wheel(model: Unicycle, side: float):
    at = lambda q, ahead: model.place(q, ahead, side * model.w)
    return lambda q, t: jnp.stack([at(q, -model.r), at(q, model.r)])


def scenario(alpha: float = 3.0, beta: float = 3.0, t1: float = 12.0) -> ukjax.Scenario:
    """Starts at rest beside the path."""
    model, path = Unicycle(), Eight()
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Nonholonomic(model.slip)),
        jnp.array([-0.1, -0.2, 0.0]),
        jnp.zeros(3),
        t1,
        name="Two-wheeled robot on a figure of eight",
        coordinates=("x [m]", "y [m]", "theta [rad]"),
        servo=tracking(model, path, alpha, beta),
        controls=("right wheel [N m]", "left wheel [N m]"),
        observables={
            "tracking error x, y [m]": lambda q, v, t: model.point(q) - path(t),
        },
        projection=ukjax.Projection(),
        drawing=_drawing(model, path),
        source="Siciliano et al. (2009), section 11.5",
    )
