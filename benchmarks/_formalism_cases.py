"""Eight constrained systems, each written three times: for the Udwadia-Kalaba equation by hand, for Lagrange's method
with multipliers and for Kane's method by SymPy. All three have the same coordinates in the same order.

q: coordinates; v: their rates; u: Kane's speeds; g = 9.81 m/s^2 throughout, and SI units.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy as sm
import sympy.physics.mechanics as me

import ukjax


G = 9.81


@dataclasses.dataclass(frozen=True)
class Case:
    """One system: its mechanism by hand, SymPy's methods ready to be read, and a state near which to look at it."""

    name: str
    mechanism: ukjax.Mechanism
    kane: Callable[[], Any]
    lagrange: Callable[[], Any]
    q: np.ndarray
    near: np.ndarray
    t: float = 0.0
    speeds: str = "rates"

    @functools.cached_property
    def v(self) -> np.ndarray:
        """The velocity nearest to `near` that the constraints allow."""
        at, start, time = jnp.asarray(self.q), jnp.asarray(self.near), jnp.asarray(self.t)

        @jax.jit
        def allowed(start):
            error = lambda v: self.mechanism.velocity_error(at, v, time)
            return start - jnp.linalg.pinv(jax.jacobian(error)(start)) @ error(start)

        return np.asarray(allowed(start))


def cases() -> list[Case]:
    """All of them; nothing is derived or computed before it is asked for."""
    return [
        _pendulum(),
        _spherical_pendulum(),
        _double_pendulum(),
        _bead_on_turning_wire(),
        _particle_on_contact_form(),
        _sleigh(),
        _coin(),
        _disc(),
    ]


# Particles -----------------------------------------------------------------------------------------------------------


def points(masses: Sequence[float], dimension: int, holonomic=(), nonholonomic=(), dependent=()):
    """Kane's and Lagrange's methods for particles; constraints are functions of (q, v, t), in SymPy's symbols."""
    n = len(masses) * dimension
    q, u = list(me.dynamicsymbols(f"q1:{n + 1}")), list(me.dynamicsymbols(f"u1:{n + 1}"))
    t = me.dynamicsymbols._t
    v = [x.diff(t) for x in q]
    phi = [f(q, v, t) for f in holonomic]
    psi = [f(q, v, t) for f in nonholonomic]
    inertia = [mass for mass in masses for _ in range(dimension)]
    heights = range(dimension - 1, n, dimension)

    def kane():
        N = me.ReferenceFrame("N")
        axes = [N.x, N.y, N.z][:dimension]
        bodies, loads = [], []
        for i, mass in enumerate(masses):
            point = me.Point(f"P{i}")
            point.set_vel(N, sum((x * axis for x, axis in zip(u[i * dimension :], axes)), me.Vector(0)))
            bodies.append(me.Particle(f"particle{i}", point, mass))
            loads.append((point, -mass * G * axes[-1]))
        rates = [x.diff(t) for x in phi] + psi
        free = [x for i, x in enumerate(u) if i not in dependent]
        method = me.KanesMethod(
            N,
            q,
            free,
            [a - b for a, b in zip(u, v)],
            u_dependent=[u[i] for i in dependent],
            velocity_constraints=[x.xreplace(dict(zip(v, u))) for x in rates],
        )
        method.kanes_equations(bodies, loads)
        return method

    def lagrange():
        energy = sum(m * x**2 / 2 for m, x in zip(inertia, v)) - G * sum(inertia[i] * q[i] for i in heights)
        method = me.LagrangesMethod(energy, q, hol_coneqs=phi, nonhol_coneqs=psi)
        method.form_lagranges_equations()
        return method

    return kane, lagrange


def _particles(masses, dimension, *constraints) -> ukjax.Mechanism:
    inertia = np.repeat(np.asarray(masses), dimension)
    weight = np.where(np.arange(len(inertia)) % dimension == dimension - 1, -G * inertia, 0.0)
    system = ukjax.System(lambda q, t: jnp.diag(jnp.asarray(inertia)), lambda q, v, t: jnp.asarray(weight))
    return ukjax.Mechanism(system, constraints)


