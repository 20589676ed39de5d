r"""Closing the loops of a robot from far away: a consistent state near a given one, by a search in NumPy.

Three searches follow each other, for a displacement d from the given state, with errors e(d) and slopes J:

- Closing: the damped Gauss-Newton method, min |J step + e|^2 + damping |step|^2, from the given state, and where that
  fails from others around it, in the metric of M and of equal speeds in turn.
- The nearest state: Newton's method for min d^T M d among the closed states, on the null space Z of J. The Hessian is
  that of d^T M d / 2 + multipliers . e.
- The nearest speeds: min (w - v)^T M (w - v) with J w = 0, which is linear.

The result is the one that `assemble` describes; no program is compiled.

Source: Nocedal & Wright (2006), Numerical Optimization, 10.3 and 18.1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._chain import STILL, At, Chain, State, logarithm


# Loops are closed where the errors, of lengths over the size of the robot and of angles, are less than this.
CLOSED = 1e-9
# A search ends where nothing is missing but rounding errors.
ROUNDING = 1e-15
# Singular values of the rows below this part of the largest are those of rows that depend on others.
DEPENDENT = 1e-7
# A direction has no mass if its eigenvalue of M, scaled to a unit diagonal, is at most this times n.
MASSLESS = 1e-13
# Starts beside the given one, each farther from it, and the steps of a search.
STARTS, STEPS, LONGEST, PULL = 24, 150, 0.6, 0.05
# A search gives up where this many steps bring little, and where this many starts end at the same errors.
SLOW, SAME = 20, 8


class Free(NamedTuple):
    """Speeds that may move, and the least and the greatest displacement of each (n,)."""

    which: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Closed(NamedTuple):
    """The coordinates that a search ends at, their displacement, the errors of loops by name, and whether all close.

    `starts`: the number of starts beside the given state.
    """

    q: np.ndarray
    d: np.ndarray
    errors: dict[str, np.ndarray]
    is_closed: bool
    starts: int


class Search(NamedTuple):
    """Closing a chain from q: `size` is the length of the robot [m], K the metric, by which steps are measured."""

    chain: Chain
    q: np.ndarray
    M: np.ndarray
    size: float
    free: Free

    @staticmethod
    def of(chain: Chain, q: np.ndarray, free: Free) -> "Search":
        state = chain.state(q)
        far = [np.linalg.norm(frame.p) for loop in chain.loops for _, frame in loop.ends]
        far += [float(np.linalg.norm(link.before.p)) for link in chain.links]
        far += [float(np.linalg.norm(link.after.p)) for link in chain.links]
        return Search(chain, q, chain.mass(state), float(max(far, default=0.0)) or 1.0, free)

    def at(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """The scaled errors (m,), their slopes by d (m, n), zero for what may not move, and the errors by name."""
        q = self.chain.retract(self.q, d)
        errors, J = self.chain.rows(q, self.chain.state(q))
        scales = self.scales(errors)
        J = J @ self.chain.slope_of_retraction(d) * self.free.which
        e = np.concatenate(list(errors.values())) if errors else np.zeros(0)
        return scales * e, scales[:, None] * J, errors

    def scales(self, errors: dict[str, np.ndarray]) -> np.ndarray:
        """Factors that make lengths parts of the robot's size; errors of loops begin with their lengths."""
        lengths = {loop.name: _lengths(loop.error) for loop in self.chain.loops}
        parts = [np.where(np.arange(len(e)) < lengths.get(name, 0), 1 / self.size, 1.0) for name, e in errors.items()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def closed(self, d: np.ndarray, W: np.ndarray, pull: float = 0.0) -> tuple[np.ndarray, float]:
        """The displacement to which damped steps lead from d, and the size of the errors left there.

        W: steps are W times numbers of about one; `pull`: weight of the whole way in these numbers beside the errors.
        """
        back = pull * np.linalg.inv(W) if pull else np.zeros((0, len(d)))

        def at(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            e, J, _ = self.at(d)
            return np.concatenate([e, back @ d]), np.concatenate([J, back])

        e, J = at(d)
        damping, left = 1e-2, np.linalg.norm(e)
        history = [np.inf] * SLOW
        for _ in range(STEPS):
            history.append(float(left))
            if left > 0.98 * history[-SLOW]:
                break
            held = self._held(d, -J.T @ e)
            U, s, Vt = np.linalg.svd(np.where(held, 0.0, J) @ W, full_matrices=False)
            weight = np.max(s, initial=1e-300) ** 2 * min(left, 1.0)
            there, e1, J1 = d, e, J
            while left > ROUNDING and damping < 1e8:
                step = np.where(held, 0.0, -W @ (Vt.T @ (s / (s**2 + damping * weight) * (U.T @ e))))
                step *= min(1.0, LONGEST / max(np.max(np.abs(step)), 1e-300))
                there = np.clip(d + step, self.free.lower, self.free.upper)
                e1, J1 = at(there)
                if np.linalg.norm(e1) < left * (1 - 1e-6):
                    break
                damping *= 8
            if left <= ROUNDING or damping >= 1e8:
                break
            d, e, J, left, damping = there, e1, J1, np.linalg.norm(e1), max(damping / 20, 1e-12)
        return d, float(left)

    def _held(self, d: np.ndarray, way: np.ndarray) -> np.ndarray:
        """Whether each speed may not move: by choice, or at its bound, where it is pushed outwards."""
        outwards = ((d <= self.free.lower) & (way < 0)) | ((d >= self.free.upper) & (way > 0))
        return ~self.free.which | outwards

    def cost(self, d: np.ndarray) -> float:
        """Half the squared length of a displacement, in the metric of M."""
        return float(d @ self.M @ d / 2)

    def nearest(self, d: np.ndarray) -> np.ndarray:
        """The closed displacement of least d^T M d near a closed one d."""
        for _ in range(60):
            _, J, errors = self.at(d)
            held = ~self.free.which | (d <= self.free.lower) | (d >= self.free.upper)
            J = np.where(held, 0.0, J)
            Z = _null_space(J, held)
            pull = self.M @ d
            slope = Z.T @ pull
            if not Z.shape[1] or np.max(np.abs(slope)) <= 1e-13 * (np.max(np.abs(pull)) + 1e-300):
                break
            multipliers = -np.linalg.lstsq(J.T, np.where(held, 0.0, pull), rcond=DEPENDENT)[0]
            curvature = self.chain.curvature(self.q, d, self.scales(errors) * multipliers)
            H = Z.T @ (self.M + curvature) @ Z
            values, vectors = np.linalg.eigh((H + H.T) / 2)
            values = np.maximum(np.abs(values), 1e-9 * max(np.max(np.abs(values)), 1e-300))
            step = -Z @ (vectors @ ((vectors.T @ slope) / values))
            step *= min(1.0, LONGEST / max(np.max(np.abs(step)), 1e-300))
            before = self.cost(d)
            for shorter in 0.5 ** np.arange(20):
                there = self.back(np.clip(d + shorter * step, self.free.lower, self.free.upper))
                if there is not None and self.cost(there) < before * (1 - 1e-15):
                    break
            else:
                break
            moved, d = np.max(np.abs(there - d)), there
            if moved <= 1e-15 * (1 + np.max(np.abs(d))):
                break
        return d

    def back(self, d: np.ndarray) -> np.ndarray | None:
        """The closed displacement next to d, by Newton's method; None where it does not converge."""
        for _ in range(8):
            e, J, _ = self.at(d)
            missed = np.linalg.norm(e)
            if missed <= ROUNDING:
                break
            d = np.clip(d - np.linalg.lstsq(J, e, rcond=DEPENDENT)[0], self.free.lower, self.free.upper)
        return d if np.linalg.norm(self.at(d)[0]) <= CLOSED / 10 else None

    def metrics(self) -> list[np.ndarray]:
        """Factors W of steps: of M, with rows added where it is singular, and of equal speeds."""
        J = self.at(np.zeros(len(self.M)))[1]
        size = np.sqrt(np.maximum(np.diag(self.M), 1e-6 * max(np.max(np.diag(self.M), initial=0.0), 1e-300)))
        K = self.M / np.outer(size, size) + 1e-3 * J.T @ J / max(np.max(np.abs(J), initial=0.0) ** 2, 1e-300)
        values, vectors = np.linalg.eigh(K)
        W = vectors / np.sqrt(np.maximum(values, 1e-4 * values[-1]))
        return [W / size[:, None] * np.max(size), np.eye(len(self.M))]


def _lengths(error: Callable[[At], tuple[np.ndarray, np.ndarray]]) -> int:
    """The number of leading errors that are lengths: those whose slopes are by translations only."""
    _, D = error(At(np.eye(3), np.ones(3)))
    return int(np.sum(~np.any(D[:, 3:], axis=1)))


def _null_space(J: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Directions (n, k) of what may move along which the errors do not change."""
    free = np.flatnonzero(~held)
    if not len(free):
        return np.zeros((len(held), 0))
    lengths = np.linalg.norm(J, axis=1)
    B = J[lengths > 0][:, free] / lengths[lengths > 0, None]
    _, s, Vt = np.linalg.svd(B)
    rank = int(np.sum(s > DEPENDENT * max(np.max(s, initial=0.0), 1e-300)))
    Z = np.zeros((len(held), len(free) - rank))
    Z[free] = Vt[rank:].T
    return Z


def close(search: Search) -> Closed:
    """The closed state nearest to the start of a search; where none is found, the state of least errors."""
    n, rng = len(search.M), np.random.default_rng(0)
    by_mass, equal = search.metrics()
    start = np.clip(np.zeros(n), search.free.lower, search.free.upper)
    # A weak pull back leads near the nearest of several closed states.
    pulled, _ = search.closed(start, by_mass, PULL)
    found = [search.closed(pulled, by_mass), search.closed(start, by_mass), search.closed(start, equal)]
    for k in range(STARTS):
        left = np.array([left for _, left in found])
        # The same least errors from many starts are those of loops that do not close anywhere.
        if np.min(left) <= CLOSED or np.sum(left < np.min(left) * (1 + 1e-4)) >= SAME:
            break
        spread = 3.0 * (k + 1) / STARTS * search.free.which
        other = np.clip(start + spread * rng.normal(size=n), search.free.lower, search.free.upper)
        found.append(search.closed(other, equal if k % 2 else by_mass))
    closed = [search.nearest(d) for d, left in found if left <= CLOSED]
    best = min(closed, key=search.cost) if closed else min(found, key=lambda one: one[1])[0]
    polished = search.back(best) if closed else None
    best = best if polished is None else polished
    return Closed(search.chain.retract(search.q, best), best, search.at(best)[2], bool(closed), len(found) - 3)


def is_massive(chain: Chain, q: np.ndarray, M: np.ndarray, kept: np.ndarray) -> bool:
    """Whether every direction that the loops leave free has a mass."""
    return not loose(chain, q, M, kept).size


def loose(chain: Chain, q: np.ndarray, M: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """A direction (n,) that the loops leave free and that moves no mass; empty where there is none."""
    Z = _null_space(chain.rows(q, chain.state(q))[1], kept)
    if not Z.shape[1]:
        return np.zeros(0)
    # Units of the speeds in which the diagonal of M is one separate small masses from none.
    size = np.sqrt(np.where(np.diag(M) > 0, np.diag(M), 1.0))
    Z = np.linalg.qr(size[:, None] * Z)[0]
    values, vectors = np.linalg.eigh(Z.T @ (M / np.outer(size, size)) @ Z)
    return np.zeros(0) if values[0] > MASSLESS * len(M) else (Z @ vectors[:, 0]) / size


def nearest_speeds(chain: Chain, q: np.ndarray, v: np.ndarray, M: np.ndarray, kept: np.ndarray) -> np.ndarray | None:
    """The speeds w with J w = 0 of least (w - v)^T M (w - v), `kept` (n,) being held; None where there are none."""
    _, J = chain.rows(q, chain.state(q))
    lengths = np.linalg.norm(J, axis=1)
    J = J[lengths > 0] / lengths[lengths > 0, None]
    free = np.flatnonzero(~kept)
    Z = _null_space(J, kept)
    particular = np.zeros(len(v))
    if len(free) and len(J):
        particular[free] = np.linalg.lstsq(J[:, free], -J @ v, rcond=DEPENDENT)[0]
    if len(J) and np.max(np.abs(J @ (v + particular)), initial=0.0) > CLOSED * (1 + np.max(np.abs(v), initial=0.0)):
        return None
    H = Z.T @ M @ Z
    size = np.sqrt(np.maximum(np.diag(H), 1e-300))
    along = np.linalg.solve(H / np.outer(size, size), -(Z.T @ M @ particular) / size) / size
    return v + particular + Z @ along


def missed(chain: Chain, q: np.ndarray, errors: dict[str, np.ndarray], size: float) -> str:
    """Text on the loops that cannot be closed: by how much, and along what."""
    state, found = chain.state(q), []
    for loop in chain.loops:
        if np.max(np.abs(errors[loop.name]), initial=0.0) > CLOSED * max(size, 1.0):
            found.append(f"{loop.name!r} {_apart(chain, loop.name, state, errors[loop.name], _lengths(loop.error))}")
    found += [
        f"the gear {name!r} by {abs(float(errors[name][0])):.3g}"
        for name in chain.gears
        if abs(float(errors[name][0])) > CLOSED
    ]
    return "; ".join(found)


def _apart(chain: Chain, name: str, state: State, error: np.ndarray, lengths: int) -> str:
    loop = next(loop for loop in chain.loops if loop.name == name)
    P, _ = chain.between(loop, state)
    parent = (STILL if loop.ends[0][0] < 0 else state.poses[loop.ends[0][0]]) @ loop.ends[0][1]
    said = []
    gap = float(np.linalg.norm(error[:lengths]))
    if lengths and gap:
        way = parent.R @ P.p
        said.append(f"is open by {1e3 * gap:.4g} mm, along ({_numbers(way)}) seen from the ground")
    turn = float(np.linalg.norm(error[lengths:]))
    if len(error) > lengths and turn > CLOSED:
        said.append(f"turned by {np.degrees(turn):.4g} deg, about ({_numbers(parent.R @ logarithm(P.R))})")
    return " and ".join(said)


def _numbers(way: np.ndarray) -> str:
    return ", ".join(f"{x:.3g}" for x in np.round(way / max(np.linalg.norm(way), 1e-300), 4) + 0.0)
