"""Machine code of a mechanism, called from Python for one state at a time."""

import ctypes
import functools as ft
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array

from . import _check
from ._expand import InlinedProgram, NotScalar, TooLong, limits
from ._formulation import UdwadiaKalaba
from ._lowering import Machine, Row, compiled, has_compiler, kernel, vector_width
from ._mechanism import Mechanism
from ._result import RESULTS, is_traced, message
from ._servo import AbstractController, Driven, ServoLike, as_static_controller


WHAT = ("acceleration", "constraint_force", "control", "jacobian")
# A Jacobian is written out column by column while the operations of the motion times the columns are no more than this.
MOST_WRITTEN_OUT = 250_000


class _Code(NamedTuple):
    """The machine code for states of a shape, and the shapes of its results; None where there is no scalar program.

    `columns`: code of its own for the columns of the Jacobian, which is the result of these `numbers`.
    """

    shapes: tuple[tuple[int, ...], ...]
    machine: Machine | None = None
    operations: int | None = None
    columns: Machine | None = None
    numbers: tuple[int, ...] = ()


class _Buffers:
    """The arguments and results of one thread, in arrays that the machine code reads and writes."""

    def __init__(self, code: _Code, coordinates: int, speeds: int, dtype: np.dtype):
        self.coordinates, self.speeds, self.operations = coordinates, speeds, code.operations
        self.q, self.v, self.t = np.zeros(coordinates, dtype), np.zeros(speeds, dtype), np.zeros(1, dtype)
        self.results = [np.zeros(shape, dtype) for shape in code.shapes]
        self.certain = np.zeros(1, bool)
        given = [x for k, x in enumerate(self.results) if k not in code.numbers]
        self._arrays = [[self.q, self.v, self.t, *given, self.certain]]
        self.run = code.machine and self._runs(code.machine, 1)
        if self.run is not None and code.columns is not None:
            self.run = self._with_columns(self.run, code.columns, [self.results[k] for k in code.numbers])

    def _runs(self, machine: Machine, size: int) -> Callable[[], None]:
        """The function that runs machine code between the last arrays, for so many states."""
        arrays = self._arrays[-1]
        return ft.partial(machine.run, (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays)), 0, size)

    def _with_columns(
        self, rest: Callable[[], None], machine: Machine, jacobians: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        """The function that computes the rest and, where that is certain, the Jacobians."""
        count = self.coordinates + self.speeds
        ways = map(np.ascontiguousarray, np.split(np.eye(count, dtype=self.q.dtype), [self.coordinates], axis=1))
        found, certain = np.zeros((count, len(jacobians[0])), self.q.dtype), np.zeros(count, bool)
        self._arrays.append([self.q, self.v, self.t, *ways, found, certain])
        columns = self._runs(machine, count)

        def run() -> None:
            rest()
            if self.certain[0]:
                columns()
                self.certain[0] = certain.all()
                for jacobian in jacobians:
                    jacobian[...] = found.T

        return run


class Compiled:
    """A mechanism as machine code; see `ukjax.compile`.

    Attributes:
        what: Names of the results.
    """

    def __init__(self, mechanism: Mechanism, controller: AbstractController, what: Sequence[str], alone: bool):
        self.mechanism, self.what, self._controller, self._alone = mechanism, tuple(what), controller, alone
        self._local, self._lock = threading.local(), threading.Lock()
        self._codes: dict[tuple[int, int], _Code] = {}
        self._sure = jax.jit(self._function)

    def __call__(self, q, v, t=0.0, *, out=None):
        """Returns the results at one state.

        Args:
            q: Coordinates, shape (n,) [m or rad].
            v: Rates of q, shape (n,) [m/s or rad/s].
            t: Time, scalar [s].
            out: Array, or one for each result, into which results are written; None for new ones.

        Raises:
            ValueError: If a shape does not fit.
            RuntimeError: If the mechanism has no motion at this state.
        """
        buffers = getattr(self._local, "buffers", None)
        if buffers is None or len(q) != buffers.coordinates or len(v) != buffers.speeds:
            buffers = self._prepared(q, v)
        try:
            buffers.q[:], buffers.v[:], buffers.t[0] = q, v, t
        except (TypeError, ValueError) as error:
            raise _named(error, q, v, t) from error
        if buffers.run is not None:
            buffers.run()
        if not buffers.certain[0]:
            self._go_the_sure_way(buffers)
        if out is None:
            return buffers.results[0].copy() if self._alone else tuple(x.copy() for x in buffers.results)
        for x, y in zip((out,) if self._alone else out, buffers.results, strict=True):
            x[...] = y
        return out

    @property
    def certain(self) -> bool:
        """Whether the last result of this thread is that of the machine code, which is certain of the rank there.

        Elsewhere it has been computed by matrices, as `equation_of_motion` does, which takes a thousand times as long.
        """
        return bool(self._buffers.certain[0])

    @property
    def operations(self) -> int | None:
        """The operations of the machine code; None if the mechanism has none, and all goes by matrices."""
        return self._buffers.operations

    @property
    def _buffers(self) -> _Buffers:
        buffers = getattr(self._local, "buffers", None)
        if buffers is None:
            raise RuntimeError("This thread has not called the compiled mechanism yet, so there is no last result.")
        return buffers

    def _prepared(self, q: Array, v: Array) -> _Buffers:
        q, v, t = _check.state(q, v, kinematics=self.mechanism.kinematics)
        key = q.shape[0], v.shape[0]
        with self._lock:
            if key not in self._codes:
                self._codes[key] = self._code(q, v, t)
            code = self._codes[key]
        self._local.buffers = _Buffers(code, *key, np.dtype(q.dtype))
        return self._local.buffers

    def _code(self, q: Array, v: Array, t: Array) -> _Code:
        closed, given = jax.make_jaxpr(lambda *state: self._function(*state)[0], return_shape=True)(q, v, t)
        shapes, found = tuple(x.shape for x in given), None
        if has_compiler():
            try:
                found = _Code(shapes, *_machine(closed, given, q, v, t, most_along=MOST_WRITTEN_OUT))
            except NotScalar:
                pass
            except TooLong:
                found = self._by_columns(q, v, t, shapes)
        return found or _Code(shapes)

    def _by_columns(self, q: Array, v: Array, t: Array, shapes: tuple[tuple[int, ...], ...]) -> _Code | None:
        """The code whose Jacobian is computed along several directions side by side; None if there is none."""
        if "jacobian" not in self.what:
            return None
        rest = [name for name in self.what if name != "jacobian"]

        def column(q: Array, v: Array, t: Array, dq: Array, dv: Array) -> list[Array]:
            def acceleration(q: Array, v: Array) -> Array:
                return self._driven(q, v, t).motion.acceleration

            return [jax.jvp(acceleration, (q, v), (dq, dv))[1]]

        try:
            closed, given = jax.make_jaxpr(lambda *x: self._function(*x, what=rest)[0], return_shape=True)(q, v, t)
            machine, operations = _machine(closed, given, q, v, t)
            closed, given = jax.make_jaxpr(column, return_shape=True)(q, v, t, q, v)
            columns, each = _machine(closed, given, q, v, t, ways=(q, v))
        except (NotScalar, TooLong):
            return None
        numbers = tuple(k for k, name in enumerate(self.what) if name == "jacobian")
        return _Code(shapes, machine, operations + each, columns, numbers)

    def _go_the_sure_way(self, buffers: _Buffers) -> None:
        found, result = self._sure(*map(jnp.asarray, (buffers.q, buffers.v, buffers.t[0])))
        if bool(result != RESULTS.successful):
            raise RuntimeError(f"{message(result)} (q = {buffers.q}, v = {buffers.v}, t = {buffers.t[0]})")
        for x, y in zip(buffers.results, found, strict=True):
            x[...] = y

    def _driven(self, q: Array, v: Array, t: Array) -> Driven:
        return self._controller.drive(self.mechanism, UdwadiaKalaba(expand=True), q, v, t, None)

    def _function(self, q: Array, v: Array, t: Array, what: Sequence[str] | None = None) -> tuple[list[Array], RESULTS]:
        driven = self._driven(q, v, t)
        found: dict[str, Callable[[], Array]] = {
            "acceleration": lambda: driven.motion.acceleration,
            "constraint_force": lambda: driven.motion.constraint_force,
            "control": lambda: jnp.zeros(0, q.dtype) if driven.u is None else driven.u,
            "jacobian": lambda: jax.jacfwd(lambda y: self._driven(y[: q.size], y[q.size :], t).motion.acceleration)(
                jnp.concatenate([q, v])
            ),
        }
        return [found[name]() for name in (self.what if what is None else what)], driven.motion.result


def _machine(
    closed: ClosedJaxpr,
    given: Sequence[jax.ShapeDtypeStruct],
    *state: Array,
    ways: Sequence[Array] = (),
    **limits_of: Any,
) -> tuple[Machine, int]:
    """The machine code of a traced function of a state, whether it is certain the last result, and its operations.

    `ways`: further arguments, of which the code is to take several at a time; `limits_of`: as for `InlinedProgram`.
    """
    program = InlinedProgram(closed, limits().derivative, **limits_of).program
    takes = [Row(x.size, np.dtype(x.dtype), not ways) for x in state] + [Row(x.size, np.dtype(x.dtype)) for x in ways]
    gives = [*(Row(math.prod(x.shape), np.dtype(x.dtype)) for x in given), Row(1, np.dtype(bool))]
    return compiled(kernel(program, takes, gives, vector_width() if ways else 1)), program.operations


def _named(error: Exception, *state: object) -> Exception:
    """The error of a state that is none, with the names of the arguments."""
    if is_traced(*state):
        return TypeError(
            "q, v and t must be numbers here, not what jit or another transformation traces. Inside of these use "
            "ukjax.equation_of_motion."
        )
    return type(error)(f"q and v must be real numbers of shape (n,), and t one: {error}")


def compile(mechanism: Mechanism, *, servo: ServoLike = None, what: str | Sequence[str] = "acceleration") -> Compiled:
    """Returns a mechanism as machine code, for loops in Python: NumPy arrays in and out, microseconds a call.

    The first call compiles, for the shape of its state. Parameters are constants of the code: compile anew for others.
    Calls let other threads run. Inside of `jax.jit`, and for batches, use `equation_of_motion` and `servo_control`.

    Args:
        mechanism: System and constraints.
        servo: `Servo` or `ConstraintFollowing`, or several of one kind, or a `Feedback` without memory and samples,
            that acts on the mechanism; None for none.
        what: "acceleration" (n,) [m/s^2 or rad/s^2]; "constraint_force" (n,) [N or N m]; "control" (p,) of all
            actuators; "jacobian", that of the acceleration with respect to q and v, (n, n_q + n). Or several of these.

    Returns:
        `handle(q, v, t=0.0, *, out=None)`, which returns an array, or a tuple of arrays for several names.
        `handle.certain` tells whether the machine code was certain of the rank at the last state. Where it was not, the
        result has been computed by matrices.

    Raises:
        TypeError: If `mechanism` or `servo` is something else.
        ValueError: If `what` names something else, or "control" comes without a servo.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        acceleration = ukjax.compile(ukjax.Mechanism(system, rod))
        print(acceleration([1.0, 0.0], [0.0, 0.0]))  # [0, -9.81]: the rod is level
        ```

    Gradients: none; ask for "jacobian".
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    controller = as_static_controller(servo)
    if not isinstance(what, (str, tuple, list)):
        raise TypeError(f"what must be a name, or a tuple of names, of {', '.join(map(repr, WHAT))}, but is {what!r}.")
    names = [what] if isinstance(what, str) else list(what)
    for name in names:
        if name not in WHAT:
            raise ValueError(f"what must be of {', '.join(map(repr, WHAT))}, but is or has {name!r}.")
    if not names:
        raise ValueError(f"what must name at least one of {', '.join(map(repr, WHAT))}, but is empty.")
    if "control" in names and servo is None:
        raise ValueError('what="control" is that of a servo. Pass servo=ukjax.Servo(...) too.')
    return Compiled(mechanism, controller, names, isinstance(what, str))
