"""Delta robot: a platform that three arms on the base carry by two parallel rods each; it moves without turning.

         base  o-----o          z up; arm i lies in the vertical plane at the angle 2 pi i / 3
              /       \\         its hinge is `base` off the centre; it goes out and down from there
        arm  o         o        from its elbow two rods, `half` to either side, to the platform,
              \\       /         `platform` off its centre
          rods \\o---o/

Ten speeds, three angles of the arms and six of the platform; six rods of fixed length leave three degrees of freedom.
For the angles of the arms given, the platform's centre is where three spheres meet.

Source: Clavel (1988), Delta, a fast robot with parallel geometry.
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


ARMS = ("1", "2", "3")
BASE, PLATFORM, HALF, UPPER, LOWER = 0.2, 0.05, 0.04, 0.3, 0.7  # [m]


def robot(upper: float = 0.4, platform: float = 0.6) -> rigid.Robot:
    """Masses of an arm and of the platform [kg]; the rods have none."""
    inertia = rigid.Inertia.cylinder(platform, PLATFORM, 0.02)
    bodies, joints, hinges, sockets = {}, {}, {}, {}
    for i, name in enumerate(ARMS):
        angle = 2 * np.pi * i / 3
        out, side = np.array([np.cos(angle), np.sin(angle), 0.0]), np.array([-np.sin(angle), np.cos(angle), 0.0])
        hinges[f"hinge{name}"] = rigid.Frame(BASE * out, (0.0, 0.0, angle))
        elbows = {k: rigid.Frame((UPPER, sign * HALF, 0.0)) for k, sign in (("left", 1), ("right", -1))}
        arm = rigid.Inertia.rod(upper, (0.0, 0.0, 0.0), (UPPER, 0.0, 0.0))
        bodies[f"arm{name}"] = rigid.Body(arm, {**elbows, "tip": rigid.Frame((UPPER, 0.0, 0.0))})
        # A positive angle lets the arm down.
        joints[f"motor{name}"] = rigid.Revolute(f"ground.hinge{name}", f"arm{name}", "y")
        for k, sign in (("left", 1), ("right", -1)):
            sockets[f"{k}{name}"] = rigid.Frame(PLATFORM * out + sign * HALF * side)
            joints[f"{k}{name}"] = rigid.Distance(f"arm{name}.{k}", f"platform.{k}{name}", LOWER)
    corners = [tuple(np.asarray(frame.position)) for frame in sockets.values()]
    bodies["platform"] = rigid.Body(inertia, sockets, rigid.Shape([*corners, corners[0]]))
    joints["free"] = rigid.Free("ground", "platform")
    motors = {f"motor{name}": rigid.Motor(f"motor{name}") for name in ARMS}
    return rigid.Robot(bodies, joints, frames=hinges, motors=motors)


def center(angles: np.ndarray) -> np.ndarray:
    """Where the platform's centre is, below the base (3,) [m], for the arms' angles (3,) [rad]: three spheres meet."""
    turn = 2 * np.pi * np.arange(3) / 3
    reach = BASE - PLATFORM + UPPER * np.cos(angles)
    c = np.stack([reach * np.cos(turn), reach * np.sin(turn), -UPPER * np.sin(angles)], axis=1)
    # By differences of the spheres a line, then the lower of its two points.
    A = 2 * (c[1:] - c[0])
    b = np.sum(c[1:] ** 2, axis=1) - np.sum(c[0] ** 2)
    along = np.cross(A[0], A[1])
    along = along / np.linalg.norm(along)
    p = np.linalg.lstsq(A, b, rcond=None)[0]
    off = p - c[0]
    half = off @ along
    way = -half - np.sqrt(half**2 - off @ off + LOWER**2) * np.sign(along[2])
    return p + way * along


def scenario(radius: float = 0.12, height: float = -0.55, turns: float = 1.0, t1: float = 2.0) -> ukjax.Scenario:
    """The motors lead the platform round a circle of `radius` [m] at `height` [m], `turns` a second."""
    delta = robot()
    w = 2 * np.pi * turns

    def off(q, t):
        return delta.position(q, "platform") - jnp.stack(
            [radius * jnp.cos(w * t), radius * jnp.sin(w * t), jnp.full_like(t, height)]
        )

    on_path = ukjax.Holonomic(off, ukjax.Baumgarte.classic(20.0, 20.0))
    start = {"free": [radius, 0.0, height, 1.0, 0.0, 0.0, 0.0], **{f"motor{name}": 0.3 for name in ARMS}}
    rates = {"free": [0.0, radius * w, 0.0, 0.0, 0.0, 0.0]}
    q, v = delta.assemble(start, rates, keep=["free"])
    return delta.scenario(
        q,
        v,
        t1,
        name="Delta robot",
        projection=ukjax.Projection(),
        servo=ukjax.Servo(on_path, delta.actuation()),
        controls=[f"motor {name} [N m]" for name in ARMS],
        observables={"platform x, y, z [m]": lambda q, v, t: delta.position(q, "platform")},
        drawing=_drawing(delta),
        source="Clavel (1988)",
    )


def _drawing(delta: rigid.Robot) -> ukjax.study.Drawing:
    """Arms, rods and platform; the base as a triangle."""
    ends = [(f"arm{name}.{k}", f"platform.{k}{name}") for name in ARMS for k in ("left", "right")]
    line = lambda ends: lambda q, t: jnp.stack([delta.position(q, end) for end in ends])
    links = {f"arm {name}": line((f"ground.hinge{name}", f"arm{name}.tip")) for name in ARMS}
    links |= {f"rod {first.partition('.')[0]} {first.partition('.')[2]}": line((first, other)) for first, other in ends}
    links["platform"] = line([f"platform.{k}{name}" for name in (*ARMS, "1") for k in ("left", "right")][:7])
    links["center"] = line(("platform",))
    base = np.array([np.asarray(delta.frames[f"hinge{name}"].position) for name in (*ARMS, "1")])
    return ukjax.study.Drawing(links, trails=("center",), scenery={"base": base})
