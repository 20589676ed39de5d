"""The parts of a composite: modules, and couplings between them."""

from collections.abc import Iterable, Mapping, Sequence

import equinox as eqx

from .. import _check
from .._constraint import AbstractConstraint
from .._mechanism import Mechanism
from .._system import AbstractSystem
from ._names import check_names


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
