"""Diagnosis of a mechanism at a state: rank, redundant rows, freedom, consistency, conditioning, holonomy.

B = A L^-T with rows of about unit length; x = (q, t); F: the constraints as one-forms F dx = 0, (m, n + 1).
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from . import _check, _expand
from ._constraint import AbstractConstraint, Holonomic, members_of
from ._formulation import Motion, PennestriDeFalco, UdwadiaKalaba, row_scales
from ._linalg import SVD, one_at_a_time, pseudoinverse, whiten
from ._mechanism import Mechanism
from ._program import jit_fast_compile
from ._result import RESULTS
from ._show import AbstractShown, Report
from ._terms import Terms
from ._types import BoolScalar, IntScalar, Numbers, Scalar


# Places at which the forms are differentiated: the state itself, and points some way off along the admissible
# directions, because a curl can vanish at a point by accident.
PLACES = 4
FAR = 0.1
SMALL = 1e-7

# x -> one-forms (m, n + 1) there.
FormsAt = Callable[[Array], Array]

# LAPACK on a CPU is not given a batch: see `SVD`.
_spectrum = one_at_a_time(lambda B: jnp.linalg.svd(B, compute_uv=False))
_eigenvalues = one_at_a_time(jnp.linalg.eigvalsh)


class Diagnosis(AbstractShown):
    """Properties of a mechanism at a state; its display shows them.

    Attributes:
        rows: Number of constraint rows m.
        coordinates: Number of coordinates n, or of speeds, if the system has a kinematics.
        rank: Rank of A.
        redundant: Whether each row depends on the rows before it, (m,).
        degrees_of_freedom: n - rank, the number of free accelerations.
        consistent: Whether some acceleration satisfies all rows of A q'' = b.
        residual: Euclidean norm of A q'' - b.
        position_error: Euclidean norm of Φ.
        velocity_error: Euclidean norm of Φ̇ and ψ.
        mass_definite: Whether M is symmetric positive definite.
        unique: Whether the acceleration is unique: [M; A] has full rank.
        mass_condition: Condition number of M; infinite if it is singular.
        constraint_condition: Largest singular value of B over the smallest that counts for the rank.
        singular_values: Singular values of B, (min(m, n),), largest first.
        holonomic: Whether each row, together with all others, can be integrated to Φ(q, t) = constant, (m,).
        curl: Largest curl of each row on the admissible directions, relative to the row's derivative, (m,).
        labels: Constraint and row number of each row.
    """

    rows: int = eqx.field(static=True)
    coordinates: int = eqx.field(static=True)
    rank: IntScalar
    redundant: Bool[Array, " m"]
    degrees_of_freedom: IntScalar
    consistent: BoolScalar
    residual: Scalar
    position_error: Scalar
    velocity_error: Scalar
    mass_definite: BoolScalar
    unique: BoolScalar
    mass_condition: Scalar
    constraint_condition: Scalar
    singular_values: Float[Array, " k"]
    holonomic: Bool[Array, " m"]
    curl: Float[Array, " m"]
    labels: tuple[str, ...] = eqx.field(static=True)

    def entries(self) -> list[tuple[str, str]]:
        """Returns the diagnosis as pairs of a name and a text; for one state, outside of `jit`."""
        which = [self.labels[i] for i in np.flatnonzero(np.asarray(self.redundant))]
        bent = [self.labels[i] for i in np.flatnonzero(~np.asarray(self.holonomic))]
        kind = "all rows" if not bent else f"all but {_listed(bent)}"
        mass = f"positive definite, condition number {self.mass_condition:.3g}"
        if not self.mass_definite:
            mass = "not positive definite; the acceleration is " + ("unique" if self.unique else "not unique")
        return [
            ("coordinates", f"{self.coordinates}"),
            ("constraint rows", f"{self.rows}, of rank {self.rank}"),
            ("redundant rows", _listed(which) or "none"),
            ("degrees of freedom", f"{self.degrees_of_freedom}"),
            ("consistent", ("yes" if self.consistent else "NO") + f", |A q'' - b| = {self.residual:.3g}"),
            ("distance from the constraints", f"{self.position_error:.3g}, in velocity {self.velocity_error:.3g}"),
            ("mass matrix", mass),
            ("condition number of the constraints", f"{self.constraint_condition:.3g}"),
            ("holonomic", kind if self.rows else "no rows"),
        ]

    def _report(self) -> Report:
        return Report("", self.entries())


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def diagnose(mechanism: Mechanism, q: Numbers, v: Numbers, t: ArrayLike = 0.0) -> Diagnosis:
    r"""Diagnoses a mechanism at a state: rank, redundancy, freedom, consistency, conditioning and holonomy.

    Rank and consistency are those of `UdwadiaKalaba()` (`PennestriDeFalco()` where M is not positive definite), as
    in `equation_of_motion`; singular values and condition numbers are those of $B = A L^{-\top}$, its rows
    brought to about unit length, so that units do not matter (of A where M is not positive definite).

    Frobenius's test decides whether rows are holonomic. Written as one-forms in x = (q, t), rows $\omega_i = F_i\,dx$
    can be integrated together if and only if every $d\omega_i$ vanishes on the directions that all of them admit. For
    one row in three coordinates that is $\omega \wedge d\omega = 0$. Rows of a `Holonomic` are $d\Phi$, whose curl is
    zero. Others are tested at the state and, because the curl of a form can vanish at a point by accident, at four
    places nearby. A row that is not linear in v counts as nonholonomic. For an `AccelerationConstraint` only A is
    known; its rows are tested as $A\,dq$ at constant t.

    Args:
        mechanism: System and constraints.
        q: Coordinates, shape (n,) [m or rad].
        v: Rates of q, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].

    Returns:
        `Diagnosis`. The function works under `jax.jit` and `jax.vmap`, but is not made for speed.

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If a shape does not fit, or q, v or t is not finite.

    Gradients: none.

    Source: Zhao et al. (2018), Lemma 1 and examples 2 to 4; Frobenius's theorem in any text on differential forms.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    _check.finite(q, "q")
    _check.finite(v, "v")
    _check.finite(t, "t")
    return _diagnose(mechanism, q, v, t)


