"""Constrained motion, and the control that adds rows to it, as functions of arrays that are to become scalar code.

M x - A^T l = f, A x = b: constrained motion x under f, with multipliers l; P(f, b): that x, linear in both.
H x = h: further rows, met by G u; C = H N G: how they answer, with N f = P(f, 0); V = W^-1: of the effort
(u - s)^T W (u - s), which is least.

Derivatives are those of the equations that are solved, with the same factors, and not of the steps of the solution.
"""

import functools as ft
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import BoolScalar, Matrix, Rows, RowValues, Scalar, Vector
from . import _scalar_kkt
from ._scalar_kkt import Certain
from ._symmetric import Pivots, pivots, solve


class SchurComplement(NamedTuple):
    """M and A, with M^-1 A^T and S = A M^-1 A^T; a row counts if its pivot is more than the part `least` of S_ii."""

    M: Matrix
    A: Rows
    levers: Float[Array, "n m"]
    S: Float[Array, "m m"]
    least: float

    @classmethod
    def of(cls, M: Matrix, A: Rows, least: float) -> "SchurComplement":
        levers = solve(M, A.T)
        return cls(M, A, levers, A @ levers, least)

    def respond(self, f: Float[Array, "n ..."], b: Float[Array, "m ..."]) -> tuple[Array, Array]:
        """The motion x and the multipliers l under f, with A x = b."""
        free = solve(self.M, f)
        if not len(self.A):
            return free, b
        multipliers = solve(self.S, b - self.A @ free, self.least)
        return free + self.levers @ multipliers, multipliers

    def refined(self, x: Array, multipliers: Array, b: Array) -> tuple[Array, Array]:
        """The motion x and the multipliers l with the digits that the squares of S lose."""
        if not len(self.A):
            return x, multipliers
        more = solve(self.S, b - self.A @ x, self.least)
        return x + self.levers @ more, multipliers + more


@ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
def constrained(least: float, M: Matrix, f: Vector, A: Rows, b: RowValues) -> tuple[Vector, RowValues]:
    """The motion x and the multipliers l; a row counts if its pivot is more than the part `least` of S_ii."""
    through = SchurComplement.of(M, A, least)
    return through.refined(*through.respond(f, b), b)


@constrained.defjvp
def _constrained_jvp(least, primals, tangents):
    (M, f, A, b), (dM, df, dA, db) = primals, tangents
    x, multipliers = constrained(least, M, f, A, b)
    change = SchurComplement.of(M, A, least).respond(df - dM @ x + dA.T @ multipliers, db - dA @ x)
    return (x, multipliers), change


class KKTTerms(NamedTuple):
    """The arrays of M x - A^T l = f, A x = b."""

    M: Matrix
    f: Vector
    A: Rows
    b: RowValues


class ServoTerms(NamedTuple):
    """Further rows, the actuation G that is to meet them, a root of the inverse V of the effort's weight, and s."""

    H: Float[Array, "k n"]
    h: Float[Array, " k"]
    G: Float[Array, "n p"]
    root: Float[Array, "p p"]
    s: Float[Array, " p"]

    @property
    def V(self) -> Float[Array, "p p"]:
        return self.root @ self.root.T


def nearest(least: float, terms: KKTTerms, wanted: ServoTerms) -> tuple[ServoTerms, Array]:
    """Replaces the rows H x = h by C^T H x = C^T h; returns C (k, p) too.

    The control by which the error H x - h is shortest meets the new rows. `least`: as in `constrained`.
    """
    (M, _, A, _), through = terms, SchurComplement.of(terms.M, terms.A, least)
    none = jnp.zeros((len(A), wanted.G.shape[1]), M.dtype)
    response, _ = through.refined(*through.respond(wanted.G, none), none)
    C = wanted.H @ response
    return wanted._replace(H=C.T @ wanted.H, h=C.T @ wanted.h), C


class Controlled(NamedTuple):
    """The control that is wanted, u, and the control that acts within limits (p,), with the motion under each.

    `free` (n,): the motion without constraints, under the control that acts; S = A M^-1 A^T; K = C V C^T; `without`: C
    if there were no constraints; g: multipliers of the further rows; `lacking`: the error of these rows under s.
    """

    u: Array
    acts: Array
    x: Vector
    multipliers: RowValues
    free: Vector
    wanted_x: Vector
    wanted_multipliers: RowValues
    S: Array
    C: Array
    K: Array
    without: Array
    g: Array
    lacking: Array


def controlled(
    least: tuple[float, float], terms: KKTTerms, wanted: ServoTerms, limits: tuple[Array, Array]
) -> Controlled:
    """The motion under the control of least effort: u = s + V C^T K^-1 (h - H x), x under s, and within the limits.

    `least`: for rows of A, and of K. Only u, acts, x, multipliers and free have derivatives.
    """
    found = _controlled(least, *jax.lax.stop_gradient((terms, wanted, limits)))
    smooth = _differentiable(least, terms, wanted, limits)
    return found._replace(**smooth._asdict())


