"""Chunks of a study computed by Dask's workers.

A worker computes a chunk as this process would, on all of its devices, and sends it back; this process alone writes.
On a CPU it takes over the number of devices and the compiler options of this process, so that a chunk is the same to
the last bit. It does so if JAX has not started there, and unless another number of devices is set there.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from .._identity import versions
from ._cases import Cases, Results


if TYPE_CHECKING:
    from distributed import Client


RETRIES = 5  # retries of a chunk whose worker dies
DEVICES_FLAG = "host_platform_device_count"  # the older option for the number of devices of a CPU


def _flags() -> list[str]:
    return os.environ.get("XLA_FLAGS", "").split()


class Manner(NamedTuple):
    """The settings by which this process computes, for a worker to take over."""

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
        """Applies the settings in a worker, before JAX starts there; raises RuntimeError if versions differ."""
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


def check(client: object) -> None:
    """Raises TypeError if `client` is no client of Dask."""
    from distributed import Client

    if not isinstance(client, Client):
        raise TypeError(f"client must be a dask.distributed.Client, but is a {type(client).__name__}.")


def computed(
    client: "Client", recipe: tuple, sums: tuple[str, dict[str, str]], todo: Mapping[int, Mapping[str, np.ndarray]],
    size: int,
) -> Iterator[tuple[int, Results]]:  # fmt: skip
    """Yields the chunks as they are done; `sums`: the checksums of the recipe in this process.

    Raises ConnectionError if the scheduler is gone, RuntimeError if a chunk keeps failing.
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
        for future in as_completed(list(futures)):
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


_cases: dict[str, Cases] = {}  # the compiled programs of a worker


def _compute(
    packed: bytes, mark: str, sums: tuple[str, dict[str, str]], values: Mapping[str, np.ndarray], size: int,
    manner: Manner,
) -> Results:  # fmt: skip
    """Computes a chunk on a worker; raises RuntimeError if the recipe has other checksums there."""
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
