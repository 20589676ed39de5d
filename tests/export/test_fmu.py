"""FMUs: FMPy finds nothing wrong, and simulates them as they move here, in both modes; derivatives are right."""

import ctypes
import subprocess
import zipfile
from xml.etree import ElementTree

import diffrax
import fmpy
import fmpy.fmi1
import fmpy.fmi3
import fmpy.validation
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import unicycle

from ..helpers import assert_close, long, pendulum, sampled
from ..inside import replaced
from .compilers import COMPILERS, STRICT, compile_c, first


Q, V, TIMES = np.array([0.6, -0.8]), np.array([0.4, 0.3]), np.linspace(0.0, 1.0, 11)
SPRING = lambda q, v, t, x: (x[:1] - q[:1]) * jnp.cos(t)
PUSH = [[1.0], [0.5]]
SAMPLED = ukjax.Feedback(
    SPRING, PUSH, memory=[0.2, 0.3], update=lambda q, v, t, x: 0.5 * x + q, period=0.1, limits=(-0.4, 0.4)
)
SMOOTH = ukjax.Feedback(SPRING, PUSH, memory=[0.2, 0.3], rates=lambda q, v, t, x: v - x)
LAW = ukjax.Feedback(lambda q, v, t: -3.0 * q[:1], PUSH)


class Fmu:
    """An exported FMU, unpacked once, with the references of its variables by name."""

    def __init__(self, path):
        self.path, self.folder = path, fmpy.extract(str(path), str(path.with_suffix("")))
        self.description = fmpy.read_model_description(self.folder)
        self.at = {x.name: x.valueReference for x in self.description.modelVariables}

    def simulate(self, kind, **options):
        given = {"stop_time": TIMES[-1], "output_interval": TIMES[1], "fmi_type": kind, "relative_tolerance": 1e-10}
        return fmpy.simulate_fmu(self.folder, model_description=self.description, **{**given, **options})

    def instance(self, kind=fmpy.fmi3.FMU3Model, initialized=True, said=None, token=None):
        """An instance of its own; messages go to the list `said`."""

        def log(_, status, category, text):
            if said is not None:
                said.append(text.decode())

        one = kind(
            guid=token or self.description.guid,
            unzipDirectory=self.folder,
            modelIdentifier=self.description.coSimulation.modelIdentifier,
            instanceName="it",
            fmiCallLogger=None,
        )
        one.instantiate(logMessage=log)
        one.enterInitializationMode()
        if initialized:
            one.exitInitializationMode()
        return one


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """FMUs by name, each of which is exported once."""
    known = {}

    def of(name, mechanism, q, v, **options):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = Fmu(ukjax.export(mechanism, q, v, to="fmu", out=folder, name=name, **options)[0])
        return known[name]

    return of


def robot(made):
    """The unicycle with its servo, and all parameters."""
    case = unicycle.scenario()
    names = {"coordinates": case.coordinates, "controls": case.controls}
    return made("robot", case.mechanism, case.q0, case.v0, servo=case.servo, parameters=True, **names)


def top(made):
    """A body that turns freely: quaternions as coordinates, angular velocities in the body as speeds."""
    inertia = jnp.array([1.0, 2.0, 3.0])

    def rates(q, w, t):
        s, r = q[0], q[1:]
        return jnp.concatenate([-(r @ w)[None], s * w + jnp.cross(r, w)]) / 2

    system = ukjax.System(lambda q, t: jnp.diag(inertia), lambda q, w, t: -jnp.cross(w, inertia * w), rates)
    mechanism, q, v = ukjax.Mechanism(system), jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.array([0.1, 2.0, 0.1])
    names = {"coordinates": ["s", "x", "y", "z"], "speeds": [f"w{x} [rad/s]" for x in "xyz"]}
    return mechanism, q, v, made("top", mechanism, q, v, **names)


def moved(mechanism, q, v, servo=None):
    return ukjax.simulate(mechanism, q, v, TIMES, servo=servo, rtol=1e-11, atol=1e-11)


