"""Nonsense passed in: an error that names the argument and says what to pass."""

import functools as ft
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from .helpers import falling, pendulum, standard_promotion


def height(q, v, t):
    return q[1]


def event(then="a", **options):
    return ukjax.Event(height, then, **options)


def flight(one):
    """A mass that falls through zero, with such an event."""
    modes = {"a": ukjax.Mode(ukjax.Mechanism(falling()), {"e": one}), "b": ukjax.Mode(ukjax.Mechanism(falling()))}
    return ukjax.simulate_hybrid(modes, [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], max_events=2)


def hit(rows, restitution=0.5):
    return event(impact=ukjax.Impact(ukjax.Holonomic(rows), restitution))


def robot(**options):
    body = rigid.Body(rigid.Inertia.box(1.0, (0.5, 0.1, 0.1), (0.25, 0.0, 0.0)), {"tip": rigid.Frame((0.5, 0.0, 0.0))})
    joints = {"A": rigid.Revolute("ground", "a"), "B": rigid.Revolute("a.tip", "b")}
    return rigid.Robot({"a": body, "b": body}, joints, motors={"m": rigid.Motor("A", 10.0)}, **options)


def reactions(q=(0.1, 0.2), v=(0.0, 0.0), **options):
    return robot().reactions(jnp.array(q), jnp.array(v), **options)


class Pendulum(ukjax.AbstractSystem):
    l: jax.Array

    def mass(self, q, t):
        return jnp.eye(2)

    def force(self, q, v, t):
        return jnp.zeros(2)


def shared(new):
    model = Pendulum(jnp.array(1.0))
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(lambda q, t: (q @ q - model.l**2)[None]))
    return eqx.tree_at(lambda m: m.system.l, mechanism, new).position_error(jnp.ones(2), jnp.zeros(()))


def study(out="nowhere", **options):
    return ukjax.sweep(lambda k: None, {"k": [1.0]}, out, progress=False, **options)


def tuned(checkpoint):
    with standard_promotion():
        return ukjax.tune(
            lambda x: jnp.stack([x]), jnp.array(1.0), ukjax.tuning.LevenbergMarquardt(), 2, checkpoint=checkpoint
        )


