"""Many trajectories at once: the same as one by one, on two devices, whatever their number, and whatever fails."""

import warnings

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, central_difference, falling, long, rod
from ..inside import replaced


COUNT, TS = 11, np.linspace(0.0, 1.0, 5)
LENGTHS = {"length": jnp.linspace(0.5, 1.5, COUNT), "mass": jnp.linspace(2.0, 1.0, COUNT)}


def swinging(sample, damping=20.0):
    """A pendulum whose row stands twice, with Baumgarte's terms."""
    return ukjax.Mechanism(
        falling(sample["mass"]), [rod(sample["length"], ukjax.Baumgarte(damping, damping**2 / 4))] * 2
    )


def start(sample):
    return jnp.array([-1.0, 0.0]) * sample["length"]


AT_REST = jnp.zeros(2)


def by_vmap(**options):
    one = lambda s: ukjax.simulate(swinging(s), start(s), AT_REST, TS, throw=False, **options)
    return jax.jit(jax.vmap(one))(LENGTHS)


def in_batch(**options):
    return ukjax.simulate_batch(swinging, start, AT_REST, TS, samples=LENGTHS, **({"progress": False} | options))


def assert_same(got, want, tolerance=1e-12):
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    for path, a in jax.tree_util.tree_leaves_with_path(got):
        b = dict(jax.tree_util.tree_leaves_with_path(want))[path]
        assert a.shape == b.shape, path
        assert a.dtype == b.dtype, path
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    "options",
    [long({"solver": diffrax.Heun()}), long({"solver": diffrax.Dopri5(), "projection": ukjax.Projection()})],
    ids=["no stage is handed on", "one is, but for the projection"],
)
def test_other_explicit_methods(options):
    """Whose stages are gone through otherwise than by diffrax: as many steps, to the same states."""
    options |= {"rtol": 1e-5, "atol": 1e-5, "keep": ("q", "v")}
    assert_same(in_batch(lanes=2, **options), by_vmap(**options))


@pytest.fixture(scope="module")
def one_by_one():
    return by_vmap()


@pytest.mark.parametrize(("devices", "progress"), [long(1, False), long(2, False), (2, True)])
def test_the_same_as_one_by_one(one_by_one, devices, progress):
    """More trajectories than lanes, so that lanes take up new ones; and another number of them on each device.

    Where somebody watches, they are made some at a time.
    """
    assert_same(in_batch(devices=jax.devices()[:devices], lanes=2, progress=progress), one_by_one)


def test_the_bits_are_those_of_one_by_one(one_by_one):
    """Whatever the number of lanes, where each solve is a loop of machine code."""
    for got in (in_batch(lanes=2), in_batch(devices=jax.devices()[:2], lanes=3)):
        np.testing.assert_array_equal(got.q, one_by_one.q)
        np.testing.assert_array_equal(got.v, one_by_one.v)
    sample = {name: values[3] for name, values in LENGTHS.items()}
    alone = ukjax.simulate(swinging(sample), start(sample), AT_REST, TS)
    np.testing.assert_array_equal(alone.q, one_by_one.q[3])


@pytest.mark.long
@replaced(portion=4000)
def test_portions_are_one_batch(one_by_one):
    """Where memory is short: some trajectories at a time, the last portion with fewer."""
    assert_same(in_batch(lanes=2), one_by_one)


@pytest.mark.long
def test_what_is_kept_and_what_is_made_of_it(one_by_one):
    lean = in_batch(keep=("q",))
    assert lean.v is None
    assert_close(lean.q, one_by_one.q, atol=1e-12)
    highest = in_batch(reduce=lambda trajectory: {"height": jnp.max(trajectory.q[:, 1])})
    assert isinstance(highest, ukjax.Reduction)
    assert_close(highest.value["height"], jnp.max(one_by_one.q[:, :, 1], axis=1), atol=1e-12)
    assert_same((highest.result, highest.stats), (one_by_one.result, one_by_one.stats))
    longest = in_batch(reduce=lambda trajectory, sample: jnp.max(trajectory.q[:, 0]) / sample["length"])
    assert_close(longest.value, jnp.max(one_by_one.q[:, :, 0], axis=1) / LENGTHS["length"], atol=1e-12)
    with pytest.raises(ValueError, match=r"reduce\(trajectory, sample\) needs samples"):
        ukjax.simulate_batch(PENDULUM, STARTS, AT_REST, TS, reduce=lambda trajectory, sample: 0.0)


