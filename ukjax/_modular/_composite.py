"""Composite: subsystems joined into one system, module by module, with names for their coordinates.

n: coordinates of all modules; k: modules of one kind; n_k: coordinates of each; m: rows of a coupling.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_map
from jaxtyping import Array

from .. import _check
from .._constraint import AbstractConstraint, AbstractFunctionConstraint
from .._mechanism import AbstractConstrainedSystem, Mechanism
from .._sharing import Binding, Origin, stacks
from .._system import AbstractModularSystem, AbstractSystem, applied_force
from .._types import Numbers, Vector
from ._coupled import Alike, Coupled, Stacked, Tree, alike_groups, rows_of, stacked


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of the entries of a vector, in order: a coordinate, or a module with `Names` of its own."""

    entries: tuple[tuple[str, "Names | None"], ...]

    @property
    def size(self) -> int:
        return sum(1 if inner is None else inner.size for _, inner in self.entries)

    def find(self, path: str) -> tuple[int, "Names | None"]:
        """Returns the first index of `path`, such as "leg.bar", and its names; raises ValueError if unknown."""
        first, _, rest = path.partition(".")
        start = 0
        for name, inner in self.entries:
            if name == first:
                if not rest:
                    return start, inner
                if inner is None:
                    raise ValueError(f"{first!r} is a coordinate, which has no part {rest!r}.")
                further, found = inner.find(rest)
                return start + further, found
            start += 1 if inner is None else inner.size
        raise ValueError(f"there is no {first!r}; there is {', '.join(name for name, _ in self.entries)}.")


class View:
    """A vector whose parts have names: `q.platform.x`, `q["leg.bar"]`; `q[:]` is the vector itself."""

    __slots__ = ("_names", "_values")

    def __init__(self, values: Array, names: Names):
        self._values, self._names = values, names

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except ValueError as error:
            raise AttributeError(str(error)) from error

    def __getitem__(self, key: object) -> Any:
        if not isinstance(key, str):
            return self._values[key]
        start, inner = self._names.find(key)
        return self._values[start] if inner is None else View(self._values[start : start + inner.size], inner)


class OfViews(eqx.Module):
    """A function of views of modules, called with the vector of all their coordinates; the time is passed on."""

    function: Callable
    names: tuple[Names, ...] = eqx.field(static=True)

    def __call__(self, *state_and_time):
        *vectors, t = state_and_time
        return self.function(*(self._split(x) for x in vectors), t)

    def _split(self, x: Array) -> tuple[View, ...]:
        views, start = [], 0
        for names in self.names:
            views.append(View(x[start : start + names.size], names))
            start += names.size
        return tuple(views)


class OnViews(AbstractConstraint):
    """A user's own constraint, whose methods take views, called with arrays."""

    constraint: AbstractConstraint
    names: tuple[Names, ...] = eqx.field(static=True)

    def rows(self, q, v, t, kinematics=None):
        return OfViews(self.constraint.rows, self.names)(q, v, t)

    def position_error(self, q, t):
        return OfViews(self.constraint.position_error, self.names)(q, t)

    def velocity_error(self, q, v, t, kinematics=None):
        return OfViews(self.constraint.velocity_error, self.names)(q, v, t)


def on_views(constraint: AbstractConstraint, names: tuple[Names, ...]) -> AbstractConstraint:
    """Returns `constraint`, whose functions or methods take views, as a constraint on arrays."""
    if isinstance(constraint, AbstractFunctionConstraint):
        return constraint.through(lambda function: OfViews(function, names))
    return OnViews(constraint, names)


def of_coordinates(coordinates: tuple[str, ...]) -> Names:
    return Names(tuple((name, None) for name in coordinates))


def of_modules(modules: Mapping[str, Names]) -> Names:
    return Names(tuple(modules.items()))


def filled(names: Names, parts: "Numbers | Mapping[str, Numbers | Mapping]", what: str) -> list[Array]:
    """Returns the values of a state, part by part; raises ValueError if one is missing or has a wrong shape."""
    if not isinstance(parts, Mapping):
        array = jnp.atleast_1d(_check.floating(parts, what))
        if array.shape != (names.size,):
            wanted = ", ".join(name for name, _ in names.entries)
            raise ValueError(f"{what} must have shape ({names.size},), for {wanted}, but has shape {array.shape}.")
        return [array]
    known = [name for name, _ in names.entries]
    wrong = [*(name for name in known if name not in parts), *(name for name in parts if name not in known)]
    if wrong:
        raise ValueError(f"{what} must have the entries {', '.join(known)}, but not so {', '.join(wrong)}.")
    found = []
    for name, inner in names.entries:
        found += filled(of_coordinates((name,)) if inner is None else inner, parts[name], f"{what}[{name!r}]")
    return found


