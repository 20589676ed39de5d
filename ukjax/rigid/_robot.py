"""A robot from its parts: bodies, and joints between them; and its drawing.

q: coordinates (n_q,); v: speeds (n,); P: pose of a joint's child frame seen from its parent frame.
"""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .. import _check
from .._constraint import Baumgarte
from .._manifold import Assembly
from .._mechanism import Mechanism
from .._scenario import Drawing, Scenario
from .._system import AbstractKinematics
from .._trajectory import Trajectory
from .._types import Coordinates, Numbers, Vector
from . import _dynamics, _linkage, _loops, _turns
from ._body import Body, Shape, check_ends, check_held, check_names, check_planar, named_parts
from ._coordinates import TreeKinematics, assembled, names_of, of_joints, ranges_of, warn_of_degrees
from ._dynamics import energy
from ._effort import Gear, Motor
from ._force import AbstractForce
from ._frame import Frame, Pose, Wrench, vector
from ._friction import Constraints, Coulomb, friction_of
from ._joint import AbstractJoint
from ._layout import GROUND, Layout, body_of, laid_out
from ._linkage import AbstractRobot
from ._loops import Motors, actuation, constraints_of
from ._reactions import reactions_along, reactions_at


def picture(robot: AbstractRobot, trails: Sequence[str] = ()) -> Drawing:
    """The `Drawing` of a robot; a body with a single joint frame is a line from there to its centre of mass."""
    show = (lambda p: p[:2]) if robot.planar else (lambda p: p)
    ends: dict[str, list[str]] = {name: [] for name in (GROUND, *robot.layout.bodies)}
    for name in robot.joint_names:
        for end in (robot.joints[name].child, robot.joints[name].parent):
            if end not in ends[body_of(end)]:
                ends[body_of(end)].append(end)
    links = {body: _line(robot, body, ends[body], show) for body in robot.layout.bodies}
    for name in robot.layout.bodies:
        for k, shape in enumerate(robot.bodies[name].shapes):
            links[f"{name} shape {k + 1}"] = _outline(robot, name, shape, show)
    ground = [show(_linkage.pose(robot, jnp.zeros(robot.layout.n_q), end).p) for end in ends[GROUND]]
    scenery: dict[str, list[Array]] = {f"ground {i + 1}": [p] for i, p in enumerate(ground)}
    return Drawing(links, trails=trails, scenery=scenery)


def _line(robot: AbstractRobot, body: str, ends: list[str], show: Callable[[Array], Array]) -> Callable[..., Array]:
    def points(q: Array, t: Array) -> Array:
        found = [_linkage.pose(robot, q, end).p for end in ends]
        inertia = robot.bodies[body].inertia
        if len(found) < 2 and inertia is not None:
            found.append(_linkage.pose(robot, q, body).point(inertia.center))
        return jnp.stack([show(p) for p in found])

    return points


def _outline(robot: AbstractRobot, body: str, shape: Shape, show: Callable[[Array], Array]) -> Callable[..., Array]:
    def points(q: Array, t: Array) -> Array:
        pose = _linkage.pose(robot, q, body)
        return jax.vmap(lambda u: show(pose.point(u)))(shape.array.astype(q.dtype))

    return points


# Gravity [m/s^2] where none is given.
DOWN, PLANAR_DOWN = (0.0, 0.0, -9.81), (0.0, -9.81, 0.0)


