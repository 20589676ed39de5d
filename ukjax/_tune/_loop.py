"""The loop of a tuning, which takes steps until there is a reason to stop; the record of its history; its result."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree
from tqdm.auto import tqdm

from .._show import AbstractShown, Report, number, parameters, shortened
from ._descent import Descent, Finish, Point, Spent, Step
from ._objective import Batch, Box, Samples, lowers, sizes_of, without_bounds


if TYPE_CHECKING:
    import xarray


class Tuning(AbstractShown):
    """The result of `tune`: the best parameters and the history.

    Attributes:
        params: The parameters with the smallest loss seen.
        loss: The smallest loss.
        step: The step at which that loss was seen; 0 is the start.
        losses: Loss before every step and after the last, (steps + 1,); shorter if the tuning stopped early. With
            minibatches each is the loss of its minibatch.
        gradient_norms: Norm of the gradient at the same points.
        full_losses: Loss over all samples at the same points; NaN where it was not evaluated. Equal to `losses`
            without minibatches.
        evaluations: Number of computations of the loss and its gradient up to each point, line searches and rejected
            trials included; with a least-squares method, residuals and Jacobian.
        trials: Number of computations of the loss alone up to each point, by `LevenbergMarquardt` for example.
        history: The parameters at the same points, every leaf with a leading axis.
        stopped: Reason why the tuning stopped before its steps were done, such as "Converged: ...", or an empty string.
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

    def _report(self) -> Report:
        best, last = self.step, len(self.losses) - 1
        rows = [("loss", number(self.full_losses[0]), number(self.loss))]
        starts = dict(parameters(jax.tree_util.tree_map(lambda x: x[0], self.history)))
        rows += [(name, starts[name], text) for name, text in parameters(self.params)]
        rows.append(("norm of the gradient", number(self.gradient_norms[0]), number(self.gradient_norms[best])))
        curves = [np.asarray(self.losses)[None], *(np.zeros((1, 0)) for _ in rows[1:])]
        shown, more = shortened(rows)
        notes = [*more, f"{last} steps. {self.stopped}".strip()]
        return Report("Tuning", shown, ("", "start", f"best (step {best})"), notes, curves[: len(shown)])

    def to_dataset(self) -> "xarray.Dataset":
        """Returns the history as a labelled xarray data set over `step`, one variable for each parameter."""
        import xarray as xr

        data: dict[str, tuple[str | list[str], np.ndarray, dict[str, str]]] = {
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


class Record:
    """The present parameters and state of the optimiser, and arrays over the steps, of which `seen` rows are filled.

    `spent` counts evaluations of the loss with gradient, and without.
    """

    def __init__(self, start: Step, steps: int):
        self.done, self.seen, self.spent = 0, 0, np.zeros(2)
        self.move(start)
        tuned = start.tuned
        self.losses, self.norms, self.over_all = (np.full(steps + 1, np.nan) for _ in range(3))
        self.evaluations = np.full((steps + 1, 2), np.nan)
        self.history = jax.tree_util.tree_map(lambda x: np.full((steps + 1, *x.shape), np.nan, x.dtype), tuned)

    def move(self, step: Step) -> None:
        """Moves to the parameters and state after a step."""
        self.tuned, self.state = step.tuned, step.state
        self.spent += np.asarray(step.spent)

    def add(self, loss: float, norm: float, over_all: float) -> None:
        """Fills the row of the present step."""
        i = self.done
        self.losses[i], self.norms[i], self.over_all[i] = loss, norm, over_all
        self.evaluations[i] = self.spent
        for store, leaf in zip(*(jax.tree_util.tree_leaves(x) for x in (self.history, self.tuned)), strict=True):
            store[i] = leaf
        self.seen = i + 1

    def best(self) -> int:
        """Returns the step with the smallest loss over all samples."""
        losses = self.over_all[: self.seen]
        return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))

    def parameters(self, step: int) -> np.ndarray:
        """Returns all tuned numbers at a step, one after the other."""
        return np.concatenate([np.ravel(x[step]) for x in jax.tree_util.tree_leaves(self.history)])

    def over_steps(self) -> list[np.ndarray]:
        """Returns all arrays over the steps."""
        histories = jax.tree_util.tree_leaves(self.history)
        return [self.losses, self.norms, self.over_all, self.evaluations, *histories]

    def tuning(self, fixed: PyTree, stopped: str) -> Tuning:
        """Returns the result of the tuning; `fixed`: the parameters that were not tuned."""
        best, seen = self.best(), self.seen
        history = jax.tree_util.tree_map(lambda x: jnp.asarray(x[:seen]), self.history)
        return Tuning(
            params=eqx.combine(jax.tree_util.tree_map(lambda x: x[best], history), fixed),
            loss=float(self.over_all[best]),
            step=best,
            losses=self.losses[:seen],
            gradient_norms=self.norms[:seen],
            full_losses=self.over_all[:seen],
            evaluations=self.evaluations[:seen, 0],
            trials=self.evaluations[:seen, 1],
            history=history,
            stopped=stopped,
        )