@jit_fast_compile
def _diagnose(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Diagnosis:
    terms, (position_error, velocity_error) = _terms_and_errors(mechanism, q, v, t)
    M, (m, n) = terms.M, terms.A.shape
    _, W, definite = whiten(M, terms.partition)
    regular, general = UdwadiaKalaba().solve(terms), PennestriDeFalco().solve(terms)
    rank = jnp.where(definite, regular.rank, general.rank)
    B = terms.A @ W.T
    values, redundant = _singular_values(stop_gradient(row_scales(B, terms.rounding is not None)[:, None] * B), rank)
    smallest = jnp.min(jnp.where(jnp.arange(values.shape[0]) < rank, values, jnp.inf), initial=jnp.inf)
    masses = jnp.abs(_eigenvalues(stop_gradient(M + M.T) / 2)) if n else jnp.ones(1, q.dtype)
    curl = _curl(mechanism, np.array([size for _, size in terms.rows or ()], int), q, v, t)
    return Diagnosis(
        rows=m,
        coordinates=n,
        rank=rank,
        redundant=redundant,
        degrees_of_freedom=n - rank,
        consistent=_consistent(definite, regular, general),
        residual=jnp.where(definite, regular.residual, general.residual),
        position_error=jnp.linalg.norm(position_error),
        velocity_error=jnp.linalg.norm(velocity_error),
        mass_definite=definite,
        unique=definite | (general.result != RESULTS.acceleration_not_unique),
        mass_condition=jnp.where(definite, jnp.max(masses) / jnp.min(masses), jnp.inf),
        constraint_condition=jnp.where(rank > 0, jnp.max(values, initial=0.0) / smallest, 1.0),
        singular_values=values,
        holonomic=curl <= SMALL,
        curl=curl,
        labels=_labels(mechanism, terms),
    )


def _terms_and_errors(mechanism: Mechanism, q: Array, v: Array, t: Array) -> tuple[Terms, tuple[Array, Array]]:
    """Returns the terms and the errors of a mechanism, by scalar code where that is possible."""
    others: list[PyTree] = []

    def arrays(q: Array, v: Array, t: Array) -> PyTree[Array]:
        terms = mechanism.terms_of().whole(q, v, t).without_rounding
        found, other = eqx.partition((terms, mechanism.errors(q, v, t)), eqx.is_array)
        others.append(other)
        return found

    found = _expand.scalars(arrays, q, v, t)(q, v, t)
    return eqx.combine(found, others[0])


def _singular_values(H: Array, rank: Array) -> tuple[Array, Array]:
    """Returns the singular values of H (m, n), largest first, and which rows leave the rank unchanged, (m,).

    A singular value counts if it exceeds the mean of the values number `rank` and `rank` + 1. Adding a row makes no
    singular value smaller, and each at most as large as the one before it was. So each row adds one that counts or
    none, and m - rank rows add none.
    """
    m = H.shape[0]
    if 0 in H.shape:
        return jnp.zeros(min(H.shape), H.dtype), jnp.ones(m, bool)
    # `map`, not `vmap`: two batched LAPACK calls at a time can wait for each other forever.
    leading = jax.lax.map(lambda count: _spectrum(jnp.where(jnp.arange(m)[:, None] < count, H, 0)), jnp.arange(m + 1))
    values = jnp.concatenate([jnp.full(1, jnp.inf, H.dtype), leading[-1], jnp.zeros(1, H.dtype)])
    counts = jnp.sum(leading > (values[rank] + values[rank + 1]) / 2, axis=1)
    return leading[-1], counts[1:] == counts[:-1]


def _consistent(definite: Array, regular: Motion, general: Motion) -> Array:
    bad = RESULTS.constraints_contradict
    return jnp.where(definite, regular.result != bad, general.result != bad)


def _labels(mechanism: Mechanism, terms: Terms) -> tuple[str, ...]:
    """Returns a label for each row, such as "constraints[0] (Holonomic) row 2", or with the constraint's own name."""
    kinds = [type(c).__name__ for constraint in mechanism.constraints for c in members_of(constraint)]
    rows = zip(terms.rows or (), kinds, strict=True)
    return tuple(f"{name} ({kind}) row {row}" for (name, m), kind in rows for row in range(m))


def _curl(mechanism: Mechanism, sizes: np.ndarray, q: Array, v: Array, t: Array) -> Array:
    """Returns the curl of each row: zero for those of a differential dΦ, which need no test.

    `sizes`: the number of rows of each member of each constraint.
    """
    constraints = mechanism.constraints
    tested = [c for c in constraints if not _is_closed(c)]
    closed = np.repeat(np.array([_is_closed(c) for c in constraints for _ in members_of(c)], bool), sizes)
    curl = jnp.zeros(closed.shape, q.dtype)
    return curl.at[np.flatnonzero(~closed)].set(_largest_curl(mechanism, tested, q, v, t)) if tested else curl


def _is_closed(constraint: AbstractConstraint) -> bool:
    """Whether the rows of a constraint are differentials."""
    return all(isinstance(x, Holonomic) for x in members_of(constraint))


def _largest_curl(mechanism: Mechanism, tested: Sequence[AbstractConstraint], q: Array, v: Array, t: Array) -> Array:
    """Returns the largest curl of rows on the admissible directions at all places; infinite if not linear in v."""

    def forms(x: Array, constraints: Sequence[AbstractConstraint] = tested) -> Array:
        return jnp.concatenate([_form(mechanism, c, x[:-1], v, x[-1]) for c in constraints])

    def possible(x: Array) -> Array:
        return jnp.concatenate([forms(x, mechanism.constraints), _of_coordinates(mechanism, x[:-1], v, x[-1])])

    x = jnp.append(q, t)
    size = FAR * jnp.maximum(1, jnp.abs(x))
    chosen = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (PLACES, x.shape[0])), x.dtype)
    offsets = jnp.concatenate([jnp.zeros((1, x.shape[0]), x.dtype), chosen * size[None]])
    _, along = _admissible(possible(x))
    places = x[None] + offsets @ along
    # The part along t is unknown for rows without a velocity error.
    known = np.concatenate([np.full(*_has_velocities(mechanism, c, q, v, t)) for c in tested])
    curl = jnp.max(jax.vmap(lambda x: _curl_at(forms, possible, known, x))(places), axis=0)
    linear = jnp.concatenate([_is_linear(mechanism, c, q, v, t) for c in tested])
    return jnp.where(linear, curl, jnp.inf)


