r"""Newton's sequential quadratic programming, with the exact curvature of cost and conditions.

min f(x) subject to c_E(x) = 0 and c_I(x) >= 0; g: slope of f; J: slope of c; l, m: multipliers, with which
f - l c_E - m c_I is stationary; H: its curvature. A step p = Y y + Z w: y meets the linearised c_E; w, in the null
space of their slopes, is the least of the quadratic model there, in which negative curvature counts as positive,
subject to the linearised c_I: a least-distance problem. The length of a step is found by the l1 merit function, with a
correction of second order.

Source: Nocedal & Wright (2006), Numerical Optimization, chapter 18; least distance: Lawson & Hanson (1974), chapter 23.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


RANK = 1e-10  # least singular value of J that counts, relative to the largest
FLAT = 1e-5  # least curvature of a model, relative to the largest
SHORT = 1e-7  # least part of a step that is tried
REACH = 10.0  # longest step in any entry of x
ROUNDING = 1e-12  # change of merit, relative to the merit, that counts as rounding


class Point(NamedTuple):
    """A point x, with f, c and their slopes; the first `met` entries of c must vanish, the others not be negative."""

    x: np.ndarray
    f: float
    g: np.ndarray
    c: np.ndarray
    J: np.ndarray
    met: int

    @property
    def missed(self) -> float:
        """Sum of all violations of the conditions."""
        return float(np.sum(np.abs(self.c[: self.met])) + np.sum(np.maximum(-self.c[self.met :], 0.0)))


class _Step(NamedTuple):
    """A step p, the value of p^T H p in the model, and multipliers of c."""

    p: np.ndarray
    bend: float
    multipliers: np.ndarray


def descend(
    at: Callable[[np.ndarray], Point], curvature: Callable[[np.ndarray, np.ndarray], np.ndarray], begin: np.ndarray,
    steps: int, ftol: float, tell: Callable[[np.ndarray], None],
) -> tuple[np.ndarray, bool, str]:  # fmt: skip
    """Returns the x where the descent ended, whether it is a minimum, and how the descent ended.

    Args:
        at: `at(x)`, a `Point`.
        curvature: `curvature(x, multipliers)` -> H.
        begin: x to start from.
        steps: Largest number of steps.
        ftol: Relative change of f, and of conditions, that counts as zero.
        tell: `tell(x)`, called after each step.
    """
    here = at(begin)
    multipliers, penalty = np.zeros(len(here.c)), 0.0
    for _ in range(steps):
        if not np.all(np.isfinite(here.J)):
            return here.x, False, "Newton's steps come to where there is no slope"
        multipliers = _estimate(here, multipliers)
        step = _step(here, curvature(here.x, multipliers))
        multipliers, change = step.multipliers, float(here.g @ step.p)
        if here.missed > ROUNDING:
            penalty = max(penalty, (change + max(step.bend, 0.0) / 2) / (0.7 * here.missed))
        fall = change - penalty * here.missed
        if here.missed <= np.sqrt(ftol) * 1e-2 and abs(change) + step.bend / 2 <= ftol * max(abs(here.f), ftol):
            return here.x, True, "Newton's steps came to a minimum"
        found = _along(at, here, step, penalty, fall)
        if found is None:
            return here.x, False, "Newton's steps find no way down"
        here = found
        tell(here.x)
    return here.x, False, "Step limit reached"


def _along(at: Callable, here: Point, step: _Step, penalty: float, fall: float) -> Point | None:
    """Returns the first point along a step, halved repeatedly, where the merit falls enough, or None."""
    merit = lambda point: point.f + penalty * point.missed
    noise = ROUNDING * max(abs(merit(here)), 1e-3)
    part = min(1.0, REACH / max(float(np.max(np.abs(step.p))), 1e-300))
    while part > SHORT:
        there = at(here.x + part * step.p)
        if merit(there) <= merit(here) + 1e-4 * part * fall + noise:
            return there
        if part == 1.0:
            wanting = np.concatenate([there.c[: here.met], np.minimum(there.c[here.met :], 0.0)])
            rows = np.concatenate([np.ones(here.met, bool), wanting[here.met :] < 0])
            back = np.linalg.lstsq(here.J[rows], -wanting[rows], rcond=RANK)[0]
            there = at(there.x + back)
            if merit(there) <= merit(here) + 1e-4 * fall + noise:
                return there
        part /= 2
    return None


def _estimate(here: Point, multipliers: np.ndarray) -> np.ndarray:
    """Returns multipliers of the equalities by least squares, and those of the inequalities from the last step."""
    E, others = here.J[: here.met], multipliers[here.met :]
    rest = here.g - here.J[here.met :].T @ others
    return np.concatenate([np.linalg.lstsq(E.T, rest, rcond=RANK)[0], others])


def _step(here: Point, H: np.ndarray) -> _Step:
    E, met = here.J[: here.met], here.met
    U, s, V = np.linalg.svd(E, full_matrices=True)
    rank = int(np.sum(s > RANK * np.max(s, initial=0.0)))
    U, s, Y, Z = U[:, :rank], s[:rank], V[:rank].T, V[rank:].T
    home = Y @ ((U.T @ -here.c[:met]) / s)
    values, vectors = np.linalg.eigh(Z.T @ H @ Z)
    values = np.maximum(np.abs(values), FLAT * np.max(np.abs(values), initial=0.0))
    scaled = Z @ (vectors / np.sqrt(np.where(values > 0, values, 1.0)))  # the model in w is |w|^2 / 2 plus a slope
    p, bound = _nearest(here, H, home, scaled)
    slope = here.g + H @ p - here.J[met:].T @ bound
    free = U @ ((Y.T @ slope) / s)
    return _Step(p, float(p @ H @ p), np.concatenate([free, bound]))


def _nearest(here: Point, H: np.ndarray, home: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns p, as far to c_E = 0 as the linearised c_I allow, then as far down; and the multipliers of c_I."""
    rows, c = here.J[here.met :], here.c[here.met :]
    from scipy.optimize import nnls

    lowest = lambda part: scaled.T @ (here.g + part * (H @ home))
    if not len(c):
        return home - scaled @ lowest(1.0), np.zeros(0)
    G = rows @ scaled
    for part in (1.0, 0.5, 0.1, 0.0):
        # The same part of a violation of c_I is corrected.
        low = lowest(part)
        least = -np.where(c < 0, part * c, c) - part * (rows @ home) + G @ low
        E, f = np.vstack([G.T, least]), np.zeros(G.shape[1] + 1)
        f[-1] = 1.0
        try:
            u = nnls(E, f, maxiter=10 * E.shape[1])[0]
        except RuntimeError:  # no convergence
            continue
        left = E @ u - f
        if -left[-1] > 1e-9:
            return part * home + scaled @ (-left[:-1] / left[-1] - low), u / -left[-1]
    return np.zeros_like(home), np.zeros(len(c))
