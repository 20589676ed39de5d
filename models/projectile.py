"""A particle under gravity, free or on a straight wire, in Cartesian and in polar coordinates.

     y |      * m          q = (x, y) [m] or (r [m], theta [rad]); gravity along -y
       |   r /             M = m I               Q = (0, -m g)
       |    /              M = diag(m, m r^2)    Q = (m r theta'^2 - m g sin, -2 m r r' theta' - m g r cos)
       |   / theta
       o------------ x     wire: a line at `distance` from the origin, its normal at angle `normal` from the x axis

The paper's polar M is diag(m, m), with the second equation taken as an acceleration. The unconstrained motion is right,
but this is no generalised inertia: v^T M v / 2 is no kinetic energy, and M weighs the rows of a constraint wrongly, so
that a single row gives another motion. `coordinates="printed"` shows it. On the wire the truth is s'' = g cos(normal).

Source: Zhao et al. (2018), Udwadia-Kalaba equation for constrained mechanical systems: formulation and applications,
Chinese Journal of Mechanical Engineering 31, example 1, eq. 2 to 9. The wire and the numbers are ours.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

import ukjax


def _scalar(value: ArrayLike) -> Float[Array, ""]:
    return jnp.asarray(value, float)


class AbstractParticle(ukjax.AbstractSystem):
    """What the three descriptions share."""

    m: Float[Array, ""] = eqx.field(converter=_scalar, default=1.0)  # mass [kg]
    g: Float[Array, ""] = eqx.field(converter=_scalar, default=9.81)  # gravity [m/s^2]


class Cartesian(AbstractParticle):
    """Eq. 2."""

    def mass(self, q, t):
        return self.m * jnp.eye(2)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, -1.0])

    def place(self, q):
        """(x, y) [m]."""
        return q

    def energy(self, q, v):
        """[J]"""
        return self.m * (v @ v / 2 + self.g * q[1])

    def cartesian(self, q, force):
        """A generalised force as (F_x, F_y) [N]."""
        return force


class Polar(AbstractParticle):
    """With the generalised inertia diag(m, m r^2)."""

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m, self.m * q[0] ** 2]))

    def force(self, q, v, t):
        r, theta = q
        radial = r * v[1] ** 2 - self.g * jnp.sin(theta)
        moment = -2 * r * v[0] * v[1] - self.g * r * jnp.cos(theta)
        return self.m * jnp.stack([radial, moment])

    def place(self, q):
        """(x, y) [m]."""
        return q[0] * radial(q)

    def energy(self, q, v):
        """[J]"""
        return self.m * polar_energy(q, v, self.g)

    def cartesian(self, q, force):
        """A generalised force, [N, N m], as (F_x, F_y) [N]."""
        return force[0] * radial(q) + force[1] / q[0] * transverse(q)


class PrintedPolar(AbstractParticle):
    """Eq. 9 as printed: M = diag(m, m), and the second component of the force is a moment over r^2."""

    def mass(self, q, t):
        return self.m * jnp.eye(2)

    def force(self, q, v, t):
        r, theta = q
        first = r * v[1] ** 2 - self.g * jnp.sin(theta)
        second = (-2 * v[0] * v[1] - self.g * jnp.cos(theta)) / r
        return self.m * jnp.stack([first, second])

    def place(self, q):
        """(x, y) [m]."""
        return q[0] * radial(q)

    def energy(self, q, v):
        """The true one [J]: not v^T M v / 2 + V."""
        return self.m * polar_energy(q, v, self.g)

    def cartesian(self, q, force):
        """The force of eq. 36, in the paper's units [N, kg rad/s^2], as (F_x, F_y) [N]."""
        return force[0] * radial(q) + q[0] * force[1] * transverse(q)


def radial(q):
    """Unit vector away from the origin (2,)."""
    return jnp.stack([jnp.cos(q[1]), jnp.sin(q[1])])


def transverse(q):
    """Unit vector of growing theta (2,)."""
    return jnp.stack([-jnp.sin(q[1]), jnp.cos(q[1])])


def polar_energy(q, v, g):
    """Of a unit mass [J/kg]."""
    return (v[0] ** 2 + (q[0] * v[1]) ** 2) / 2 + g * q[0] * jnp.sin(q[1])


def to_polar(q, v):
    """Polar coordinates and their rates of a Cartesian state."""
    r = jnp.sqrt(q @ q)
    turning = q[0] * v[1] - q[1] * v[0]
    return jnp.stack([r, jnp.arctan2(q[1], q[0])]), jnp.stack([q @ v / r, turning / r**2])


