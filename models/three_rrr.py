"""Planar parallel mechanism 3RRR: a platform on three legs, each with an actuator, a pivoted bar and a distal bar.

              o  base joint A, at 90 deg on a circle of radius Rb; B at 210, C at 330 deg
             /  pivoted bar: theta, l1                       gravity along -y
            o  elbow: reference point (x, y) of the distal bar
             \\  distal bar: phi, l2
           o--o  joint of the platform, on a circle of radius rp at angle 90 (210, 330) deg from its own direction
          / (x, y, phi)\\   platform
         o--------------o                                    an actuator's rotor turns psi = N theta (gears)

Ten modules, q = (psi, theta, x, y, phi) of legs A, B, C, then (x, y, phi) of the platform, n = 18. Level 1 is the
modules, each on its own; level 2 makes legs of them (nine rows), level 3 the mechanism (six rows), which has three
degrees of freedom. Level 4 adds the loop of leg A once more, written in other coordinates: two rows that depend on the
others.

The angles are measured from x; the mass matrix of a distal bar is full and changes with phi, because its reference
point is its elbow end and not its centre of mass.

Source: Orsino (2017), Recursive modular modelling methodology for lumped-parameter dynamic systems, Proc. R. Soc. A
473; fig. 2 to 4. Its parameters lie in a supplement that we do not have; those here are ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


G = 9.81
ANGLES = tuple(np.deg2rad((90.0, 210.0, 330.0)))
LEGS = ("A", "B", "C")


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
        return distal[:2] + self.l2 * along(distal.phi) - self.joint(*platform[:])

    def loop(self, q, t):
        """The whole leg at once, without the coordinates of the elbow."""
        pivoted, distal, platform = q
        return self.elbow(pivoted.theta) + self.l2 * along(distal.phi) - self.joint(*platform[:])

    def bars(self, platform):
        """theta, phi (2,) [rad] that reach a platform at (x, y, phi): the solution with the elbow on the left."""
        reach = self.joint(*platform) - self.Rb * along(self.angle)
        square = reach @ reach
        cosine = (square + self.l1**2 - self.l2**2) / (2 * self.l1 * jnp.sqrt(square))
        theta = jnp.arctan2(reach[1], reach[0]) + jnp.arccos(cosine)
        rest = reach - self.l1 * along(theta)
        return jnp.stack([theta, jnp.arctan2(rest[1], rest[0])])


def leg(geometry: Leg, torque: float = 0.0, g: float = G) -> ukjax.Composite:
    """Rotor, pivoted bar and distal bar, joined: level 2."""
    modules = {
        "rotor": ukjax.Module(Rotor(torque=torque), ("psi",)),
        "pivoted": ukjax.Module(PivotedBar(g=g), ("theta",)),
        "distal": ukjax.Module(FreeBar(g=g), ("x", "y", "phi")),
    }
    gears = ukjax.Coupling(("rotor", "pivoted"), ukjax.Holonomic(geometry.gears))
    return ukjax.Composite(
        modules, [gears, ukjax.Coupling(("pivoted", "distal"), ukjax.Holonomic(geometry.elbow_closed))]
    )


def three_rrr(torques=(0.0, 0.0, 0.0), g: float = G) -> ukjax.Composite:
    """The mechanism, levels 2 and 3."""
    geometries = [Leg(angle) for angle in ANGLES]
    modules: dict[str, ukjax.Module | ukjax.Composite] = {
        name: leg(geometries[i], torques[i], g) for i, name in enumerate(LEGS)
    }
    modules["platform"] = ukjax.Module(FreeBar(m=1.5, c=0.0, I=0.02, g=g), ("x", "y", "phi"))
    wrists = [
        ukjax.Coupling((f"{name}.distal", "platform"), ukjax.Holonomic(geometries[i].wrist_closed))
        for i, name in enumerate(LEGS)
    ]
    return ukjax.Composite(modules, wrists)


def loop_again() -> ukjax.Coupling:
    """Level 4: two rows that hold already."""
    return ukjax.Coupling(("A.pivoted", "A.distal", "platform"), ukjax.Holonomic(Leg(ANGLES[0]).loop))


def state(platform, rate=(0.0, 0.0, 0.0)):
    """q, v (18,) with the platform at (x, y, phi) [m, m, rad] and its rates; every elbow on the left of its leg."""

    def all_of(p):
        parts = []
        for angle in ANGLES:
            geometry = Leg(angle)
            bars = geometry.bars(p)
            parts += [geometry.N * bars[:1], bars[:1], geometry.elbow(bars[0]), bars[1:]]
        return jnp.concatenate([*parts, p])

    return jax.jvp(all_of, (jnp.array(platform, float),), (jnp.array(rate, float),))


def energy(mechanism: ukjax.Composite, q, v):
    """[J]; of the modules, whether joined or not."""
    potential = sum(jnp.sum(each) for each in mechanism.on_each(lambda module, q: module.potential(q), q))
    return v @ mechanism.mass(q, jnp.zeros_like(q[0])) @ v / 2 + potential


OF_LEG = (("psi", "rad"), ("theta", "rad"), ("x", "m"), ("y", "m"), ("phi", "rad"))
COORDINATES = (*(f"{of} {name} [{unit}]" for name in LEGS for of, unit in OF_LEG), "X [m]", "Y [m]", "Phi [rad]")

# Platform (x, y, phi) and its rates: in the horizontal plane without torques, in the vertical plane without and with.
STARTS = {
    "horizontal": ((0.03, -0.02, 0.1), (0.25, 0.1, -0.6)),
    "vertical": ((0.0, 0.05, 0.05), (0.1, 0.6, 0.3)),
    "torques": ((0.0, 0.05, 0.05), (0.0, 0.0, 0.0)),
}
TORQUES = (0.8, -0.5, 0.3)
ACTUATION = np.zeros((18, 3))
ACTUATION[[0, 5, 10], [0, 1, 2]] = 1.0


class Path(eqx.Module):
    """Where the platform is to be, (3,) [m, m, rad]: on a circle, turning to and fro."""

    radius: Float[Array, ""]  # [m]
    turn: Float[Array, ""]  # [rad]
    frequency: Float[Array, ""]  # [rad/s]

    def __init__(self, radius=0.05, turn=0.2, frequency=2.0):
        to = lambda x: jnp.asarray(x, float)
        self.radius, self.turn, self.frequency = to(radius), to(turn), to(frequency)

    def __call__(self, t):
        angle = self.frequency * t
        return jnp.stack([*(self.radius * along(angle)), self.turn * jnp.sin(angle)])

    def off(self, q, t):
        """(3,)"""
        return q[-3:] - self(t)


def servo(path: Path, alpha: float = 10.0, beta: float = 10.0) -> ukjax.Servo:
    """The rotors' torques that keep the platform on `path`."""
    return ukjax.Servo(ukjax.Holonomic(path.off, ukjax.Baumgarte.classic(alpha, beta)), ACTUATION)


