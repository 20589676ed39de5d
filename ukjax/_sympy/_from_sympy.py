"""Mechanisms from SymPy's equations of motion, whose expressions become functions for JAX.

q: coordinates; v: their rates; u: generalised speeds; M_u, f_u: M_u u' = f_u, before any constraint.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType

import jax
import jax.scipy.special  # generated functions call it by its whole name
from jaxtyping import Array, ArrayLike

from .. import _check
from .._mechanism import Mechanism
from ._system import Expression, Functions, Method, Symbol, SympyMatrix, SympySystem, by_name, name_of, named_scalars


@dataclasses.dataclass(frozen=True)
class Equations:
    """The symbols of SymPy's object, and expressions in them; see `Functions`."""

    q: list[Symbol]
    v: list[Symbol]
    u: list[Symbol]
    mass: SympyMatrix
    force: SympyMatrix
    kinematics: SympyMatrix | None = None
    explicit: bool = False
    blocks: tuple = ()
    rates: list[Expression] | None = None
    configuration: Sequence[Expression] = ()
    motion: Sequence[Expression] = ()
    integrable: bool = True


class Writer:
    """Replaces each function of time by a plain symbol, sorts the symbols, and lets SymPy generate the code."""

    def __init__(self, sympy: ModuleType, equations: Equations):
        self.sympy = sympy
        e = self.equations = _real(equations)
        parts = (e.mass, e.force, e.kinematics, e.rates, e.configuration, e.motion)
        expressions = [sympy.sympify(x) for part in parts if part is not None for x in part]
        time = sympy.physics.mechanics.dynamicsymbols._t

        def plain(symbols: Sequence[Symbol]) -> dict[Symbol, Symbol]:
            return {x: sympy.Dummy(f"x{i}", real=True) for i, x in enumerate(symbols)}

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

    def _write(self, expressions: Iterable[Expression], what: str, allowed: str) -> Callable:
        # The rates of a LagrangesMethod are its speeds, the same symbols: they are read as speeds.
        plain = {**self.time, **self.parameters, **self.specifieds, **self.v, **self.u, **self.q}
        bodies = [self.sympy.sympify(x).xreplace(plain) for x in expressions]
        used = set().union(*(body.free_symbols for body in bodies))
        for group, symbols in {"q": self.q, "v": self.v, "u": self.u, "s": self.specifieds}.items():
            wrong = [name_of(x) for x, dummy in symbols.items() if dummy in used]
            if wrong and group not in allowed:
                may = " and ".join(_GROUPS[letter] for letter in allowed)
                raise ValueError(f"method has {', '.join(wrong)} in {what}, which may depend on {may} only. {_ADVICE}")
        from ._functions import Branches, Known, Printer

        known, branches = Known(what, {dummy: x for x, dummy in plain.items()}), Branches()
        bodies = [branches(known(body)) for body in bodies]
        (time,) = self.time.values()
        lists = [list(group.values()) for group in (self.q, self.v, self.u, self.parameters, self.specifieds)]
        arguments = [*lists[:3], time, *lists[3:]]
        return self.sympy.lambdify(arguments, bodies, modules=[{"jax": jax}], printer=Printer(), cse=True)

    def _specifieds(self, expressions: Sequence[Expression]) -> list[Symbol]:
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

    def _parameters(self, expressions: Sequence[Expression]) -> list[Symbol]:
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
    written = {name: [real(x) for x in part] for name, part in given.items() if part is not None}
    return dataclasses.replace(equations, **written)


_KINEMATICS = "a kinematical differential equation"
_GROUPS = {"q": "coordinates, time and parameters", "v": "rates", "u": "speeds", "s": "specified functions"}
_ADVICE = "Write a specified function of time out, as an expression in t; what depends on velocities is a force."


