"""Hoeken's linkage: a four-bar whose coupler's tip goes almost straight for half a turn of the crank.

                 P              crank A-B of r, ground A-C of 2 r; coupler B-D, rocker C-D and the
                /               coupler's tip D-P of 2.5 r each
               D
              / `.              at the crank's angle pi (B away from C) P is in the middle of the straight
        B.  /     `.            part, at x = 2 r, y = 4 r: above C
          `A---------C

Source: Hoeken (1926); Norton (2012), Design of Machinery, 3.8.
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


def robot(r: float = 0.2, density: float = 1.0) -> rigid.Robot:
    """Of crank r [m]; slender rods of `density` [kg/m]."""
    along = lambda x: jnp.stack([jnp.asarray(x, float), jnp.zeros(()), jnp.zeros(())])
    bar = lambda length: rigid.Inertia.rod(density * length, jnp.zeros(3), along(length))
    frame = lambda x: rigid.Frame(along(x))
    bodies = {
        "crank": rigid.Body(bar(r), {"B": frame(r)}),
        "coupler": rigid.Body(bar(5 * r), {"D": frame(2.5 * r), "P": frame(5 * r)}, _line(5 * r)),
        "rocker": rigid.Body(bar(2.5 * r), {"D": frame(2.5 * r)}),
    }
    joints = {
        "A": rigid.Revolute("ground", "crank"),
        "B": rigid.Revolute("crank.B", "coupler"),
        "C": rigid.Revolute("ground.C", "rocker"),
        "D": rigid.Revolute("rocker.D", "coupler.D"),
    }
    return rigid.Robot(bodies, joints, gravity=(0.0, -9.81, 0.0), frames={"C": frame(2 * r)}, planar=True)


def _line(length) -> rigid.Shape:
    """From the coupler's start to its tip."""
    return rigid.Shape([(0.0, 0.0, 0.0), (float(length), 0.0, 0.0)])


def start(linkage: rigid.Robot, angle: float, rate: float) -> tuple[jnp.ndarray, jnp.ndarray]:
    """q and v at the crank's angle [rad] and rate [rad/s], with the coupler's tip above."""
    rough = {"A": angle, "B": np.arctan2(4.0, 3.0) - angle, "C": 1.6}
    q, v = linkage.assemble(rough, {"A": rate}, keep=["A"])
    return q, v


def scenario(angle: float = np.pi, rate: float = 3.0, t1: float = 4.0) -> ukjax.Scenario:
    """A motor keeps the crank's rate."""
    linkage = robot()
    q, v = start(linkage, angle, rate)
    steady = ukjax.Holonomic(lambda q, t: (q[0] - angle - rate * t)[None], ukjax.Baumgarte.classic(10.0, 10.0))
    return linkage.scenario(
        q,
        v,
        t1,
        name="Hoeken's linkage",
        projection=ukjax.Projection(),
        servo=ukjax.Servo(steady, linkage.actuation("A")),
        controls=["motor [N m]"],
        observables={"P x, y [m]": lambda q, v, t: linkage.position(q, "coupler.P")[:2]},
        drawing=linkage.drawing(trails=["coupler shape 1"]),
        source="Hoeken (1926)",
    )
