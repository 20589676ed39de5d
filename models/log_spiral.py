"""A particle on a logarithmic spiral, q = (r [m], theta [rad]), gravity along -y.

       .-'''-.         orbit (two rows):  r = exp(0.1 theta),  theta = 30 - t
     .'  .-.  '*  m    curve (one row):   r = exp(0.1 theta), and gravity does the rest
     |  ( o  )  |
      '. '--' .'       x = r cos(theta), y = r sin(theta)
        '---'

Orbit, as the paper has it: M = I, and the force of its eq. 52. A is square and invertible, so that the motion depends
neither on M nor on the force: that this M is no generalised inertia shows in the units of the constraint force only.
Exactly: r = exp(0.1 (30 - t)), F_r = -0.99 r + g sin(theta), F_theta = 0.2 + g cos(theta) / r. Off the orbit each row
obeys phi'' + 2 alpha phi' + beta^2 phi = 0.

Curve: a physical bead, M = diag(m, m r^2). One row of two coordinates, so M counts: with M = I the bead gains energy
out of nothing, and its speed is infinite after 0.456 s.

Source: Zhao et al. (2018), Udwadia-Kalaba equation for constrained mechanical systems: formulation and applications,
Chinese Journal of Mechanical Engineering 31, section 8.1, eq. 51 to 59. The disturbed start and the bead are ours.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

import ukjax

from .projectile import Polar, PrintedPolar


class Spiral(eqx.Module):
    """r = exp(growth theta), run through as theta = start + rate t."""

    growth: Float[Array, ""]  # [1/rad]
    start: Float[Array, ""]  # [rad]
    rate: Float[Array, ""]  # [rad/s]

    def __init__(self, growth=0.1, start=30.0, rate=-1.0):
        self.growth, self.start, self.rate = (jnp.asarray(x, float) for x in (growth, start, rate))

    def curve(self, q, t):
        """phi (1,) [m]"""
        return (q[0] - jnp.exp(self.growth * q[1]))[None]

    def orbit(self, q, t):
        """phi (2,) [m, rad], eq. 53."""
        return jnp.concatenate([self.curve(q, t), (q[1] - self.start - self.rate * t)[None]])

    def state(self, theta, rate):
        """q and v on the curve."""
        r = jnp.exp(self.growth * theta)
        return jnp.stack([r, theta]), jnp.stack([self.growth * r * rate, rate])


# How far off the disturbed start is: the two rows, and their rates.
OFF = ((-2e-3, 1e-3), (1e-4, 2e-4))
STARTS = ("paper", "disturbed")


def disturbance(t, alpha: float = 0.0, beta: float = 0.0):
    """phi (T, 2) at times t (T,) [s] from the disturbed start; alpha = beta, critical damping, or both zero."""
    if alpha != beta:
        raise ValueError(f"beta must equal alpha = {alpha}, the case given here in closed form, but is {beta}.")
    t = np.asarray(t, float)[:, None]
    first, rate = (np.array(x)[None] for x in OFF)
    return (first + (rate + alpha * first) * t) * np.exp(-alpha * t)


def exact(t, phi: ArrayLike = 0.0):
    """q (T, 2) at times t (T,) [s] on the orbit, or off it by phi (T, 2)."""
    t = np.asarray(t, float)
    phi = np.broadcast_to(np.asarray(phi), (len(t), 2))
    theta = 30.0 - t + phi[:, 1]
    return np.stack([np.exp(0.1 * theta) + phi[:, 0], theta], axis=1)


def exact_force(t, g=9.81):
    """Constraint force (T, 2) on the orbit, in the paper's units: [N] and [kg rad/s^2]."""
    r, theta = exact(t).T
    return np.stack([-0.99 * r + g * np.sin(theta), 0.2 + g * np.cos(theta) / r], axis=1)


def off_orbit(spiral: Spiral):
    """q and v of the disturbed start."""
    (radius, angle), (speed, turning) = OFF
    q, v = spiral.state(spiral.start + angle, spiral.rate + turning)
    return q + jnp.array([radius, 0.0]), v + jnp.array([speed, 0.0])


def scenario(start: str = "paper", alpha: float = 0.0, beta: float = 0.0, t1: float = 40.0) -> ukjax.Scenario:
    """The paper's two rows, stabilised by phi'' + 2 alpha phi' + beta^2 phi = 0; `start` is paper or disturbed."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    spiral, system = Spiral(), PrintedPolar()
    q0, v0 = spiral.state(spiral.start, spiral.rate) if start == "paper" else off_orbit(spiral)
    orbit = ukjax.Holonomic(spiral.orbit, ukjax.Baumgarte.classic(alpha, beta))
    return _scenario(ukjax.Mechanism(system, orbit), q0, v0, t1, "Particle on a logarithmic spiral")


def bead(t1: float = 10.0) -> ukjax.Scenario:
    """A bead that slides on the spiral, to and fro at the bottom of a turn."""
    return _bead(Polar(), t1, "Bead on a logarithmic spiral")


def printed_bead(t1: float = 0.4) -> ukjax.Scenario:
    """The same with M = I, which is wrong for a single row: there is no motion beyond 0.456 s."""
    return _bead(PrintedPolar(), t1, "Bead on a logarithmic spiral, M of eq. 51 as printed")


def _bead(system: Polar | PrintedPolar, t1: float, name: str) -> ukjax.Scenario:
    spiral = Spiral()
    q0, v0 = spiral.state(spiral.start, spiral.rate)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(spiral.curve))
    energy = {"energy [J]": lambda q, v, t: system.energy(q, v)}
    kept = isinstance(system, Polar)  # the printed inertia does not keep it
    return _scenario(mechanism, q0, v0, t1, name, energy if kept else {}, {} if kept else energy)


def _scenario(mechanism: ukjax.Mechanism, q0, v0, t1: float, name: str, kept=None, watched=None) -> ukjax.Scenario:
    system = mechanism.system
    assert isinstance(system, (Polar, PrintedPolar))
    drawing = ukjax.study.Drawing(
        {"particle": lambda q, t: system.place(q)[None]},
        trails=("particle",),
        forces={"spiral": lambda q, t, force: (system.place(q), system.cartesian(q, force))},
        scenery={"spiral": curve()},
    )
    return ukjax.Scenario(
        mechanism,
        q0,
        v0,
        t1,
        name=name,
        coordinates=("r [m]", "theta [rad]"),
        observables={"place x, y [m]": lambda q, v, t: system.place(q)} | (watched or {}),
        invariants=kept,
        drawing=drawing,
        source="Zhao et al. (2018), section 8.1",
    )


def curve(first: float = -10.0, last: float = 31.0, points: int = 600) -> np.ndarray:
    """The spiral (points, 2) [m] between two angles [rad]."""
    theta = np.linspace(first, last, points)
    return np.exp(0.1 * theta)[:, None] * np.stack([np.cos(theta), np.sin(theta)], axis=1)