def check_size(q: Array, size: int) -> None:
    """Raises ValueError unless q has the size of a composite; JAX would clamp an index beyond the end."""
    if q.shape != (size,):
        raise ValueError(f"q must have shape ({size},), as the composite has, but has shape {q.shape}.")


def check_names(names: Iterable[str], what: str) -> None:
    """Raises ValueError unless the names are different Python identifiers."""
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{what} must be Python identifiers, without a leading underscore, but one is {name!r}.")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what} must be one or several different names, but are {names}.")


class Module(eqx.Module):
    """A subsystem with names for its coordinates.

    Args:
        system: Any `AbstractSystem`, or a `Mechanism`, whose constraints are included.
        coordinates: Names of the coordinates, such as ("x", "y", "phi").
        constraints: Constraints within the module, functions of its coordinates as an array; a mapping names them.

    Raises:
        TypeError: If `system` or a constraint is something else.
        ValueError: If the system has a kinematics, or a coordinate's name is no Python identifier, or occurs twice.
    """

    system: AbstractSystem
    coordinates: tuple[str, ...] = eqx.field(static=True)
    constraints: dict[str, AbstractConstraint]

    def __init__(
        self,
        system: AbstractSystem | Mechanism,
        coordinates: Sequence[str],
        constraints: AbstractConstraint | Iterable[AbstractConstraint] | Mapping[str, AbstractConstraint] = (),
    ):
        own: dict[str, AbstractConstraint] = {}
        if isinstance(system, Mechanism):
            if system.nonideal is not None:
                raise ValueError("system has non-ideal forces; give those to Composite.mechanism(nonideal) instead.")
            system, own = system.system, system.named_constraints
        whole = Mechanism(system, constraints)
        if whole.kinematics is not None:
            raise ValueError(
                "system has a kinematics, but modules are put together by coordinates whose rates are v. Give it to "
                "ukjax.Mechanism by itself."
            )
        further = whole.named_constraints
        if isinstance(coordinates, str):
            coordinates = (coordinates,)
        check_names(coordinates, "coordinates")
        self.system, self.coordinates = system, tuple(coordinates)
        # The objects are kept as given: the composite finds what its modules and couplings share.
        self.constraints = {**own, **further}


class Coupling(eqx.Module):
    """A constraint between named modules.

    Args:
        modules: Names of the modules; "leg.bar" is a module of the composite `leg`.
        constraint: A `Holonomic`, `Nonholonomic` or `AccelerationConstraint` whose functions get, in place of q (and
            v), a view of each of these modules, in this order: `lambda q, t: q[0].x - q[1].x`, or `bar, platform = q`.
            The matrix of an `AccelerationConstraint` has a column for each of their coordinates.

    Couplings of one kind are evaluated together if their functions are the same object, or methods of equal modules
    that differ in numbers only: write a function once, rather than a new lambda for each.

    Raises:
        TypeError: If `constraint` is something else.
        ValueError: If no module is named, or one twice.
    """

    modules: tuple[str, ...] = eqx.field(static=True)
    constraint: AbstractConstraint

    def __init__(self, modules: str | Sequence[str], constraint: AbstractConstraint):
        modules = (modules,) if isinstance(modules, str) else tuple(modules)
        _check.instance(constraint, AbstractConstraint, "constraint", "ukjax.Holonomic(phi)")
        if not modules or len(set(modules)) < len(modules):
            raise ValueError(f"modules must name one module or several different ones, but are {modules}.")
        self.modules, self.constraint = modules, constraint


# Any number of couplings, with names or without.
Couplings = Coupling | Iterable[Coupling] | Mapping[str, Coupling]


class _Constraint(NamedTuple):
    """A constraint in a composite: its name, its level, the constraint, and the coordinates that it depends on."""

    name: str
    level: int
    constraint: AbstractConstraint
    columns: tuple[int, ...]