class Robot(AbstractRobot):
    r"""A mechanical system of rigid bodies, in the coordinates of its joints, or of its bodies.

    Joints lead from the ground from body to body. A joint is part of the tree if no joint before it moves its child;
    else it closes a loop. The rows of a loop are constraints, which every `Mechanism` of the robot enforces, redundant
    rows included. M and the force follow from recursions along the tree.

    Args:
        bodies: Name -> `Body(inertia, frames)`.
        joints: Name -> joint, such as `Revolute("ground", "crank", "z")`, each between two frames, "body.frame" or
            "body" for its own.
        gravity: Acceleration of gravity (3,) [m/s^2], in the plane of a planar robot. If omitted 9.81 m/s^2 along -z,
            or along -y of a planar robot.
        frames: Name -> `Frame`, of the ground.
        gears: Name -> `Gear`, which couples two joints, or two sums of joints; one row each.
        motors: Name -> `Motor`, on a joint; for `actuation`.
        forces: Name -> force, such as `Spring("a.end", "b.end", stiffness, length)`.
        coordinates: "joint": those of the joints of the tree; "absolute": of every body, position and quaternion (of
            planar ones x, y and an angle), all joints being constraints.
        planar: Whether all bodies stay in the plane x, y; joints then take no more rows than that needs.
        stabilization: `Baumgarte`, for the joints that are constraints; None for no stabilization.
        home: Joint of the tree -> its coordinates in the state from which `assemble` starts, such as {"hip": 0.3}, or
            the pose in which a file draws the robot. A joint that is left out starts where its frames coincide.
        home_rates: Joint of the tree -> its speeds there; zero for a joint that is left out.
        turns: Names of hinges that close loops, whose turns are to be counted although they have no effort and no gear.
        ranges: Joint of the tree, of one coordinate -> its least and greatest coordinate, [rad or m], as a file gives
            it. Nothing holds a joint there; pass them on: `robot.assemble(..., bounds=robot.ranges)`.

    Attributes:
        layout: The tree to which the coordinates belong, and the joints that are constraints.
        tree: The tree that the joints span.

    Raises:
        TypeError: If a part has another type.
        ValueError: If a joint or force names a body or frame that does not exist, a body hangs on nothing, or is
            massless and held by nothing.

    Coordinates and speeds lie joint by joint in the order of the tree; `names` lists them. A ball joint has a unit
    quaternion, the scalar part first, and angular velocities seen from its child. A free joint has a position before
    the quaternion, and velocities seen from its child.

    The angle of a hinge is continuous over any number of turns, also where the hinge is a constraint. In the plane, and
    along parallel named axes, it is the sum of angles in q. Elsewhere its turns are counted by an entry at the end of
    q: of every hinge in absolute coordinates, and of hinges that close loops if they have an effort, a gear or a place
    in `turns`. `assemble` sets these entries.

    Gradients: through every length, mass and inertia, each of which is one leaf.

    Source: Featherstone (2008), Rigid Body Dynamics Algorithms; in the paper's form, by products of exponentials and
    Jacobians: Xu & Liu (2017), eq. 12 to 38.
    """

    bodies: dict[str, Body]
    joints: dict[str, AbstractJoint]
    gravity: Array
    frames: dict[str, Frame]
    gears: dict[str, Gear]
    motors: dict[str, Motor]
    forces: dict[str, AbstractForce]
    stabilization: Baumgarte | None
    home: dict[str, Array]
    home_rates: dict[str, Array]
    layout: Layout = eqx.field(static=True)
    joint_names: tuple[str, ...] = eqx.field(static=True)
    motor_names: tuple[str, ...] = eqx.field(static=True)
    tree: Layout = eqx.field(static=True)
    planar: bool = eqx.field(static=True)
    turns: tuple[str, ...] = eqx.field(static=True)
    joint_ranges: tuple[tuple[str, tuple[float, float]], ...] = eqx.field(static=True)

    def __init__(
        self,
        bodies: Mapping[str, Body],
        joints: Mapping[str, AbstractJoint],
        *,
        gravity: Numbers | None = None,
        frames: Mapping[str, Frame] | None = None,
        gears: Mapping[str, Gear] | None = None,
        motors: Mapping[str, Motor] | None = None,
        forces: Mapping[str, AbstractForce] | None = None,
        coordinates: str = "joint",
        planar: bool = False,
        stabilization: Baumgarte | None = None,
        home: Mapping[str, Numbers] | None = None,
        home_rates: Mapping[str, Numbers] | None = None,
        turns: Sequence[str] = (),
        ranges: Mapping[str, Numbers] | None = None,
    ):
        self.bodies = named_parts(bodies, Body, "bodies", "rigid.Body(rigid.Inertia(1.0))")
        self.joints = named_parts(joints, AbstractJoint, "joints", 'rigid.Revolute("ground", "crank")')
        self.frames = named_parts(frames or {}, Frame, "frames", "rigid.Frame((1.0, 0.0, 0.0))")
        self.gears = named_parts(gears or {}, Gear, "gears", 'rigid.Gear("A", "B", 2.0)')
        self.motors = named_parts(motors or {}, Motor, "motors", 'rigid.Motor("A")')
        self.forces = named_parts(forces or {}, AbstractForce, "forces", 'rigid.Spring("a", "b", 100.0)')
        self.gravity = vector((PLANAR_DOWN if planar else DOWN) if gravity is None else gravity, "gravity")
        self.planar, self.stabilization = planar, stabilization
        if not self.bodies:
            raise ValueError('bodies must hold one at least, as {"arm": rigid.Body(rigid.Inertia(1.0))}.')
        if coordinates not in ("joint", "absolute"):
            raise ValueError(f'coordinates must be "joint" or "absolute", but are {coordinates!r}.')
        frames_of = _frames_of(self.bodies, self.frames)
        for name, joint in self.joints.items():
            check_ends(f"joints[{name!r}]", frames_of, joint.parent, joint.child)
        for name, force in self.forces.items():
            check_ends(f"forces[{name!r}]", frames_of, *force.ends)
        check_names(self.joints, self.gears)
        if planar:
            check_planar(self.joints, self.gravity)
        names, self.joint_names, self.motor_names = tuple(self.bodies), tuple(self.joints), tuple(self.motors)
        self.tree = self.layout = laid_out(names, self.joints)
        self.home = of_joints(self.joints, self.tree, {} if home is None else home, "home", self.gravity.dtype)
        self.home_rates = of_joints(
            self.joints, self.tree, {} if home_rates is None else home_rates, "home_rates", self.gravity.dtype
        )
        if coordinates == "absolute":
            floating = {f"{_linkage.BODY}{name}": _linkage.floating(name, planar) for name in names}
            layout = laid_out(names, floating)
            self.layout = layout._replace(loops=tuple(self.joints))
        self.turns = _named(turns)
        self.layout = self.layout._replace(counted=_turns.counted(self, self.turns, coordinates == "absolute"))
        if coordinates == "joint":
            self.tree = self.layout
        for name, motor in self.motors.items():
            _linkage.driven(self, motor.joint, f"motors[{name!r}]")
        for name, gear in self.gears.items():
            for joint in gear.joints:
                _linkage.driven(self, joint, f"gears[{name!r}]")
        self.joint_ranges = tuple(ranges_of(self, {} if ranges is None else ranges, "ranges").items())
        geared = {joint for gear in self.gears.values() for joint in gear.joints}
        check_held(self.tree, self.bodies, self.joints, geared)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest coordinate of joints that have a range [rad or m]."""
        return dict(self.joint_ranges)

    def mechanism(
        self,
        constraints: Constraints = (),
        nonideal: Callable[..., Array] | None = None,
        friction: Mapping[str, Coulomb] | None = None,
    ) -> Mechanism:
        """The `Mechanism` of the robot with its own constraints and further ones.

        `friction`, in place of `nonideal`: joint -> `Coulomb`, of joints that are constraints.
        """
        if friction and nonideal is not None:
            raise ValueError("nonideal and friction are both given. Pass one of them.")
        return Mechanism(self, constraints, friction_of(self, friction, constraints) if friction else nonideal)

    def scenario(self, q0: Numbers, v0: Numbers, t1: float, **options: Any) -> Scenario:
        """A `Scenario` from a state, with the robot's names and drawing, unless `options` of `Scenario` replace them.

        The option `mechanism` is a mechanism of the robot with further constraints.
        """
        coordinates, speeds = self.names
        own = {"coordinates": coordinates, "drawing": self.drawing()}
        own |= {} if self.kinematics is None else {"speeds": speeds}
        options = {**own, **options}
        return Scenario(options.pop("mechanism", self.mechanism()), q0, v0, t1, **options)

    def drawing(self, trails: Sequence[str] = ()) -> Drawing:
        """The drawing of every body as a line through the frames of its joints; bodies in `trails` leave a trail."""
        return picture(self, trails)

    def assemble(
        self,
        coordinates: Mapping[str, object] | None = None,
        rates: Mapping[str, Numbers] | None = None,
        t: ArrayLike = 0.0,
        keep: Sequence[str] = (),
        bounds: Mapping[str, Numbers] | None = None,
    ) -> Assembly:
        """The consistent state nearest to the given coordinates of joints of the tree.

        Args:
            coordinates: Joint -> angle [rad], way [m], or all its coordinates. A joint that is left out starts from the
                robot's `home`: as a file draws it, or, where `home` does not name it, at zero, where its frames
                coincide. Angles may be of any number of turns. For a hinge that closes a loop and whose turns are
                counted, the angle says at which turn the hinge starts.
            rates: Joint -> rate, or all its speeds; those of `home_rates`, or zero, for a joint that is left out.
            t: Time [s].
            keep: Names of joints that must keep their given coordinates; the others move as needed.
            bounds: Joint of one coordinate -> its least and greatest coordinate, such as {"knee": (0.0, 2.0)}, or
                `robot.ranges`, those of its file. The state is then the nearest of those whose joints stay at the ends
                that were reached.

        Returns:
            `Assembly`, which unpacks as q and v; `print` it to see what moved, and how far.

        In joint coordinates, outside of transformations, the search compiles nothing and goes on from up to 24 other
        starts, up to three radians away, where loops do not close from the given one. A weld half a turn off is open.

        Raises:
            TypeError: If `coordinates`, `rates` or `bounds` is no mapping.
            ValueError: If a name is no joint, or a joint has another number of coordinates, or bounds are no range.
            RuntimeError: If the loops cannot be closed from there; the message names those that stay open, by how much,
                and along what.

        Warns:
            UserWarning: If an angle is a whole number beyond a full turn, as those in degrees are.
        """
        # An array is neither true nor false, and is to be named as what it is.
        coordinates = {} if coordinates is None else coordinates
        warn_of_degrees(self, coordinates)
        return assembled(self, coordinates, {} if rates is None else rates, t, keep, bounds)

    def reactions(
        self,
        q: Numbers,
        v: Numbers,
        t: ArrayLike = 0.0,
        axes: str | None = None,
        *,
        applied: Numbers | None = None,
        motors: Mapping[str, ArrayLike] | None = None,
        **options: Any,
    ) -> dict[str, Wrench]:
        """The force [N] and torque [N m] of each joint's parent on its child, (3,) each, by joint, at one state.

        The torque is about the origin of the child's frame. Both are seen from that frame, or along the `axes` of
        "ground", of "body" or of "body.frame". They include the joint's effort and its motor.

        Args:
            q: Coordinates (n_q,).
            v: Speeds (n,).
            t: Time [s].
            axes: Frame along whose axes the results are seen; None for the child's own.
            applied: Further generalised force (n,) [N or N m] from outside, which does not come through the joints. In
                absolute coordinates it is a force and a torque on each body. In joint coordinates its points of action
                are unknown: it is taken to act between the two bodies of each joint, beside the joint. A load with a
                place is a `Load` among the robot's `forces`.
            motors: Name of a motor, or of a joint for a unit motor on it -> its control. The force of the motor is part
                of the reaction of its joint.
            options: `formulation` and `throw`, as for `equation_of_motion`.

        Where rows depend on each other (a door on three hinges) rigid bodies determine sums of reactions only. The
        reactions are then those of the multipliers of least Euclidean norm: forces in N, and moments in N m as if at an
        arm of one metre.
        Equal rigid supports share equally, whatever the inertia, and shares change continuously along a motion.
        """
        where = axes if axes is None else self._known(axes, "axes")
        q, v, driving = self._coordinates(q), self._speeds(v), _check.mapping(motors, "motors", '{"hip": 2.0}')
        return reactions_at(self, q, v, t, where, applied, driving, options)

    def reactions_along(
        self, trajectory: Trajectory, motors: Sequence[str] = (), axes: str | None = None
    ) -> dict[str, Wrench]:
        """The reactions at the saved times, (T, 3) each, of a trajectory of `simulate(keep="all")`.

        `motors`: with a servo, the names passed to `actuation`. Constraints beside the robot's own are an error.
        """
        if not isinstance(motors, Sequence):
            raise TypeError(f'motors must be names of motors or joints, such as ["hip"], but is {motors!r}.')
        names = (motors,) if isinstance(motors, str) else tuple(motors)
        where = axes if axes is None else self._known(axes, "axes")
        return reactions_along(self, trajectory, names, where)

    def actuation(self, *names: str) -> Array | Motors:
        """The matrix G (n, p) for a `Servo`, of motors, or unit motors on joints, by name; of all motors without names.

        G is a function of (q, t) if a joint closes a loop.
        """
        return actuation(self, names or self.motor_names)

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the coordinates and of the speeds, with units."""
        return names_of(self)

    @property
    def kinematics(self) -> AbstractKinematics | None:
        if self.layout.n == self.layout.n_q:
            return None
        return TreeKinematics(_linkage.motions(self), self.layout, self if self.layout.counted else None)

    @property
    def own_constraints(self):
        return constraints_of(self)

    def own_rows(self, q, v, t):
        return _loops.own_rows(self, self._coordinates(q), v)

    def own_errors(self, q, v, t, afar):
        q = self._coordinates(q)
        return _loops.own_errors(self, q, jnp.zeros(self.layout.n, q.dtype) if v is None else v, afar)

    def own_imbalance(self):
        return ft.partial(_dynamics.imbalance, self) if _dynamics.is_large(self) else None

    def mass(self, q, t):
        return _dynamics.mass(self, self._coordinates(q), t)

    def force(self, q, v, t):
        return _dynamics.force(self, self._coordinates(q), v, t)

    def free(self, applied):
        return _dynamics.free(self, applied)

    def pose(self, q: Coordinates, end: str) -> Pose:
        """Rotation R (3, 3) and origin p (3,) [m] of "body" or "body.frame", seen from the ground."""
        return _linkage.pose(self, self._coordinates(q), self._known(end))

    def position(self, q: Coordinates, end: str) -> Array:
        """The position of the origin of "body" or "body.frame", seen from the ground (3,) [m]."""
        return self.pose(q, end).p

    def velocity(self, q: Coordinates, v: Vector, end: str) -> Array:
        """The velocity of the origin of "body" or "body.frame", seen from the ground (3,) [m/s]."""
        q, v = self._coordinates(q), self._speeds(v)
        return _linkage.placement(self, _linkage.posture(self, q), v).velocity(self._known(end))

    def energy(self, q: Coordinates, v: Vector, t: ArrayLike = 0.0) -> Array:
        """The kinetic energy, plus the potential energy of springs and of gravity, zero at the ground's origin [J].

        The sum is constant if nothing damps, and no load, servo or moving constraint acts.
        """
        return energy(self, self._coordinates(q), self._speeds(v), t)

    def coordinate(self, q: Coordinates, joint: str) -> Array:
        """The coordinate of a joint with a single one, an angle [rad] of any number of turns, or a distance [m].

        Raises ValueError for a hinge that closes a loop if its turns are not counted: name it in `turns` of the robot.
        """
        return _turns.coordinate(self, self._coordinates(q), joint)

    def in_joints(self) -> "Robot":
        """The robot in the coordinates of its joints."""
        joints = {name: self.joints[name] for name in self.joint_names}
        motors = {name: self.motors[name] for name in self.motor_names}
        same = [
            "gravity",
            "frames",
            "gears",
            "forces",
            "planar",
            "stabilization",
            "home",
            "home_rates",
            "turns",
            "ranges",
        ]
        return Robot(self.bodies, joints, motors=motors, **{name: getattr(self, name) for name in same})

    def _coordinates(self, q: object) -> Array:
        q, layout = _check.floating(q, "q"), self.layout
        if q.shape != (layout.n_q,):
            turns = f"with an entry for the turns of each hinge of {layout.counted} at its end, " * bool(layout.counted)
            raise ValueError(
                f"q must have shape ({layout.n_q},), {turns}but has shape {q.shape}. Take it from robot.assemble(...), "
                "and use jax.vmap for several states."
            )
        return q

    def _speeds(self, v: object) -> Array:
        v = _check.floating(v, "v")
        if v.shape != (self.layout.n,):
            shape = f"({self.layout.n},)"
            raise ValueError(f"v must have shape {shape}, but has shape {v.shape}. Use jax.vmap for several states.")
        return v

    def _known(self, end: str, what: str = "end") -> str:
        check_ends(what, _frames_of(self.bodies, self.frames), end)
        return end


def _named(turns: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(turns, Sequence):
        raise TypeError(f'turns must be names of joints, such as ["D"], but is {turns!r}.')
    return (turns,) if isinstance(turns, str) else tuple(turns)


def _frames_of(bodies: Mapping[str, Body], frames: Mapping[str, Frame]) -> dict[str, Mapping[str, Frame]]:
    return {GROUND: frames, **{name: body.frames for name, body in bodies.items()}}
