"""Chain of N rods, hanging or closed, q = (x, y, phi) of each rod's middle [m, rad].

    o--- x                 o            o      closed: the last rod ends on a second pivot
     \\ 1                    \\         /
      o                      o---...--o
      | 2                                      gravity along -y; phi from the x axis, uniform rods
      o  ...

3 N coordinates and 2 N rows, N degrees of freedom; closed, 2 N + 2 rows, which are dependent where all rods are in
line. The hanging chain conserves energy and, without gravity, its angular momentum about the pivot. For N = 1 it is a
pendulum with psi'' = -3 g / (2 L) sin(psi), psi = phi + pi / 2, in closed form.

Source: any mechanics text; the closed chain hangs at first in a circular arc, which is no equilibrium.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

import ukjax


class Chain(ukjax.AbstractSystem):
    m: Float[Array, " N"]  # masses [kg]
    L: Float[Array, " N"]  # lengths [m]
    g: Float[Array, ""]  # gravity [m/s^2]
    end: Float[Array, " 2"] | None  # the second pivot [m], None if the chain hangs freely

    def __init__(self, m=(1.0, 1.0, 1.0), L=(0.5, 0.5, 0.5), g=9.81, end=None):
        self.m, self.L, self.g = (jnp.asarray(x, float) for x in (m, L, g))
        if self.m.ndim != 1 or self.m.shape != self.L.shape or self.m.shape[0] < 1:
            raise ValueError(
                f"m and L must be one mass and one length per rod, shape (N,), but have shapes {self.m.shape} and "
                f"{self.L.shape}."
            )
        self.end = None if end is None else jnp.asarray(end, float)

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m, self.m, self.m * self.L**2 / 12], axis=1).ravel())

    def force(self, q, v, t):
        return jnp.zeros_like(q).at[1::3].set(-self.m * self.g)

    def tips(self, q):
        """Start and end of each rod, both (N, 2) [m]."""
        rods = q.reshape(-1, 3)
        half = self.L[:, None] / 2 * jnp.stack([jnp.cos(rods[:, 2]), jnp.sin(rods[:, 2])], axis=1)
        return rods[:, :2] - half, rods[:, :2] + half

    def joints(self, q, t):
        """phi (2 N,) [m], or (2 N + 2,) if closed: the first rod on its pivot, each on the one before, the last end."""
        start, end = self.tips(q)
        gaps = [start[0], (start[1:] - end[:-1]).ravel()]
        return jnp.concatenate(gaps if self.end is None else [*gaps, end[-1] - self.end])

    def state(self, phi, rate):
        """q and v (3 N,) for the angles [rad] of the rods and their rates [rad/s], both (N,)."""
        way = self.L[:, None] * jnp.stack([jnp.cos(phi), jnp.sin(phi)], axis=1)
        turn = (self.L * rate)[:, None] * jnp.stack([-jnp.sin(phi), jnp.cos(phi)], axis=1)
        N = self.L.shape[0]
        up_to_middle = jnp.asarray(np.tri(N) - np.eye(N) / 2)
        pack = lambda places, angles: jnp.concatenate([up_to_middle @ places, angles[:, None]], axis=1).ravel()
        return pack(way, phi), pack(turn, rate)

    def energy(self, q, v, t):
        """[J]"""
        return v @ (jnp.diag(self.mass(q, t)) * v) / 2 + self.g * self.m @ q[1::3]

    def momentum(self, q, v, t):
        """Angular momentum about the first pivot [kg m^2/s]; constant without gravity or second pivot."""
        x, y, vx, vy = q[0::3], q[1::3], v[0::3], v[1::3]
        return jnp.sum(self.m * (x * vy - y * vx) + self.m * self.L**2 / 12 * v[2::3])

    def mechanism(self) -> ukjax.Mechanism:
        return ukjax.Mechanism(self, ukjax.Holonomic(self.joints))


class Rod(ukjax.AbstractSystem):
    """One rod on its own, q = (x, y, phi) of its middle."""

    m: Float[Array, ""]  # [kg]
    L: Float[Array, ""]  # [m]
    g: Float[Array, ""]  # [m/s^2]

    def mass(self, q, t):
        return jnp.diag(jnp.stack([self.m, self.m, self.m * self.L**2 / 12]))

    def force(self, q, v, t):
        zero = jnp.zeros_like(self.m)
        return jnp.stack([zero, -self.m * self.g, zero])

    def end(self, q, side):
        """Its start (-1) or its end (1), (2,) [m]."""
        return q[:2] + side * self.L / 2 * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])


class Pin(eqx.Module):
    """Joins the end of one rod to the start of the next."""

    before: Rod
    after: Rod

    def __call__(self, q, t):
        return self.after.end(q[1][:], -1) - self.before.end(q[0][:], 1)


class Pivot(eqx.Module):
    """Holds the start or the end of a rod in its place."""

    rod: Rod
    place: Float[Array, " 2"]  # [m]
    side: int = eqx.field(static=True)

    def __call__(self, q, t):
        return self.rod.end(q[0][:], self.side) - self.place


def modular(chain: Chain) -> ukjax.modular.Composite:
    """The same chain, rod by rod: for many rods, whose equation of motion is solved at a cost proportional to N."""
    N = chain.m.shape[0]
    rods = [Rod(chain.m[i], chain.L[i], chain.g) for i in range(N)]
    name = lambda i: f"rod{i}"
    joints = {"pivot": ukjax.modular.Coupling(name(0), ukjax.Holonomic(Pivot(rods[0], jnp.zeros(2), -1)))}
    for i in range(1, N):
        pin = ukjax.Holonomic(Pin(rods[i - 1], rods[i]))
        joints[f"joint{i}"] = ukjax.modular.Coupling((name(i - 1), name(i)), pin)
    if chain.end is not None:
        joints["end"] = ukjax.modular.Coupling(name(N - 1), ukjax.Holonomic(Pivot(rods[-1], chain.end, 1)))
    modules = {name(i): ukjax.modular.Module(rod, ("x", "y", "phi")) for i, rod in enumerate(rods)}
    return ukjax.modular.Composite(modules, joints)


def arc(N: int, L: float, end) -> np.ndarray:
    """Angles (N,) [rad] of N rods of length L [m] that hang in a circular arc from the origin to `end` [m]."""
    chord = float(np.hypot(*end))
    if N < 3 or not 0 < chord < N * L:
        raise ValueError(
            f"A closed chain needs at least 3 rods, and ends less than their length apart, but has {N} rods of {L} m "
            f"and ends {chord} m apart."
        )
    # Each rod turns by the same angle d against the one before: the chord of the arc is L sin(N d / 2) / sin(d / 2).
    d = brentq(lambda d: L * np.sin(N * d / 2) / np.sin(d / 2) - chord, 1e-9, 2 * np.pi / N)
    return np.arctan2(end[1], end[0]) + np.asarray(d) * (np.arange(N) - (N - 1) / 2)


def _scenario(model: Chain, phi, rate, t1: float, name: str) -> ukjax.Scenario:
    q0, v0 = model.state(jnp.asarray(phi, float), jnp.asarray(rate, float))
    N = model.L.shape[0]
    rod = lambda i: lambda q, t: jnp.stack([x[i] for x in model.tips(q)])
    links = {f"rod {i + 1}": rod(i) for i in range(N)}
    ends = {} if model.end is None else {"second pivot": np.asarray(model.end)[None]}
    return ukjax.Scenario(
        model.mechanism(),
        q0,
        v0,
        t1,
        name=name,
        coordinates=tuple(f"{c}{i + 1} [{u}]" for i in range(N) for c, u in (("x", "m"), ("y", "m"), ("phi", "rad"))),
        invariants={"energy [J]": model.energy},
        projection=ukjax.Projection(),
        drawing=ukjax.study.Drawing(
            links,
            trails=(f"rod {N}",) if model.end is None else (f"rod {(N + 1) // 2}",),
            # What the joints do to each rod, as one force at its middle.
            forces={f"on rod {i + 1} [N]": _on_rod(i) for i in range(N)},
            scenery={"pivot": np.zeros((1, 2)), **ends},
        ),
        source="any mechanics text",
    )


def _on_rod(i: int):
    return lambda q, t, force: (q[3 * i : 3 * i + 2], force[3 * i : 3 * i + 2])


def _equal(N: int, L: float, end=None) -> Chain:
    """`N` rods of 1 kg, `L` [m] together."""
    if not isinstance(N, int) or N < 1:
        raise ValueError(f"N must be the number of rods, an integer of at least 1, but is {N!r}.")
    return Chain([1.0] * N, [L / N] * N, end=end)


def scenario(N: int = 3, phi: float = 0.0, rate: float = 0.0, t1: float = 5.0) -> ukjax.Scenario:
    """`N` rods that hang from one pivot, stretched out at the angle `phi` [rad], turning with `rate` [rad/s]."""
    model = _equal(N, 1.5)
    return _scenario(model, [phi] * N, [rate] * N, t1, f"Pendulum of {N} rods")


def closed(N: int = 5, x: float = 1.0, y: float = 0.4, t1: float = 5.0) -> ukjax.Scenario:
    """`N` rods of 2 m together between the origin and the pivot (x, y) [m], released at rest from a circular arc."""
    model = _equal(N, 2.0, (x, y))
    return _scenario(model, arc(N, 2.0 / N, (x, y)), [0.0] * N, t1, f"Closed chain of {N} rods")
