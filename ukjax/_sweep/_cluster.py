"""Chunks of a study computed by Dask's workers.

A worker computes a chunk as this process would, on all of its devices, and sends it back; this process alone writes.
Of a CPU it has as many devices as this process, and the options of the compiler that this process has, so that a chunk
is the same to the last bit: if JAX has not started there, and unless the worker was told another number of devices.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from .._identity import versions
from ._cases import Cases, Results


RETRIES = 5  # of a chunk whose worker dies
DEVICES_FLAG = "host_platform_device_count"  # the older way to say how many devices a CPU has


def _flags() -> list[str]:
    return os.environ.get("XLA_FLAGS", "").split()


class Manner(NamedTuple):
    """How this process computes, for a worker to do it in the same way."""

    x64: bool
    flags: list[str]
    devices: int | None
    versions: dict[str, str]

    @classmethod
    def here(cls) -> "Manner":
        devices = jax.local_devices()
        number = len(devices) if devices[0].platform == "cpu" else None
        flags = [flag for flag in _flags() if DEVICES_FLAG not in flag]
        return cls(bool(jax.config.read("jax_enable_x64")), flags, number, versions())

    def take(self) -> None:
        """In a worker, before JAX starts there. RuntimeError if something is installed there in another version."""
        here = versions()
        other = [f"{k} {here[k]} (there {v})" for k, v in self.versions.items() if here[k] != v]
        if other:
            raise RuntimeError(
                f"A worker has other versions than the process that studies: {', '.join(other)}. Install the same."
            )
        jax.config.update("jax_enable_x64", self.x64)
        own = _flags()
        os.environ["XLA_FLAGS"] = " ".join([*own, *(flag for flag in self.flags if flag not in own)])
        told = "JAX_NUM_CPU_DEVICES" in os.environ or any(DEVICES_FLAG in flag for flag in own)
        if self.devices is not None and not told:
            with contextlib.suppress(RuntimeError):  # JAX has started there
                jax.config.update("jax_num_cpu_devices", self.devices)


def check(client: Any) -> None:
    """TypeError if it is no client."""
    from distributed import Client

    if not isinstance(client, Client):
        raise TypeError(f"client must be a dask.distributed.Client, but is a {type(client).__name__}.")


def computed(
    client: Any, recipe: tuple, sums: Any, todo: Mapping[int, Mapping[str, np.ndarray]], size: int
) -> Iterator[tuple[int, Results]]:
    """The chunks, as they are done; `sums`: those of the recipe here.

    ConnectionError if the scheduler is gone, RuntimeError if a chunk keeps failing.
    """
    from distributed import CancelledError, KilledWorker, as_completed
    from distributed.comm.core import CommClosedError

    gone = "The scheduler is gone. The same call goes on from what is on disk, with another client or without one."
    manner = Manner.here()
    import cloudpickle

    packed = cloudpickle.dumps(recipe)
    mark = hashlib.blake2b(packed, digest_size=8).hexdigest()
    try:
        futures = {
            client.submit(_compute, packed, mark, sums, dict(values), size, manner, pure=False, retries=RETRIES): number
            for number, values in todo.items()
        }
        finished: Any = as_completed(list(futures))
        for future in finished:
            if future.status == "cancelled":
                raise ConnectionError(gone)
            try:
                results = future.result()
            except KilledWorker as error:
                raise RuntimeError(f"Chunk {futures[future]} has ended every worker that tried it: {error}") from error
            number = futures.pop(future)
            future.release()
            yield number, results
    except (CommClosedError, CancelledError, TimeoutError) as error:
        raise ConnectionError(gone) from error


_cases: dict[str, Cases] = {}  # of a worker: its compiled programs


def _compute(
    packed: bytes, mark: str, sums: Any, values: Mapping[str, np.ndarray], size: int, manner: Manner
) -> Results:
    """A chunk, on a worker. RuntimeError if the recipe makes something else there."""
    manner.take()
    import cloudpickle

    if mark not in _cases:
        cases = Cases(*cloudpickle.loads(packed))
        if cases.sums != sums:
            raise RuntimeError(
                "A worker has another version of what makes the scenario, or of a function that it uses, than the "
                "process that studies. Give it the same files, and start it again."
            )
        _cases[mark] = cases
    return _cases[mark].run(values, size)
