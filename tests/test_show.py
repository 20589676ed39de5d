"""What results show of themselves, in a terminal and in a notebook."""

import re
import xml.etree.ElementTree as ET

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ukjax
from ukjax import rigid

from .helpers import assert_close, pendulum


TS = np.linspace(0.0, 1.0, 21)
NAMES = ["x [m]", "y [m]"]


@pytest.fixture(scope="module")
def run():
    return ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, projection=ukjax.Projection())


@pytest.fixture(scope="module")
def batch():
    starts = jnp.array([[-1.0, 0.0], [0.0, -1.0], [0.6, 0.8]])
    return ukjax.simulate_batch(
        pendulum(), starts, jnp.zeros(2), TS, projection=ukjax.Projection(), max_steps=24, progress=False
    )


def test_a_trajectory_shows_its_numbers_with_names_and_units(run):
    lines = repr(run.called(NAMES)).splitlines()
    assert lines[0] == "Trajectory: successful"
    assert lines[1].split() == ["start", "end", "least", "largest"]
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        "y [m]", "0", f"{run.q[-1, 1]:.6g}", f"{np.min(run.q[:, 1]):.6g}", "0"
    ]  # fmt: skip
    assert lines[4].strip().startswith("v x [m/s]")
    assert f"{len(TS)} saved times from 0 to {TS[-1]:g} s, {run.stats['num_accepted_steps']} steps" in lines[6]
    assert str(run) == repr(run)


@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories")
def test_a_batch_is_summarised(batch):
    text = repr(batch)
    failed = int(np.flatnonzero(np.asarray(batch.result != ukjax.RESULTS.successful))[0])
    assert text.startswith("Trajectory: 1 of 3 successful; 2 max_steps_reached, the first is number ")
    assert f"number {failed}" in text
    assert "least at the end" in text
    assert len(text.splitlines()) < 12


def test_a_notebook_shows_a_table_with_curves(run, batch):
    for shown, curves in ((run, 1), (batch, 3)):
        tree = ET.fromstring(shown._repr_html_())
        pictures = tree.findall(".//svg")
        assert len(tree.findall(".//tbody/tr")) == len(pictures) == 4
        assert all(len(picture) >= curves - 2 for picture in pictures)
    # The first curve is x(t), upside down as pictures are.
    line = ET.fromstring(run._repr_html_()).find(".//polyline").get("points")
    x, y = np.array([point.split(",") for point in line.split()]).astype(float).T
    assert np.all(np.diff(x) > 0)
    at = np.linspace(0, len(TS) - 1, len(x)).astype(int)
    assert np.corrcoef(y, np.asarray(run.q[at, 0]))[0, 1] < -0.999


def test_text_in_html_is_text():
    named = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, keep="q").called(["<b>x</b> & y", "y"])
    cells = [cell.text for cell in ET.fromstring(named._repr_html_()).findall(".//tbody/tr/td")]
    assert cells[0] == "<b>x</b> & y"


NAMES_OF_RESULTS = (
    "mechanism", "motion", "assembly", "diagnosis", "equilibrium", "linearization", "modes", "tuning", "scenario"
)  # fmt: skip


@pytest.fixture(scope="module")
def shown():
    """Results, and what their displays have to say."""
    mechanism = ukjax.Mechanism(pendulum().system, {"rod": pendulum().constraints[0]})
    start = jnp.array([0.0, -1.0]), jnp.zeros(2)
    linear = ukjax.analysis.linearize(mechanism, *start)
    loss = lambda params: jnp.sum((params["gain"] - 1.0) ** 2)
    tuned = ukjax.tune(loss, {"gain": jnp.zeros(2)}, optax.sgd(0.1), 3, progress=False)
    case = ukjax.Scenario(mechanism, *start, 1.0, coordinates=NAMES)
    motion = ukjax.equation_of_motion(mechanism, *start, reactions=True)
    return {
        "mechanism": (mechanism, ["1 constraint", "rod", "Holonomic"]),
        "motion": (motion, ["successful", "force of rod", "9.81"]),
        "assembly": (ukjax.assemble(mechanism, [0.0, -2.0], [0.0, 0.0]), ["nearest", "0, -1", "moved by +1"]),
        "diagnosis": (ukjax.diagnose(mechanism, *start), ["degrees of freedom", "1, of rank 1"]),
        "equilibrium": (ukjax.analysis.equilibrium(mechanism, start[0]), ["Isolated", "0, -1"]),
        "linearization": (linear, ["frequency [Hz]", f"{np.sqrt(9.81) / 2 / np.pi:.6g}"]),
        "modes": (linear.modes(), ["frequency [Hz]", f"{np.sqrt(9.81) / 2 / np.pi:.6g}"]),
        "tuning": (tuned, ["loss", "gain", "3 steps"]),
        "scenario": (case, ["x [m]", "v y [m/s]", "from 0 to 1 s"]),
    }


@pytest.mark.parametrize("name", NAMES_OF_RESULTS)
def test_results_show_values(shown, name):
    result, words = shown[name]
    html = "".join(ET.fromstring(result._repr_html_()).itertext())
    for word in words:
        assert word in repr(result)
        assert word in html
    assert "f64[" not in repr(result)


