"""The machine code of a function of one state, for many."""

import ctypes

import jax
import numpy as np

from ..inside import InlinedProgram, Row, compiled_kernel, kernel, replaced


def machine_code(function, width, *arrays, batched=None, part=None, directions=None):
    """The scalar program of a function of one state, and its results as machine code for the states of arrays.

    `directions`: which arrays have one for each direction, at the axis after that of the states.
    """
    batched, along = batched or (True,) * len(arrays), directions or (False,) * len(arrays)
    kinds = list(zip(arrays, batched, along, strict=True))
    count = next((x.shape[int(b)] for x, b, turns in kinds if turns), 1)
    ones = [jax.ShapeDtypeStruct(x.shape[b + turns :], x.dtype) for x, b, turns in kinds]
    closed = jax.make_jaxpr(lambda *xs: jax.tree_util.tree_leaves(function(*xs)))(*ones)
    program = InlinedProgram(closed, 100_000)
    each = [count if turns else 1 for turns in along]
    takes = [Row(x.size, np.dtype(x.dtype), *how) for x, *how in zip(ones, batched, each, strict=True)]
    gives = [Row(int(np.prod(x.shape)), np.dtype(x.dtype), directions=count) for x in program.gives]
    size = next(x.shape[0] for x, b in zip(arrays, batched, strict=True) if b)
    shape = (size,) if directions is None else (size, count)
    results = [np.zeros((*shape, *x.shape), x.dtype) for x in program.gives]
    arrays = [np.ascontiguousarray(x) for x in arrays]
    places = (ctypes.c_void_p * (len(arrays) + len(results)))(*(x.ctypes.data for x in (*arrays, *results)))
    printed = kernel(program.program, takes, gives, width, **({} if part is None else {"part": part}))
    with replaced(short_program=0):
        bytecode = kernel(program.program, takes, gives, width, interprets=True)
    assert bytecode.interpreters
    assert not printed.interpreters
    found = []
    for made, quick in ((bytecode, True), (printed, True), (printed, False)):
        for x in results:
            x[...] = 0
        machine = compiled_kernel(made, quick=quick)
        machine.run(places, 0, size)
        found.append([x.copy() for x in results])
    for other in found[:-1]:
        for x, y in zip(other, results, strict=True):  # of NaN the sign is free
            assert np.where(x == x, x, 0).tobytes() == np.where(y == y, y, 0).tobytes()
    return program.program, results[:-1]
