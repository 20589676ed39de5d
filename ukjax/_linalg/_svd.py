"""The pseudoinverse by singular value decomposition."""

from typing import Any

import jax.numpy as jnp
import lineax as lx


class SVD(lx.AbstractLinearSolver):
    r"""The Moore-Penrose inverse by singular value decomposition: $B^+ = V \Sigma^+ U^\top$.

    Also for dependent, zero and contradictory rows, where it gives the least-squares solution of least norm.

    Args:
        rtol: Rank test: singular values at or below `rtol` times the largest count as zero. A redundant row is
            redundant only on the constraint manifold, so the cut-off must lie above what drift is left, not at
            rounding. None (default) is 1e-6 in float64 and 1e-3 in lower precision.

    As a lineax solver it reports `stats["rank"]` and serves in `lineax.linear_solve`, whose derivative rule holds at
    repeated and zero singular values, wherever the rank is locally constant.

    Source: Zhao et al. (2018), eq. 30; derivative: Golub & Pereyra (1973).
    """

    rtol: float | None = None

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]) -> Any:
        return lx.SVD(rank_tolerance(self.rtol, operator.as_matrix().dtype)).init(operator, options)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (_, singular_values, _), _ = state
        return lx.SVD(rank_tolerance(self.rtol, singular_values.dtype)).compute(state, vector, options)

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        return lx.SVD().transpose(state, options)

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        return lx.SVD().conj(state, options)

    def assume_full_rank(self) -> bool:
        return False


def rank_tolerance(rtol: float | None, dtype: Any) -> float:
    """The relative cut-off of a rank test: `rtol`, or the default of the precision."""
    if rtol is not None:
        return rtol
    return 1e-6 if jnp.finfo(dtype).eps < 1e-12 else 1e-3
