"""Two-link manipulator with flexible joints, q = (q2, q4, q1, q3) [rad]: angles of the links, then of the motors.

      o motor 1: q1, spring K1          q2: link 1 from the downward vertical; q4: link 2 from link 1
       \\  link 1: q2, l1                gravity downward
        o motor 2: q3, spring K2
         \\  link 2: q4                  wanted: q2' + q4' = 0, so that link 2 keeps its direction

    D q1'' + C q1' + G + K (q1 - q2) = 0,    J q2'' - K (q1 - q2) = u      (links q1, motors q2 as in the paper)

Source: Zhao et al. (2018), Udwadia-Kalaba equation for constrained mechanical systems: formulation and applications,
Chinese Journal of Mechanical Engineering 31; eq. 66 to 72. In c11 it prints m1 for m2,
which equal masses hide, and in eq. 71 and 72 q1 for K (q1 - q2). The control of eq. 72 is a torque on the links.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class FlexibleJoint(ukjax.AbstractSystem):
    m1: Float[Array, ""]  # [kg]
    m2: Float[Array, ""]
    l1: Float[Array, ""]  # length of link 1 [m]
    lc1: Float[Array, ""]  # centres of mass [m]
    lc2: Float[Array, ""]
    I1: Float[Array, ""]  # about the centres of mass [kg m^2]
    I2: Float[Array, ""]
    K: Float[Array, " 2"]  # springs of the joints [N m/rad]
    J: Float[Array, " 2"]  # motors [kg m^2]
    g: Float[Array, ""]  # [m/s^2]

    def __init__(
        self, m1=1.0, m2=1.0, l1=1.0, lc1=0.5, lc2=0.5, I1=1.0, I2=1.0, K1=1.0, K2=1.0, J11=1.0, J22=1.0, g=9.81
    ):
        to = lambda x: jnp.asarray(x, float)
        self.m1, self.m2, self.l1, self.lc1, self.lc2 = to(m1), to(m2), to(l1), to(lc1), to(lc2)
        self.I1, self.I2, self.g = to(I1), to(I2), to(g)
        self.K, self.J = jnp.stack([to(K1), to(K2)]), jnp.stack([to(J11), to(J22)])

    def inertia(self, q):
        """D of eq. 68, shape (2, 2) [kg m^2]."""
        c = self.m2 * self.l1 * self.lc2 * jnp.cos(q[1])
        d22 = self.m2 * self.lc2**2 + self.I2
        d12 = d22 + c
        d11 = self.m2 * self.l1**2 + 2 * c + d22 + self.m1 * self.lc1**2 + self.I1
        return jnp.stack([jnp.stack([d11, d12]), jnp.stack([d12, d22])])

    def inverse_inertia(self, q):
        """D^-1; written out, because it is differentiated several times."""
        (a, b), (_, c) = self.inertia(q)
        return jnp.stack([jnp.stack([c, -b]), jnp.stack([-b, a])]) / (a * c - b * b)

    def coriolis(self, q, v):
        """C of eq. 68 with c11 = -m2 l1 lc2 sin(q4) q4', shape (2, 2)."""
        s = self.m2 * self.l1 * self.lc2 * jnp.sin(q[1])
        return jnp.stack([jnp.stack([-s * v[1], -s * (v[0] + v[1])]), jnp.stack([s * v[0], jnp.zeros_like(s)])])

    def gravity(self, q):
        """G of eq. 67, shape (2,) [N m]."""
        second = self.m2 * self.lc2 * self.g * jnp.sin(q[0] + q[1])
        return jnp.stack([(self.m1 * self.lc1 + self.m2 * self.l1) * self.g * jnp.sin(q[0]) + second, second])

    def mass(self, q, t):
        off = jnp.zeros((2, 2))
        return jnp.concatenate(
            [jnp.concatenate([self.inertia(q), off], axis=1), jnp.concatenate([off, jnp.diag(self.J)], axis=1)]
        )

    def force(self, q, v, t):
        spring = self.K * (q[:2] - q[2:])
        return jnp.concatenate([-self.coriolis(q, v[:2]) @ v[:2] - self.gravity(q) - spring, spring])

    def turning(self, q, v, t):
        """psi (1,) [rad/s], eq. 69."""
        return (v[0] + v[1])[None]

    def energy(self, q, v):
        """[J]"""
        kinetic = v[:2] @ self.inertia(q) @ v[:2] / 2 + jnp.sum(self.J * v[2:] ** 2) / 2
        height = -(self.m1 * self.lc1 + self.m2 * self.l1) * jnp.cos(q[0]) - self.m2 * self.lc2 * jnp.cos(q[0] + q[1])
        return kinetic + self.g * height + jnp.sum(self.K * (q[:2] - q[2:]) ** 2) / 2

    def ends(self, q):
        """Base, elbow and tip of the links (3, 2) [m]; link 2 is drawn to twice its centre of mass."""
        (s1, c1), (s2, c2) = ((jnp.sin(x), jnp.cos(x)) for x in (q[0], q[0] + q[1]))
        elbow = self.l1 * jnp.stack([s1, -c1])
        return jnp.stack([jnp.zeros(2), elbow, elbow + 2 * self.lc2 * jnp.stack([s2, -c2])])

    def hands(self, q):
        """Pointers (2, 2, 2) [m] at base and elbow that show where the motors are."""
        angles = jnp.stack([q[2], q[0] + q[3]])
        way = 0.3 * self.l1 * jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=1)
        return jnp.stack([self.ends(q)[:2], self.ends(q)[:2] + way], axis=1)

    def links(self) -> ukjax.Mechanism:
        """The links alone, (q2, q4), their springs held at the other end."""
        force = lambda q, v, t: -self.coriolis(q, v) @ v - self.gravity(q) - self.K * q
        return ukjax.Mechanism(ukjax.System(lambda q, t: self.inertia(q), force))


