"""Motors on joints, and joints geared to each other.

q: coordinates; c: coordinate of a joint that has a single coordinate.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._types import Coordinates, RowValues
from . import _linkage, _turns
from ._effort import number


if TYPE_CHECKING:
    from ._robot import Robot


class Motor(eqx.Module):
    """An actuator on a joint of one coordinate.

    Args:
        joint: Name of the joint.
        gear: Torque [N m], or force [N], of the joint for a unit of control.
    """

    joint: str = eqx.field(static=True)
    gear: Array

    def __init__(self, joint: str, gear: Any = 1.0):
        self.joint, self.gear = joint, number(gear, "gear")


class Gear(eqx.Module):
    """A coupling of two joints of one coordinate: c_first = a_0 + a_1 c_second + a_2 c_second^2 + ...; one row.

    Args:
        first: Name of a joint.
        second: Name of another joint; None to hold the first at a_0.
        coefficients: a (k,); the ratio a_1 alone if it is a number.

    Raises:
        ValueError: If the coefficients are not finite, or have another shape.
    """

    first: str = eqx.field(static=True)
    second: str | None = eqx.field(static=True)
    coefficients: Array

    def __init__(self, first: str, second: str | None, coefficients: Any):
        a = _check.floating(coefficients, "coefficients")
        if a.ndim > 1 or 0 in a.shape:
            raise ValueError(f"coefficients must be a number or have shape (k,), but have shape {a.shape}.")
        _check.finite(a, "coefficients")
        self.first, self.second = first, second
        self.coefficients = jnp.stack([jnp.zeros_like(a), a]) if a.ndim == 0 else a


class Geared(eqx.Module):
    """The residual of a gear of a robot, a function of (q, t)."""

    robot: Any
    gear: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Array) -> RowValues:
        gear: Gear = self.robot.gears[self.gear]
        c = jnp.zeros((), q.dtype) if gear.second is None else _turns.coordinate(self.robot, q, gear.second)
        wanted = jnp.zeros_like(c)
        for a in gear.coefficients[::-1]:
            wanted = wanted * c + a
        return (_turns.coordinate(self.robot, q, gear.first) - wanted)[None]


class Motors(eqx.Module):
    """The actuation matrix G (n, p) of motors on joints of a robot, a function of (q, t)."""

    robot: Any
    motors: tuple[Motor, ...]

    def __call__(self, q: Coordinates, t: Array) -> Array:
        rest = jnp.zeros(self.robot.layout.n, q.dtype)
        columns = [m.gear * _turns.rows(self.robot, m.joint, q, rest, t)[0] for m in self.motors]
        return jnp.stack(columns, axis=1)


def motor_of(robot: "Robot", name: str, what: str = "names") -> Motor:
    """A motor by name, or a unit motor by the name of its joint; raises ValueError or TypeError for other names."""
    if not isinstance(name, str):
        raise TypeError(f'{what} must be of motors or joints, as in actuation("hip", "knee"), but one is {name!r}.')
    if name not in robot.motors and name not in robot.joints:
        has = f"motors, {robot.motor_names}, nor of the joints, {robot.joint_names}"
        raise ValueError(f"{what} must be of motors or joints, but {name!r} is none of the {has}.")
    motor = robot.motors.get(name, Motor(name))
    _linkage.driven(robot, motor.joint)
    return motor


def actuation(robot: "Robot", names: tuple[str, ...]) -> Any:
    """The actuation matrix G (n, p) of `motor_of` each name; a function of (q, t) if a joint is a constraint."""
    if not names:
        raise ValueError(f"names must hold motors or joints: the robot has no motors, and joints {robot.joint_names}.")
    motors = tuple(motor_of(robot, name) for name in names)
    if any(motor.joint not in robot.layout.tree for motor in motors):
        return Motors(robot, motors)
    G = jnp.zeros((robot.layout.n, len(motors)), robot.gravity.dtype)
    for k, motor in enumerate(motors):
        G = G.at[robot.layout.node(motor.joint).v[0], k].set(motor.gear)
    return G
