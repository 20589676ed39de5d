"""A swarm of N robots in the plane, q = (x1, y1, ..., xN, yN) [m], that come together and keep apart.

          o        o        each robot is to move with  q_i' = -sum_j (q_i - q_j) (1 - 0.5 / |q_i - q_j|),
              \\   /         drawn to those farther than 0.5 m, pushed from those nearer
        o --- (o) --- o
                            beta = q' + grad V,   V = sum over pairs of  d^2 / 2 - 0.5 d + 50

A = I, one row a coordinate, so that the motion depends neither on masses nor on forces. As printed (kappa = 0) beta
keeps its initial value exactly; with b = phi - kappa beta it is beta(0) exp(-kappa t). The centroid moves with the mean
of beta.

While beta = 0, the distance d of any two obeys 1 - N d <= d' <= N - 1 - N d, because their unit vectors from a third
robot never differ against the direction in which the two are apart: no robots collide, whatever N, and all end up
within 1 - 1 / N of one another. While beta is not zero they may collide. N robots on a regular polygon of circumradius
cot(pi / 2N) / (2N) are at rest.

Source: Zhao et al. (2018), Udwadia-Kalaba equation for constrained mechanical systems: formulation and applications,
Chinese Journal of Mechanical Engineering 31, section 8.2, eq. 60 to 65. Its table of initial states is lost; they, the
stabilisation and the bounds are ours.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Swarm(ukjax.AbstractSystem):
    """N free robots."""

    m: Float[Array, " N"]  # [kg]

    def __init__(self, m):
        self.m = jnp.asarray(m, float)

    def mass(self, q, t):
        return jnp.diag(jnp.repeat(self.m, 2))

    def force(self, q, v, t):
        return jnp.zeros_like(q)


class Gathering(eqx.Module):
    """What each robot is to do about the others."""

    pull: Float[Array, ""]  # [1/s]
    push: Float[Array, ""]  # [m/s]

    def __init__(self, pull=1.0, push=0.5):
        self.pull, self.push = (jnp.asarray(x, float) for x in (pull, push))

    def gradient(self, q):
        """grad V (2N,) [m/s]."""
        places = q.reshape(-1, 2)
        apart = places[:, None] - places[None]
        # A robot's distance from itself counts as one: the apart in front of it is zero, and the root stays smooth.
        distance = jnp.sqrt(jnp.sum(apart**2, axis=2) + jnp.eye(len(places)))
        return jnp.sum(apart * (self.pull - self.push / distance)[:, :, None], axis=1).ravel()

    def beta(self, q, v, t):
        """psi (2N,) [m/s], eq. 65."""
        return v + self.gradient(q)


# Of five robots: (x, y) [m], and velocities [m/s] that have nothing to do with the constraint.
FIVE = ((4.0, 3.0), (-3.5, 2.5), (-2.0, -4.0), (3.0, -2.5), (0.5, 5.0))
FIVE_RATES = ((0.5, -0.3), (0.2, 0.6), (-0.4, 0.1), (-0.2, -0.5), (0.3, 0.4))
STARTS = ("consistent", "arbitrary")


def circumradius(N: int) -> float:
    """Of the regular polygon at rest [m]."""
    return 1 / np.tan(np.pi / (2 * N)) / (2 * N)


def places(N: int = 5) -> np.ndarray:
    """Where the robots start (N, 2) [m]: any other number than five fills a disc of 5 m, by the golden angle."""
    if N == 5:
        return np.array(FIVE)
    k = np.arange(N)
    angle = np.pi * (3 - np.sqrt(5)) * k
    return 5 * np.sqrt((k + 0.5) / N)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def rates(N: int = 5) -> np.ndarray:
    """Velocities off the constraint (N, 2) [m/s]: 0.6 m/s in all directions, for any other number than five."""
    if N == 5:
        return np.array(FIVE_RATES)
    return 0.6 * np.stack([np.cos(np.arange(N)), np.sin(np.arange(N))], axis=1)


def distances(q) -> np.ndarray:
    """Of every pair (..., N (N - 1) / 2) [m] in states q (..., 2N)."""
    at = np.asarray(q).reshape(*np.shape(q)[:-1], -1, 2)
    i, j = np.triu_indices(at.shape[-2], 1)
    return np.linalg.norm(at[..., i, :] - at[..., j, :], axis=-1)


def scenario(N: int = 5, start: str = "consistent", kappa: float = 0.0, t1: float = 10.0) -> ukjax.Scenario:
    """`start` is consistent (beta = 0) or arbitrary; beta decays with `kappa` [1/s], zero as printed."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    if N < 2:
        raise ValueError(f"N must be the number of robots, at least 2, but is {N}.")
    gathering = Gathering()
    q0 = jnp.array(places(N).ravel())
    v0 = -gathering.gradient(q0) if start == "consistent" else jnp.array(rates(N).ravel())
    return ukjax.Scenario(
        ukjax.Mechanism(Swarm(np.full(N, 2.0)), ukjax.Nonholonomic(gathering.beta, ukjax.Baumgarte(kappa))),
        q0,
        v0,
        t1,
        name=f"Swarm of {N} robots",
        coordinates=tuple(f"{axis}{i + 1} [m]" for i in range(N) for axis in "xy"),
        observables={
            "centroid x, y [m]": lambda q, v, t: jnp.mean(q.reshape(-1, 2), axis=0),
            "error |beta| [m/s]": lambda q, v, t: jnp.linalg.norm(gathering.beta(q, v, t)),
        },
        invariants=_invariants(gathering) if kappa == 0.0 else None,
        drawing=_drawing(N),
        source="Zhao et al. (2018), section 8.2",
    )


def _invariants(gathering: Gathering):
    return {
        "mean beta, x [m/s]": lambda q, v, t: jnp.mean(gathering.beta(q, v, t)[::2]),
        "mean beta, y [m/s]": lambda q, v, t: jnp.mean(gathering.beta(q, v, t)[1::2]),
    }


def _drawing(N: int) -> ukjax.study.Drawing:
    robot = lambda i: lambda q, t: q[2 * i : 2 * i + 2][None]
    arrow = lambda i: lambda q, t, force: (q[2 * i : 2 * i + 2], force[2 * i : 2 * i + 2])
    names = [f"robot {i + 1}" for i in range(N)]
    return ukjax.study.Drawing(
        {name: robot(i) for i, name in enumerate(names)},
        trails=names,
        forces={name: arrow(i) for i, name in enumerate(names)},
    )