def assert_moves(fmu, run, kind, names, tolerance, **more):
    """The FMU moves as a run here; `names` of coordinates and speeds; `more`: further results by name."""
    found = fmu.simulate(kind)
    found = found[[*np.flatnonzero(np.diff(found["time"])), len(found) - 1]]  # of two at a sample the later one
    wanted = dict(zip(names, [*np.asarray(run.q).T, *np.asarray(run.v).T], strict=True)) | more
    for name, want in wanted.items():
        known = np.isfinite(want)
        assert_close(found[name][known], np.asarray(want)[known], atol=tolerance)


KINDS = pytest.mark.parametrize(("kind", "tolerance"), [("CoSimulation", 2e-9), ("ModelExchange", 5e-7)])


@KINDS
def test_a_servo_inside(made, kind, tolerance):
    case, fmu = unicycle.scenario(), robot(made)
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    run = moved(case.mechanism, case.q0, case.v0, case.servo)
    names = [x.name for x in case.coordinates]
    more = dict(zip((x.name for x in case.controls), np.asarray(run.control).T, strict=True))
    energy = [v @ case.mechanism.system.mass(q, t) @ v / 2 for q, v, t in zip(run.q, run.v, run.t, strict=True)]
    more |= {f"der({x}')": a for x, a in zip(names, np.asarray(run.acceleration).T, strict=True)}
    more |= {"kinetic energy": energy}
    assert_moves(fmu, run, kind, [*names, *(f"{x}'" for x in names)], 40 * tolerance, **more)


@KINDS
def test_quaternions(made, kind, tolerance):
    mechanism, q, v, fmu = top(made)
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    assert_moves(fmu, moved(mechanism, q, v), kind, ["s", "x", "y", "z", "wx", "wy", "wz"], tolerance)


@KINDS
@pytest.mark.parametrize("servo", [pytest.param(SAMPLED, id="sampled"), long(SMOOTH, id="smooth")])
def test_a_controller_with_memory(made, servo, kind, tolerance):
    fmu = made("sampled" if servo is SAMPLED else "smooth", pendulum(), Q, V, servo=servo)
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    run = moved(pendulum(), Q, V, servo)
    control, memory = np.asarray(run.control)[:, 0], np.asarray(run.memory)[:, 0]
    # A trajectory has the memory that a sample took; an FMU holds what it left for the next one.
    more = {"u1": control, "memory 1": memory if servo is SMOOTH else np.append(memory[1:], np.nan)}
    assert_moves(fmu, run, kind, ["q1", "q2", "q1'", "q2'"], tolerance, **more)


@pytest.mark.long
@KINDS
def test_a_plant_with_inputs(made, kind, tolerance):
    fmu = made("plant", pendulum(), Q, V, servo=LAW, what="plant", controls=["push [N]"])
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    given = np.array([(0.0, 0.7), (1.0, 0.7)], [("time", float), ("push", float)])
    steady = ukjax.Feedback(lambda q, v, t: 0.7 * jnp.ones(1), PUSH)
    run, found = moved(pendulum(), Q, V, steady), fmu.simulate(kind, input=given)
    for i in range(2):
        assert_close(found[f"q{i + 1}"], np.asarray(run.q)[:, i], atol=tolerance)


@pytest.mark.long
def test_a_projection_keeps_constraints_in_co_simulation(made):
    """A run from another time than zero, at a coarse tolerance: the rod keeps its length to rounding."""
    fmu = made("projected", pendulum(), Q, V, t=0.5, projection=ukjax.Projection())
    found = fmu.simulate("CoSimulation", stop_time=3.5, relative_tolerance=1e-5)
    assert found["time"][0] == 0.5
    assert_close(np.hypot(found["q1"], found["q2"]), np.ones(len(found)), atol=1e-14)
    assert_close(found["q1"] * found["q1'"] + found["q2"] * found["q2'"], np.zeros(len(found)), atol=1e-13)
    energy = found["kinetic energy"] + 9.81 * found["q2"]
    assert_close(energy, np.full(len(found), energy[0]), atol=1e-3)


