r"""A robot in joint coordinates as numbers: poses, M, and the rows of its loops, for searches in NumPy.

Nothing is compiled here, and orientations are off by angles, not by their sines, which are zero half a turn off too. A
search from far away goes by these errors; where loops are closed, errors and rows are those of `_loops`.

q: coordinates (n_q,); d: displacement (n,) from q; R, p: rotation and origin; S: twists (linear, angular) per unit of
each speed (6, n), seen from the ground and about its origin; x: twist of a loop's child frame against its parent frame,
seen from the child; w: rotation vector; P: pose of the child frame, seen from the parent frame.

Source of J(w), the right Jacobian of the rotation group: Chirikjian (2012), Stochastic Models, Information Theory, and
Lie Groups 2, 10.3.
"""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import _linkage
from ._frame import Axis
from ._joint import (
    AbstractJoint,
    Cylindrical,
    Distance,
    Fixed,
    Free,
    Planar,
    Prismatic,
    Revolute,
    Screw,
    Spherical,
    Universal,
)
from ._layout import Node, body_of
from ._linkage import AbstractRobot
from ._motion import AbstractMotion, Ball, Cross, Cylinder, Float, Helix, Plane, Slide, Turn


# Below this sine an angle is its sine to all digits that a search needs.
SMALL = 1e-6
# Step of central differences, of lengths and angles.
STEP = 1e-5


class At(NamedTuple):
    """The pose of a frame, seen from another."""

    R: np.ndarray
    p: np.ndarray

    def __matmul__(self, inner: "At") -> "At":
        return At(self.R @ inner.R, self.p + self.R @ inner.p)

    @property
    def inverse(self) -> "At":
        return At(self.R.T, -(self.R.T @ self.p))

    def outwards(self, twists: np.ndarray) -> np.ndarray:
        """Twists (6, k) of this frame, seen from it, as twists about the origin of the outer frame, seen from there."""
        angular = self.R @ twists[3:]
        return np.concatenate([self.R @ twists[:3] + cross(self.p) @ angular, angular])


STILL = At(np.eye(3), np.zeros(3))


def cross(u: np.ndarray) -> np.ndarray:
    """The matrix of the cross product with u."""
    return np.array([[0.0, -u[2], u[1]], [u[2], 0.0, -u[0]], [-u[1], u[0], 0.0]])


def turned(w: np.ndarray) -> np.ndarray:
    """The rotation matrix of a rotation vector (Rodrigues)."""
    angle = np.linalg.norm(w)
    K = cross(w)
    if angle < SMALL:
        return np.eye(3) + K + K @ K / 2
    return np.eye(3) + np.sin(angle) / angle * K + (1 - np.cos(angle)) / angle**2 * K @ K


def logarithm(R: np.ndarray) -> np.ndarray:
    """The rotation vector of R, of length up to pi."""
    sines = np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2
    sine, cosine = np.linalg.norm(sines), (np.trace(R) - 1) / 2
    angle = np.arctan2(sine, cosine)
    if cosine > -0.5:
        return sines * (angle / sine if sine > SMALL else 1.0)
    # Half a turn away the sines vanish: there the axis is that of R + R^T.
    squares = (R + R.T) / 2 - cosine * np.eye(3)
    axis = squares[:, np.argmax(np.diag(squares))]
    return angle * axis / np.linalg.norm(axis) * (-1.0 if axis @ sines < 0 else 1.0)


def right_jacobian(w: np.ndarray) -> np.ndarray:
    """J(w): the angular velocity of exp(w), seen from the moving frame, is J(w) w'."""
    angle, K = np.linalg.norm(w), cross(w)
    if angle < SMALL:
        return np.eye(3) - K / 2
    return np.eye(3) - (1 - np.cos(angle)) / angle**2 * K + (angle - np.sin(angle)) / angle**3 * K @ K


