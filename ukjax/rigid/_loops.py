"""The constraints of a robot: its loops, its rolling links, and its gears.

q: coordinates; v: speeds; P: pose of a joint's child frame seen from its parent frame.
"""

import equinox as eqx
import jax
from jaxtyping import Array

from .._constraint import AbstractConstraint, Baumgarte, Holonomic, Nonholonomic
from .._types import Coordinates, RowValues, Vector
from . import _linkage
from ._abstract_robot import AbstractRobot
from ._frame import Pose
from ._joint import Free
from ._motor import Geared
from ._rolling import AbstractRollingLink, KnifeEdge, slip_of


def constraints_of(robot: AbstractRobot) -> dict[str, AbstractConstraint]:
    """The robot's own constraints by the names of joints and gears; that against slipping is named "<joint> slip"."""
    found: dict[str, AbstractConstraint] = {}
    for name in robot.layout.loops:
        joint = robot.joints[name]
        if not isinstance(joint, Free | KnifeEdge):
            found[name] = Holonomic(Gap(robot, name), robot.stabilization)
        if isinstance(joint, AbstractRollingLink):
            found[slip_of(name)] = Nonholonomic(Slip(robot, name), _damped(robot.stabilization))
    return found | {name: Holonomic(Geared(robot, name), robot.stabilization) for name in sorted(robot.gears)}


def _damped(stabilization: Baumgarte | None) -> Baumgarte | None:
    """The stabilization without stiffness, since a velocity constraint has no position to return to."""
    return None if stabilization is None else Baumgarte(stabilization.damping)


class Gap(eqx.Module):
    """The gap of a joint of a robot, zero where the joint is closed; a function of (q, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Array) -> RowValues:
        joint = self.robot.joints[self.joint]
        return joint.gap(_linkage.between(self.robot, q, joint), self.robot.planar)


class Slip(eqx.Module):
    """The slip of a joint of a robot, zero where the joint does not slip; a function of (q, v, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, v: Vector, t: Array) -> RowValues:
        joint = self.robot.joints[self.joint]
        assert isinstance(joint, AbstractRollingLink)
        kinematics = self.robot.kinematics
        rates = v if kinematics is None else kinematics.rates(q, v, t)
        P, rate = jax.jvp(lambda q: tuple(_linkage.between(self.robot, q, joint)), (q,), (rates,))
        return joint.slip(Pose(*P), Pose(*rate), self.robot.planar)
