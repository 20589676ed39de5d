"""One particle, q = (x, y, z) [m], under three constraints that look alike; gravity along -z.

        z |   * m        scleronomic     x' + 2 y y' + z' = 0    is  x + y^2 + z + L = 0
          |  /           rheonomic       x' + 2 y y' + z' = 1    is  x + y^2 + z - t + L = 0
          | /            nonholonomic    x' + 2 z y' + z' = 0    is no such thing
          o------- y
         /  x            metres, and y^2 or 2 z y' stands for y^2 / (1 m), 2 z y' / (1 m), and the 1 for 1 m/s

The first two have the same A and b: only the initial velocity tells them apart. The constraint force has equal x and z
components, so x - z falls freely in all three: x - z = x0 - z0 + (x0' - z0') t + g t^2 / 2. Further constants:
(g - 2 y'^2) (1 + 2 y^2) of the holonomic two; the energy of the first and the last, whose force does no work; of the
second, whose force works at the rate of its own x component, the energy less m x' (1 m/s).

Whether one row alpha dx + beta dy + gamma dz + delta dt can be integrated is asked of the row itself, as a velocity
constraint: `kind`, by Frobenius's test, and for time-independent ones `lemma_1`, eq. 11. That is 2 for the last (eq. 17
prints 1; nonholonomic all the same).

Source: Zhao et al. (2018), Udwadia-Kalaba equation for constrained mechanical systems: formulation and applications,
Chinese Journal of Mechanical Engineering 31, examples 2 to 4, eq. 10 to 20. The numbers are ours.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ukjax


class Particle(ukjax.AbstractSystem):
    m: Float[Array, ""]  # mass [kg]
    g: Float[Array, ""]  # gravity [m/s^2]
    L: Float[Array, ""]  # of eq. 13 and 15 [m]

    def __init__(self, m=1.0, g=9.81, L=-0.5):
        self.m, self.g, self.L = (jnp.asarray(x, float) for x in (m, g, L))

    def mass(self, q, t):
        return self.m * jnp.eye(3)

    def force(self, q, v, t):
        return self.m * self.g * jnp.array([0.0, 0.0, -1.0])

    def scleronomic(self, q, t):
        """phi (1,) [m], eq. 13."""
        return (q[0] + q[1] ** 2 + q[2] + self.L)[None]

    def rheonomic(self, q, t):
        """phi (1,) [m], eq. 15."""
        return (q[0] + q[1] ** 2 + q[2] - t + self.L)[None]

    def scleronomic_rate(self, q, v, t):
        """psi (1,) [m/s], eq. 12."""
        return (v[0] + 2 * q[1] * v[1] + v[2])[None]

    def rheonomic_rate(self, q, v, t):
        """psi (1,) [m/s], eq. 14."""
        return (v[0] + 2 * q[1] * v[1] + v[2] - 1.0)[None]

    def nonholonomic(self, q, v, t):
        """psi (1,) [m/s], eq. 16."""
        return (v[0] + 2 * q[2] * v[1] + v[2])[None]

    def energy(self, q, v, t):
        """[J]"""
        return self.m * (v @ v / 2 + self.g * q[2])

    def energy_less_work(self, q, v, t):
        """Energy less the work of the moving surface [J]."""
        return self.energy(q, v, t) - self.m * v[0]

    def falling(self, q, v, t):
        """(x - z) less its free fall, carried back to t = 0 [m]."""
        return q[0] - q[2] - (v[0] - v[2]) * t + self.g * t**2 / 2

    def sideways(self, q, v, t):
        """(g - 2 y'^2) (1 + 2 y^2) [m/s^2]."""
        return (self.g - 2 * v[1] ** 2) * (1 + 2 * q[1] ** 2)


def constraint(model: Particle, example: str) -> ukjax.AbstractConstraint:
    """Integrated where that is possible."""
    if example == "nonholonomic":
        return ukjax.Nonholonomic(model.nonholonomic)
    return ukjax.Holonomic(model.scleronomic if example == "scleronomic" else model.rheonomic)


def row(model: Particle, example: str) -> ukjax.Nonholonomic:
    """As the paper prints it: a row of velocities, eq. 12, 14 or 16."""
    rows = dict(zip(STARTS, (model.scleronomic_rate, model.rheonomic_rate, model.nonholonomic), strict=True))
    return ukjax.Nonholonomic(rows[example])


def kind(mechanism: ukjax.Mechanism, q, v, t=0.0) -> str:
    """Scleronomic, rheonomic or nonholonomic: definitions 1 and 2, for rows of velocities at a state."""
    q, v, t = (jnp.asarray(x, float) for x in (q, v, t))
    if not bool(jnp.all(ukjax.diagnose(mechanism, q, v, t).holonomic)):
        return "nonholonomic"
    # A row at rest is what multiplies dt; a row whose form changes with time shows in its derivative.
    drift = mechanism.velocity_error(q, jnp.zeros_like(v), t)
    change = jax.jacfwd(lambda s: mechanism.velocity_error(q, v, s))(t)
    return "rheonomic" if bool(jnp.any(jnp.abs(drift) + jnp.abs(change) > 1e-12)) else "scleronomic"


def lemma_1(form, q) -> Array:
    """The left-hand side of eq. 11 at q (3,), for `form(q)` = (alpha, beta, gamma): zero if and only if holonomic."""
    slope = jax.jacfwd(form)(q)
    curl = jnp.stack([slope[2, 1] - slope[1, 2], slope[0, 2] - slope[2, 0], slope[1, 0] - slope[0, 1]])
    return -form(q) @ curl


STARTS = {
    "scleronomic": ((0.0, 0.3, 0.41), (0.4, 0.8, -0.88)),
    "rheonomic": ((0.0, 0.3, 0.41), (0.4, 0.8, 0.12)),
    "nonholonomic": ((0.0, 0.0, 0.5), (-1.7, 0.7, 1.0)),
}


def scenario(example: str = "nonholonomic", t1: float = 3.0) -> ukjax.Scenario:
    """`example` is scleronomic, rheonomic or nonholonomic: examples 2, 3 and 4."""
    if example not in STARTS:
        raise ValueError(f"example must be one of {', '.join(STARTS)}, but is {example!r}.")
    model = Particle()
    q0, v0 = (jnp.array(x) for x in STARTS[example])
    return ukjax.Scenario(
        ukjax.Mechanism(model, constraint(model, example)),
        q0,
        v0,
        t1,
        name=f"Particle under a {example} constraint",
        coordinates=("x [m]", "y [m]", "z [m]"),
        invariants=invariants(model, example),
        drawing=_drawing(example),
        source=f"Zhao et al. (2018), example {list(STARTS).index(example) + 2}",
    )


def invariants(model: Particle, example: str) -> dict:
    """Name with unit -> `f(q, v, t)`, of one of the examples."""
    constants = {"x - z less free fall [m]": model.falling}
    if example != "nonholonomic":
        constants["(g - 2 y'^2) (1 + 2 y^2) [m/s^2]"] = model.sideways
    if example == "rheonomic":
        return constants | {"energy less work of the surface [J]": model.energy_less_work}
    return constants | {"energy [J]": model.energy}


def _drawing(example: str) -> ukjax.study.Drawing:
    return ukjax.study.Drawing(
        {"particle": lambda q, t: q[None]},
        trails=("particle",),
        forces={"constraint": lambda q, t, force: (q, force)},
        scenery=_parabolas() if example == "scleronomic" else {},
    )


def _parabolas() -> dict[str, np.ndarray]:
    """Some lines x = constant of the surface x + y^2 + z = 0.5 [m]."""
    y = np.linspace(-2.0, 5.0, 40)
    return {
        f"surface at x = {x:g} m": np.stack([np.full_like(y, x), y, 0.5 - x - y**2], axis=1)
        for x in (0.0, 5.0, 10.0, 15.0)
    }
