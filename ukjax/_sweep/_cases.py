"""The computation of a chunk of a study, from its points to its results.

Where the factory cannot be traced as a whole, the scenarios are made at once by `jax.vmap`, if that works, or one by
one; leaves that depend on a sample get a leading axis.

N: samples.
"""

import dataclasses
import inspect
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, ArrayLike, PyTree

from .. import _check
from .._batch import Reduction, on_one_device, simulate_batch
from .._coordinate import Coordinate
from .._dataset import LABELS, observable, slug, variable_of
from .._identity import checksum_of
from .._result import FailedTrajectories, InconsistentStart, is_traced
from .._scenario import Scenario
from .._servo import as_controller
from .._simulate import simulate
from .._simulation import kept
from .._trajectory import OPTIONAL, Trajectory


if TYPE_CHECKING:
    import xarray as xr


# A function of a trajectory that returns a number to store.
Figure = Callable[[Trajectory], ArrayLike]
DIFFERENT_SHAPES = (
    "The results have another shape for every sample when {} vary, and have no room in one table. Vary what leaves "
    "coordinates, constraints and actuators as many as they are."
)
# The errors of a function that needs a known number, or keeps a number that is known within a trace only.
WANTS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)
OF_ONE = frozenset(inspect.signature(simulate).parameters)  # options of `simulate_batch` that one trajectory has too
MOST_PROGRAMS = 16  # programs that are kept, of samples with a program of their own
OF_ALL: dict[str, Figure] = {
    "largest position error": lambda trajectory: jnp.max(trajectory.position_residual),
    "largest velocity error": lambda trajectory: jnp.max(trajectory.velocity_residual),
}
NEEDED = ("q", "v", "position_residual", "velocity_residual")  # for the figures that every scenario has


class Differ(Exception):
    """The scenarios of some samples differ in more than numbers."""


def parts_of(one: Scenario) -> PyTree:
    """Mechanism, servo and start of a scenario, and its formulation and projection, which no sample may change."""
    return one.mechanism, one.servo, one.q0, one.v0, (one.formulation, one.projection)


def at_once(make: Callable[[Mapping[str, Array]], PyTree], samples: Mapping[str, Array]) -> tuple[PyTree, PyTree]:
    """Makes the parts of all samples at once, and the axes of their leaves: 0 for those that depend on a sample."""
    seen = []

    def varying(values: Mapping[str, Array]) -> list[Array]:
        leaves, structure = jax.tree_util.tree_flatten(make(values))
        seen.append((structure, [None if is_traced(x) else x for x in leaves]))
        return [x for x in leaves if is_traced(x)]

    stacked = iter(jax.vmap(varying)(samples))
    structure, fixed = seen[-1]
    parts = jax.tree_util.tree_unflatten(structure, [next(stacked) if x is None else x for x in fixed])
    return parts, jax.tree_util.tree_unflatten(structure, [0 if x is None else None for x in fixed])


def one_by_one(parts: Sequence[PyTree], rows: Sequence[Mapping[str, float]], ends: int) -> tuple[PyTree, PyTree]:
    """Puts the parts of `rows` side by side where they differ, for a factory that needs plain numbers.

    The first rows are the ends of the study, which count in the comparison only, so that all chunks have the same
    program. Where all samples are the same no comparison can tell, and every leaf is taken to differ.
    """
    structures = {jax.tree_util.tree_structure(part) for part in parts}
    shapes = {tuple(np.shape(x) for x in jax.tree_util.tree_leaves(part)) for part in parts}
    if len(structures) > 1 or len(shapes) > 1:
        raise Differ
    stacked = jax.tree_util.tree_map(lambda *x: np.stack([np.asarray(y) for y in x]), *parts)
    alike = all(row == rows[0] for row in rows)

    def differs(x: np.ndarray) -> bool:
        return alike or bool(np.any(x != x[:1]))

    one = jax.tree_util.tree_map(lambda x: jnp.asarray(x[ends:] if differs(x) else x[0]), stacked)
    return one, jax.tree_util.tree_map(lambda x: 0 if differs(x) else None, stacked)