# The control of eq. 72 acts on the links; a motor's torque on the motor.
ON_LINKS = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0))
ON_MOTORS = ((0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0))


def following(model: FlexibleJoint, P: Any = 0.25) -> ukjax.ConstraintFollowing:
    """Eq. 72: the error beta = q2' + q4' decays as exp(-t / P)."""
    return ukjax.ConstraintFollowing(ukjax.Nonholonomic(model.turning), np.array(ON_LINKS), P)


def virtual_control(model: FlexibleJoint, P: Any = 0.25):
    """Where the motors (2,) [rad] should be, as a function of the links' (q, v): K q is the control of eq. 72."""
    A = np.ones(2)

    def motor(q, v):
        # Eq. 72 for its one row: differentiated three times below, this compiles much faster than a servo.
        D, inverse = model.inertia(q), model.inverse_inertia(q)
        load = model.coriolis(q, v) @ v + model.gravity(q) + model.K * q
        ideal = A * (A @ inverse @ load) / (A @ inverse @ A)
        return (ideal - D @ A * (A @ v) / (2 * P)) / model.K

    return motor


def motors(model: FlexibleJoint, P: Any = 0.25, position=8.0, velocity=8.0) -> ukjax.Servo:
    """Torques of the motors that make them go where `virtual_control` wants them.

    The error e of the motors obeys (d/dt + velocity) (d/dt + position) e = 0; both gains [1/s] are a scalar, (2,) or,
    to couple the motors, (2, 2).
    """
    wanted = virtual_control(model, P)
    position = jnp.asarray(position, float)

    def psi(q, v, t):
        twist = model.K * (q[:2] - q[2:])
        load = -model.coriolis(q, v[:2]) @ v[:2] - model.gravity(q) - twist
        at, rate = jax.jvp(wanted, (q[:2], v[:2]), (v[:2], model.inverse_inertia(q) @ load))
        error = q[2:] - at
        return v[2:] - rate + (position @ error if position.ndim == 2 else position * error)

    return ukjax.Servo(ukjax.Nonholonomic(psi, ukjax.Baumgarte(velocity)), np.array(ON_MOTORS))


def scenario(P: float = 0.25, t1: float = 5.0) -> ukjax.Scenario:
    """The paper's start, with an error of 0.9 rad/s."""
    model = FlexibleJoint()
    return ukjax.Scenario(
        ukjax.Mechanism(model),
        jnp.zeros(4),
        jnp.array([1.0, -0.1, 0.0, 0.0]),
        t1,
        name="Flexible-joint manipulator",
        coordinates=("link q2 [rad]", "link q4 [rad]", "motor q1 [rad]", "motor q3 [rad]"),
        servo=following(model, P),
        controls=("on link 1 [N m]", "on link 2 [N m]"),
        observables={"constraint error beta [rad/s]": lambda q, v, t: model.turning(q, v, t)[0]},
        drawing=ukjax.study.Drawing(
            {
                "link 1": lambda q, t: model.ends(q)[:2],
                "link 2": lambda q, t: model.ends(q)[1:],
                "motor 1": lambda q, t: model.hands(q)[0],
                "motor 2": lambda q, t: model.hands(q)[1],
            },
            trails=("link 2",),
        ),
        source="Zhao et al. (2018), section 8.3",
    )
