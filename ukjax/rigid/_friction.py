"""Dry friction in joints, a non-ideal constraint force.

lambda: multipliers of a joint's rows; F: force across a joint's axis [N]; M: moment across the axis [N m]; N: pressing
force in the joint [N], (k,) of all joints with friction; c: non-ideal force (n,).
"""

from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .._constraint import AbstractConstraint
from .._equation import sharing
from .._mechanism import Mechanism
from .._result import is_traced
from .._types import BoolScalar, Vector
from . import _linkage, _turns
from ._body import named_parts
from ._effort import number
from ._frame import cross
from ._joint import Prismatic, Revolute
from ._linkage import AbstractRobot
from ._reactions import along_gap


# Number of steps in which friction grows from zero to its full value, and of Newton's iterations in each step.
STEPS, NEWTON = 16, 3
# A slide counts as pressed by a moment only, if the force across it would need an arm longer than this [m].
ARM = 1e6


Constraints = AbstractConstraint | Iterable[AbstractConstraint] | Mapping[str, AbstractConstraint]


class Coulomb(eqx.Module):
    r"""Dry friction in a hinge or a slide, by Coulomb's law with the pressing force of the joint.

    Torque of a `Revolute` $-\mu\,r\,N\,s(\omega)$, force of a `Prismatic` $-\mu\,N\,s(\omega)$, with $\omega$ the
    rate of the joint and $s(\omega) = \omega / \sqrt{\omega^2 + \epsilon^2}$ in place of its sign. The pressing forces
    are the reactions under friction: N and the friction of all joints are found together. So friction that changes the
    reactions, of its own joint or of others, is right.

    N is $|F|$, with F the force across the axis at the child's frame. With a `length` l the joint carries at two
    places at this distance, and a moment M across the axis presses too:
    $N = |F / 2 + a \times M / l| + |F / 2 - a \times M / l|$ with a along the axis.

    Args:
        coefficient: mu, not negative.
        radius: r of the pin of a `Revolute` [m].
        speed: epsilon, positive [rad/s or m/s]. Well below this speed friction acts as a damper, so nothing sticks.
        length: l [m], positive; `jnp.inf` if moments do not press; None if it is unknown whether they do. With None
            forces alone press, and a slide that is pressed by a moment only is a failure.

    Raises:
        ValueError: If a number is no scalar, not finite, or of the wrong sign.

    A mechanism with friction fails with `RESULTS.not_finite` where Coulomb's law has no solution that grows from the
    solution without friction: the joint jams (Painleve's paradox), and rigid bodies do not determine the motion. It
    also fails where a slide without `length` is pressed by a moment only. `Motion.constraint_force` stays the ideal
    force, as without friction; `nonideal_force` is the force of friction.

    Gradients: forward and reverse mode; where nothing presses, the gradient of N is taken as zero.

    Source: Coulomb's law; Painleve (1895); Liu et al. (2015), eq. 7 to 13, for the non-ideal force.
    """

    coefficient: Array
    radius: Array
    speed: Array
    length: Array | None

    def __init__(
        self, coefficient: ArrayLike, radius: ArrayLike = 0.0, speed: ArrayLike = 1e-3, length: ArrayLike | None = None
    ):
        self.coefficient, self.radius = number(coefficient, "coefficient"), number(radius, "radius")
        self.speed = number(speed, "speed")
        for name, least in (("coefficient", 0.0), ("radius", 0.0)):
            x = getattr(self, name)
            if not is_traced(x) and x < least:
                raise ValueError(f"{name} must not be negative, but is {x}.")
        if not is_traced(self.speed) and self.speed <= 0:
            raise ValueError(f"speed must be positive, but is {self.speed}: it is what rounds the corner at rest.")
        endless = not is_traced(length) and isinstance(length, float) and length == float("inf")
        self.length = None if length is None else jnp.asarray(jnp.inf) if endless else number(length, "length")
        if self.length is not None and not is_traced(self.length) and self.length <= 0:
            raise ValueError(f"length must be positive, but is {self.length}: a joint carries at two places.")

    def ends(self, F: Array, M: Array, axis: Array) -> Array:
        """The forces across the axis at the two places where the joint carries (2, 3), linear in F and M."""
        across = (F - (F @ axis) * axis) / 2
        turned = jnp.zeros_like(F) if self.length is None else cross(axis, M) / self.length
        return jnp.stack([across + turned, across - turned])