@pytest.mark.long
def test_samples_that_are_keys_for_random_numbers():
    """Of which NumPy has no arrays: starts that are drawn, and what is made of the trajectories."""
    keys = {"of": jax.random.split(jax.random.key(3), 3)}

    def drawn(sample):
        assert jnp.issubdtype(sample["of"].dtype, jax.dtypes.prng_key)  # its bare numbers would do for what follows
        return jax.random.normal(sample["of"], (2,))

    fall = ukjax.Mechanism(falling(n=2))
    reduced = lambda trajectory, sample: trajectory.q[0] - drawn(sample)
    batch = lambda keys, **options: ukjax.simulate_batch(fall, drawn, AT_REST, TS, samples=keys, **options)
    np.testing.assert_array_equal(batch(keys, keep="q").q[:, 0], jax.vmap(drawn)(keys))
    np.testing.assert_array_equal(jax.jit(batch)(keys).q[:, 0], jax.vmap(drawn)(keys))
    np.testing.assert_array_equal(batch(keys, reduce=reduced).value, np.zeros((3, 2)))


@pytest.mark.long
def test_leaves_with_a_leading_axis(one_by_one):
    """Masses of a mechanism and gains: what differs is said by a prefix, like in_axes."""
    mechanism = jax.vmap(swinging)(LENGTHS)
    everything = ukjax.simulate_batch(mechanism, jax.vmap(start)(LENGTHS), AT_REST, TS, axes={"mechanism": 0})
    assert_same(everything, one_by_one)
    alike = swinging({"length": jnp.asarray(1.0), "mass": jnp.asarray(1.0)})
    dampings = jnp.array([1.0, 30.0])
    where = lambda m: m.constraints[0].stabilization.damping
    several = eqx.tree_at(where, alike, dampings)
    axes = eqx.tree_at(where, jax.tree_util.tree_map(lambda _: None, alike), 0, is_leaf=lambda x: x is None)
    q0 = jnp.array([-1.02, 0.0])
    got = ukjax.simulate_batch(several, q0, AT_REST, TS, axes={"mechanism": axes}, progress=False)
    for damping, q in zip(dampings, got.q, strict=True):
        one = ukjax.simulate(eqx.tree_at(where, alike, damping), q0, AT_REST, TS)
        assert_close(q, one.q, atol=1e-12)


def loss_of(trajectories, weights):
    okay = trajectories.result == ukjax.RESULTS.successful
    each = jnp.sum(trajectories.q[:, -1] ** 2, axis=-1) + jnp.sum(trajectories.constraint_force[:, 2], axis=-1)
    return jnp.sum(jnp.where(okay, weights * each, 0.0))


WEIGHTS = jnp.linspace(0.5, 1.5, COUNT)


def loss(damping, samples, v0, simulate):
    return loss_of(simulate(lambda sample: swinging(sample, damping), samples, v0), WEIGHTS)


def vmapped(make, samples, v0):
    one = lambda sample: ukjax.simulate(make(sample), start(sample), v0, TS, throw=False, max_steps=200)
    return jax.vmap(one)(samples)


def batched(make, samples, v0):
    return ukjax.simulate_batch(make, start, v0, TS, samples=samples, max_steps=200, lanes=2)


ARGUMENTS = jnp.asarray(20.0), LENGTHS, jnp.array([0.3, -0.2])


