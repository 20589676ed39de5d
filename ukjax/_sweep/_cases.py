"""From the points of a study to the results of a chunk of it.

N: samples.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._batch import Reduction, simulate_batch
from .._coordinate import Coordinate
from .._dataset import LABELS
from .._result import RESULTS, FailedTrajectories, InconsistentStart, is_traced
from .._scenario import Scenario
from .._simulation import kept
from .._trajectory import OPTIONAL, Trajectory


if TYPE_CHECKING:
    import xarray as xr


MORE_THAN_NUMBERS = (
    "The scenarios differ in more than numbers when {} vary: in functions that are made anew for each, or in shapes. "
    "Let the factory work with traced numbers (jax.numpy for numpy, no `if` on a value), or let functions take their "
    "parameters from the leaves of a module."
)
OF_ALL: dict[str, Callable] = {
    "largest position error": lambda trajectory: jnp.max(trajectory.position_residual),
    "largest velocity error": lambda trajectory: jnp.max(trajectory.velocity_residual),
}
NEEDED = ("q", "v", "position_residual", "velocity_residual")  # by the figures that there are of every scenario


class Cases:
    """The trajectories of a study.

    Args:
        factory: `factory(**values)` -> `Scenario`.
        settings: Arguments of the factory that are the same for all.
        names: Of those that are varied.
        ts: Times to save at (T,); None for 101 over the scenario's.
        keep: Fields to store.
        figures: "name [unit]" -> f(trajectory), a scalar, to store.
        options: Of `simulate_batch`.
        ends: The first sample and the last one.

    Raises:
        ValueError: If the factory does not take a name, or its scenarios cannot be made one of the other.
    """

    def __init__(
        self, factory: Callable[..., Scenario], settings: Mapping[str, Any], names: Sequence[str], ts: Any,
        keep: str | Sequence[str], figures: Mapping[str, Callable], options: Mapping[str, Any],
        ends: Sequence[Mapping[str, float]],
    ):  # fmt: skip
        self.names = tuple(names)
        self.make = lambda values: factory(**settings, **{name: values[name] for name in self.names})
        self.ends, self.first = ends, self._first(ends[0])
        one = self.first
        self.ts = np.linspace(one.t0, one.t1, 101) if ts is None else np.asarray(_check.times(ts))
        self.keep = kept(keep, one.servo)
        self.figures = {Coordinate(k): f for k, f in [*OF_ALL.items(), *figures.items()]}
        invariants = map(Coordinate, one.invariants)
        self.drifts = {str(name): Coordinate(f"drift of {name.name}", name.unit) for name in invariants}
        self._check_names(figures)
        self.options = {"formulation": one.formulation, "projection": one.projection, **options}
        self.traceable, self.pattern = self._is_traceable(), None
        self.parts = {
            "mechanism": lambda values: self.make(values).mechanism,
            "q0": lambda values: self.make(values).q0,
            "v0": lambda values: self.make(values).v0,
            "servo": None if one.servo is None else lambda values: self.make(values).servo,
        }
        # Functions that stay the same from chunk to chunk, for what is compiled of them to be found again.
        self.reduce = lambda trajectory: (
            self._stored(trajectory), self._shown(trajectory), trajectory.q, trajectory.v
        )  # fmt: skip
        self.reduce_of = lambda trajectory, values: (
            self._stored(trajectory),
            self._shown(trajectory) | self._drift(values, trajectory.q, trajectory.v),
        )

    def run(self, values: Mapping[str, np.ndarray]) -> "Results":
        """The results of samples."""
        begin = time.perf_counter()
        given = {"keep": (*NEEDED, *self.keep), "progress": False, **self.options}
        with warnings.catch_warnings():
            # Failures are counted and stored.
            warnings.simplefilter("ignore", FailedTrajectories)
            warnings.simplefilter("ignore", InconsistentStart)
            got = self._batch(values, given)
        failed = int(np.sum(np.asarray(got.result != RESULTS.successful)))
        return Results(self._dataset(got, values), failed, time.perf_counter() - begin)

    def _batch(self, values: Mapping[str, np.ndarray], given: dict[str, Any]) -> Any:
        samples = {name: jnp.asarray(values[name], self.first.q0.dtype) for name in self.names}
        if self.traceable:
            parts = self.parts
            start = parts["mechanism"], parts["q0"], parts["v0"], self.ts
            return simulate_batch(*start, servo=parts["servo"], samples=samples, reduce=self.reduce_of, **given)
        together = True
        try:
            parts, axes = _together(lambda values: _parts(self.make(values)), samples)
            # The functions in them are made anew every time, but what was compiled is of the first ones.
            leaves = jax.tree_util.tree_leaves(parts)
            self.pattern = self.pattern or jax.tree_util.tree_structure((parts, axes))
            parts, axes = jax.tree_util.tree_unflatten(self.pattern, [*leaves, *jax.tree_util.tree_leaves(axes)])
        except (
            Exception
        ):  # of a person's factory that cannot work with traced numbers; plain ones tell what else is wrong
            together = False
            parts, axes = _one_by_one(lambda values: _parts(self._with_numbers(values)), values, self.ends)
        if not jax.tree_util.tree_leaves(axes):
            # Whatever depends on a sample is hidden in functions.
            raise ValueError(MORE_THAN_NUMBERS.format(", ".join(self.names)))
        mechanism, servo, q0, v0 = parts
        of = {"mechanism": axes[0]} | ({} if servo is None else {"servo": axes[1]})
        try:
            got = simulate_batch(mechanism, q0, v0, self.ts, servo=servo, axes=of, reduce=self.reduce, **given)
        except jax.errors.UnexpectedTracerError as error:
            raise ValueError(MORE_THAN_NUMBERS.format(", ".join(self.names))) from error
        stored, shown, *states = got.value
        drifts = jax.vmap(self._drift)(samples, *states) if together else self._drifts(values, *states)
        return dataclasses.replace(got, value=(stored, shown | drifts))

    def _drift(self, values: Mapping[str, Any], q: Any, v: Any) -> dict[str, Any]:
        """How far each invariant of a sample's scenario strays from where it began."""
        if not self.drifts:
            return {}
        found, invariants = {}, self.make(values).invariants
        for name, drift in self.drifts.items():
            kept = jax.vmap(invariants[name])(q, v, jnp.asarray(self.ts, q.dtype))
            found[drift] = jnp.max(jnp.abs(kept - kept[0]))
        return found

    def _drifts(self, values: Mapping[str, np.ndarray], q: Any, v: Any) -> dict[str, Any]:
        """The same for samples whose scenarios are made one by one."""
        of = lambda i: self._drift({name: values[name][i].item() for name in self.names}, q[i], v[i])
        each = [of(i) for i in range(len(q))] if self.drifts else []
        return {name: np.array([x[name] for x in each]) for name in self.drifts.values()}

    def _check_names(self, figures: Mapping[str, Callable]) -> None:
        """ValueError if a variable of the results would have the name of another."""
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
        """The scenario of a sample. ValueError if the factory does not take it."""
        try:
            return self.make(values)
        except Exception as error:  # of a person's function
            shown = ", ".join(f"{k} = {v:g}" for k, v in values.items())
            kind = "" if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"The scenario cannot be made with {shown}: {kind}{error}") from error

    def _is_traceable(self) -> bool:
        """Whether the factory works with numbers that are known only later, so that it runs once for all samples."""

        def parts(values):
            scenario = self.make(values)
            # Of its times and names nothing may depend on what is varied.
            hash((scenario.t0, scenario.t1, scenario.name))
            return scenario.q0, scenario.v0

        try:
            jax.eval_shape(parts, {name: jnp.asarray(value) for name, value in self._example().items()})
        except Exception:  # a person's factory may raise anything; with plain numbers it is met again, and told
            return False
        return True

    def _example(self) -> dict[str, Any]:
        dtype = self.first.q0.dtype
        return {name: np.zeros((), dtype) for name in self.names}

    def _stored(self, trajectory: Trajectory) -> Trajectory:
        dropped = [name for name in OPTIONAL if name not in self.keep]
        where = lambda t: [getattr(t, name) for name in dropped]
        return eqx.tree_at(where, trajectory, [None] * len(dropped), is_leaf=lambda x: x is None)

    def _shown(self, trajectory: Trajectory) -> dict[str, Any]:
        scalar = lambda name, x: _check.output(x, (), self.first.q0.dtype, f"figures[{str(name)!r}]")
        return {name: scalar(name, f(trajectory)) for name, f in self.figures.items()}

    def _dataset(self, got: Reduction, values: Mapping[str, np.ndarray]) -> "xr.Dataset":
        stored, shown = got.value
        one = self.first
        data = stored.to_dataset(one.coordinates, one.controls or None, one.speeds).rename(trajectory="sample")
        for name, x in shown.items():
            text = {"long_name": name.name, "units": name.unit} if name.unit else {"long_name": name.name}
            data[slug(name)] = (("sample",), np.asarray(x), text)
        varied = {name: (("sample",), np.asarray(values[name]), {"long_name": name}) for name in self.names}
        return data.assign_coords(varied).assign_attrs(title=one.name, varied=list(self.names))