@pytest.mark.parametrize("servo", [pytest.param(SAMPLED, id="sampled"), long(SMOOTH, id="smooth"), long(LAW, id="law")])
def test_a_controller_alone(made, servo):
    """Its inputs are coordinates and speeds; a sampled one sees them at its samples only."""
    name = {id(SAMPLED): "one", id(SMOOTH): "two", id(LAW): "three"}[id(servo)]
    fmu = made(name, pendulum(), Q, V, servo=servo, what="control")
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    one = fmu.instance(fmpy.fmi3.FMU3Slave)
    x, q = np.array([0.2, 0.3]), np.array([0.3, -0.9])
    control = lambda q, t, x: servo.control(q, V, t, x) if servo is SMOOTH else servo.sample(q, V, t, x)[0]
    u = lambda: one.getFloat64([fmu.at["u1"]])[0]
    assert u() == pytest.approx(float(control(Q, 0.0, x)[0]), rel=1e-14)
    one.setFloat64([fmu.at["q1"], fmu.at["q2"]], q)
    if servo is SAMPLED:
        one.doStep(0.0, 0.05)
        assert u() == pytest.approx(float(control(Q, 0.0, x)[0]), rel=1e-14)
        one.doStep(0.05, 0.1)
        assert u() == pytest.approx(float(control(q, 0.1, 0.5 * x + Q)[0]), rel=1e-14)
    elif servo is SMOOTH:
        one.doStep(0.0, 0.4)
        x = V + (x - V) * np.exp(-0.4)
        assert_close(np.array(one.getFloat64([fmu.at["memory 1"]])), x[:1], atol=1e-8)
        assert u() == pytest.approx(float(control(q, 0.4, x)[0]), rel=1e-7)
    else:
        assert u() == pytest.approx(float(-3.0 * q[0]), rel=1e-14)
    one.terminate()
    one.freeInstance()


def every(made, case):
    """FMUs by name: with parameters, with quaternions, with inputs."""
    if case == "top":
        return top(made)[-1]
    if case == "tuned":
        return made("tuned", pendulum(), Q, V, servo=LAW, parameters=True)
    return made("plant", pendulum(), Q, V, servo=LAW, what="plant", controls=["push [N]"])


@pytest.mark.parametrize("case", ["top", long("tuned"), long("plant")])
def test_directional_and_adjoint_derivatives(made, case):
    """By central differences of what the FMU gives, for all unknowns and knowns; one is the other's transpose."""
    fmu = every(made, case)
    one, variables = fmu.instance(initialized=False), fmu.description.modelVariables
    unknowns = [x.variable.valueReference for x in fmu.description.outputs]
    knowns = [x.valueReference for x in variables if x.initial == "exact" or x.causality == "input"]
    here = np.array(one.getFloat64(knowns))

    def at(values):
        one.setFloat64(knowns, values)
        return np.array(one.getFloat64(unknowns))

    numeric = np.stack([(at(here + d) - at(here - d)) / 2e-6 for d in 1e-6 * np.eye(len(knowns))], axis=1)
    at(here)
    forward = np.stack([one.getDirectionalDerivative(unknowns, knowns, e) for e in np.eye(len(knowns))], axis=1)
    backward = np.stack([one.getAdjointDerivative(unknowns, knowns, e, len(knowns)) for e in np.eye(len(unknowns))])
    size = 1.0 + np.max(np.abs(numeric))
    assert_close(forward, numeric, atol=1e-7 * size)
    assert_close(backward, forward, atol=1e-12 * size)
    one.freeInstance()


