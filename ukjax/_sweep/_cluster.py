"""Chunks of a study computed by Dask's workers.

A worker computes a chunk as this process would, on all of its devices, and sends it back; this process alone writes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ._cases import Cases, Results


RETRIES = 5  # of a chunk whose worker dies


def computed(
    client: Any, recipe: tuple, todo: Mapping[int, Mapping[str, np.ndarray]], size: int
) -> Iterator[tuple[int, Results]]:
    """The chunks, as they are done. ConnectionError if the scheduler is gone, RuntimeError if a chunk keeps failing."""
    from distributed import CancelledError, Client, KilledWorker, as_completed
    from distributed.comm.core import CommClosedError

    if not isinstance(client, Client):
        raise TypeError(f"client must be a dask.distributed.Client, but is a {type(client).__name__}.")
    gone = "The scheduler is gone. The same call goes on from what is on disk, with another client or without one."
    x64 = bool(jax.config.read("jax_enable_x64"))
    import cloudpickle

    packed = cloudpickle.dumps(recipe)
    mark = hashlib.blake2b(packed, digest_size=8).hexdigest()
    try:
        futures = {
            client.submit(_compute, packed, mark, dict(values), size, x64, pure=False, retries=RETRIES): number
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


def _compute(packed: bytes, mark: str, values: Mapping[str, np.ndarray], size: int, x64: bool) -> Results:
    """A chunk, on a worker."""
    import cloudpickle

    from ._sweep import _first_of

    jax.config.update("jax_enable_x64", x64)
    if mark not in _cases:
        _cases[mark] = Cases(*cloudpickle.loads(packed))
    count = len(next(iter(values.values())))
    values = {k: np.concatenate([x, np.repeat(x[-1:], size - count)]) for k, x in values.items()}
    return _first_of(_cases[mark].run(values), count)
