"""Reactions of joints: the wrenches that joints carry.

P: pose of a joint's child frame seen from its parent frame; lambda: multipliers of its rows (m,).
"""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .. import _check
from .._equation import equation_of_motion
from .._linalg import Jacobi, pseudosolve
from .._mechanism import Mechanism
from .._system import applied_force
from .._trajectory import Trajectory
from .._types import Numbers
from . import _linkage, _tree_unrolled, _turns
from ._effort import Motor, number
from ._frame import Pose, Wrench, skew
from ._joint import AbstractDrivenJoint, AbstractJoint, AbstractRollingLink, slip_of
from ._layout import body_of
from ._linkage import AbstractRobot
from ._loops import motor_of


def reactions_along(
    robot: AbstractRobot, trajectory: Trajectory, motors: Sequence[str], axes: str | None
) -> dict[str, Wrench]:
    """The reactions along a trajectory by the name of the joint, (T, 3) each."""
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f'trajectory must be that of simulate(keep="all"), but is {type(trajectory).__name__}.')
    for name in ("q", "v", "acceleration", "multipliers"):
        if getattr(trajectory, name) is None and (name != "multipliers" or robot.own_constraints):
            raise ValueError(f'trajectory has no {name}: pass simulate(keep="all").')
    multipliers = dict(trajectory.multipliers or {})
    others = [name for name in multipliers if name not in robot.own_constraints]
    if others:
        raise ValueError(
            f"trajectory has constraints that are none of the robot's, {others}: what they carry is not known."
        )
    p = 0 if trajectory.control is None else trajectory.control.shape[1]
    if len(motors) != p:
        raise ValueError(
            f"motors must name those of the {p} controls of the trajectory, in order, but names {len(motors)}."
        )
    control = (
        jnp.zeros((len(trajectory.t), 0), trajectory.q.dtype) if trajectory.control is None else trajectory.control
    )

    def of(
        t: Array, q: Array, v: Array, acceleration: Array, multipliers: Mapping[str, Array], u: Array
    ) -> dict[str, Wrench]:
        driving = {name: (motor_of(robot, name, "motors"), u[k]) for k, name in enumerate(motors)}
        found = reactions_of(robot, t, q, v, acceleration, multipliers, list(driving.values()))
        return _seen(robot, q, found, axes)

    return jax.vmap(of)(trajectory.t, trajectory.q, trajectory.v, trajectory.acceleration, multipliers, control)


def reactions_at(
    robot: AbstractRobot,
    q: Numbers,
    v: Numbers,
    t: ArrayLike,
    axes: str | None,
    applied: Numbers | None,
    motors: Mapping[str, ArrayLike],
    options: Mapping[str, Any],
) -> dict[str, Wrench]:
    """The reactions at one state by the name of the joint, from the equation of motion with `options`."""
    q, v, t = _check.state(q, v, t, kinematics=robot.kinematics)
    driven = {name: motor_of(robot, name, "motors") for name in motors}
    driving = [(driven[name], number(u, f"motors[{name!r}]").astype(q.dtype)) for name, u in motors.items()]
    external = None if applied is None else applied_force(applied, v, "applied")
    total = external
    for motor, u in driving:
        J, _ = _turns.rows(robot, motor.joint, q, jnp.zeros_like(v), t)
        total = motor.gear * u * J if total is None else total + motor.gear * u * J
    motion = equation_of_motion(Mechanism(robot), q, v, t, applied=total, reactions=True, **options)
    found = reactions_of(robot, t, q, v, motion.acceleration, motion.multipliers or {}, driving, external)
    return _seen(robot, q, found, axes)


def _seen(robot: AbstractRobot, q: Array, found: dict[str, Wrench], axes: str | None) -> dict[str, Wrench]:
    """The wrenches along the axes of a frame, about the same points; unchanged if `axes` is None."""
    if axes is None:
        return found
    back, turned = _linkage.pose(robot, q, axes).R.T, {}
    for name, wrench in found.items():
        R = back @ _linkage.pose(robot, q, robot.joints[name].child).R
        turned[name] = Wrench(R @ wrench.force, R @ wrench.torque)
    return turned


def transmitted(
    robot: AbstractRobot, q: Array, v: Array, acceleration: Array, loops: Mapping[int, Wrench]
) -> list[Wrench]:
    """The wrench that each node takes through its joint, on its body and seen from the body.

    `loops`: wrenches on the nodes by the joints that close loops.
    """
    tree = _linkage.posture(robot, q, v)
    external = _linkage.acting(robot, q, v, tree)
    for i, wrench in loops.items():
        external[i] = external[i] + wrench if i in external else wrench
    return _tree_unrolled.wrenches(tree, v, _linkage.falling(robot, q), external, acceleration)