def from_sympy(
    method: Method,
    parameters: Mapping[Symbol, ArrayLike] | None = None,
    specifieds: Mapping[Symbol, ArrayLike | Callable] | None = None,
) -> Mechanism:
    r"""The mechanism that SymPy's `KanesMethod` or `LagrangesMethod` describes.

    Kane's equations $M_u \dot u = f_u$ in generalised speeds $u = J \dot q + j$ become, in coordinates,
    $J^\top M_u J\,\ddot q = J^\top (f_u - M_u (\dot J \dot q + \dot j))$. Dependent speeds are made independent again,
    and the Udwadia-Kalaba equation takes the constraints, which may be redundant. For a `LagrangesMethod` the
    multipliers are left out, and its constraints kept.

    Args:
        method: `KanesMethod` after `kanes_equations(...)`, `LagrangesMethod` after `form_lagranges_equations()`, or
            an object with such an `eom_method` (the `System` of SymPy and that of PyDy).
        parameters: SymPy symbol, or its name, -> scalar, in the units of the equations. A symbol that does not occur
            has no effect.
        specifieds: Dynamic symbol (a force F(t) that SymPy leaves open), or its name, -> number or `f(q, v, t)`, a
            scalar. They may occur in the forcing vector only; write a prescribed motion into the constraints as an
            expression in t.

    Returns:
        `Mechanism`, its coordinates in SymPy's order. A speed without a coordinate (an ignorable one) gets a coordinate
        of its own, which nothing depends on. `mechanism.system` has `coordinates` and `generalized_speeds`, their
        names; `speeds(q, v, t)` and `rates(q, u, t)`, the way from SymPy's state and back; `configuration(q, t)` and
        `motion(q, v, t)`, the constraint functions, for a stabilization of your choice; `parameters`, a dict of arrays
        by name; `mechanism(parameters)`, which makes the mechanism with other values, without SymPy; and
        `actuation(F)`, G of specified functions, as inputs for `linearize`.

    Raises:
        ImportError: If SymPy is not installed: `pip install "ukjax[sympy]"`.
        TypeError: If `method` has another type, or `parameters` or `specifieds` is no mapping.
        ValueError: If a value is missing, is no real scalar, or is unknown; if the equations of motion were not formed;
            if they are not of the form above, with a mass matrix that depends on velocities, say; or if they contain a
            function that JAX does not have, such as `besselj`.

    With more coordinates than speeds (quaternions) the mass matrix is singular, and the constraints supply the missing
    rank. Configuration constraints of a `KanesMethod` act through the velocity constraints, in which SymPy demands
    their rates; `ukjax.Projection()` keeps both.

    Gradients: with respect to `mechanism.system.parameters`, which system and constraints share; for a piecewise
    function those of the branch taken.

    Source: Kane & Levinson (1985), Dynamics: Theory and Applications; Zhao et al. (2018), section 6.
    """
    sympy = _import_sympy()
    method = getattr(method, "eom_method", method)
    if method is None:
        raise ValueError("method has no equations of motion yet. Call its form_eoms() first.")
    if isinstance(method, sympy.physics.mechanics.KanesMethod):
        equations = _of_kane(sympy, method)
    elif isinstance(method, sympy.physics.mechanics.LagrangesMethod):
        equations = _of_lagrange(method)
    else:
        raise TypeError(
            "method must be a KanesMethod or LagrangesMethod of sympy.physics.mechanics, but is "
            f"{type(method).__name__}."
        )
    functions = Writer(sympy, equations).functions()
    values = named_scalars(parameters or {}, "parameters")
    _require(values, functions.parameters, "parameters", "Pass a value for each: {symbol: value}.")
    _reject_unknown_text(parameters or {}, functions.parameters, "parameters")
    given = by_name(specifieds or {}, "specifieds")
    hint = "Pass a number or f(q, v, t) for each: specifieds={symbol: value}."
    _require(given, functions.specifieds, "specifieds", hint)
    _reject_unknown_text(dict.fromkeys(given), functions.specifieds, "specifieds")
    return Mechanism(SympySystem(values, {name: _specified(name, f) for name, f in given.items()}, functions))


def _import_sympy() -> ModuleType:
    try:
        import sympy
        import sympy.physics.mechanics
    except ImportError as error:
        raise ImportError('ukjax.from_sympy needs SymPy: pip install "ukjax[sympy]".') from error
    return sympy


def _require(given: Mapping[str, object], needed: Sequence[str], name: str, hint: str) -> None:
    missing = [text for text in needed if text not in given]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}, which the equations of motion contain. {hint}")


def _reject_unknown_text(given: Mapping[Symbol, object], needed: Sequence[str], name: str) -> None:
    """Raises ValueError for a name that does not occur, which is misspelt; an absent symbol may have cancelled."""
    for key in given:
        if isinstance(key, str) and name_of(key) not in needed:
            known = ", ".join(needed) or "none"
            raise ValueError(f"{name} has {key!r}, which the equations of motion do not contain; they contain {known}.")


def _specified(name: str, value: ArrayLike | Callable) -> Array | Callable:
    if callable(value):
        return _check.function(value, f"specifieds[{name!r}]", "f(q, v, t) -> scalar")
    return named_scalars({name: value}, "specifieds")[name]


def _of_lagrange(method: Method) -> Equations:
    if method.eom is None:
        raise ValueError("method has no equations of motion yet. Call its form_lagranges_equations() first.")
    n, held = len(method.q), len(method._hol_coneqs)
    return Equations(
        q=list(method.q),
        v=list(method.u),
        u=list(method.u),
        mass=method.mass_matrix[:, :n],
        force=method.forcing,
        configuration=list(method._hol_coneqs),
        motion=list(method.coneqs)[held:],  # before them come the rates of the holonomic ones
    )


