"""Consistent states: the state nearest to a given one that satisfies the constraints.

q: coordinates; v: their rates; M: mass matrix at the given state; e: constraint errors; J: their Jacobian.

The search for the nearest state serves projections too. x: q or v; d = x - x0: the way to it; e: constraint errors; J:
their Jacobian; D and E: scales of rows and coordinates for which the entries of B = D J E are about one, whatever the
units and the masses; K = E M E.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from .. import _check, _expand
from .._constraint import are_rates, error_from_afar
from .._formulation import balancing_scales, coordinate_scales, shifted
from .._linalg import SVD, pseudoinverse, whiten
from .._mechanism import Mechanism, culprit
from .._program import hoist, jit_fast_compile
from .._result import RESULTS, is_traced, message, throw_if_failed, worst
from .._rounding import relative_rounding, rounding_errors
from .._show import AbstractShown, Report, shortened, values
from .._types import Matrix, Numbers, Rows, RowValues, Vector


# Newton's method has converged where the residual, of an unknown of about one, is less than this.
MET = 1e-9


class Rounding(NamedTuple):
    """Sizes of the rounding errors of the constraint errors (m,), and of their Jacobian (m, n)."""

    error: RowValues
    rows: Rows

    @property
    def terms(self) -> RowValues:
        """Sizes of the terms of the errors (m,)."""
        return self.error / relative_rounding(self.error.dtype)

    @property
    def levers(self) -> Rows:
        """Sizes that the rows (m, n) would have if none of their terms cancelled."""
        return self.rows / relative_rounding(self.rows.dtype)

    def without(self, e: RowValues, J: Rows) -> tuple[RowValues, Rows]:
        """Returns e and J with zero for rows that are nothing but rounding errors, as these can't be met or missed."""
        none = stop_gradient(jnp.all(jnp.abs(J) <= self.rows, axis=1))
        return jnp.where(none, 0, e), jnp.where(none[:, None], 0, J)


class Nearest(NamedTuple):
    """The nearest state, and what is known about its accuracy.

    x: the state (n,); `error`, `rows`: the errors there (m,), and their Jacobian (m, n); `result`: the `RESULTS` of the
    metric; `rounding`: errors of the rows at the start of the search; `of_state`: rounding errors of x (n,).
    """

    x: Vector
    error: RowValues
    rows: Rows
    result: RESULTS
    rounding: Rounding
    of_state: Vector


class Errors:
    """The errors of the states x0 + d, in which entries that are `kept` stay, as functions of the others' d (n,).

    Attributes:
        whole: x -> the errors (m,), and their Jacobian by all entries.
        free: Indices of the entries that change.
        rounding: Rounding errors at x0, of rows for all entries.
    """

    def __init__(self, error: Callable[[Array], RowValues], x0: Vector, kept: Sequence[int]):
        error = hoist(error, x0)

        def with_slopes(x: Vector) -> tuple[RowValues, Rows]:
            J, e = jax.jacfwd(lambda x: (error(x),) * 2, has_aux=True)(x)
            return e, J

        linearised = hoist(with_slopes, x0)
        self._alone = _expand.scalars(lambda x: linearised(x)[0], x0)
        self.x0, self.free = x0, np.setdiff1d(np.arange(x0.shape[0]), kept)
        self.whole = _expand.scalars(linearised, x0)
        self.rounding = Rounding(*rounding_errors(linearised, x0, lowered=_expand.scalars))

    def place(self, d: Vector) -> Vector:
        """Returns x0 + d."""
        return self.x0.at[self.free].add(d)

    def alone(self, d: Vector) -> RowValues:
        """Returns the errors."""
        return self._alone(self.place(d))

    def linearised(self, d: Vector) -> tuple[RowValues, Rows]:
        """Returns the errors, and their Jacobian by d, zero for rows that are nothing but rounding errors at x0."""
        e, J = self.whole(self.place(d))
        return self.of_d.without(e, J[:, self.free])

    @property
    def of_d(self) -> Rounding:
        """The rounding errors at x0, of rows for d."""
        return Rounding(self.rounding.error, self.rounding.rows[:, self.free])