class Cases:
    """The trajectories of a study.

    Where the factory, and all functions of its scenarios, work with traced numbers, they are traced once. Otherwise the
    scenarios of a chunk are made one by one. Where these differ in the leaves of their pytrees only, they run as a
    batch; else each is traced and runs by itself.

    Args:
        factory: `factory(**values)` -> `Scenario`.
        settings: Arguments of the factory that are the same for all.
        varied: The varied arguments by name, with the attributes of their variables in the store.
        ts: Times to save at (T,); None for 101 over the scenario's.
        keep: Fields to store.
        figures: "name [unit]" -> f(trajectory), a scalar, to store.
        options: Options of `simulate_batch`.
        ends: The first sample and the last one.

    Attributes:
        scenario: Checksum of what is traced: trajectories, invariants, and the terms of the mechanism at the start.
        of_figures: Checksum of each figure, by its name.

    A factory that is not traced as a whole has the checksum of both ends, with their numbers, and of its code, with all
    code of the user that it uses: nothing else identifies the samples in between.

    Raises:
        ValueError: If the factory does not take a name, or its scenarios differ in shapes or times.
    """

    def __init__(
        self, factory: Callable[..., Scenario], settings: Mapping[str, object], varied: Mapping[str, Mapping[str, str]],
        ts: ArrayLike | Sequence[float] | None, keep: str | Sequence[str], figures: Mapping[str, Figure],
        options: Mapping[str, Any], ends: Sequence[Mapping[str, float]],
    ):  # fmt: skip
        self.names, self.varied = tuple(varied), varied
        self.make = lambda values: factory(**settings, **{name: values[name] for name in self.names})
        self.ends, self.first = ends, self._first(ends[0])
        one = self.first
        self.ts = np.linspace(one.t0, one.t1, 101) if ts is None else np.asarray(_check.times(ts))
        self.keep = kept(keep, as_controller(one.servo))
        self.figures = {Coordinate(k): f for k, f in [*OF_ALL.items(), *figures.items()]}
        invariants = map(Coordinate, one.invariants)
        self.drifts = {str(name): Coordinate(f"drift of {name.name}", name.unit) for name in invariants}
        self._check_names(figures)
        self.observed = self._variables(figures)
        self.given = dict(options)
        self.options = {"formulation": one.formulation, "projection": one.projection, **options}
        self.pattern, self.apart, self.programs = None, False, {}
        found = self._together()
        self.traceable = found is not None
        closed, shapes = found or self._traced(lambda: one)
        self.scenario = checksum_of(closed)
        if not self.traceable:
            last = self._with_numbers(ends[-1])
            if ts is None and (last.t0, last.t1) != (one.t0, one.t1):
                raise ValueError(
                    f"The times of the scenarios differ when {', '.join(self.names)} vary. Pass ts, for all."
                )
            if (last.q0.shape, last.v0.shape) != (one.q0.shape, one.v0.shape):
                raise ValueError(DIFFERENT_SHAPES.format(", ".join(varied)))
            self.scenario = checksum_of(closed, self._traced(lambda: last)[0], factory, settings, self.names)
        self.of_figures = {str(name): self._checksum_of(name, shapes) for name in self.figures}
        self.parts = {
            "mechanism": lambda values: self.make(values).mechanism,
            "q0": lambda values: self.make(values).q0,
            "v0": lambda values: self.make(values).v0,
            "servo": None if one.servo is None else lambda values: self.make(values).servo,
        }
        # Functions that stay the same from chunk to chunk, so that their compiled programs are found again.
        self.reduce = lambda trajectory: (
            self._stored(trajectory), self._shown(trajectory), trajectory.q, trajectory.v
        )  # fmt: skip
        self.reduce_of = lambda trajectory, values: (
            self._stored(trajectory),
            self._shown(trajectory) | self._along(self.make(values), trajectory.q, trajectory.v),
        )

    @property
    def sums(self) -> tuple[str, dict[str, str]]:
        """All checksums, by which a worker recognises the study."""
        return self.scenario, self.of_figures

    def run(self, values: Mapping[str, np.ndarray], size: int) -> "Results":
        """Computes the results of samples, in the program for `size` of them."""
        begin = time.perf_counter()
        count = len(values[self.names[0]])
        filled = {name: np.concatenate([x, np.repeat(x[-1:], size - count)]) for name, x in values.items()}
        given = {"keep": (*NEEDED, *self.keep), "progress": False, **self.options}
        with warnings.catch_warnings():
            # Failures are counted and stored.
            warnings.simplefilter("ignore", FailedTrajectories)
            warnings.simplefilter("ignore", InconsistentStart)
            got = self._batch(filled, given)
        data = self._dataset(got, filled).isel(sample=slice(count))
        return Results(data, int(np.sum(data.result.values != 0)), time.perf_counter() - begin)

    def _batch(self, values: Mapping[str, np.ndarray], given: dict[str, Any]) -> Reduction:
        samples = {name: jnp.asarray(values[name], self.first.q0.dtype) for name in self.names}
        if self.traceable:
            parts = self.parts
            start = parts["mechanism"], parts["q0"], parts["v0"], self.ts
            return simulate_batch(*start, servo=parts["servo"], samples=samples, reduce=self.reduce_of, **given)
        if self.apart:
            return self._each(values)
        try:
            parts, axes, together = self._side_by_side(values, samples)
            mechanism, servo, q0, v0 = parts
            of = {"mechanism": axes[0]} | ({} if servo is None else {"servo": axes[1]})
            got = simulate_batch(mechanism, q0, v0, self.ts, servo=servo, axes=of, reduce=self.reduce, **given)
        except Differ:
            return self._each(values)
        except WANTS_NUMBERS:  # every chunk would raise it, for a batch is traced
            self.apart = True
            return self._each(values)
        stored, shown, *states = got.value
        if together:
            drifts = jax.vmap(lambda values, *states: self._along(self.make(values), *states))(samples, *states)
        else:
            drifts = self._each_along(values, *states)
        return dataclasses.replace(got, value=(stored, shown | drifts))

    def _side_by_side(
        self, values: Mapping[str, np.ndarray], samples: Mapping[str, Array]
    ) -> tuple[list[PyTree], list[PyTree], bool]:
        """The parts of all samples, the axes of their leaves, and whether the factory made them at once.

        Raises Differ if more than leaves depends on a sample.
        """
        together = True
        try:
            parts, axes = at_once(lambda values: parts_of(self.make(values)), samples)
            # The functions in them are made anew every time, but the compiled programs belong to the first ones.
            leaves = jax.tree_util.tree_leaves(parts)
            self.pattern = self.pattern or jax.tree_util.tree_structure((parts, axes))
            parts, axes = jax.tree_util.tree_unflatten(self.pattern, [*leaves, *jax.tree_util.tree_leaves(axes)])
        except Exception:
            # The user's factory cannot work with traced numbers; plain ones tell what else is wrong.
            together = False
            rows = [*self.ends, *self._rows(values)]
            parts, axes = one_by_one([parts_of(self._with_numbers(row)) for row in rows], rows, len(self.ends))
        *parts, _ = parts
        *axes, of_how = axes
        if jax.tree_util.tree_leaves(of_how) or not jax.tree_util.tree_leaves(axes):
            raise Differ  # whatever depends on a sample is hidden in functions
        return parts, axes, together

    def _each(self, values: Mapping[str, np.ndarray]) -> Reduction:
        """Computes each sample by itself. Samples whose programs differ in arrays only are compiled once."""
        found: list[Reduction] = []
        rows = self._rows(values)
        for i, row in enumerate(rows):
            found.append(found[-1] if i and row == rows[i - 1] else self._by_itself(row))
        shapes = {tuple(np.shape(x) for x in jax.tree_util.tree_leaves(one)) for one in found}
        if len(shapes) > 1 or len({*map(jax.tree_util.tree_structure, found)}) > 1:
            raise ValueError(DIFFERENT_SHAPES.format(", ".join(self.names)))
        return jax.tree_util.tree_map(lambda *x: np.stack([np.asarray(y) for y in x]), *found)

    def _by_itself(self, values: Mapping[str, float]) -> Reduction:
        one = self._with_numbers(values)

        def run() -> Reduction:
            trajectory = self._simulated(one)
            shown = self._shown(trajectory) | self._along(one, trajectory.q, trajectory.v)
            return Reduction((self._stored(trajectory), shown), trajectory.result, trajectory.stats)

        closed, shapes = jax.make_jaxpr(run, return_shape=True)()
        key = checksum_of(closed.jaxpr)
        if key not in self.programs:
            if len(self.programs) == MOST_PROGRAMS:
                del self.programs[next(iter(self.programs))]
            self.programs[key] = jax.jit(lambda constants: jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))())
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), self.programs[key](closed.consts))

    def _rows(self, values: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
        """The samples one by one, as Python numbers."""
        return [{name: values[name][i].item() for name in self.names} for i in range(len(values[self.names[0]]))]

    def _simulated(self, one: Scenario) -> Trajectory:
        """Simulates a single scenario."""
        own: dict[str, Any] = {"formulation": one.formulation, "projection": one.projection, **self.given}
        options = {name: x for name, x in own.items() if name in OF_ONE and name != "throw"}
        fields = (*NEEDED, *self.keep)
        return simulate(one.mechanism, one.q0, one.v0, self.ts, servo=one.servo, keep=fields, throw=False, **options)

    def _traced(
        self, make: Callable[..., Scenario], *values: Mapping[str, ArrayLike]
    ) -> tuple[ClosedJaxpr, Trajectory]:
        """Traces all that follows from a scenario as a function of `values`; also returns the trajectory as shapes."""

        def whole(*values: Mapping[str, Array]) -> tuple[Trajectory, PyTree, dict[Coordinate, Array]]:
            one = make(*values)
            trajectory = self._simulated(one)
            # Traced anew, for a program compiled before may still have a number that was changed since.
            terms = one.mechanism.terms(one.q0, one.v0, jnp.asarray(one.t0, one.q0.dtype))
            drift = self._along(one, trajectory.q, trajectory.v)
            return trajectory, eqx.filter(terms, eqx.is_array), drift

        with on_one_device():
            closed, (trajectory, *_) = jax.make_jaxpr(whole, return_shape=True)(*values)
        return closed, trajectory

    def _together(self) -> tuple[ClosedJaxpr, Trajectory] | None:
        """The scenarios of all samples as one traced function; None if a function cannot be traced."""

        def make(values: Mapping[str, Array]) -> Scenario:
            one = self.make(values)
            # Its times, name, formulation and projection must not depend on what is varied.
            hash((one.t0, one.t1, one.name))
            if is_traced((one.formulation, one.projection)):
                raise Differ
            return one

        try:
            return self._traced(make, {name: np.zeros((), self.first.q0.dtype) for name in self.names})
        except Exception:  # the user's functions may raise anything; plain numbers raise it again, and it is reported
            return None

    def _along(self, one: Scenario, q: Array, v: Array) -> dict[Coordinate, Array]:
        """The largest deviation of each invariant of a scenario from its value at the start, and its observables."""
        found = {}
        ts = jnp.asarray(self.ts, q.dtype)
        for name, drift in self.drifts.items():
            kept = jax.vmap(one.invariants[name])(q, v, ts)
            found[drift] = jnp.max(jnp.abs(kept - kept[0]))
        return found | {key: jax.vmap(one.observables[name])(q, v, ts) for key, name in self.observed.items()}

    def _each_along(self, values: Mapping[str, np.ndarray], q: Array, v: Array) -> dict[Coordinate, np.ndarray]:
        """The deviations of the invariants, and observables, for samples whose scenarios are made one by one."""
        names = (*self.drifts.values(), *self.observed)
        rows = self._rows(values) if names else []
        each = [self._along(self.make(row), q[i], v[i]) for i, row in enumerate(rows)]
        return {name: np.array([x[name] for x in each]) for name in names}

    def _variables(self, figures: Mapping[str, Figure]) -> dict[Coordinate, Coordinate]:
        """The scenario's observables by the names of their variables, which are none of the other names."""
        own = {slug(Coordinate(name)) for name in (*OF_ALL, *self.drifts.values(), *figures)}
        taken = {"sample", *LABELS, *OPTIONAL, *self.names, *own}
        found: dict[Coordinate, Coordinate] = {}
        for name in map(Coordinate, self.first.observables):
            found[Coordinate(variable_of(name, {*taken, *found}))] = name
        return found

    def _check_names(self, figures: Mapping[str, Figure]) -> None:
        """Raises ValueError if a variable of the results would have the name of another."""
        of_figures = {slug(name) for name in (*map(Coordinate, OF_ALL), *self.drifts.values())}
        taken = {"sample", *LABELS, *self.keep, *of_figures}
        for name in self.names:
            if name in taken:
                raise ValueError(
                    f"vary must not name {name!r}, which the results have already. Pass a factory that takes it by "
                    f"another name{', or leave it out of keep' * (name in self.keep)}."
                )
        taken |= {*self.names}
        for key in figures:
            name = slug(Coordinate(key))
            if not name or name in taken:
                raise ValueError(f"figures[{key!r}] must have a name of its own: the results have {name!r} already.")
            taken.add(name)

    def _first(self, values: Mapping[str, float]) -> Scenario:
        scenario = self._with_numbers(values)
        _check.instance(scenario, Scenario, "what factory returns", "ukjax.Scenario(mechanism, q0, v0, t1)")
        return scenario

    def _with_numbers(self, values: Mapping[str, float]) -> Scenario:
        """The scenario of a sample; raises ValueError if the factory does not take the sample."""
        try:
            return self.make(values)
        except Exception as error:  # of the user's function
            shown = ", ".join(f"{k} = {v:g}" for k, v in values.items())
            kind = "" if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"The scenario cannot be made with {shown}: {kind}{error}") from error

    def _stored(self, trajectory: Trajectory) -> Trajectory:
        dropped = [name for name in OPTIONAL if name not in self.keep]
        empty = [None] * len(dropped)
        return eqx.tree_at(lambda t: [vars(t)[k] for k in dropped], trajectory, empty, is_leaf=lambda x: x is None)

    def _shown(self, trajectory: Trajectory) -> dict[Coordinate, Array]:
        return {name: self._number(name, trajectory) for name in self.figures}

    def _number(self, name: Coordinate, trajectory: Trajectory) -> Array:
        return _check.output(self.figures[name](trajectory), (), self.first.q0.dtype, f"figures[{str(name)!r}]")

    def _checksum_of(self, name: Coordinate, shapes: Trajectory) -> str:
        return checksum_of(jax.make_jaxpr(lambda trajectory: self._number(name, trajectory))(shapes))

    def _dataset(self, got: Reduction, values: Mapping[str, np.ndarray]) -> "xr.Dataset":
        stored, shown = got.value
        one = self.first
        data = stored.to_dataset(one.coordinates, one.controls or None, one.speeds).rename(trajectory="sample")
        for name, x in shown.items():
            if name in self.observed:
                more, labels = observable(str(name), self.observed[name], np.asarray(x), ("sample", "time"))
                data = data.assign(more).assign_coords(labels)
                continue
            text = {"long_name": name.name, "units": name.unit} if name.unit else {"long_name": name.name}
            data[slug(name)] = (("sample",), np.asarray(x), text)
        varied = {name: (("sample",), np.asarray(values[name]), dict(self.varied[name])) for name in self.names}
        return data.assign_coords(varied).assign_attrs(title=one.name, varied=list(self.names))


class Results(NamedTuple):
    """The results of a chunk: its data, the number of failed trajectories, and the time it took [s]."""

    data: "xr.Dataset"
    failed: int
    seconds: float
