"""A linear system that approximates a mechanism near a state.

x: change of the states (k,); u: change of the inputs (p,); y: change of the outputs (r,).

Its modes are solutions exp(lambda t), with their shapes. lambda: eigenvalue [1/s]; w0: natural frequency |lambda|
[rad/s]; zeta: damping ratio, -Re(lambda) / |lambda|.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from .._result import is_traced


# A real part counts as rounding below this part of the largest eigenvalue.
ROUNDING = 1e-13


class Modes(NamedTuple):
    """The modes of a linearisation, the slowest first; for a complex pair the one with positive imaginary part.

    Attributes:
        eigenvalues: lambda [1/s], (k,), complex.
        frequencies: w0 = |lambda| [rad/s], (k,).
        damping: zeta = -Re(lambda) / |lambda|, (k,): 1 for decay without oscillation, negative for growth; NaN where
            lambda is zero, for a freedom without a restoring force.
        shapes: Amplitudes of q and v, one after the other, (n_q + n, k), complex; the largest of q is one.
        states: Amplitudes of the states, (number of states, k).
        names: Names of the states.
        coordinates: Number of rows of `shapes` that belong to q.
    """

    eigenvalues: np.ndarray
    frequencies: np.ndarray
    damping: np.ndarray
    shapes: np.ndarray
    states: np.ndarray
    names: tuple[str, ...]
    coordinates: int

    @classmethod
    def of(cls, A: np.ndarray, directions: np.ndarray, coordinates: int, names: tuple[str, ...]) -> "Modes":
        """Returns the modes of A (k, k) whose states move q and v along `directions`."""
        values, vectors = np.linalg.eig(A.astype(complex))
        # Below this, an imaginary part or a whole eigenvalue is the rounding error of a double eigenvalue.
        rounding = np.sqrt(np.finfo(A.dtype).eps) * np.max(np.abs(values), initial=0.0)
        values = np.where(np.abs(np.imag(values)) > rounding, values, np.real(values))
        real = np.where(np.abs(np.real(values)) > ROUNDING * np.max(np.abs(values), initial=0.0), np.real(values), 0.0)
        values = real + 1j * np.imag(values)
        values = np.where(np.abs(values) > rounding, values, 0)
        kept = [i for i in range(len(values)) if values[i].imag >= 0]
        order = sorted(kept, key=lambda i: (round(abs(values[i]), 12), -values[i].real))
        values, vectors = values[order], vectors[:, order]
        shapes = directions @ vectors
        moved = shapes[:coordinates] if np.any(np.abs(shapes[:coordinates]) > 0) else shapes
        largest = moved[np.argmax(np.abs(moved), axis=0), np.arange(moved.shape[1])] if len(values) else np.ones(0)
        unit = np.where(largest == 0, 1, largest)
        size = np.abs(values)
        damping = np.where(size > rounding, 0.0 - np.real(values) / np.where(size > rounding, size, 1), np.nan)
        return cls(values, size, damping, shapes / unit, vectors / unit, names, coordinates)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns eigenvalue [1/s], frequency [Hz], damping, and the dominant states of each mode, as text."""
        rows = []
        for value, size, zeta, state in zip(
            self.eigenvalues, self.frequencies, self.damping, self.states.T, strict=True
        ):
            turning = f" +- {value.imag:.6g}i" if value.imag else ""
            part = np.abs(state)
            most = [self.names[i] for i in np.argsort(-part, kind="stable")[:3] if part[i] >= 0.3 * part.max()]
            damping = "" if np.isnan(zeta) else f"{zeta:.4g}"
            rows.append((f"{value.real:.6g}{turning}", f"{size / (2 * np.pi):.6g}", damping, ", ".join(most)))
        return rows

    def __str__(self) -> str:
        rows = [("eigenvalue [1/s]", "frequency [Hz]", "damping", "mostly"), *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join(f"{x:{w}}" for x, w in zip(row, widths, strict=True)).rstrip() for row in rows)


if TYPE_CHECKING:
    import scipy.signal