class _Smooth(NamedTuple):
    u: Array
    acts: Array
    x: Array
    multipliers: Array
    free: Array


@ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiable(least, terms, wanted, limits):
    found = _controlled(least, terms, wanted, limits)
    return _Smooth(**{name: getattr(found, name) for name in _Smooth._fields})


def _controlled(
    least: tuple[float, float], terms: KKTTerms, wanted: ServoTerms, limits: tuple[Array, Array]
) -> Controlled:
    (M, f, A, b), (H, h, G, _, s), V, m = terms, wanted, wanted.V, len(terms.b)
    # One solve for all rows together: no more columns need be brought through M than there are rows.
    R = jnp.concatenate([A, H])
    levers = solve(M, R.T)
    squares, T = R @ levers, levers.T @ jnp.concatenate([(f + G @ s)[:, None], G], axis=1)
    S, P = squares[:m, :m], squares[m:, :m]
    # The multipliers, and H times the motion, under s and by each control.
    L = solve(S, jnp.zeros_like(T[:m]).at[:, 0].set(b) - T[:m], least[0])
    Y = T[m:] + P @ L
    C, lacking = Y[:, 1:], h - Y[:, 0]
    K = C @ V @ C.T

    g = solve(K, lacking, least[1])
    u = V @ (C.T @ g)
    multipliers = L[:, 0] + L[:, 1:] @ u
    x = solve(M, f + G @ (s + u) + A.T @ multipliers)
    # Once more, for the digits that the squares of S and K lose.
    more = solve(S, b - A @ x, least[0])
    again = solve(K, h - H @ x - P @ more, least[1])
    further = V @ (C.T @ again)
    u, g, multipliers = s + u + further, g + again, multipliers + more + L[:, 1:] @ further

    acts = jnp.clip(u, *limits)
    its = multipliers + L[:, 1:] @ (acts - u)
    return Controlled(
        u=u,
        acts=acts,
        x=solve(M, f + G @ acts + A.T @ its),
        multipliers=its,
        free=solve(M, f + G @ acts),
        wanted_x=solve(M, f + G @ u + A.T @ multipliers),
        wanted_multipliers=multipliers,
        S=S,
        C=C,
        K=K,
        without=T[m:, 1:],
        g=g,
        lacking=lacking,
    )


@_differentiable.defjvp
def _differentiable_jvp(least, primals, tangents):
    # M x - A^T l - G u = f, A x = b, H x = h, and of least effort: M z - A^T n = H^T g, A z = 0, u - V G^T z = s.
    (M, _, A, b), (H, _, G, root, _), limits = primals
    (dM, df, dA, db), (dH, dh, dG, droot, ds), dlimits = tangents
    V, dV = root @ root.T, droot @ root.T + root @ droot.T
    found = _controlled(least, *primals)
    through = SchurComplement.of(M, A, least[0])
    force, none = H.T @ found.g, jnp.zeros_like(b)
    z, further = through.refined(*through.respond(force, none), none)
    dz, _ = through.respond(dH.T @ found.g - dM @ z + dA.T @ further, -dA @ z)
    start = ds + V @ (G.T @ dz) + dV @ (G.T @ z) + V @ (dG.T @ z)

    def moved(x, multipliers, u, du):
        return through.respond(df - dM @ x + dA.T @ multipliers + dG @ u + G @ du, db - dA @ x)

    dx, _ = moved(found.wanted_x, found.wanted_multipliers, found.u, start)
    dg = solve(found.K, dh - dH @ found.wanted_x - H @ dx, least[1])
    du = start + V @ (found.C.T @ dg)
    acts, dacts = jax.jvp(jnp.clip, (found.u, *limits), (du, *dlimits))
    dx, dmultipliers = moved(found.x, found.multipliers, acts, dacts)
    dfree = solve(M, df - dM @ found.free + dG @ acts + G @ dacts)
    values = _Smooth(**{name: getattr(found, name) for name in _Smooth._fields})
    return values, _Smooth(du, dacts, dx, dmultipliers, dfree)


def is_definite(certain: Certain, M: Matrix) -> BoolScalar:
    """Whether M is surely symmetric and positive definite."""
    own, eps = jnp.diag(M), jnp.finfo(M.dtype)
    off = M - M.T
    # Scalar code knows the difference of entries that are written alike to be zero.
    symmetric = (off == 0) | (off**2 < eps.eps * own[:, None] * own[None] + eps.tiny)
    return jnp.all(symmetric) & jnp.all(pivots(M).pivots > certain.pivot * own)


def are_clear(
    certain: Certain, S: Matrix, found: Pivots, b: RowValues, demand: RowValues, missed: RowValues, push: Scalar
) -> BoolScalar:
    """Whether the rows with the products S are all met, and each surely independent or surely dependent."""
    m = len(S)
    if not m:
        return jnp.asarray(True)
    rows = _scalar_kkt.Rows(jnp.diag(S), found.pivots, found.kept, b, demand, missed)
    return rows.are_clear(certain, push) & (found.bound < 1 / (certain.rank * m**0.5))
