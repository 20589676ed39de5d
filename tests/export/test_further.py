"""Multipliers, what constraints and joints carry, linearisations, RATTLE and whole runs: by what they are here."""

import ctypes

import casadi
import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import bricard, chaplygin_sleigh, governor, heavy_top, hoeken, n_pendulum, rolling_disc

from ..helpers import assert_close, falling, long, pendulum, random_mechanism
from .compilers import Library


Q, V = np.array([0.6, -0.8]), np.array([0.4, 0.3])


def made_up(copies):
    mechanism = random_mechanism(1, copies=copies)
    start = ukjax.assemble(mechanism, np.linspace(0.1, 0.5, 5), np.ones(5), 0.3)
    return mechanism, np.asarray(start.q), np.asarray(start.v), 0.3


def given(model):
    scenario = model.scenario()
    return scenario.mechanism, np.asarray(scenario.q0), np.asarray(scenario.v0), float(scenario.t0)


CASES = {
    "one row": lambda: (pendulum(), Q, V, 0.0),
    "three times the same row": lambda: (pendulum(3), Q, V, 0.0),
    "sleigh": lambda: given(chaplygin_sleigh),
    "made up": lambda: made_up(1),
    "three times the same rows": lambda: made_up(3),
    "straight-line linkage": lambda: given(hoeken),
    "disc": lambda: given(rolling_disc),
    "top": lambda: given(heavy_top),
    "governor": lambda: given(governor),
    "loop of six hinges": lambda: given(bricard),
}


def cases(short, others):
    return pytest.mark.parametrize("case", [*short, *map(long, others)])


def exported(folder, mechanism, q, v, t=0.0, **options):
    return Library(ukjax.export(mechanism, q, v, t, out=folder, name="it", **options)[0], "it")


@cases(
    ["three times the same row"],
    [
        "one row",
        "sleigh",
        "made up",
        "straight-line linkage",
        "three times the same rows",
        "disc",
        "loop of six hinges",
    ],
)
def test_multipliers_and_forces_of_constraints(tmp_path, case):
    """As by pseudoinverses: of rows that depend on each other those of least norm."""
    mechanism, q, v, t = CASES[case]()
    call = exported(tmp_path, mechanism, q, v, t, what=["multipliers", "constraint_forces"])
    for k in range(3):
        moved = v * (1 + 0.1 * k)
        motion = ukjax.equation_of_motion(mechanism, q, moved, t, reactions=True)
        for name, each in (("multipliers", motion.multipliers), ("constraint_forces", motion.constraint_forces)):
            want = np.concatenate([np.asarray(x) for x in each.values()])
            certain, (found,) = call(name, q, moved, t, gives=[want.size])
            assert certain == 1
            assert_close(found, want, atol=1e-11 * (1 + np.max(np.abs(want))))


@pytest.mark.long
def test_forces_under_a_servo(tmp_path):
    law = ukjax.Feedback(lambda q, v, t: -3.0 * q[:1], [[1.0], [0.5]])
    call = exported(tmp_path, pendulum(), Q, V, what="multipliers", servo=law)
    force = np.array([1.0, 0.5]) * -3.0 * Q[0]
    motion = ukjax.equation_of_motion(pendulum(), Q, V, applied=force, reactions=True)
    (want,) = motion.multipliers.values()
    assert_close(call("multipliers", Q, V, 0.0, gives=[1])[1][0], np.asarray(want), rtol=1e-14)


def test_multipliers_where_the_rank_is_not_certain(tmp_path):
    two = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]]))
    call = exported(tmp_path, ukjax.Mechanism(falling(), two), Q, V, what="multipliers")
    for t, want in ((0.0, 1), (1.0 - 1e-5, 0)):
        certain, (found,) = call("multipliers", Q, V, t, gives=[2])
        assert certain == want
        assert np.all(np.isnan(found)) != want


