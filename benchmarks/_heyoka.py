"""A linkage in heyoka, whose Taylor method is compiled by LLVM for the equations that it is given.

The equations are those of `Bars`, with Lagrange multipliers: the system of M and A is eliminated row by row, as one
would write it by hand. Rank, residual and contradictions are not looked at.
"""

import itertools as it
from typing import Any

import numpy as np

from ._linkages import Bars, Linkage, library


class InHeyoka:
    """The angles phi and their rates by Taylor's method, to a tolerance a step."""

    def __init__(self, linkage: Linkage, tolerance: float):
        hy = library("heyoka")
        n = len(linkage.bars)
        phi, rate = hy.make_vars(*(f"phi{i}" for i in range(n))), hy.make_vars(*(f"rate{i}" for i in range(n)))
        slopes = [*zip(phi, rate, strict=True), *zip(rate, _accelerations(hy, Bars(linkage), phi, rate), strict=True)]
        self.integrator = hy.taylor_adaptive(slopes, np.zeros(2 * n), tol=tolerance)

    def run(self, phi: np.ndarray, rate: np.ndarray, end: float) -> np.ndarray:
        """The angles at the end."""
        self.integrator.time = 0.0
        self.integrator.state[:] = np.concatenate([phi, rate])
        outcome, *_ = self.integrator.propagate_until(end)
        if "time_limit" not in str(outcome):
            raise RuntimeError(f"heyoka ended with {outcome}.")
        return self.integrator.state[: len(phi)].copy()


def _accelerations(hy: Any, bars: Bars, phi: list[Any], rate: list[Any]) -> list[Any]:
    n = len(phi)
    a, b, reach = (np.asarray(x) for x in (bars.a, bars.b, bars.reach))
    c, s = [hy.cos(x) for x in phi], [hy.sin(x) for x in phi]
    squares = [x * x for x in rate]
    M = [[a[i, j] * (c[i] * c[j] + s[i] * s[j]) for j in range(n)] for i in range(n)]
    sums = lambda weights, of: hy.sum([w * x * y for w, x, y in zip(weights, of, squares, strict=True)])
    right = [c[i] * sums(a[i], s) - s[i] * sums(a[i], c) - b[i] * c[i] for i in range(n)]
    A = list(it.chain(*([[-r * x for r, x in zip(w, s)], [r * x for r, x in zip(w, c)]] for w in reach)))
    right += list(it.chain(*([sums(w, c), sums(w, s)] for w in reach)))
    zero = [[hy.expression(0.0)] * len(A)] * len(A)
    K = [row + [line[i] for line in A] for i, row in enumerate(M)] + [x + y for x, y in zip(A, zero, strict=True)]
    return _solved(K, right)[:n]


def _solved(K: list[list[Any]], right: list[Any]) -> list[Any]:
    """Solves a symmetric system by elimination without exchanges: K = L D L^T."""
    size = len(K)
    K, x = [list(row) for row in K], list(right)
    for k in range(size):
        for i in range(k + 1, size):
            factor = K[i][k] / K[k][k]
            for j in range(i, size):
                K[i][j] = K[j][i] = K[i][j] - factor * K[j][k]
            x[i] = x[i] - factor * x[k]
    for k in reversed(range(size)):
        for j in range(k + 1, size):
            x[k] = x[k] - K[k][j] * x[j]
        x[k] = x[k] / K[k][k]
    return x
