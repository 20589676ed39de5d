"""Random functions of small arrays, made of the examples of all operations, and their values to rounding errors.

A value is known to what rounding changes it by: every result on the way is changed by some of its last digits, a few
times, and the values that come out lie as far apart as two ways to compute the same may.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ..inside import EvalForm, ScalarPiece, sizes_of_scan, traced
from .operations import EXAMPLES


# Left out: what is no function of its arguments alone, or of which JAX knows neither derivative nor batch.
ALL = [
    (name, function, args)
    for name, examples in EXAMPLES.items()
    if not name.startswith(("random", "rng", "cholesky_update", "empty"))
    for function, args in examples
]
FIRST = {"x": (3,), "y": (3,), "a": (2, 3), "s": (3, 3), "z": ()}
# Operations whose results are differences of numbers that are not seen.
SOLVED = ("cholesky", "lu", "triangular_solve")
STEPS, TRIES, POINTS, CHANGES = 8, 60, 1, 3


def coefficient(rng: np.random.Generator) -> float:
    kind = rng.integers(6)
    if kind == 0:
        return float(rng.choice([0.0, 1.0, -1.0, 2.0, 0.1, 0.3, 1 / 3, np.cos(0.3), np.sin(0.3), np.inf, -np.inf]))
    size = 10.0 ** rng.integers(-30, 31) if kind < 4 else 1.0
    return float(size * rng.choice([1.0, -1.0, rng.normal()]))


def arithmetic(rng: np.random.Generator) -> tuple[str, Callable[..., Any], int]:
    """What people write most, with coefficients of every size."""
    c, d = coefficient(rng), coefficient(rng)
    k = lambda value, x: jnp.asarray(value, x.dtype)
    ways = {
        "a + c b": (lambda x, y: x + k(c, x) * y, 2),
        "c a - d b": (lambda x, y: k(c, x) * x - k(d, x) * y, 2),
        "a b": (lambda x, y: x * y, 2),
        "c a b + a": (lambda x, y: k(c, x) * x * y + x, 2),
        "a / (1 + c b^2)": (lambda x, y: x / (1 + k(c, x) * y * y), 2),
        "(a + b)(a - b)": (lambda x, y: (x + y) * (x - y), 2),
        "cos c a": (lambda x: jnp.cos(k(c, x) * x), 1),
        "sin c a - sin d b": (lambda x, y: jnp.sin(k(c, x) * x) - jnp.sin(k(d, x) * y), 2),
        "exp -c a^2": (lambda x: jnp.exp(-jnp.abs(k(c, x)) * x * x), 1),
        "where a > c b": (lambda x, y: jnp.where(x > k(c, x) * y, x, y), 2),
        "c a": (lambda x: k(c, x) * x, 1),
        "a / c": (lambda x: x / k(c, x), 1),
        "max(a, c)": (lambda x: jnp.maximum(x, k(c, x)), 1),
        "tanh, sqrt": (lambda x: jnp.tanh(x) + jnp.sqrt(jnp.abs(x)), 1),
    }
    name = str(rng.choice(list(ways)))
    return f"{name}, {c}, {d}", *ways[name]


class Step(NamedTuple):
    name: str
    function: Callable[..., Any]
    args: tuple[int, ...]


class RandomFunction(NamedTuple):
    """Arrays as in `FIRST` -> what the last of some steps give; points at which most of it is finite."""

    steps: list[Step]
    points: list[list[Any]]

    def __call__(self, *pool: Any) -> list[Any]:
        made = [*pool]
        for step in self.steps:
            made += _results(step.function, [made[i] for i in step.args])
        inexact = [x for x in made[len(FIRST) :] if jnp.issubdtype(x.dtype, jnp.floating)]
        others = [x for x in made[len(FIRST) :] if not jnp.issubdtype(x.dtype, jnp.floating)]
        return [*inexact[-6:], *others[-3:]]


def _results(function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(x) for x in jax.tree_util.tree_leaves(function(*args))]


def _fits(sample: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether arrays are of the shapes and kinds of an example's, and of one type where those are."""
    kinds = {}
    for x, y in zip(sample, given, strict=True):
        x = jnp.asarray(x)
        if x.shape != y.shape or x.dtype.kind != y.dtype.kind or kinds.setdefault(x.dtype, y.dtype) != y.dtype:
            return False
        if y.dtype == jnp.float16:
            return False
    return True