class Link(NamedTuple):
    """A node as numbers: the frames around its motion, the mass and moments of its body about its own origin (6, 6)."""

    node: Node
    motion: AbstractMotion
    axes: tuple[np.ndarray, ...]
    pitch: float
    before: At
    after: At
    inertia: np.ndarray | None


class Loop(NamedTuple):
    """A joint that closes a loop: its two ends as nodes and frames, and the error of a pose P, with its slope by x."""

    name: str
    ends: tuple[tuple[int, At], tuple[int, At]]
    signs: np.ndarray
    error: Callable[[At], tuple[np.ndarray, np.ndarray]]


class State(NamedTuple):
    """Poses of the nodes, seen from the ground, and S (6, n)."""

    poses: list[At]
    S: np.ndarray


class Chain(NamedTuple):
    """A robot as numbers. `gears`: factors (n,) and polynomials of both sides, by name; `armature` (n,)."""

    links: list[Link]
    loops: list[Loop]
    gears: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    armature: np.ndarray
    places: np.ndarray
    n: int

    @staticmethod
    def of(robot: AbstractRobot) -> "Chain | None":
        """The robot as numbers; None where a loop or a gear is of a kind that is not known here."""
        layout = robot.layout
        of = _error_in_plane if robot.planar else _error_of
        errors = {name: of(robot.joints[name]) for name in layout.loops}
        free = [name for name in layout.loops if isinstance(robot.joints[name], Free)]
        gears = {name: _gear(robot, name) for name in sorted(robot.gears)}
        # Armature of what closes loops fills M.
        own = [getattr(robot.joints[name], kind, None) for name in layout.loops for kind in ("effort", "drag")]
        heavy = any(one is not None and np.any(np.asarray(one.armature)) for one in own)
        unknown = any(errors[name] is None for name in layout.loops if name not in free)
        if heavy or unknown or None in gears.values() or robot.layout != robot.tree:
            return None
        links = [_link(robot, node) for node in layout.nodes]
        loops = [_loop(robot, name, error) for name, error in errors.items() if error is not None]
        places = np.full(layout.n, -1)  # of the coordinate whose rate a speed is
        for link in links:
            if len(link.motion.coordinates) == len(link.motion.speeds):
                places[slice(*link.node.v)] = np.arange(*link.node.q)
        armature = np.asarray(_linkage.armature(robot, robot.gravity.dtype), float)
        return Chain(links, loops, {k: g for k, g in gears.items() if g is not None}, armature, places, layout.n)

    def state(self, q: np.ndarray) -> State:
        poses: list[At] = []
        S = np.zeros((6, self.n))
        for link in self.links:
            moved, twists = _moved(link, q[slice(*link.node.q)])
            parent = STILL if link.node.parent < 0 else poses[link.node.parent]
            moving = parent @ link.before @ moved
            poses.append(moving @ link.after.inverse)
            S[:, slice(*link.node.v)] = moving.outwards(twists)
        return State(poses, S)

    def paths(self) -> list[list[int]]:
        """The speeds that move each node."""
        found: list[list[int]] = []
        for link in self.links:
            own = list(range(*link.node.v))
            found.append(own if link.node.parent < 0 else found[link.node.parent] + own)
        return found

    def mass(self, state: State) -> np.ndarray:
        """M (n, n), with armature."""
        M = np.diag(self.armature)
        for link, pose, path in zip(self.links, state.poses, self.paths(), strict=True):
            if link.inertia is not None and path:
                S = pose.inverse.outwards(state.S[:, path])
                M[np.ix_(path, path)] += S.T @ link.inertia @ S
        return M

    def rows(self, q: np.ndarray, state: State) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The errors by the name of the loop or gear, and the slopes of all of them by displacements from q (m, n)."""
        errors, slopes = {}, [np.zeros((0, self.n))]
        for loop in self.loops:
            P, child = self.between(loop, state)
            errors[loop.name], D = loop.error(P)
            slopes.append(D @ child.inverse.outwards(state.S * loop.signs))
        coordinates = np.where(self.places >= 0, q[self.places], 0.0)
        for name, (first, second, a) in self.gears.items():
            c = second @ coordinates
            polynomial = np.polynomial.Polynomial(a)
            errors[name] = np.atleast_1d(first @ coordinates - polynomial(c))
            slopes.append((first - polynomial.deriv()(c) * second)[None])
        return errors, np.concatenate(slopes)

    def between(self, loop: Loop, state: State) -> tuple[At, At]:
        """P, and the pose of the child frame seen from the ground."""
        parent, child = ((STILL if node < 0 else state.poses[node]) @ frame for node, frame in loop.ends)
        return parent.inverse @ child, child

    def retract(self, q: np.ndarray, d: np.ndarray) -> np.ndarray:
        """The coordinates to which a displacement leads, as `AbstractMotion.retract`; turns are not counted."""
        found = np.array(q)
        for link in self.links:
            own, by = q[slice(*link.node.q)], d[slice(*link.node.v)]
            if isinstance(link.motion, Ball):
                own = _turned_by(own, by)
            elif isinstance(link.motion, Float):
                own = np.concatenate([own[:3] + _matrix(own[3:]) @ by[:3], _turned_by(own[3:], by[3:])])
            else:
                own = own + by
            found[slice(*link.node.q)] = own
        return found

    def slope_of_retraction(self, d: np.ndarray) -> np.ndarray:
        """The speeds there per unit of the rates of d (n, n)."""
        found = np.eye(self.n)
        for link in self.links:
            at = slice(*link.node.v)
            if isinstance(link.motion, Ball):
                found[at, at] = right_jacobian(d[at])
            elif isinstance(link.motion, Float):
                angular = d[at][3:]
                found[at, at] = np.block(
                    [[turned(angular).T, np.zeros((3, 3))], [np.zeros((3, 3)), right_jacobian(angular)]]
                )
        return found

    def curvature(self, q: np.ndarray, d: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The Hessian (n, n), by a displacement d from q, of the sum of the errors (m,) times weights."""
        end = self.retract(q, d)
        state, paths, carried = self.state(end), self.paths(), self._carried()
        S = state.S
        H, g = np.zeros((self.n, self.n)), np.zeros(self.n)  # of speeds: the slopes g, and their changes by each speed
        for loop in self.loops:
            P, child = self.between(loop, state)
            count = len(loop.error(P)[0])
            own, weights = weights[:count], weights[count:]
            seen = child.inverse.outwards(np.eye(6))  # twists about the ground's origin, as the child sees them
            pull = ft.partial(_pull, loop, own)
            wrench, along = seen.T @ pull(P), S * loop.signs
            node, moved = loop.ends[1][0], np.zeros(self.n)
            moved[paths[node] if node >= 0 else []] = 1.0
            g += along.T @ wrench
            H += (seen @ along).T @ _changes(pull, P) @ seen @ along
            # Twists change as the joints before them move, and so does the frame in which the child sees them.
            H += loop.signs[:, None] * (carried - moved) * (S.T @ _brackets(wrench) @ S)
        coordinates = np.where(self.places >= 0, end[self.places], 0.0)
        for weight, (first, second, a) in zip(weights, self.gears.values(), strict=True):
            polynomial, c = np.polynomial.Polynomial(a), second @ coordinates
            g += weight * (first - polynomial.deriv()(c) * second)
            H -= weight * polynomial.deriv(2)(c) * np.outer(second, second)
        R = self.slope_of_retraction(d)
        return R.T @ H @ R + self._curvature_of_retraction(d, g)

    def _carried(self) -> np.ndarray:
        """Whether the twist of a speed moves with another speed (n, n)."""
        found = np.zeros((self.n, self.n))
        for link, path in zip(self.links, self.paths(), strict=True):
            own = slice(*link.node.v)
            found[own, path] = 1.0
            if not isinstance(link.motion, Ball | Float):
                found[own, own] = np.tril(found[own, own], -1)
        return found

    def _curvature_of_retraction(self, d: np.ndarray, g: np.ndarray) -> np.ndarray:
        """The Hessian by d of what has the slopes g by the speeds, which do not change."""
        found = np.zeros((self.n, self.n))
        turning = [slice(*link.node.v) for link in self.links if isinstance(link.motion, Ball | Float)]
        for k in range(max((at.stop - at.start for at in turning), default=0)):
            # What a link turns by concerns it alone: one step for all of them.
            step = np.zeros(self.n)
            step[[at.start + k for at in turning if at.start + k < at.stop]] = STEP
            ends = [self.slope_of_retraction(d + sign * step).T @ g for sign in (1, -1)]
            for at in turning:
                if at.start + k < at.stop:
                    found[at, at.start + k] = (ends[0][at] - ends[1][at]) / (2 * STEP)
        return found