@pytest.mark.long
def test_derivatives_are_promised_where_there_are_some(made):
    """Of three equal rows two depend on one: there is a motion, and its derivatives are left to matrices."""
    for n in (1, 3):
        fmu = made(f"rows_{n}", pendulum(n), Q, V)
        tree = ElementTree.parse(f"{fmu.folder}/modelDescription.xml")
        for kind in ("ModelExchange", "CoSimulation"):
            flags = [x.get(f"provides{y}Derivatives") for x in tree.iter(kind) for y in ("Directional", "Adjoint")]
            assert flags == (["true", "true"] if n == 1 else [None, None])


def test_what_is_held_does_not_change(made):
    fmu = made("sampled", pendulum(), Q, V, servo=SAMPLED)
    one = fmu.instance()
    found = one.getDirectionalDerivative([fmu.at["u1"], fmu.at["der(q1)"]], [fmu.at["q1"], fmu.at["q1'"]], [1.0, 2.0])
    assert found == [0.0, 2.0]
    one.freeInstance()


@pytest.mark.long
def test_derivatives_by_time_and_dependencies(made):
    fmu = made("smooth", pendulum(), Q, V, servo=SMOOTH)
    one = fmu.instance()
    found = one.getDirectionalDerivative([fmu.at["u1"]], [fmu.at["time"]], [1.0])
    assert found == [pytest.approx(0.0, abs=1e-15)]
    one.setTime(0.5)
    found = one.getDirectionalDerivative([fmu.at["u1"]], [fmu.at["time"]], [1.0])
    assert found == [pytest.approx(-(0.2 - Q[0]) * np.sin(0.5), rel=1e-13)]
    needs = {x.variable.name: [y.name for y in x.dependencies] for x in fmu.description.outputs}
    assert needs["u1"] == ["time", "q1", "memory 1"]
    assert needs["der(q1)"] == ["q1'"]
    assert needs["der(memory 2)"] == ["q2'", "memory 2"]
    one.freeInstance()


@pytest.mark.long
def test_parameters_can_be_tuned(made):
    """A mass twice as heavy halves the acceleration by a force; the other values are those of here."""
    fmu = made("plant tuned".replace(" ", "_"), ukjax.Mechanism(pendulum().system), Q, V, servo=LAW, what="plant",
               parameters=["system_m"])  # fmt: skip
    one = fmu.instance(fmpy.fmi3.FMU3Slave)
    a, u, m = [fmu.at["der(q1')"]], [fmu.at["u1"]], [fmu.at["system_m"]]
    one.setFloat64(u, [3.0])
    before = one.getFloat64(a)[0] * one.getFloat64(m)[0]
    assert before == pytest.approx(3.0, rel=1e-14)
    one.setFloat64(m, [4.0])
    assert one.getFloat64(a)[0] == pytest.approx(0.75, rel=1e-14)
    one.freeInstance()


def test_where_nothing_is_certain_it_says_so(made):
    """Two rows of which one turns into the other at t = 1, next to which the rank is a matter of tolerance."""
    two = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0, q @ q - 1.0 + (1.0 - t) * q[0]]))
    fmu, said = made("dependent", ukjax.Mechanism(pendulum().system, two), [0.6, -0.8], [0.8, 0.6]), []
    one = fmu.instance(said=said)
    one.setTime(1.0 - 1e-5)
    values = (ctypes.c_double * 4)()
    with pytest.raises(fmpy.fmi1.FMICallException, match="status 2 .discard"):
        one.getContinuousStateDerivatives(values, 4)
    assert "it: no certain result at t = 0.99999: the rank" in said[-1]
    assert np.all(np.isnan(values))
    with pytest.raises(fmpy.fmi1.FMICallException, match="discard"):
        one.getDirectionalDerivative([fmu.at["der(q1')"]], [fmu.at["q1"]], [1.0])
    one.freeInstance()
    one = fmu.instance(fmpy.fmi3.FMU3Slave, said=said)
    del said[:]
    reached = ctypes.c_double()
    flags = [ctypes.byref(ctypes.c_bool()) for _ in range(3)]
    with pytest.raises(fmpy.fmi1.FMICallException, match="fmi3DoStep failed with status 2"):
        one.fmi3DoStep(one.component, 0.0, 2.0, True, *flags, ctypes.byref(reached))
    assert 0.3 < reached.value < 1.0
    assert said == [f"it: no certain result at t = {reached.value:.9g}: " + said[0].split(": ", 2)[2]]
    assert np.all(np.isfinite(one.getFloat64([fmu.at["q1"], fmu.at["q1'"]])))
    one.freeInstance()


