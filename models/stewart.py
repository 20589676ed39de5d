"""Stewart platform: six legs that lengthen, from the base to the platform; six degrees of freedom.

        o-------o             platform: a ring of joints of radius `PLATFORM`, in three pairs `SPREAD` apart
       /|\\     /|\\
      / | \\   / | \\           each leg: a universal joint on the base, a cylinder, a rod that slides
     o--o--o-o--o--o          in it, a ball at the platform
                              base: a ring of radius `BASE`, its pairs half way between those of the platform

The platform hangs on the first leg's ball; the others close five loops with three rows each: 18 + 3 - 15 = 6.

Source: Stewart (1965), A platform with six degrees of freedom; Merlet (2006), Parallel Robots.
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


LEGS = tuple("123456")
BASE, PLATFORM, SPREAD, HEIGHT = 0.6, 0.4, 0.15, 0.7  # [m, m, rad, m]


def anchors() -> tuple[np.ndarray, np.ndarray]:
    """Of the legs on the base, and on the platform seen from it (6, 3) [m]."""
    ring = lambda radius, angle: radius * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    pairs, sign = np.repeat(2 * np.pi * np.arange(3) / 3, 2), np.tile([-1.0, 1.0], 3)
    below = ring(BASE, pairs + sign * (np.pi / 3 - SPREAD))
    return below, ring(PLATFORM, pairs + sign * SPREAD)


def robot(platform: float = 8.0, cylinder: float = 0.6, rod: float = 0.3) -> rigid.Robot:
    """Masses [kg]. The slides are zero where the platform is level, `HEIGHT` above the base."""
    below, above = anchors()
    bodies, joints, feet = {}, {}, {}
    sockets = {f"ball{name}": rigid.Frame(p) for name, p in zip(LEGS, above, strict=True)}
    for name, foot, ball in zip(LEGS, below, above, strict=True):
        way = ball + np.array([0.0, 0.0, HEIGHT]) - foot
        length = np.linalg.norm(way)
        feet[f"foot{name}"] = rigid.Frame(foot, _upright(way / length))
        bar = lambda mass, start, end: rigid.Inertia.cylinder(
            mass, 0.02, end - start, center=(0.0, 0.0, (start + end) / 2)
        )
        bodies[f"cylinder{name}"] = rigid.Body(bar(cylinder, 0.0, 0.6 * length), shapes=_bar(0.0, 0.6 * length))
        tip = {"tip": rigid.Frame((0.0, 0.0, length))}
        bodies[f"rod{name}"] = rigid.Body(bar(rod, 0.4 * length, length), tip, _bar(0.4 * length, length))
        joints[f"foot{name}"] = rigid.Universal(f"ground.foot{name}", f"cylinder{name}", "x", "y")
        joints[f"slide{name}"] = rigid.Prismatic(f"cylinder{name}", f"rod{name}", "z")
        joints[f"ball{name}"] = rigid.Spherical(f"rod{name}.tip", f"platform.ball{name}")
    corners = np.concatenate([above, above[:1]])
    bodies["platform"] = rigid.Body(rigid.Inertia.cylinder(platform, PLATFORM, 0.03), sockets, rigid.Shape(corners))
    motors = {f"slide{name}": rigid.Motor(f"slide{name}") for name in LEGS}
    return rigid.Robot(bodies, joints, frames=feet, motors=motors)


def _bar(start, end) -> rigid.Shape:
    """Along z, there and back."""
    return rigid.Shape([(0.0, 0.0, start), (0.0, 0.0, end), (0.0, 0.0, start)])


def _upright(z: np.ndarray) -> np.ndarray:
    """Axes (3, 3) of which the last is z (3,)."""
    x = np.cross([0.0, 1.0, 0.0], z)
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def lengths(position, R) -> jnp.ndarray:
    """By how much the legs are longer than at the start (6,) [m], of the platform's centre (3,) and rotation (3, 3)."""
    below, above = (jnp.asarray(x) for x in anchors())
    start = jnp.linalg.norm(above + jnp.array([[0.0, 0.0, HEIGHT]]) - below, axis=1)
    return jnp.linalg.norm(position[None] + above @ R.T - below, axis=1) - start


def scenario(sway: float = 0.08, tilt: float = 0.15, turns: float = 0.5, t1: float = 2.0) -> ukjax.Scenario:
    """The legs move the platform to and fro by `sway` [m] and tilt it by `tilt` [rad], `turns` times a second."""
    stewart = robot()
    w = 2 * np.pi * turns

    def wanted(t):
        angle = tilt * jnp.sin(w * t)
        s, c = jnp.sin(angle), jnp.cos(angle)
        zero, one = jnp.zeros_like(s), jnp.ones_like(s)
        R = jnp.stack([jnp.stack([c, zero, s]), jnp.stack([zero, one, zero]), jnp.stack([-s, zero, c])])
        return jnp.stack([sway * jnp.sin(w * t), zero, HEIGHT + sway * (1 - jnp.cos(w * t))]), R

    def off(q, t):
        position, R = wanted(t)
        slides = jnp.stack([stewart.coordinate(q, f"slide{name}") for name in LEGS])
        return slides - lengths(position, R)

    on_path = ukjax.Holonomic(off, ukjax.Baumgarte.classic(20.0, 20.0))
    q, v = stewart.assemble()
    # The legs start at the speeds that the path asks for.
    moving = stewart.mechanism({"path": ukjax.Holonomic(off)})
    q, v = ukjax.assemble(moving, q, v)
    return stewart.scenario(
        q,
        v,
        t1,
        name="Stewart platform",
        projection=ukjax.Projection(),
        servo=ukjax.Servo(on_path, stewart.actuation()),
        controls=[f"leg {name} [N]" for name in LEGS],
        observables={"platform x, y, z [m]": lambda q, v, t: stewart.position(q, "platform")},
        drawing=stewart.drawing(trails=["platform shape 1"]),
        source="Stewart (1965)",
    )