def _parts(one: Scenario) -> Any:
    return one.mechanism, one.servo, one.q0, one.v0


def _together(make: Callable[[Any], Any], samples: Mapping[str, Any]) -> tuple[Any, Any]:
    """Parts of all samples at once, and which of their leaves have a leading axis: those that depend on a sample."""
    seen: list[tuple[Any, list[Any]]] = []

    def varying(values):
        leaves, structure = jax.tree_util.tree_flatten(make(values))
        seen.append((structure, [None if is_traced(x) else x for x in leaves]))
        return [x for x in leaves if is_traced(x)]

    stacked = iter(jax.vmap(varying)(samples))
    structure, fixed = seen[-1]
    parts = jax.tree_util.tree_unflatten(structure, [next(stacked) if x is None else x for x in fixed])
    return parts, jax.tree_util.tree_unflatten(structure, [0 if x is None else None for x in fixed])


def _one_by_one(
    make: Callable[[Any], Any], values: Mapping[str, np.ndarray], ends: Sequence[Mapping[str, float]]
) -> tuple[Any, Any]:
    """The same for a factory that wants numbers: each sample's, side by side where they differ.

    Whether they do is asked of the ends of the study too, for all chunks to have the same program. Where all samples
    are the same nothing can tell, and all is taken to be of its own.
    """
    names, count = list(ends[0]), len(next(iter(values.values())))
    samples = [*ends, *({name: values[name][i].item() for name in names} for i in range(count))]
    parts = [make(sample) for sample in samples]
    structures = {jax.tree_util.tree_structure(part) for part in parts}
    shapes = {tuple(np.shape(x) for x in jax.tree_util.tree_leaves(part)) for part in parts}
    if len(structures) > 1 or len(shapes) > 1:
        raise ValueError(MORE_THAN_NUMBERS.format(", ".join(names)))
    stacked = jax.tree_util.tree_map(lambda *x: np.stack([np.asarray(y) for y in x]), *parts)
    alike = all(sample == samples[0] for sample in samples)
    differs = lambda x: alike or bool(np.any(x != x[:1]))
    one = jax.tree_util.tree_map(lambda x: jnp.asarray(x[len(ends) :] if differs(x) else x[0]), stacked)
    return one, jax.tree_util.tree_map(lambda x: 0 if differs(x) else None, stacked)


class Results(NamedTuple):
    """Of a chunk: its data, how many trajectories failed, and how long it took [s]."""

    data: "xr.Dataset"
    failed: int
    seconds: float


def slug(name: Coordinate) -> str:
    """A figure's name as that of a variable."""
    return "_".join("".join(c if c.isalnum() else " " for c in name.name).split())
