"""Tuning by gradient: a loss, its parameters, an optimiser; and the problem that a command tunes."""

import dataclasses
import os
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
from jaxtyping import Array, ArrayLike, PyTree
from tqdm.auto import tqdm

from .. import _check
from .._result import failures_as_nan
from .._user_code import noted
from . import _checkpoint
from ._checkpoint import definition_of
from ._descent import Descent, LeastSquares, LevenbergMarquardt, Optax, Optimistix, Optimizer
from ._loop import Loop, Record, Stopping, Tuning
from ._objective import Box, Objective, Samples, compiled


@noted()
def tune(
    loss: Callable[..., Array],
    params: PyTree,
    optimizer: Optimizer,
    steps: int,
    *,
    bounds: tuple[PyTree, PyTree] | None = None,
    samples: PyTree | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    rtol: float | None = 1e-10,
    atol: float = 1e-12,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Tuning:
    """Minimises a loss by gradient descent, and keeps the best parameters seen.

    The tuning avoids parameters where the loss is not finite, or a simulation within it fails (whatever its `throw`).
    There a line search and `LevenbergMarquardt` try a shorter step; any other step is halved until the loss is finite.

    Args:
        loss: `loss(params)`, a scalar; or, with `samples`, `loss(params, sample)`, whose mean over the samples is
            minimised. Or residuals (m,), whose sum of squares is minimised. The loss may contain a simulation, and is
            compiled once, with its gradient.
        params: A pytree; its floating arrays are tuned (Python floats become arrays), everything else is kept.
        optimizer: Any optax optimiser, for example `optax.adam(1e-2)`; or `optax.lbfgs()`, which searches along a line
            in every step and needs far fewer of them where the loss is smooth and not drawn from minibatches; or, for a
            loss that returns residuals, `ukjax.tuning.LevenbergMarquardt()`, which needs the fewest. Or any of
            optimistix's minimisers, such as `optimistix.BFGS(rtol, atol)`, and least-squares solvers: each of its
            trials is a step, and it ends by its own tolerances.
        steps: Largest number of steps, at least 1.
        bounds: (lower, upper), each a pytree like `params` or a prefix of it, a single number for instance. Parameters
            that a step takes outside are put back on the bound. Line searches, L-BFGS, `LevenbergMarquardt` and
            optimistix's solvers see only the parameters that no bound holds.
        samples: A pytree of arrays with a common leading axis: perturbed masses, initial states, targets. Tuning for
            all of them at once gives gains that are robust, rather than right for one case. One tile of them is
            computed at a time, on every device of this process, so that thousands fit in memory. The exception is
            optimistix's least-squares solvers, which need the Jacobian of all residuals.
        batch_size: Number of samples in a step, drawn without repetition until all were used; None for all. The loss
            over all samples is then evaluated once in an epoch, and decides which parameters are best.
        seed: Seed of the order in which samples are drawn, 0 if None; only with a `batch_size`.
        rtol: The tuning has converged when a step changes every parameter x by at most atol + rtol |x|, and the loss
            likewise (Cauchy's criterion); or when no length of step lowers the loss. In addition, the loss must not
            fall by more than that along the projected gradient, at steps from a tenth to 1e-7 of the parameters. None:
            never. With minibatches `rtol` has no effect. optimistix's solvers have their own tolerances; within bounds
            the test along the projected gradient applies to them too.
        atol: See `rtol`.
        patience: Stop after this number of steps without an improvement of the loss (the one over all samples); None:
            never.
        checkpoint: A file in which the state is kept after every step; if it exists, the tuning goes on from there, as
            if it had not been interrupted. The file must be of the same tuning: the same traced loss, with its
            constants and own derivative rules, the same traced step of the optimiser, the same initial `params` and
            other arguments, and the same versions of the packages that compute. `steps` may be larger than before.
            Names of functions and paths of files do not count.
        progress: Show a progress bar with the loss and the gradient norm.
        throw: Raise if the loss or its gradient is not finite at the start, or after a step, however short the step is
            made. With False the tuning ends there; look at `stopped`.

    Returns:
        `Tuning`: best `params` with their `loss`, and the history, also as a labelled data set.

    Raises:
        TypeError: If `loss` is not callable or `optimizer` is no optimiser.
        ValueError: If a number is out of range, `params` holds nothing to tune or lies outside of `bounds`, `samples`
            have no common leading axis, `seed` or `batch_size` has nothing to act on, `loss` returns neither a scalar
            nor residuals or not what `optimizer` needs, or `checkpoint` belongs to another tuning (the error names what
            differs).
        RuntimeError: If `throw` and the loss or its gradient is not finite, as above.
    """
    _check_arguments(loss, optimizer, steps, patience)
    stopping = Stopping(
        None if rtol is None else _check.tolerance(rtol, "rtol"), _check.tolerance(atol, "atol"), patience
    )
    params = jax.tree_util.tree_map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, params)
    tuned, fixed = eqx.partition(params, eqx.is_inexact_array)
    if not jax.tree_util.tree_leaves(tuned):
        raise ValueError("params must hold at least one floating array to tune, but holds none.")
    box = None if bounds is None else _box(bounds, tuned)
    drawn = Samples(samples, batch_size, seed)
    path = None if checkpoint is None else _check.path(checkpoint, "checkpoint")
    with failures_as_nan(True):
        squares = _is_sum_of_squares(loss, params, samples, optimizer)
        objective = Objective(loss, fixed, squares)
        descent = _descent(optimizer, objective, box, drawn.partial)
        record = Record(descent.init(tuned, drawn.batch(0).samples), steps)
        definition = {} if path is None else definition_of(objective, tuned, optimizer, box, drawn, stopping)
        if path is not None:
            _checkpoint.resume(path, record, definition)

        def save(record: Record) -> None:
            if path is not None:
                _checkpoint.save(path, record, definition)

        loop = Loop(descent, compiled(objective.scalar), box, drawn, stopping, save)
        with tqdm(total=steps, initial=record.done, desc="tune", disable=not progress, unit="step") as bar:
            ending = loop.run(record, steps, bar)
    if ending.failed and throw:
        raise RuntimeError(ending.reason) from ending.error
    return record.tuning(fixed, ending.reason)


