"""The simulation of many trajectories at once.

A batch of any size runs portion by portion: memory is that of a portion and of the kept results.

D: devices; B: trajectories.
"""

import collections
import dataclasses
import functools as ft
import inspect
import math
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, PyTree
from tqdm.auto import tqdm

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba
from .._lowering import runs_done, runs_machine_code, stopping
from .._manifold import Projection
from .._program import Packed, not_tracing, packed, shapes_of
from .._result import RESULTS, SUCCESS, FailedTrajectories, code_of, is_traced, message
from .._servo import AbstractController
from .._simulation import Rattle, Settings, StateLayout, diagnose_failure, warn_of_start
from .._trajectory import Trajectory
from .._types import Numbers
from .._user_code import noted
from .._waiting import reported
from ._devices import Device, Tiles, arranged, devices_of, everywhere, filled, is_here, on_each, placed
from ._parts import BatchInputs, MechanismOf, NumbersOf, ServoOf, batch_of
from ._plan import BatchProgram, BatchSettings, Outcome, Reduction, batch_outcome, unexplained


Devices = tuple[Device, ...]
T = TypeVar("T")

# The most bytes of results that a portion holds at once.
BYTES = 2**29
# JAX need not copy memory at multiples of this address; results of up to so many bytes share one piece of memory.
ALIGNED, TOGETHER = 64, 2**25
# The time between two moves of a progress bar, about, and the shortest between two looks whether results are there [s].
TICK, SHORTEST = 0.2, 1e-4


def in_portions(
    recipe: BatchSettings, samples: PyTree, devices: Sequence[Device], count: int, lanes: int, memory: int, bar: tqdm
) -> Outcome:
    """Runs all trajectories and returns their outcomes in memory of the host.

    Each is a loop of machine code; where it cannot be one, a portion is what the devices work on at a time.

    Args:
        recipe: What the trajectories share.
        samples: Those of the trajectories (B, ...).
        devices: The devices to use.
        count: B.
        lanes: The number of trajectories that a device works on at a time.
        memory: About the most bytes that a trajectory needs on the way.
        bar: Shows how many are done.
    """
    most = max(1, BYTES // (len(devices) * max(memory, 1)))
    outcome = _all(recipe, samples, Tiles(count, devices, most), True, bar) if runs_machine_code() else None
    if outcome is None:
        outcome = _all(recipe, samples, Tiles(count, devices, min(lanes, most)), False, bar)
    assert outcome is not None
    return outcome


def _all(recipe: BatchSettings, samples: PyTree, tiles: Tiles, native: bool, bar: tqdm) -> Outcome | None:
    """The outcomes by portions of a tile on each device; None if they are to be `native`, and cannot be."""
    recipe = recipe if native else dataclasses.replace(recipe, width=tiles.width)
    devices = tiles.devices
    whole, room, shared = len(devices) * tiles.width, None, everywhere(recipe, devices)
    for begin in range(0, tiles.count, whole):
        here = min(whole, tiles.count - begin)
        portion = jax.tree_util.tree_map(lambda x: np.asarray(x[begin : begin + here]), samples)  # noqa: B023
        dealt = arranged(packed(portion, axes=1), here, whole, len(devices))
        outcome = _run(devices, native, shared, *placed(dealt, devices))
        if outcome is None:
            return None
        outcome = _awaited(outcome, here, bar)
        room = _allocate_like(outcome, tiles.count) if room is None else room
        _copy_back(outcome, jax.tree_util.tree_map(lambda x: x[begin : begin + here], room))  # noqa: B023
    assert room is not None
    return room.tree


def _awaited(outcome: T, count: int, bar: tqdm) -> T:
    """The outcome of `count` runs, when it is there; a bar shows how many are done. An interruption stops them."""
    before, start, begin = runs_done(), bar.n, time.perf_counter()
    leaves = jax.tree_util.tree_leaves(outcome)
    try:
        while not all(x.is_ready() for x in leaves):
            time.sleep(min(SHORTEST + (time.perf_counter() - begin) / 50, TICK))
            bar.update(start + min(runs_done() - before, count) - bar.n)
    except BaseException:
        with stopping():
            while not all(x.is_ready() for x in leaves):  # on every device
                time.sleep(SHORTEST)
        raise
    bar.update(start + count - bar.n)
    return jax.block_until_ready(outcome)


def _run(devices: Devices, native: bool, recipe: Packed, samples: Packed, due: Array) -> Packed | None:
    """The outcomes of a portion, which need not be there yet; None if they are to be `native`, and cannot be."""
    arrays, static = eqxi.hashable_partition((recipe, samples, due), eqx.is_array)
    return _run_of(devices, native, static, arrays)


# `eqx.filter_jit` would wait for the results. XLA runs a program of less than some thousand operations in the thread
# that calls it: that of a few trajectories of a simple mechanism can neither be watched nor interrupted.
@ft.partial(jax.jit, static_argnums=(0, 1, 2))
def _run_of(devices: Devices, native: bool, static: Hashable, arrays: Sequence[Array]) -> Packed | None:
    recipe, samples, due = eqxi.hashable_combine(arrays, static)

    def share(plan: BatchProgram, samples: Packed, due: Array) -> Packed | None:
        outcome = plan.run(samples.tree, due, native)
        return None if outcome is None else packed(outcome, axes=1, most=1)

    # The user's functions are traced outside of the program of each device, so that the arrays they close over become
    # arguments of it.
    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, due, alone=True)