def nearest(
    error: Callable[[Array], RowValues],
    x0: Vector,
    M: Matrix,
    max_steps: int,
    affine: bool = False,
    kept: Sequence[int] = (),
) -> Nearest:
    r"""Returns the x with error(x) = 0 for which d^T M d is stationary: as a rule the nearest, from any start.

    d = E y. Let B = D J E and r = B^+ D e; let N = 1 - B^+ B be the projection onto the null space of B, and K = E M E.
    The state is where r + H N K (y - r) = 0, for any positive definite H that commutes with N: there e = 0, and M d is
    in the row space of J. Unlike the multiplier's equations this equation stays regular where rows are redundant. With
    H = (N K N + h B^+ B)^-1 its Jacobian is the identity but for the curvature of the constraints, however much the
    masses differ, and where M is singular.

    `affine`: whether `error` is affine, so that one step leads to the solution. `kept`: indices of entries of x that
    stay; d, y and the columns of J are those of the others.
    """
    errors = Errors(error, x0, kept)
    rounding, n = errors.of_d, len(errors.free)
    if 0 in rounding.rows.shape:
        none = jax.tree_util.tree_map(jnp.zeros_like, errors.rounding)
        e, J = errors.whole(x0)
        return Nearest(x0, e, J, RESULTS.successful, none, jnp.zeros_like(x0))
    M, rest = M[errors.free][:, errors.free], jnp.zeros(n, x0.dtype)
    e, J = errors.linearised(rest)
    C = coordinate_scales(M, J)
    D, E = balancing_scales(stop_gradient(J), rounding.levers, C)
    K, B = E[:, None] * M * E[None], D[:, None] * J * E[None]
    h = _positive(jnp.max(jnp.abs(jnp.diagonal(K))))  # the heaviest coordinate
    candidates = [K, K + h * B.T @ B, E[:, None] * shifted(M, C) * E[None]]
    _, Ws, (definite, regular, semidefinite) = jax.vmap(whiten)(jnp.stack(candidates))
    _, size = _sizes(e, J, jnp.diag(E), rounding)
    unit = size * E  # in which y is about one

    def stationarity(y: Vector, constant: Callable[[Matrix], Matrix] = lambda H: H) -> Vector:
        e, J = errors.linearised(unit * y)
        B = D[:, None] * J * E[None]
        back, _ = pseudoinverse(SVD(), B)
        across = back @ B
        N = jnp.eye(n, dtype=y.dtype) - across
        _, W, _ = whiten(constant(N @ K @ N + h * across))
        r = back @ (D * e) / size
        return r + W.T @ (W @ (N @ (K @ (y - r))))

    if affine:
        # One step leads to the solution, and another removes rounding errors.
        y, _ = jax.lax.scan(lambda y, _: (y - stationarity(y), None), rest, length=2)
    else:

        def search(W: Matrix) -> Vector:
            W = W * E[None]
            lengths, far = _sizes(e, J, W, rounding)
            z = _coarse_search(lambda z: lengths / far * errors.alone(far * W.T @ z), rest, max_steps)
            return far * W.T @ z / unit

        metrics = jnp.stack([jnp.where(definite, Ws[0], Ws[1]), jnp.where(regular, Ws[1], Ws[0])])

        def residual(y: Vector, _) -> Vector:
            # Where N K (y - r) vanishes, the derivative of H does not count.
            return stationarity(y, stop_gradient)

        y = as_root(residual, _start(search, metrics, residual, max_steps))
    result = worst(
        RESULTS.where(semidefinite, RESULTS.successful, RESULTS.mass_indefinite),
        RESULTS.where(definite | regular, RESULTS.successful, RESULTS.nearest_not_unique),
    )
    x, of_d = errors.place(unit * y), relative_rounding(x0.dtype) * unit * jnp.linalg.norm(stop_gradient(y))
    e, J = errors.whole(x)
    return Nearest(x, e, J, result, errors.rounding, jnp.zeros_like(x0).at[errors.free].set(of_d))


