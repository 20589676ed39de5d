"""The parts of a robot, for the functions that compute with them; `Robot` is the class.

These functions are in files of their own, and `Robot` calls them: so they cannot import it.
"""

import abc

import equinox as eqx
from jaxtyping import Array

from .._constraint import Baumgarte
from .._mechanism import AbstractLinkedSystem, AbstractRecursiveSystem
from .._system import AbstractKinematicSystem
from ._body import Body
from ._effort import Gear, Motor
from ._force import AbstractForce
from ._frame import Frame
from ._joint import AbstractJoint
from ._layout import Layout


class AbstractRobot(AbstractKinematicSystem, AbstractLinkedSystem, AbstractRecursiveSystem):
    """A system of bodies, joints and forces, with the tree that its coordinates are of: see `Robot`."""

    bodies: eqx.AbstractVar[dict[str, Body]]
    joints: eqx.AbstractVar[dict[str, AbstractJoint]]
    gravity: eqx.AbstractVar[Array]
    frames: eqx.AbstractVar[dict[str, Frame]]
    gears: eqx.AbstractVar[dict[str, Gear]]
    motors: eqx.AbstractVar[dict[str, Motor]]
    forces: eqx.AbstractVar[dict[str, AbstractForce]]
    stabilization: eqx.AbstractVar[Baumgarte | None]
    home: eqx.AbstractVar[dict[str, Array]]
    home_rates: eqx.AbstractVar[dict[str, Array]]
    layout: eqx.AbstractVar[Layout]
    joint_names: eqx.AbstractVar[tuple[str, ...]]
    motor_names: eqx.AbstractVar[tuple[str, ...]]
    tree: eqx.AbstractVar[Layout]
    planar: eqx.AbstractVar[bool]
    turns: eqx.AbstractVar[tuple[str, ...]]

    @abc.abstractmethod
    def in_joints(self) -> "AbstractRobot":
        """Returns the robot in the coordinates of its joints."""
