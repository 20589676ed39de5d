"""How much a device gets done in a second: accelerations, trajectories, gradients, against the size of the batch.

In single and double precision, with the part of the roofline that is reached: the least of the operations a second that
a product of matrices gets to here, and of what the bytes allow that go in and out, at the speed of a copy. Operations
are XLA's count before it optimises, bytes those of arguments and results. Runs on any device; meant for a GPU.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import ukjax
from models import scara

from . import _measure


SIZES = (1_000, 10_000, 100_000, 1_000_000)
LONGEST = 20.0  # [s] expected of one run; larger batches are left out
MOTION, SAVED = 0.5, 11  # [s] of motion in a trajectory, and how many states of it are saved
HEADER = ("what", "precision", "batch", "a second", "of the roofline", "compile")


def rows(
    report: Callable[[str], None], sizes: tuple[int, ...] = SIZES, motion: float = MOTION
) -> list[tuple[str, ...]]:
    found = []
    for dtype in (jnp.float32, jnp.float64):
        roofs = _roofs(report, dtype)
        for task in _tasks(dtype, motion):
            found += _of(task, dtype, roofs, sizes, report)
    return found


class Task(NamedTuple):
    """A function of one state, and whether XLA knows how many operations it takes: of a loop of steps it does not."""

    name: str
    function: Callable[[Any, Any], Any]
    counted: bool


def _tasks(dtype: Any, motion: float) -> list[Task]:
    mechanism = _cast(scara.scenario().mechanism, dtype)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-9
    ts = jnp.linspace(0.0, motion, SAVED).astype(dtype)

    def acceleration(q, v):
        return ukjax.equation_of_motion(mechanism, q, v, jnp.zeros((), dtype), throw=False).acceleration

    def trajectory(q, v):
        options: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "throw": False, "keep": ("q",)}
        return ukjax.simulate(mechanism, q, v, ts, **options).q

    def gradient(of: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda q, v: jnp.sum(of(q, v) ** 2), argnums=(0, 1))

    return [
        Task("acceleration", acceleration, True),
        Task("its gradient", gradient(acceleration), True),
        Task(f"trajectory, {motion:g} s", trajectory, False),
        Task("its gradient in the start", gradient(trajectory), False),
    ]


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def _of(
    task: Task, dtype: Any, roofs: tuple[float, float], sizes: tuple[int, ...], report: Callable
) -> list[tuple[str, ...]]:
    start = scara.scenario()
    found, each = [], 0.0
    for size in sizes:
        if each * size > LONGEST:
            break
        report(f"{task.name}, {jnp.dtype(dtype).name}, {size:,}")
        noise = 0.01 * jax.random.normal(jax.random.key(0), (2, size, start.q0.shape[0]), dtype)
        q, v = (x.astype(dtype)[None] + y for x, y in zip((start.q0, start.v0), noise, strict=True))
        timing = _measure.measure(jax.vmap(task.function), q, v, repeats=5, seconds=5.0)
        each = timing.run_s / size
        part = _part_of_the_roofline(jax.vmap(task.function), (q, v), timing.run_s, roofs) if task.counted else "-"
        found.append((
            task.name,
            jnp.dtype(dtype).name,
            f"{size:,}",
            f"{1 / each:,.0f}",
            part,
            f"{timing.compile_s:.1f} s",
        ))  # fmt: skip
    return found


def _part_of_the_roofline(function: Callable, arguments: tuple[Any, ...], seconds: float, roofs: Any) -> str:
    costs: Any = jax.jit(function).lower(*arguments).cost_analysis() or {}
    operations, most, fastest = costs.get("flops", 0.0), *roofs
    moved = _bytes(arguments) + _bytes(jax.eval_shape(function, *arguments))
    if not operations > 0:
        return "-"
    return f"{max(operations / most, moved / fastest) / seconds:.1%}"


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree_util.tree_leaves(tree))


def _roofs(report: Callable[[str], None], dtype: Any, n: int = 2_048) -> tuple[float, float]:
    """Operations a second of a product of matrices, and bytes a second of a copy."""
    report(f"the roofline, {jnp.dtype(dtype).name}")
    A = jnp.ones((n, n), dtype)
    product = _measure.measure(lambda A: A @ A, A, repeats=10)
    copied = _measure.measure(lambda x: x + 1, jnp.ones(16 * n * n, dtype), repeats=10)
    return 2 * n**3 / product.run_s, 2 * 16 * A.nbytes / copied.run_s
