"""Coordinates and speeds of a robot: their kinematics, names, places in q and v, and consistent values.

q: coordinates (n_q,); v: speeds (n,); d: small displacement (n,).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike
from threadpoolctl import threadpool_limits

from .. import _check
from .._constraint import Holonomic
from .._coordinate import Coordinate
from .._manifold import Assembly
from .._manifold import assemble as nearest
from .._mechanism import Mechanism
from .._result import RESULTS, is_traced, message
from .._system import AbstractKinematics
from . import _linkage, _turns
from ._chain import Chain
from ._closing import Free, Search, close, is_massive, missed, nearest_speeds
from ._frame import from_matrix
from ._joint import AbstractJoint, Revolute
from ._layout import Layout, Node
from ._linkage import BODY, AbstractRobot, motions
from ._motion import AbstractMotion, AbstractPlainMotion, Ball, Float


class TreeKinematics(AbstractKinematics):
    """The kinematics of every motion of a tree, and of the counted turns of hinges."""

    motions: tuple[AbstractMotion, ...]
    layout: Layout = eqx.field(static=True)
    robot: AbstractRobot | None = None  # where turns of hinges are counted

    def rates(self, q, v, t):
        rates = self._each(lambda motion, q, v: motion.rates(q, v), q, v)
        return rates if self.robot is None else jnp.concatenate([rates, _turns.changes(self.robot, q, v)])

    def retract(self, q, d, t):
        moved = self._each(lambda motion, q, d: motion.retract(q, d), q, d)
        if self.robot is None:
            return moved
        turns = q[-len(self.layout.counted) :] + _turns.changes(self.robot, q, d)
        return _turns.met(self.robot, jnp.concatenate([moved, turns]))

    def _each(self, of: Callable[[AbstractMotion, Array, Array], Array], q: Array, v: Array) -> Array:
        if (q.shape, v.shape) != ((self.layout.n_q,), (self.layout.n,)):
            raise ValueError(f"the robot has {self.layout.n_q} coordinates and {self.layout.n} speeds")
        runs: list[tuple[AbstractMotion, Node, Node]] = []
        for motion, node in zip(self.motions, self.layout.nodes, strict=True):
            # Neighbours whose speeds are the rates of their coordinates go together.
            if runs and isinstance(motion, AbstractPlainMotion) and isinstance(runs[-1][0], AbstractPlainMotion):
                runs[-1] = (motion, runs[-1][1], node)
            else:
                runs.append((motion, node, node))
        return jnp.concatenate([
            of(motion, q[first.q[0] : last.q[1]], v[first.v[0] : last.v[1]]) for motion, first, last in runs
        ])  # fmt: skip


def names_of(robot: AbstractRobot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of coordinates and speeds, such as "A [rad]", "base ωx [rad/s]"."""
    coordinates: list[str] = []
    speeds: list[str] = []
    for node, motion in zip(robot.layout.nodes, motions(robot), strict=True):
        joint = node.joint.removeprefix(BODY)
        for names, entries in ((coordinates, motion.coordinates), (speeds, motion.speeds)):
            names += [str(Coordinate(f"{joint} {name}".strip(), unit)) for name, unit in entries]
    coordinates += [str(Coordinate(joint, "rad")) for joint in robot.layout.counted]
    return tuple(coordinates), tuple(speeds)


def in_tree(robot: AbstractRobot, values: Mapping[str, object], what: str) -> Array:
    """q, or v if `what` is "rates", from values by joint of the tree; a joint that is left out has those of the home.

    `robot` must be in the coordinates of its joints.
    """
    rates = what == "rates"
    dtype, layout = robot.gravity.dtype, robot.layout
    found = {
        node.joint: jnp.zeros(node.v[1] - node.v[0], dtype) if rates else motion.rest(dtype)
        for node, motion in zip(layout.nodes, motions(robot), strict=True)
    }
    found |= {name: value.astype(dtype) for name, value in (robot.home_rates if rates else robot.home).items()}
    found |= of_joints(robot.joints, layout, values, what, dtype)
    return jnp.concatenate([found[name] for name in layout.tree]) if found else jnp.zeros(0, dtype)


def of_joints(
    joints: Mapping[str, AbstractJoint], tree: Layout, values: Mapping[str, object], what: str, dtype: DTypeLike
) -> dict[str, Array]:
    """Coordinates (n_q,), or speeds (n,) if `what` has "rates", by joint of the tree; errors name `what`."""
    if not isinstance(values, Mapping):
        example = '{"hip": 0.3}'
        raise TypeError(f"{what} must be a mapping from names of joints, such as {example}, but is {values!r}.")
    found: dict[str, Array] = {}
    for name, value in values.items():
        motion = joints[name].motion if name in tree.tree else None
        if motion is None:
            raise ValueError(f"{what} has {name!r}, which is none of the joints of the tree, {tree.tree}.")
        given = jnp.atleast_1d(_check.floating(value, f"{what}[{name!r}]")).astype(dtype)
        shape = (len(motion.speeds if "rates" in what else motion.coordinates),)
        if given.shape != shape:
            raise ValueError(f"{what}[{name!r}] must have shape {shape}, but has shape {given.shape}.")
        _check.finite(given, f"{what}[{name!r}]")
        if isinstance(motion, Ball | Float) and "rates" not in what and not (is_traced(given) or np.any(given[-4:])):
            raise ValueError(f"{what}[{name!r}] has a quaternion of length zero. Pass (1, 0, 0, 0) for no rotation.")
        found[name] = given
    return found


