"""Active RR chain: an actuator, a pivoted bar and a distal bar, the module that planar mechanisms are made of.

        \\  distal bar: phi, l2
         o  elbow: reference point (x, y) of the distal bar      gravity along -y
        /
       /  pivoted bar: theta, l1                                 angles from x
      o  base joint, on a circle of radius Rb at `angle`         the actuator's rotor turns psi = N theta (gears)

q = (psi, theta, x, y, phi) [rad, rad, m, m, rad]; two degrees of freedom. The mass matrix of the distal bar is full and
changes with phi, because its reference point is its elbow end and not its centre of mass.

Source: Orsino (2017), Recursive modular modelling methodology for lumped-parameter dynamic systems, Proc. R. Soc. A
473; fig. 1 (top left) and 3. Its parameters lie in a supplement that we do not have; those here are ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


G = 9.81


def along(angle):
    """Unit vector (2,)."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


class Rotor(ukjax.AbstractSystem):
    """q = (psi) [rad], driven by a torque."""

    J: Float[Array, ""]  # [kg m^2]
    torque: Float[Array, ""]  # [N m]

    def __init__(self, J=0.0015, torque=0.0):
        self.J, self.torque = jnp.asarray(J, float), jnp.asarray(torque, float)

    def mass(self, q, t):
        return self.J[None, None]

    def force(self, q, v, t):
        return self.torque[None]

    def potential(self, q):
        """[J]"""
        return jnp.zeros_like(q[0])


class PivotedBar(ukjax.AbstractSystem):
    """q = (theta) [rad]."""

    m: Float[Array, ""]  # [kg]
    c: Float[Array, ""]  # centre of mass from the pivot [m]
    I: Float[Array, ""]  # about the pivot [kg m^2]
    g: Float[Array, ""]  # [m/s^2]

    def __init__(self, m=1.2, c=0.19, I=0.07, g=G):
        to = lambda x: jnp.asarray(x, float)
        self.m, self.c, self.I, self.g = to(m), to(c), to(I), to(g)

    def mass(self, q, t):
        return self.I[None, None]

    def force(self, q, v, t):
        return -self.m * self.g * self.c * jnp.cos(q)

    def potential(self, q):
        """[J]"""
        return self.m * self.g * self.c * jnp.sin(q[0])


class FreeBar(ukjax.AbstractSystem):
    """q = (x, y, phi) of one end of a bar [m, m, rad]; with c = 0, of the centre of mass of any body."""

    m: Float[Array, ""]  # [kg]
    c: Float[Array, ""]  # centre of mass from the end [m]
    I: Float[Array, ""]  # about the centre of mass [kg m^2]
    g: Float[Array, ""]  # [m/s^2]

    def __init__(self, m=0.8, c=0.16, I=0.009, g=G):
        to = lambda x: jnp.asarray(x, float)
        self.m, self.c, self.I, self.g = to(m), to(c), to(I), to(g)

    def mass(self, q, t):
        cx, cy = self.m * self.c * along(q[2])
        zero = jnp.zeros_like(cx)
        rows = [[self.m + zero, zero, -cy], [zero, self.m + zero, cx], [-cy, cx, self.I + self.m * self.c**2]]
        return jnp.stack([jnp.stack(row) for row in rows])

    def force(self, q, v, t):
        cx, cy = self.m * self.c * along(q[2])
        return jnp.stack([cx * v[2] ** 2, cy * v[2] ** 2 - self.m * self.g, -self.g * cx])

    def potential(self, q):
        """[J]"""
        return self.m * self.g * (q[1] + self.c * jnp.sin(q[2]))


