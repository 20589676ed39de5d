"""A linear system that approximates a mechanism near a state.

x: change of the states (k,); u: change of the inputs (p,); y: change of the outputs (r,).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from .._result import is_traced
from ._modes import Modes


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