def _pull(loop: Loop, weights: np.ndarray, P: At) -> np.ndarray:
    """The wrench (6,) on the child, seen from it, whose power is the rate of the errors times weights."""
    return loop.error(P)[1].T @ weights


def _changes(f: Callable[[At], np.ndarray], P: At) -> np.ndarray:
    """The change of f(P), (6,), by each twist of the child against the parent, seen from the child (6, 6)."""
    ends = [[f(P @ At(turned(s * x[3:]), s * x[:3])) for s in (STEP, -STEP)] for x in np.eye(6)]
    return np.stack([(ahead - back) / (2 * STEP) for ahead, back in ends], axis=1)


def _brackets(wrench: np.ndarray) -> np.ndarray:
    """B (6, 6): y^T B x is the power of the wrench along a twist y that is moved with the speed of a twist x."""
    force, torque = cross(wrench[:3]), cross(wrench[3:])
    return np.block([[np.zeros((3, 3)), force], [force, torque]])


def _matrix(quaternion: np.ndarray) -> np.ndarray:
    w, u = quaternion[0], quaternion[1:]
    K = cross(u)
    return np.eye(3) + 2 / (quaternion @ quaternion) * (w * K + K @ K)


def _turned_by(quaternion: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The unit quaternion of a turn by a rotation vector, seen from the turned frame, after a first turn."""
    angle = np.linalg.norm(w)
    half = np.append(np.cos(angle / 2), w * (0.5 if angle < SMALL else np.sin(angle / 2) / angle))
    (a, u), (b, v) = (quaternion[0], quaternion[1:]), (half[0], half[1:])
    found = np.append(a * b - u @ v, a * v + b * u + np.cross(u, v))
    return found / np.linalg.norm(found)


def _link(robot: AbstractRobot, node: Node) -> Link:
    joint, inertia = _linkage.moving(robot, node.joint), robot.bodies[node.body].inertia
    motion = joint.motion
    assert motion is not None
    names = [Axis(motion.normal)] if isinstance(motion, Plane) else [
        getattr(motion, name) for name in ("axis", "first", "second") if hasattr(motion, name)
    ]  # fmt: skip
    G = None
    if inertia is not None:
        m, c = float(inertia.mass), np.asarray(inertia.center, float)
        C = cross(c)
        G = np.block([[m * np.eye(3), -m * C], [m * C, np.asarray(inertia.moments, float) - m * C @ C]])
    pitch = float(motion.pitch) if isinstance(motion, Helix) else 0.0
    axes = tuple(_unit(axis) for axis in names)
    return Link(node, motion, axes, pitch, _frame(robot, joint.parent), _frame(robot, joint.child), G)


def _unit(axis: Axis) -> np.ndarray:
    return np.asarray(axis.of(float), float)


def _frame(robot: AbstractRobot, end: str) -> At:
    found = _linkage.frame(robot, end)
    return STILL if found is None else At(np.asarray(found.R, float), np.asarray(found.p, float))


def _loop(robot: AbstractRobot, name: str, error: Callable[[At], tuple[np.ndarray, np.ndarray]]) -> Loop:
    layout, joint = robot.layout, robot.joints[name]
    signs, ends = np.zeros(layout.n), []
    for end, sign in ((joint.parent, -1.0), (joint.child, 1.0)):
        node = layout.node_of(body_of(end))
        ends.append((node, _frame(robot, end)))
        for i in layout.path(node):
            signs[slice(*layout.nodes[i].v)] += sign
    return Loop(name, (ends[0], ends[1]), signs, error)


def _gear(robot: AbstractRobot, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    gear, layout = robot.gears[name], robot.layout
    if any(joint not in layout.tree for joint in gear.joints):
        return None
    sides = []
    for side, factors in zip((gear.first, gear.second), gear.factors, strict=True):
        row = np.zeros(layout.n)
        names = () if side is None else (side,) if isinstance(side, str) else side
        for k, joint in enumerate(names):
            row[layout.node(joint).v[0]] += 1.0 if factors is None else float(factors[k])
        sides.append(row)
    return sides[0], sides[1], np.asarray(gear.coefficients, float)


def _moved(link: Link, q: np.ndarray) -> tuple[At, np.ndarray]:
    """The pose of a motion, and its twists (6, k), seen from the moving frame."""
    motion, axes, zero = link.motion, link.axes, np.zeros(3)
    if isinstance(motion, Turn | Helix):
        a = axes[0]
        return At(turned(q[0] * a), link.pitch * q[0] * a), np.concatenate([link.pitch * a, a])[:, None]
    if isinstance(motion, Slide):
        return At(np.eye(3), q[0] * axes[0]), np.concatenate([axes[0], zero])[:, None]
    if isinstance(motion, Cylinder):
        a = axes[0]
        return At(turned(q[1] * a), q[0] * a), np.stack([np.append(a, zero), np.append(zero, a)], axis=1)
    if isinstance(motion, Cross):
        second = turned(q[1] * axes[1])
        turns = np.stack([second.T @ axes[0], axes[1]], axis=1)
        return At(turned(q[0] * axes[0]) @ second, zero), np.concatenate([np.zeros((3, 2)), turns])
    if isinstance(motion, Plane):
        normal = axes[0]
        first, second = (np.asarray(e, float) for e in Axis(motion.normal).across(float))
        R = turned(q[2] * normal)
        twists = [np.append(R.T @ first, zero), np.append(R.T @ second, zero), np.append(zero, normal)]
        return At(R, q[0] * first + q[1] * second), np.stack(twists, axis=1)
    if isinstance(motion, Ball):
        return At(_matrix(q), zero), np.eye(6)[:, 3:]
    if isinstance(motion, Float):
        return At(_matrix(q[3:]), q[:3]), np.eye(6)
    return STILL, np.zeros((6, 0))


Errors = Callable[[At], tuple[np.ndarray, np.ndarray]]


def _error_of(joint: AbstractJoint) -> Errors | None:
    """The error of a joint's pose P and its slope by x (m, 6); None for a joint that is not known here."""
    if isinstance(joint, Fixed):
        return lambda P: _stacked(_place(P), _turn(P))
    if isinstance(joint, Spherical):
        return lambda P: _place(P)
    if isinstance(joint, Universal):
        first, second = _unit(joint.first), _unit(joint.second)
        return lambda P: _stacked(_place(P), _cosine(P, first, second))
    if isinstance(joint, Distance):
        length = float(joint.length)
        return lambda P: _stretched(P, length)
    if isinstance(joint, Planar):
        axis = Axis(joint.normal)
    elif isinstance(joint, Revolute | Prismatic | Cylindrical | Screw):
        axis = joint.axis
    else:
        return None
    a, E = _unit(axis), np.stack([np.asarray(e, float) for e in axis.across(float)])
    if isinstance(joint, Revolute):
        return lambda P: _stacked(_place(P), _tilt(P, a, E))
    if isinstance(joint, Prismatic):
        return lambda P: _stacked(_place(P, E), _turn(P))
    if isinstance(joint, Planar):
        return lambda P: _stacked(_place(P, a[None]), _tilt(P, a, E))
    if isinstance(joint, Screw):
        pitch = float(joint.pitch)
        return lambda P: _stacked(_place(P, E), _tilt(P, a, E), _ahead(P, a, E, pitch))
    return lambda P: _stacked(_place(P, E), _tilt(P, a, E))


def _error_in_plane(joint: AbstractJoint) -> Errors | None:
    """The error of a joint of planar bodies, as `_error_of`."""
    x, y, z = np.eye(3)
    if isinstance(joint, Revolute):
        return lambda P: _place(P, np.stack([x, y]))
    if isinstance(joint, Fixed):
        return lambda P: _stacked(_place(P, np.stack([x, y])), _turn(P, z[None]))
    if isinstance(joint, Prismatic):
        across = np.cross(z, _unit(joint.axis))
        return lambda P: _stacked(_place(P, across[None]), _turn(P, z[None]))
    if isinstance(joint, Planar):
        return lambda P: (np.zeros(0), np.zeros((0, 6)))
    return _error_of(joint) if isinstance(joint, Distance) else None


def _stacked(*parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([e for e, _ in parts]), np.concatenate([D for _, D in parts])


def _place(P: At, E: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The origin of the child, along the rows of E, or along all axes."""
    E = np.eye(3) if E is None else E
    return E @ P.p, np.concatenate([E @ P.R, np.zeros((len(E), 3))], axis=1)


def _turn(P: At, E: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The rotation vector of the child, along the rows of E, or along all axes."""
    E, w = np.eye(3) if E is None else E, logarithm(P.R)
    slope = E @ np.linalg.inv(right_jacobian(w))
    return E @ w, np.concatenate([np.zeros((len(E), 3)), slope], axis=1)


def _tilt(P: At, a: np.ndarray, E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The angle between the axes of parent and child about their common normal, along the rows of E across the axis."""
    there = P.R @ a
    normal, cosine = np.cross(a, there), a @ there
    sine = np.linalg.norm(normal)
    change = -P.R @ cross(a)  # of `there`, by the angular velocity
    if sine < SMALL and cosine < 0:  # the axes are opposite: any turn across them leads back
        return np.array([np.pi, 0.0]), np.concatenate([np.zeros((2, 3)), E @ P.R], axis=1)
    angle = np.arctan2(sine, cosine)
    factor = angle / sine if sine > SMALL else 1.0
    slope = factor * E @ cross(a) @ change
    if sine > SMALL:
        of_factor = (sine - angle * cosine) / sine**2
        slope = slope + of_factor * np.outer(E @ normal, -(a @ change) / sine)
    return factor * E @ normal, np.concatenate([np.zeros((2, 3)), slope], axis=1)


def _cosine(P: At, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    slope = -first @ P.R @ cross(second)
    return np.array([first @ P.R @ second]), np.append(np.zeros(3), slope)[None]


def _ahead(P: At, a: np.ndarray, E: np.ndarray, pitch: float) -> tuple[np.ndarray, np.ndarray]:
    """The angle by which a screw is ahead of its way, up to whole turns."""
    x, y = E @ P.R @ E[0]
    ahead = np.arctan2(y, x) - a @ P.p / pitch
    ahead -= 2 * np.pi * np.round(ahead / (2 * np.pi))
    turn = (x * E[1] - y * E[0]) @ (-P.R @ cross(E[0])) / max(x * x + y * y, SMALL)
    return np.array([ahead]), np.append(-(a @ P.R) / pitch, turn)[None]


def _stretched(P: At, length: float) -> tuple[np.ndarray, np.ndarray]:
    e = (P.p @ P.p - length**2) / (2 * length)
    return np.array([e]), np.append(P.p @ P.R / length, np.zeros(3))[None]