HALVINGS = 16  # of a step after which the loss is not finite


@dataclasses.dataclass(frozen=True)
class Stopping:
    """Conditions to stop before all steps are done: see `tune`."""

    rtol: float | None
    atol: float
    patience: int | None


class Ending(NamedTuple):
    """The reason why a tuning stopped early, or an empty string; whether that is a failure, and its error."""

    reason: str
    failed: bool = False
    error: Exception | None = None


class Look(NamedTuple):
    """Loss and gradient at the present parameters, an error that the loss raised there, and the evaluations spent."""

    point: Point
    error: Exception | None
    spent: Spent


@dataclasses.dataclass(frozen=True)
class Loop:
    """The parts of a tuning.

    Attributes:
        descent: The method that changes the parameters.
        full: `full(tuned, samples)`, the loss over all samples.
        box: The bounds, if there are any.
        samples: The samples, if there are any.
        stopping: Conditions to stop early.
        save: Function that saves a record.
    """

    descent: Descent
    full: Callable[[PyTree, PyTree], Array]
    box: Box | None
    samples: Samples
    stopping: Stopping
    save: Callable[[Record], None]

    def run(self, record: Record, steps: int, bar: tqdm) -> Ending:
        """Takes steps until `steps` are done, or there is a reason to stop."""
        batch = self.samples.batch(record.done)
        look = self._look(record, batch)
        while True:
            self._add(record, look, batch, steps)
            bar.set_postfix(loss=f"{float(look.point.loss):.6g}", gradient=f"{record.norms[record.done]:.3g}")
            ending = self._ending(record, look, batch)
            if ending.reason or record.done == steps:
                return ending
            before = Step(record.tuned, record.state)
            try:
                after = self.descent.update(before, look.point, batch.samples)
            except eqx.EquinoxRuntimeError as error:
                advice = "Let it be NaN instead where the parameters must not go."
                return Ending(f"The loss raises an error within step {record.done + 1}. {advice}", True, error)
            record.done += 1
            batch = self.samples.batch(record.done)
            look = self._land(record, before, after, batch)
            self.save(record)
            bar.update()

    def _land(self, record: Record, before: Step, after: Step, batch: Batch) -> Look:
        """Ends a step, halving it until the loss is finite at its end."""
        record.move(after)
        look = self._look(record, batch)
        for _ in range(HALVINGS):
            shorter = None if look.point.finite() else self.descent.shorter(before, after, batch.samples)
            if shorter is None:
                break
            record.spent += np.asarray(look.spent)
            after = shorter
            record.move(after)
            look = self._look(record, batch)
        return look

    def _look(self, record: Record, batch: Batch) -> Look:
        point = None if batch.partial else self.descent.known(record.state)
        if point is not None:
            return Look(point, None, Spent())
        try:
            return Look(self.descent.evaluate(record.tuned, batch.samples), None, Spent(1))
        except eqx.EquinoxRuntimeError as error:
            gradient = jax.tree_util.tree_map(lambda x: jnp.full_like(x, jnp.nan), record.tuned)
            return Look(Point(jnp.asarray(jnp.nan), gradient), error, Spent(1))

    def _add(self, record: Record, look: Look, batch: Batch, steps: int) -> None:
        record.spent += np.asarray(look.spent)
        loss = float(look.point.loss)
        due = record.done % self.samples.per_epoch == 0 or record.done == steps
        over_all = loss if not batch.partial else float(self.full(record.tuned, self.samples.all)) if due else np.nan
        record.add(loss, float(optax.tree.norm(look.point.gradient)), over_all)

    def _ending(self, record: Record, look: Look, batch: Batch) -> Ending:
        i, patience = record.done, self.stopping.patience
        if not look.point.finite():
            what = "loss" if not np.isfinite(look.point.loss) else "gradient"
            advice = "Start elsewhere." if i == 0 else "Take smaller steps, or bound the parameters."
            return Ending(f"The {what} is not finite at step {i}. {advice}", True, look.error)
        reason = "" if self.samples.partial else self._converged(record, look.point, batch)
        if not reason and patience is not None and i - record.best() >= patience:
            reason = f"No improvement in {patience} steps."
        return Ending(reason)

    def _converged(self, record: Record, point: Point, batch: Batch) -> str:
        """Returns the reason why the tuning ends by itself, or an empty string; the gradient decides on convergence."""
        rtol, own = self.stopping.rtol, self.descent.own
        if record.done == 0 or (rtol is None and own is None):
            return ""
        finish = self.descent.finished(record.state)
        steady = self._steady(record, point) if own is None and not finish.reason else Finish()
        if not (finish.converged or steady.converged) or (own is not None and self.box is None):
            return finish.reason
        if not self._falls(record, point, batch):
            return finish.reason or steady.reason
        again = self.descent.again(Step(record.tuned, record.state), point, batch.samples)
        if again is not None:
            record.move(again)
        elif finish.reason:
            return "No step of the optimiser lowers the loss, which falls along the gradient. Take another optimiser."
        return ""

    def _steady(self, record: Record, point: Point) -> Finish:
        """Applies Cauchy's criterion, as optimistix does, to parameters and loss."""
        i, atol, rtol = record.done, self.stopping.atol, self.stopping.rtol or 0.0
        x, loss = record.parameters(i), record.losses[i]
        dx, dloss = x - record.parameters(i - 1), loss - record.losses[i - 1]
        if not dx.any():
            # An optimiser whose step size is zero for a while, for example to warm up, has not converged.
            flat = self._leads_nowhere(record.tuned, point)
            return Finish("Converged: the gradient is zero, or points out of the bounds." if flat else "", flat)
        still = bool(np.all(np.abs(dx) <= atol + rtol * np.abs(x)) and abs(dloss) <= atol + rtol * abs(loss))
        reason = f"Converged: a step changes parameters and loss by less than rtol = {rtol:g}."
        return Finish(reason, True) if still else Finish()

    def _leads_nowhere(self, tuned: PyTree, point: Point) -> bool:
        """Whether a step along the gradient ends where it started."""
        ahead = jax.tree_util.tree_map(lambda x, g: x - g, tuned, point.gradient)
        return bool(eqx.tree_equal(ahead if self.box is None else self.box.inside(ahead), tuned))

    def _falls(self, record: Record, point: Point, batch: Batch) -> bool:
        """Whether the loss falls along the projected gradient by more than the tolerances."""
        rtol, atol = self.descent.own or (self.stopping.rtol or 0.0, self.stopping.atol)
        box = without_bounds(record.tuned) if self.box is None else self.box

        def loss(tuned: PyTree) -> Array | float:
            record.spent += np.asarray(Spent(1))
            try:
                return self.descent.evaluate(tuned, batch.samples).loss
            except eqx.EquinoxRuntimeError:
                return np.inf

        value = float(point.loss)
        rounding = 16 * float(jnp.finfo(point.loss.dtype).eps)
        visible = max(atol + rtol * abs(value), rounding * abs(value))
        seen = jax.tree_util.tree_map(lambda x: x[: record.seen], record.history)
        return lowers(loss, record.tuned, value, point.gradient, sizes_of(seen, box), box, visible)