def _pendulum() -> Case:
    kane, lagrange = points([1.3], 2, [lambda q, v, t: q[0] ** 2 + q[1] ** 2 - 4], dependent=[1])
    rod = ukjax.Holonomic(lambda q, t: (q @ q - 4.0)[None])
    place = 2.0 * np.array([np.sin(0.7), -np.cos(0.7)])
    return Case("pendulum, Cartesian", _particles([1.3], 2, rod), kane, lagrange, place, np.array([1.0, 0.3]))


def _spherical_pendulum() -> Case:
    kane, lagrange = points([0.8], 3, [lambda q, v, t: sum(x**2 for x in q) - 1], dependent=[2])
    rod = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    place = np.array([2.0, 3.0, -6.0]) / 7
    return Case("spherical pendulum", _particles([0.8], 3, rod), kane, lagrange, place, np.array([1.0, -0.5, 0.2]))


def _double_pendulum() -> Case:
    rods = [
        lambda q, v, t: q[0] ** 2 + q[1] ** 2 - 1,
        lambda q, v, t: (q[2] - q[0]) ** 2 + (q[3] - q[1]) ** 2 - sm.Rational(9, 4),
    ]
    kane, lagrange = points([1.0, 0.6], 2, rods, dependent=[1, 3])
    by_hand = lambda q, t: jnp.stack([q[:2] @ q[:2] - 1.0, (q[2:] - q[:2]) @ (q[2:] - q[:2]) - 2.25])
    first, second = np.array([np.sin(0.5), -np.cos(0.5)]), 1.5 * np.array([np.sin(1.4), -np.cos(1.4)])
    place = np.concatenate([first, first + second])
    mechanism = _particles([1.0, 0.6], 2, ukjax.Holonomic(by_hand))
    return Case("double pendulum, Cartesian", mechanism, kane, lagrange, place, np.array([0.7, 0.1, -0.4, 1.0]))


def _bead_on_turning_wire() -> Case:
    turn, t = 1.7, 0.6
    kane, lagrange = points(
        [0.5], 2, [lambda q, v, t: -q[0] * sm.sin(turn * t) + q[1] * sm.cos(turn * t)], dependent=[1]
    )
    wire = lambda q, t: (-q[0] * jnp.sin(turn * t) + q[1] * jnp.cos(turn * t))[None]
    place = 0.9 * np.array([np.cos(turn * t), np.sin(turn * t)])
    mechanism = _particles([0.5], 2, ukjax.Holonomic(wire))
    return Case("bead on a turning wire", mechanism, kane, lagrange, place, np.array([1.1, 0.2]), t)


def _particle_on_contact_form() -> Case:
    """y' = z x': the classic nonholonomic constraint."""
    kane, lagrange = points([1.1], 3, nonholonomic=[lambda q, v, t: v[1] - q[2] * v[0]], dependent=[1])
    skate = ukjax.Nonholonomic(lambda q, v, t: (v[1] - q[2] * v[0])[None])
    place, velocity = np.array([0.3, -0.2, 0.8]), np.array([1.0, 0.5, -0.7])
    return Case("particle with y' = z x'", _particles([1.1], 3, skate), kane, lagrange, place, velocity)


# Rigid bodies --------------------------------------------------------------------------------------------------------


