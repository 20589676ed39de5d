"""Scenario: all that a command needs to run a mechanism. A `Drawing` describes the look of a mechanism."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from . import _check
from ._coordinate import Coordinate, named, rate_unit, speeds_named
from ._formulation import AbstractFormulation, UdwadiaKalaba
from ._manifold import Projection
from ._mechanism import Mechanism
from ._program import jit_fast_compile
from ._servo import AbstractServo, Feedback, ServoLike, as_controller, as_servos
from ._show import AbstractShown, Report, number, shortened
from ._simulate import simulate
from ._trajectory import Trajectory
from ._types import Numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """The parts of a picture or an animation of a mechanism, in the plane or in space.

    Args:
        links: Name -> `f(q, t)`, points (k, 2) or (k, 3) [m], joined by a line with a dot at either end, or without if
            the last point is the first; a single point (1, 2) is a particle.
        trails: Names of links whose last point leaves a trail.
        forces: Name -> `f(q, t, constraint_force)`, a point and a force there, each (2,) or (3,) [m, N], drawn as an
            arrow. Where the coordinates are not those of the point, convert the generalised force to a force at the
            point. `constraint_force` is that of all constraints together; for one constraint give a pair, its name and
            `f(q, t, force, multipliers)`: the load of a pin is given by the multipliers of its rows.
        scenery: Name -> points (k, 2) or (k, 3) [m] that do not move: a rail, a surface's outline.

    Raises:
        TypeError: If links, forces or scenery are no mapping, or a link or force is not callable.
        ValueError: If there is nothing to draw, a trail names no link, or scenery has the wrong shape or is not finite.
    """

    links: Mapping[str, Callable]
    _: dataclasses.KW_ONLY
    trails: Sequence[str] = ()
    forces: Mapping[str, Callable | tuple[str, Callable]] = dataclasses.field(default_factory=dict)
    scenery: Mapping[str, npt.ArrayLike] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("links", "forces", "scenery"):
            _check.instance(getattr(self, name), Mapping, name, '{"rod": ...}')
        if not self.links:
            raise ValueError("links must hold at least one link, name -> f(q, t), but is empty.")
        for name, link in self.links.items():
            _check.function(link, f"links[{name!r}]", "f(q, t) -> points (k, 2) or (k, 3)")
        for name, force in self.forces.items():
            if isinstance(force, tuple):
                if len(force) != 2 or not isinstance(force[0], str):
                    raise ValueError(f"forces[{name!r}] must be a function, or a pair of a constraint's name and one.")
                _check.function(force[1], f"forces[{name!r}][1]", "f(q, t, force, multipliers) -> (point, force)")
            else:
                _check.function(force, f"forces[{name!r}]", "f(q, t, constraint_force) -> (point, force)")
        for name in self.trails:
            if name not in self.links:
                raise ValueError(f"trails must name links, {', '.join(self.links)}, but one is {name!r}.")
        for name, points in self.scenery.items():
            shape = np.shape(points)
            if len(shape) != 2 or shape[1] not in (2, 3):
                raise ValueError(f"scenery[{name!r}] must have shape (k, 2) or (k, 3), but has shape {shape}.")
            _check.finite(np.asarray(points, float), f"scenery[{name!r}]")


class Scenario(AbstractShown):
    """A mechanism with its initial state, its times, and names for its numbers.

    Args:
        mechanism: System and constraints.
        q0: Initial coordinates (n,) [m or rad].
        v0: Rates of q0 (n,) [m/s or rad/s].
        t1: End time [s]; the run starts at `t0`.
        t0: Start time [s].
        name: A short title.
        coordinates: A name with unit for each coordinate, `Coordinate("q1", "rad")` or "q1 [rad]"; "q1", "q2", ... if
            omitted.
        speeds: A name with unit for each speed of a mechanism with a kinematics, such as "omega x [rad/s]". If omitted,
            the speeds are the rates of the coordinates, or "v1", "v2", ... if their numbers differ.
        observables: Further quantities to plot: "name [unit]" or `Coordinate` -> `f(q, v, t)`, a scalar or a vector,
            whose components a name such as "tool x, y, z [m]" lists.
        servo: `Servo` or `ConstraintFollowing`, or several of one kind, or a `Feedback`, acting on the mechanism.
        controls: A name with unit for each actuator, likewise, such as "u1 [N m]"; "u1", "u2", ... if omitted.
        invariants: Quantities that theory keeps constant, whose drift is reported: "energy [J]" -> `f(q, v, t)`,
            a scalar.
        formulation: Method by which the acceleration is computed.
        projection: `Projection()` to stay on the constraint manifold, or None to drift.
        drawing: `Drawing` of the mechanism, for pictures and animations; None if it cannot be drawn.
        source: Source of the system, in a few words.

    Raises:
        TypeError: If `mechanism` is not a `Mechanism`, `servo`, `formulation`, `projection` or `drawing` is something
            else, or an observable or invariant is not callable.
        ValueError: If the shapes do not fit, there are not as many names as coordinates, speeds or actuators, `t1` is
            not after `t0`, or an observable or invariant fails at the start or returns something else.
    """

    mechanism: Mechanism
    q0: Float[Array, " n_q"]
    v0: Float[Array, " n"]
    t1: float
    t0: float
    name: str
    coordinates: tuple[Coordinate, ...]
    speeds: tuple[Coordinate, ...] | None
    observables: dict[str, Callable]
    invariants: dict[str, Callable]
    servo: tuple[AbstractServo, ...] | Feedback | None
    controls: tuple[Coordinate, ...]
    formulation: AbstractFormulation
    projection: Projection | None
    drawing: Drawing | None
    source: str

    def __init__(
        self,
        mechanism: Mechanism,
        q0: Numbers,
        v0: Numbers,
        t1: float,
        *,
        t0: float = 0.0,
        name: str = "mechanism",
        coordinates: Sequence[str] | None = None,
        speeds: Sequence[str] | None = None,
        observables: Mapping[str, Callable] | None = None,
        invariants: Mapping[str, Callable] | None = None,
        servo: AbstractServo | Sequence[AbstractServo] | Feedback | None = None,
        controls: Sequence[str] | None = None,
        formulation: AbstractFormulation = UdwadiaKalaba(),
        projection: Projection | None = None,
        drawing: Drawing | None = None,
        source: str = "",
    ):
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism must be a ukjax.Mechanism, but is {type(mechanism).__name__}.")
        _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
        if projection is not None:
            _check.instance(projection, Projection, "projection", "ukjax.Projection()")
        if drawing is not None:
            _check.instance(drawing, Drawing, "drawing", "ukjax.study.Drawing(links)")
        q0, v0 = _check.floating(q0, "q0"), _check.floating(v0, "v0")
        self.q0, self.v0, _ = _check.state(q0, v0, names=("q0", "v0"), kinematics=mechanism.kinematics)
        _check.finite(self.q0, "q0")
        _check.finite(self.v0, "v0")
        if not t1 > t0:
            raise ValueError(f"t1 must be later than t0 = {t0} s, but is {t1} s.")
        self.coordinates = named(coordinates, self.q0.shape[0], "q", "coordinates, coordinate")
        self.speeds = speeds_named(speeds, self.coordinates, self.v0.shape[0])
        self.mechanism, self.formulation, self.projection = mechanism, formulation, projection
        self.t0, self.t1, self.name = t0, t1, name
        self.servo = servo if servo is None or isinstance(servo, Feedback) else as_servos(servo)
        self.controls = _control_names(self.servo, controls, self.q0, jnp.asarray(t0, self.q0.dtype), len(self.v0))
        self.drawing, self.source = drawing, source
        state = self.q0, self.v0, jnp.asarray(t0, self.q0.dtype)
        self.observables = _functions(observables, "observables", state, (0, 1))
        self.invariants = _functions(invariants, "invariants", state, (0,))

    def _report(self) -> Report:
        rates = self.speeds or tuple(Coordinate(f"v {x.name}", rate_unit(x.unit)) for x in self.coordinates)
        start = [*zip(self.coordinates, map(number, self.q0)), *zip(rates, map(number, self.v0))]
        shown, more = shortened(start)
        notes = [
            f"from {self.t0:g} to {self.t1:g} s",
            *([f"actuators: {', '.join(self.controls)}"] if self.controls else []),
            *([f"observables: {', '.join(self.observables)}"] if self.observables else []),
            *([f"invariants: {', '.join(self.invariants)}"] if self.invariants else []),
            *([f"source: {self.source}"] if self.source else []),
        ]
        return Report(f"Scenario: {self.name}", shown, ("at the start", ""), [*more, *notes])

    def simulate(self, ts: Numbers | None = None, **options: Any) -> Trajectory:
        """Runs `ukjax.simulate` from `q0`, `v0` with the servo, the formulation and the projection of the scenario.

        The trajectory has the names of the scenario, in its display, `to_dataframe` and `to_dataset`.

        Args:
            ts: Times to save at (T,) [s]; 1001 from `t0` to `t1` if omitted.
            **options: Options of `ukjax.simulate`; they override those of the scenario, for example `projection=None`.
        """
        ts = jnp.linspace(self.t0, self.t1, 1001) if ts is None else ts
        own = {"servo": self.servo, "formulation": self.formulation, "projection": self.projection}
        chosen = {**own, **options}
        trajectory = simulate(self.mechanism, self.q0, self.v0, ts, **chosen)
        # Names that nobody chose would only hide those of the mechanism.
        coordinates = self.coordinates if self.coordinates != named(None, len(self.q0), "q", "") else None
        controls = self.controls if self.controls and chosen["servo"] is self.servo else None
        return trajectory.called(coordinates, self.speeds, controls)

    def observed(self, trajectory: Trajectory) -> dict[str, Array]:
        """Returns observables and invariants along a trajectory of the scenario, or a batch of them, by name.

        Pass them on to `Trajectory.to_dataset`, `to_dataframe` or `to_csv` as `observables`.

        Raises:
            AttributeError: If q or v was not kept.
        """

        def at(q: Array, v: Array, t: Array) -> dict[str, Array]:
            return {name: f(q, v, t) for name, f in {**self.observables, **self.invariants}.items()}

        along = jax.vmap(at) if trajectory.t.ndim == 1 else jax.vmap(jax.vmap(at))
        return jit_fast_compile(along)(trajectory.q, trajectory.v, trajectory.t)


def _control_names(servo: ServoLike, names: Sequence[str] | None, q: Array, t: Array, n: int) -> tuple[Coordinate, ...]:
    if servo is None:
        if names is not None:
            raise ValueError("controls are the names of actuators, but there is no servo. Pass servo=ukjax.Servo(...).")
        return ()
    return named(names, as_controller(servo).actuators(q, t, n), "u", "controls, actuator")


def _functions(
    functions: Mapping[str, Callable] | None, name: str, state: tuple[Array, Array, Array], axes: tuple[int, ...]
) -> dict[str, Callable]:
    """Returns functions by name; each is traced at the start to check that its rank is among `axes`."""
    found = {}
    for key, given in (functions or {}).items():
        what = f"{name}[{key!r}]"
        function = found[Coordinate(key)] = _check.function(given, what, "f(q, v, t)")
        try:
            value = jax.eval_shape(function, *state)
        except Exception as error:  # a user's function may raise anything
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise ValueError(
                f"{what} must be a function of (q, v, t) in jax.numpy, but fails at q0: {reason}"
            ) from error
        if not isinstance(value, jax.ShapeDtypeStruct) or value.ndim not in axes:
            wanted = "a number" if axes == (0,) else "a number or a vector"
            shown = f"shape {value.shape}" if isinstance(value, jax.ShapeDtypeStruct) else type(value).__name__
            raise ValueError(f"{what} must return {wanted}, but returned {shown}.")
    return found
