"""Machine code as operations of JAX programs, on a CPU or on a GPU.

`evaluate` computes arrays by a kernel. `mended` takes results that are certain but for some states, and has these
computed the sure way: by a function of JAX that is traced already, but compiled only when a state needs it.

The sure way is taken within a call, by the thread that runs the program, which waits. It is compiled for, and run on, a
client of XLA of its own, with threads of its own: if it shared those of the program, which may all be waiting in such
calls, none would be left to do the work.
"""

import collections
import contextlib
import contextvars
import ctypes
import functools as ft
import hashlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxtyping import Array

from .._program import unbatch_lapack
from ._compile import Tier, compiled, once, vector_width
from ._entry import Node
from ._gpu import Cuda, gpu_of
from ._handler import STOPPED, TARGET, Code, Does, asked_to_stop, can_be_called, chunk_of, code
from ._kernel import Kernel, Row, kernel
from ._program import Program
from ._thread import flag_kernel, row_kernel


machine_code_p = Primitive("machine_code")
machine_code_p.multiple_results = True
mended_p = Primitive("mended")
mended_p.multiple_results = True

# States that are computed the sure way at a time: few, or, of more than MANY, the larger number. Where there are arrays
# of HEAVY numbers and more, few are one: more of them would take as many times as long.
TILE, LARGE, MANY, HEAVY = 16, 256, 128, 1024
# Arguments with more numbers are not repeated for each state if all states share them.
SMALL = 256
# (places of all arrays, size of the batch, stream of a GPU) -> null, or the place of a message.
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p)
# Messages of errors that are kept for XLA to read.
MESSAGES: collections.deque[ctypes.Array] = collections.deque(maxlen=64)


def evaluate(
    kernel: Kernel,
    batched: tuple[bool, ...],
    gives: Sequence[ShapedArray],
    arrays: Sequence[Array],
    way: "SureWay | None" = None,
) -> list[Array]:
    """The results of a kernel for arrays, of which those that are `batched` have the batch as their first axis.

    `gives`: shape and dtype of each result of one state. `way`: computes all of them but the last where that is set.
    """
    kinds = tuple((x.shape, np.dtype(x.dtype)) for x in gives)
    return machine_code_p.bind(*arrays, kernel=kernel, batched=batched, gives=kinds, way=way)


def _batch(avals: Sequence[ShapedArray], batched: Sequence[bool]) -> tuple[int, ...]:
    return next(((x.shape[0],) for x, b in zip(avals, batched, strict=True) if b), ())


@machine_code_p.def_abstract_eval
def _shapes(*avals, batched, gives, **_):
    batch = _batch(avals, batched)
    return [type_here((*batch, *shape), dtype) for shape, dtype in gives]