def random_function(seed: int) -> RandomFunction:
    rng = np.random.default_rng(seed)
    wide = seed % 2 == 0
    sizes = [10.0 ** rng.uniform(-12, 12) if wide else 1.0 for _ in FIRST]
    draw = lambda: [jnp.asarray(c * rng.normal(size=shape)) for c, shape in zip(sizes, FIRST.values(), strict=True)]
    points = [draw() for _ in range(POINTS)]
    pool, steps = [*points[0]], []
    for _ in range(TRIES):
        if len(steps) == STEPS:
            break
        if rng.random() < 0.5:
            name, function, count = arithmetic(rng)
            first = int(rng.integers(len(pool)))
            alike = [
                i for i, x in enumerate(pool) if (x.shape, x.dtype) == (pool[first].shape, pool[first].dtype)
                and jnp.issubdtype(x.dtype, jnp.floating)
            ]  # fmt: skip
            if not alike:
                continue
            args = tuple(int(rng.choice(alike)) for _ in range(count))
        else:
            name, function, sample = ALL[rng.integers(len(ALL))]
            args = tuple(int(rng.integers(len(pool))) for _ in sample)
            for _ in range(20):
                if _fits(sample, [pool[i] for i in args]):
                    break
                args = tuple(int(rng.integers(len(pool))) for _ in sample)
            else:
                # By what the example itself is of, in place of what is not there.
                fixed = [jnp.asarray(x) for x in sample]
                function, args = lambda _, function=function, fixed=fixed: function(*fixed), (0,)
                if rng.random() < 0.8:
                    continue
        try:
            found = _results(function, [pool[i] for i in args])
        except (TypeError, ValueError, NotImplementedError):
            continue  # a type of numbers that it is not for
        sound = all(bool(jnp.all(jnp.isfinite(x))) for x in found if jnp.issubdtype(x.dtype, jnp.inexact))
        if not sound and seed % 16:
            continue
        steps.append(Step(name, function, args))
        pool += found
    return RandomFunction(steps, points)


