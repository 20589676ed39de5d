"""What joints do by themselves."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

from .. import _check
from .._result import is_traced


class Effort(eqx.Module):
    """What a joint of one coordinate does by itself: a spring, a damper, the inertia of a rotor.

    Args:
        stiffness: [N m/rad or N/m].
        rest: Coordinate at which the spring is relaxed [rad or m].
        damping: [N m s/rad or N s/m].
        armature: Inertia that moves with the coordinate only, of a rotor behind a gear [kg m^2 or kg].

    Raises:
        ValueError: If one of them is no finite number, or armature is negative.
    """

    stiffness: Array
    rest: Array
    damping: Array
    armature: Array

    def __init__(self, stiffness: Any = 0.0, rest: Any = 0.0, damping: Any = 0.0, armature: Any = 0.0):
        self.stiffness, self.rest = number(stiffness, "stiffness"), number(rest, "rest")
        self.damping = number(damping, "damping")
        self.armature = _inertia(armature)

    def of(self, q: Array, v: Array) -> Array:
        """The generalised force."""
        return -self.stiffness * (q - self.rest) - self.damping * v


class Drag(eqx.Module):
    """What a ball does by itself: damping and inertia of its angular velocity.

    Args:
        damping: [N m s/rad].
        armature: Inertia that turns with the ball only [kg m^2].

    Raises:
        ValueError: If one of them is no finite number, or armature is negative.
    """

    damping: Array
    armature: Array

    def __init__(self, damping: Any = 0.0, armature: Any = 0.0):
        self.damping = number(damping, "damping")
        self.armature = _inertia(armature)


def _inertia(armature: Any) -> Array:
    """As a finite scalar that is not negative."""
    x = number(armature, "armature")
    if not is_traced(x) and x < 0:
        raise ValueError(f"armature must not be negative, but is {x}.")
    return x


def number(value: Any, name: str) -> Array:
    """`value` as a finite scalar; ValueError if it is none."""
    x = _check.floating(value, name)
    if x.ndim:
        raise ValueError(f"{name} must be a scalar, but has shape {x.shape}.")
    _check.finite(x, name)
    return x


def pitch_of(value: Any) -> Array:
    """The pitch of a screw [m/rad]; ValueError if it is no number, or zero."""
    pitch = _check.floating(value, "pitch")
    _check.finite(pitch, "pitch")
    if pitch.ndim or (not is_traced(pitch) and pitch == 0):
        raise ValueError(f"pitch must be one number [m/rad] but zero, which is a Revolute, but is {pitch}.")
    return pitch
