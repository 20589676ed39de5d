"""Errors that a user's own functions and numbers make: they say which function it is, and what to write instead."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from .helpers import assert_close, falling, pendulum


START = [1.0, 0.0], [0.0, 0.0]
TS = [0.0, 0.1]
FREE = lambda q, t: jnp.eye(2)


def branching(q, t):
    return jnp.array([q @ q - 1.0]) if q[0] > 0 else q[:1]


def with_numpy(q, v, t):
    return np.sin(q)


def with_math(q, v, t):
    return jnp.array([math.sin(q[0]), 0.0])


def selecting(q, v, t):
    return jnp.zeros(2) + jnp.sum(q[q > 0])


def moved(force):
    return ukjax.Mechanism(ukjax.System(FREE, force))


HELD = ukjax.Mechanism(falling(), ukjax.Holonomic(branching))
# What is called, the function at fault, and the cure.
CALLS = {
    "if": (lambda: ukjax.simulate(HELD, *START, TS), "branching", "jnp.where"),
    "if, one state": (lambda: ukjax.equation_of_motion(HELD, *START), "branching", "jnp.where"),
    "if, assembly": (lambda: ukjax.assemble(HELD, *START), "branching", "jnp.where"),
    "if, batch": (
        lambda: ukjax.simulate_batch(HELD, jnp.array([START[0]] * 2), START[1], TS, progress=False),
        "branching",
        "jnp.where",
    ),
    "NumPy": (lambda: ukjax.simulate(moved(with_numpy), *START, TS), "with_numpy", "jnp.sin for np.sin"),
    "math": (lambda: ukjax.simulate(moved(with_math), *START, TS), "with_math", "jnp.sin for math.sin"),
    "a mask": (lambda: ukjax.simulate(moved(selecting), *START, TS), "selecting", "instead of x[condition]"),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_jax_cannot_trace(name):
    call, function, cure = CALLS[name]
    with pytest.raises(Exception) as caught:
        call()
    (note,) = [x for x in caught.value.__notes__ if function in x]
    assert f"in the function {function!r}" in note
    assert __file__ in note
    assert cure in note


def test_what_the_library_raises_itself_has_no_note():
    """Although a function of the user's is on the way."""
    with pytest.raises(ValueError, match="must return an array of shape") as caught:
        ukjax.simulate(moved(lambda q, v, t: q[:1]), *START, TS)
    assert not [x for x in getattr(caught.value, "__notes__", ()) if "This was raised in" in x]


def test_arity_of_methods():
    class Bad(ukjax.AbstractSystem):
        def mass(self, q):
            return jnp.eye(2)

        def force(self, q, v, t):
            return q

    with pytest.raises(TypeError, match=r"mass of Bad must be a function mass\(self, q, t\) -> \(n, n\), but takes"):
        Bad()


CUSP = {"good": pendulum().constraints[0], "bad": ukjax.Holonomic(lambda q, t: jnp.sqrt(q[1:] ** 2))}
NOT_FINITE = {
    "force": (moved(lambda q, v, t: jnp.sqrt(-q - 1.0)), "The force of the System"),
    "constraint": (ukjax.Mechanism(falling(), CUSP), r"A derivative of the constraint 'bad' \(Holonomic\)"),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_nan_names_its_function(name):
    mechanism, words = NOT_FINITE[name]
    where = rf"{words} is not finite at q = \[1. 0.\], v = \[0. 0.\], t = 0"
    with pytest.raises(RuntimeError, match=where):
        ukjax.equation_of_motion(mechanism, *START)
    with pytest.raises(RuntimeError, match=rf"\(at t = 0 s\) {where}"):
        ukjax.simulate(mechanism, *START, TS)


def test_nan_later_on():
    mechanism = moved(lambda q, v, t: jnp.sqrt(0.05 - t) * jnp.ones(2))
    with pytest.raises(RuntimeError, match=r"at t = 0.05 s\) The force of the System is not finite at .* t = 0.05"):
        ukjax.simulate(mechanism, *START, TS)


def test_nan_in_an_assembly():
    bad = {"good": pendulum().constraints[0], "bad": ukjax.Holonomic(lambda q, t: jnp.log(-1.0 - q[1:]))}
    with pytest.raises(RuntimeError, match="The value of the constraint 'bad' .* is not finite"):
        ukjax.assemble(ukjax.Mechanism(falling(), bad), *START)


ROD = rigid.Body(rigid.Inertia.rod(1.0, [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]))
HINGE = {"hip": rigid.Revolute("ground", "rod")}


def test_gravity_out_of_the_plane():
    with pytest.raises(
        ValueError, match=r"gravity is \(0.0, 0.0, -9.81\), out of the plane .*gravity=\(0.0, -9.81, 0.0\)"
    ):
        rigid.Robot({"rod": ROD}, HINGE, gravity=(0.0, 0.0, -9.81), planar=True)
    rigid.Robot({"rod": ROD}, HINGE, gravity=(0.0, 0.0, 0.0), planar=True)
    assert_close(rigid.Robot({"rod": ROD}, HINGE, planar=True).gravity, jnp.array([0.0, -9.81, 0.0]))
    assert_close(rigid.Robot({"rod": ROD}, HINGE).gravity, jnp.array([0.0, 0.0, -9.81]))


def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(one.filename == __file__ for one in caught), [one.filename for one in caught]
    return [str(one.message) for one in caught]


def test_numbers_that_are_likely_wrong_warn():
    """And are attributed to the user's line; those that are right do not, nor those that are not known."""
    for make in (
        lambda: ukjax.Baumgarte(-1.0, 2.0),
        lambda: ukjax.Baumgarte([1.0, 2.0], [1.0, -2.0]),
        lambda: rigid.Effort(damping=-1.0),
        lambda: rigid.Drag(damping=-1.0),
        lambda: rigid.Spring("ground", "rod", 1.0, damping=-1.0),
    ):
        (message,) = warned(make)
        assert "is negative" in message
    assert warned(lambda: ukjax.Baumgarte([[1.0, -1.0], [-1.0, 1.0]], 0.0)) == []
    assert warned(lambda: jax.vmap(lambda d: ukjax.Baumgarte(d, 1.0))(jnp.array([-1.0]))) == []


def test_degrees():
    robot = rigid.Robot({"rod": ROD}, HINGE)
    (message,) = warned(lambda: robot.assemble({"hip": 90}))
    assert (
        message == "coordinates['hip'] holds 90 rad, more than a full turn. If it is in degrees, pass jnp.deg2rad(90)."
    )
    for angle in (1.0, 6.0, 7.25, -np.pi, 20 * np.pi):
        assert warned(lambda: robot.assemble({"hip": angle})) == []  # noqa: B023
