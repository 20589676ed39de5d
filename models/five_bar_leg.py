"""Leg of a quadruped: a loop of five bars, two motors at the hip, in the plane of the leg.

            hips  1 o--o 2        the trunk on a vertical rail; two thighs of `THIGH`, two shanks of `SHANK`,
                   /    \\         joined at the foot
                  o      o        swinging: the foot follows an ellipse below the trunk, which is held
                   \\    /         standing: the foot is pinned to the ground, and the motors lift the trunk
                    `..´ foot

Coordinates: the height of the trunk, the angles of thighs and shanks; the foot closes a loop with two rows.

Source: the mechanism of Minitaur, Kenneally, De & Koditschek (2016), Design principles for a family of
direct-drive legged robots.
"""

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


THIGH, SHANK, HIPS = 0.1, 0.2, 0.06  # [m]
DROP = 0.22  # of the foot below the hips [m]


def robot(trunk: float = 1.5, density: float = 0.8, standing: bool = False) -> rigid.Robot:
    """`trunk`: the part of its mass that one leg carries [kg]; bars of `density` [kg/m]."""
    bar = lambda length: rigid.Body(
        rigid.Inertia.rod(density * length, (0.0, 0.0, 0.0), (length, 0.0, 0.0)),
        {"end": rigid.Frame((length, 0.0, 0.0))},
    )
    hips = {f"hip{k}": rigid.Frame((sign * HIPS / 2, 0.0, 0.0)) for k, sign in ((1, -1), (2, 1))}
    size = (2 * HIPS, HIPS / 2, HIPS)
    bodies = {"trunk": rigid.Body(rigid.Inertia.box(trunk, size), hips, rigid.Shape.box(size))}
    joints: dict[str, rigid.AbstractJoint] = {"rail": rigid.Prismatic("ground", "trunk", "y")}
    for k in (1, 2):
        bodies |= {f"thigh{k}": bar(THIGH), f"shank{k}": bar(SHANK)}
        joints[f"hip{k}"] = rigid.Revolute(f"trunk.hip{k}", f"thigh{k}")
        joints[f"knee{k}"] = rigid.Revolute(f"thigh{k}.end", f"shank{k}")
    joints["foot"] = rigid.Revolute("shank1.end", "shank2.end")
    if standing:
        joints["pin"] = rigid.Revolute("ground", "shank1.end")
    motors = {f"motor{k}": rigid.Motor(f"hip{k}") for k in (1, 2)}
    return rigid.Robot(bodies, joints, motors=motors, gravity=(0.0, -9.81, 0.0), planar=True)


# Both knees outwards.
ROUGH = {"hip1": -2.6, "knee1": 1.4, "hip2": -0.5, "knee2": -1.4}


def swinging(width: float = 0.08, lift: float = 0.04, turns: float = 2.0, t1: float = 1.0) -> ukjax.Scenario:
    """The foot on an ellipse [m], `turns` a second, and the trunk held."""
    leg = robot()
    w = 2 * np.pi * turns

    def off(q, t):
        foot = leg.position(q, "shank1.end")[:2]
        return foot - jnp.stack([width / 2 * jnp.cos(w * t), -DROP + lift / 2 * jnp.sin(w * t)])

    hung = {"trunk held": ukjax.Holonomic(lambda q, t: q[:1])}
    q, v = leg.assemble(ROUGH)
    q, v = ukjax.assemble(leg.mechanism({**hung, "path": ukjax.Holonomic(off)}), q, v)
    return leg.scenario(
        q,
        v,
        t1,
        mechanism=leg.mechanism(hung),
        name="Leg of five bars, swinging",
        **_driven(leg, ukjax.Holonomic(off, ukjax.Baumgarte.classic(40.0, 40.0))),
    )


def standing(rise: float = 0.04, turns: float = 1.0, t1: float = 2.0) -> ukjax.Scenario:
    """The foot stays where it is, and the trunk goes up and down by `rise` [m] as seen from `DROP`."""
    leg = robot(standing=True)
    w = 2 * np.pi * turns
    off = lambda q, t: (q[0] - DROP - rise / 2 * jnp.sin(w * t))[None]
    # It cannot sway: the rail takes what is sideways, and of the two torques the least are taken.
    q, v = leg.assemble({**ROUGH, "rail": DROP})
    q, v = ukjax.assemble(leg.mechanism({"path": ukjax.Holonomic(off)}), q, v)
    return leg.scenario(
        q,
        v,
        t1,
        name="Leg of five bars, standing",
        **_driven(leg, ukjax.Holonomic(off, ukjax.Baumgarte.classic(40.0, 40.0))),
    )


def _driven(leg: rigid.Robot, path: ukjax.Holonomic) -> dict:
    """What both scenarios have."""
    return {
        "projection": ukjax.Projection(),
        "servo": ukjax.Servo(path, leg.actuation()),
        "controls": ["motor 1 [N m]", "motor 2 [N m]"],
        "observables": {"foot x, y [m]": lambda q, v, t: leg.position(q, "shank1.end")[:2]},
        "drawing": leg.drawing(trails=["shank1"]),
        "source": "Kenneally et al. (2016)",
    }
