"""Overconstrained parallelogram, q = (x1, y1, phi1, x2, y2, phi2, x3, y3, phi3, xc, yc, phic) [m, rad].

        o=========o=========o      coupler, centre of mass in the middle: (xc, yc, phic)
       /         /         /
      / 1       / 2       / 3      three bars at the angle theta, their centres of mass in the middle: (xi, yi, phii)
     /         /         /
    o         o         o  ------> x, pivots at x = 0, 1, 2; gravity along -y

Six joints, two rows each: 12 rows for 12 coordinates, of rank 11, and of rank 10 where all links are in line (theta = 0
and pi). One degree of freedom: theta'' = -w^2 cos(theta), with w^2 = (3 m / 2 + mc) g L / (3 (I + m L^2 / 4) + mc L^2).

Source: de Falco, D., Pennestri, E. and Vita, L. (2008), An investigation of the influence of pseudoinverse matrix
calculations on multibody dynamics simulations by means of the Udwadia-Kalaba formulation; figure 1 and the text below
"Simulation results". Its start and the distances between the pivots are not printed: they are ours.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax

from . import closed_form


# theta(0) [rad] and theta'(0) [rad/s].
STARTS = {
    "swing": (-np.pi / 4, 0.0),  # stays away from the singular configurations
    "crossing": (np.pi / 4, 0.0),  # passes them twice a period
    "rotation": (-np.pi / 2, 8.0),  # and twice a turn
}


class Parallelogram(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass of a bar [kg]
    I: Float[Array, ""]  # its moment of inertia about its centre of mass [kg m^2]
    L: Float[Array, ""]  # its length [m]
    mc: Float[Array, ""]  # mass of the coupler [kg]
    Ic: Float[Array, ""]  # its moment of inertia [kg m^2]
    g: Float[Array, ""]  # gravity [m/s^2]

    def __init__(self, m=1.0, I=0.1, L=1.0, mc=2.0, Ic=0.2, g=9.81):
        self.m, self.I, self.L, self.mc, self.Ic, self.g = (jnp.asarray(x, float) for x in (m, I, L, mc, Ic, g))

    def mass(self, q, t):
        bar, coupler = [self.m, self.m, self.I], [self.mc, self.mc, self.Ic]
        return jnp.diag(jnp.stack(3 * bar + coupler))

    def force(self, q, v, t):
        masses = jnp.stack([self.m, self.m, self.m, self.mc])
        return jnp.zeros_like(q).at[1::3].set(-masses * self.g)

    def bars(self, q):
        """Start and end of the bars, both (3, 2) [m]."""
        x, y, angle = q[0:9:3], q[1:9:3], q[2:9:3]
        half = self.L / 2 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)  # from the middle to the tip
        middle = jnp.stack([x, y], axis=1)
        return middle - half, middle + half

    def coupler(self, q):
        """The coupler's joints (3, 2) [m]."""
        along = jnp.stack([jnp.cos(q[11]), jnp.sin(q[11])])
        return q[None, 9:11] + jnp.arange(-1.0, 2.0)[:, None] * along[None]

    def joints(self, q, t):
        """phi (12,) [m]: bars on their pivots, then bars on the coupler, x before y."""
        start, end = self.bars(q)
        pivots = jnp.stack([jnp.arange(3.0), jnp.zeros(3)], axis=1)
        return jnp.concatenate([(start - pivots).ravel(), (end - self.coupler(q)).ravel()])

    def energy(self, q, v):
        """[J]"""
        masses = jnp.stack([self.m, self.m, self.m, self.mc])
        return v @ self.mass(q, jnp.zeros(())) @ v / 2 + self.g * masses @ q[1::3]

    def state(self, theta, rate):
        """Coordinates (12,) and their rates for the angle [rad] of the bars and its rate [rad/s]."""
        way = jnp.stack([jnp.cos(theta), jnp.sin(theta)])
        turn = jnp.stack([-jnp.sin(theta), jnp.cos(theta)]) * rate
        zero = jnp.zeros_like(way[0])
        q = [jnp.array([i + self.L / 2 * way[0], self.L / 2 * way[1], theta]) for i in range(3)]
        v = [jnp.array([self.L / 2 * turn[0], self.L / 2 * turn[1], rate])] * 3
        q.append(jnp.array([1.0 + self.L * way[0], self.L * way[1], zero]))
        v.append(jnp.array([self.L * turn[0], self.L * turn[1], zero]))
        return jnp.concatenate(q), jnp.concatenate(v)


def exact(t, start: str):
    """theta and theta' (T,) at times t [s], for the parameters of the paper."""
    theta, rate = STARTS[start]
    psi, rate = closed_form.pendulum(t, theta + np.pi / 2, rate, np.sqrt(3.5 * 9.81 / 3.05))
    return psi - np.pi / 2, rate


def _drawing(model: Parallelogram) -> ukjax.study.Drawing:
    bar = lambda i: lambda q, t: jnp.stack([x[i] for x in model.bars(q)])
    # What the joints do to a body, as one force at its centre of mass.
    force = lambda i: lambda q, t, force: (q[3 * i : 3 * i + 2], force[3 * i : 3 * i + 2])
    return ukjax.study.Drawing(
        {**{f"bar {i + 1}": bar(i) for i in range(3)}, "coupler": lambda q, t: model.coupler(q)},
        trails=("coupler",),
        forces={f"on {body} [N]": force(i) for i, body in enumerate(("bar 1", "bar 2", "bar 3", "the coupler"))},
        scenery={"pivots": np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])},
    )


def scenario(start: str = "swing", damping: float = 0.0, stiffness: float = 0.0, t1: float = 20.0) -> ukjax.Scenario:
    """`start` is swing, crossing or rotation; gains of zero do not stabilise."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, but is {start!r}.")
    model = Parallelogram()
    theta, rate = STARTS[start]
    q0, v0 = model.state(jnp.asarray(theta), jnp.asarray(rate))
    return ukjax.Scenario(
        ukjax.Mechanism(model, ukjax.Holonomic(model.joints, ukjax.Baumgarte(damping, stiffness))),
        q0,
        v0,
        t1,
        name=f"Overconstrained parallelogram, {start}",
        coordinates=tuple(f"{c}{b} [{u}]" for b in "123c" for c, u in (("x", "m"), ("y", "m"), ("phi", "rad"))),
        observables={"theta [rad]": lambda q, v, t: q[2]},
        invariants={"energy [J]": lambda q, v, t: model.energy(q, v)},
        projection=ukjax.Projection(),
        drawing=_drawing(model),
        source="de Falco et al. (2008), figure 1",
    )