def test_states_of_the_instance_are_kept(made):
    fmu = made("sampled", pendulum(), Q, V, servo=SAMPLED)
    one = fmu.instance(fmpy.fmi3.FMU3Slave)
    shown = [x.valueReference for x in fmu.description.modelVariables]
    one.doStep(0.0, 0.25)
    kept = one.getFMUState()
    size = ctypes.c_size_t()
    one.fmi3SerializedFMUStateSize(one.component, kept, ctypes.byref(size))
    bytes_ = (ctypes.c_uint8 * size.value)()
    one.fmi3SerializeFMUState(one.component, kept, bytes_, size.value)
    one.doStep(0.25, 0.5)
    want = one.getFloat64(shown)
    one.setFMUState(kept)
    one.doStep(0.25, 0.5)
    assert one.getFloat64(shown) == want
    again, other = ctypes.c_void_p(), fmu.instance(fmpy.fmi3.FMU3Slave)
    other.fmi3DeserializeFMUState(other.component, bytes_, size.value, ctypes.byref(again))
    other.setFMUState(again)
    other.doStep(0.25, 0.5)
    assert other.getFloat64(shown) == want
    for x, state in ((one, kept), (other, again)):
        x.fmi3FreeFMUState(x.component, ctypes.byref(state))
        x.reset()
        assert x.getFloat64([fmu.at["q1"]]) == [0.6]
        x.freeInstance()


def test_calls_that_are_not_allowed(made):
    fmu, said = robot(made), []
    one = fmu.instance(fmpy.fmi3.FMU3Slave, said=said)
    calls = [
        (lambda: one.setFloat64([fmu.at["x"]], [1.0]), "variable 1 cannot be set in this mode"),
        (lambda: one.setFloat64([fmu.at["der(x)"]], [1.0]), "cannot be set"),
        (lambda: one.getFloat64([10_000]), "there is no variable 10000"),
        (lambda: one.getInt32([0]), "there are no variables of type Int32"),
        (lambda: one.setString([0], ["x"]), "there are no variables of type String"),
        (lambda: one.getClock([0]), "there are no clocks"),
        (lambda: one.doStep(0.5, 0.1), "begins at another time"),
        (lambda: one.doStep(0.0, -0.1), "must be positive"),
        (lambda: one.enterInitializationMode(), "fmi3EnterInitializationMode is not allowed"),
        (lambda: one.enterEventMode(), "fmi3EnterEventMode is not allowed"),
        (lambda: one.getDirectionalDerivative([0], [1], [1.0]), "variable 0 is not unknown"),
        (lambda: one.getDirectionalDerivative([1], [fmu.at["der(x)"]], [1.0]), "is not known"),
        (lambda: one.setDebugLogging(True, ["all"]), "log categories are"),
    ]  # fmt: skip
    for call, words in calls:
        with pytest.raises(fmpy.fmi1.FMICallException, match="status 3 .error"):
            call()
        assert words in said[-1]
    one.freeInstance()
    with pytest.raises(Exception, match="Failed to instantiate"):
        fmu.instance(said=said, token="another")
    assert "token" in said[-1]