def _of_kane(sympy: ModuleType, method: Method) -> Equations:
    if method._fr is None or method._frstar is None:
        raise ValueError("method has no equations of motion yet. Call its kanes_equations(bodies, loads) first.")
    # More coordinates than speeds are tied by the kinematical differential equations, as a quaternion's length is.
    ties = max(0, len(method.q) - len(method.u))
    if len(method._f_h) > len(method._udep) + ties:
        raise ValueError(
            f"method has {len(method._f_h)} configuration_constraints but {len(method._udep)} velocity_constraints. "
            "KanesMethod holds positions by velocity constraints only: give it their time derivatives, too."
        )
    if method._k_dnh is not method._k_nh and method._udep:
        raise ValueError(
            "method has acceleration_constraints. Leave them out: they follow from its velocity_constraints."
        )
    free = _with_all_speeds_independent(sympy, method) if method._udep else method
    motion = list(method._k_nh * method.u + method._f_nh) if method._udep else []
    return Equations(
        **_kinematics(sympy, method),
        u=list(method.u),
        mass=free.mass_matrix,
        force=free.forcing.xreplace(method.kindiffdict()),
        configuration=list(method._f_h),
        motion=motion,
        integrable=len(method._f_h) > len(method._udep),
    )


def _with_all_speeds_independent(sympy: ModuleType, method: Method) -> Method:
    """The KanesMethod of the bodies and loads without constraints, since SymPy keeps only the eliminated equations."""
    free = sympy.physics.mechanics.KanesMethod(
        method._inertial,
        q_ind=list(method.q),
        u_ind=list(method.u),
        kd_eqs=[rate - solved for rate, solved in method.kindiffdict().items()],
        u_auxiliary=list(method._uaux) or None,
    )
    free.kanes_equations(method.bodies, method.loads)
    return free


def _kinematics(sympy: ModuleType, method: Method) -> dict:
    """q, v, v(u) and [K_u, K_v, k], with coordinates added for speeds without coordinates; or u = v and no matrix."""
    q, u, solved = list(method.q), list(method.u), method.kindiffdict()
    v = [x.diff(sympy.physics.mechanics.dynamicsymbols._t) for x in q]
    rates = [solved[rate] for rate in v]
    if rates == u:
        return {"q": q, "v": u}
    K_u, K_v, k = method._k_ku_implicit, method._k_kqdot_implicit, method._f_k_implicit
    loose = [i for i in range(len(u)) if K_u[:, i].is_zero_matrix]
    if len(loose) != max(0, len(u) - len(q)):
        raise ValueError(
            f"method has {len(u)} speeds for {len(q)} coordinates, and {len(loose)} of the speeds occur in no "
            "kinematical differential equation. Give each of the others coordinates of which it is the rate."
        )
    if loose:
        names = [f"∫{name_of(u[i])}" for i in loose]
        q, v = q + [sympy.Dummy(name) for name in names], v + [sympy.Dummy(f"d{name}") for name in names]
        rates = rates + [u[i] for i in loose]
        K_u = K_u.col_join(sympy.Matrix(len(loose), len(u), lambda row, i: -int(i == loose[row])))
        K_v = sympy.diag(K_v, sympy.eye(len(loose)))
        k = k.col_join(sympy.zeros(len(loose), 1))
    rest = K_v.row_join(k)
    implicit = not getattr(method, "explicit_kinematics", True)
    inverse = None if implicit else _inverse(sympy, K_u)
    if inverse is None:
        found = {"q": q, "v": v, "kinematics": K_u.row_join(rest), "blocks": _blocks(sympy, K_u)}
        return found if implicit else {**found, "rates": rates}
    return {"q": q, "v": v, "rates": rates, "kinematics": -inverse * rest, "explicit": True}


def _blocks(sympy: ModuleType, K: SympyMatrix) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Rows and columns of K that belong together, so that K is block diagonal in this order."""
    n, k = K.shape
    pattern = K.applyfunc(lambda x: int(x != 0))
    graph = sympy.zeros(n).row_join(pattern).col_join(pattern.T.row_join(sympy.zeros(k)))
    parts = [sorted(part) for part in graph.connected_components()]
    return tuple((tuple(i for i in part if i < n), tuple(i - n for i in part if i >= n)) for part in parts)


def _inverse(sympy: ModuleType, K: SympyMatrix) -> SympyMatrix | None:
    """The inverse K^-1, block by block; None, for a numerical inverse, if K is not square or a block exceeds 3 x 3.

    Cofactors divide by the determinant only; an elimination may divide by a number that is zero at some state.
    """
    blocks = K.connected_components() if K.rows == K.cols else [range(4)]
    if max(map(len, blocks)) > 3:
        return None
    inverse = sympy.zeros(*K.shape)
    for block in blocks:
        part = K.extract(block, block)
        part = part.adjugate() / part.det()
        for i, row in enumerate(block):
            for j, column in enumerate(block):
                inverse[row, column] = part[i, j]
    return inverse