@pytest.mark.parametrize("failing", [long(False), long(True)])
def test_gradients_are_those_of_one_by_one(failing):
    """With respect to what is shared, also by a closure, and to the samples; and no failure gets into them."""
    damping, samples, v0 = ARGUMENTS
    if failing:
        samples = {**samples, "length": samples["length"].at[4].set(jnp.nan)}
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    value, got = gradient(damping, samples, v0, batched)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree_util.tree_leaves(got))
    if failing:
        others = jnp.delete(jnp.arange(COUNT), 4)
        samples = jax.tree_util.tree_map(lambda x: x[others], samples)
        one = lambda d, s, v: loss_of(vmapped(lambda x: swinging(x, d), s, v), WEIGHTS[others])
        want, (to_d, _, to_v) = jax.jit(jax.value_and_grad(one, argnums=(0, 1, 2)))(damping, samples, v0)
        assert_close(value, want, rtol=1e-12)
        assert_close(got[0], to_d, rtol=1e-9, atol=1e-12)
        assert_close(got[2], to_v, rtol=1e-9, atol=1e-12)
        return
    want = gradient(damping, samples, v0, vmapped)
    assert_same((value, got), want, 1e-9)
    tangent = jax.jit(lambda d, v: jax.jvp(lambda d, v: loss(d, samples, v, batched), (d, v), (jnp.ones(()), v)))
    slope = tangent(damping, v0)[1]
    assert_close(slope, want[1][0] + want[1][2] @ v0, rtol=1e-9, atol=1e-12)


def of_springs(stiffness, simulate):
    """A loss by the stiffness of each of many springs, an array of its own each."""
    force = lambda q, v, t: -sum(k * q for k in stiffness)
    mechanism = ukjax.Mechanism(ukjax.System(mass=lambda q, t: jnp.eye(2), force=force))
    return jnp.sum(simulate(mechanism).q)


@pytest.mark.parametrize(
    "simulate",
    [
        lambda mechanism: ukjax.simulate(mechanism, AT_REST, AT_REST, TS, throw=False),
        lambda mechanism: ukjax.simulate_batch(mechanism, jnp.zeros((2, 2)), AT_REST, TS),
    ],
    ids=["one", "batch"],
)
def test_gradients_by_many_parameters_are_programs_that_grow_with_their_number(simulate):
    """And not with its square."""
    program = lambda n: jax.make_jaxpr(jax.grad(lambda k: of_springs(k, simulate)))([jnp.ones(())] * n)
    few, more, most = (len(str(program(n))) for n in (4, 34, 64))
    assert most - more < 1.1 * (more - few)


def test_derivatives_are_of_what_a_loss_looks_at():
    """Of q alone it need not find those of every acceleration, and of the force of the constraints."""

    def program(loss):
        of = lambda v0: loss(ukjax.simulate_batch(PENDULUM, STARTS, v0, TS))
        return len(str(jax.make_jaxpr(jax.grad(of))(jnp.array([0.1, 0.2]))))

    positions, forces = (lambda got: jnp.sum(got.q)), (lambda got: jnp.sum(got.constraint_force))
    assert program(positions) < program(forces)
    both = program(lambda got: positions(got) + forces(got))
    assert program(forces) <= both


@pytest.mark.long
def test_a_gradient_needs_no_matrices_for_those_that_are_done(monkeypatch):
    """Beads on a ring, of which some take many more steps than others, and are waited for."""
    asked, solve = [], ukjax.UdwadiaKalaba.solve

    def noted(self, terms):
        jax.debug.callback(lambda: asked.append(True))
        return solve(self, terms)

    monkeypatch.setattr(ukjax.UdwadiaKalaba, "solve", noted)
    bead = ukjax.Mechanism(falling(1.0), [rod(1.0)])

    def height(speeds):
        v0 = jnp.stack([jnp.zeros_like(speeds), speeds], axis=1)
        run = ukjax.simulate_batch(bead, jnp.array([1.0, 0.0]), v0, TS, progress=False, keep=("q",))
        return jnp.sum(run.q[:, -1, 1])

    slopes = jax.block_until_ready(jax.jit(jax.grad(height))(jnp.array([1.0, 3.0, 20.0])))
    jax.effects_barrier()
    assert jnp.isfinite(slopes).all()
    assert not asked


@pytest.mark.long
def test_a_gradient_outside_of_jit():
    last = lambda v0: jnp.sum(ukjax.simulate_batch(PENDULUM, STARTS, v0, TS, progress=False).q[:, -1, 0])
    v0 = jnp.array([0.1, 0.2])
    slope = jax.grad(last)(v0)
    assert_close(slope, central_difference(last, v0)[0], rtol=1e-6, atol=1e-7)
    assert_close(jax.jacfwd(last)(v0), slope, rtol=1e-9)


