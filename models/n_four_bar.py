"""N four-bar windows in a row, q = (x, y, phi) of each rod's middle [m, rad]: A02 of the IFToMM benchmark library.

      B0------B1------B2 - - BN      N + 1 upright rods, N lying ones, each of length L
      |       |       |      |
      |       |       |      |       ground pivots at (0, 0), (L, 0), ..., (N L, 0); gravity along -y
      o       o       o      o

2 N + 1 rods, 6 N + 3 coordinates, 6 N + 2 rows: rank 6 N + 2, but less whenever the rods are all in line. One degree of
freedom, the angle theta of the upright rods: theta'' = -(g / L) ((N + 1) / 2 + N) / ((N + 1) / 3 + N) cos(theta).
It starts upright, theta = pi / 2, with B0 moving at 1 m/s along x.

Order of the rods: the upright ones from left to right, then the lying ones.

Source: IFToMM Technical Committee for Multibody Dynamics, Library of Computational Benchmark Problems, A02.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from . import closed_form


class NFourBar(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass of a rod [kg]
    L: Float[Array, ""]  # its length [m]
    g: Float[Array, ""]  # gravity [m/s^2]
    windows: int

    def __init__(self, windows=2, m=1.0, L=1.0, g=9.81):
        if windows < 1:
            raise ValueError(f"windows must be at least 1, but is {windows}.")
        self.windows = int(windows)
        self.m, self.L, self.g = (jnp.asarray(x, float) for x in (m, L, g))

    def mass(self, q, t):
        rod = jnp.stack([self.m, self.m, self.m * self.L**2 / 12])
        return jnp.diag(jnp.tile(rod, 2 * self.windows + 1))

    def force(self, q, v, t):
        return jnp.zeros_like(q).at[1::3].set(-self.m * self.g)

    def ends(self, q):
        """Start and end of each rod, both (2 N + 1, 2) [m]."""
        rods = q.reshape(-1, 3)
        half = self.L / 2 * jnp.stack([jnp.cos(rods[:, 2]), jnp.sin(rods[:, 2])], axis=1)
        return rods[:, :2] - half, rods[:, :2] + half

    def joints(self, q, t):
        """phi (6 N + 2,) [m]: uprights on their pivots, left ends of lying rods on uprights, then right ends."""
        start, end = self.ends(q)
        N = self.windows
        pivots = jnp.stack([self.L * jnp.arange(N + 1.0), jnp.zeros(N + 1)], axis=1)
        tips = end[: N + 1]
        parts = [start[: N + 1] - pivots, start[N + 1 :] - tips[:-1], end[N + 1 :] - tips[1:]]
        return jnp.concatenate([part.ravel() for part in parts])

    def energy(self, q, v):
        """[J]"""
        return v @ (jnp.diag(self.mass(q, jnp.zeros(()))) * v) / 2 + self.m * self.g * jnp.sum(q[1::3])

    def corner(self, q):
        """B0 (2,) [m]"""
        return q[:2] + self.L / 2 * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])

    def state(self, theta, rate):
        """Coordinates and their rates for the angle [rad] of the uprights and its rate [rad/s]."""
        way = self.L * jnp.stack([jnp.cos(theta), jnp.sin(theta)])
        turn = self.L * rate * jnp.stack([-jnp.sin(theta), jnp.cos(theta)])
        N, zero = self.windows, jnp.zeros(())
        at = lambda i: jnp.stack([i * self.L, zero])
        q = [jnp.append(at(1.0 * i) + way / 2, theta) for i in range(N + 1)]
        v = [jnp.append(turn / 2, rate)] * (N + 1)
        q += [jnp.append(at(i + 0.5) + way, zero) for i in range(N)]
        v += [jnp.append(turn, zero)] * N
        return jnp.concatenate(q), jnp.concatenate(v)


def exact(t, windows: int):
    """B0 and its velocity (T, 2) [m, m/s] at times t (T,) [s], for the parameters of the benchmark."""
    w = np.sqrt(9.81 * ((windows + 1) / 2 + windows) / ((windows + 1) / 3 + windows))
    psi, rate = closed_form.pendulum(t, np.pi, -1.0, w)  # theta = psi - pi / 2
    return np.stack([np.sin(psi), -np.cos(psi)], axis=1), rate[:, None] * np.stack([np.cos(psi), np.sin(psi)], axis=1)


def _drawing(model: NFourBar) -> ukjax.study.Drawing:
    rods = range(2 * model.windows + 1)
    link = lambda i: lambda q, t: jnp.stack([x[i] for x in model.ends(q)])
    # What the joints do to a rod, as one force at its middle.
    force = lambda i: lambda q, t, force: (q[3 * i : 3 * i + 2], force[3 * i : 3 * i + 2])
    return ukjax.study.Drawing(
        {f"rod {i + 1}": link(i) for i in rods},
        trails=("rod 1",),
        forces={f"on rod {i + 1} [N]": force(i) for i in rods},
        scenery={"ground": np.array([[0.0, 0.0], [model.windows * float(model.L), 0.0]])},
    )


def scenario(windows: int = 2, speed: float = 1.0, t1: float = 10.0) -> ukjax.Scenario:
    """`windows` of them; B0 starts with `speed` along x [m/s]."""
    model = NFourBar(windows)
    q0, v0 = model.state(jnp.asarray(np.pi / 2), -jnp.asarray(speed, float) / model.L)
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.joints)),
        q0,
        v0,
        t1,
        name=f"{windows} four-bar windows (IFToMM A02)",
        observables={"corner B0 x, y [m]": lambda q, v, t: model.corner(q)},
        invariants={"energy [J]": lambda q, v, t: model.energy(q, v)},
        projection=ukjax.Projection(),
        drawing=_drawing(model),
        source="IFToMM benchmark A02",
    )
