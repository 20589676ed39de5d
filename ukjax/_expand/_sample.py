"""Numbers at random points, which tell whether two are the same, if there is no function with branches in them."""

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as prims
import numpy as np

from ._entry import Entry, Node, Sample


POINTS = 4
UNSURE = 1e-9  # the part of a number that may be rounding errors
EPS = float(np.finfo(float).eps)

# Functions without branches, poles apart: what two of them are at random points tells whether they are the same. A
# square root has branches: sqrt(x^2) is x at half of all points.
ANALYTIC = {
    prims.add_p: np.add,
    prims.sub_p: np.subtract,
    prims.mul_p: np.multiply,
    prims.div_p: np.divide,
    prims.neg_p: np.negative,
    prims.sin_p: np.sin,
    prims.cos_p: np.cos,
    prims.exp_p: np.exp,
}


def sampled(primitive: Any, params: Any, args: Sequence[Entry], dtype: Any) -> Sample | None:
    """The sample of a number from those of what it is made of."""
    function = ANALYTIC.get(primitive)
    if function is None or not np.issubdtype(dtype, np.floating):
        return None
    samples: list[Any] = [
        x.sample if isinstance(x, Node) else Sample(np.full(POINTS, float(x)), np.zeros(POINTS)) for x in args
    ]
    if any(x is None for x in samples):
        return None
    values, errors = [x.value for x in samples], [x.error for x in samples]
    with np.errstate(all="ignore"):
        value = function(*values)
        size = abs(value)
        if primitive in (prims.add_p, prims.sub_p):
            terms = abs(values[0]) + abs(values[1])
            error = errors[0] + errors[1] + EPS * terms
            if np.all(size <= 8 * error) and np.all(error <= UNSURE * terms):
                return Sample(np.zeros(POINTS), np.zeros(POINTS))
            if np.any(np.minimum(abs(values[0]), abs(values[1])) * UNSURE <= error):
                return None  # one is lost beside the other
        elif primitive is prims.mul_p:
            error = errors[0] * abs(values[1]) + errors[1] * abs(values[0]) + EPS * size
        elif primitive is prims.div_p:
            error = (errors[0] + errors[1] * size) / abs(values[1]) + EPS * size
        elif primitive is prims.neg_p:
            error = errors[0]
        else:
            error = (errors[0] + EPS) * np.maximum(size, 1)
        # Where too many digits are lost nothing can be told.
        sure = np.all(np.isfinite(value)) and np.all(error <= UNSURE * size)
    return Sample(value, error) if sure else None


def digits_of(x: Any) -> int:
    """The first digits of a number."""
    mantissa, exponent = math.frexp(float(x))
    return hash((round(mantissa * 1e9), exponent))