class Friction(eqx.Module):
    """The force c of joints with dry friction, for `nonideal` of a `Mechanism`.

    `mechanism`: the robot's, with all constraints among which the constraint force is divided.
    """

    mechanism: Mechanism
    of: dict[str, Coulomb]

    def __call__(self, q: Array, v: Array, t: Array, ideal_force: Vector) -> Vector:
        r"""Returns $c = -\sum_j g_j N_j$; the multipliers under friction are $T (Q^c - c)$ with T of `sharing`."""
        terms = self.mechanism.terms(q, v, t)
        share = sharing(terms.M, terms.A, terms.partition)
        rows = dict(terms.rows or ())
        starts = dict(zip(rows, [sum(list(rows.values())[:i]) for i in range(len(rows))], strict=True))
        g = jnp.stack([self._per_press(name, q, v, t) for name in self.of])

        def carried(force: Vector) -> Array:
            """The forces at the two ends of all joints (k, 2, 3) under a constraint force."""
            multipliers = share @ force
            found = {name: multipliers[starts[name] : starts[name] + rows[name]] for name in self.of}
            return jnp.stack([self._ends(name, q, found[name]) for name in self.of])

        E0, E = carried(ideal_force), jax.vmap(carried)(g)
        N, okay = pressed(E0, E)
        for name, coulomb in self.of.items():
            if coulomb.length is None and isinstance(self._joint(name), Prismatic):
                part = slice(starts[name], starts[name] + rows[name])
                okay = okay & ~self._by_moment_only(name, q, share[part], terms.Q, ideal_force)
        return -g.T @ N + stop_gradient(jnp.where(okay, 0.0, jnp.nan)).astype(q.dtype)

    @property
    def _robot(self) -> AbstractRobot:
        robot = self.mechanism.system
        assert isinstance(robot, AbstractRobot)
        return robot

    def _joint(self, name: str) -> Revolute | Prismatic:
        joint = self._robot.joints[name]
        assert isinstance(joint, Revolute | Prismatic)
        return joint

    def _wrench(self, name: str, q: Array, multipliers: Array) -> tuple[Array, Array]:
        """F and M of a joint's multipliers, at the child's frame (3,) each."""
        robot, joint = self._robot, self._joint(name)
        wrench = along_gap(robot, joint, _linkage.between(robot, q, joint), multipliers)
        return wrench.force, wrench.torque

    def _ends(self, name: str, q: Array, multipliers: Array) -> Array:
        return self.of[name].ends(*self._wrench(name, q, multipliers), self._joint(name).axis.of(q.dtype))

    def _per_press(self, name: str, q: Array, v: Array, t: Array) -> Vector:
        """g (n,): the generalised force of friction for a unit of N, times -1."""
        J, _ = _turns.rows(self._robot, name, q, v, t)
        coulomb, rate = self.of[name], J @ v
        arm = coulomb.radius if isinstance(self._joint(name), Revolute) else jnp.ones((), q.dtype)
        return J * (coulomb.coefficient * arm * rate / jnp.sqrt(rate**2 + coulomb.speed**2))

    def _by_moment_only(self, name: str, q: Array, share: Array, Q: Vector, ideal_force: Vector) -> BoolScalar:
        """Whether a moment across the axis presses alone, with a force across it that is zero up to rounding."""
        share, Q, force = stop_gradient((share, Q, ideal_force))
        axis = self._joint(name).axis.of(q.dtype)

        def sizes(multipliers: Array) -> Array:
            F, M = self._wrench(name, q, multipliers)
            return jnp.stack([F - (F @ axis) * axis, M - (M @ axis) * axis])

        F, M = sizes(share @ force)
        # A bound of the rounding errors in the terms of the moment.
        parts = jnp.abs(jax.vmap(sizes, 1, 2)(share))
        rounding = 1e3 * jnp.finfo(q.dtype).eps * jnp.max(parts[1] @ (jnp.abs(force) + jnp.abs(Q)))
        return jnp.linalg.norm(M) > jnp.maximum(rounding, ARM * jnp.linalg.norm(F))