@pytest.mark.parametrize("compiler", sampled(list(COMPILERS), [first()]))
def test_the_sources_build_without_a_warning(made, compiler, tmp_path):
    """By the description of the build; the library has all functions of FMI 3.0, which FMPy has looked up."""
    fmu = robot(made)
    with zipfile.ZipFile(fmu.path) as archive:
        archive.extractall(tmp_path)
    (sources,) = ElementTree.parse(tmp_path / "sources" / "buildDescription.xml").iter("SourceFileSet")
    files = [tmp_path / "sources" / x.get("name") for x in sources.iter("SourceFile")]
    compile_c(compiler, *STRICT, "-shared", "-fPIC", *files, "-o", tmp_path / "it.so", "-lm")
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", *tmp_path.glob("binaries/*/*.so")], capture_output=True, text=True
    )
    names = [line.split()[-1] for line in shown.stdout.splitlines()]
    assert names
    assert all(x.startswith("fmi3") for x in names)


@pytest.mark.long
@pytest.mark.parametrize("name", ["model", "fmu", "call", "of"])
def test_a_name_may_be_that_of_something_else(made, name):
    fmu = made(name, ukjax.Mechanism(pendulum().system), Q, V, parameters=True)
    assert_close(fmu.simulate("CoSimulation")["q1"][-1:], Q[:1] + V[:1], rtol=1e-12)


@pytest.mark.long
def test_names_and_units(made):
    """Names that occur twice, or mean something in XML; units by the exponents of SI's."""
    fmu = made("named", ukjax.Mechanism(pendulum().system), Q, V,
               coordinates=["a <b> & \"c\" [N m/rad]", "a <b> & \"c\" [furlong]"])  # fmt: skip
    assert not fmpy.validation.validate_fmu(str(fmu.path))
    assert {'a <b> & "c"', 'a <b> & "c" (2)'} <= set(fmu.at)
    units = {x.name: x.baseUnit for x in fmu.description.unitDefinitions}
    assert units["furlong"] is None
    assert (units["N m/rad"].kg, units["N m/rad"].m, units["N m/rad"].s, units["N m/rad"].rad) == (1, 2, -2, -1)
    assert (units["J"].kg, units["J"].m, units["J"].s, units["J"].factor) == (1, 2, -2, 1.0)


@pytest.mark.long
def test_the_same_mechanism_makes_the_same_archive(made, tmp_path):
    fmu = made("sampled", pendulum(), Q, V, servo=SAMPLED)
    (again,) = ukjax.export(pendulum(), Q, V, to="fmu", servo=SAMPLED, out=tmp_path, name="sampled")
    assert again.read_bytes() == fmu.path.read_bytes()


def refused(tmp_path, match, error=ValueError, **options):
    with pytest.raises(error, match=match):
        ukjax.export(pendulum(), Q, V, to="fmu", out=tmp_path / "a" / "b", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_refused_leaves_nothing_behind(tmp_path):
    refused(tmp_path, "what must be one of 'acceleration', 'plant', 'control'", what="step")
    refused(tmp_path, "what must be one of", what=["plant", "control"])
    refused(tmp_path, "what must be a name", error=TypeError, what=3)
    refused(tmp_path, "what='plant' is about actuators, but there is no servo", what="plant")
    refused(tmp_path, "solver must be an instance of AbstractERK", error=TypeError, solver=diffrax.Euler())
    special = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jax.scipy.special.erf(q))
    with pytest.raises(
        ValueError, match='to="fmu" cannot be exported, for M, Q, A and b of the mechanism are no scalar'
    ):
        ukjax.export(ukjax.Mechanism(special), Q, V, to="fmu", out=tmp_path / "x")
    with pytest.raises(ValueError, match="of double precision, but q is float32"):
        ukjax.export(pendulum(), Q.astype(np.float32), V.astype(np.float32), to="fmu", out=tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_without_a_compiler(tmp_path):
    with replaced(c_compiler=lambda: None):
        refused(tmp_path, 'to="fmu" needs a C compiler, but none of cc, gcc, clang .*pip install ziglang')
    with replaced(c_compiler=lambda: ["false"]):
        refused(tmp_path, "The C compiler false failed: exit status 1")
    with replaced(c_compiler=lambda: ["/no/such/program"]):
        refused(tmp_path, "The C compiler /no/such/program cannot be run: No such file")
