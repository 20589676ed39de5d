"""The object of an analysis: a mechanism on which actuators and a controller act.

q: coordinates (n_q,); v: speeds (n,); u: inputs (p,) of actuators; s: quantities of the state.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation
from .._mechanism import Mechanism
from .._result import RESULTS
from .._servo import AbstractController, actuation_at
from .._types import Coordinates, Matrix, Scalar, Vector


# A user's function of the state (q, v, t), which returns some quantities (k,).
StateFunction = Callable[[Coordinates, Vector, Scalar], ArrayLike | Sequence[ArrayLike]]


class Plant(eqx.Module):
    """A mechanism with what acts on it, and the actuators that inputs drive."""

    mechanism: Mechanism
    controller: AbstractController
    actuation: Array | Callable[[Array, Array], ArrayLike] | None
    formulation: AbstractFormulation

    def matrix(self, q: Coordinates, t: Scalar, n: int) -> Matrix:
        """Returns G(q, t), (n, p); (n, 0) without actuators."""
        return jnp.zeros((n, 0), q.dtype) if self.actuation is None else actuation_at(self.actuation, q, t, n)

    def inputs(self, q: Coordinates, t: Scalar, n: int) -> int:
        """Returns the number of inputs p."""
        return jax.eval_shape(lambda q, t: self.matrix(q, t, n), q, t).shape[1]

    def applied(self, q: Coordinates, v: Vector, t: Scalar, u: Vector) -> Vector | None:
        """Returns the generalised force of the actuators and of the controller (n,), or None if there are neither."""
        force = self.driven(q, t, v.shape[0], u)
        own = self.controller.force(self.mechanism, self.formulation, q, v, t, None, force)
        return force if own is None else own if force is None else force + own

    def driven(self, q: Coordinates, t: Scalar, n: int, u: Vector) -> Vector | None:
        """Returns G u, or None without actuators."""
        return None if self.actuation is None else self.matrix(q, t, n) @ u

    def rates(self, q: Coordinates, v: Vector, t: Scalar, u: Vector) -> tuple[Coordinates, Vector, RESULTS]:
        """Returns q', v', and the result of the motion."""
        applied, mechanism = self.driven(q, t, v.shape[0], u), self.mechanism
        motion = self.controller.drive(mechanism, self.formulation, q, v, t, None, applied).motion
        return mechanism.rates(q, v, t), motion.acceleration, motion.result

    def rates_of(
        self, function: StateFunction, name: str, q: Coordinates, v: Vector, t: Scalar, u: Vector
    ) -> tuple[Array, RESULTS]:
        """Returns d/dt of `function(q, v, t)`, shape (k,), along the motion, and the result of the motion."""
        *along, result = self.rates(q, v, t, u)
        tangents = (*along, jnp.ones_like(t))
        return jax.jvp(lambda *state: quantities(function, name, *state), (q, v, t), tangents)[1], result


def quantities(function: StateFunction, name: str, q: Coordinates, v: Vector, t: Scalar) -> Array:
    """Returns the value of a user's function of the state, (k,)."""
    return _check.output(function(q, v, t), ("k",), q.dtype, f"{name}(q, v, t)", "Put a single quantity in a list.")
