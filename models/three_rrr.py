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

The legs are those of models/rr_leg.py.

Source: Orsino (2017), Recursive modular modelling methodology for lumped-parameter dynamic systems, Proc. R. Soc. A
473; fig. 2 to 4. Its parameters lie in a supplement that we do not have; those here are ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from . import rr_leg
from .rr_leg import FreeBar, G, Leg, along, energy, leg, names


ANGLES = tuple(np.deg2rad((90.0, 210.0, 330.0)))
LEGS = ("A", "B", "C")


def three_rrr(torques=(0.0, 0.0, 0.0), g: float = G) -> ukjax.modular.Composite:
    """The mechanism, levels 2 and 3."""
    geometries = [Leg(angle) for angle in ANGLES]
    modules: dict[str, ukjax.modular.Module | ukjax.modular.Composite] = {
        name: leg(geometries[i], torques[i], g) for i, name in enumerate(LEGS)
    }
    modules["platform"] = ukjax.modular.Module(FreeBar(m=1.5, c=0.0, I=0.02, g=g), ("x", "y", "phi"))
    wrists = [
        ukjax.modular.Coupling((f"{name}.distal", "platform"), ukjax.Holonomic(geometries[i].wrist_closed))
        for i, name in enumerate(LEGS)
    ]
    return ukjax.modular.Composite(modules, wrists)


def loop_again() -> ukjax.modular.Coupling:
    """Level 4: two rows that hold already."""
    return ukjax.modular.Coupling(("A.pivoted", "A.distal", "platform"), ukjax.Holonomic(Leg(ANGLES[0]).loop))


def state(platform, rate=(0.0, 0.0, 0.0)):
    """q, v (18,) with the platform at (x, y, phi) [m, m, rad] and its rates; every elbow on the left of its leg."""
    return rr_leg.state([Leg(angle) for angle in ANGLES], platform, rate)


# Platform (x, y, phi) and its rates: in the horizontal plane without torques, in the vertical plane without and with.
STARTS = {
    "horizontal": ((0.03, -0.02, 0.1), (0.25, 0.1, -0.6)),
    "vertical": ((0.0, 0.05, 0.05), (0.1, 0.6, 0.3)),
    "torques": ((0.0, 0.05, 0.05), (0.0, 0.0, 0.0)),
}
TORQUES = (0.8, -0.5, 0.3)
COORDINATES = (*names(*LEGS), "X [m]", "Y [m]", "Phi [rad]")
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
        observables={"off the path x, y, theta [m, m, rad]": lambda q, v, t: path.off(q, t)},
    )  # fmt: skip


def _scenario(mechanism: ukjax.modular.Composite, q0, v0, t1, **more) -> ukjax.Scenario:
    return ukjax.Scenario(
        mechanism.mechanism(), q0, v0, t1, coordinates=COORDINATES, projection=ukjax.Projection(),
        formulation=ukjax.formulation.Recursive(mechanism.levels), drawing=drawing(),
        source="Orsino (2017), fig. 2 to 4", **more,
    )  # fmt: skip


def drawing() -> ukjax.study.Drawing:
    """Bars, platform and base."""
    legs = [Leg(angle) for angle in ANGLES]
    platform = lambda q, t: jnp.stack([leg.joint(*q[-3:]) for leg in (*legs, legs[0])])
    angle = np.linspace(0, 2 * np.pi, 61)
    base = 0.5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    links = {f"leg {name}": legs[i].drawn(5 * i) for i, name in enumerate(LEGS)} | {"platform": platform}
    return ukjax.study.Drawing(links, trails=("platform",), scenery={"base": base})
