"""Every parameter of every model is one leaf, whose gradient is that of a mechanism built anew with another value.

Of models with classes of their own; for those of parts tests/rigid/test_trees.py shows it.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from .test_models import FACTORIES, MODULES, SLOW, classes


STEP = 1e-6
OWN = [name for name in FACTORIES if any(issubclass(c, eqx.Module) for c in classes(MODULES[name.partition(":")[0]]))]


def is_parameter(thing, field, value):
    """Whether it is an array, or a number of which equinox is going to make one."""
    static = {f.name for f in dataclasses.fields(thing) if f.metadata.get("static", False)}
    return field not in static and (eqx.is_inexact_array(value) or isinstance(value, float))


def parameters(factory):
    """(class, which of its objects, field, size) of what a factory makes of the models' classes; and what it makes."""
    made, own = {}, [c for m in MODULES.values() for c in vars(m).values() if isinstance(c, type(eqx.Module))]
    with pytest.MonkeyPatch.context() as patch:
        for cls in set(own):

            def init(self, *arguments, _cls=cls, _init=cls.__init__, **options):
                _init(self, *arguments, **options)
                fields = [(k, np.size(x)) for k, x in vars(self).items() if is_parameter(self, k, x)]
                made.setdefault(_cls, []).append(fields)

            patch.setattr(cls, "__init__", init)
        scenario = factory()
    found = [(cls, i, *field) for cls, objects in made.items() for i, fields in enumerate(objects) for field in fields]
    return found, scenario


def rebuilt(factory, cls, which, field, change):
    """The mechanism, had this object of a class been made with its parameter changed."""
    count = 0
    with pytest.MonkeyPatch.context() as patch:

        def init(self, *arguments, _init=cls.__init__, **options):
            nonlocal count
            _init(self, *arguments, **options)
            if count == which:
                object.__setattr__(self, field, getattr(self, field) + change)
            count += 1

        patch.setattr(cls, "__init__", init)
        return factory().mechanism


def a_state(scenario):
    """Near the start; on the motion where rows are redundant, which must not contradict each other."""
    t = jnp.asarray(scenario.t0 + 0.1)
    A = scenario.mechanism.terms(scenario.q0, scenario.v0, t).A
    if np.linalg.matrix_rank(A, tol=1e-9) < A.shape[0]:
        run = scenario.simulate(jnp.stack([jnp.asarray(scenario.t0), t]), keep=("q", "v"))
        return run.q[-1], run.v[-1], t
    return scenario.q0, scenario.v0 + 0.1 * jnp.cos(jnp.arange(1.0, scenario.v0.size + 1)), t


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in OWN])
def test_every_parameter_is_one_leaf_with_the_whole_gradient(name):
    factory = FACTORIES[name]
    found, scenario = parameters(factory)
    q, v, t = a_state(scenario)
    weights = jnp.cos(jnp.arange(1.0, v.size + 1))
    formulation = ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt())
    if type(scenario.formulation) in (ukjax.formulation.PennestriDeFalco,):
        formulation = ukjax.formulation.PennestriDeFalco(ukjax.pseudoinverse.RowGramSchmidt())

    def force(mechanism):
        motion = formulation.solve(mechanism.terms(q, v, t))
        return weights @ (motion.acceleration + motion.constraint_force)

    value = eqx.filter_jit(force)
    gradient = jax.tree_util.tree_leaves(eqx.filter_jit(eqx.filter_grad(force))(scenario.mechanism))
    base = jax.tree_util.tree_leaves(eqx.filter(scenario.mechanism, eqx.is_inexact_array))
    used = 0
    for cls, which, field, size in found:
        above, below = (rebuilt(factory, cls, which, field, change) for change in (STEP, -STEP))
        leaves = jax.tree_util.tree_leaves(eqx.filter(above, eqx.is_inexact_array))
        changed = [(np.asarray(x) != np.asarray(y)) for x, y in zip(leaves, base, strict=True)]
        if not any(np.any(c) for c in changed):
            continue  # an object that was made for something else, to draw it for instance
        used += 1
        where = f"{cls.__name__}.{field}"
        assert sum(np.any(c) for c in changed) == 1, f"{where} is more than one leaf"
        assert sum(np.sum(c) for c in changed) == size, f"{where} is kept more than once"
        want = float(value(above) - value(below)) / (2 * STEP)
        got = sum(float(np.sum(np.asarray(g)[c])) for g, c in zip(gradient, changed, strict=True))
        assert abs(got - want) <= 1e-5 * max(1.0, abs(want)), f"{where}: {got} is not {want}"
    assert used > 0 or not base