def _admissible(F: Array) -> tuple[Array, Array]:
    """Returns F with rows of about unit length, and the projector on the directions that F admits."""
    F = row_scales(F)[:, None] * F
    P, _ = pseudoinverse(SVD(), F)
    return F, jnp.eye(F.shape[1], dtype=F.dtype) - P @ F


def _curl_at(forms: FormsAt, possible: FormsAt, known: np.ndarray, x: Array) -> Array:
    _, E = _admissible(possible(x))
    scales = row_scales(forms(x))
    slope = scales[:, None, None] * jax.jacfwd(forms)(x)  # (m, n + 1, n + 1)
    curl = slope - jnp.swapaxes(slope, 1, 2)
    at_t = np.arange(x.shape[0]) == x.shape[0] - 1
    keep = known[:, None, None] | ~(at_t[:, None] | at_t[None, :])[None]
    on_admissible = jnp.einsum("ab,ibc,cd->iad", E, jnp.where(keep, curl, 0), E)
    return jnp.max(jnp.abs(on_admissible), axis=(1, 2)) / (1 + jnp.max(jnp.abs(slope), axis=(1, 2)))


def _form(mechanism: Mechanism, constraint: AbstractConstraint, q: Array, v: Array, t: Array) -> Array:
    """Returns the rows of a constraint as one-forms in (q, t), (m, n + 1).

    A constraint with a velocity error F (q', 1) gives the forms completely: its error at zero velocity is the part
    along t. For other rows only A is known.
    """
    if _has_velocities(mechanism, constraint, q, v, t)[1]:
        error, rest = lambda v: mechanism.velocity_error_of(constraint, q, v, t), jnp.zeros_like(v)
        along_v, along_t = jax.jacfwd(error)(rest), error(rest)
    else:
        along_v = mechanism.rows_of(constraint, q, v, t)[0]
        along_t = jnp.zeros(along_v.shape[0], q.dtype)
    if mechanism.kinematics is None:
        return jnp.concatenate([along_v, along_t[:, None]], axis=1)
    N, drift = _kinematics(mechanism, q, v, t)
    along_q = along_v @ pseudoinverse(SVD(), N)[0]  # v dt = N^+ (dq - n dt)
    return jnp.concatenate([along_q, (along_t - along_q @ drift)[:, None]], axis=1)


