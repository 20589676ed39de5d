"""What a device gets done in a second, and whether it is what a CPU gets; meant for a GPU, and runs on any device.

First numbers are compared with those of the CPU: accelerations, also where rows are redundant or a state is singular,
trajectories, also of a batch with a bad member, and gradients. Then accelerations, trajectories and gradients are timed
against the size of the batch, in double and in single precision. Operations are those of the scalar code, a fused
product and sum as one, and of a trajectory those of its stages alone. The last part is of the operations of a product
of matrices there. All takes less than eight minutes of a bare machine.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import n_pendulum, scara, six_joint_arm

from . import _measure


SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONGEST = 10.0  # [s] expected of one run; larger batches are left out
MOTION, SAVED = 5.0, 101  # [s] of motion in a trajectory, and how many states of it are saved
STAGES = 6  # of a step by Tsit5
HEADER = ("what", "precision", "batch", "time", "a second", "operations a second", "of the device", "first result")
Row = tuple[str, ...]


def rows(report: Callable[[str], None], sizes: tuple[int, ...] = SIZES, motion: float = MOTION) -> list[Row]:
    found = _checks(report, motion)
    for dtype in (jnp.float64, jnp.float32):
        report(f"a product of matrices, {jnp.dtype(dtype).name}")
        most = _most(dtype)
        for task in _tasks(dtype, motion):
            found += _of(task, dtype, most, sizes, report)
    return found


class Task(NamedTuple):
    """A function of one state: its name, its largest batch, its mechanism, and whether it makes steps."""

    name: str
    function: Callable[[Any, Any], Any]
    most: int
    scenario: ukjax.Scenario
    steps: bool


def _tasks(dtype: Any, motion: float) -> list[Task]:
    found = []
    for name, scenario in (
        ("SCARA", scara.scenario()),
        ("closed chain of 5 rods", n_pendulum.closed(5)),
        ("arm of 6 joints", six_joint_arm.scenario()),
    ):
        mechanism = _cast(scenario.mechanism, dtype)

        def acceleration(q, v, mechanism=mechanism):
            return ukjax.equation_of_motion(mechanism, q, v, jnp.zeros((), dtype), throw=False).acceleration

        found.append(Task(f"accelerations, {name}", acceleration, 1_000_000, scenario, False))
    start, tolerance = scara.scenario(), 1e-5 if dtype == jnp.float32 else 1e-9
    mechanism = _cast(start.mechanism, dtype)

    def run(q, v, keep, motion):
        ts = jnp.linspace(0.0, motion, SAVED).astype(dtype)
        options: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "throw": False, "keep": keep}
        found = ukjax.simulate(mechanism, q, v, ts, **options)
        return tuple(getattr(found, name) for name in keep), found.stats["num_steps"]

    def mean(q, v):
        return jnp.mean(run(q, v, ("q",), 0.2 * motion)[0][0] ** 2)

    return [
        *found,
        Task(
            f"trajectories of {motion:g} s, q and v kept",
            lambda q, v: run(q, v, ("q", "v"), motion),
            10_000,
            start,
            True,
        ),
        Task(f"trajectories of {motion:g} s, q kept", lambda q, v: run(q, v, ("q",), motion), 100_000, start, True),
        Task(f"gradients of {0.2 * motion:g} s", jax.grad(mean, argnums=(0, 1)), 10_000, start, False),
    ]


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def _states(scenario: ukjax.Scenario, size: int, dtype: Any) -> tuple[Any, ...]:
    """States near the start of a scenario."""
    noise = 1e-2 * np.random.default_rng(0).normal(size=(2, size, len(scenario.q0)))
    return tuple(
        jnp.asarray(np.asarray(x)[None] + y, dtype) for x, y in zip((scenario.q0, scenario.v0), noise, strict=True)
    )


def _of(task: Task, dtype: Any, most: float, sizes: tuple[int, ...], report: Callable[[str], None]) -> list[Row]:
    found, each = [], 0.0
    is_acceleration = task.name.startswith("accelerations")
    operations = _operations(task.scenario) if is_acceleration or task.steps else None
    for size in sizes:
        if each * size > LONGEST or size > task.most:
            break
        report(f"{task.name}, {jnp.dtype(dtype).name}, {size:,}")
        timing = _measure.measure(jax.vmap(task.function), *_states(task.scenario, size, dtype), repeats=5, seconds=3.0)
        each = timing.run_s / size
        count = STAGES * int(jnp.sum(timing.output[1])) if task.steps else size
        speed = None if operations is None else operations * count / timing.run_s
        found.append((
            task.name,
            jnp.dtype(dtype).name,
            f"{size:,}",
            f"{timing.run_s:.3g} s",
            f"{1 / each:,.0f}",
            "-" if speed is None else f"{speed:.2g}",
            "-" if speed is None else f"{2 * speed / most:.1%}",
            f"{timing.compile_s:.1f} s",
        ))  # fmt: skip
    return found


def _operations(scenario: ukjax.Scenario) -> int | None:
    compiled = ukjax.compile(scenario.mechanism)
    compiled(np.asarray(scenario.q0, float), np.asarray(scenario.v0, float))
    return compiled.operations


def _most(dtype: Any, n: int = 2_048) -> float:
    """Operations a second, products and sums, of a product of matrices."""
    product = _measure.measure(lambda A: A @ A, jnp.ones((n, n), dtype), repeats=10)
    return 2 * n**3 / product.run_s


def _checks(report: Callable[[str], None], motion: float) -> list[Row]:
    """Whether numbers have the bits that they have on the CPU, or by how much of the largest they are off."""
    start, chain = scara.scenario(), n_pendulum.closed(5)
    twice = ukjax.Mechanism(chain.mechanism.system, (*chain.mechanism.constraints, *chain.mechanism.constraints))
    circle = ukjax.Mechanism(
        ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])),
        ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0])),
    )
    ts = jnp.linspace(0.0, 0.1 * motion, 11)

    def accelerations(mechanism):
        return jax.vmap(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration)

    def run(q, v):
        return ukjax.simulate(start.mechanism, q, v, ts, rtol=1e-9, atol=1e-9, throw=False, keep=("q",)).q

    q, v = _states(start, 300, jnp.float64)
    points = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.6, 0.8]])  # in the middle the row vanishes
    cases = {
        "accelerations": (accelerations(start.mechanism), q, v),
        "accelerations, closed chain": (accelerations(chain.mechanism), *_states(chain, 300, jnp.float64)),
        "accelerations, rows twice": (accelerations(twice), *_states(chain, 300, jnp.float64)),
        "accelerations, a singular state": (accelerations(circle), points, 0 * points),
        "trajectories, one of which fails": (jax.vmap(run), q, v.at[7].set(jnp.nan)),
        "gradients": (jax.vmap(jax.grad(lambda q, v: jnp.sum(run(q, v) ** 2), argnums=(0, 1))), q, v),
    }
    found = []
    for name, (function, *args) in cases.items():
        report(f"the numbers of a CPU: {name}")
        got = jax.tree_util.tree_leaves(jax.jit(function)(*args))
        with jax.default_device(jax.devices("cpu")[0]):
            here = [jax.device_put(x, jax.devices("cpu")[0]) for x in args]
            want = jax.tree_util.tree_leaves(jax.jit(function)(*here))
        pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(got, want, strict=True)]
        same = all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)
        off = max(float(np.nanmax(np.abs(x - y)) / np.nanmax(np.abs(y))) for x, y in pairs)
        found.append(
            (name, "float64", f"{len(args[0]):,}", "the same bits" if same else f"off by {off:.1e}", *["-"] * 4)
        )
    return found