def _start(search: Callable[[Matrix], Vector], metrics: Array, residual: Callable, max_steps: int) -> Vector:
    """The root of `residual` that Newton's method finds from where `search` leads in the first of the metrics that can.

    In the metric of M the search ends near the closest state. But where a light body is between others it may end
    elsewhere, and then the rows are to be added to the metric.
    """

    def found(W: Matrix) -> tuple[Vector, Array]:
        y = _newton(residual, search(W), max_steps)
        size = jnp.linalg.norm(residual(y, None))
        return y, jnp.where(jnp.isfinite(size), size, jnp.inf)

    roots, sizes = jax.lax.map(found, metrics)
    return stop_gradient(roots[jnp.argmin(jnp.maximum(sizes, MET))])


def _positive(x: Array) -> Array:
    """Returns x where it is positive, else one."""
    return jnp.where(x > 0, x, 1.0)


def _sizes(e: RowValues, J: Rows, W: Matrix, rounding: Rounding) -> tuple[RowValues, Array]:
    """Returns factors that bring the errors to the unit of z (m,), and the size of z and of the terms of the errors.

    A row that vanishes here gives neither. It gets the length of its terms at the size of z, or of its levers if
    longer.
    """
    e, J, W = stop_gradient((e, J, W))
    lengths, levers = jnp.linalg.norm(J @ W.T, axis=1), jnp.linalg.norm(rounding.levers @ jnp.abs(W).T, axis=1)
    real = lengths > 0
    longer = _positive(jnp.where(real, lengths, levers))
    # If no row has a length here, all rows count.
    sizes = jnp.where(real | ~jnp.any(real), rounding.terms / longer, 0)
    size = _positive(jnp.linalg.norm(e / longer) + jnp.max(sizes))
    return 1 / _positive(jnp.where(real, lengths, jnp.maximum(levers, rounding.terms / size))), size


def _coarse_search(error: Callable[[Array], Array], z: Array, max_steps: int) -> Array:
    """Minimises 0.05^2 |z|^2 + |error|^2, which leads close to the shortest z without error, for rows of unit length.

    The size of the stationarity itself has minima that are not zeros, in which Levenberg-Marquardt may stop. With a
    smaller weight the search reaches places where Newton's method diverges; with a larger one it stays away from the
    constraints.
    """

    def far(z: Array, _) -> Array:
        return jnp.concatenate([0.05 * z, error(z)])

    search = optx.LevenbergMarquardt(1e-6, 1e-9, linear_solver=exact(z.dtype))
    found = optx.least_squares(far, search, z, max_steps=max_steps, throw=False).value
    return stop_gradient(jnp.where(jnp.isfinite(found), found, z))


def root(residual: Callable, z: Array, max_steps: int) -> Array:
    """Solves `residual(z, None)` = 0 by Newton's method from nearby, with derivatives."""
    return as_root(residual, _newton(residual, z, max_steps))


def _newton(residual: Callable, z: Array, max_steps: int) -> Array:
    eps = float(jnp.finfo(z.dtype).eps)
    solver = optx.Newton(64 * eps, 64 * eps, linear_solver=exact(z.dtype))
    return optx.root_find(residual, solver, stop_gradient(z), max_steps=max_steps, throw=False).value


def as_root(residual: Callable, z: Array) -> Array:
    """Returns z, where `residual(z, None)` = 0, with the derivatives of that root by the implicit function theorem."""

    def tangent(slope: Callable[[Array], Array], y: Array) -> Array:
        return lx.linear_solve(lx.FunctionLinearOperator(slope, jax.eval_shape(lambda: y)), y, exact(y.dtype)).value

    return jax.lax.custom_root(lambda z: residual(z, None), stop_gradient(z), lambda _, z: z, tangent)


