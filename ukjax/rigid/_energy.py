"""Kinetic and potential energy."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from . import _linkage, _turns
from ._abstract_robot import AbstractRobot


def energy(robot: AbstractRobot, q: Array, v: Array, t: Any) -> Array:
    """Kinetic energy, plus the potential energy of gravity (zero at the ground's origin), springs and forces [J]."""
    at = _linkage.placement(robot, _linkage.posture(robot, q), v)
    total = v @ robot.mass(q, jnp.asarray(t, q.dtype)) @ v / 2
    for name in robot.layout.bodies:
        inertia = robot.bodies[name].inertia
        if inertia is not None:
            total = total - inertia.mass * robot.gravity @ at.pose(name).point(inertia.center)
    for name, effort in {**_linkage.efforts(robot, True), **_linkage.efforts(robot, False)}.items():
        total = total + effort.energy(_turns.coordinate(robot, q, name))
    return total + sum((force.potential(at) for force in robot.forces.values()), jnp.zeros((), q.dtype))
