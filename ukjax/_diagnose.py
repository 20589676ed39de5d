"""What a mechanism is like at a state: rank, redundant rows, freedom, consistency, conditioning, holonomy.

B = A L^-T with rows of about unit length; x = (q, t); F: the constraints as one-forms F dx = 0, (m, n + 1).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Bool, Float

from . import _check
from ._constraint import AbstractConstraint, Holonomic, Nonholonomic
from ._formulation import PennestriDeFalco, UdwadiaKalaba, row_scales
from ._linalg import SVD, independent_rows, one_at_a_time, pseudoinverse, rank_tolerance, whiten
from ._mechanism import Mechanism
from ._result import RESULTS
from ._types import BoolScalar, IntScalar, Scalar


# Where the forms are looked at: the state itself, and places some way off along the admissible directions, because a
# curl can vanish at a point by accident.
PLACES = 4
FAR = 0.1
SMALL = 1e-7

# On a CPU LAPACK gets no batch: see `SVD`.
_singular_values = one_at_a_time(lambda B: jnp.linalg.svd(B, compute_uv=False))
_eigenvalues = one_at_a_time(jnp.linalg.eigvalsh)


class Diagnosis(eqx.Module):
    """What a mechanism is like at a state; `print` it.

    Attributes:
        rows: Number of constraint rows m.
        coordinates: Number of coordinates n.
        rank: Rank of A.
        redundant: Which rows depend on those before them, (m,).
        degrees_of_freedom: n - rank: how many accelerations are free.
        consistent: Whether some acceleration satisfies all rows of A q'' = b.
        residual: Euclidean norm of A q'' - b.
        position_error: Euclidean norm of Φ.
        velocity_error: Euclidean norm of Φ̇ and ψ.
        mass_definite: Whether M is symmetric positive definite.
        unique: Whether the acceleration is unique: [M; A] has full rank.
        mass_condition: Condition number of M; infinite if it is singular.
        constraint_condition: Largest over smallest singular value of B that counts for the rank.
        singular_values: Those of B, (min(m, n),), largest first.
        holonomic: Which rows, taken together with all others, can be integrated to Φ(q, t) = constant, (m,).
        curl: By how much each row fails to, relative to its own derivative, (m,).
        labels: Which constraint each row belongs to.
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
        """What there is to say, as pairs of a name and a text; of one state, outside of `jit`."""
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

    def __str__(self) -> str:
        entries = self.entries()
        width = max(len(name) for name, _ in entries)
        return "\n".join(f"{name:{width}}  {text}" for name, text in entries)


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def diagnose(mechanism: Mechanism, q: Any, v: Any, t: ArrayLike = 0.0) -> Diagnosis:
    r"""What a mechanism is like at a state.

    The rank test is that of `SVD()`; singular values and condition numbers are those of $B = A L^{-\top}$, its rows
    brought to about unit length, so that units do not matter (of A where M is not positive definite).

    Holonomic or not is Frobenius's test. Written as one-forms in x = (q, t), rows $\omega_i = F_i\,dx$ can be
    integrated together if and only if every $d\omega_i$ vanishes on the directions that all of them admit. For one row
    in three coordinates that is $\omega \wedge d\omega = 0$. It is done at the state and, because the curl of a form
    can vanish at a point by accident, at four places nearby. A row that is not linear in v counts as nonholonomic. Of
    an `AccelerationConstraint` A is known only; its rows are tested as $A\,dq$ at constant t.

    Args:
        mechanism: System and constraints.
        q: Coordinates, shape (n,) [m or rad].
        v: Their rates, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].

    Returns:
        `Diagnosis`. It works under `jax.jit` and `jax.vmap`, but is not made for speed.

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If a shape does not fit, or q, v or t is not finite.

    Gradients: none.

    Source: Zhao et al. (2018), Lemma 1 and examples 2 to 4; Frobenius's theorem in any text on differential forms.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t)
    _check.finite(q, "q")
    _check.finite(v, "v")
    _check.finite(t, "t")
    return _diagnose(mechanism, q, v, t)


@eqx.filter_jit
def _diagnose(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Diagnosis:
    terms = mechanism.terms(q, v, t)
    M, A = terms.M, terms.A
    m, n = A.shape
    _, W, definite = whiten(M, terms.partition)
    regular, general = UdwadiaKalaba().solve(terms), PennestriDeFalco().solve(terms)
    B = A @ W.T
    B = row_scales(B)[:, None] * B
    rtol = rank_tolerance(None, A.dtype)
    values = _singular_values(stop_gradient(B)) if m else jnp.zeros(0, A.dtype)
    rank = jnp.sum(values > rtol * jnp.max(values, initial=0.0))
    smallest = jnp.min(jnp.where(values > rtol * jnp.max(values, initial=0.0), values, jnp.inf), initial=jnp.inf)
    masses = jnp.abs(_eigenvalues(stop_gradient(M + M.T) / 2))
    curl = _curl(mechanism, q, v, t)
    return Diagnosis(
        rows=m,
        coordinates=n,
        rank=rank,
        redundant=~independent_rows(B, rtol),
        degrees_of_freedom=n - rank,
        consistent=_consistent(definite, regular, general),
        residual=jnp.where(definite, regular.residual, general.residual),
        position_error=jnp.linalg.norm(mechanism.position_error(q, t)),
        velocity_error=jnp.linalg.norm(mechanism.velocity_error(q, v, t)),
        mass_definite=definite,
        unique=definite | (general.result != RESULTS.acceleration_not_unique),
        mass_condition=jnp.where(definite, jnp.max(masses) / jnp.min(masses), jnp.inf),
        constraint_condition=jnp.where(rank > 0, jnp.max(values, initial=0.0) / smallest, 1.0),
        singular_values=values,
        holonomic=curl <= SMALL,
        curl=curl,
        labels=_labels(mechanism, q, v, t),
    )


def _consistent(definite: Array, regular: Any, general: Any) -> Array:
    bad = RESULTS.constraints_contradict
    return jnp.where(definite, regular.result != bad, general.result != bad)


def _labels(mechanism: Mechanism, q: Array, v: Array, t: Array) -> tuple[str, ...]:
    """Such as "constraints[0] (Holonomic) row 2"."""
    labels = []
    for i, constraint in enumerate(mechanism.constraints):
        rows = jax.eval_shape(constraint.rows, q, v, t)[1].shape[0]
        labels += [f"constraints[{i}] ({type(constraint).__name__}) row {row}" for row in range(rows)]
    return tuple(labels)


def _curl(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Array:
    """The largest curl of each row on the admissible directions, over all places; infinite if not linear in v."""
    x = jnp.append(q, t)
    forms = lambda x: jnp.concatenate([_form(c, x[:-1], v, x[-1]) for c in mechanism.constraints])
    if not mechanism.constraints:
        return jnp.zeros(0, q.dtype)
    size = FAR * jnp.maximum(1, jnp.abs(x))
    chosen = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (PLACES, x.shape[0])), x.dtype)
    offsets = jnp.concatenate([jnp.zeros((1, x.shape[0]), x.dtype), chosen * size[None]])
    _, along = _admissible(forms(x))
    places = x[None] + offsets @ along
    curl = jnp.max(jax.vmap(lambda x: _curl_at(mechanism, forms, x))(places), axis=0)
    linear = jnp.concatenate([_is_linear(c, q, v, t) for c in mechanism.constraints])
    return jnp.where(linear, curl, jnp.inf)


def _admissible(F: Array) -> tuple[Array, Array]:
    """F with rows of about unit length, and the projector on what it admits."""
    F = row_scales(F)[:, None] * F
    P, _ = pseudoinverse(SVD(), F)
    return F, jnp.eye(F.shape[1], dtype=F.dtype) - P @ F


def _curl_at(mechanism: Mechanism, forms: Any, x: Array) -> Array:
    _, E = _admissible(forms(x))
    scales = row_scales(forms(x))
    slope = scales[:, None, None] * jax.jacfwd(forms)(x)  # (m, n + 1, n + 1)
    curl = slope - jnp.swapaxes(slope, 1, 2)
    # Of an AccelerationConstraint the part along t is unknown.
    rows = lambda constraint: jax.eval_shape(lambda: _form(constraint, x[:-1], x[:-1], x[-1])).shape[0]
    known = np.concatenate([np.full(rows(c), _knows_time(c)) for c in mechanism.constraints])
    at_t = np.arange(x.shape[0]) == x.shape[0] - 1
    keep = known[:, None, None] | ~(at_t[:, None] | at_t[None, :])[None]
    on_admissible = jnp.einsum("ab,ibc,cd->iad", E, jnp.where(keep, curl, 0), E)
    return jnp.max(jnp.abs(on_admissible), axis=(1, 2)) / (1 + jnp.max(jnp.abs(slope), axis=(1, 2)))


def _form(constraint: AbstractConstraint, q: Array, v: Array, t: Array) -> Array:
    """The rows as one-forms in (q, t), (m, n + 1)."""
    if isinstance(constraint, Holonomic):
        along_q, along_t = jax.jacfwd(constraint.position_error, argnums=(0, 1))(q, t)
    elif isinstance(constraint, Nonholonomic):
        rest = jnp.zeros_like(v)
        along_q = jax.jacfwd(constraint.velocity_error, argnums=1)(q, rest, t)
        along_t = constraint.velocity_error(q, rest, t)
    else:
        along_q = constraint.rows(q, v, t)[0]
        along_t = jnp.zeros(along_q.shape[0], q.dtype)
    return jnp.concatenate([along_q, along_t[:, None]], axis=1)


def _knows_time(constraint: AbstractConstraint) -> bool:
    return isinstance(constraint, (Holonomic, Nonholonomic))


def _is_linear(constraint: AbstractConstraint, q: Array, v: Array, t: Array) -> Array:
    """Whether each row is linear in v, (m,): its matrix is the same at rest, at v, and at another velocity."""
    matrix = lambda v: constraint.rows(q, v, t)[0]
    other = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, v.shape), v.dtype) * jnp.maximum(1, jnp.abs(v))
    reference = matrix(other)
    size = jnp.max(jnp.abs(reference), axis=1)
    off = [jnp.max(jnp.abs(matrix(at) - reference), axis=1) for at in (jnp.zeros_like(v), v)]
    return jnp.maximum(*off) <= SMALL * size