class _Contents(NamedTuple):
    """Systems with their coordinates, constraints, and the names of all coordinates.

    `moved`: arrays that functions may reach, each with the array that now stands in its place.
    """

    systems: list[tuple[AbstractSystem, tuple[int, ...]]]
    constraints: list[_Constraint]
    names: Names
    moved: list[tuple[Array, Array]]


class _Kind(NamedTuple):
    """Constraints of one kind and level: the places of their arrays, their names, and the number of rows of each."""

    stacked: Stacked
    names: tuple[str, ...]
    rows_each: int
    level: int


class Composite(AbstractModularSystem, AbstractConstrainedSystem):
    r"""Subsystems side by side: coordinates concatenated, M block-diagonal, with the constraints of each subsystem.

    $M = \mathrm{diag}(M_1, M_2, \dots)$, $Q = (Q_1, Q_2, \dots)$: level 1 of a hierarchy (Orsino 2017). `couplings`
    join the modules; in a composite of composites the inner couplings belong to a lower level.

    Modules that differ in numbers only are evaluated once, vectorised, and their blocks of M are factorised together.
    A state is a plain array, in the order of the modules: `state({"platform": (x, y, phi), ...})` makes one, and `view`
    reads it by name.

    Args:
        modules: Name -> `Module` or `Composite`.
        couplings: `Coupling`, one or any number, or a mapping that names them: name -> `Coupling`. A coupling without a
            name is named by its modules, such as "bar-platform".

    Raises:
        TypeError: If a module or a coupling is something else.
        ValueError: If a name is no Python identifier, a coupling names what does not exist, or a function returns a
            wrong shape.

    A `Mechanism` of a composite has all its constraints, from the lowest level to the highest. A parameter that modules
    and couplings share is one leaf.

    Gradients: through the parameters of modules and couplings.
    """

    _values: tuple[Array, ...]  # the parameters of modules and couplings, each once
    _systems: tuple[Stacked, ...] = eqx.field(static=True)
    _kinds: tuple[_Kind, ...] = eqx.field(static=True)
    names: Names = eqx.field(static=True)
    _origin: Origin = eqx.field(static=True)

    def __init__(
        self,
        modules: Mapping[str, "Module | Composite"],
        couplings: Couplings = (),
    ):
        if not isinstance(modules, Mapping) or not modules:
            raise TypeError(f"modules must be a mapping, name -> ukjax.modular.Module, but is {modules!r}.")
        check_names(modules, "modules")
        systems, constraints, names, moved, start = [], [], {}, [], 0
        for name, module in modules.items():
            found = _contents(module, f"modules[{name!r}]")
            systems += [(system, _shifted(columns, start)) for system, columns in found.systems]
            constraints += [
                c._replace(name=f"{name}.{c.name}", columns=_shifted(c.columns, start)) for c in found.constraints
            ]
            names[name] = found.names
            moved += found.moved
            start += found.names.size
        contents = _Contents(systems, constraints, of_modules(names), moved)
        inner = max(m.depth if isinstance(m, Composite) else 1 for m in modules.values())
        contents = contents._replace(constraints=constraints + _couple(contents, couplings, inner + 1))
        self._values, self._systems, self._kinds, self.names, self._origin = _sorted_out(contents)

    def add(self, couplings: Couplings) -> "Composite":
        """Returns this composite with further couplings, one level higher."""
        contents = self._contents()
        further = _couple(contents, couplings, self.depth + 1)
        return _composite(contents._replace(constraints=contents.constraints + further))

    def upto(self, level: int) -> "Composite":
        """Returns this composite without the couplings above this level."""
        contents = self._contents()
        return _composite(contents._replace(constraints=[c for c in contents.constraints if c.level <= level]))

    @property
    def systems(self) -> tuple[Alike, ...]:
        """The systems of all modules, those of one kind together."""
        return tuple(kind.alike(self._values, self._binding) for kind in self._systems)

    @property
    def constraints(self) -> tuple[Coupled, ...]:
        """The constraints of the modules and the couplings, those of one kind and level together, by level."""
        return tuple(
            Coupled(kind.stacked.alike(self._values, self._binding), kind.names, kind.rows_each, kind.level)
            for kind in self._kinds
        )

    @property
    def own_constraints(self):
        named = ((*c.names, c) for c in self.constraints)
        return {first if not rest else f"{first} and {len(rest)} alike": c for first, *rest, c in named}

    def _contents(self) -> _Contents:
        # An array that two things share is one object in both of them, by which it is later identified.
        entry = ft.cache(lambda place: stacks.row(self._values[place[0]], place[1]))
        systems = [pair for kind in self._systems for pair in kind.placed(entry)]
        constraints = [
            _Constraint(name, kind.level, constraint, columns)
            for kind in self._kinds
            for name, (constraint, columns) in zip(kind.names, kind.stacked.placed(entry), strict=True)
        ]
        places = [(x, entry((at.path[0], at.row))) for x, at in self._origin.arrays if at.row is not None]
        return _Contents(systems, constraints, self.names, [(x, now) for x, now in places if x is not now])

    @property
    def _binding(self) -> Binding:
        return Binding(self._origin, self._values)

    @property
    def size(self) -> int:
        """Number of coordinates n."""
        return self.names.size

    @property
    def depth(self) -> int:
        """The highest level of the couplings; 1 without couplings."""
        return max((kind.level for kind in self._kinds), default=1)

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of rows of each level that has rows, from the lowest to the highest, for `Recursive`."""
        count: dict[int, int] = {}
        for kind in self._kinds:
            count[kind.level] = count.get(kind.level, 0) + kind.rows_each * len(kind.names)
        return tuple(count[level] for level in sorted(count))

    @property
    def partition(self):
        return tuple(kind.columns for kind in self._systems)

    def mechanism(self, nonideal: Callable | None = None) -> Mechanism:
        """Returns a mechanism with all constraints of the composite, from the lowest level to the highest."""
        return Mechanism(self, nonideal=nonideal)

    def blocks(self, q: Numbers, t: Numbers = 0.0) -> tuple[Array, ...]:
        """Returns the blocks of M, (k, n_k, n_k) for each kind of module, at the coordinates in `partition`."""
        q, _, t = _check.state(q, q, t)
        check_size(q, self.size)
        return tuple(
            alike.map(lambda system, q: _check.output(system.mass(q, t), q.shape * 2, q.dtype, "mass(q, t)"), q)
            for alike in self.systems
        )

    def mass(self, q, t):
        M = jnp.zeros((self.size,) * 2, q.dtype)
        for i, blocks in zip(map(np.array, self.partition), self.blocks(q, t), strict=True):
            M = M.at[i[:, :, None], i[:, None, :]].set(blocks)
        return M

    def force(self, q, v, t):
        check_size(q, self.size)

        def force_of(system: AbstractSystem, q: Vector, v: Vector) -> Vector:
            return applied_force(system.force(q, v, t), v, "force(q, v, t)")

        Q = jnp.zeros_like(q)
        for alike in self.systems:
            Q = Q.at[np.array(alike.columns)].set(alike.map(force_of, q, v))
        return Q

    def on_each(self, function: Callable[..., Tree], *vectors: Array) -> tuple[Tree, ...]:
        """Returns `function(system, *its parts of the vectors)` for every kind of module, batched over its modules."""
        return tuple(alike.map(function, *vectors) for alike in self.systems)

    def columns(self, *modules: str) -> tuple[int, ...]:
        """Returns the coordinates of these modules, in this order; raises ValueError if there is no such module."""
        return _columns(self.names, modules)

    def view(self, x: Array) -> View:
        """Returns a view of a state or a rate by name: `view(q).platform.x`, `view(q)["leg.bar"][:]`."""
        return View(x, self.names)

    def state(self, parts: Mapping[str, Numbers | Mapping]) -> Array:
        """Returns the array (n,) made of the values of each module; raises ValueError if one is missing."""
        return jnp.concatenate(filled(self.names, parts, "parts"))

    def bind(self, coupling: Coupling) -> Coupled:
        """Returns a coupling as a constraint on the coordinates of this composite, without adding it."""
        (found,) = _couple(self._contents(), coupling, self.depth + 1)
        m = rows_of(found.constraint, found.columns, self.size)
        values, (kind,), _ = stacked([([found.constraint], (found.columns,))])
        return Coupled(kind.alike(values), (found.name,), m, found.level)


def _composite(contents: _Contents) -> Composite:
    # The contents are known, so `__init__`, which collects them from modules, is skipped.
    made = object.__new__(Composite)
    for name, value in zip(("_values", "_systems", "_kinds", "names", "_origin"), _sorted_out(contents), strict=True):
        object.__setattr__(made, name, value)
    return made


def _sorted_out(contents: _Contents) -> tuple[tuple[Array, ...], tuple[Stacked, ...], tuple[_Kind, ...], Names, Origin]:
    """Returns the fields of a composite: parameters, kinds of systems and of constraints, names, and origin."""
    names, now = contents.names, {id(x): present for x, present in contents.moved}
    columns = [of for _, of in contents.systems] + [c.columns for c in contents.constraints]
    things = [system for system, _ in contents.systems] + [c.constraint for c in contents.constraints]
    things = [tree_map(lambda x: now.get(id(x), x), thing) for thing in things] if now else things
    first = len(contents.systems)
    groups = alike_groups(things[:first], columns[:first])
    of_systems = len(groups)
    for level in sorted({c.level for c in contents.constraints}):
        of_level = [first + i for i, c in enumerate(contents.constraints) if c.level == level]
        inner = alike_groups([things[i] for i in of_level], [columns[i] for i in of_level])
        groups += tuple(tuple(of_level[i] for i in group) for group in inner)
    kinds = [([things[i] for i in group], tuple(columns[i] for i in group)) for group in groups]
    values, found, arrays = stacked(kinds)
    origin = Origin([*arrays, *((x, at) for x, now in contents.moved for y, at in arrays if y is now)])
    of_constraints = []
    for group, kind in zip(groups[of_systems:], found[of_systems:], strict=True):
        members = [contents.constraints[i - first] for i in group]
        m = rows_of(members[0].constraint, members[0].columns, names.size)
        of_constraints.append(_Kind(kind, tuple(c.name for c in members), m, members[0].level))
    return values, tuple(found[:of_systems]), tuple(of_constraints), names, origin


def _contents(module: object, name: str) -> _Contents:
    """Returns the contents of a module; raises TypeError if it is not a module."""
    if isinstance(module, Module):
        columns = tuple(range(len(module.coordinates)))
        own = [_Constraint(k, 1, constraint, columns) for k, constraint in module.constraints.items()]
        return _Contents([(module.system, columns)], own, of_coordinates(module.coordinates), [])
    if isinstance(module, Composite):
        return module._contents()
    raise TypeError(
        f"{name} must be a ukjax.modular.Module(system, coordinates) or a ukjax.modular.Composite, but is "
        f"{type(module).__name__}."
    )


def _couple(contents: _Contents, couplings: Coupling | Iterable, level: int) -> list[_Constraint]:
    """Returns couplings as constraints on the coordinates of all modules; raises TypeError or ValueError if invalid."""
    if isinstance(couplings, Coupling):
        couplings = (couplings,)
    given = couplings.items() if isinstance(couplings, Mapping) else ((None, c) for c in couplings)
    taken, found = {c.name for c in contents.constraints}, []
    for i, (name, coupling) in enumerate(given):
        which = f"couplings[{i if name is None else repr(name)}]"
        _check.instance(coupling, Coupling, which, "ukjax.modular.Coupling(modules, ukjax.Holonomic(phi))")
        of_modules = tuple(_find(contents.names, module)[1] for module in coupling.modules)
        name = _unused("-".join(coupling.modules), taken) if name is None else name
        if name in taken:
            raise ValueError(
                f"couplings has {name!r}, but the modules already have a constraint of that name. Rename it."
            )
        taken.add(name)
        columns = _columns(contents.names, coupling.modules)
        found.append(_Constraint(name, level, on_views(coupling.constraint, of_modules), columns))
    return found


def _unused(name: str, taken: set[str]) -> str:
    """Returns `name`, with a number after it if the name is taken."""
    numbered = (f"{name} {i}" for i in range(2, len(taken) + 3))
    return name if name not in taken else next(x for x in numbered if x not in taken)


def _shifted(columns: tuple[int, ...], start: int) -> tuple[int, ...]:
    return tuple(i + start for i in columns)


def _columns(names: Names, modules: Sequence[str]) -> tuple[int, ...]:
    found = []
    for name in modules:
        start, inner = _find(names, name)
        found += range(start, start + inner.size)
    return tuple(found)


def _find(names: Names, module: str) -> tuple[int, Names]:
    """Returns the first coordinate of a module, and its names; raises ValueError if there is no such module."""
    try:
        start, inner = names.find(module)
    except ValueError as error:
        raise ValueError(f"There is no module {module!r}: {error}") from error
    if inner is None:
        raise ValueError(f"{module!r} is a coordinate, not a module.")
    return start, inner