def _sleigh() -> Case:
    """q = (x, y, h): place of the skate and heading; the centre of mass lies ahead of it by a."""
    m, I, a = 2.0, 0.4, 0.3
    q, u = list(me.dynamicsymbols("x y h")), list(me.dynamicsymbols("f w s"))
    t = me.dynamicsymbols._t
    x, y, h = [z.diff(t) for z in q]
    c, s = sm.cos(q[2]), sm.sin(q[2])

    def kane():
        N, B, P = me.ReferenceFrame("N"), me.ReferenceFrame("B"), me.Point("P")
        B.orient_axis(N, q[2], N.z)
        B.set_ang_vel(N, u[1] * N.z)
        P.set_vel(N, u[0] * B.x + u[2] * B.y)
        centre = P.locatenew("C", a * B.x)
        centre.v2pt_theory(P, N, B)
        kinematics = [u[0] - x * c - y * s, u[1] - h, u[2] + x * s - y * c]
        method = me.KanesMethod(N, q, u[:2], kinematics, u_dependent=u[2:], velocity_constraints=u[2:])
        method.kanes_equations([me.RigidBody("sleigh", centre, B, m, (me.inertia(B, 0, 0, I), centre))], None)
        return method

    def lagrange():
        centre = [q[0] + a * c, q[1] + a * s]
        energy = m / 2 * sum(z.diff(t) ** 2 for z in centre) + I / 2 * h**2
        method = me.LagrangesMethod(energy, q, nonhol_coneqs=[-x * s + y * c])
        method.form_lagranges_equations()
        return method

    def kinetic(q, v, t):
        moving = v[:2] + a * v[2] * jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2])])
        return m / 2 * moving @ moving + I / 2 * v[2] ** 2

    skate = ukjax.Nonholonomic(lambda q, v, t: (-v[0] * jnp.sin(q[2]) + v[1] * jnp.cos(q[2]))[None])
    mechanism = ukjax.Mechanism(ukjax.LagrangianSystem(kinetic, _no_potential), skate)
    place, velocity = np.array([0.1, 0.2, 0.9]), np.array([1.0, 0.4, -1.3])
    return Case("Chaplygin's sleigh", mechanism, kane, lagrange, place, velocity, speeds="along and across the skate")


def _no_potential(q, t):
    return jnp.zeros_like(t)


def _coin() -> Case:
    """q = (x, y, h, p): an upright coin, its heading and how far it has turned about its axle."""
    m, I, J, r = 0.9, 0.05, 0.09, 0.4
    q, u = list(me.dynamicsymbols("x y h p")), list(me.dynamicsymbols("u1:5"))
    t = me.dynamicsymbols._t
    v = [z.diff(t) for z in q]
    rolling = lambda v: [v[0] - r * v[3] * sm.cos(q[2]), v[1] - r * v[3] * sm.sin(q[2])]

    def kane():
        N, B, C = me.ReferenceFrame("N"), me.ReferenceFrame("B"), me.Point("C")
        B.orient_axis(N, q[2], N.z)
        coin = B.orientnew("coin", "Axis", [q[3], B.y])
        B.set_ang_vel(N, u[2] * N.z)
        coin.set_ang_vel(B, u[3] * B.y)
        C.set_vel(N, u[0] * N.x + u[1] * N.y)
        kinematics = [a - b for a, b in zip(u, v)]
        method = me.KanesMethod(N, q, u[2:], kinematics, u_dependent=u[:2], velocity_constraints=rolling(u))
        method.kanes_equations([me.RigidBody("coin", C, coin, m, (me.inertia(B, I, J, I), C))], None)
        return method

    def lagrange():
        energy = m / 2 * (v[0] ** 2 + v[1] ** 2) + I / 2 * v[2] ** 2 + J / 2 * v[3] ** 2
        method = me.LagrangesMethod(energy, q, nonhol_coneqs=rolling(v))
        method.form_lagranges_equations()
        return method

    by_hand = lambda q, v, t: v[:2] - r * v[3] * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([m, m, I, J])), lambda q, v, t: jnp.zeros(4))
    mechanism = ukjax.Mechanism(system, ukjax.Nonholonomic(by_hand))
    place, velocity = np.array([0.1, 0.2, 0.5, 0.0]), np.array([0.3, 0.8, -1.2, 2.0])
    return Case("upright coin", mechanism, kane, lagrange, place, velocity)


