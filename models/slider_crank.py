"""Slider-crank: a crank that turns, a rod, and a piston that slides; one degree of freedom.

             o B              y up; A at the origin, the piston C slides along x
            /  `-.            at the crank's angle theta the piston is at r cos(theta) + sqrt(l^2 - r^2 sin^2(theta))
         A o      `-.[C]---

Source: in every textbook, e.g. Haug (1989), Computer Aided Kinematics and Dynamics of Mechanical Systems.
"""

import jax.numpy as jnp

import ukjax
from ukjax import rigid


def robot(r: float = 0.15, l: float = 0.5, masses: tuple[float, float, float] = (0.4, 0.8, 0.6)) -> rigid.Robot:
    """Crank of r and rod of l [m], slender; masses of crank, rod and piston [kg]."""
    along = lambda x: jnp.stack([jnp.asarray(x, float), jnp.zeros(()), jnp.zeros(())])
    bar = lambda m, x: rigid.Body(rigid.Inertia.rod(m, jnp.zeros(3), along(x)), {"end": rigid.Frame(along(x))})
    piston = rigid.Body(rigid.Inertia.box(masses[2], (0.08, 0.06, 0.06)), shapes=rigid.Shape.box((0.08, 0.06, 0.06)))
    return rigid.Robot(
        {"crank": bar(masses[0], r), "rod": bar(masses[1], l), "piston": piston},
        {
            "A": rigid.Revolute("ground", "crank"),
            "B": rigid.Revolute("crank.end", "rod"),
            "slide": rigid.Prismatic("ground", "piston", "x"),
            "C": rigid.Revolute("piston", "rod.end"),
        },
        gravity=(0.0, -9.81, 0.0),
        planar=True,
    )


def scenario(angle: float = 0.8, rate: float = 15.0, t1: float = 2.0) -> ukjax.Scenario:
    """From the crank's `angle` [rad] at `rate` [rad/s]."""
    engine = robot()
    q, v = engine.assemble({"A": angle, "B": -1.3 * angle, "slide": 0.6}, {"A": rate}, keep=["A"])
    return engine.scenario(
        q,
        v,
        t1,
        name="Slider-crank",
        projection=ukjax.Projection(),
        invariants={"energy [J]": engine.energy},
        observables={"piston [m]": lambda q, v, t: engine.coordinate(q, "slide")},
        source="Haug (1989)",
    )