@pytest.mark.long
def test_second_derivatives():
    """In forward mode over reverse, and over forward."""
    v0 = jnp.array([0.1, 0.2])
    last = lambda v0, simulate: jnp.sum(simulate(v0).q[:, -1, 0] ** 2)
    batch = lambda v0: ukjax.simulate_batch(PENDULUM, STARTS, v0, TS, max_steps=200)
    vmap = lambda v0: jax.vmap(lambda q0: ukjax.simulate(PENDULUM, q0, v0, TS, max_steps=200, throw=False))(STARTS)
    want = jax.jit(jax.hessian(lambda v0: last(v0, vmap)))(v0)
    assert_close(jax.jit(jax.hessian(lambda v0: last(v0, batch)))(v0), want, rtol=1e-8, atol=1e-10)
    forward = jax.jit(jax.jacfwd(jax.jacfwd(lambda v0: last(v0, batch))))
    assert_close(forward(v0), want, rtol=1e-8, atol=1e-10)


PENDULUM = swinging({"length": jnp.asarray(1.0), "mass": jnp.asarray(1.0)})
STARTS = jnp.array([[-1.0, 0.0], [0.6, -0.8], [0.0, -1.0]])


def test_one_that_fails_says_why_and_harms_no_other():
    """A step budget, a start that is no number, and rows that contradict each other from the start."""

    def make(sample):
        system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: -sample["k"] * q)
        pulled = ukjax.Holonomic(lambda q, t: jnp.array([q[0]]))
        against = ukjax.AccelerationConstraint(
            lambda q, v, t: jnp.array([[1.0, 0.0]]), lambda q, v, t: jnp.array([sample["b"]])
        )
        return ukjax.Mechanism(system, [pulled, against])

    samples = {"k": jnp.array([4.0, 1e8, 4.0, 4.0, 9.0]), "b": jnp.array([0.0, 0.0, 1.0, 0.0, 0.0])}
    q0 = jnp.array([[0.0, 1.0]] * 5).at[3, 1].set(jnp.nan)
    run = lambda **options: ukjax.simulate_batch(
        make, q0, jnp.zeros(2), TS, samples=samples, max_steps=300, progress=False, **options
    )
    exact = jnp.cos(jnp.array([2.0, 3.0])[:, None] * TS[None])
    for keep in (None, ("q",)):
        with pytest.warns(ukjax.FailedTrajectories, match="3 of 5 trajectories failed") as caught:
            got = run(keep=keep)
        text = str(caught[0].message)
        for words in ("first number 1 at", "first number 2 at", "contradict", "NaN or infinity"):
            assert words in text, (keep, words)
        assert (got.result == ukjax.RESULTS.constraints_contradict).tolist() == [False, False, True, False, False]
        assert (got.result == ukjax.RESULTS.successful).tolist() == [True, False, False, False, True]
        assert_close(got.q[jnp.array([0, 4]), :, 1], exact, atol=1e-7)
        assert bool(jnp.all(jnp.isnan(got.q[1, -1])))
    with pytest.raises(RuntimeError, match="3 of 5 trajectories failed"):
        run(throw=True)


def test_a_start_off_the_constraints_is_told():
    loose = ukjax.Mechanism(falling(), rod())
    with pytest.warns(ukjax.InconsistentStart):
        ukjax.simulate_batch(loose, STARTS * 1.1, AT_REST, TS, progress=False)