def pressed(E0: Array, E: Array) -> tuple[Vector, BoolScalar]:
    r"""N (k,) that solves $N_j = |E_j^+| + |E_j^-|$, $E = E_0 + \sum_l E_l N_l$, and whether N was found.

    E0: end forces without friction (k, 2, 3); E: end forces for a unit of N of each joint (k, k, 2, 3).

    Friction grows from zero to its full value, and Newton's method follows N. N is unique as long as all pivots of
    1 - dE/dN are positive.
    """

    fixed = stop_gradient((E0, E))
    start = jnp.sum(_length(fixed[0]), axis=1)

    def follow(i: Array, carry: tuple[Vector, BoolScalar]) -> tuple[Vector, BoolScalar]:
        N, okay = carry
        part = ((i + 1) / STEPS).astype(N.dtype)
        for _ in range(NEWTON):
            N, positive = _better(fixed[0], part * fixed[1], N)
            okay = okay & positive
        return N, okay

    N, okay = jax.lax.fori_loop(0, STEPS, follow, (start, jnp.asarray(True)))
    # Two iterations more carry derivatives up to the third.
    for _ in range(2):
        N, positive = _better(E0, E, N)
        okay = okay & positive
    missed = jnp.max(jnp.abs(N - _presses(E0, E, N)), initial=0.0)
    size = jnp.max(jnp.abs(N), initial=0.0) + jnp.max(start, initial=0.0)
    met = missed <= 1e3 * jnp.finfo(N.dtype).eps * size
    return N, stop_gradient(okay & met & jnp.all(jnp.isfinite(N)))


def _presses(E0: Array, E: Array, N: Vector) -> Vector:
    """The pressing forces $|E_j^+| + |E_j^-|$ (k,) under the friction of N."""
    return jnp.sum(_length(E0 + jnp.tensordot(N, E, 1)), axis=1)


def _better(E0: Array, E: Array, N: Vector) -> tuple[Vector, BoolScalar]:
    """N after an iteration of Newton's method, and whether all pivots are positive."""

    def missed(N: Vector) -> Vector:
        return N - _presses(E0, E, N)

    way, least = _eliminated(jax.jacfwd(missed)(N), missed(N))
    return N - way, least > 0


def _length(x: Array) -> Array:
    """|x| along the last axis, with gradient zero where x is zero."""
    squared = jnp.sum(x * x, axis=-1)
    some = stop_gradient(squared) > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squared, 1.0)), 0.0)


def _eliminated(A: Array, y: Vector) -> tuple[Vector, Array]:
    """A^-1 y, and the least pivot; in order, since all must be positive, and without LAPACK, for batches."""
    k, pivots = y.shape[0], []
    for i in range(k):
        pivot = A[i, i]
        pivots.append(pivot)
        safe = jnp.where(pivot > 0, pivot, 1.0)
        factor = jnp.where(jnp.arange(k) == i, 0.0, A[:, i] / safe)
        y = y - factor * y[i]
        A = A - factor[:, None] * A[i][None]
    diagonal = jnp.diag(A)
    return y / jnp.where(diagonal > 0, diagonal, 1.0), jnp.min(stop_gradient(jnp.stack(pivots)))


def friction_of(robot: AbstractRobot, friction: Mapping[str, Coulomb], constraints: Constraints) -> Friction:
    """The `Friction` of a robot; raises ValueError for a joint whose friction is not modelled."""
    friction = named_parts(friction, Coulomb, "friction", "rigid.Coulomb(0.1, radius=0.01)")
    _check_joints(robot, friction)
    return Friction(Mechanism(robot, constraints), friction)


def _check_joints(robot: AbstractRobot, friction: Mapping[str, Coulomb]) -> None:
    for name in friction:
        joint = robot.joints.get(name)
        if not isinstance(joint, Revolute | Prismatic):
            known = [k for k in robot.joint_names if isinstance(robot.joints[k], Revolute | Prismatic)]
            raise ValueError(f"friction must name joints that are a Revolute or a Prismatic, of {known}, not {name!r}.")
        if name in robot.layout.tree and robot.layout == robot.tree:
            raise ValueError(
                f"friction names {name!r}, a joint of the tree, of which no constraint force tells how hard it is "
                'pressed. Build the robot with coordinates="absolute".'
            )
