"""Scenarios with drawings, and trajectories of them, for the tests of pictures, pages and films."""

import functools
import json
import re

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import ukjax
from models import parallelogram, scara, simple_pendulum

from ..helpers import falling, rod, run


class Chain(ukjax.AbstractSystem):
    """Three equal particles on a string that is fixed at both ends: a closed chain, q = (x1, y1, ..., y3) [m]."""

    def mass(self, q, t):
        return jnp.eye(6)

    def force(self, q, v, t):
        return jnp.tile(jnp.array([0.0, -9.81]), 3)

    def points(self, q, t):
        """(5, 2) [m]"""
        ends = jnp.array([[0.0, 0.0], [2.0, 0.0]])
        return jnp.concatenate([ends[:1], q.reshape(3, 2), ends[1:]])

    def lengths(self, q, t):
        pieces = jnp.diff(self.points(q, t), axis=0)
        return jnp.sum(pieces**2, axis=1) - 0.5


def redrawn(scenario, drawing, **changes):
    """A scenario with another drawing, and other fields changed."""
    fields = {"drawing": drawing, **changes}
    names = list(fields)
    at = lambda s: [getattr(s, name) for name in names]
    return eqx.tree_at(at, scenario, [fields[name] for name in names], is_leaf=lambda x: x is None)


def pendulum(t1=0.5):
    drawing = ukjax.study.Drawing(
        {"rod": lambda q, t: jnp.stack([jnp.zeros(2), q])},
        trails=["rod"],
        forces={"force of the rod": lambda q, t, force: (q, force)},
        scenery={"pivot": [[0.0, 0.0]], "floor": [[-1.0, -1.2], [1.0, -1.2]]},
    )
    return redrawn(simple_pendulum.scenario(t1), drawing)


def spherical(t1=0.5):
    drawing = ukjax.study.Drawing(
        {"rod": lambda q, t: jnp.stack([jnp.zeros(3), q])},
        trails=["rod"],
        forces={"force": lambda q, t, force: (q, force)},
        scenery={"plumb line": [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0]]},
    )
    return ukjax.Scenario(
        ukjax.Mechanism(falling(n=3), rod(1.0)),
        [0.8, 0.0, -0.6],
        [0.0, 1.5, 0.0],
        t1,
        name="Spherical <pendulum>",
        coordinates=["x [m]", "y [m]", "z [m]"],
        projection=ukjax.Projection(),
        drawing=drawing,
        source="A </script> that ends nothing & more",
    )


def chain():
    model = Chain()
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.lengths))
    return ukjax.Scenario(
        mechanism,
        [0.5, -0.5, 1.0, 0.0, 1.5, -0.5],
        jnp.zeros(6),
        0.5,
        drawing=ukjax.study.Drawing({"string": model.points}),
    )


def links_of_parallelogram():
    case = parallelogram.scenario(t1=0.2)

    def bar(i):
        along = lambda q: jnp.stack([jnp.cos(q[3 * i + 2]), jnp.sin(q[3 * i + 2])])
        half = 1.0 if i == 3 else 0.5
        return lambda q, t: jnp.stack([q[3 * i : 3 * i + 2] + s * half * along(q) for s in (-1, 1)])

    return redrawn(case, ukjax.study.Drawing({f"bar {i}": bar(i) for i in range(4)}, trails=["bar 3"]))


def robot():
    model = scara.Scara()

    def arm(q, t):
        elbow = model.l1 * jnp.stack([-jnp.sin(q[0]), jnp.cos(q[0]), jnp.zeros(())])
        return jnp.stack([jnp.zeros(3), elbow, model.tool(q)])

    helix = np.stack([scara.helix(t) for t in np.linspace(0.0, 1.0, 9)])
    forces = {"lift": lambda q, t, force: (model.tool(q), jnp.zeros(3).at[2].set(force[3]))}
    drawing = ukjax.study.Drawing({"arm": arm}, trails=["arm"], scenery={"helix": helix}, forces=forces)
    return redrawn(scara.scenario(t1=0.5), drawing)


CASES = {"plane": pendulum, "space": spherical, "chain": chain, "four links": links_of_parallelogram, "robot": robot}


def moved(scenario):
    """Some trajectory at eleven times, where it does not matter that it is no solution."""
    t = jnp.linspace(scenario.t0, scenario.t1, 11)
    phase = t[:, None] + jnp.arange(1.0, 1.0 + len(scenario.q0))[None]
    q, force = scenario.q0[None] + 0.1 * jnp.sin(3 * phase), 7.0 * jnp.cos(phase)
    zero = jnp.zeros_like(t)
    rest = (zero, zero, None, None, None, jnp.zeros(11, int), ukjax.RESULTS.successful, {})
    return ukjax.Trajectory(t, q, 0.3 * jnp.cos(3 * phase), -0.9 * jnp.sin(3 * phase), force, 0 * q, None, *rest)


@functools.cache
def simulated(make):
    """A scenario and its trajectory at eleven times, simulated once."""
    scenario = make()
    return scenario, run(scenario, points=11)


def colors_of(pixels):
    return len(np.unique(np.asarray(pixels)[..., :3].reshape(-1, 3), axis=0))


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)
