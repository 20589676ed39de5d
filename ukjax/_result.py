"""Results of a computation, each with a message that says what to do about a failure."""

from collections.abc import Callable
from typing import TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree


T = TypeVar("T")


class RESULTS(diffrax.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """diffrax's results and those of constrained mechanics; a success has an empty message."""

    successful = ""
    mass_not_positive_definite = (
        "The mass matrix is not symmetric positive definite, nor do the constraints make up for it. The model is at "
        "fault: check the masses and inertias, whether something without mass moves by itself, and whether the "
        "coordinates have a singularity here."
    )
    acceleration_not_unique = (
        "The acceleration is not unique: some direction has no mass and no constraint, for [M; A] has less than full "
        "rank. The model is at fault: give the direction a mass or a constraint."
    )
    constraints_contradict = (
        "The constraints contradict each other: no acceleration satisfies all rows of A q'' = b. The model is at "
        "fault: remove or correct one of the contradicting rows. If the rows are redundant and have drifted apart, "
        "start from ukjax.assemble(...), add ukjax.Baumgarte(...), or tighten rtol."
    )
    not_finite = (
        "NaN or infinity. If the state was finite, the model is at fault: a mass, force or constraint function "
        "returned a number that is not finite. So does the friction of a joint that jams (Coulomb's law has no "
        "solution), and that of a slide pressed by a moment only, until its rigid.Coulomb has a length."
    )
    not_assembled = (
        "No state that satisfies the constraints was found near the given one. Move q and v closer to a "
        "consistent state, or correct the constraints if there is none."
    )
    times_do_not_fit = (
        "ts must increase strictly, dt0 must be positive, and the times of a diffrax.StepTo must increase strictly "
        "from ts[0] to ts[-1]."
    )
    mass_indefinite = (
        "The mass matrix is not symmetric positive definite, nor semidefinite. The model is at fault: check the masses "
        "and inertias, and whether the coordinates have a singularity here."
    )
    nearest_not_unique = (
        "The nearest consistent state is not unique: some direction has no mass and no constraint, for [M; A] has less "
        "than full rank. Give the direction a mass or a constraint, or keep its coordinate: "
        'ukjax.assemble(..., keep={"q": [...], "v": [...]}).'
    )
    servo_unreachable = (
        "The servo constraints are out of reach: no control of these actuators satisfies all of their rows. The servo "
        "is at fault: give it more actuators or fewer rows, or pass exact=False to come as near as possible. "
        "ukjax.servo_control(...).unreachable tells which rows are missed."
    )
    servo_not_actuated = (
        "The servo constraints have no actuation: none of the actuators moves what they constrain. The servo is at "
        "fault: pass an actuation that acts there."
    )
    servo_contradict = (
        "The servo constraints contradict each other: no acceleration satisfies all of their rows. The servo is at "
        "fault: remove or correct one of the contradicting rows."
    )
    off_constraints = (
        "The state is off the constraints. Start from ukjax.assemble(mechanism, q, v, t), which finds the nearest "
        "state that is not."
    )
    states_dependent = (
        "The states depend on each other here: on the constraints they cannot all change by themselves. Leave some "
        "out, or pass states=None to have independent ones chosen."
    )
    states_not_closed = (
        "The states do not tell how they themselves change: their rates also depend on something else of the "
        "mechanism. Add what is missing, or pass states=None."
    )
    singular_configuration = (
        "The configuration is singular: the constraints leave more freedom here than next to it, because branches of "
        "the motion meet. Each has frequencies of its own. Linearise a little way along the branch that is meant, or "
        "close the others by a constraint, such as equal angles of a parallelogram."
    )
    projection_off_constraints = (
        "A projection ended off the constraints: its few steps of Newton's method did not lead there. Check that the "
        "constraint functions are smooth (an angle by arctan2 jumps at half a turn); otherwise pass a smaller dt0, "
        "tighter tolerances, or more iterations to ukjax.Projection."
    )
    step_off_constraints = (
        "A step of constant length found no state on the constraints: it is too long, or they contradict each other, "
        "or a force jumps where a speed changes its sign, so that no speeds agree with it. Pass a smaller dt0, or "
        "another solver than ukjax.Rattle."
    )
    motion_off_constraints = (
        "The constraints do not allow this acceleration: A a = b is missed. Take q, v and the acceleration of a motion "
        "on the constraints."
    )
    motion_unreachable = (
        "No control of these actuators makes this motion. Give it more actuators, or another motion; `missed` is the "
        "force that is left over."
    )
    event_not_finite = "An event function returned NaN. Let it return a number wherever its mode may get."
    next_mode_not_met = (
        "The mode that follows an event cannot begin there: its constraints are missed in position, or no velocities "
        "satisfy them and the law of impact. Let the event happen where the constraints are met, or correct them."
    )
    too_many_events = (
        "More events than max_events. Allow more; or, if there are infinitely many (something comes to rest on "
        "something else), let them end in a mode of its own or at an event with then=None."
    )
    no_equilibrium = (
        "No equilibrium was found near the given state. Start nearer, keep less, give controls by an actuation, or say "
        "by `constant` what is to stay constant if not everything can."
    )
    comes_to_rest = (
        "Something comes to rest at an event: its impact no longer leads away from it. Name the mode that follows, in "
        'which the contact is a constraint: ukjax.Event(..., rest="contact"). Or let the event end in such a mode, or '
        "with then=None."
    )
    event_jumps = (
        "An event function jumps over zero instead of passing through it. Pass a function that is continuous, such as "
        "a gap. What follows may depend on a condition: then={...} of ukjax.Event."
    )


class InconsistentStart(UserWarning):
    """Warns that a simulation starts off its constraints, and that nothing returns it to them."""


class FailedTrajectories(UserWarning):
    """Warns that some trajectories of a batch failed."""


def is_traced(*trees: PyTree) -> bool:
    """Whether any array in `trees` is a tracer, so that its value is not known now."""
    leaves = jax.tree_util.tree_leaves(trees)
    return any(isinstance(leaf, Tracer) for leaf in leaves)


# Within `with failures_as_nan(True):` nothing is thrown. A user context of JAX's is part of the key of compiled
# functions, so that no program traced inside is reused outside, nor the other way round.
failures_as_nan = jax.make_user_context(False)


def throw_if_failed(tree: T, result: RESULTS, where: str | Callable[[], str] = "") -> T:
    """Returns `tree`; raises RuntimeError with the message of `result` unless it is successful.

    Outside of a trace the error is raised at once, from Python, and says `where` it happened: a text, or a function
    that returns it. Inside, it is raised when the compiled function runs, by a call back to Python. JAX's persistent
    compilation cache takes no such program, which is one reason why every `throw` can be False. Within
    `failures_as_nan(True)` no error is raised, but all floating arrays of `tree` become NaN: a search then avoids the
    point that failed.
    """
    if failures_as_nan.value:
        okay = result == RESULTS.successful
        return jax.tree_util.tree_map(lambda x: jnp.where(okay, x, jnp.nan) if eqx.is_inexact_array(x) else x, tree)
    if is_traced(tree, result):
        return result.error_if(tree, result != RESULTS.successful)
    if code_of(result) != SUCCESS:
        raise RuntimeError(f"{message(result)}{where() if callable(where) else where}")
    return tree


def message(result: RESULTS) -> str:
    """Returns the message of a concrete `result`."""
    return RESULTS[result]


def code_of(result: RESULTS) -> np.ndarray:
    """Returns the number of a concrete result, or the numbers of several; see `codes`."""
    return np.asarray(result._value)


def codes() -> dict[str, int]:
    """Returns the number of every result by name; 0 is success."""
    return {name: int(code_of(item)) for name, item in RESULTS._name_to_item.items()}


SUCCESS = int(code_of(RESULTS.successful))


def worst(*results: RESULTS) -> RESULTS:
    """Returns the first of `results` that is not a success, or success."""
    out = results[-1]
    for result in reversed(results[:-1]):
        out = RESULTS.where(result == RESULTS.successful, out, result)
    return out


def first_failure(results: RESULTS) -> RESULTS:
    """Returns the first failure along the leading axis of a batched result, or success."""
    failed = results != RESULTS.successful
    index = failed.argmax()
    arrays, static = eqx.partition(results, eqx.is_array)
    return eqx.combine(jax.tree_util.tree_map(lambda x: x[index], arrays), static)