at_rest = jnp.zeros(2), jnp.zeros(2)
NONSENSE = {
    # Functions of other arguments.
    "phi": (lambda: ukjax.Holonomic(lambda q: q), TypeError, r"phi must be a function phi\(q, t\).*takes \(q\)"),
    "psi": (lambda: ukjax.Nonholonomic(lambda q, t: q), TypeError, r"psi must be .*takes \(q, t\): too many"),
    "force": (lambda: ukjax.System(lambda q, t: q, lambda q: q), TypeError, r"force must be a function force\(q, v"),
    "multipliers": (lambda: ukjax.Event(height, multipliers=True), TypeError, r"\(q, v, t, multipliers\).*takes"),
    "impact": (lambda: event(impact=ukjax.Impact), TypeError, r"impact must be a function impact\(q, v, t\)"),
    "condition": (lambda: event({"a": lambda q: True, "b": None}), TypeError, r"then\['a'\] must be a function"),
    # Events and modes.
    "names for multipliers": (lambda: event(multipliers=["rope"]), TypeError, "multipliers must be True"),
    "events in a list": (lambda: ukjax.Mode(pendulum(), [event()]), TypeError, r"events must be a mapping, such as \{"),
    "one event": (lambda: ukjax.Mode(pendulum(), event()), TypeError, "events must be a mapping"),
    "a number for an event": (lambda: ukjax.Mode(pendulum(), {3: event()}), TypeError, "events must have names"),
    "a number for a mode": (
        lambda: ukjax.simulate_hybrid({3: ukjax.Mode(pendulum())}, *at_rest, [0.0, 1.0]),
        TypeError,
        "modes must have names that are text, but has 3",
    ),
    "modes of other sizes": (
        lambda: ukjax.simulate_hybrid(
            {"a": ukjax.Mode(pendulum()), "b": ukjax.Mode(ukjax.Mechanism(falling(n=3)))}, *at_rest, [0.0, 1.0]
        ),
        ValueError,
        r"modes\['b'\] does not take q0 of shape \(2,\)",
    ),
    "no condition": (lambda: flight(event({"a": lambda q, v, t: None, "b": None})), ValueError, "'a' in then.*None"),
    "text": (lambda: flight(event({"a": lambda q, v, t: "yes", "b": None})), ValueError, "'a' in then.*'yes'"),
    "a comparison": (
        lambda: flight(ukjax.Event(lambda q, v, t: q[1] < 0.5)),
        ValueError,
        "function of event 'e' must return a number that crosses zero",
    ),
    "no rows": (lambda: flight(hit(lambda q, t: q[5:])), ValueError, "constraint of an Impact has no rows"),
    "restitutions": (
        lambda: flight(hit(lambda q, t: q[1:], [0.5, 0.4])),
        ValueError,
        r"restitution must be a scalar or of shape \(1,\), one per row of constraint, but has \(2,\)",
    ),
    "three for two": (lambda: flight(event(impact=lambda q, v, t: (q, v, t))), ValueError, r"pair.*a tuple of 3"),
    # Robots.
    "home": (lambda: robot(home=np.zeros(2)), TypeError, "home must be a mapping"),
    "home_rates": (lambda: robot(home_rates=np.zeros(2)), TypeError, "home_rates must be a mapping"),
    "motors in a list": (lambda: reactions(motors=["m"]), TypeError, r"motors must be a mapping, such as \{"),
    "a motor": (lambda: reactions(motors={"Z": 1.0}), ValueError, "motors must be of motors or joints, but 'Z'"),
    "a number for a motor": (lambda: reactions(motors={0: 1.0}), TypeError, "motors must be .* but one is 0"),
    "q": (lambda: reactions(q=(0.1,)), ValueError, r"q must have shape \(2,\)"),
    "v": (lambda: reactions(v=(0.1,)), ValueError, r"v must have shape \(2,\)"),
    "t": (lambda: reactions(t="now"), ValueError, "t must be an array of real numbers, but holds text"),
    "axes": (lambda: reactions(axes=""), ValueError, "axes names the body ''"),
    "a list of axes": (lambda: reactions(axes=["a"]), ValueError, r"axes names the body \['a'\]"),
    "no trajectory": (lambda: robot().reactions_along(None), TypeError, "trajectory must be that of simulate"),
    "a number of motors": (lambda: robot().reactions_along(None, 3), TypeError, "motors must be names of motors"),
    # A parameter that functions share.
    "a name as a length": (lambda: shared("long"), ValueError, r"\.l must be a real number or array, but is 'long'"),
    "a complex length": (lambda: shared(jnp.array(1j)), ValueError, r"\.l must be a real number"),
    "a boolean length": (lambda: shared(True), ValueError, r"\.l must be a real number"),
    # Files.
    "settings": (lambda: study(settings=["mass"]), TypeError, "settings must be a mapping"),
    "figures": (lambda: study(figures=["end"]), TypeError, r"figures must be a mapping, such as \{\"end \[m\]\""),
    "out": (lambda: study(None), TypeError, "out must be a path, as text or a pathlib.Path, but is None"),
    "status": (lambda: ukjax.study.sweep_status(3), TypeError, "out must be a path"),
    "study": (lambda: ukjax.study.sweep_export(3, "there"), TypeError, "study must be a path"),
    "checkpoint": (lambda: tuned(3), TypeError, "checkpoint must be a path"),
    "a folder": (lambda: tuned(Path.cwd()), ValueError, "checkpoint must be a file, but .* is a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_named(name):
    make, error, message = NONSENSE[name]
    with pytest.raises(error, match=message):
        make()


def test_functions_of_every_make_are_taken():
    """However they are called: wrapped, compiled, with more arguments that have defaults, or any number."""

    @ft.wraps(lambda q: q)
    def wrapped(q, t):
        return q

    def more(q, t, factor=1.0, *, power=1):
        return factor * q**power

    for phi in (
        wrapped,
        more,
        jax.jit(more),
        ft.partial(more, power=2),
        lambda *x: x[0],
        jnp.add,
        eqx.filter_jit(more),
    ):
        assert ukjax.Holonomic(phi).position_error(jnp.ones(2), jnp.zeros(())).shape == (2,)


def test_counts_of_numpy_are_counts():
    assert ukjax.Rattle(iterations=np.int64(3)).iterations == 3
