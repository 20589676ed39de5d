"""A function of a mechanism as a scalar program between arrays, with chosen parameters among its arguments."""

import ctypes
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath, keystr
from jaxtyping import Array

from .._expand import InlinedProgram, NotScalar, Program, TooLong, limits
from .._lowering import Kernel, Row, compiled, kernel
from .._mechanism import Mechanism
from .._servo import AbstractController
from ._quantities import Argument, Quantity


BOOL = np.dtype(bool)


class Parameter(NamedTuple):
    """A parameter: its name, its place among the leaves of mechanism and controller, and its numbers."""

    name: str
    leaf: int
    values: np.ndarray

    @property
    def entries(self) -> list[str]:
        """A name for each of the numbers."""
        if not self.values.ndim:
            return [self.name]
        return [f"{self.name}_{'_'.join(map(str, i))}" for i in np.ndindex(self.values.shape)]

    @property
    def capitals(self) -> set[str]:
        """The names of the numbers as C has them."""
        return {x.upper() for x in self.entries}


def values_of(parameters: Sequence[Parameter]) -> np.ndarray:
    """The numbers of some parameters, one after the other."""
    return np.concatenate([np.zeros(0), *(np.ravel(x.values) for x in parameters)])


def parameters_of(mechanism: Mechanism, controller: AbstractController) -> list[Parameter]:
    """The real arrays of a mechanism and its controller, with names that C takes, all different."""
    found, taken = [], set[str]()
    leaves = jax.tree_util.tree_leaves_with_path((mechanism, controller))
    for i, (path, leaf) in enumerate(leaves):
        if not (isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size):
            continue
        name, values = _name(path, mechanism), np.asarray(leaf)
        # Of several with one name the later ones have a number; in C they are in capitals.
        names = (name if k == 1 else f"{name}_{k}" for k in itertools.count(1))
        one = next(x for x in (Parameter(name, i, values) for name in names) if taken.isdisjoint(x.capitals))
        taken |= one.capitals
        found.append(one)
    return found


def _name(path: KeyPath, mechanism: Mechanism) -> str:
    text = keystr(path[1:])
    further = re.match(r"\._further\[(\d+)\](.*)", text)
    if further and path[0] == jax.tree_util.SequenceKey(0):
        text = mechanism._names[int(further[1])] + further[2]
    if path[0] == jax.tree_util.SequenceKey(1):
        text = f"servo{text.replace('.each', '')}"
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "parameter"


class Exported(NamedTuple):
    """A function as a scalar program.

    Attributes:
        name: Its name, such as "acceleration".
        quantity: Its description, with the parameters as the last argument if there are any.
        program: Inputs are the entries of `takes`; outputs are those of `gives`, and whether they are certain.
        kernel: The program in LLVM's language, for a state.
        dtype: Of all arguments and results.
    """

    name: str
    quantity: Quantity
    program: Program
    kernel: Kernel
    dtype: np.dtype

    def __call__(self, *arrays: np.ndarray) -> tuple[list[np.ndarray], bool]:
        """Evaluates it as machine code: the results, and whether they are certain."""
        given = [np.ascontiguousarray(x, self.dtype) for x in arrays]
        results = [np.zeros(x.total, self.dtype) for x in self.quantity.gives]
        certain = np.zeros(1, bool)
        places = (*given, *results, certain)
        machine = compiled(self.kernel)  # freed with this name
        machine.run((ctypes.c_void_p * len(places))(*(x.ctypes.data for x in places)), 0, 1)
        return results, bool(certain[0])


def exported(
    name: str,
    quantity: Quantity,
    mechanism: Mechanism,
    controller: AbstractController,
    chosen: Sequence[Parameter],
    dtype: np.dtype,
) -> Exported:
    """Makes the program of a function. Raises ValueError if it cannot be scalar code."""
    system, sizes = Parametrised.of(mechanism, controller, chosen), [x.total for x in quantity.takes[:2]]
    if chosen:
        quantity = quantity._replace(takes=(*quantity.takes, system.argument))

    def function(*arrays: Array) -> tuple[list[Array], Array]:
        p, arrays = (arrays[-1], arrays[:-1]) if chosen else (None, arrays)
        return quantity.function(*system.at(p), *arrays)

    return scalar(name, quantity, function, mechanism, sizes, dtype)


