"""Stiff flyball governor: two rods with balls on a shaft that turns, and a slider on it, hung on them by springs.

       A o---+---o B         z up, about which the shaft turns; A and B are PIVOT off it, at its upper end
        /    |    \\          rods as long as the shaft, at 30 degrees below the horizontal, a ball at the end of each
       +~~~[S]~~~+           from the middle of each rod a spring with a damper to the side of the slider S
      /      |      \\
     O       |       O

Four coordinates: the angle of the shaft, the height of the slider above the middle of the shaft, the angles of the
rods. The springs stand for two further rods: they are so stiff that explicit methods take 1 600 steps a second.

Source: IFToMM's library of benchmark problems, A05.
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


G, DENSITY = 9.81, 3000.0  # [m/s^2, kg/m^3]
LENGTH, WIDTH, SIDE, PIVOT = 1.0, 0.01, 0.1, 0.05  # of shaft and rods, of the slider, of the pivots off the shaft [m]
BALL, ANGLE, HEIGHT = 5.0, np.pi / 6, 0.5  # [kg, rad, m]
RATE = 2 * np.pi  # [rad/s]


def robot(stiffness: float = 8e5, damping: float = 4e4, length: float = 0.5) -> rigid.Robot:
    """Springs of `stiffness` [N/m], `damping` [N s/m] and relaxed `length` [m]; all angles zero at the start."""
    bar = DENSITY * LENGTH * WIDTH**2
    shaft = rigid.Inertia.box(bar, (WIDTH, WIDTH, LENGTH), (0.0, 0.0, LENGTH / 2))
    slider = rigid.Inertia.box(DENSITY * SIDE**3, (SIDE,) * 3)
    pins = {side: rigid.Frame((sign * PIVOT, 0.0, LENGTH)) for side, sign in (("A", 1), ("B", -1))}
    hooks = {side: rigid.Frame((sign * SIDE / 2, 0.0, 0.0)) for side, sign in (("A", 1), ("B", -1))}
    bodies = {
        "shaft": rigid.Body(shaft, {**pins, "middle": rigid.Frame((0.0, 0.0, HEIGHT))}),
        "slider": rigid.Body(slider, hooks, rigid.Shape.box((SIDE,) * 3)),
    }
    joints = {
        "turn": rigid.Revolute("ground", "shaft", "z"),
        "slide": rigid.Prismatic("shaft.middle", "slider", "z"),
    }
    springs = {}
    for side, sign in (("A", 1.0), ("B", -1.0)):
        way = LENGTH * jnp.array([sign * jnp.cos(ANGLE), 0.0, -jnp.sin(ANGLE)])
        bodies[f"rod {side}"] = rigid.Body(
            _rod_and_ball(bar, way), {"middle": rigid.Frame(way / 2)}, rigid.Shape.sphere(0.06, way)
        )
        joints[side] = rigid.Revolute(f"shaft.{side}", f"rod {side}", (0.0, -sign, 0.0))
        springs[side] = rigid.Spring(f"slider.{side}", f"rod {side}.middle", stiffness, length, damping)
    return rigid.Robot(bodies, joints, gravity=(0.0, 0.0, -G), forces=springs)


def _rod_and_ball(mass: float, way: jnp.ndarray) -> rigid.Inertia:
    """Of a rod along `way` (3,) [m], as thick as the shaft, and a point at its end."""
    along = way[:, None] * way[None] / (way @ way)
    across = jnp.eye(3) - along
    moments = mass / 12 * ((LENGTH**2 + WIDTH**2) * across + 2 * WIDTH**2 * along)
    whole = mass + BALL
    # The two about their common centre of mass, which are mass BALL / whole times the square of their distance.
    apart = mass * BALL / whole * (LENGTH / 2) ** 2
    return rigid.Inertia(whole, moments + apart * across, (mass / 2 + BALL) / whole * way)


def scenario(rate: float = RATE, t1: float = 5.0) -> ukjax.Scenario:
    """The shaft starts with `rate` [rad/s], the rest at rest on it; left to itself. The benchmark takes 10 s."""
    governor = robot()
    return governor.scenario(
        jnp.zeros(4),
        jnp.array([rate, 0.0, 0.0, 0.0]),
        t1,
        name="Stiff flyball governor (IFToMM A05)",
        observables={"height of the slider [m]": lambda q, v, t: HEIGHT + q[1]},
        invariants={"angular momentum [kg m^2/s]": lambda q, v, t: governor.mass(q, t)[0] @ v},
        drawing=governor.drawing(trails=["rod A", "rod B"]),
        source="IFToMM benchmark A05",
    )