def _descent(optimizer: Optimizer, objective: Objective, box: Box | None, minibatches: bool) -> Descent:
    if isinstance(optimizer, LevenbergMarquardt):
        return LeastSquares(optimizer, objective, box)
    if isinstance(optimizer, optax.GradientTransformation):
        return Optax(optimizer, objective, box)
    if minibatches:
        name = type(optimizer).__name__
        raise ValueError(f"batch_size must be None with optimistix.{name}, which compares losses of successive steps.")
    return Optimistix(optimizer, objective, box)


LEAST_SQUARES = (LevenbergMarquardt, optx.AbstractLeastSquaresSolver)


def _is_sum_of_squares(
    loss: Callable[..., Array], params: PyTree, samples: PyTree | None, optimizer: Optimizer
) -> bool:
    """Whether the loss returns residuals (m,); raises ValueError unless it returns those or a scalar, as needed."""
    call = "loss(params)" if samples is None else "loss(params, sample)"
    first = () if samples is None else (jax.tree_util.tree_map(lambda x: x[0], samples),)
    found = eqx.filter_eval_shape(loss, params, *first)
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) > 1:
        raise ValueError(f"{call} must return a scalar or residuals of shape (m,), but returned {found}.")
    if isinstance(optimizer, LEAST_SQUARES) and shape == ():
        name = type(optimizer).__name__
        raise ValueError(f"{call} must return residuals of shape (m,) for {name}, but returned a scalar.")
    return len(shape) == 1