@cases(["top"], ["straight-line linkage", "governor", "loop of six hinges"])
def test_what_joints_carry(tmp_path, case):
    mechanism, q, v, t = CASES[case]()
    wrenches = mechanism.system.reactions(q, v, t)
    want = np.concatenate([np.concatenate(x) for x in wrenches.values()])
    library = exported(tmp_path, mechanism, q, v, t, what="reactions")
    certain, (found,) = library("reactions", q, v, t, gives=[want.size])
    assert certain == 1
    assert_close(found, want, atol=1e-12 * (1 + np.max(np.abs(want))))
    text = (tmp_path / "it.h").read_text()
    assert f"#define IT_JOINTS {len(wrenches)}" in text
    words = " ".join(text.replace("\n * ", " ").split())
    assert f"{next(iter(wrenches))} force x [N]" in words


@cases(["one row"], ["sleigh", "made up", "straight-line linkage", "disc", "top", "governor", "loop of six hinges"])
def test_linearizations(tmp_path, case):
    mechanism, q, v, t = CASES[case]()
    want = np.asarray(ukjax.analysis.linearize(mechanism, q, v, t).A)
    certain, (A,) = exported(tmp_path, mechanism, q, v, t, what="linearization")(
        "linearization", q, v, t, gives=[want.size]
    )
    assert certain == 1
    assert_close(A.reshape(want.shape), want, atol=1e-12 * (1 + np.max(np.abs(want))))


@pytest.mark.long
def test_a_linearization_with_inputs_and_where_there_is_none(tmp_path):
    """Of a plant under a control; off the constraints, and where the independent states are none, it is uncertain."""
    G = np.array([[1.0], [0.5]])
    law = ukjax.Feedback(lambda q, v, t: -3.0 * q[:1], G)
    options = {"what": ["linearization", "plant_linearization"], "servo": law, "controls": ["push [N]"]}
    call, u = exported(tmp_path, pendulum(), Q, V, **options), np.array([0.7])
    want = ukjax.analysis.linearize(pendulum(), Q, V, actuation=G, u=u)
    certain, (A, B) = call("plant_linearization", Q, V, 0.0, u, gives=[4, 2])
    assert certain == 1
    assert_close(A, np.asarray(want.A).ravel(), atol=1e-13)
    assert_close(B, np.asarray(want.B).ravel(), atol=1e-13)
    want = ukjax.analysis.linearize(pendulum(), Q, V, servo=law)
    assert_close(call("linearization", Q, V, 0.0, gives=[4])[1][0], np.asarray(want.A).ravel(), atol=1e-13)
    head = (tmp_path / "it.h").read_text()
    names = ", ".join(("q1", "q1'") if want.names[0] == "q[0]" else ("q2", "q2'"))
    assert f"columns: x. x: {names}" in head
    side = np.array([1.0, 0.0]) if want.names[0] == "q[0]" else np.array([0.0, 1.0])
    for q, v in ((1.01 * Q, V), (Q, 1.5 * Q), (side, side[::-1])):
        certain, (A,) = call("linearization", q, v, 0.0, gives=[4])
        assert certain == 0
        assert np.all(np.isnan(A))


class Dragged(type(falling())):
    """A falling body in a medium, whose force depends on the speeds."""

    def force(self, q, v, t):
        return jnp.array([0.0, -9.81]) - 0.8 * v - 0.1 * v * jnp.sqrt(v @ v)


def chain():
    scenario = n_pendulum.closed(N=3)
    return scenario.mechanism, np.asarray(scenario.q0), np.asarray(scenario.v0)


RATTLED = {
    "pendulum": lambda: (pendulum(), Q, V),
    "redundant": lambda: (pendulum(3), Q, V),
    "free": lambda: (ukjax.Mechanism(falling()), Q, V),
    "dragged": lambda: (ukjax.Mechanism(Dragged(jnp.array(1.0), jnp.array(9.81), 2), pendulum().constraints), Q, V),
    "chain": chain,
}


