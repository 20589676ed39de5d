"""The machine code of a function of one state, for many."""

import ctypes

import jax
import numpy as np

from ..inside import InlinedProgram, Row, compiled_kernel, kernel


def machine_code(function, width, *arrays, batched=None, part=None):
    """The scalar program of a function of one state, and its results as machine code for the states of arrays."""
    batched = batched or (True,) * len(arrays)
    ones = [jax.ShapeDtypeStruct(x.shape[1:] if b else x.shape, x.dtype) for x, b in zip(arrays, batched, strict=True)]
    closed = jax.make_jaxpr(lambda *xs: jax.tree_util.tree_leaves(function(*xs)))(*ones)
    program = InlinedProgram(closed, 100_000)
    takes = [Row(x.size, np.dtype(x.dtype), b) for x, b in zip(ones, batched, strict=True)]
    gives = [Row(int(np.prod(x.shape)), np.dtype(x.dtype)) for x in program.gives]
    count = next(x.shape[0] for x, b in zip(arrays, batched, strict=True) if b)
    results = [np.zeros((count, *x.shape), x.dtype) for x in program.gives]
    arrays = [np.ascontiguousarray(x) for x in arrays]
    places = (ctypes.c_void_p * (len(arrays) + len(results)))(*(x.ctypes.data for x in (*arrays, *results)))
    printed = kernel(program.program, takes, gives, width, **({} if part is None else {"part": part}))
    code, soon = (compiled_kernel(printed, quick=quick) for quick in (False, True))
    soon.run(places, 0, count)
    quick = [x.copy() for x in results]
    code.run(places, 0, count)
    for x, y in zip(quick, results, strict=True):  # of NaN the sign is free
        assert np.where(x == x, x, 0).tobytes() == np.where(y == y, y, 0).tobytes()
    return program.program, results[:-1]