class Reference:
    """A traced function operation by operation, as JAX has them; each result is changed by some of its last digits.

    Attributes:
        lost: Whether something on the way was no number, or so large or small that others in its place may be.
    """

    def __init__(self, changed: int):
        self.rng = np.random.default_rng(changed) if changed else None
        self.lost = False

    def __call__(self, closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        jaxpr: Any = closed.jaxpr
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
        read = lambda x: jnp.asarray(x.val, x.aval.dtype) if isinstance(x, Literal) else known[x]
        for equation in jaxpr.eqns:
            for variable, value in zip(
                equation.outvars, self.results(equation, list(map(read, equation.invars))), strict=True
            ):
                known[variable] = value
        return [read(x) for x in jaxpr.outvars]

    def results(self, equation: Any, args: list[Any]) -> list[Any]:
        params, name = equation.params, equation.primitive.name
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if name in ("jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call"):
            return self(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), args)
        if name == "cond":
            which = int(np.clip(args[0], 0, len(params["branches"]) - 1))
            return self(params["branches"][which], args[1:])
        if name == "while":
            n, m = params["cond_nconsts"], params["body_nconsts"]
            carry = args[n + m :]
            while bool(self(params["cond_jaxpr"], [*args[:n], *carry])[0]):
                carry = self(params["body_jaxpr"], [*args[n : n + m], *carry])
            return carry
        if name == "scan":
            return self.scan(params, args)
        found = equation.primitive.bind(*args, **params)
        found = [self.changed(x) for x in (found if equation.primitive.multiple_results else [found])]
        return [self.solved(x) for x in found] if name in SOLVED else found

    def scan(self, params: Any, args: list[Any]) -> list[Any]:
        (n, m), length = sizes_of_scan(params), params["length"]
        fixed, carry, xs = args[:n], args[n : n + m], args[n + m :]
        rows: list[Any] = [None] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            out = self(params["jaxpr"], [*fixed, *carry, *(x[i] for x in xs)])
            carry, rows[i] = out[:m], out[m:]
        kinds = params["jaxpr"].out_avals[m:]
        columns = [[row[k] for row in rows] for k in range(len(kinds))]
        return [*carry, *(jnp.stack(x) if x else jnp.zeros((0, *y.shape), y.dtype) for x, y in zip(columns, kinds))]

    def solved(self, x: Any) -> Any:
        """An array whose small entries are differences of larger ones."""
        if self.rng is None or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        size = 4 * float(jnp.finfo(x.dtype).eps) * jnp.max(jnp.abs(x), initial=0)
        return x + jnp.asarray(size * self.rng.normal(size=x.shape), x.dtype)

    def changed(self, x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        limits = jnp.finfo(x.dtype)
        size = np.abs(np.asarray(x.astype(complex)))
        self.lost |= bool(np.any(np.isnan(size) | ((size > float(limits.max) ** 0.7) & np.isfinite(size))))
        self.lost |= bool(np.any((size < float(limits.tiny) ** 0.7) & (size > 0)))
        if self.rng is None:
            return x
        return x * jnp.asarray(1 + 4 * float(limits.eps) * self.rng.normal(size=x.shape), x.dtype)


class Outcome(NamedTuple):
    """How many results were compared, and which of them are not what JAX makes of the function."""

    compared: int
    wrong: list[str]


def compare(piece: ScalarPiece, args: Sequence[Any]) -> Outcome:
    """Scalar code at a point beside the reference."""
    plain = Reference(0)
    want = plain(piece.closed, args)
    others = []
    for k in range(CHANGES):
        other = Reference(k + 1)
        others.append(other(piece.closed, args))
        plain.lost |= other.lost
    got = piece.evaluate(EvalForm((False,) * len(args), on_cpu=False), *args)
    wrong, compared = [], 0
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if x.shape != y.shape or x.dtype != y.dtype:
            wrong.append(f"result {i}: {x.dtype}{x.shape} for {y.dtype}{y.shape}")
        elif not plain.lost:
            compared += x.size
            spread = [other[i] for other in others]
            bad = _differs(
                *(np.asarray(z.astype(jnp.float32) if z.dtype == jnp.bfloat16 else z) for z in (x, y, *spread))
            )
            wrong += [f"result {i}: {x} for {y}"] if bad else []
    return Outcome(compared, wrong)


def _differs(got: np.ndarray, want: np.ndarray, *others: np.ndarray) -> bool:
    stack = np.stack([want, *others])
    if got.dtype.kind not in "fc":
        return bool(np.any((got != want) & np.all(stack == want, axis=0)))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settled = np.all(np.isfinite(stack), axis=0)
        room = 100 * np.max(np.abs(stack - want), axis=0) + 100 * np.finfo(want.dtype).eps * np.abs(want)
        close = np.abs(got - want) <= room + np.finfo(want.dtype).tiny
        infinite = np.all(np.isinf(stack) & (stack == want), axis=0)
    return bool(np.any(settled & ~close) | np.any(infinite & (got != want)))


class Trial(NamedTuple):
    """What became of a function: value, forward, reverse."""

    compared: tuple[int, int, int]
    wrong: list[str]


def _has_derivative(piece: ScalarPiece, given: Sequence[int], way: str) -> bool:
    """Whether JAX itself differentiates the program of a piece."""
    smooth = [i for i, x in enumerate(piece.takes) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def derivative(*x):
        def moved(*moving):
            whole = dict(enumerate(x)) | dict(zip(smooth, moving, strict=True))
            found = jaxpr_as_fun(piece.closed)(*whole.values())
            return [found[i] for i in given]

        at = [x[i] for i in smooth]
        if way == "forward":
            return jax.jvp(moved, at, at)
        found, pull = jax.vjp(moved, *at)
        return pull(found)

    try:
        jax.eval_shape(derivative, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in piece.takes))
    except (NotImplementedError, ValueError, TypeError):
        return False
    return True


def attempt(seed: int, limit: int = 20_000) -> Trial:
    """A random function beside scalar code of it: its value, its tangents, its cotangents."""
    function = random_function(seed)
    piece = ScalarPiece(traced(function, function.points[0]), limit)
    moving, rng = tuple(range(len(FIRST))), np.random.default_rng(seed)
    given = tuple(i for i, x in enumerate(piece.gives) if jnp.issubdtype(x.dtype, jnp.floating))
    drawn = lambda kinds: [jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in kinds]
    pieces = {"value": (piece, ()), "forward": (None, piece.takes), "reverse": (None, [piece.gives[i] for i in given])}
    counts, wrong = [], []
    for way, (made, more) in pieces.items():
        try:
            if way == "forward":
                made = piece.tangent(moving)
            elif way == "reverse" and given:
                made = piece.cotangent(moving, given)
        except (NotImplementedError, ValueError, TypeError) as error:
            made = None
            if _has_derivative(piece, given, way):
                wrong.append(f"seed {seed}, {way}: {error!r}; steps {[step.name for step in function.steps]}")
        # Of a rule for reverse mode only there is no other.
        known = made is not None and not (way == "forward" and "custom_lin" in str(made.closed))
        found = [compare(made, [*x, *drawn(more)]) for x in function.points] if known else []
        counts.append(sum(x.compared for x in found))
        names = [step.name for step in function.steps]
        wrong += [f"seed {seed}, {way}: {text}; steps {names}" for x in found for text in x.wrong]
    return Trial((counts[0], counts[1], counts[2]), wrong)