def warn_of_degrees(robot: AbstractRobot, coordinates: Mapping[str, object]) -> None:
    """Warns of angles that look like degrees; attributed to the caller's caller."""
    for name, value in coordinates.items() if isinstance(coordinates, Mapping) else ():
        motion = robot.joints[name].motion if name in robot.joints else None
        given = np.ravel(np.zeros(0) if is_traced(value) else np.asarray(value))
        if motion is None or len(given) != len(motion.coordinates) or given.dtype.kind not in "fi":
            continue
        for (_, unit), x in zip(motion.coordinates, given, strict=True):
            if unit == "rad" and abs(x) > 2 * np.pi and x == np.round(x):
                warnings.warn(
                    f"coordinates[{name!r}] holds {x:g} rad, more than a full turn. If it is in degrees, pass "
                    f"jnp.deg2rad({x:g}).",
                    stacklevel=4,
                )


def assembled(
    robot: AbstractRobot,
    coordinates: Mapping[str, object],
    rates: Mapping[str, object],
    t: ArrayLike,
    keep: Sequence[str],
    bounds: Mapping[str, object] | None = None,
) -> Assembly:
    """The consistent state nearest to the given coordinates and rates of the joints of the tree."""
    q, v = roughly(robot, coordinates, rates)
    ends = ranges_of(robot, {} if bounds is None else bounds, "bounds")
    kept, held = [], {}
    for name in [keep] if isinstance(keep, str) else keep:
        if name not in robot.joints:
            raise ValueError(f"keep has {name!r}, but the joints are {', '.join(map(repr, robot.joint_names))}.")
        if name in robot.layout.tree:
            kept += range(*robot.layout.node(name).v)
        else:
            value = _kept(coordinates, robot.home, name, "coordinates")
            rate = _kept(rates, robot.home_rates, name, "rates")
            held[f"keep {name}"] = Holonomic(Held(robot, name, value, rate, jnp.asarray(t, q.dtype)))
    found = None if held else _searched(robot, q, v, kept, ends)
    if found is None and ends:
        raise ValueError(
            "bounds are for robots in joint coordinates, outside of jit, grad and vmap, whose loops close by joints or "
            "Distance, and with keep=... for joints of the tree only."
        )
    return nearest(Mechanism(robot, held), q, v, t, keep={"q": kept, "v": kept}) if found is None else found


def ranges_of(robot: AbstractRobot, ranges: object, what: str) -> dict[str, tuple[float, float]]:
    """The least and the greatest coordinate of joints of the tree.

    Raises TypeError or ValueError, which name the argument `what`, for what is no mapping, or no range of a joint.
    """
    if not isinstance(ranges, Mapping):
        raise TypeError(
            f'{what} must be a mapping from joints to ranges, such as {{"hip": (-1.0, 1.0)}}, but is {ranges!r}.'
        )
    found = {}
    for name, given in ranges.items():
        of = _linkage.driven(robot, name, what) if name in robot.tree.tree else None
        try:
            ends = np.asarray(given, float) if of is not None else np.zeros(0)
        except (TypeError, ValueError):  # no numbers, or numbers that are being traced
            ends = np.zeros(0)
        if ends.shape != (2,) or not ends[0] <= ends[1]:
            raise ValueError(
                f"{what}[{name!r}] must be the least and the greatest coordinate of a joint of the tree with a single "
                f"one, such as (-1.0, 1.0), but is {given!r}."
            )
        found[name] = (float(ends[0]), float(ends[1]))
    return found


