"""Robots with closed chains in space, in the shape of those that people name, as URDF texts and loops beside them.

A URDF is a tree, so it holds no loop; `Chain.loops` says which frames coincide, in the form that
`ukjax.rigid.from_urdf` reads. All frames are parallel to the ground's where the robot is drawn. Lengths of rods that
close a loop are rounded to a millimetre, so the drawn pose is open by as much, and `assemble` closes it.

    digit_leg      z up   hip of three hinges, thigh, shin, tarsus, foot; a rod from the thigh to the heel of the
                          tarsus, and two rods from cranks on the tarsus, which pitch and roll the foot
    cassie_legs           two legs: a rod from the thigh to the heel of the tarsus, a rod from a crank to the foot
    wl16_legs             two feet, each on six struts that slide between a universal and a ball joint
    kangaroo_ankle        a foot on a universal joint, with two struts behind it
    five_bar              two arms, joined by a ball at the ends of their forearms

`standing_leg` is the first of them on the ground, with a pelvis on a vertical rail, as single legs are tested. It
squats; the ankle rolls and pitches its foot. `knee_leg` has a knee that may pass the straight leg.

Lengths, masses and axes are our own. The shapes follow robots that are described by Hubicki et al. (2016), ATRIAS;
Sugahara et al. (2004), WL-16; Roig et al. (2022), Kangaroo.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import ukjax
from ukjax import rigid


Point = tuple[float, float, float]
X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
BASE = "base"
# Kinds of joints that a URDF does not have, in the words of the loops beside it.
RETYPED = {"spherical": "SPHERICAL", "universal": "UJOINT_XY"}


class Rod(NamedTuple):
    """A slender body from the point `at` to the point `to`, on a joint at `at` that the body `on` carries."""

    name: str
    on: str
    kind: str
    axis: Point
    at: Point
    to: Point
    mass: float
    radius: float = 0.02

    def inertia(self) -> np.ndarray:
        """About the centre of mass (3, 3) [kg m^2]."""
        along = np.subtract(self.to, self.at)
        length = np.linalg.norm(along)
        d = np.outer(along, along) / length**2
        across = self.mass * (3 * self.radius**2 + length**2) / 12
        return across * (np.eye(3) - d) + self.mass * self.radius**2 / 2 * d


class Loop(NamedTuple):
    """The body `one` is held on the body `other`, at points that coincide: "3D" a ball, "5D" a hinge, "6D" a weld."""

    one: str
    other: str
    at: Point
    to: Point
    kind: str = "3D"
    axis: Point = Z


class Chain(NamedTuple):
    """A robot with closed chains."""

    name: str
    rods: tuple[Rod, ...]
    closed: tuple[Loop, ...]
    motors: tuple[str, ...]

    def text(self) -> str:
        """The URDF."""
        origin = {BASE: (0.0, 0.0, 0.0)} | {rod.name: rod.at for rod in self.rods}
        lines = [f'<robot name="{self.name}">', f'<link name="{BASE}"/>']
        for rod in self.rods:
            I, middle = rod.inertia(), np.subtract(rod.to, rod.at) / 2
            moments = " ".join(
                f'i{a}{b}="{float(I[i, j])!r}"'
                for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate("xyz"), 2)
            )
            lines.append(
                f'<link name="{rod.name}"><inertial><origin xyz="{_text(middle)}"/><mass value="{rod.mass!r}"/>'
                f"<inertia {moments}/></inertial></link>"
            )
            kind = "continuous" if rod.kind in RETYPED else rod.kind
            lines.append(_joint(f"{rod.name}_joint", kind, rod.on, rod.name, rod.axis, origin[rod.on], rod.at))
        for i, loop in enumerate(self.closed):
            for side, on, at in (("A", loop.one, loop.at), ("B", loop.other, loop.to)):
                name = f"loop{i}_{side}"
                lines.append(f'<link name="{name}"/>')
                turn = _towards(loop.axis) if loop.kind == "5D" else ""
                lines.append(_joint(f"{name}_joint", "fixed", on, name, None, origin[on], at, turn))
        return "\n".join([*lines, "</robot>"])

    def loops(self) -> dict[str, list]:
        """What a YAML beside the URDF says."""
        retyped = [rod for rod in self.rods if rod.kind in RETYPED]
        return {
            "closed_loop": [[f"loop{i}_A", f"loop{i}_B"] for i in range(len(self.closed))],
            "type": [loop.kind for loop in self.closed],
            "name_mot": [f"{name}_joint" for name in self.motors],
            "joint_name": [f"{rod.name}_joint" for rod in retyped],
            "joint_type": [RETYPED[rod.kind] for rod in retyped],
        }

    def robot(self) -> rigid.Robot:
        return rigid.from_urdf(self.text(), loops=self.loops())


def _point(x: Sequence[float] | np.ndarray) -> Point:
    return float(x[0]), float(x[1]), float(x[2])


def _text(x: Sequence[float] | np.ndarray) -> str:
    return " ".join(repr(float(y)) for y in x)


def _joint(name: str, kind: str, on: str, to: str, axis: Point | None, start: Point, at: Point, turn: str = "") -> str:
    origin = f'<origin xyz="{_text(np.subtract(at, start))}"{turn}/>'
    axis_text = "" if axis is None else f'<axis xyz="{_text(axis)}"/>'
    return f'<joint name="{name}" type="{kind}"><parent link="{on}"/><child link="{to}"/>{origin}{axis_text}</joint>'


def _towards(axis: Point) -> str:
    """The angles that turn z to a coordinate axis."""
    turns = {X: f"0 {np.pi / 2!r} 0", Y: f"{-np.pi / 2!r} 0 0", Z: "0 0 0"}
    return f' rpy="{turns[axis]}"'


def _depth_first(rods: Sequence[Rod], on: str = BASE) -> tuple[Rod, ...]:
    """The rods in the order of q: each before those that it carries."""
    return tuple(x for rod in rods if rod.on == on for x in (rod, *_depth_first(rods, rod.name)))


def _hinge(name: str, on: str, axis: Point, at: Point, to: Point, mass: float) -> Rod:
    return Rod(name, on, "continuous", axis, at, to, mass)


def _brace(name: str, on: str, to: str, at: Point, end: Point, mass: float, kind: str = "spherical", loop: str = "3D"):
    """A rod of rounded length from `at`, on the body `on`, towards `end`, on the body `to`; and the loop it closes."""
    along = np.subtract(end, at)
    length = np.linalg.norm(along)
    tip = _point(np.asarray(at) + along / length * np.round(length, 3))
    rod = Rod(name, on, kind, X if kind != "continuous" else Y, at, tip, mass, 0.008)
    return rod, Loop(name, to, tip, end, loop)


def digit_leg() -> Chain:
    """27 speeds and 18 rows: nine degrees of freedom, of which three are the spins of rods between two balls."""
    rods = [
        _hinge("hip_roll", BASE, X, (0.0, 0.0, 0.0), (0.0, 0.0, -0.06), 1.5),
        _hinge("hip_yaw", "hip_roll", Z, (0.0, 0.0, -0.06), (0.0, 0.02, -0.12), 1.2),
        _hinge("thigh", "hip_yaw", Y, (0.0, 0.02, -0.12), (0.25, 0.02, -0.37), 4.0),
        _hinge("shin", "thigh", Y, (0.25, 0.02, -0.37), (-0.1, 0.02, -0.67), 1.6),
        _hinge("tarsus", "shin", Y, (-0.1, 0.02, -0.67), (0.1, 0.02, -1.02), 1.3),
        _hinge("foot_pitch", "tarsus", Y, (0.1, 0.02, -1.02), (0.1, 0.02, -1.04), 0.2),
        _hinge("foot", "foot_pitch", X, (0.1, 0.02, -1.02), (0.22, 0.02, -1.06), 0.5),
    ]
    closed = []
    brace, loop = _brace("achilles", "thigh", "tarsus", (-0.03, 0.06, -0.15), (-0.18, 0.06, -0.63), 0.3)
    braces = [(brace, loop)]
    for side, sign in (("left", 1), ("right", -1)):
        y = 0.02 + sign * 0.05
        at, end = (-0.04, y, -0.77), (-0.1, y, -0.78)
        rods.append(_hinge(f"crank_{side}", "tarsus", Y, at, end, 0.2))
        braces.append(_brace(f"toe_{side}", f"crank_{side}", "foot", end, (0.04, y, -1.03), 0.15))
    for rod, loop in braces:
        # A ball at either end: the one at the tip is a joint of the tree, on which a bead is welded to the loop.
        bead = Rod(
            f"{rod.name}_bead", rod.name, "spherical", X, rod.to, _point(np.add(rod.to, (0.0, 0.0, 0.01))), 0.02, 0.01
        )
        rods += [rod, bead]
        closed.append(Loop(bead.name, loop.other, loop.at, loop.to, "6D"))
    motors = ("hip_roll", "hip_yaw", "thigh", "shin", "crank_left", "crank_right")
    return Chain("digit_leg", _depth_first(rods), tuple(closed), motors)


def cassie_legs() -> Chain:
    """22 speeds and 12 rows, two of which are redundant: the plantar rods turn in the plane of their cranks."""
    rods, closed, motors = [], [], []
    for side, sign in (("left", 1), ("right", -1)):
        y, name = sign * 0.13, lambda part, side=side: f"{side}_{part}"
        rods += [
            _hinge(name("roll"), BASE, X, (0.0, y, 0.0), (-0.02, y, -0.05), 1.8),
            _hinge(name("yaw"), name("roll"), Z, (-0.02, y, -0.05), (0.0, y, -0.1), 1.6),
            _hinge(name("thigh"), name("yaw"), Y, (0.0, y, -0.1), (0.3, y, -0.4), 4.2),
            _hinge(name("shin"), name("thigh"), Y, (0.3, y, -0.4), (0.05, y, -0.6), 0.8),
            _hinge(name("tarsus"), name("shin"), Y, (0.05, y, -0.6), (0.25, y, -0.95), 0.8),
            _hinge(name("foot"), name("tarsus"), Y, (0.25, y, -0.95), (0.37, y, -0.98), 0.2),
            _hinge(name("crank"), name("tarsus"), Y, (0.12, y, -0.7), (0.06, y, -0.72), 0.15),
        ]
        for rod, loop in (
            _brace(
                name("achilles"), name("thigh"), name("tarsus"), (-0.02, y + 0.04, -0.15), (-0.05, y + 0.04, -0.57), 0.3
            ),
            _brace(
                name("plantar"), name("crank"), name("foot"), (0.06, y, -0.72), (0.19, y, -0.96), 0.12, "continuous"
            ),
        ):
            rods.append(rod)
            closed.append(loop)
        motors += [name(part) for part in ("roll", "yaw", "thigh", "shin", "crank")]
    return Chain("cassie_legs", _depth_first(rods), tuple(closed), tuple(motors))


def wl16_legs() -> Chain:
    """42 speeds and 30 rows: two feet of six degrees of freedom, each on six struts."""
    rods, closed, motors = [], [], []
    for side, sign in (("left", 1), ("right", -1)):
        foot = f"{side}_foot"
        for i, angle in enumerate(np.pi / 3 * np.arange(6)):
            # Pairs of struts meet above and below in turn.
            up, low = angle + (-1) ** i * 0.35, angle - (-1) ** i * 0.35
            at = (0.14 * np.cos(up), sign * 0.15 + 0.14 * np.sin(up), 0.0)
            end = (0.11 * np.cos(low), sign * 0.15 + 0.11 * np.sin(low), -0.7)
            half = np.add(at, np.round(0.5 * np.subtract(end, at), 3))
            cylinder, piston = f"{side}_cylinder{i}", f"{side}_piston{i}"
            along = np.subtract(end, half)
            axis = _point(along / np.linalg.norm(along))
            at, half = _point(at), _point(half)
            rods.append(Rod(cylinder, BASE, "universal", X, at, half, 1.1, 0.025))
            slider, loop = _brace(piston, cylinder, foot, half, _point(end), 0.6)
            rods.append(slider._replace(kind="prismatic", axis=axis))
            if i:
                closed.append(loop)
            else:
                toe = (0.2, sign * 0.15, -0.74)
                rods.append(Rod(foot, piston, "spherical", X, loop.at, toe, 2.5, 0.04))
            motors.append(piston)
    return Chain("wl16_legs", tuple(rods), tuple(closed), tuple(motors))


def kangaroo_ankle() -> Chain:
    """Eight speeds and six rows: the foot pitches and rolls."""
    rods = [
        _hinge("cross", BASE, Y, (0.0, 0.0, -0.4), (0.0, 0.02, -0.4), 0.1),
        _hinge("foot", "cross", X, (0.0, 0.0, -0.4), (0.12, 0.0, -0.44), 0.9),
    ]
    closed = []
    for side, sign in (("left", 1), ("right", -1)):
        at, end = (-0.05, sign * 0.06, -0.08), (-0.06, sign * 0.05, -0.41)
        half = _point(0.5 * np.add(at, end))
        axis = np.subtract(end, at)
        rods.append(Rod(f"cylinder_{side}", BASE, "universal", X, at, half, 0.7))
        slider, loop = _brace(f"piston_{side}", f"cylinder_{side}", "foot", half, end, 0.4)
        rods.append(slider._replace(kind="prismatic", axis=_point(axis / np.linalg.norm(axis))))
        closed.append(loop)
    return Chain("kangaroo_ankle", tuple(rods), tuple(closed), ("piston_left", "piston_right"))


def five_bar() -> Chain:
    """Five speeds and three rows, of rank two: all hinges turn about y."""
    rods = [
        _hinge("left_arm", BASE, Y, (-0.1, 0.0, 0.0), (-0.25, 0.0, -0.2), 1.0),
        _hinge("right_arm", BASE, Y, (0.1, 0.0, 0.0), (0.25, 0.0, -0.2), 1.0),
        _hinge("left_forearm", "left_arm", Y, (-0.25, 0.0, -0.2), (0.0, 0.0, -0.5), 0.6),
        _hinge("foot", "left_forearm", Y, (0.0, 0.0, -0.5), (0.05, 0.0, -0.55), 0.3),
    ]
    rod, loop = _brace(
        "right_forearm", "right_arm", "left_forearm", (0.25, 0.0, -0.2), (0.0, 0.0, -0.5), 0.6, "continuous"
    )
    return Chain("five_bar", _depth_first([*rods, rod]), (loop,), ("left_arm", "right_arm"))


ALL = (five_bar, kangaroo_ankle, cassie_legs, digit_leg, wl16_legs)


def standing_leg(pelvis: float = 15.0) -> Chain:
    """The leg of `digit_leg`, its foot on the ground, under a pelvis [kg] on a vertical rail.

    28 speeds and 24 rows: four degrees of freedom, of which three are the spins of rods.
    """
    leg, sole = digit_leg(), (0.1, 0.02, -1.02)
    rail = Rod("pelvis", BASE, "prismatic", Z, (0.0, 0.0, 0.0), (0.0, 0.0, 0.2), pelvis)
    rods = (rod._replace(on=rail.name) if rod.on == BASE else rod for rod in leg.rods)
    return Chain("standing_leg", (rail, *rods), (*leg.closed, Loop("foot", BASE, sole, sole, "6D")), leg.motors)


def knee_leg(pelvis: float = 20.0, knee: float = 0.45) -> Chain:
    """A pelvis [kg] on two rails, thigh and shin, drawn straight with the knee at a height [m], and a foot that turns.

    Four speeds and three rows, of rank two.
    """
    ground, hip, joint = (0.0, 0.0, 0.0), (0.0, 0.0, 0.9), (0.0, 0.0, knee)
    rods = (
        Rod("rail", BASE, "prismatic", X, hip, (0.1, 0.0, 0.9), 0.5),
        Rod("pelvis", "rail", "prismatic", Z, hip, (0.0, 0.0, 1.1), pelvis),
        _hinge("thigh", "pelvis", Y, hip, (0.0, 0.0, 0.45), 4.0),
        _hinge("shin", "thigh", Y, joint, (0.0, 0.0, knee - 0.45), 2.0),
    )
    return Chain("knee_leg", rods, (Loop("shin", BASE, ground, ground),), ("shin",))


def _driven(chain: Chain, ways: dict, t1: float, **options) -> ukjax.Scenario:
    """The chain with joints that follow their ways (joint -> function of time), from rest, by all its motors."""
    robot = chain.robot()
    q, v = robot.assemble({joint: way(jnp.zeros(())) for joint, way in ways.items()}, keep=tuple(ways))

    def off(q, t):
        return jnp.stack([robot.coordinate(q, joint) - way(t) for joint, way in ways.items()])

    servo = ukjax.Servo(ukjax.Holonomic(off, ukjax.Baumgarte.classic(20.0, 20.0)), robot.actuation())
    return robot.scenario(q, v, t1, projection=ukjax.Projection(), servo=servo, **options)


def scenario(tilt: float = 0.2, turns: float = 1.0, t1: float = 2.0) -> ukjax.Scenario:
    """The ankle pitches its foot by up to `tilt` [rad], `turns` times a second, and rolls it, by its two struts."""
    w = 2 * np.pi * turns
    ways = {
        "cross_joint": lambda t: tilt / 2 * (1 - jnp.cos(w * t)),
        "foot_joint": lambda t: tilt / 2 * (jnp.cos(2 * w * t) - jnp.cos(w * t)),
    }
    chain = kangaroo_ankle()
    return _driven(
        chain, ways, t1, name="Ankle on two struts", controls=[f"{name} [N]" for name in chain.motors],
        source="Roig et al. (2022), in the shape of Kangaroo's ankle",
    )  # fmt: skip


def squat(depth: float = 0.15, turns: float = 1.0, t1: float = 2.0) -> ukjax.Scenario:
    """The standing leg lowers its pelvis by `depth` [m] and lifts it again, `turns` times a second, by six motors."""
    w = 2 * np.pi * turns
    ways = {"pelvis_joint": lambda t: depth / 2 * (jnp.cos(w * t) - 1)}
    chain = standing_leg()
    return _driven(
        chain, ways, t1, name="Leg that squats", controls=[f"{name} [N m]" for name in chain.motors],
        source="Hubicki et al. (2016), in the shape of Digit's leg",
    )  # fmt: skip
