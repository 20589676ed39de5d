"""Planar mechanisms made of one module, the RR chain of models/rr_leg.py, each by a coupling or two.

    slider-crank            five-bar                three legs on a point

      o                       o-------o tip           C o---o
     / \\                     /         \\                    |
    o   \\                   o           o             A o---o tip---o B
    ------o-- rail         base A      base B                        o base joints at 90, 210, 330 deg
    1 degree of freedom    2                         2, and 3 actuators

With a platform instead of the point it is the 3RRR mechanism of models/three_rrr.py, which has three.

Source: Orsino (2017), Proc. R. Soc. A 473, fig. 1: mechanisms conceived from the same fundamental module.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from .rr_leg import Leg, energy, leg, names, state


ANGLES = tuple(np.deg2rad((90.0, 210.0, 330.0)))


class Rail(eqx.Module):
    """A horizontal line that the tip of a leg slides along."""

    leg: Leg
    y: Float[Array, ""]  # [m]

    def on(self, q, t):
        (distal,) = q
        return (self.leg.tip(distal)[1] - self.y)[None]


class Meeting(eqx.Module):
    """Two legs whose tips are one point."""

    first: Leg
    second: Leg

    def closed(self, q, t):
        return self.first.tip(q[0]) - self.second.tip(q[1])


def slider_crank(t1: float = 2.0) -> ukjax.Scenario:
    """One leg, its tip on a rail."""
    geometry = Leg(np.pi / 2, Rb=0.0, rp=0.0)
    rail = Rail(geometry, jnp.asarray(-0.1))
    mechanism = leg(geometry).add(ukjax.modular.Coupling("distal", ukjax.Holonomic(rail.on)))
    q0, v0 = state([geometry], (0.5, -0.1, 0.0), (0.3, 0.0, 0.0), more=False)
    line = np.array([[-0.8, -0.1], [0.8, -0.1]])
    return _scenario(mechanism, [geometry], q0, v0, t1, "Slider-crank", {"rail": line})


def five_bar(t1: float = 1.0) -> ukjax.Scenario:
    """Two legs that meet."""
    legs = [Leg(angle, rp=0.0) for angle in ANGLES[1:]]
    return _meeting(legs, (0.05, 0.1), (0.2, 0.1), t1, "Five-bar mechanism")


def three_on_a_point(t1: float = 0.5) -> ukjax.Scenario:
    """Three legs that meet: two degrees of freedom, three actuators."""
    legs = [Leg(angle, rp=0.0) for angle in ANGLES]
    return _meeting(legs, (0.05, 0.02), (0.2, 0.1), t1, "Three legs on a point")


def _meeting(legs, at, rate, t1, name) -> ukjax.Scenario:
    letters = "ABC"[: len(legs)]
    modules = {letter: leg(geometry) for letter, geometry in zip(letters, legs, strict=True)}
    joints = [
        ukjax.modular.Coupling(("A.distal", f"{letter}.distal"), ukjax.Holonomic(Meeting(legs[0], other).closed))
        for letter, other in zip(letters[1:], legs[1:], strict=True)
    ]
    q0, v0 = state(legs, (*at, 0.0), (*rate, 0.0), more=False)
    return _scenario(ukjax.modular.Composite(modules, joints), legs, q0, v0, t1, name, {})


def _scenario(mechanism, legs, q0, v0, t1, name, scenery) -> ukjax.Scenario:
    letters = "ABC"[: len(legs)]
    links = {f"leg {letter}": legs[i].drawn(5 * i) for i, letter in enumerate(letters)}
    return ukjax.Scenario(
        mechanism.mechanism(), q0, v0, t1, name=name, coordinates=names(*letters),
        formulation=ukjax.formulation.Recursive(mechanism.levels), projection=ukjax.Projection(),
        invariants={"energy [J]": lambda q, v, t: energy(mechanism, q, v)},
        drawing=ukjax.study.Drawing(links, trails=("leg A",), scenery=scenery), source="Orsino (2017), fig. 1",
    )  # fmt: skip
