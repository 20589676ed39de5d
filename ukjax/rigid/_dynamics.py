"""M, the force, the free acceleration and the energy of a robot, and which of the ways to compute each is taken.

Few operations count for a small tree, and a short program for a large one, of more than `LARGE` speeds. So a tree at a
state has two forms: as a `TreeState` its recursions are unrolled from node to node, and leave out what is zero or
constant (`_tree_unrolled`); as `TreeArrays` they are loops over the nodes (`_tree_scan`).

M (`mass`): by composite rigid bodies, in the form that fits the size. A third way is within derivatives (`_slopes_of`):
M of pairs of joints, which are known there.

The bias force (`bias`): by recursive Newton-Euler with the accelerations at zero, in the form that fits the size.

The acceleration of a robot without constraints (`free`), M^-1 y:

- of a small tree, by M in scalar code (no `acceleration` is given), if derivatives in closed form are worth it;
- of a large tree, by articulated bodies without M (`_acceleration`), with a number of operations linear in the nodes;
- else None: by M and Q, as for any other system. So it is with efforts or drags of loops, which fill M.

Its derivatives in closed form (`_slopes_of`), where every motion is of `CONSTANT`, are M^-1 y of many y: by scalar code
for a small tree; for a large tree by the elimination along its branches where that is short (`Branches.are_short`),
else by a dense factorisation in panels.

The rows of loops are computed by one pass over the tree for all of them (`own_rows`) where a mechanism needs the
rows of them all, and alone (`Gap`, `Slip`) where a constraint is asked by itself.

Derivatives of the constrained motion of a large tree are those of `imbalance`, which takes neither M nor rows: its
program is half as long, as are those of its derivatives. For a small tree they are those of M, Q and the rows, which
are traced already.

q: coordinates (n_q,); v: speeds (n,).
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike

from .. import _expand
from .._expand import Lowering
from .._panels import panel_solve
from .._terms import ForwardDynamics, Pivots
from .._types import Coordinates, Matrix, RowValues, Scalar, Vector
from . import _linkage, _tree_scan, _tree_unrolled, _turns
from ._linkage import AbstractRobot, acting, falling, posture, stacked
from ._loops import own_imbalance
from ._motion import Helix, Slide, Turn, Weld
from ._slopes import Branches, slopes


# With more speeds than this, recursions are loops over the nodes: unrolled, they are too long for scalar code, and take
# too long to compile.
LARGE = 9
# With fewer speeds derivatives in closed form are no faster than those of scalar code; with more than SHORT, they too
# are loops over the nodes.
FEW = 3
SHORT = 6
# Up to this many speeds the acceleration of many states is unrolled from node to node all the same: it compiles longer,
# and runs faster. Derivatives are unrolled up to `LARGE`.
WRITTEN = 50
# Motions of at most one speed, the rate of the coordinate, whose twist is constant seen from the moving frame.
CONSTANT = (Turn, Slide, Helix, Weld)


def is_large(robot: AbstractRobot) -> bool:
    return robot.layout.n > LARGE


@eqx.filter_jit
def mass(robot: AbstractRobot, q: Coordinates, t: Scalar) -> Matrix:
    """The mass matrix M (n, n), with armature; one call in the traced program, as a run needs it several times."""
    large = is_large(robot)
    M = _tree_scan.mass_matrix(stacked(robot, q)) if large else _tree_unrolled.mass_matrix(posture(robot, q), q.dtype)
    M = M + jnp.diag(_linkage.armature(robot, q.dtype))
    for name, effort in _linkage.efforts(robot, of_loops=True).items():
        J, _ = _turns.rows(robot, name, q, jnp.zeros(robot.layout.n, q.dtype), t)
        M = M + effort.armature * J[:, None] * J[None]
    for name, drag in _turns.drags_of_loops(robot).items():
        J, _ = _turns.spin_rows(robot, name, q, jnp.zeros(robot.layout.n, q.dtype), t)
        M = M + drag.armature * (J.T @ J)
    return M


def force(robot: AbstractRobot, q: Coordinates, v: Vector, t: Scalar) -> Vector:
    """The force Q (n,) in M v' = Q, with the terms of velocity."""
    Q = _linkage.own_forces(robot, q, v) - bias(robot, q, v, is_large(robot))
    for name, effort in _linkage.efforts(robot, of_loops=True).items():
        J, b = _turns.rows(robot, name, q, v, t)
        Q = Q + J * (effort.of(_turns.coordinate(robot, q, name), J @ v) + effort.armature * b)
    for name, drag in _turns.drags_of_loops(robot).items():
        J, b = _turns.spin_rows(robot, name, q, v, t)
        Q = Q + J.T @ _turns.drag_torque(drag, J, b, v)
    return Q


def bias(robot: AbstractRobot, q: Coordinates, v: Vector, large: bool) -> Vector:
    """The generalised forces (n,) that keep all speeds constant, less those of the forces on the bodies."""
    if large:
        return _tree_scan.forces(stacked(robot, q, v), v, None, falling(robot, q), acting(robot, q, v))
    tree = posture(robot, q, v)
    return _tree_unrolled.bias(tree, v, falling(robot, q), acting(robot, q, v, tree))


