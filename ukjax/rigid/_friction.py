"""Dry friction in joints, a non-ideal constraint force.

lambda: multipliers of a joint's rows; F: force across a joint's axis [N]; c: non-ideal force (n,).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._mechanism import Mechanism
from .._reactions import reactions
from .._result import is_traced
from .._types import Vector
from . import _linkage, _turns
from ._body import named_parts
from ._effort import number
from ._joint import AbstractDrivenJoint, Prismatic, Revolute
from ._reactions import along_gap


if TYPE_CHECKING:
    from ._robot import Robot


class Coulomb(eqx.Module):
    r"""Dry friction in a hinge or a slide, by what the ideal constraint force presses there.

    Torque of a `Revolute` $-\mu\,r\,|F|\,s(\omega)$, force of a `Prismatic` $-\mu\,|F|\,s(\omega)$, with F across the
    axis, $\omega$ the rate of the joint and $s(\omega) = \omega / \sqrt{\omega^2 + \epsilon^2}$ in place of its sign.

    Args:
        coefficient: mu, not negative.
        radius: r of the pin of a `Revolute` [m].
        speed: epsilon, positive: well below it friction is that of a damper, and nothing sticks [rad/s or m/s].

    Raises:
        ValueError: If a number is none, not finite, or of the wrong sign.

    Source: Liu et al. (2015), eq. 7 to 13, for what a non-ideal force is.
    """

    coefficient: Array
    radius: Array
    speed: Array

    def __init__(self, coefficient: Any, radius: Any = 0.0, speed: Any = 1e-3):
        self.coefficient, self.radius = number(coefficient, "coefficient"), number(radius, "radius")
        self.speed = number(speed, "speed")
        for name, least in (("coefficient", 0.0), ("radius", 0.0)):
            x = getattr(self, name)
            if not is_traced(x) and x < least:
                raise ValueError(f"{name} must not be negative, but is {x}.")
        if not is_traced(self.speed) and self.speed <= 0:
            raise ValueError(f"speed must be positive, but is {self.speed}: it is what rounds the corner at rest.")


class Friction(eqx.Module):
    """c of joints with dry friction; a `nonideal` of a `Mechanism`.

    `mechanism`: the robot's with all its constraints, between which the ideal force is divided.
    """

    mechanism: Mechanism
    of: dict[str, Coulomb]

    def __call__(self, q: Array, v: Array, t: Array, ideal_force: Vector) -> Vector:
        robot: Robot = self.mechanism.system  # pyright: ignore[reportAssignmentType]
        found = reactions(self.mechanism.terms(q, v, t), ideal_force).multipliers
        c = jnp.zeros_like(v)
        for name, coulomb in self.of.items():
            joint: AbstractDrivenJoint = robot.joints[name]  # pyright: ignore[reportAssignmentType]
            force = along_gap(robot, joint, _linkage.between(robot, q, joint), found[name]).force
            axis = joint.axis.of(q.dtype)  # pyright: ignore[reportAttributeAccessIssue]
            across = force - (force @ axis) * axis
            J, _ = _turns.rows(robot, name, q, v, t)
            rate = J @ v
            arm = coulomb.radius if isinstance(joint, Revolute) else jnp.ones((), q.dtype)
            # Where nothing presses there is no direction in which |F| grows.
            squared = across @ across
            pressed = stop_gradient(squared) > 0
            size = jnp.where(pressed, jnp.sqrt(jnp.where(pressed, squared, 1.0)), 0.0)
            c = c - J * (coulomb.coefficient * arm * size * rate / jnp.sqrt(rate**2 + coulomb.speed**2))
        return c


def friction_of(robot: "Robot", friction: Any, constraints: Any) -> Friction:
    """ValueError if a joint is none that friction is known of."""
    friction = named_parts(friction, Coulomb, "friction", "rigid.Coulomb(0.1, radius=0.01)")
    _check_joints(robot, friction)
    return Friction(Mechanism(robot, constraints), friction)


def _check_joints(robot: "Robot", friction: Mapping[str, Coulomb]) -> None:
    for name in friction:
        joint = robot.joints.get(name)
        if not isinstance(joint, Revolute | Prismatic):
            known = [k for k in robot.joint_names if isinstance(robot.joints[k], Revolute | Prismatic)]
            raise ValueError(f"friction must name joints that are a Revolute or a Prismatic, of {known}, not {name!r}.")
        if name in robot.layout.tree and robot.layout == robot.tree:
            raise ValueError(
                f"friction names {name!r}, a joint of the tree, of which no constraint force tells how hard it is "
                'pressed. Build the robot with coordinates="absolute".'
            )