def reactions_of(
    robot: AbstractRobot,
    t: Array,
    q: Array,
    v: Array,
    acceleration: Array,
    multipliers: Mapping[str, Array],
    driving: Sequence[tuple[Motor, Array]] = (),
    applied: Array | None = None,
) -> dict[str, Wrench]:
    """The reactions from an acceleration, the multipliers of joints that are constraints, and motors with controls.

    `applied`: generalised force (n,) that does not come through the joints.
    """
    found: dict[str, Wrench] = {}
    external: dict[int, Wrench] = {}
    dragged = _turns.drags_of_loops(robot)
    for name in robot.layout.loops:
        joint = robot.joints[name]
        P = _linkage.between(robot, q, joint)
        wrench = Wrench(jnp.zeros(3, q.dtype), jnp.zeros(3, q.dtype))
        if name in multipliers:
            wrench = wrench + along_gap(robot, joint, P, multipliers[name])
        if isinstance(joint, AbstractRollingLink) and slip_of(name) in multipliers:
            slip = ft.partial(joint.slip, planar=robot.planar)
            wrench = wrench + _power(slip, P, multipliers[slip_of(name)])
        if isinstance(joint, AbstractDrivenJoint) and joint.effort is not None:
            J, b = _turns.rows(robot, name, q, v, t)
            effort = joint.effort
            value = effort.of(_turns.coordinate(robot, q, name), J @ v) - effort.armature * (J @ acceleration - b)
            wrench = wrench + _power(_change(lambda P, j=joint: j.coordinate(P)[None]), P, value[None])
        if name in dragged:
            torque = _turns.drag_torque(dragged[name], *_turns.spin_rows(robot, name, q, v, t), v, acceleration)
            wrench = wrench + Wrench(jnp.zeros_like(torque), torque)
        for motor, u in driving:
            if motor.joint == name and isinstance(joint, AbstractDrivenJoint):
                value = (motor.gear * u)[None]
                wrench = wrench + _power(_change(lambda P, j=joint: j.coordinate(P)[None]), P, value)
        found[name] = wrench
        _linkage.add_wrench(robot, external, joint.child, wrench)
        _linkage.add_wrench(robot, external, joint.parent, -P.outwards(wrench))
    if robot.layout == robot.tree:
        f = transmitted(robot, q, v, acceleration, external)
        for name in robot.layout.tree:
            joint = robot.joints[name]
            on_body, frame = f[robot.layout.node_of(body_of(joint.child))], _linkage.frame(robot, joint.child)
            found[name] = on_body if frame is None else frame.inverse.outwards(on_body)
            if applied is not None:
                found[name] = found[name] + -_beside(robot, q, name, applied)
    return {name: found[name] for name in robot.joint_names if name in found}


def _beside(robot: AbstractRobot, q: Array, name: str, applied: Array) -> Wrench:
    """The least wrench on the child's frame of a joint of the tree that has the generalised forces `applied`."""
    node, motion = robot.layout.node(name), robot.joints[name].motion
    zero = jnp.zeros(3, q.dtype)
    if motion is None or node.v[0] == node.v[1]:
        return Wrench(zero, zero)
    S = jnp.stack([jnp.concatenate(s) for s in motion.twists(q[slice(*node.q)])])
    both, _ = pseudosolve(Jacobi(), S, applied[slice(*node.v)])
    return Wrench(both[:3], both[3:])


def along_gap(robot: AbstractRobot, joint: AbstractJoint, P: Pose, multipliers: Array) -> Wrench:
    """The wrench of the rows of a joint's gap on its child, by their multipliers."""
    return _power(_change(lambda P: joint.gap(P, robot.planar)), P, multipliers)


def _change(of: Callable[[Pose], Array]) -> Callable[[Pose, Pose], Array]:
    """The rate of a function of the pose, as a function of the pose and its rate."""
    return lambda P, rate: jax.jvp(lambda *P: of(Pose(*P)), tuple(P), tuple(rate))[1]


def _power(of: Callable[[Pose, Pose], Array], P: Pose, values: Array) -> Wrench:
    """The wrench on the child frame whose power is `values` times rates `of`, which are linear in the rate of P."""

    def work(twist: Array) -> Array:
        return values @ of(P, Pose(P.R @ skew(twist[3:]), P.R @ twist[:3]))

    both = jax.grad(work)(jnp.zeros(6, P.p.dtype))
    return Wrench(both[:3], both[3:])