def _check_arguments(loss: object, optimizer: object, steps: object, patience: object) -> None:
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(params) -> scalar, but is {type(loss).__name__}.")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "optimizer must be an optax optimiser, for example optax.adam(1e-2), ukjax.tuning.LevenbergMarquardt(), or "
            f"an optimistix solver, for example optimistix.BFGS(1e-8, 1e-8), but is {type(optimizer).__name__}."
        )
    for name, value in (("steps", steps), ("patience", 1 if patience is None else patience)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, but is {value!r}.")


def _box(bounds: tuple[PyTree, PyTree], tuned: PyTree) -> Box:
    """Returns the lower and the upper bound of every tuned leaf."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ValueError("bounds must be a pair (lower, upper), each like params or a single number.")

    def fit(b: ArrayLike, part: PyTree) -> PyTree:
        return jax.tree_util.tree_map(lambda x: jnp.broadcast_to(jnp.asarray(b, x.dtype), x.shape), part)

    def spread(bound: PyTree, name: str) -> PyTree:
        try:
            return jax.tree_util.tree_map(fit, bound, tuned)
        except (ValueError, TypeError) as error:
            raise ValueError(f"bounds: the {name} one does not fit params: {error}") from error

    low, high = spread(bounds[0], "lower"), spread(bounds[1], "upper")
    for path, x in jax.tree_util.tree_leaves_with_path(tuned):
        a, b = (dict(jax.tree_util.tree_leaves_with_path(side))[path] for side in (low, high))
        if not np.all((np.asarray(a) <= x) & (x <= np.asarray(b))):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "params"
            raise ValueError(f"params must lie within bounds, but {name} = {x} is not within {a} and {b}.")
    return Box(low, high)


@dataclasses.dataclass(frozen=True, eq=False)
class TuningProblem:
    """A loss, its parameters, and the way to minimise it, which `ukjax tune` runs.

    Args:
        loss: `loss(params)`, or `loss(params, sample)` with `samples`; see `tune`.
        params: Parameters at the start.
        optimizer: Any optax optimiser, `LevenbergMarquardt`, or an optimistix solver.
        steps: Largest number of steps.
        name: A short title.
        quantities: Quantities to show of the parameters: "P [s]" -> `f(params)`, a scalar; useful where logarithms are
            tuned. Every entry of every floating array under its own name if omitted.
        bounds: See `tune`, as for the following.
        samples: Perturbed systems.
        batch_size: Size of minibatches.
        seed: Seed of the order of samples.
        rtol: Relative tolerance for convergence; None: never.
        atol: Absolute tolerance, likewise.
        patience: Steps without improvement after which to stop.

    Raises:
        TypeError: If `loss` or a quantity is not callable.
    """

    loss: Callable[..., Array]
    params: PyTree
    optimizer: Optimizer
    steps: int
    _: dataclasses.KW_ONLY
    name: str = "tuning"
    quantities: Mapping[str, Callable[[PyTree], ArrayLike]] | None = None
    bounds: tuple[PyTree, PyTree] | None = None
    samples: PyTree = None
    batch_size: int | None = None
    seed: int | None = None
    rtol: float | None = 1e-10
    atol: float = 1e-12
    patience: int | None = None

    def __post_init__(self):
        _check.function(self.loss, "loss", "loss(params[, sample]) -> scalar")
        for name, quantity in (self.quantities or {}).items():
            _check.function(quantity, f"quantities[{name!r}]", "f(params) -> scalar")

    def tune(
        self, *, checkpoint: str | os.PathLike[str] | None = None, progress: bool = True, throw: bool = True
    ) -> Tuning:
        """Runs `ukjax.tune` on this problem."""
        return tune(
            self.loss, self.params, self.optimizer, self.steps, bounds=self.bounds, samples=self.samples,
            batch_size=self.batch_size, seed=self.seed, rtol=self.rtol, atol=self.atol, patience=self.patience,
            checkpoint=checkpoint, progress=progress, throw=throw,
        )  # fmt: skip

    def shown(self, history: PyTree) -> dict[str, np.ndarray]:
        """Returns the quantities to show, by name, for parameters with a leading axis such as `Tuning.history`."""
        if self.quantities is not None:
            return {name: np.asarray(jax.vmap(f)(history)) for name, f in self.quantities.items()}
        values: dict[str, np.ndarray] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(history):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameter"
            for index in np.ndindex(leaf.shape[1:]):
                values[name + "".join(f"[{i}]" for i in index)] = np.asarray(leaf[(slice(None), *index)])
        return values
