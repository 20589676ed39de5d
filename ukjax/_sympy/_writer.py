"""SymPy's expressions as functions for JAX."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.scipy.special  # generated functions call it by its whole name

from ._system import Functions, name_of


@dataclasses.dataclass(frozen=True)
class Equations:
    """The symbols of SymPy's object, and expressions in them; see `Functions`."""

    q: list[Any]
    v: list[Any]
    u: list[Any]
    mass: Any
    force: Any
    kinematics: Any = None
    explicit: bool = False
    blocks: tuple = ()
    rates: Any = None
    configuration: Any = ()
    motion: Any = ()
    integrable: bool = True


class Writer:
    """Replaces each function of time by a plain symbol, sorts the symbols, and lets SymPy generate the code."""

    def __init__(self, sympy: Any, equations: Equations):
        self.sympy = sympy
        e = self.equations = _real(equations)
        parts = (e.mass, e.force, e.kinematics, e.rates, e.configuration, e.motion)
        expressions = [sympy.sympify(x) for part in parts if part is not None for x in part]
        time = sympy.physics.mechanics.dynamicsymbols._t
        plain = lambda symbols: {x: sympy.Dummy(f"x{i}", real=True) for i, x in enumerate(symbols)}
        self.q, self.v, self.u, self.time = plain(e.q), plain(e.v), plain(e.u), plain([time])
        self.specifieds = plain(self._specifieds(expressions))
        self.parameters = plain(self._parameters(expressions))

    def functions(self) -> Functions:
        """The generated functions that `SympySystem` needs."""
        e = self.equations
        return Functions(
            mass=self._write(e.mass, "the mass matrix", "q"),
            force=self._write(e.force, "the forcing vector", "qvus"),
            kinematics=None if e.kinematics is None else self._write(e.kinematics, _KINEMATICS, "q"),
            explicit=e.explicit,
            blocks=e.blocks,
            rates=None if e.rates is None else self._write(e.rates, _KINEMATICS, "qu"),
            configuration=self._write(e.configuration, "a constraint on positions", "q") if e.configuration else None,
            motion=self._write(e.motion, "a constraint on velocities", "qvu") if e.motion else None,
            integrable=e.integrable,
            drive=self._drive(),
            coordinates=tuple(name_of(x).removeprefix("_") for x in e.q),
            generalized_speeds=tuple(name_of(x) for x in e.u),
            parameters=tuple(map(str, self.parameters)),
            specifieds=tuple(map(name_of, self.specifieds)),
        )

    def _drive(self) -> dict[str, Callable]:
        """The slopes of the force by specified functions, by name, for slopes that take only q, t and parameters."""
        found: dict[str, Callable] = {}
        force = [self.sympy.sympify(f).xreplace(self.specifieds) for f in self.equations.force]
        for x, dummy in self.specifieds.items():
            slope = [f.diff(dummy) for f in force]
            if not any(f.has(*self.v, *self.u, *self.specifieds.values()) for f in slope):
                found[name_of(x)] = self._write(slope, "the forcing vector", "q")
        return found

    def _write(self, expressions: Any, what: str, allowed: str) -> Callable:
        # The rates of a LagrangesMethod are its speeds, the same symbols: they are read as speeds.
        plain = {**self.time, **self.parameters, **self.specifieds, **self.v, **self.u, **self.q}
        bodies = [self.sympy.sympify(x).xreplace(plain) for x in expressions]
        used = set().union(*(body.free_symbols for body in bodies))
        for group, symbols in {"q": self.q, "v": self.v, "u": self.u, "s": self.specifieds}.items():
            wrong = [name_of(x) for x, dummy in symbols.items() if dummy in used]
            if wrong and group not in allowed:
                may = " and ".join(_GROUPS[letter] for letter in allowed)
                raise ValueError(f"method has {', '.join(wrong)} in {what}, which may depend on {may} only. {_ADVICE}")
        from ._functions import Known, Printer
        from ._pieces import Branches

        known, branches = Known(what, {dummy: x for x, dummy in plain.items()}), Branches()
        bodies = [branches(known(body)) for body in bodies]
        (time,) = self.time.values()
        lists = [list(group.values()) for group in (self.q, self.v, self.u, self.parameters, self.specifieds)]
        arguments = [*lists[:3], time, *lists[3:]]
        return self.sympy.lambdify(arguments, bodies, modules=[{"jax": jax}], printer=Printer(), cse=True)

    def _specifieds(self, expressions: Sequence[Any]) -> list[Any]:
        """The functions of time, and their derivatives, that are neither coordinates nor rates nor speeds."""
        known = {*self.q, *self.v, *self.u}
        derivatives = set().union(*(x.atoms(self.sympy.Derivative) for x in expressions)) - known
        for x in sorted(derivatives, key=str):
            if x.expr in known:
                raise ValueError(f"method has {x} in its terms, which may depend on coordinates and speeds only.")
        hidden = dict.fromkeys([*derivatives, *self.v], self.sympy.Dummy())
        applied = self.sympy.core.function.AppliedUndef
        functions = set().union(*(x.xreplace(hidden).atoms(applied) for x in expressions)) - known
        return sorted(derivatives | functions, key=str)

    def _parameters(self, expressions: Sequence[Any]) -> list[Any]:
        found = set().union(*(x.free_symbols for x in expressions)) - {*self.time, *self.q, *self.v}
        names = [str(x) for x in found]
        for x in found:
            if names.count(str(x)) > 1:
                raise ValueError(f"method has two symbols named {x}, with different assumptions. Use one of them.")
        return sorted(found, key=str)


def _real(equations: Equations) -> Equations:
    """The equations with `real` applied to every expression."""
    from ._functions import real  # imports SymPy

    names = ("mass", "force", "kinematics", "rates", "configuration", "motion")
    given = {name: getattr(equations, name) for name in names}
    written: Any = {name: [real(x) for x in part] for name, part in given.items() if part is not None}
    return dataclasses.replace(equations, **written)


_KINEMATICS = "a kinematical differential equation"
_GROUPS = {"q": "coordinates, time and parameters", "v": "rates", "u": "speeds", "s": "specified functions"}
_ADVICE = "Write a specified function of time out, as an expression in t; what depends on velocities is a force."