class Linearization(eqx.Module):
    r"""The system $\dot x = A x + B u$, $y = C x + D u$ for small changes of states, inputs and outputs of a mechanism.

    The states are independent of each other on the constraints, so that no eigenvalue belongs to a constraint.
    `print` shows it, and `modes()` analyses it.

    Attributes:
        A: (k, k) [1/s, times the units of the states].
        B: Inputs (k, p).
        C: Outputs (r, k).
        D: (r, p), zero: outputs are functions of the state.
        x: The states (k,) at the point of linearisation.
        rates: Rates of the states there (k,): zero at rest and in a steady motion.
        u: The inputs there (p,).
        directions: Derivatives of q and v, one after the other, with respect to each state, (n_q + n, k).
        names: Names of the states, such as "q[0]".
        states: The states as a function (q, v, t) -> (k,).
        coordinates: Number of rows of `directions` that belong to q.
        result: `RESULTS`; empty message if all went well.
    """

    A: Float[Array, "k k"]
    B: Float[Array, "k p"]
    C: Float[Array, "r k"]
    D: Float[Array, "r p"]
    x: Float[Array, " k"]
    rates: Float[Array, " k"]
    u: Float[Array, " p"]
    directions: Float[Array, "n_q_and_n k"]
    names: tuple[str, ...] = eqx.field(static=True)
    states: Callable
    coordinates: int = eqx.field(static=True)
    result: Any

    @property
    def eigenvalues(self) -> Complex[Array, " k"]:
        """Eigenvalues of A [1/s], in no order; on the CPU, differentiable where they are simple."""
        return jnp.linalg.eigvals(self.A)

    @property
    def stable(self) -> Array:
        """Whether every eigenvalue has a negative real part, so that small changes decay."""
        return jnp.all(jnp.real(self.eigenvalues) < 0)

    def modes(self) -> Modes:
        """Returns natural frequencies, damping and shapes, the slowest first.

        Raises:
            ValueError: If the linearisation is traced, or a batch.
        """
        self._must_be_one("modes()")
        return Modes.of(np.asarray(self.A), np.asarray(self.directions), self.coordinates, self.names)

    def to_scipy(self) -> "scipy.signal.StateSpace":
        """Returns a `scipy.signal.StateSpace`; raises ValueError if traced, a batch, or without inputs or outputs."""
        import scipy.signal

        return scipy.signal.StateSpace(*self._matrices("to_scipy()"))

    def to_control(self) -> Any:
        """Returns a `control.StateSpace` of python-control (extra `control`), with the names of the states.

        Raises:
            ImportError: If python-control is not installed.
            ValueError: If the linearisation is traced, a batch, or has no inputs or outputs.
        """
        try:
            import control
        except ImportError as error:
            raise ImportError("to_control() needs python-control: pip install 'ukjax[control]'.") from error
        return control.ss(*self._matrices("to_control()"), states=list(self.names))

    def __str__(self) -> str:
        if is_traced(self.A) or not isinstance(self.A, Array) or self.A.ndim != 2:
            return repr(self)
        inputs, outputs = self.B.shape[1], self.C.shape[0]
        states = ", ".join(self.names)
        head = f"Linearisation in {len(self.names)} states ({states}), {inputs} inputs, {outputs} outputs."
        return f"{head}\n{self.modes()}"

    def _matrices(self, what: str) -> list[np.ndarray]:
        self._must_be_one(what)
        for name, size, hint in (
            ("inputs", self.B.shape[1], "actuation=G"),
            ("outputs", self.C.shape[0], "outputs=lambda q, v, t: q"),
        ):
            if size == 0:
                raise ValueError(f"{what} needs {name}: pass {hint} to ukjax.analysis.linearize.")
        return [np.asarray(x) for x in (self.A, self.B, self.C, self.D)]

    def _must_be_one(self, what: str) -> None:
        if is_traced(self.A):
            raise ValueError(f"{what} needs numbers, but A is traced. Call it outside of jit, vmap and grad.")
        if self.A.ndim != 2:
            raise ValueError(
                f"{what} is of one linearisation, but A has shape {self.A.shape}. Take one of the batch: "
                "jax.tree_util.tree_map(lambda x: x[i], linearization)."
            )