def _kinematics(mechanism: Mechanism, q: Array, v: Array, t: Array) -> tuple[Array, Array]:
    """Returns N and n of q' = N v + n."""
    rates, rest = lambda v: mechanism.rates(q, v, t), jnp.zeros_like(v)
    return jax.jacfwd(rates)(rest), rates(rest)


def _of_coordinates(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Array:
    """Returns the limits of the coordinates at any speeds, as one-forms in (q, t): (1 - N N^+) (dq - n dt) = 0."""
    if mechanism.kinematics is None:
        return jnp.zeros((0, q.shape[0] + 1), q.dtype)
    N, drift = _kinematics(mechanism, q, v, t)
    rest = jnp.eye(q.shape[0], dtype=q.dtype) - N @ pseudoinverse(SVD(), N)[0]
    return jnp.concatenate([rest, -(rest @ drift)[:, None]], axis=1)


def _has_velocities(
    mechanism: Mechanism, constraint: AbstractConstraint, q: Array, v: Array, t: Array
) -> tuple[int, bool]:
    """Returns the number of rows, and whether there is a velocity error for each."""
    m = jax.eval_shape(lambda *state: mechanism.rows_of(constraint, *state), q, v, t)[1].shape[0]
    return m, jax.eval_shape(lambda *state: mechanism.velocity_error_of(constraint, *state), q, v, t).shape[0] == m


def _is_linear(mechanism: Mechanism, constraint: AbstractConstraint, q: Array, v: Array, t: Array) -> Array:
    """Whether each row is linear in v, (m,): its matrix is equal at rest, at v, and at another velocity."""

    def matrix(v: Array) -> Array:
        return mechanism.rows_of(constraint, q, v, t)[0]

    other = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, v.shape), v.dtype) * jnp.maximum(1, jnp.abs(v))
    reference = matrix(other)
    size = jnp.max(jnp.abs(reference), axis=1)
    off = [jnp.max(jnp.abs(matrix(at) - reference), axis=1) for at in (jnp.zeros_like(v), v)]
    return jnp.maximum(*off) <= SMALL * size
