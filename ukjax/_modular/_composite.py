"""Composite: subsystems joined into one, module by module.

n: coordinates of all modules; k: modules of one kind; n_k: coordinates of each; m: rows of a coupling.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves, tree_map, tree_structure
from jaxtyping import Array, PyTree

from .. import _check
from .._constraint import AbstractConstraint
from .._mechanism import Mechanism
from .._system import AbstractModularSystem, AbstractSystem, applied_force
from ._names import Names, View, of_coordinates, of_modules, on_views


class Module(eqx.Module):
    """A subsystem with names for its coordinates.

    Args:
        system: Any `AbstractSystem`, or a `Mechanism`, whose constraints come along.
        coordinates: Their names, such as ("x", "y", "phi").
        constraints: Its own constraints, functions of its own coordinates as an array.

    Raises:
        TypeError: If `system` or a constraint is something else.
        ValueError: If a coordinate's name is no Python identifier, or occurs twice.
    """

    system: AbstractSystem
    coordinates: tuple[str, ...] = eqx.field(static=True)
    constraints: tuple[AbstractConstraint, ...]

    def __init__(
        self,
        system: AbstractSystem | Mechanism,
        coordinates: Sequence[str],
        constraints: AbstractConstraint | Iterable[AbstractConstraint] = (),
    ):
        own: tuple[AbstractConstraint, ...] = ()
        if isinstance(system, Mechanism):
            if system.nonideal is not None:
                raise ValueError("system has non-ideal forces; give those to Composite.mechanism(nonideal) instead.")
            system, own = system.system, system.constraints
        mechanism = Mechanism(system, constraints)  # for its checks
        if isinstance(coordinates, str):
            coordinates = (coordinates,)
        _names(coordinates, "coordinates")
        self.system, self.coordinates = system, tuple(coordinates)
        self.constraints = (*own, *mechanism.constraints)


class Coupling(eqx.Module):
    """A constraint between named modules.

    Args:
        modules: Their names; "leg.bar" is a module of the composite `leg`.
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


class Alike(eqx.Module):
    """Things that differ in numbers only, and the coordinates that each is about (k, n_k)."""

    each: PyTree  # its arrays have a leading axis k
    columns: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def map(self, function: Callable, *vectors: Array) -> Any:
        """`function(thing, *its parts of the vectors)` for all of them at once."""
        i = np.array(self.columns)
        return eqx.filter_vmap(function)(self.each, *(x[i] for x in vectors))

    def take(self, i: int) -> PyTree:
        return tree_map(lambda x: x[i] if eqx.is_array(x) else x, self.each)


class Coupled(AbstractConstraint):
    """Constraints of one kind, each about some coordinates of a composite."""

    alike: Alike
    rows_each: int = eqx.field(static=True)
    level: int = eqx.field(static=True)

    def rows(self, q, v, t):
        A, b = self.each_rows(q, v, t)
        k, m, _ = A.shape
        columns = np.array(self.alike.columns)[:, None, :]
        all_rows = jnp.zeros((k, m, q.shape[0]), A.dtype)
        scattered = all_rows.at[np.arange(k)[:, None, None], np.arange(m)[None, :, None], columns].set(A)
        return scattered.reshape(k * m, -1), b.reshape(-1)

    def each_rows(self, q, v, t):
        """A (k, m, n_k) in the columns of each constraint, and b (k, m)."""
        return self.alike.map(lambda constraint, q, v: constraint.rows(q, v, t), q, v)

    def position_error(self, q, t):
        return self.alike.map(lambda constraint, q: constraint.position_error(q, t), q).reshape(-1)

    def velocity_error(self, q, v, t):
        return self.alike.map(lambda constraint, q, v: constraint.velocity_error(q, v, t), q, v).reshape(-1)