def exact(dtype: DTypeLike) -> SVD:
    """Returns an `SVD` that drops rounding errors only; in a batch lineax's own solvers would call LAPACK."""
    return SVD(rtol=16 * float(jnp.finfo(dtype).eps))


class Assembly(AbstractShown):
    """A consistent state, which unpacks as `q, v = assemble(...)`, and its distance from the given one.

    Its display shows the coordinates and rates, which of them were moved and how far, the largest first.

    Attributes:
        q: Coordinates (n,) [m or rad].
        v: Rates of q (n,) [m/s or rad/s].
        moved_q: q less the given one (n,), without gradient.
        moved_v: v less the given one (n,), without gradient.
    """

    q: Array
    v: Array
    moved_q: Array
    moved_v: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.q, self.v))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index):
        return (self.q, self.v)[index]

    def _report(self) -> Report:
        moves = [*_moves("q", self.q, self.moved_q), *_moves("v", self.v, self.moved_v)]
        batch = self.moved_q.shape[:-1]
        where = f" Of a batch {batch} the largest moves:" if batch else ""
        rows = [("q", values(self.q)), ("v", values(self.v))]
        return Report(f"The nearest consistent state.{where}", rows, notes=moves)


def _moves(name: str, values: Array, moved: Array) -> list[str]:
    """Lists the entries of `values` that moved by more than rounding, largest first; for a batch the largest moves."""
    changes = np.asarray(moved).reshape(-1, moved.shape[-1])
    after = np.asarray(values).reshape(changes.shape)
    if not np.isfinite(changes).any():
        return [f"{name}: no consistent state was found"]
    sizes = np.where(np.isfinite(changes), np.abs(changes), -1.0)
    rows, columns = np.argmax(sizes, axis=0), np.arange(changes.shape[1])
    changes, after = changes[rows, columns], after[rows, columns]
    rounding = 64 * np.finfo(changes.dtype).eps * np.nanmax(np.abs(after) + np.abs(changes))
    order = [i for i in np.argsort(-np.abs(changes), kind="stable") if abs(changes[i]) > rounding]
    if not order:
        return [f"{name}: nothing moved"]
    moves = [
        f"{name}[{i}] moved by {changes[i]:+.3g}, from {after[i] - changes[i]:.6g} to {after[i]:.6g}" for i in order
    ]
    shown, more = shortened(moves)
    return [*shown, *more]


class Kept(NamedTuple):
    """Indices of the coordinates and of the rates that stay unchanged."""

    q: tuple[int, ...] = ()
    v: tuple[int, ...] = ()


class Check(NamedTuple):
    """The errors of some rows (m,), and which rows count as satisfied (m,)."""

    error: Array
    met: Array


