"""Chain of N rods in space, a ball between each and the next; hanging, or with its other end held too.

     o.            .o      z up; rod i from its ball to the next; closed: the last end is held at `span` from the first
       `o.      .o'        three coordinates of motion a rod; a unit quaternion each
          `o--o'

Rods of round section, that also turn about themselves.

Source: the spatial N-pendulum, e.g. Featherstone (2008), Rigid Body Dynamics Algorithms, 9.5.
"""

import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

import ukjax
from ukjax import rigid


def robot(N: int = 4, closed: bool = False, length: float = 1.0, span: float = 0.6) -> rigid.Robot:
    """N rods of `length` / N [m] and a kilogram a metre; closed: held at `span` [m] times their length along x."""
    if N < 1 or (closed and N < 2):
        raise ValueError(f"N must be at least 1, of a closed chain 2, but is {N}.")
    each = length / N
    # Along x, and of a hundredth of its length in radius.
    bar = rigid.Inertia.cylinder(each, 0.1 * each, each, "x", (each / 2, 0.0, 0.0))
    bodies = {f"rod{i + 1}": rigid.Body(bar, {"end": rigid.Frame((each, 0.0, 0.0))}) for i in range(N)}
    ends = ["ground", *(f"rod{i + 1}.end" for i in range(N))]
    joints = {f"ball{i + 1}": rigid.Spherical(ends[i], f"rod{i + 1}") for i in range(N)}
    frames = {}
    if closed:
        joints["last"] = rigid.Spherical("ground.far", f"rod{N}.end")
        frames = {"far": rigid.Frame((span * length, 0.0, 0.0))}
    return rigid.Robot(bodies, joints, frames=frames)


def along(angles, headings) -> dict[str, list[float]]:
    """Quaternions of the balls for which each rod dips by an angle below the horizontal, at a heading about z [rad]."""
    found, before = {}, Rotation.identity()
    for i, (dip, heading) in enumerate(zip(angles, headings, strict=True)):
        now = Rotation.from_euler("ZY", (heading, dip))
        found[f"ball{i + 1}"], before = list((before.inv() * now).as_quat(scalar_first=True)), now
    return found


def scenario(N: int = 4, t1: float = 3.0) -> ukjax.Scenario:
    """Hanging by one end, from a helix."""
    chain = robot(N)
    q, v = chain.assemble(along([0.3] * N, np.linspace(0.0, 2.0, N)))
    return _scenario(chain, q, v, t1, f"Chain of {N} rods in space")


def closed(N: int = 4, t1: float = 3.0) -> ukjax.Scenario:
    """Held at both ends, an arch turned out of the vertical plane and let go."""
    chain = robot(N, closed=True)
    dips = np.linspace(-1.0, 1.0, N)
    q, v = chain.assemble(along(dips, 0.3 * np.ones(N)))
    return _scenario(chain, q, v, t1, f"Closed chain of {N} rods in space")


def _scenario(chain: rigid.Robot, q: jnp.ndarray, v: jnp.ndarray, t1: float, name: str) -> ukjax.Scenario:
    last = list(chain.bodies)[-1]
    return chain.scenario(
        q,
        v,
        t1,
        name=name,
        projection=ukjax.Projection(),
        invariants={"energy [J]": chain.energy},
        observables={"last joint x, y, z [m]": lambda q, v, t: chain.position(q, last)},
        drawing=chain.drawing(trails=[last]),
        source="Featherstone (2008), 9.5",
    )