class Composite(AbstractModularSystem):
    r"""Subsystems side by side: coordinates concatenated, M block-diagonal, each one's own constraints carried along.

    $M = \mathrm{diag}(M_1, M_2, \dots)$, $Q = (Q_1, Q_2, \dots)$: level 1 of a hierarchy (Orsino 2017). `couplings`
    join the modules; in a composite of composites those further inside belong to a lower level.

    Modules that differ in numbers only are evaluated once, vectorised, and their blocks of M are factorised together.
    A state is a plain array, in the order of the modules: `state({"platform": (x, y, phi), ...})` makes one, and `view`
    reads it by name.

    Args:
        modules: Name -> `Module` or `Composite`.
        couplings: `Coupling`, one or any number.

    Raises:
        TypeError: If a module or a coupling is something else.
        ValueError: If a name is no Python identifier, a coupling names what does not exist, or a function returns a
            wrong shape.

    Gradients: through the parameters of modules and couplings.
    """

    systems: tuple[Alike, ...]
    constraints: tuple[Coupled, ...]
    names: Names = eqx.field(static=True)

    def __init__(
        self, modules: Mapping[str, "Module | Composite"], couplings: Coupling | Iterable[Coupling] = ()
    ):  # fmt: skip
        if not isinstance(modules, Mapping) or not modules:
            raise TypeError(f"modules must be a mapping, name -> ukjax.Module, but is {modules!r}.")
        _names(modules, "modules")
        systems, held, names, start = [], [], {}, 0
        for name, module in modules.items():
            more, constraints, names[name] = _parts(module, f"modules[{name!r}]")
            shift = lambda columns, start=start: tuple(i + start for i in columns)
            systems += [(system, shift(columns)) for system, columns in more]
            held += [(level, shift(columns), constraint) for level, columns, constraint in constraints]
            start += names[name].size
        self.names = of_modules(names)
        self.systems = tuple(Alike(_stack(alike), tuple(at)) for alike, at in _groups(systems))
        inner = max(m.depth if isinstance(m, Composite) else 1 for m in modules.values())
        self.constraints = _held(held, self.size) + self._couple(couplings, inner + 1)

    def add(self, couplings: Coupling | Iterable[Coupling]) -> "Composite":
        """The same with further couplings, one level higher."""
        more = self._couple(couplings, self.depth + 1)
        return eqx.tree_at(lambda c: c.constraints, self, (*self.constraints, *more))

    @property
    def size(self) -> int:
        """n."""
        return self.names.size

    @property
    def depth(self) -> int:
        """The highest level of its couplings; 1 if it has none."""
        return max((c.level for c in self.constraints), default=1)

    @property
    def levels(self) -> tuple[int, ...]:
        """How many rows every level has that has any, from the lowest to the highest: what `Recursive` takes."""
        count: dict[int, int] = {}
        for c in self.constraints:
            count[c.level] = count.get(c.level, 0) + c.rows_each * len(c.alike.columns)
        return tuple(count[level] for level in sorted(count))

    @property
    def partition(self):
        return tuple(alike.columns for alike in self.systems)

    def mechanism(self, nonideal: Callable | None = None) -> Mechanism:
        """With all its constraints, from the lowest level to the highest."""
        in_order: list[Coupled] = sorted(self.constraints, key=lambda c: c.level)
        return Mechanism(self, in_order, nonideal)

    def blocks(self, q: Any, t: Any = 0.0) -> tuple[Array, ...]:
        """The blocks of M, (k, n_k, n_k) for each kind of module, at the coordinates in `partition`."""
        q, _, t = _check.state(q, q, t)
        return tuple(
            alike.map(lambda system, q: _check.output(system.mass(q, t), q.shape * 2, q.dtype, "mass(q, t)"), q)
            for alike in self.systems
        )

    def mass(self, q, t):
        M = jnp.zeros((q.shape[0],) * 2, q.dtype)
        for alike, blocks in zip(self.systems, self.blocks(q, t), strict=True):
            i = np.array(alike.columns)
            M = M.at[i[:, :, None], i[:, None, :]].set(blocks)
        return M

    def force(self, q, v, t):
        Q = jnp.zeros_like(q)
        for alike in self.systems:
            each = lambda system, q, v: applied_force(system.force(q, v, t), q, "force(q, v, t)")
            Q = Q.at[np.array(alike.columns)].set(alike.map(each, q, v))
        return Q

    def on_each(self, function: Callable, *vectors: Array) -> tuple[Any, ...]:
        """`function(system, *its parts of the vectors)` for every kind of module, with an axis over its modules."""
        return tuple(alike.map(function, *vectors) for alike in self.systems)

    def columns(self, *modules: str) -> tuple[int, ...]:
        """Which coordinates belong to these modules, in this order; ValueError if there is no such module."""
        found = []
        for name in modules:
            start, inner = self._find(name)
            found += range(start, start + inner.size)
        return tuple(found)

    def view(self, x: Array) -> View:
        """A state or a rate by name: `view(q).platform.x`, `view(q)["leg.bar"][:]`."""
        return View(x, self.names)

    def state(self, parts: Mapping[str, Any]) -> Array:
        """The array (n,) made of the values of each module, or a mapping of them; ValueError if one is missing."""
        return jnp.concatenate(_fill(self.names, parts, "parts"))

    def _find(self, name: str) -> tuple[int, Names]:
        try:
            start, inner = self.names.find(name)
        except ValueError as error:
            raise ValueError(f"There is no module {name!r}: {error}") from error
        if inner is None:
            raise ValueError(f"{name!r} is a coordinate, not a module.")
        return start, inner

    def _couple(self, couplings: Any, level: int) -> tuple[Coupled, ...]:
        if isinstance(couplings, Coupling):
            couplings = (couplings,)
        held = []
        for i, coupling in enumerate(couplings):
            _check.instance(coupling, Coupling, f"couplings[{i}]", "ukjax.Coupling(modules, ukjax.Holonomic(phi))")
            names = tuple(self._find(name)[1] for name in coupling.modules)
            held.append((level, self.columns(*coupling.modules), on_views(coupling.constraint, names)))
        return _held(held, self.size)

    def bind(self, coupling: Coupling) -> "Coupled":
        """A coupling as a constraint on the coordinates of this composite, which does not get it."""
        (found,) = self._couple(coupling, self.depth + 1)
        return found


