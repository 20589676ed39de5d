"""A study for tests, also for those in processes of their own: a weight on a spring, in closed form.

`python -m tests.sweep.study FOLDER [SAMPLES CHUNK [ADDRESS]]` runs it.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import ukjax


TS = np.linspace(0.0, 2.0, 5)


def scenario(stiffness=4.0, amplitude=1.0):
    """x'' = -k x beside a wall, which a row holds it at twice."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: -stiffness * q)
    wall = ukjax.Holonomic(lambda q, t: q[1:])
    energy = lambda q, v, t: (v @ v + stiffness * q @ q) / 2
    start = jnp.stack([jnp.asarray(amplitude, float), jnp.zeros(())])
    return ukjax.Scenario(
        ukjax.Mechanism(system, [wall, wall]), start, jnp.zeros(2), 2.0, name="A spring",
        coordinates=["x [m]", "y [m]"], invariants={"energy [J]": energy},
    )  # fmt: skip


def exact(data):
    k, a = np.asarray(data.stiffness)[:, None], np.asarray(data.amplitude)[:, None]
    return a * np.cos(np.sqrt(k) * np.asarray(data.time))


def run(folder, samples=12, chunk=4, client=None, **options):
    vary = {"stiffness": (1.0, 9.0), "amplitude": (0.5, 2.0)}
    given = {"design": "lhs", "samples": samples, "seed": 1, "ts": TS, "chunk": chunk, "progress": False, **options}
    return ukjax.sweep(scenario, vary, folder, client=client, name="spring", **given)


def results(folder):
    """All bytes of the results, but for when and by which command they were made."""
    own = (".zattrs", ".zmetadata")
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("data.zarr/*/*")) if p.name not in own}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    numbers = [int(x) for x in sys.argv[2:4]]
    if len(sys.argv) > 4:
        from distributed import Client

        with Client(sys.argv[4]) as there:
            run(sys.argv[1], *numbers, client=there)
    else:
        run(sys.argv[1], *numbers)