def type_here(shape: tuple[int, ...], dtype: np.dtype) -> ShapedArray:
    """The type of an array here, with the mesh that it lies on within a `jax.shard_map`, which lineax reads."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return ShapedArray(shape, dtype)
    return ShapedArray(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*[None] * len(shape))))


def _lower(ctx: mlir.LoweringRuleContext, *operands: ir.Value, kernel, batched, gives, way) -> Sequence:
    first = batched.index(True) if True in batched else -1
    chunk = chunk_of(kernel.operations, kernel.width) if kernel.width else 0
    count, gpu = len(operands), gpu_here(ctx) if kernel.is_of_threads else None
    flags = count + len(gives) - 1

    def make() -> Does:
        mend, kept = (0, None) if way is None else way.mending(flags, range(count), range(count, flags), gpu)
        if gpu is not None:
            place, threads, blocks, loaded = gpu.load(kernel, False)
            return Does(place, mend, -1, first, threads, blocks, (loaded, kept))
        machine = compiled(kernel, quick=True)
        return Does(machine.address("run"), mend, flags, first, chunk, 0, kept, Tier(machine, kernel), kernel.optimised)

    text = "" if way is None else way.text
    return call_of(ctx, code(f"{first} {chunk} {text} {kernel.text}", make), operands, batched, gpu=gpu)


for platform in ("cpu", "cuda"):
    mlir.register_lowering(machine_code_p, _lower, platform=platform)


def gpu_here(ctx: mlir.LoweringRuleContext) -> Cuda:
    """The GPU for which something is lowered."""
    (platform,) = ctx.module_context.platforms
    found = gpu_of(platform)
    assert found is not None
    return found


def call_of(
    ctx: mlir.LoweringRuleContext,
    found: Code,
    operands: Sequence[ir.Value],
    batched: Sequence[bool],
    aliases: dict[int, int] | None = None,
    gpu: Cuda | None = None,
) -> Sequence:
    """The call of a code: its results, of which some lie where operands do."""
    ctx.module_context.add_keepalive(found)
    if gpu is not None:
        # The last result is that of the counters.
        gpu.register()
        ctx = ctx.replace(avals_out=[*ctx.avals_out, ShapedArray((2,), np.dtype(np.int64))])
        rule = jax.ffi.ffi_lowering(gpu.target, operand_output_aliases=aliases)
        return _typed(rule(ctx, *operands, key=np.int64(found.key)))[:-1]
    several = getattr(ctx.module_context.axis_context, "num_devices", 1) != 1
    extra = _shared_out(ctx) if several and batched and all(batched) else {}
    rule = jax.ffi.ffi_lowering(TARGET, operand_output_aliases=aliases, extra_attributes=extra)
    return _typed(rule(ctx, *operands, key=np.int64(found.key)))


def _typed(results: Sequence) -> Sequence:
    """The results of a call whose typed interface is said by its own attributes.

    JAX says it by an attribute that StableHLO does not know, which XLA loses in some programs with empty arrays.
    """
    call = results[0].owner
    attributes, name = call.attributes, "mhlo.backend_config"
    if name in attributes:
        attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4)
        attributes["backend_config"] = attributes[name]
        del attributes[name]
    return results


def _shared_out(ctx: mlir.LoweringRuleContext) -> dict[str, ir.Attribute]:
    """The attributes of a call that may be shared out among devices by its first axis, which all arrays have."""
    sizes = {"i": 1}

    def factors(aval: ShapedArray) -> str:
        sizes["i"] = aval.shape[0]
        names = ["i"]
        for size in aval.shape[1:]:
            k = len(sizes)  # Shardy's names of axes: i to z, then z_1, z_2, ...
            name = chr(ord("i") + k) if k < 18 else f"z_{k - 17}"
            sizes[name] = size
            names.append(name)
        return "[" + ", ".join(names) + "]"

    sides = [", ".join(factors(x) for x in avals) for avals in (ctx.avals_in, ctx.avals_out)]  # pyright: ignore
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
    rule = f"#sdy.op_sharding_rule<({sides[0]})->({sides[1]}) {{{listed}}}, custom>"
    return {
        "mhlo.frontend_attributes": ir.DictAttr.get({"num_batch_dims": ir.StringAttr.get("1")}),
        "sdy.sharding_rule": ir.Attribute.parse(rule),
    }


class Traceable:
    """A function of arrays that is traced when its program is asked for.

    Args:
        trace: Traces the function; needs nothing that changes, nor an array that is being traced.
        in_avals, out_avals: Arrays of the arguments and of the results.
        has_effects: Whether its program has effects.
    """

    def __init__(
        self,
        trace: Callable[[], ClosedJaxpr],
        in_avals: Sequence[ShapedArray],
        out_avals: Sequence[ShapedArray],
        has_effects: bool,
    ):
        self.trace, self.has_effects = trace, has_effects
        self.in_avals, self.out_avals = tuple(in_avals), tuple(out_avals)

    @classmethod
    def of(cls, closed: ClosedJaxpr) -> "Traceable":
        """The function of a program."""
        return cls(lambda: closed, closed.in_avals, closed.out_avals, bool(closed.effects))

    @ft.cached_property
    def closed(self) -> ClosedJaxpr:
        with _wide(self.in_avals):
            return self.trace()

    def changed(
        self,
        change: Callable[[ClosedJaxpr], ClosedJaxpr],
        in_avals: Sequence[ShapedArray],
        out_avals: Sequence[ShapedArray],
    ) -> "Traceable":
        """The function that `change` makes of it, traced later too, with these arguments and results."""
        return Traceable(lambda: change(self.closed), in_avals, out_avals, self.has_effects)


class SureWay:
    """A function of one state that is computed for those states of a batch that need it.

    Args:
        slow: arguments -> results.
        batched: Which arguments have the batch as their first axis; if any has, the results do.
        plain: Whether it is computed without machine code, so that nothing in it needs a sure way itself.
    """

    def __init__(self, slow: Traceable, batched: Sequence[bool], plain: bool = False):
        self.slow, self.batched, self.plain = slow, tuple(batched), plain
        self._lock = threading.Lock()
        self._compiled: dict[int, Callable[..., Sequence[Array]]] = {}  # by the number of states

    def mending(
        self, flags: int, takes: Sequence[int], gives: Sequence[int], gpu: Cuda | None = None
    ) -> tuple[int, object]:
        """The place of a function (places, size, stream) that threads of XLA call, and what keeps it alive.

        `flags`, `takes`, `gives`: numbers of the arrays of truth values that tell where it is needed, of the arguments,
        and of the results. `gpu`: in whose memory they are, if they are not in that of the CPU.
        """

        def mend(places, size: int, stream: int | None) -> None:
            if asked_to_stop():
                raise RuntimeError(STOPPED)
            wide = any(self.batched)

            def array(k: int, x: ShapedArray, batched: bool) -> np.ndarray:
                shape = (size, *x.shape) if batched else x.shape
                if gpu is None:
                    return _view(places[k], shape, np.dtype(x.dtype))
                found = np.empty(shape, x.dtype)
                gpu.read(places[k], found, stream)
                return found

            needed = np.flatnonzero(array(flags, ShapedArray((), np.dtype(bool)), wide))
            results = [array(k, x, wide) for k, x in zip(gives, self.slow.out_avals, strict=True)]
            kinds = zip(takes, self.slow.in_avals, self.batched, strict=True)
            _apart(self._compute, needed, [array(k, x, b) for k, x, b in kinds], results)
            if gpu is not None:
                for k, x in zip(gives, results, strict=True):
                    gpu.write(places[k], x, stream)

        return _called(mend)

    @ft.cached_property
    def text(self) -> str:
        """The function in words, the same in every process where XLA keeps programs on disk; that takes long."""
        if not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
            return os.urandom(16).hex()
        constants = b"".join(np.asarray(x).tobytes() for x in self.slow.closed.consts)
        return f"{self.slow.closed.jaxpr} {hashlib.sha256(constants).hexdigest()} {self.batched}"

    def _compute(self, index: np.ndarray, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Computes the results of the states with these numbers."""
        if not any(self.batched):
            results = [x[None] for x in results]
        with _by_itself(arguments):
            tile = self._few if len(index) <= MANY else LARGE

        def compute(begin: int) -> None:
            some = index[begin : begin + tile]
            padded = np.resize(some, tile)
            given = [
                x[padded] if b else x if axis is None else np.broadcast_to(x, (tile, *x.shape))
                for x, b, axis in zip(arguments, self.batched, self._axes, strict=True)
            ]
            for x, y in zip(results, self._of(given, tile), strict=True):
                x[some] = np.asarray(y)[: len(some)]

        first, *rest = range(0, len(index), tile)
        compute(first)
        if rest:
            list(_threads().map(compute, rest))

    @ft.cached_property
    def _few(self) -> int:
        arrays = (x.aval for equation in self.slow.closed.jaxpr.eqns for x in equation.outvars)
        return TILE if max((math.prod(x.shape) for x in arrays), default=0) < HEAVY else 1

    @ft.cached_property
    def _axes(self) -> list[int | None]:
        """The axes of the batch in the arguments: the same for a state alone, so that it has the same bits."""
        axes = [0 if b or x.size <= SMALL else None for x, b in zip(self.slow.in_avals, self.batched, strict=True)]
        return axes if 0 in axes else [0, *axes[1:]]

    def _of(self, arrays: Sequence[np.ndarray], size: int) -> Sequence[Array]:
        with _by_itself(arrays):
            with self._lock:
                if size not in self._compiled:
                    function = jax.vmap(jaxpr_as_fun(self.slow.closed), in_axes=self._axes)
                    closed = unbatch_lapack(jax.make_jaxpr(function)(*arrays))
                    with by_matrices(self.plain):
                        self._compiled[size] = jax.jit(jaxpr_as_fun(closed)).lower(*arrays).compile()
            return jax.block_until_ready(self._compiled[size](*arrays))