def _allocate_like(portion: PyTree, count: int) -> PyTree:
    """Empty arrays like those of a portion, for `count` trajectories, at multiples of 64 bytes: JAX need not copy them.

    Small ones share one piece of memory: pieces of their own would go back to the system when freed, which then has to
    find every page of the next ones anew.
    """
    leaves, structure = jax.tree_util.tree_flatten(portion)
    shapes = [(count, *x.shape[1:]) for x in leaves]
    lengths = [math.prod(shape) * x.dtype.itemsize for shape, x in zip(shapes, leaves, strict=True)]
    whole = sum(-(-length // ALIGNED) * ALIGNED for length in lengths)
    pieces = [lengths] if whole <= TOGETHER else [[length] for length in lengths]
    memory = [part for piece in pieces for part in _aligned(piece)]
    found = [m.view(x.dtype).reshape(shape) for m, x, shape in zip(memory, leaves, shapes, strict=True)]
    return jax.tree_util.tree_unflatten(structure, found)


def _aligned(lengths: Sequence[int]) -> list[np.ndarray]:
    """Arrays of bytes of these lengths, aligned, one after the other in a piece of memory."""
    begins = np.cumsum([0, *(-(-length // ALIGNED) * ALIGNED for length in lengths)])
    memory = np.empty(begins[-1] + ALIGNED, np.uint8)
    begins += -memory.ctypes.data % ALIGNED
    return [memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=False)]


def _copy_back(outcome: PyTree, to: PyTree) -> None:
    """Copies the results of the devices to their places in `to`.

    Large results are copied by a thread for each device, for the system spends much of the time on finding memory.
    """
    leaves = [
        (sorted(x.addressable_shards, key=lambda share: share.index[0].start or 0), to)
        for x, to in zip(*map(jax.tree_util.tree_leaves, (outcome, to)), strict=True)
    ]
    devices = len(leaves[0][0])

    def share(i: int) -> None:
        for shares, to in leaves:
            places = to[i::devices]
            places[...] = np.asarray(shares[i].data)[: len(places)]

    if sum(to.nbytes for _, to in leaves) <= TOGETHER:
        list(map(share, range(devices)))
        return
    with ThreadPoolExecutor(devices) as threads:
        list(threads.map(share, range(devices)))


EXPLAINED = 64  # failures that are explained at a time


@noted()
@reported("simulate_batch")
def simulate_batch(
    mechanism: MechanismOf,
    q0: NumbersOf,
    v0: NumbersOf,
    ts: Numbers,
    *,
    samples: PyTree | None = None,
    axes: Mapping[str, PyTree] | None = None,
    servo: ServoOf = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    solver: diffrax.AbstractSolver = diffrax.Tsit5(),
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    dt0: ArrayLike | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    projection: Projection | None = None,
    max_steps: int = 16_384,
    keep: str | Sequence[str] | None = None,
    reduce: Callable[..., PyTree] | None = None,
    devices: Sequence[Device] | None = None,
    lanes: int | None = None,
    progress: bool = True,
    throw: bool = False,
) -> Any:  # a `Trajectory` or a `Reduction`: a union would have every user ask which
    r"""Integrates many trajectories, as `jax.vmap` of `simulate` does: any number, on every device.

    A trajectory is one loop of machine code, with the bits that it has alone. All cores of a CPU take part; on an
    NVIDIA GPU each thread makes a trajectory. None waits for the slowest. Where it cannot be such a loop, each device
    makes a few trajectories side by side, as many as its cache holds, and then the next few. Then every core of a CPU
    is to be a device: `jax.config.update("jax_num_cpu_devices", 8)` before JAX starts, or the environment variable
    `JAX_NUM_CPU_DEVICES=8`.

    Trajectories may differ in their start (`q0`, `v0` with a leading axis), in leaves of the mechanism or the servo
    (`axes`), or in whatever follows from a sample: each of `mechanism`, `q0`, `v0` and `servo` may be a function of one
    entry of `samples`. Define such a function once and not anew for every call, so that it is compiled once.

    Args:
        mechanism: A `Mechanism`, or a function of a sample that returns one.
        q0: Coordinates at ts[0], shape (n,) or (B, n) [m or rad], or a function of a sample.
        v0: Their rates, likewise [m/s or rad/s].
        ts: Times to save at, strictly increasing, shape (T,), the same for all [s].
        samples: A pytree of arrays, or keys for random numbers, with a leading axis (B,).
        axes: {"mechanism": ..., "servo": ...}: 0 for leaves with a leading axis (B,), None for others, as a prefix of
            the pytree, like `in_axes` of `jax.vmap`.
        servo: As in `simulate`, or a function of a sample.
        formulation: As in `simulate`.
        solver: Any diffrax solver.
        rtol: Relative tolerance; 1e-8 if None.
        atol: Absolute tolerance; 1e-8 if None.
        stepsize_controller: A diffrax controller; it replaces the adaptive one.
        dt0: First step [s].
        adjoint: For derivatives; the trajectories themselves do not depend on it.
        projection: `Projection()` or None.
        max_steps: Step budget of a trajectory.
        keep: The fields of each trajectory that are kept in memory: their names, "all", or None as in `simulate`.
        reduce: `reduce(trajectory)`, or with `samples` also `reduce(trajectory, sample)`, -> a pytree of arrays, which
            is kept instead of the trajectory. `keep` names the fields that the trajectory has.
        devices: The devices to use; all of this process if None.
        lanes: Trajectories that a device works on at a time, where they are no loops of machine code; chosen for the
            device if None.
        progress: Show a bar with the number of trajectories done, their rate and the time left, in batches of more than
            two seconds. Not inside of `jit` and its like.
        throw: Raise if a trajectory fails. With False look at `result`. Not inside of `jit` and its like.

    Returns:
        `Trajectory` with a leading axis (B,) of every field; with `reduce` a `Reduction` with `value`, `result` and
        `stats`. A failed trajectory has its reason in `result`, NaN at times it did not reach, and changes no other.

    Warns:
        FailedTrajectories: If some fail: how many, why, and which is the first. Not inside of `jit`.
        InconsistentStart: If one starts off the constraints, with nothing that returns it to them. Not inside of `jit`.

    Raises:
        ValueError: As `simulate`; and if there is no batch, it is empty, its leading axes differ, `samples` or `axes`
            has nothing to act on, or `devices` or `lanes` is invalid.
        TypeError: As `simulate`; and if a function of a sample returns something else than it should, or `devices` is
            no list of devices.
        RuntimeError: If `throw` and a trajectory fails.

    Memory: the kept fields, and half a gigabyte. Inside of `jit`, and of a derivative, all states.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        pendulum = ukjax.Mechanism(system, rod)
        angles = jnp.linspace(-1.0, 1.0, 32)
        starts = jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=1)
        ts = jnp.linspace(0.0, 1.0, 11)
        batch = ukjax.simulate_batch(
            pendulum, starts, jnp.zeros(2), ts, keep=("q",), progress=False
        )
        print(batch.q.shape)  # (32, 11, 2)
        ```

    Gradients: as those of `simulate`. The trajectories run again for them, in the memory of a few at a time. A failed
    trajectory adds nothing to the gradient of what all share, not even NaN: leave it out of the loss by
    `jnp.where(batch.result == ukjax.RESULTS.successful, losses, 0.0)`. Compile a loss and its gradient as a whole by
    `jax.jit`: outside of it every call of a derivative compiles anew.
    """
    parts, own, count = batch_of(mechanism, servo, q0, v0, samples, axes, reduce is not None)
    used, width = devices_of(devices), None if lanes is None else _check.count(lanes, "lanes")
    first = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), own)
    y, controller = shapes_of(_first, parts, first)
    if isinstance(solver, Rattle):
        raise ValueError("solver=ukjax.Rattle() goes with jax.vmap of ukjax.simulate, not with simulate_batch.")
    ts = _check.times(ts).astype(y.dtype)
    if reduce is not None:
        given = _check.function(reduce, "reduce", "f(trajectory[, sample]) -> arrays")
        reduce = _with_sample(given, samples is not None)
    settings = Settings.of(
        ts, (controller,), formulation, solver, rtol=rtol, atol=atol, stepsize_controller=stepsize_controller, dt0=dt0,
        projection=projection, max_steps=max_steps, keep=keep, often=True, adjoint=adjoint,
    )  # fmt: skip
    recipe = BatchSettings(parts, ts, settings, reduce, 1)
    outcome = shapes_of(_shape, recipe, own)
    tiles = Tiles(count, used, width)
    if not not_tracing() or is_traced(recipe, own):
        return _given(_traced(recipe, own, tiles), ts, count)
    if not is_here(used):
        raise ValueError(
            "devices of other processes are for what is inside of jit: pass jax.local_devices(), or compile the whole."
        )
    each = sum(x.size * x.dtype.itemsize for x in jax.tree_util.tree_leaves(outcome))
    states = ts.size * y.size * y.dtype.itemsize
    with tqdm(total=count, desc="simulate", unit="run", disable=not progress, delay=2) as bar:
        # Of a trajectory that is reduced all fields may be there on the way.
        memory = 2 * each + (3 if reduce is None else 8) * states
        outcome = in_portions(recipe, own, used, count, tiles.width, memory, bar)
    return _raise_or_warn(recipe, own, outcome, ts, count, throw)


def _with_sample(reduce: Callable[..., PyTree], known: bool) -> Callable[[Trajectory, PyTree], PyTree]:
    """Makes `reduce` a function of a trajectory and its sample; raises ValueError if it needs a sample without any."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p for p in inspect.signature(reduce).parameters.values() if p.kind in kinds and p.default is p.empty]
    if len(given) < 2:
        return Partial(_without, reduce)
    if not known:
        raise ValueError("reduce(trajectory, sample) needs samples. Pass them, or a function of a trajectory alone.")
    return reduce


def _without(reduce: Callable[[Trajectory], PyTree], trajectory: Trajectory, sample: PyTree) -> PyTree:
    return reduce(trajectory)


@eqx.filter_jit
def _first(parts: BatchInputs, sample: PyTree) -> tuple[Array, AbstractController]:
    """The first state of a trajectory, and its controller; traced as often as `_shape` is."""
    _, controller, start = parts(sample)
    return jnp.concatenate(start), controller


@eqx.filter_jit
def _shape(recipe: BatchSettings, samples: PyTree) -> Outcome:
    """Zeros in the shape of the outcome of a trajectory, traced once for all calls that differ in numbers only."""
    return jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), recipe.plan(samples).to_result.shapes)


def _traced(recipe: BatchSettings, own: PyTree, tiles: Tiles) -> Outcome:
    """The outcome of a batch that is part of a larger program, as one portion."""
    samples, due = tiles.arranged(own)
    plan = dataclasses.replace(recipe, width=tiles.width).plan(own)
    return tiles.gathered(batch_outcome(plan, samples, jnp.asarray(due), tiles.devices))


def _given(outcome: Outcome, ts: Array, count: int) -> Trajectory | Reduction:
    """The result for the user: the `Trajectory` or `Reduction` of an outcome, on the host unless traced."""
    got, traced = jax.tree_util.tree_map(lambda x: x[:count], outcome.got), is_traced(outcome.got, ts)
    if not isinstance(got, Reduction):
        every = (jnp if traced else np).broadcast_to(ts, (count, *ts.shape))
        got = eqx.tree_at(lambda t: t.t, got, every, is_leaf=lambda x: x is None)
    return got if traced else jax.device_put(got, may_alias=True)


def _raise_or_warn(
    recipe: BatchSettings, own: PyTree, outcome: Outcome, ts: Array, count: int, throw: bool
) -> Trajectory | Reduction:
    """Returns the result for the user; raises or warns of failures, and warns of starts off the constraints."""
    okay = code_of(outcome.got.result) == SUCCESS
    failed = np.flatnonzero(~okay)
    if len(failed) and outcome.why is not None:
        outcome = _explained(recipe, own, outcome, failed)
    if len(failed):
        words = _words(outcome, failed, count)
        if throw:
            raise RuntimeError(words)
        warnings.warn(f"{words} `result` tells which.", FailedTrajectories, stacklevel=3)
    if outcome.start is not None:
        position, velocity, much = outcome.start
        off = np.asarray(much) & okay
        if np.any(off):
            warn_of_start(np.max(position[off]), np.max(velocity[off]), jnp.asarray(True), callers=3)
    return _given(outcome, ts, count)


def _explained(recipe: BatchSettings, own: PyTree, outcome: Outcome, failed: np.ndarray) -> Outcome:
    """Fills in the reasons of failed trajectories, which are looked for only where they are not known."""
    result = outcome.got.result
    for begin in range(0, len(failed), EXPLAINED):
        index = failed[begin : begin + EXPLAINED]
        padded = filled(index, EXPLAINED)
        samples = jax.tree_util.tree_map(lambda x: np.asarray(x)[padded], own)  # noqa: B023
        why = jax.tree_util.tree_map(lambda x: x[padded], outcome.why)  # noqa: B023
        found = _why(recipe, samples, why)
        result = jax.tree_util.tree_map(lambda to, x: _put(to, index, np.asarray(x)[: len(index)]), result, found)  # noqa: B023
    return outcome._replace(got=eqx.tree_at(lambda g: g.result, outcome.got, result))


def _put(to: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    to = np.array(to)
    to[index] = values
    return to


@eqx.filter_jit
def _why(recipe: BatchSettings, samples: PyTree, why: PyTree) -> RESULTS:
    def one(sample, why):
        mechanism, controller, start = recipe.parts(sample)
        evidence = unexplained(why, StateLayout.of(mechanism, start))
        return diagnose_failure(controller, recipe.settings.formulation, evidence)[0]

    return jax.vmap(one)(samples, why)


def _words(outcome: Outcome, failed: np.ndarray, count: int) -> str:
    """The message about failures: how many trajectories failed, why, and which is the first."""
    results = outcome.got.result
    each = {int(i): message(jax.tree_util.tree_map(lambda x: np.asarray(x[i]), results)) for i in failed}  # noqa: B023
    reasons, first = collections.Counter(each.values()), {reason: i for i, reason in reversed(each.items())}
    reached = outcome.got.stats["t_reached"]
    lines = [
        f"{number} of them, first number {first[reason]} at t = {float(reached[first[reason]]):.6g} s: {reason}"
        for reason, number in reasons.most_common()
    ]
    return "\n".join([f"{len(failed)} of {count} trajectories failed.", *lines])