def assemble(
    mechanism: Mechanism,
    q: Numbers,
    v: Numbers,
    t: ArrayLike = 0.0,
    *,
    keep: Mapping[str, Numbers] | None = None,
    atol: float | None = None,
    max_steps: int = 256,
    throw: bool = True,
) -> Assembly:
    r"""Returns the state nearest to (q, v) that satisfies the position and the velocity constraints.

    $$q^* = \mathrm{argmin}_x\, (x - q)^\top M (x - q) \;\text{ s.t. }\; \Phi(x, t) = 0, \qquad
      v^* = \mathrm{argmin}_w\, (w - v)^\top M (w - v)
      \;\text{ s.t. }\; \dot\Phi = 0,\ \psi = 0 \text{ at } (q^*, w, t)$$

    with M at the given (q, t); with a kinematics x - q is the displacement d that leads from q to x. An
    `AccelerationConstraint` restricts neither and is ignored. The search is local: it finds the stationary point that
    it reaches from (q, v). M may be singular, as with massless coordinates, if every direction has a mass or a
    constraint on its position (for v, on its velocity).

    Args:
        mechanism: System and constraints; rows may be redundant.
        q: Coordinates to start from, shape (n,) [m or rad].
        v: Rates to start from, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].
        keep: Coordinates and rates that stay, bit for bit, while the rest moves: {"q": [0], "v": [0]} keeps the first
            coordinate and its rate. Values are indices, or a mask (n,) of booleans; a name that is left out keeps
            nothing. With a kinematics both are numbers of speeds: nothing moves in their directions.
        atol: Distance from a constraint that counts as satisfied, in the unit of the coordinates (for velocities, of
            the rates). It is the error of a row over the length of its gradient, so that neither the unit nor the scale
            of a row matters. If None, a row must be satisfied to 1e-9 of the size of its own terms in float64 and 1e-4
            in lower precision, whatever the units of the coordinates.
        max_steps: Step budget of each search.
        throw: Raise if there is no consistent state. With False the state then is NaN.

    Returns:
        `Assembly`, which unpacks as q and v, each (n,), and reports how far they were moved: `print` it.

    Raises:
        TypeError: If `mechanism` is something else, or `keep` is no mapping.
        ValueError: If q, v or t has a wrong shape or is not finite, or `keep` names something that does not exist.
        RuntimeError: If `throw` and the constraints cannot be satisfied; the message says which could not, by how much
            they are missed, and what was kept. Also if the mass matrix has a negative direction, or some direction has
            neither mass nor constraint.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        pendulum = ukjax.Mechanism(system, rod)
        q, v = ukjax.assemble(pendulum, [0.9, -0.5], [0.0, 1.0])
        print(q @ q, q @ v)  # 1 and 0: on the circle, and along it
        ```

    Gradients: forward and reverse mode, by the implicit function theorem, where the rank of A is locally constant.

    Source: the nearest state in the metric of Gauss's principle, as Udwadia & Kalaba (1992) have it for accelerations;
    minimisation by optimistix.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    _check.finite(q, "q")
    _check.finite(v, "v")
    kept = kept_of(keep, v.shape[0])
    assembly, checks, result = _assemble(mechanism, q, v, t, atol, max_steps, kept)
    if throw:
        if not is_traced(result, checks) and bool(result == RESULTS.not_assembled):
            reason = culprit(mechanism, [(q, v, t)])
            raise RuntimeError(f"{message(result)} {_missed(mechanism, q, v, t, checks, kept)}{reason}")
        assembly = throw_if_failed(assembly, result)
    return assembly


@jit_fast_compile
def _assemble(mechanism, q0, v0, t, atol, max_steps, kept):
    M = _expand.scalars(lambda q, t: mechanism.mass(q, t, v0.shape[0]), q0, t)(q0, t)
    at, x0 = (lambda x: x), q0
    if mechanism.kinematics is not None:
        at, x0 = (lambda d: mechanism.retract(q0, d, t)), jnp.zeros_like(v0)

    def of_position(x: Array) -> RowValues:
        return mechanism.errors(at(x), jnp.zeros_like(v0), t, afar=True)[0]

    of_q = nearest(of_position, x0, M, max_steps, kept=kept.q)
    q = at(of_q.x)
    of_velocity, affine = lambda x: mechanism.velocity_error(q, x, t), are_rates(mechanism.constraints)
    of_v = nearest(of_velocity, v0, M, max_steps, affine, kept.v)
    v, checks = of_v.x, (_checked(of_q, atol), _checked(of_v, atol))
    met = jnp.all(jnp.concatenate([check.met for check in checks]))
    result = worst(of_q.result, of_v.result, RESULTS.where(met, RESULTS.successful, RESULTS.not_assembled))
    okay = result == RESULTS.successful
    q, v = jnp.where(okay, q, jnp.nan), jnp.where(okay, v, jnp.nan)
    return Assembly(q, v, stop_gradient(q - q0), stop_gradient(v - v0)), checks, result


def _checked(found: Nearest, atol: float | None) -> Check:
    """Checks rows: satisfied are those with errors small beside their terms at the start, or rounding where x is.

    With `atol`, a row is satisfied if x is at most that far from it, to first order: its error over the length of its
    gradient. The gradient of a row that vanishes has the length of its terms instead.
    """
    (x, e, J), rounding = stop_gradient((found.x, found.error, found.rows)), found.rounding
    if atol is None:
        part = 1e-9 if jnp.finfo(x.dtype).eps < 1e-12 else 1e-4
        # Far away an angle is a large number, but no large term; only rounding counts there.
        there = relative_rounding(x.dtype) * (jnp.maximum(rounding.levers, jnp.abs(J)) @ jnp.abs(x))
        allowed = part * rounding.terms + there
    else:
        lengths, none = jnp.linalg.norm(J, axis=1), jnp.all(jnp.abs(J) <= rounding.rows, axis=1)
        allowed = atol * jnp.where(none, jnp.linalg.norm(rounding.levers, axis=1), lengths)
    return Check(e, jnp.abs(e) <= allowed + rounding.error + jnp.abs(J) @ found.of_state)


def kept_of(keep: object, n: int) -> Kept:
    """Returns the argument `keep` as indices; raises TypeError or ValueError if it is invalid."""
    if keep is None:
        return Kept()
    if not isinstance(keep, Mapping):
        raise TypeError(f'keep must be a mapping, such as {{"q": [0], "v": [0]}}, but is a {type(keep).__name__}.')
    wrong = [name for name in keep if name not in Kept._fields]
    if wrong:
        raise ValueError(f'keep may name "q" and "v", but names {", ".join(map(repr, wrong))}.')
    return Kept(**{name: indices_of(value, n, f'keep["{name}"]') for name, value in keep.items()})


def indices_of(value: object, n: int, name: str, of: str = "coordinates") -> tuple[int, ...]:
    """Returns the indices, below n, that `value` selects; raises ValueError if it is invalid."""
    if is_traced(value):
        raise ValueError(f"{name} must be known when the function is traced: Python or NumPy numbers.")
    numbers = np.atleast_1d(np.asarray(value))
    if numbers.size == 0:
        return ()
    if numbers.dtype == bool:
        if numbers.shape != (n,):
            raise ValueError(f"{name} as a mask must have shape ({n},), one for each, but has shape {numbers.shape}.")
        return tuple(np.flatnonzero(numbers).tolist())
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} must hold indices, or be a mask of shape ({n},), but is {value!r}.")
    outside = numbers[(numbers < -n) | (numbers >= n)]
    if outside.size:
        raise ValueError(f"{name} must hold indices below {n}, the number of {of}, but holds {outside[0]}.")
    return tuple(sorted({int(i) % n for i in numbers}))


def _missed(mechanism: Mechanism, q: Array, v: Array, t: Array, checks: tuple[Check, Check], kept: Kept) -> str:
    """Describes the constraints that an assembly could not satisfy, by how much, and what was kept."""
    named, missed = mechanism.named_constraints, []
    rows = jax.eval_shape(
        lambda q, v: [(error_from_afar(c, q, t), mechanism.velocity_error_of(c, q, v, t)) for c in named.values()], q, v
    )
    begins = [0, 0]
    for (name, constraint), pair in zip(named.items(), rows, strict=True):
        called = name if name.startswith("constraints[") else repr(name)
        for k, (what, check, part) in enumerate(zip(("position", "velocity"), checks, pair, strict=True)):
            begin, begins[k] = begins[k], begins[k] + part.shape[0]
            error, met = (np.asarray(x)[begin : begins[k]] for x in check)
            wrong = np.flatnonzero(~met)
            if wrong.size:
                kind = type(constraint).__name__
                sizes = ", ".join(f"row {row} by {abs(float(error[row])):.3g}" for row in wrong)
                missed.append(f"the {what} of {called} ({kind}): {sizes}")
    text = "Missed: " + "; ".join(missed) + "."
    stayed = [f"{name}[{i}]" for name, indices in kept._asdict().items() for i in indices]
    return f"{text} Kept: {', '.join(stayed)}." if stayed else text