class Wire(eqx.Module):
    """A straight wire; s [m] along it grows downward, from the point nearest to the origin."""

    distance: Float[Array, ""]  # from the origin [m]
    normal: Float[Array, ""]  # angle of the normal from the x axis [rad]

    def __init__(self, distance=2.0, normal=1.0):
        self.distance, self.normal = (jnp.asarray(x, float) for x in (distance, normal))

    def axes(self):
        """Normal and downward direction, (2,) each."""
        c, s = jnp.cos(self.normal), jnp.sin(self.normal)
        return jnp.stack([c, s]), jnp.stack([s, -c])

    def cartesian(self, q, t):
        """phi (1,) [m] of q = (x, y)."""
        return (self.axes()[0] @ q - self.distance)[None]

    def polar(self, q, t):
        """phi (1,) [m] of q = (r, theta)."""
        return (q[0] * jnp.cos(q[1] - self.normal) - self.distance)[None]

    def state(self, s, rate):
        """Cartesian place and velocity (2,) at s [m], moving along with `rate` [m/s]."""
        normal, along = self.axes()
        return self.distance * normal + s * along, rate * along


SYSTEMS = {"cartesian": Cartesian, "polar": Polar, "printed": PrintedPolar}
START = ((1.0, 2.0), (3.0, 0.0))  # of the free particle: (x, y) [m], thrown horizontally [m/s]
ON_WIRE = -1.5  # s [m], at rest


def exact(t, g=9.81):
    """(x, y) (T, 2) [m] of the free particle at times t (T,) [s]."""
    (x, y), (vx, vy) = START
    return jnp.stack([x + vx * t, y + vy * t - g * t**2 / 2], axis=1)


def exact_on_wire(t, g=9.81):
    """(x, y) (T, 2) [m] on the wire at times t (T,) [s]: uniformly accelerated."""
    wire = Wire()
    normal, along = wire.axes()
    s = ON_WIRE + g * jnp.cos(wire.normal) * t**2 / 2
    return wire.distance * normal[None] + s[:, None] * along[None]


def scenario(coordinates: str = "cartesian", t1: float = 1.0) -> ukjax.Scenario:
    """Thrown horizontally; `coordinates` is cartesian, polar or printed, eq. 9."""
    place, velocity = (jnp.array(x) for x in START)
    return _scenario(coordinates, None, place, velocity, t1, "Projectile")


def on_wire(coordinates: str = "polar", t1: float = 1.5) -> ukjax.Scenario:
    """A bead on a straight wire, from rest: one row, with which "printed" goes wrong."""
    wire = Wire()
    place, velocity = wire.state(jnp.asarray(ON_WIRE), jnp.zeros(()))
    return _scenario(coordinates, wire, place, velocity, t1, "Bead on a straight wire")


def _scenario(coordinates: str, wire: Wire | None, place, velocity, t1: float, name: str) -> ukjax.Scenario:
    if coordinates not in SYSTEMS:
        raise ValueError(f"coordinates must be one of {', '.join(SYSTEMS)}, but is {coordinates!r}.")
    system, cartesian = SYSTEMS[coordinates](), coordinates == "cartesian"
    q0, v0 = (place, velocity) if cartesian else to_polar(place, velocity)
    rows = () if wire is None else (ukjax.Holonomic(wire.cartesian if cartesian else wire.polar),)
    return ukjax.Scenario(
        ukjax.Mechanism(system, rows),
        q0,
        v0,
        t1,
        name=f"{name}, {'M of eq. 9 as printed' if coordinates == 'printed' else coordinates}",
        coordinates=("x [m]", "y [m]") if cartesian else ("r [m]", "theta [rad]"),
        observables={"place x, y [m]": lambda q, v, t: system.place(q)},
        invariants={"energy [J]": lambda q, v, t: system.energy(q, v)},
        drawing=_drawing(system, wire),
        source="Zhao et al. (2018), example 1" + ("" if wire is None else "; the wire is ours"),
    )


def _drawing(system, wire: Wire | None) -> ukjax.study.Drawing:
    ends = {} if wire is None else {"wire": jnp.stack([wire.state(jnp.asarray(s), 0.0)[0] for s in (-2.0, 5.0)])}
    return ukjax.study.Drawing(
        {"particle": lambda q, t: system.place(q)[None]},
        trails=("particle",),
        forces={} if wire is None else {"wire": lambda q, t, force: (system.place(q), system.cartesian(q, force))},
        scenery=ends,
    )