# Threads for matrices of a hundred rows wait for each other, beside other work a hundred times as long as they compute.
@threadpool_limits.wrap(limits=1, user_api="blas")
def _searched(
    robot: AbstractRobot, q: Array, v: Array, kept: Sequence[int], bounds: Mapping[str, tuple[float, float]]
) -> Assembly | None:
    """The consistent state by a search in NumPy, which compiles nothing; None where `assemble` must find it.

    Raises RuntimeError, which says what is open and by how much, if the loops cannot be closed.
    """
    chain = None if is_traced(q, v, *jax.tree_util.tree_leaves(robot)) else Chain.of(robot)
    if chain is None:
        return None
    place, speeds = np.asarray(q, float), np.asarray(v, float)
    held = np.isin(np.arange(chain.n), kept)
    low, high = np.full(chain.n, -np.inf), np.full(chain.n, np.inf)
    for name, (least, greatest) in bounds.items():
        at = robot.layout.node(name).q[0]
        i = int(np.flatnonzero(chain.places == at)[0])
        if held[i] and not least <= place[at] <= greatest:
            raise ValueError(
                f"keep holds {name!r} at {place[at]:g}, outside of its bounds, {least:g} to {greatest:g}. Pass another "
                f"coordinate for it, or wider bounds."
            )
        low[i], high[i] = least - place[at], greatest - place[at]
    search = Search.of(chain, place, Free(~held, low, high))
    closed = close(search)
    if not closed.is_closed:
        raise RuntimeError(
            f"{message(RESULTS.not_assembled)} From here and {closed.starts} other starts at least this stays open: "
            f"{missed(chain, closed.q, closed.errors, search.size)}.{_said(robot, kept, bounds)}"
        )
    w = nearest_speeds(chain, closed.q, speeds, search.M, held) if is_massive(chain, closed.q, search.M, held) else None
    if w is None:  # `assemble` says why
        return None
    end, kinematics = jnp.asarray(closed.q, q.dtype), robot.kinematics
    if robot.layout.counted and kinematics is not None:
        end = kinematics.retract(q, jnp.asarray(closed.d, q.dtype), jnp.zeros((), q.dtype))
    w = jnp.asarray(w, v.dtype)
    return Assembly(end, w, end - q, w - v)


def _said(robot: AbstractRobot, kept: Sequence[int], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Text on what was kept and bounded."""
    names = [node.joint for node in robot.layout.nodes if node.v[0] in kept]
    said = f" Kept: {', '.join(map(repr, names))}." if names else ""
    return said + (f" Within bounds: {', '.join(map(repr, bounds))}." if bounds else "")


def _kept(values: Mapping[str, object], home: Mapping[str, Array], name: str, what: str) -> Array:
    """The value at which a joint of one coordinate is kept: that of `values`, else that of `home`, else zero."""
    return _check.floating(values[name], f"{what}[{name!r}]") if name in values else home.get(name, jnp.zeros(1))[0]


class Held(eqx.Module):
    """The offset of a joint's coordinate from `value` + `rate` (t - `self.t`), a function of (q, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)
    value: Array
    rate: Array
    t: Array

    def __call__(self, q: Array, t: Array) -> Array:
        robot, wanted = self.robot, self.value + self.rate * (t - self.t)
        loose = self.joint not in robot.tree.tree and self.joint not in robot.layout.counted
        if loose and isinstance(robot.joints[self.joint], Revolute):
            # The tree determines the whole turns of a hinge that closes a loop, so its angle is kept up to whole turns.
            return (_turns.nearest(_turns.of_pose(robot, q, self.joint), wanted) - wanted)[None]
        return (_turns.coordinate(robot, q, self.joint) - wanted)[None]


def roughly(
    robot: AbstractRobot, coordinates: Mapping[str, object], rates: Mapping[str, object]
) -> tuple[Array, Array]:
    """q and v of the robot from values of the joints of the tree; other joints only set turns of counted hinges."""
    twin = robot if robot.layout == robot.tree else robot.in_joints()
    known = [name for name in robot.joint_names if name not in twin.layout.tree]

    def in_tree_of(values: Mapping[str, object], what: str) -> Array:
        if isinstance(values, Mapping):
            values = {name: value for name, value in values.items() if name not in known}
        return in_tree(twin, values, what)

    q, v = in_tree_of(coordinates, "coordinates"), in_tree_of(rates, "rates")
    q = _turns.started(twin, q, coordinates)
    if twin is robot:
        return q, v
    at = _linkage.placement(twin, _linkage.posture(twin, q), v)
    angles = _turns.of_bodies(twin, q) if robot.planar else {}
    found_q, found_v = [], []
    for body in (node.body for node in robot.layout.nodes):
        pose, twist = at.pose(body), at.twists[twin.layout.node_of(body)]
        if robot.planar:
            angle = _turns.nearest(jnp.arctan2(pose.R[1, 0], pose.R[0, 0]), angles[body])
            found_q.append(jnp.stack([*pose.p[:2], angle]))
            found_v.append(jnp.stack([*(pose.R @ twist.linear)[:2], twist.angular[2]]))
        else:
            found_q.append(jnp.concatenate([pose.p, from_matrix(pose.R)]))
            found_v.append(jnp.concatenate([twist.linear, twist.angular]))
    of_tree = {name: _turns.coordinate(twin, q, name) for name in robot.layout.counted if name in twin.layout.tree}
    return _turns.started(robot, jnp.concatenate(found_q), {**coordinates, **of_tree}), jnp.concatenate(found_v)
