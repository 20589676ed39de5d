"""Heavy symmetric top on a fixed tip: a unit quaternion and the angular velocity seen from the top.

          .---.            z up; the tip stays at the origin
           \\ /   spins     m: mass; h: from the tip to the centre of mass; A, C: moments of inertia about the tip,
            V    about z   across the axis and about it

Besides the energy it keeps what it spins with about its own axis, w_z, and its angular momentum about the vertical. It
precesses evenly at the lean theta with psi' = W if A W^2 cos(theta) - C w_z W + m g h = 0.

Source: Lagrange (1788); Goldstein (1980), Classical Mechanics, 5.7.
"""

import jax.numpy as jnp

import ukjax
from ukjax import rigid


G = 9.81  # [m/s^2]


def robot(m: float = 0.5, h: float = 0.06, A: float = 2.4e-3, C: float = 6e-4, radius: float = 0.05) -> rigid.Robot:
    """m [kg], h [m], A and C [kg m^2]; `radius` of the disc that is drawn [m]."""
    about_center = A - m * h**2
    inertia = rigid.Inertia(m, jnp.array([about_center, about_center, C]), (0.0, 0.0, h))
    looks = rigid.Shape.circle(radius, "z", (0.0, 0.0, h))
    return rigid.Robot({"top": rigid.Body(inertia, shapes=looks)}, {"tip": rigid.Spherical("ground", "top")})


def even(lean, spin, m: float = 0.5, h: float = 0.06, A: float = 2.4e-3, C: float = 6e-4) -> jnp.ndarray:
    """W [rad/s] of the slow even precession at a lean [rad] and w_z = `spin` [rad/s]; NaN if it spins too slowly."""
    a, b, c = A * jnp.cos(lean), -C * spin, m * G * h
    return (-b - jnp.sqrt(b**2 - 4 * a * c)) / (2 * a)


def state(lean, precession, spin) -> tuple[jnp.ndarray, jnp.ndarray]:
    """q and v leaning towards -y, for psi' = `precession` and w_z = `spin` [rad/s]."""
    half = lean / 2
    zero = jnp.zeros_like(half)
    q = jnp.stack([jnp.cos(half), jnp.sin(half), zero, zero])
    # The vertical seen from the top is (0, sin, cos).
    return q, jnp.stack([zero, precession * jnp.sin(lean), jnp.asarray(spin, float)])


def scenario(lean: float = 0.5, spin: float = 150.0, precession: float = 0.0, t1: float = 2.0) -> ukjax.Scenario:
    """Released at a lean [rad], spinning [rad/s]: it nods as it goes round."""
    top = robot()
    up = lambda q: top.pose(q, "top").R[2]
    q, v = state(jnp.asarray(lean, float), jnp.asarray(precession, float), spin)
    # About the tip, seen from the top: M is that of the angular velocity.
    return top.scenario(
        q,
        v,
        t1,
        name="Heavy top",
        projection=ukjax.Projection(),
        invariants={
            "energy [J]": top.energy,
            "spin [rad/s]": lambda q, v, t: v[2],
            "vertical angular momentum [kg m^2/s]": lambda q, v, t: up(q) @ (top.mass(q, t) @ v),
        },
        observables={"axis x, y, z": lambda q, v, t: top.pose(q, "top").R[:, 2]},
        drawing=top.drawing(trails=["top"]),
        source="Lagrange (1788)",
    )
