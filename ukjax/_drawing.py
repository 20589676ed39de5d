"""Drawing: functions of the state that describe the look of a mechanism."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _check


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
    scenery: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def needs_reactions(self) -> bool:
        """Whether an arrow shows the force of a single constraint, which `ukjax.simulate(keep="all")` computes."""
        return any(isinstance(force, tuple) for force in self.forces.values())

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