def _called(function: Callable[[Any, int, int | None], None]) -> tuple[int, object]:
    """The place of a function (places, size, stream) that threads of XLA call, and what keeps it alive."""

    def called(places, size, stream) -> int | None:
        try:
            function(places, size, stream)
        except BaseException as error:  # which cannot pass through XLA
            message = ctypes.create_string_buffer(f"{type(error).__name__}: {error}".encode()[:2000])
            MESSAGES.append(message)
            return ctypes.addressof(message)
        return None

    kept = FUNCTION(called)
    address = ctypes.cast(kept, ctypes.c_void_p).value
    assert address is not None
    return address, kept


# Whether functions are lowered without machine code.
_plain = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def by_matrices(plain: bool = True):
    """A context in which nothing is lowered to machine code, if `plain`."""
    before = _plain.set(plain or _plain.get())
    try:
        yield
    finally:
        _plain.reset(before)


def allows_machine_code() -> bool:
    """Whether what is lowered here may be machine code."""
    return not _plain.get()


def _view(place: int | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array at a place in memory."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    if not size or place is None:
        return np.zeros(shape, dtype)
    memory = memoryview((ctypes.c_char * size).from_address(place))
    return np.frombuffer(memory, dtype).reshape(shape)


def _apart(function: Callable[..., None], *args: Any) -> None:
    """Calls a function in a thread of its own, which has none of the caller's settings, and waits for it."""
    with ThreadPoolExecutor(1) as one:
        one.submit(function, *args).result()


@once
def _threads() -> ThreadPoolExecutor:
    """Threads that each compute some states at a time the sure way, and nothing else."""
    return ThreadPoolExecutor(os.cpu_count())


@once
def _client() -> Any:  # a class of jaxlib without a public name
    return xla_client.make_cpu_client()


def _wide(arrays: Sequence[Any]) -> contextlib.AbstractContextManager:
    """A context in which numbers keep their 64 bits: threads of XLA know nothing of the settings of the user."""
    return jax.enable_x64(any(x.dtype.itemsize == 8 for x in arrays) or jax.config.read("jax_enable_x64"))


@contextlib.contextmanager
def _by_itself(arrays: Sequence[np.ndarray], device: Any = None):
    """A place for computations within a computation: a device of their own, or one, and none of the user's checks."""
    with (
        jax.default_device(_client().local_devices()[0] if device is None else device),
        _wide(arrays),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
        jax.check_tracer_leaks(False),
    ):
        yield


def can_be_deferred(slow: Traceable) -> bool:
    """Whether a function can be computed outside of the program: it has no effects, nor sums over devices."""
    return not slow.has_effects and jax.sharding.get_abstract_mesh().empty


def mended(way: SureWay, needed: Array, arrays: Sequence[Array], fast: Sequence[Array]) -> list[Array]:
    """The results `fast`, with those of the states that are `needed` computed by `way` from the arrays."""
    # XLA shares a call out among devices if its first array has as many axes as its results.
    return mended_p.bind(*arrays, *fast, needed, way=way)


@mended_p.def_abstract_eval
def _mended_shapes(*avals, way):
    count = len(way.slow.out_avals)
    return [type_here(x.shape, x.dtype) for x in avals[len(avals) - 1 - count : -1]]


def _lower_mended(ctx: mlir.LoweringRuleContext, *operands: ir.Value, way: SureWay) -> Sequence:
    wide, count = any(way.batched), len(way.slow.out_avals)
    flags, gpu = len(operands) - 1, gpu_for(ctx.module_context.platforms)
    first = flags - count
    takes, gives = range(first), range(len(operands), len(operands) + count)

    def make() -> Does:
        mend, kept = way.mending(flags, takes, gives, gpu)
        place, threads, blocks, loaded = (0, 0, 0, None) if gpu is None else gpu.load(flag_kernel(), False)
        return Does(place, mend, flags, flags if wide else -1, threads, blocks, (loaded, kept))

    found = code(f"{gpu is not None} {len(operands)} {way.text}", make)
    batched = (*way.batched, *(wide,) * count, wide)
    if getattr(ctx.module_context.axis_context, "num_devices", 1) == 1:
        return call_of(ctx, found, operands, batched, {first + k: k for k in range(count)}, gpu)
    # Where XLA shares arrays out among devices, it forgets that results are to lie where operands do.
    results = call_of(ctx, found, operands, batched)
    within = ctx.replace(avals_in=[ctx.avals_in[-1], *ctx.avals_out, *ctx.avals_in[first:flags]])
    return mlir.lower_fun(_chosen, multiple_results=True)(within, operands[-1], *results, *operands[first:flags])


def _chosen(needed: Array, *values: Array) -> list[Array]:
    """The first half of the values where they are needed, and the second half elsewhere."""
    pairs = zip(values[: len(values) // 2], values[len(values) // 2 :], strict=True)
    return [jnp.where(needed.reshape(*needed.shape, *(1,) * (x.ndim - needed.ndim)), x, y) for x, y in pairs]


for platform in ("cpu", "cuda"):
    mlir.register_lowering(mended_p, _lower_mended, platform=platform)


def gpu_for(platforms: Sequence[str]) -> Cuda | None:
    """The GPU on which kernels of threads run, of what is lowered for these platforms; None if there is none."""
    gpu = gpu_of(platforms[0]) if len(platforms) == 1 else None
    return gpu if gpu is not None and _is_right(gpu, platforms[0]) else None


def runs_machine_code() -> bool:
    """Whether what JAX computes by default is computed by machine code."""
    backend = jax.default_backend()
    platform = "cuda" if backend == "gpu" else backend
    return gpu_for([platform]) is not None or (platform == "cpu" and can_be_called())


@ft.cache
def _is_right(gpu: Cuda, platform: str) -> bool:
    """Whether kernels give the numbers of a CPU; tried once in a process, with a warning where they do not."""
    dtype, size = np.dtype(float), 300
    x = Node(lambda: None, (), dtype, 0)
    y = Node(lambda: None, (x, x), dtype, 1)
    y.primitive = prims.mul_p
    z = Node(lambda: None, (y,), dtype, 2)
    z.primitive = prims.sin_p
    program, rows = Program([x], [z]), [Row(1, dtype)]
    given, want = np.linspace(-9.0, 9.0, size), np.zeros(size)
    places = (ctypes.c_void_p * 2)(given.ctypes.data, want.ctypes.data)
    machine = compiled(kernel(program, rows, rows, vector_width()))
    machine.run(places, 0, size)
    threads, kinds = row_kernel(program, rows, rows, False), [ShapedArray((), dtype)]
    got = np.zeros(size)

    def run() -> None:
        with _by_itself([given], jax.local_devices(backend=platform)[0]):
            got[:] = jax.jit(lambda x: evaluate(threads, (True,), kinds, [x]))(given)[0]

    try:
        _apart(run)
        why = "" if np.array_equal(got, want) else "it gives other numbers than the CPU"
    except Exception as error:  # whatever a driver or XLA may raise
        why = f"{type(error).__name__}: {error}"
    if why:
        warnings.warn(
            f"ukjax's kernels do not work on this GPU ({why}): XLA compiles what runs there, which takes longer and "
            "is slower. Please report this.",
            stacklevel=2,
        )
    return not why
