"""Bricard's linkage: five rods and six hinges in a ring, which by counting could not move, and does.

        P4 o-----------o P3          rods of 1 m along the edges of a cube; hinges at P0 to P5, in turn about
           |          /              y, z, x, y, z, x; P0 and P5 are on the ground; gravity along -y
           |         / along z
        P5 o        o P2
       (ground)     |
        P0 o--------o P1             y up, x to the right, z towards P3 to P5
       (ground)

Five coordinates, the angles of the hinges at P0 to P4; the hinge at P5 closes the loop with five rows, of which one
depends on the others at every state. Gruebler's count says that nothing moves; there is one degree of freedom.

Source: IFToMM's library of benchmark problems, A04 (Bricard 1897). Of the two inertias in use these are slender rods.
"""

from itertools import pairwise

import jax.numpy as jnp

import ukjax
from ukjax import rigid


G = 9.81  # [m/s^2]
POINTS = ((0, 0, 0), (1, 0, 0), (1, -1, 0), (1, -1, 1), (0, -1, 1), (0, 0, 1))  # [m]
AXES = "yzxyzx"


def robot(m: float = 1.0, length: float = 1.0, g: float = G) -> rigid.Robot:
    """The linkage; m: mass of a rod [kg]."""
    bodies = {}
    for i, (start, end) in enumerate(pairwise(POINTS)):
        way = length * (jnp.array(end, float) - jnp.array(start, float))
        bodies[f"rod{i + 1}"] = rigid.Body(rigid.Inertia.rod(m, 0 * way, way), {"end": rigid.Frame(way)})
    ends = ["ground", *(f"rod{i}.end" for i in range(1, 6))]
    starts = [*(f"rod{i}" for i in range(1, 6)), "ground.P5"]
    joints = {f"P{i}": rigid.Revolute(ends[i], starts[i], AXES[i]) for i in range(6)}
    frames = {"P5": rigid.Frame(length * jnp.array(POINTS[5], float))}
    return rigid.Robot(bodies, joints, gravity=(0.0, -g, 0.0), frames=frames)


def scenario(m: float = 1.0, length: float = 1.0, g: float = G) -> ukjax.Scenario:
    """From rest, on the edges of the cube."""
    linkage = robot(m, length, g)
    q = jnp.zeros(5)
    return linkage.scenario(
        q,
        q,
        10.0,
        name="Bricard",
        projection=ukjax.Projection(),
        invariants={"energy [J]": linkage.energy},
        observables={"P3 x, y, z [m]": lambda q, v, t: linkage.position(q, "rod3.end")},
        drawing=linkage.drawing(trails=["rod3"]),
        source="IFToMM benchmark A04",
    )