Held = tuple[int, tuple[int, ...], AbstractConstraint]


def _parts(module: Any, name: str) -> tuple[list[tuple[AbstractSystem, tuple[int, ...]]], list[Held], Names]:
    """Systems and constraints of a module with their columns, and its names."""
    if isinstance(module, Module):
        columns = tuple(range(len(module.coordinates)))
        held: list[Held] = [(1, columns, constraint) for constraint in module.constraints]
        return [(module.system, columns)], held, of_coordinates(module.coordinates)
    if isinstance(module, Composite):
        systems = [(a.take(i), columns) for a in module.systems for i, columns in enumerate(a.columns)]
        held = [
            (c.level, columns, c.alike.take(i)) for c in module.constraints for i, columns in enumerate(c.alike.columns)
        ]
        return systems, held, module.names
    raise TypeError(
        f"{name} must be a ukjax.Module(system, coordinates) or a ukjax.Composite, but is {type(module).__name__}."
    )


def _held(held: list[Held], size: int) -> tuple[Coupled, ...]:
    """Constraints of one kind and one level together. What their functions return is checked here."""
    found, zero = [], jnp.zeros(size)
    for level in sorted({level for level, _, _ in held}):
        for alike, columns in _groups([(c, at) for other, at, c in held if other == level]):
            part = zero[np.array(columns[0])]
            A, _ = eqx.filter_eval_shape(alike[0].rows, part, part, jnp.zeros((), zero.dtype))
            found.append(Coupled(Alike(_stack(alike), tuple(columns)), A.shape[0], level))
    return tuple(found)


def _groups(things: list[tuple[PyTree, tuple[int, ...]]]) -> list[tuple[list[PyTree], list[tuple[int, ...]]]]:
    groups: list[tuple[list[PyTree], list[tuple[int, ...]]]] = []
    for thing, columns in things:
        for members, at in groups:
            if len(at[0]) == len(columns) and _alike(members[0], thing):
                members.append(thing)
                at.append(columns)
                break
        else:
            groups.append(([thing], [columns]))
    return groups


def _alike(a: PyTree, b: PyTree) -> bool:
    """Whether two pytrees differ in the values of their arrays only."""
    if tree_structure(a) != tree_structure(b):
        return False
    same = lambda x, y: (
        eqx.is_array(y) and x.shape == y.shape and x.dtype == y.dtype if eqx.is_array(x) else x is y or bool(x == y)
    )
    return all(same(x, y) for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True))


def _stack(things: list[PyTree]) -> PyTree:
    return tree_map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *things)


def _fill(names: Names, parts: Any, what: str) -> list[Array]:
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
        found += _fill(of_coordinates((name,)) if inner is None else inner, parts[name], f"{what}[{name!r}]")
    return found


def _names(names: Iterable[str], what: str) -> None:
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{what} must be Python identifiers, without a leading underscore, but one is {name!r}.")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what} must be one or several different names, but are {names}.")