@pytest.mark.parametrize("name", ["mechanism", "motion", "assembly", "diagnosis", "linearization", "tuning"])
def test_a_display_never_raises(shown, name):
    """Of tracers, shapes, other leaves, deleted arrays, within vmap and grad, and in errors of others."""
    result, _ = shown[name]
    leaves, structure = jax.tree_util.tree_flatten(result)
    seen = []

    def look(*leaves):
        seen.append(repr(jax.tree_util.tree_unflatten(structure, leaves)))
        return leaves[0] if leaves else 0

    arrays = [x for x in leaves if eqx.is_array(x)]
    of = lambda arrays: [next(arrays) if eqx.is_array(x) else x for x in leaves]
    jax.jit(lambda *x: look(*of(iter(x))))(*arrays)
    jax.vmap(lambda *x: look(*of(iter(x))))(*(jnp.stack([x, x]) for x in arrays))
    for other in (jax.ShapeDtypeStruct((2,), float), object(), None, jnp.ones(0)):
        look(*[other] * len(leaves))
    gone = [jnp.array(x) if eqx.is_array(x) else x for x in leaves]
    for x in gone:
        x.delete() if isinstance(x, jax.Array) else None
    look(*gone)
    assert all(isinstance(text, str) and text for text in seen)
    assert jax.tree_util.tree_unflatten(structure, gone)._repr_html_() is None or not arrays
    with pytest.raises(TypeError, match="."):
        eqx.filter_jit(lambda x: x + result)(1.0)


def test_the_structure_is_still_there_to_print(run):
    text = eqx.tree_pformat(run)
    assert "q=f64[" in text
    assert "<uninitialised>" not in text


@pytest.mark.long
def test_huge_results_have_short_displays():
    wide = ukjax.System(lambda q, t: jnp.eye(100), lambda q, v, t: -q)
    run = ukjax.simulate(ukjax.Mechanism(wide), jnp.ones(100), jnp.zeros(100), TS, keep=("q", "v"))
    assert len(repr(run).splitlines()) < 25
    assert "... and 184 more" in repr(run)
    motion = ukjax.equation_of_motion(ukjax.Mechanism(wide), jnp.ones(100), jnp.zeros(100))
    assert "100 numbers, -1 to -1" in repr(motion)


def test_fields_that_were_not_kept_say_so():
    run = ukjax.simulate(pendulum(), [-1.0, 0.0], [0.0, 0.0], TS, keep=("q",))
    assert run.v is run.multipliers is run.rank is run.control is None
    assert "not kept: v, acceleration" in repr(run)
    assert_close(jax.tree_util.tree_map(lambda x: 2 * x, run).q, 2 * run.q, atol=0.0)


def test_tables(run, batch, tmp_path):
    frame = run.to_dataframe(NAMES, observables={"height [m]": run.q[:, 1] + 1, "place a, b [m]": run.q})
    assert frame.index.name == "t [s]"
    assert_close(frame["y [m]"].to_numpy(), np.asarray(run.q[:, 1]), atol=0.0)
    assert_close(frame["acceleration y [m/s^2]"].to_numpy(), np.asarray(run.acceleration[:, 1]), atol=0.0)
    assert_close(frame["height [m]"].to_numpy(), np.asarray(run.q[:, 1]) + 1, atol=0.0)
    assert_close(frame["place b [m]"].to_numpy(), np.asarray(run.q[:, 1]), atol=0.0)
    run.to_csv(tmp_path / "run.csv", coordinates=NAMES)
    head = (tmp_path / "run.csv").read_text().splitlines()[0].split(",")
    back = np.loadtxt(tmp_path / "run.csv", delimiter=",", skiprows=1)
    assert head[:3] == ["t [s]", *NAMES]
    assert_close(back[:, 1:3], np.asarray(run.q), atol=0.0)
    many = batch.to_dataframe()
    assert list(many.index.names) == ["trajectory", "t [s]"]
    assert_close(many.loc[1]["q2"].to_numpy(), np.asarray(batch.q[1, :, 1]), atol=0.0)
    with pytest.raises(ValueError, match="coordinates must be 2 names"):
        run.to_dataframe(["x"])
    for wrong in (3.0, np.zeros(3), np.zeros((21, 2, 2))):
        for method in (run.to_dataframe, run.to_dataset):
            with pytest.raises(ValueError, match=r"observables\['a'\] must have shape \(21,\)"):
                method(observables={"a": wrong})
    alike = run.to_dataframe(["x", "x"])
    assert_close(alike["x (2)"].to_numpy(), np.asarray(run.q[:, 1]), atol=0.0)


def test_a_robot_names_its_trajectories():
    rod = rigid.Body(rigid.Inertia.rod(1.0, [0.0, 0.0, 0.0], [0.0, -1.0, 0.0]))
    robot = rigid.Robot({"rod": rod}, {"hip": rigid.Revolute("ground", "rod")}, gravity=(0.0, -9.81, 0.0), planar=True)
    run = ukjax.simulate(ukjax.Mechanism(robot), [0.1], [0.0], TS, keep=("q", "v"))
    assert "hip [rad]" in repr(run)
    assert list(run.to_dataframe().columns) == ["hip [rad]", "v hip [rad/s]"]
    many = ukjax.simulate_batch(
        ukjax.Mechanism(robot), jnp.array([[0.1], [0.2]]), [0.0], TS, keep=("q", "v"), progress=False
    )
    assert list(many.to_dataset().coordinate.values) == ["hip [rad]"]
    ends = lambda trajectory: {"end": trajectory.q[-1]}
    reduced = ukjax.simulate_batch(
        ukjax.Mechanism(robot), jnp.array([[0.1], [0.2]]), [0.0], TS, reduce=ends, progress=False
    )
    assert "2 of 2 successful" in repr(reduced)
    assert "end" in repr(reduced)
