"""Tuning by gradient: a loss, its parameters, an optax optimiser."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree
from tqdm.auto import tqdm

from ._descent import Bounds, descent
from ._levenberg_marquardt import LevenbergMarquardt


if TYPE_CHECKING:
    import xarray


class Tuning(eqx.Module):
    """What `tune` found.

    Attributes:
        params: The parameters with the smallest loss seen.
        loss: That loss.
        step: The step at which it was seen; 0 is the start.
        losses: Loss before every step and after the last, (steps + 1,); shorter if the tuning stopped early. With
            minibatches each is that of its minibatch.
        gradient_norms: Norm of the gradient at the same points.
        full_losses: Loss over all samples at the same points; NaN where it was not evaluated. Without minibatches the
            same as `losses`.
        evaluations: How many times the loss and its gradient had been computed by then, line searches included; with
            `LevenbergMarquardt`, residuals and Jacobian.
        trials: How many times the loss alone had been computed by then, which `LevenbergMarquardt` does.
        history: The parameters at the same points, every leaf with a leading axis.
        stopped: Why it stopped before its steps were done, or an empty string.
    """

    params: PyTree
    loss: float
    step: int
    losses: Float[np.ndarray, " points"]
    gradient_norms: Float[np.ndarray, " points"]
    full_losses: Float[np.ndarray, " points"]
    evaluations: Float[np.ndarray, " points"]
    trials: Float[np.ndarray, " points"]
    history: PyTree
    stopped: str

    def to_dataset(self) -> "xarray.Dataset":
        """The history as a labelled xarray data set over `step`, one variable for each parameter."""
        import xarray as xr

        data: dict[str, Any] = {
            "loss": ("step", self.losses, {"long_name": "loss"}),
            "full_loss": ("step", self.full_losses, {"long_name": "loss over all samples"}),
            "gradient_norm": ("step", self.gradient_norms, {"long_name": "norm of the gradient"}),
            "evaluations": ("step", self.evaluations, {"long_name": "evaluations of the loss and its gradient so far"}),
            "trials": ("step", self.trials, {"long_name": "evaluations of the loss alone so far"}),
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.history):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameter"
            dims = ["step", *(f"{name}_dim{i}" for i in range(leaf.ndim - 1))]
            data[name] = (dims, np.asarray(leaf), {"long_name": f"parameter {name}"})
        steps = ("step", np.arange(len(self.losses)), {"long_name": "steps taken"})
        return xr.Dataset(data, coords={"step": steps}, attrs={"stopped": self.stopped, "best_step": self.step})


def tune(
    loss: Callable[..., Array],
    params: PyTree,
    optimizer: optax.GradientTransformation | LevenbergMarquardt,
    steps: int,
    *,
    bounds: tuple[PyTree, PyTree] | None = None,
    samples: PyTree | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Tuning:
    """Minimises a loss by gradient descent, and keeps the best parameters seen.

    Args:
        loss: `loss(params)`, a scalar; or, with `samples`, `loss(params, sample)`, of which the mean over the samples
            is minimised. A trajectory may lie in between. Compiled once, with its gradient. Or residuals (m,), whose
            sum of squares is minimised.
        params: A pytree; its floating arrays are tuned (Python floats become arrays), everything else is kept.
        optimizer: Any optax optimiser, for example `optax.adam(1e-2)`; or `optax.lbfgs()`, which searches along a line
            in every step and needs far fewer of them where the loss is smooth and not drawn from minibatches; or, for a
            loss that returns residuals, `ukjax.LevenbergMarquardt()`, which needs the fewest.
        steps: How many steps to take, at least 1.
        bounds: (lower, upper), each a pytree like `params` or a prefix of it, a single number for instance; parameters
            that a step takes outside are put back on the bound.
        samples: A pytree of arrays with a common leading axis: perturbed masses, initial states, targets. Tuning for
            all of them at once gives gains that are robust, rather than right for one case.
        batch_size: How many samples to use in a step, drawn without repetition until all were used; None for all. The
            loss over all samples is then evaluated once in an epoch, and the best parameters are judged by that.
        seed: Of the order in which samples are drawn.
        patience: Stop after so many steps without an improvement of the loss (the one over all samples); None: never.
        checkpoint: A file in which the state is kept after every step; if it exists, the tuning goes on from there, as
            if it had not been interrupted.
        progress: Show a progress bar with the loss and the gradient norm.
        throw: Raise if the loss or its gradient stops being finite. With False the tuning ends there; look at
            `stopped`.

    Returns:
        `Tuning`: best `params` with their `loss`, and the history, also as a labelled data set.

    Raises:
        TypeError: If `loss` is not callable or `optimizer` is neither an optax optimiser nor `LevenbergMarquardt`.
        ValueError: If a number is out of range, `params` holds nothing to tune or lies outside of `bounds`, `samples`
            have no common leading axis, `loss` returns neither a scalar nor residuals or not what `optimizer` needs, or
            `checkpoint` belongs to another tuning.
        RuntimeError: If `throw` and the loss or its gradient is not finite.
    """
    _check(loss, optimizer, steps, patience)
    params = jax.tree_util.tree_map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, params)
    tuned, fixed = eqx.partition(params, eqx.is_inexact_array)
    if not jax.tree_util.tree_leaves(tuned):
        raise ValueError("params must hold at least one floating array to tune, but holds none.")
    box = None if bounds is None else _box(bounds, tuned)
    count = None if samples is None else _count(samples)
    size = _batch_size(batch_size, count)
    per_epoch = 1 if count is None or size is None else -(-count // size)

    squares = _is_sum_of_squares(loss, eqx.combine(tuned, fixed), samples, optimizer)

    def value(tuned, batch):
        # The loss, or the residuals of all samples, scaled so that their squares add up to the mean.
        at = eqx.combine(tuned, fixed)
        if batch is None:
            return loss(at)
        each = jax.vmap(loss, (None, 0))(at, batch)
        return jnp.ravel(each) / np.sqrt(each.shape[0]) if squares else jnp.mean(each)

    by = descent(optimizer, value, squares, box)
    full = jax.jit(lambda tuned, batch: jnp.sum(value(tuned, batch) ** 2) if squares else value(tuned, batch))
    record = _Record(tuned, by.init(tuned), steps)
    if checkpoint is not None:
        record = _resume(Path(checkpoint), record)
    draws = _draws(count, size, seed, record.done)
    stopped, failed = "", False
    with tqdm(total=steps, initial=record.done, desc="tune", disable=not progress, unit="step") as bar:
        while True:
            step, drawn = record.done, next(draws)
            batch = samples if drawn is None else jax.tree_util.tree_map(lambda x, i=drawn: x[i], samples)
            found = by.at_hand(record.state) if drawn is None else None
            record.spent[0] += found is None
            found = by.evaluate(record.tuned, batch) if found is None else found
            number, gradient, _ = found
            norm = float(optax.tree.norm(gradient))
            partial = drawn is not None
            due = partial and (step % per_epoch == 0 or step == steps)
            over_all = (float(full(record.tuned, samples)) if due else np.nan) if partial else float(number)
            record.add(float(number), norm, over_all)
            bar.set_postfix(loss=f"{float(number):.6g}", gradient=f"{norm:.3g}")
            if not np.isfinite([float(number), norm]).all():
                what = "gradient" if np.isfinite(float(number)) else "loss"
                failed = True
                stopped = f"The {what} is not finite at step {step}. Take smaller steps, or bound the parameters."
                break
            last = step == steps
            if not last:
                record.tuned, record.state = by.update(record.tuned, found, record.state, batch)
                record.done += 1
                record.spent += by.spent(record.state)
                bar.update()
            if checkpoint is not None:
                _save(Path(checkpoint), record)
            if last:
                break
            if patience is not None and step - record.best() >= patience:
                stopped = f"No improvement in {patience} steps."
                break
    if failed and throw:
        raise RuntimeError(stopped)
    return _summary(record, fixed, stopped)


class _Record:
    """Where a tuning is, and what it has seen: arrays over the steps, of which the first `seen` are filled."""

    def __init__(self, tuned: PyTree, state: PyTree, steps: int):
        self.tuned, self.state, self.done = tuned, state, 0
        self.spent = np.zeros(2)  # evaluations with gradient, and without
        self.losses, self.norms, self.over_all = (np.full(steps + 1, np.nan) for _ in range(3))
        self.evaluations = np.full((steps + 1, 2), np.nan)
        self.history = jax.tree_util.tree_map(lambda x: np.full((steps + 1, *x.shape), np.nan, x.dtype), tuned)
        self.seen = 0

    def add(self, loss: float, norm: float, over_all: float) -> None:
        i = self.done
        self.losses[i], self.norms[i], self.over_all[i] = loss, norm, over_all
        self.evaluations[i] = self.spent
        for store, leaf in zip(*(jax.tree_util.tree_leaves(x) for x in (self.history, self.tuned)), strict=True):
            store[i] = leaf
        self.seen = i + 1

    def best(self) -> int:
        """The step with the smallest loss over all samples."""
        losses = self.over_all[: self.seen]
        return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))

    def arrays(self) -> tuple[list[Any], list[Any]]:
        """Leaves that keep their shape, and those over the steps."""
        over_steps = [
            self.losses,
            self.norms,
            self.over_all,
            self.evaluations,
            *jax.tree_util.tree_leaves(self.history),
        ]
        return jax.tree_util.tree_leaves((self.tuned, self.state)), over_steps


def _save(path: Path, record: _Record) -> None:
    fixed, over_steps = record.arrays()
    arrays = {f"state{i}": np.asarray(x) for i, x in enumerate(fixed)}
    arrays |= {f"history{i}": x[: record.seen] for i, x in enumerate(over_steps)}
    aside = path.with_name(f".{path.name}.unfinished")
    with open(aside, "wb") as file:
        np.savez(file, allow_pickle=False, done=record.done, spent=record.spent, **arrays)
    aside.replace(path)  # whole, or not at all


def _resume(path: Path, record: _Record) -> _Record:
    """`record` as `path` left it; untouched if there is no such file yet."""
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint lies in a folder that does not exist: {path.parent}. Make it first.")
    if not path.exists():
        return record
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = dict(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {path} is not a file that ukjax.tune wrote: {error}") from error
    fixed, over_steps = record.arrays()
    names = {
        "done",
        "spent",
        *(f"state{i}" for i in range(len(fixed))),
        *(f"history{i}" for i in range(len(over_steps))),
    }
    fits = set(stored) == names and all(np.shape(stored[f"state{i}"]) == np.shape(x) for i, x in enumerate(fixed))
    if not fits:
        raise ValueError(f"checkpoint {path} belongs to another tuning. Pass another file, or remove this one.")
    record.seen = len(stored["history0"])
    if record.seen > len(record.losses):
        raise ValueError(f"steps must be at least {record.seen - 1}, which checkpoint {path} has taken already.")
    leaves = [jnp.asarray(stored[f"state{i}"], np.asarray(x).dtype) for i, x in enumerate(fixed)]
    structure = jax.tree_util.tree_structure((record.tuned, record.state))
    record.tuned, record.state = jax.tree_util.tree_unflatten(structure, leaves)
    for i, store in enumerate(over_steps):
        store[: record.seen] = stored[f"history{i}"]
    record.spent = stored["spent"]
    record.done = int(stored["done"])  # after its last step a tuning has only looked: it looks again, and goes on
    return record


def _draws(count: int | None, size: int | None, seed: int, done: int) -> Iterator[np.ndarray | None]:
    """Indices of the samples of every step from `done` on; None for all."""
    if count is None or size is None or size >= count:
        while True:
            yield None
    per_epoch = -(-count // size)
    step = done
    while True:
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(count)
        # The last batch of an epoch is filled up from its beginning, so that all have one size and compile once.
        yield np.resize(order, per_epoch * size)[place * size : (place + 1) * size]
        step += 1


def _is_sum_of_squares(loss: Callable, params: PyTree, samples: PyTree | None, optimizer: Any) -> bool:
    """Whether the loss returns residuals (m,); ValueError if neither those nor a scalar, or not what is needed."""
    call = "loss(params)" if samples is None else "loss(params, sample)"
    first = () if samples is None else (jax.tree_util.tree_map(lambda x: x[0], samples),)
    found = eqx.filter_eval_shape(loss, params, *first)
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) > 1:
        raise ValueError(f"{call} must return a scalar or residuals of shape (m,), but returned {found}.")
    if isinstance(optimizer, LevenbergMarquardt) and shape == ():
        raise ValueError(f"{call} must return residuals of shape (m,) for LevenbergMarquardt, but returned a scalar.")
    return len(shape) == 1


def _check(loss: Any, optimizer: Any, steps: Any, patience: Any) -> None:
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(params) -> scalar, but is {type(loss).__name__}.")
    if not isinstance(optimizer, (optax.GradientTransformation, LevenbergMarquardt)):
        raise TypeError(
            "optimizer must be an optax optimiser, for example optax.adam(1e-2), or ukjax.LevenbergMarquardt(), but is "
            f"{type(optimizer).__name__}."
        )
    for name, value in (("steps", steps), ("patience", 1 if patience is None else patience)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, but is {value!r}.")


def _box(bounds: Any, tuned: PyTree) -> Bounds:
    """Lower and upper bound of every tuned leaf."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ValueError("bounds must be a pair (lower, upper), each like params or a single number.")

    def spread(bound: Any, name: str) -> PyTree:
        try:
            fit = lambda b, part: jax.tree_util.tree_map(
                lambda x: jnp.broadcast_to(jnp.asarray(b, x.dtype), x.shape), part
            )
            return jax.tree_util.tree_map(fit, bound, tuned)
        except (ValueError, TypeError) as error:
            raise ValueError(f"bounds: the {name} one does not fit params: {error}") from error

    low, high = spread(bounds[0], "lower"), spread(bounds[1], "upper")
    for path, x in jax.tree_util.tree_leaves_with_path(tuned):
        a, b = (dict(jax.tree_util.tree_leaves_with_path(side))[path] for side in (low, high))
        if not np.all((np.asarray(a) <= x) & (x <= np.asarray(b))):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "params"
            raise ValueError(f"params must lie within bounds, but {name} = {x} is not within {a} and {b}.")
    return low, high


def _count(samples: PyTree) -> int:
    sizes = {np.shape(x)[:1] for x in jax.tree_util.tree_leaves(samples)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            f"samples must be arrays with one common leading axis, one entry per sample, but those are {sorted(sizes)}."
        )
    return sizes.pop()[0]


def _batch_size(size: Any, count: int | None) -> int | None:
    if size is None:
        return None
    if count is None:
        raise ValueError("batch_size needs samples to draw from: pass samples.")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= count:
        raise ValueError(f"batch_size must be an integer from 1 to the {count} samples, but is {size!r}.")
    return size


def _summary(record: _Record, fixed: Any, stopped: str) -> Tuning:
    best, seen = record.best(), record.seen
    history = jax.tree_util.tree_map(lambda x: jnp.asarray(x[:seen]), record.history)
    return Tuning(
        params=eqx.combine(jax.tree_util.tree_map(lambda x: x[best], history), fixed),
        loss=float(record.over_all[best]),
        step=best,
        losses=record.losses[:seen],
        gradient_norms=record.norms[:seen],
        full_losses=record.over_all[:seen],
        evaluations=record.evaluations[:seen, 0],
        trials=record.evaluations[:seen, 1],
        history=history,
        stopped=stopped,
    )