def _disc() -> Case:
    """q = (x, y, h, l, p): place of contact, heading, lean, and turn about the axle, of a thin disc that rolls."""
    m, r = 1.5, 0.35
    q, u = list(me.dynamicsymbols("x y h l p")), list(me.dynamicsymbols("u1:6"))
    t = me.dynamicsymbols._t
    v = [z.diff(t) for z in q]
    N = me.ReferenceFrame("N")
    Y = N.orientnew("Y", "Axis", [q[2], N.z])
    L = Y.orientnew("L", "Axis", [q[3], Y.x])
    turning = v[2] * N.z + v[3] * L.x + v[4] * L.y

    def moving(rates):  # of the centre
        return rates[0] * N.x + rates[1] * N.y + r * (v[2] * me.cross(N.z, L.z) + v[3] * me.cross(L.x, L.z))

    def kane():
        omega = u[2] * L.x + u[3] * L.y + u[4] * L.z
        kinematics = [u[0] - v[0], u[1] - v[1], *[(omega - turning).dot(axis) for axis in L]]
        solved = sm.solve(kinematics[2:], v[2:])
        disc, C = L.orientnew("disc", "Axis", [q[4], L.y]), me.Point("C")
        disc.set_ang_vel(N, omega)
        L.set_ang_vel(N, (omega - solved[v[4]] * L.y))
        C.set_vel(N, moving(u[:2]).subs(solved).express(L))
        slip = C.vel(N) + me.cross(omega, -r * L.z)
        body = me.RigidBody("disc", C, disc, m, (me.inertia(L, m / 4 * r**2, m / 2 * r**2, m / 4 * r**2), C))
        method = me.KanesMethod(
            N, q, u[2:], kinematics, u_dependent=u[:2], velocity_constraints=[slip.dot(N.x), slip.dot(N.y)]
        )
        method.kanes_equations([body], [(C, -m * G * N.z)])
        return method

    def lagrange():
        w = [turning.dot(axis) for axis in L]
        energy = m / 2 * moving(v).dot(moving(v)) + m * r**2 / 8 * (w[0] ** 2 + 2 * w[1] ** 2 + w[2] ** 2)
        slip = moving(v) + me.cross(turning, -r * L.z)
        method = me.LagrangesMethod(energy - m * G * r * sm.cos(q[3]), q, nonhol_coneqs=[slip.dot(N.x), slip.dot(N.y)])
        method.form_lagranges_equations()
        return method

    mechanism = ukjax.Mechanism(
        ukjax.LagrangianSystem(lambda q, v, t: _disc_energy(q, v, m, r), lambda q, t: m * G * r * jnp.cos(q[3])),
        ukjax.Nonholonomic(lambda q, v, t: _disc_slip(q, v, r)),
    )
    place, velocity = np.array([0.1, -0.2, 0.7, 0.3, 0.4]), np.array([0.2, 0.9, 0.8, -0.4, 5.0])
    return Case("rolling disc", mechanism, kane, lagrange, place, velocity, speeds="angular velocity in disc axes")


def _disc_motion(q, v, r):
    """Velocity of the centre, angular velocity, and the direction from contact to centre, in the plane's axes."""

    def up(q):
        return jnp.stack([jnp.sin(q[2]) * jnp.sin(q[3]), -jnp.cos(q[2]) * jnp.sin(q[3]), jnp.cos(q[3])])

    rise = jax.jvp(up, (q,), (v,))[1]
    ahead = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2]), jnp.zeros_like(q[2])])
    axle = jnp.cross(up(q), ahead)
    omega = v[2] * jnp.array([0.0, 0.0, 1.0]) + v[3] * ahead + v[4] * axle
    return jnp.concatenate([v[:2], jnp.zeros(1)]) + r * rise, omega, up(q), axle


def _disc_energy(q, v, m, r):
    moving, omega, _, axle = _disc_motion(q, v, r)
    return m / 2 * moving @ moving + m * r**2 / 8 * (omega @ omega + (omega @ axle) ** 2)


def _disc_slip(q, v, r):
    moving, omega, up, _ = _disc_motion(q, v, r)
    return (moving - r * jnp.cross(omega, up))[:2]