def scenario(start: str = "horizontal", redundant: bool = False, t1: float = 1.0) -> ukjax.Scenario:
    """`start` is horizontal, vertical or torques; `redundant` adds level 4."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    mechanism = three_rrr(TORQUES if start == "torques" else (0.0, 0.0, 0.0), 0.0 if start == "horizontal" else G)
    if redundant:
        mechanism = mechanism.add(loop_again())
    q0, v0 = state(*STARTS[start])
    conserved = {} if start == "torques" else {"energy [J]": lambda q, v, t: energy(mechanism, q, v)}
    return _scenario(mechanism, q0, v0, t1, name=f"3RRR mechanism, {start}", invariants=conserved)


def driven(radius: float = 0.05, turn: float = 0.2, t1: float = 6.0) -> ukjax.Scenario:
    """The platform on a circle of `radius` [m], turning by `turn` [rad] to and fro, in the vertical plane."""
    path = Path(radius, turn)
    at, rate = jax.jvp(path, (jnp.zeros(()),), (jnp.ones(()),))
    q0, v0 = state(at, rate)
    return _scenario(
        three_rrr(), q0, v0, t1, name="3RRR mechanism, driven", servo=servo(path),
        controls=tuple(f"torque {name} [N m]" for name in LEGS),
        observables={"off the path [m, m, rad]": lambda q, v, t: path.off(q, t)},
    )  # fmt: skip


def _scenario(mechanism: ukjax.Composite, q0, v0, t1, **more) -> ukjax.Scenario:
    return ukjax.Scenario(
        mechanism.mechanism(), q0, v0, t1, coordinates=COORDINATES, projection=ukjax.Projection(),
        formulation=ukjax.Recursive(mechanism.levels), drawing=drawing(),
        source="Orsino (2017), fig. 2 to 4", **more,
    )  # fmt: skip


def drawing() -> ukjax.Drawing:
    """Bars, platform and base."""

    def bars(i):
        geometry = Leg(ANGLES[i])

        def points(q, t):
            base, elbow, phi = geometry.Rb * along(geometry.angle), q[5 * i + 2 : 5 * i + 4], q[5 * i + 4]
            return jnp.stack([base, elbow, elbow + geometry.l2 * along(phi)])

        return points

    def platform(q, t):
        return jnp.stack([Leg(angle).joint(*q[-3:]) for angle in (*ANGLES, ANGLES[0])])

    angle = np.linspace(0, 2 * np.pi, 61)
    base = 0.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    links = {f"leg {name}": bars(i) for i, name in enumerate(LEGS)} | {"platform": platform}
    return ukjax.Drawing(links, trails=("platform",), scenery={"base": base})