class Leg(eqx.Module):
    """What joins the modules of one leg to each other, to the base and to the platform."""

    angle: Float[Array, ""]  # of the base joint, and of the platform's joint from its direction [rad]
    Rb: Float[Array, ""]  # [m]
    rp: Float[Array, ""]
    l1: Float[Array, ""]
    l2: Float[Array, ""]
    N: Float[Array, ""]  # gear ratio

    def __init__(self, angle, Rb=0.5, rp=0.15, l1=0.4, l2=0.35, N=3.0):
        to = lambda x: jnp.asarray(x, float)
        self.angle, self.Rb, self.rp, self.l1, self.l2, self.N = to(angle), to(Rb), to(rp), to(l1), to(l2), to(N)

    def elbow(self, theta):
        """Tip of the pivoted bar (2,) [m]."""
        return self.Rb * along(self.angle) + self.l1 * along(theta)

    def joint(self, x, y, phi):
        """The platform's joint (2,) [m]."""
        return jnp.stack([x, y]) + self.rp * along(phi + self.angle)

    def gears(self, q, t):
        rotor, pivoted = q
        return (rotor.psi - self.N * pivoted.theta)[None]

    def elbow_closed(self, q, t):
        pivoted, distal = q
        return distal[:2] - self.elbow(pivoted.theta)

    def wrist_closed(self, q, t):
        distal, platform = q
        return self.tip(distal) - self.joint(*platform[:])

    def loop(self, q, t):
        """The whole leg at once, without the coordinates of the elbow."""
        pivoted, distal, platform = q
        return self.elbow(pivoted.theta) + self.l2 * along(distal.phi) - self.joint(*platform[:])

    def bars(self, platform):
        """theta, phi (2,) [rad] that reach a platform at (x, y, phi), by the solution with the elbow on the left."""
        reach = self.joint(*platform) - self.Rb * along(self.angle)
        square = reach @ reach
        cosine = (square + self.l1**2 - self.l2**2) / (2 * self.l1 * jnp.sqrt(square))
        theta = jnp.arctan2(reach[1], reach[0]) + jnp.arccos(cosine)
        rest = reach - self.l1 * along(theta)
        return jnp.stack([theta, jnp.arctan2(rest[1], rest[0])])

    def coordinates(self, platform):
        """q (5,) of the leg that reaches a platform at (x, y, phi); with rp = 0, whose tip is at (x, y)."""
        theta, phi = self.bars(platform)
        return jnp.concatenate([jnp.stack([self.N * theta, theta]), self.elbow(theta), phi[None]])

    def tip(self, distal):
        """Far end of the distal bar (2,) [m], from a view of it or from its (x, y, phi)."""
        return distal[:2] + self.l2 * along(distal[2])

    def drawn(self, first: int):
        """Base, elbow and tip (3, 2) [m], of the leg whose coordinates begin at `first`."""
        base = self.Rb * along(self.angle)
        return lambda q, t: jnp.stack([base, q[first + 2 : first + 4], self.tip(q[first + 2 : first + 5])])


def leg(geometry: Leg, torque: float = 0.0, g: float = G) -> ukjax.modular.Composite:
    """Rotor, pivoted bar and distal bar, joined: level 2."""
    modules = {
        "rotor": ukjax.modular.Module(Rotor(torque=torque), ("psi",)),
        "pivoted": ukjax.modular.Module(PivotedBar(g=g), ("theta",)),
        "distal": ukjax.modular.Module(FreeBar(g=g), ("x", "y", "phi")),
    }
    gears = ukjax.modular.Coupling(("rotor", "pivoted"), ukjax.Holonomic(geometry.gears))
    elbow = ukjax.modular.Coupling(("pivoted", "distal"), ukjax.Holonomic(geometry.elbow_closed))
    return ukjax.modular.Composite(modules, [gears, elbow])


def energy(mechanism: ukjax.modular.Composite, q, v):
    """[J]; of the modules, whether joined or not."""
    potential = sum(jnp.sum(each) for each in mechanism.on_each(lambda module, q: module.potential(q), q))
    return v @ mechanism.mass(q, jnp.zeros_like(q[0])) @ v / 2 + potential


OF_LEG = (("psi", "rad"), ("theta", "rad"), ("x", "m"), ("y", "m"), ("phi", "rad"))


def names(*legs: str) -> tuple[str, ...]:
    """Of the coordinates of legs, with units."""
    return tuple(f"{of} {name} [{unit}]" for name in legs for of, unit in OF_LEG)


def state(geometries, platform, rate, more=True):
    """q, v of legs that reach a platform at (x, y, phi) moving at `rate`, with the platform's own unless not `more`."""

    def all_of(p):
        return jnp.concatenate([*(geometry.coordinates(p) for geometry in geometries), *([p] if more else [])])

    return jax.jvp(all_of, (jnp.array(platform, float),), (jnp.array(rate, float),))


def scenario(t1: float = 2.0) -> ukjax.Scenario:
    """The module alone, a double pendulum with a geared rotor, let go."""
    geometry = Leg(np.pi / 2, rp=0.0)
    mechanism = leg(geometry)
    q0, v0 = state([geometry], (0.5, 0.2, 0.0), (0.0, 0.0, 0.0), more=False)
    return ukjax.Scenario(
        mechanism.mechanism(), q0, v0, t1, name="Active RR chain", coordinates=names("A"),
        formulation=ukjax.formulation.Recursive(mechanism.levels), projection=ukjax.Projection(),
        invariants={"energy [J]": lambda q, v, t: energy(mechanism, q, v)},
        drawing=ukjax.study.Drawing({"leg A": geometry.drawn(0)}, trails=("leg A",)),
        source="Orsino (2017), fig. 1 and 3",
    )  # fmt: skip