WITHOUT_ARRAYS = ukjax.Mechanism(ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: 0.0 * q))
WRONG = {
    "no batch": ({}, "There is no batch"),
    "empty": ({"q0": jnp.zeros((0, 2))}, "The batch is empty"),
    "axes that differ": ({"q0": STARTS, "v0": jnp.zeros((4, 2))}, "same leading axis, but q0 has 3, v0 has 4"),
    "three axes": ({"q0": jnp.zeros((2, 3, 2))}, r"q0 must have shape \(n,\), or \(B, n\)"),
    "other coordinates": ({"q0": STARTS, "v0": jnp.zeros(3)}, "q0 and v0 must have the same shape"),
    "nothing for samples": ({"q0": STARTS, "samples": jnp.zeros(3)}, "samples has no effect"),
    "no samples": ({"mechanism": swinging}, "mechanism is a function of a sample, but there are none"),
    "a number": ({"mechanism": swinging, "samples": {"length": 1.0}}, "samples.length must have a leading axis"),
    "no such entry": ({"mechanism": swinging, "samples": {"l": jnp.ones(3)}}, "does not work with an entry of samples"),
    "axes of a start": ({"q0": STARTS, "axes": {"q0": 0}}, "axes must name 'mechanism' or 'servo'"),
    "axes of no servo": ({"q0": STARTS, "axes": {"servo": 0}}, "there is no servo"),
    "axes of functions": (
        {"mechanism": WITHOUT_ARRAYS, "axes": {"mechanism": 0}},
        "axes.'mechanism'. has no effect: what it marks",
    ),
    "the second axis": ({"q0": STARTS, "axes": {"mechanism": 1}}, "must hold 0 or None, but holds 1"),
    "no device": ({"q0": STARTS, "devices": []}, "at least one device"),
    "twice": ({"q0": STARTS, "devices": [jax.devices()[0]] * 2}, "name each device once"),
    "no lanes": ({"q0": STARTS, "lanes": 0}, "lanes must be a positive integer"),
    "a field that is none": ({"q0": STARTS, "keep": "speed"}, "keep must name fields"),
    "a time": ({"q0": STARTS, "ts": [0.0]}, r"ts must have shape \(T,\)"),
    "servo": ({"q0": STARTS, "servo": lambda s: None, "mechanism": PENDULUM}, "servo is a function of a sample"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    given, words = WRONG[name]
    given = {"mechanism": PENDULUM, "q0": STARTS[0], "v0": AT_REST, "ts": TS, **given}
    first = [given.pop(k) for k in ("mechanism", "q0", "v0", "ts")]
    with pytest.raises(ValueError, match=words):
        ukjax.simulate_batch(*first, **given)


@pytest.mark.long
def test_what_a_reduction_does_not_get_or_must_not_return():
    run = lambda reduce: ukjax.simulate_batch(PENDULUM, STARTS, AT_REST, TS, keep=("q", "acceleration"), reduce=reduce)
    with pytest.raises(TypeError, match="not subscriptable") as error:
        run(lambda trajectory: trajectory.constraint_force[-1])
    assert error.value.__notes__[0].endswith("there is here what `keep` names: q, acceleration.")
    with pytest.raises(TypeError, match="reduce must return arrays or numbers, but returned a str: 'high'"):
        run(lambda trajectory: {"height": "high"})
    assert run(lambda trajectory: {"of": 3, "rate": 2.0}).value["of"].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"samples": jnp.zeros(3), "axes": "mechanism"},
            "axes must be an instance of Mapping, such as {'mechanism': 0}",
        ),
        ({"samples": {"of": np.array(["a", "b", "c"])}}, r"samples\.of must be an array of numbers.*ndarray of <U1"),
        ({"samples": [object()] * 3}, r"samples\.0 must be an array of numbers.* is a object of object"),
        ({"samples": "abc"}, "samples must be an array of numbers, .* is a str of <U3"),
    ],
)
def test_what_is_of_another_type(given, words):
    with pytest.raises(TypeError, match=words):
        ukjax.simulate_batch(PENDULUM, STARTS, lambda sample: AT_REST, TS, **given)


@pytest.mark.long
def test_single_precision_warns_of_nothing():
    """Where that is all that there is; of so many that a step is one scalar program."""
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        starts, tolerances = np.tile([0.6, -0.8], (300, 1)), {"rtol": 1e-4, "atol": 1e-4}
        mechanism = ukjax.Mechanism(falling(n=2), ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0])))
        batch = ukjax.simulate_batch(mechanism, starts, [0.8, 0.6], [0.0, 0.1], keep="q", progress=False, **tolerances)
    assert batch.q.dtype == jnp.float32


def test_what_is_no_mechanism():
    with pytest.raises(TypeError, match="mechanism must be an instance of Mechanism"):
        ukjax.simulate_batch(lambda sample: falling(), STARTS, AT_REST, TS, samples=jnp.zeros(3))
    with pytest.raises(TypeError, match="devices must be an instance of Device"):
        ukjax.simulate_batch(PENDULUM, STARTS, AT_REST, TS, devices=["cpu"])
    for devices in (2, jax.devices()[0]):
        with pytest.raises(TypeError, match="devices must be an instance of Sequence, such as jax.devices"):
            ukjax.simulate_batch(PENDULUM, STARTS, AT_REST, TS, devices=devices)