@pytest.mark.parametrize("case", ["pendulum", *map(long, ["dragged", "redundant", "free", "chain"])])
def test_runs_of_rattle(tmp_path, case):
    """In C, with saved states in arrays of the caller, as by `simulate`; and as many single steps."""
    mechanism, q, v = RATTLED[case]()
    call = exported(tmp_path, mechanism, q, v, what="run", solver=ukjax.Rattle())
    want = ukjax.simulate(
        mechanism, q, v, np.linspace(0.0, 0.3, 4), solver=ukjax.Rattle(), dt0=1e-2,
        stepsize_controller=diffrax.ConstantStepSize(),
    )  # fmt: skip
    certain, qs, vs = run_in(call, q, v, 1e-2, 30, 10)
    assert certain == 1
    assert_close(qs, np.asarray(want.q), atol=1e-12)
    assert_close(vs, np.asarray(want.v), atol=1e-11)
    for _ in range(30):
        certain, (q, v) = call("rattle_step", q, v, 0.0, 1e-2, gives=[q.size, v.size])
        assert certain == 1
    assert_close(qs[-1], q, atol=0.0)


def test_a_step_of_rattle_that_does_not_arrive(tmp_path):
    """Steps of a tenth of a second take iterations that three are not enough for."""
    call = exported(tmp_path, pendulum(), Q, V, what="rattle_step", solver=ukjax.Rattle(iterations=2))
    certain, found = call("rattle_step", Q, V, 0.0, 0.1, gives=[2, 2])
    assert certain == 0
    assert np.all(np.isnan(found))


def run_in(library, q, v, h, steps, every, *further, x=(), t=0.0, counts=()):
    """The result and the saved states of a run."""
    rows = 1 + steps // every
    qs, vs = np.full((rows, q.size), 17.0), np.full((rows, v.size), 17.0)
    place = ctypes.c_void_p
    given = [place(y.ctypes.data) for y in (q, v)] + [ctypes.c_double(t)]
    given += [place(y.ctypes.data) for y in x] + [ctypes.c_double(h), *map(ctypes.c_int, (steps, every, *counts))]
    given += [place(y.ctypes.data) for y in (*further, qs, vs)]
    return library.functions.it_run(*given), qs, vs