def imbalance(
    robot: AbstractRobot, q: Coordinates, v: Vector, t: Scalar, a: Vector, multipliers: Mapping[str, RowValues]
) -> tuple[Vector, dict[str, RowValues]]:
    """Q - M a + A^T l (n,), and b - A a by the names of `own_rows` with multipliers l, by recursive Newton-Euler."""
    stack = stacked(robot, q, v)
    errors, force, held = own_imbalance(robot, stack, q, v, a, multipliers)
    needed = _tree_scan.forces(stack, v, a, falling(robot, q), acting(robot, q, v), held)
    force = force + _linkage.own_forces(robot, q, v) - needed - _linkage.armature(robot, q.dtype) * a
    for name, effort in _linkage.efforts(robot, of_loops=True).items():
        J, b = _turns.rows(robot, name, q, v, t)
        force = force + J * (effort.of(_turns.coordinate(robot, q, name), J @ v) - effort.armature * (J @ a - b))
    for name, drag in _turns.drags_of_loops(robot).items():
        J, b = _turns.spin_rows(robot, name, q, v, t)
        force = force + J.T @ _turns.drag_torque(drag, J, b, v, a)
    return force, errors


def free(robot: AbstractRobot, applied: Vector | None) -> ForwardDynamics | None:
    """The robot's unconstrained dynamics; None if no fast path is known, so that M is needed."""
    if _linkage.efforts(robot, of_loops=True) or _turns.drags_of_loops(robot):
        return None
    simple = not robot.forces and all(isinstance(motion, CONSTANT) for motion in _linkage.motions(robot))
    n, slopes = robot.layout.n, Partial(_slopes_of, robot) if simple else None
    is_short = not is_large(robot) or (simple and Branches.of(robot.layout).are_short)
    of_slopes = Lowering.SCALAR if n <= SHORT else Lowering.UNROLLED if is_short else Lowering.TILES
    if is_large(robot):
        own = Lowering.UNROLLED if n <= WRITTEN else Lowering.TILES
        return ForwardDynamics(lambda q, v, t: _acceleration(robot, q, v, applied), slopes, own, of_slopes)
    if slopes is None or n < FEW:
        return None
    return ForwardDynamics(None, slopes, Lowering.SCALAR, of_slopes)


def _acceleration(robot: AbstractRobot, q: Coordinates, v: Vector, applied: Vector | None) -> tuple[Vector, Pivots]:
    """M^-1 (Q + applied), by articulated bodies, and its pivots; derivatives follow from those of inverse dynamics."""
    stack, armature, base = stacked(robot, q, v), _linkage.armature(robot, q.dtype), falling(robot, q)
    own, external = _linkage.own_forces(robot, q, v), acting(robot, q, v)
    own = own if applied is None else own + applied

    def missing(a):
        return _tree_scan.forces(stack, v, a, base, external) + armature * a - own

    def times(x):
        return _tree_scan.times(stack, x, armature)

    def inverse(_, y):
        return _tree_scan.solve(stack, y, armature)[0]

    def solved(_, y):
        return jax.lax.custom_linear_solve(times, y, inverse, symmetric=True)

    def root(*_):
        return _tree_scan.solve(stack, own, armature, _tree_scan.loads(stack, v, base, external))

    found, pivots = jax.lax.custom_root(missing, jnp.zeros_like(v), root, solved, has_aux=True)
    return found, Pivots(*pivots)


def _slopes_of(robot: AbstractRobot, q: Coordinates, v: Vector, t: Scalar, a: Vector) -> Array:
    """The derivatives of the acceleration by q and v (n, 2 n): M da = dQ - d tau."""
    tree = Branches.of(robot.layout)
    found = slopes(stacked(robot, q), tree, v, a, falling(robot, q), robot.layout.n <= SHORT)
    one = jnp.ones_like(v)
    # The own force of a joint depends on its own coordinate and speed.
    by_q = jnp.diag(jax.jvp(lambda q: _linkage.own_forces(robot, q, v), (q,), (one,))[1]) - found.by_q
    by_v = jnp.diag(jax.jvp(lambda v: _linkage.own_forces(robot, q, v), (v,), (one,))[1]) - found.by_v
    M = found.mass + jnp.diag(_linkage.armature(robot, q.dtype))
    solve = _expand.solve if not is_large(robot) else tree.solve if tree.are_short else panel_solve
    return solve(M, jnp.concatenate([by_q, by_v], axis=1))


def energy(robot: AbstractRobot, q: Coordinates, v: Vector, t: ArrayLike) -> Array:
    """Kinetic energy, plus the potential energy of gravity (zero at the ground's origin), springs and forces [J]."""
    at = _linkage.placement(robot, posture(robot, q), v)
    total = v @ mass(robot, q, jnp.asarray(t, q.dtype)) @ v / 2
    for name in robot.layout.bodies:
        inertia = robot.bodies[name].inertia
        if inertia is not None:
            total = total - inertia.mass * robot.gravity @ at.pose(name).point(inertia.center)
    for name, effort in {**_linkage.efforts(robot, True), **_linkage.efforts(robot, False)}.items():
        total = total + effort.energy(_turns.coordinate(robot, q, name))
    return total + sum((force.potential(at) for force in robot.forces.values()), jnp.zeros((), q.dtype))