class Parametrised(NamedTuple):
    """A mechanism and its controller as functions of the chosen parameters.

    Attributes:
        leaves, structure: The pytree of mechanism and controller.
        chosen: The parameters that are arguments.
    """

    leaves: list
    structure: Any
    chosen: Sequence[Parameter]

    @classmethod
    def of(cls, mechanism: Mechanism, controller: AbstractController, chosen: Sequence[Parameter]) -> "Parametrised":
        return cls(*jax.tree_util.tree_flatten((mechanism, controller)), chosen)

    @property
    def argument(self) -> Argument:
        """The argument p, which holds all parameters."""
        entries = tuple(entry for x in self.chosen for entry in x.entries)
        return Argument("p", "parameters", entries, len(entries), "{PARAMETERS}")

    def at(self, p: Array | None) -> tuple[Mechanism, AbstractController]:
        """Returns mechanism and controller with the parameters p; as they are for None."""
        here = list(self.leaves)
        if p is not None and self.chosen:
            ends = np.cumsum([x.values.size for x in self.chosen])
            for x, part in zip(self.chosen, jnp.split(p, ends[:-1]), strict=True):
                here[x.leaf] = part.reshape(x.values.shape).astype(x.values.dtype)
        return jax.tree_util.tree_unflatten(self.structure, here)


def scalar(
    name: str,
    quantity: Quantity,
    function: Callable[..., tuple[list[Array], Array]],
    mechanism: Mechanism,
    sizes: Sequence[int],
    dtype: np.dtype,
    asked: str | None = None,
) -> Exported:
    """Makes the program of `function`, which has the arguments of the quantity. Raises ValueError.

    `sizes`: numbers of coordinates and speeds. `asked`: what the user asked for, for the message.
    """

    def flat(*arrays: Array) -> list[Array]:
        results, fine = function(*arrays)
        return [*(x.astype(dtype) for x in results), fine]

    takes = [jax.ShapeDtypeStruct(() if x.size is None else (x.size,), dtype) for x in quantity.takes]
    rows = [Row(x.total, dtype) for x in quantity.takes]
    gives = [*(Row(x.total, dtype) for x in quantity.gives), Row(1, BOOL)]
    try:
        program = InlinedProgram(jax.make_jaxpr(flat)(*takes), limits().derivative, judged=True).program
        return Exported(name, quantity, program, kernel(program, rows, gives, 1), dtype)
    except (NotScalar, TooLong) as error:
        state = [jax.ShapeDtypeStruct(shape, dtype) for shape in (*((n,) for n in sizes), ())]
        whose, reason = _fault(mechanism, state) or ("it is", str(error))
        raise ValueError(
            f"{asked or f'what={name!r}'} cannot be exported, for {whose} no scalar program: {reason}. Exported code "
            "has no matrices, no LAPACK, no callbacks and no large tables. Leave it out, or change mechanism or "
            "servo (a ConstraintFollowing goes by matrices, a Servo does not)."
        ) from error


def _fault(mechanism: Mechanism, state: Sequence[jax.ShapeDtypeStruct]) -> tuple[str, str] | None:
    """The reason why the functions of a mechanism are no scalar program; None if they are one."""

    def terms(q: Array, v: Array, t: Array) -> list[Array]:
        found = mechanism.terms(q, v, t)
        return [found.M, found.Q, found.A, found.b]

    try:
        program = InlinedProgram(jax.make_jaxpr(terms)(*state), limits().function).program
        rows = [Row(x.size, np.dtype(x.dtype)) for x in state]
        kernel(program, rows, [Row(1, np.dtype(x.dtype)) for x in program.outputs], 1)
    except (NotScalar, TooLong) as error:
        return "M, Q, A and b of the mechanism are", str(error)
    return None