@pytest.mark.long
@pytest.mark.parametrize("to", ["c", "object"])
def test_a_run_with_projection_and_parameters(tmp_path, to):
    """It has the bits of its steps; where there is no result, nothing follows."""
    options = {"what": "run", "parameters": ["system_m"], "projection": ukjax.Projection(), "to": to}
    law = ukjax.Feedback(lambda q, v, t: -3.0 * jnp.sin(t) * q[:1], [[1.0], [0.5]])
    call, p = exported(tmp_path, pendulum(), Q, V, servo=law, **options), np.array([2.0])
    certain, qs, vs = run_in(call, Q, V, 1e-2, 25, 5, p, t=0.2)
    assert certain == 1
    q, v = Q, V
    for k in range(25):
        _, (q, v) = call("step", q, v, 0.2 + k * 1e-2, 1e-2, p, gives=[2, 2])
        if k % 5 == 4:
            np.testing.assert_array_equal(qs[(k + 1) // 5], q)
            np.testing.assert_array_equal(vs[(k + 1) // 5], v)
    system = ukjax.Mechanism(type(falling())(jnp.array(2.0), jnp.array(9.81), 2), pendulum().constraints)
    want = ukjax.simulate(system, Q, V, np.array([0.2, 0.45]), servo=law, projection=ukjax.Projection())
    assert_close(qs[-1], np.asarray(want.q[-1]), atol=1e-8)
    lost = np.array([np.nan, -0.8])
    certain, qs, _ = run_in(call, lost, V, 1e-2, 5, 2, p)
    assert certain == 0
    assert np.all(np.isnan(qs[1:]))
    for steps, every in ((-1, 1), (5, 0)):
        counts = ctypes.c_int(steps), ctypes.c_int(every)
        assert call.functions.it_run(None, None, ctypes.c_double(0.0), ctypes.c_double(0.1), *counts, *[None] * 3) == 0


@pytest.mark.parametrize("to", ["object", long("c")])
def test_a_run_with_samples(tmp_path, to):
    """A controller with memory that samples every ten steps, as by `simulate`."""
    sampled = ukjax.Feedback(
        lambda q, v, t, x: (x[:1] - q[:1]) * jnp.cos(t), [[1.0], [0.5]], memory=[0.2, 0.3], period=0.1,
        update=lambda q, v, t, x: 0.5 * x + q, limits=(-0.4, 0.4),
    )  # fmt: skip
    call = exported(tmp_path, pendulum(), Q, V, servo=sampled, what="run", to=to)
    certain, qs, vs = run_in(call, Q, V, 1e-2, 100, 20, x=[np.array([0.2, 0.3])], counts=[10])
    assert certain == 1
    want = ukjax.simulate(pendulum(), Q, V, np.linspace(0.0, 1.0, 6), servo=sampled, rtol=1e-11, atol=1e-11)
    assert_close(qs, np.asarray(want.q), atol=1e-9)
    assert_close(vs, np.asarray(want.v), atol=1e-8)


def refused(tmp_path, match, mechanism=None, **options):
    with pytest.raises(ValueError, match=match):
        ukjax.export(pendulum() if mechanism is None else mechanism, Q, V, out=tmp_path / "a" / "b", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_refused(tmp_path):
    law = ukjax.Feedback(lambda q, v, t: -q[:1], [[1.0], [0.0]])
    smooth = ukjax.Feedback(lambda q, v, t, x: x, [[1.0], [0.0]], memory=[0.0], rates=lambda q, v, t, x: -x)
    free, moving = ukjax.Mechanism(falling()), ukjax.System(lambda q, t: jnp.diag(1 + q**2), lambda q, v, t: -q)
    refused(tmp_path, "the mechanism has no constraints", free, what="multipliers")
    refused(tmp_path, "is about the joints of a ukjax.rigid.Robot, but the system is a Falling", what="reactions")
    refused(tmp_path, "there is no servo. Pass servo=", what="plant_linearization")
    refused(tmp_path, "does not go with a servo", what="rattle_step", servo=law)
    refused(tmp_path, "mass matrix that changes with q", ukjax.Mechanism(moving), what="rattle_step")
    refused(tmp_path, "what='run' is a loop, of which CasADi has its own", what="run", to="casadi")
    refused(tmp_path, "what='run' is a loop, which is for C and objects", what="run", to="wasm")
    refused(tmp_path, "but this one has rates", what="run", servo=smooth)
    refused(tmp_path, "memory or samples", what="linearization", servo=smooth)
    off = ukjax.Mechanism(falling(), ukjax.Holonomic(lambda q, t: (q @ q - 2.0)[None]))
    refused(
        tmp_path, "there is none about the given state: The state is off the constraints", off, what="linearization"
    )
    body = ukjax.rigid.Body(ukjax.rigid.Inertia(1.0, 1.0))
    door, one = ukjax.rigid.Robot({"door": body}, {"hinge": ukjax.rigid.Revolute("ground", "door")}), np.zeros(1)
    options = {"out": tmp_path / "x", "what": "reactions"}
    with pytest.raises(ValueError, match="what='reactions' does not go with a servo"):
        ukjax.export(door.mechanism(), one, one, servo=ukjax.Feedback(lambda q, v, t: -q, [[1.0]]), **options)
    extra = ukjax.Mechanism(door, {"extra": ukjax.Holonomic(lambda q, t: q)})
    with pytest.raises(ValueError, match="constraints beside the robot's own, .*extra"):
        ukjax.export(extra, one, one, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_further_functions_of_casadi(tmp_path):
    what = ["multipliers", "linearization", "rattle_step"]
    paths = ukjax.export(pendulum(), Q, V, to="casadi", what=what, out=tmp_path, name="it")
    multipliers, linearization, step = (casadi.Function.load(str(path)) for path in paths)
    (want,) = ukjax.equation_of_motion(pendulum(), Q, V, reactions=True).multipliers.values()
    assert_close(np.array(multipliers(Q, V, 0.0)[0])[:, 0], np.asarray(want), rtol=1e-12)
    A = np.array(linearization(Q, V, 0.0)[0]).reshape(2, 2)
    assert_close(A, np.asarray(ukjax.analysis.linearize(pendulum(), Q, V).A), atol=1e-12)
    q, v, certain = step(Q, V, 0.0, 1e-2)
    assert float(certain) == 1
    library = exported(tmp_path, pendulum(), Q, V, what="rattle_step")
    for found, want in zip((q, v), library("rattle_step", Q, V, 0.0, 1e-2, gives=[2, 2])[1], strict=True):
        assert_close(np.array(found)[:, 0], want, atol=1e-14)
