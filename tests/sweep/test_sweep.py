"""Studies on disk: what is in them, and what becomes of them when something goes wrong."""

import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.stats import qmc

import ukjax
from ukjax import plot

from ..helpers import assert_close, long
from ..inside import design_of, opened, parse
from . import study


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing disturbed."""
    folder = tmp_path_factory.mktemp("study") / "whole"
    study.run(folder)
    return folder


def copied(whole, folder):
    folder.mkdir()
    for path in sorted(whole.rglob("*")):
        to = folder / path.relative_to(whole)
        to.mkdir(parents=True, exist_ok=True) if path.is_dir() else to.write_bytes(path.read_bytes())
    return folder


def test_what_is_in_a_study(whole):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = xr.open_zarr(whole / "data.zarr", chunks=None)
    assert data.q.dims == ("sample", "time", "coordinate")
    assert data.q.attrs["units"] == "m"
    assert list(data.coordinate.values) == ["x [m]", "y [m]"]
    assert_close(np.asarray(data.time), study.TS)
    assert_close(np.asarray(data.q)[..., 0], study.exact(data), atol=1e-7)
    assert np.all(np.asarray(data.result) == 0)
    assert np.all(np.asarray(data.drift_of_energy) < 1e-6)
    assert data.drift_of_energy.attrs == {"long_name": "drift of energy", "units": "J"}
    assert data.attrs["ukjax"] == ukjax.__version__
    points = qmc.LatinHypercube(2, seed=1).random(12)
    assert_close(np.asarray(data.stiffness), 1.0 + 8.0 * points[:, 0])
    status = ukjax.study.sweep_status(whole, thoroughly=True)
    assert (status.samples, status.done, status.failed, status.chunks, status.chunks_done) == (12, 12, 0, 3, 3)
    assert status.about["versions"]["ukjax"] == ukjax.__version__


OBSERVED = {
    "place a, b [m]": lambda q, v, t: q,
    "pace [m/s]": lambda q, v, t: jnp.abs(v[0]),
    "stiffness [N/m]": lambda q, v, t: q[0] * t,  # called like a parameter
    "drift of energy [J]": lambda q, v, t: q[0],  # like a result
}


def observed(stiffness=4.0, plain=False):
    one = study.scenario(float(stiffness) if plain else stiffness)
    return ukjax.Scenario(one.mechanism, one.q0, one.v0, 2.0, observables=OBSERVED, invariants=one.invariants)


@pytest.mark.parametrize("plain", [False, True])
def test_observables_are_stored_over_time(tmp_path, plain):
    """Whether the factory is traced or not."""
    vary, fixed = {"stiffness": (1.0, 9.0, 3)}, {"plain": plain}
    data = ukjax.sweep(observed, vary, tmp_path, settings=fixed, ts=study.TS, chunk=2, progress=False)
    assert data.place.dims == ("sample", "time", "place_component")
    assert data.place_component.values.tolist() == ["a", "b"]
    assert data.place.attrs == {"long_name": "place a, b", "units": "m"}
    assert_close(np.asarray(data.place), np.asarray(data.q), atol=0.0)
    assert_close(np.asarray(data.pace), np.abs(np.asarray(data.v)[..., 0]), atol=0.0)
    assert_close(np.asarray(data.stiffness), np.array([1.0, 5.0, 9.0]))
    assert_close(np.asarray(data.stiffness_observed), np.asarray(data.q)[..., 0] * study.TS, atol=1e-15)
    assert_close(np.asarray(data.drift_of_energy_observed), np.asarray(data.q)[..., 0], atol=0.0)
    assert np.all(np.asarray(data.drift_of_energy) < 1e-6)
    ukjax.study.sweep_export(tmp_path, tmp_path / "arrays", progress=False)
    with np.load(tmp_path / "arrays" / "train-000000.npz") as arrays:
        assert arrays["place"].shape == (2, 5, 2)


@pytest.mark.long
def test_chunks_that_are_not_whole_are_done_again(whole, tmp_path):
    """Missing, shorter, with other bytes, and of a record that was half written; the others are left alone."""
    folder = copied(whole, tmp_path / "study")
    want = study.results(whole)
    data, done = folder / "data.zarr", folder / "done"
    first = data / "q" / "0.0.0"
    first.write_bytes(first.read_bytes()[:-5])
    broken = bytearray((data / "v" / "1.0.0").read_bytes())
    broken[len(broken) // 2] ^= 1
    (data / "v" / "1.0.0").write_bytes(broken)
    (done / "000002.json").write_text('{"files": {"q')
    assert ukjax.study.sweep_status(folder, thoroughly=True).chunks_done == 0
    assert opened(folder).damaged() == [0, 1, 2]
    study.run(folder)
    assert opened(folder).damaged() == []
    assert study.results(folder) == want
    (data / "result" / "1").unlink()
    (data / "result" / "1.0123.partial").write_bytes(b"half")
    before = first.stat().st_mtime_ns
    study.run(folder)
    assert study.results(folder) == want
    assert first.stat().st_mtime_ns == before


@pytest.mark.long
def test_a_study_that_was_never_begun_is_begun_anew(whole, tmp_path):
    """The store is there, but not yet what it is of."""
    folder = copied(whole, tmp_path / "study")
    (folder / "sweep.json").unlink()
    study.run(folder)
    assert study.results(folder) == study.results(whole)


def test_what_fails_is_stored(tmp_path):
    with pytest.warns(ukjax.FailedTrajectories, match="12 of 12 trajectories failed"):
        data = study.run(tmp_path / "short", max_steps=3, chunk=12)
    assert np.all(np.asarray(data.result) == 1)
    assert data.result.attrs["flag_meanings"].split()[1] == "max_steps_reached"
    assert ukjax.study.sweep_status(tmp_path / "short").failed == 12
    with pytest.raises(ValueError, match="no trajectory that succeeded"):
        plot.quantiles(data)


def test_archives_to_learn_from(whole, tmp_path):
    """All that succeeded, once each, with names and units; some apart; or nothing and a reason."""
    index = ukjax.study.sweep_export(whole, tmp_path / "arrays", holdout=0.3, seed=3, dtype="float32")
    assert json.loads((tmp_path / "arrays" / "index.json").read_text()) == index
    assert index["arrays"]["q"] == {
        "dims": ["sample", "time", "coordinate"], "shape": [5, 2], "long_name": "coordinate", "units": "m"
    }  # fmt: skip
    assert index["labels"]["time"] == study.TS.tolist()
    assert index["failed"] == 0
    assert sum(index["counts"].values()) == 12
    found = []
    for part, names in index["shards"].items():
        arrays = [np.load(tmp_path / "arrays" / name) for name in names]
        assert sum(len(x["q"]) for x in arrays) == index["counts"][part] > 0
        assert {x["q"].dtype for x in arrays} == {np.dtype("float32")}
        found += [y for x in arrays for y in zip(x["stiffness"], x["q"], strict=True)]
    data = xr.open_zarr(whole / "data.zarr", chunks=None).sortby("stiffness")
    found.sort(key=lambda x: x[0])
    assert_close(np.stack([k for k, _ in found]), data.stiffness.values.astype("float32"))
    assert_close(np.stack([q for _, q in found]), data.q.values.astype("float32"))
    for given, words in (
        ({"out": tmp_path / "arrays"}, "a new or an empty folder"),
        ({"study": tmp_path}, "There is no study"),
        ({"holdout": 1.0}, "holdout must be a share"),
        ({"dtype": int}, "dtype must be a floating type"),
    ):
        with pytest.raises(ValueError, match=words):
            ukjax.study.sweep_export(**{"study": whole, "out": tmp_path / "new", **given})
    folder = copied(whole, tmp_path / "study")
    (folder / "done" / "000001.json").unlink()
    with pytest.raises(ValueError, match="has 2 of 3 chunks"):
        ukjax.study.sweep_export(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".unfinished*"))


def untraceable(stiffness=4.0, amplitude=1.0):
    """With a number that numpy wants to know, as a drawing may."""
    case = study.scenario(stiffness, amplitude)
    np.asarray(jnp.linspace(0.0, 1.0, 3))
    return case


@pytest.mark.long
@pytest.mark.parametrize("factory", [study.scenario, long(untraceable)])
def test_what_is_compiled_for_a_chunk_serves_them_all(tmp_path, factory):
    """How often a function is traced does not depend on the number of chunks."""
    counts = []
    for chunk in (12, 3):
        traced = []
        last = lambda trajectory, traced=traced: traced.append(1) or trajectory.q[-1, 0]
        vary = {"amplitude": (1.0, 9.0, 12)}
        ukjax.sweep(
            factory, vary, tmp_path / str(chunk), ts=study.TS, chunk=chunk, figures={"last": last}, progress=False
        )  # fmt: skip
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


def test_another_study_is_not_mixed_in(whole, tmp_path):
    with pytest.raises(ValueError, match="holds another study: its seed is 1, not 2"):
        study.run(whole, seed=2)
    with pytest.raises(ValueError, match="holds another study: its chunk is 4, not 6"):
        study.run(whole, chunk=6)
    folder = copied(whole, tmp_path / "old")
    with pytest.raises(ValueError, match="holds another study: its design is 'lhs', not 'random'"):
        study.run(folder, samples=13, chunk=5, design="random")
    about = json.loads((folder / "sweep.json").read_text())
    about["versions"]["jax"] = "0.1"
    (folder / "sweep.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="its versions is .*0.1"):
        study.run(folder)
    for text in ("{}", '{"file": "a study of ukjax.sweep"}'):
        (folder / "sweep.json").write_text(text)
        with pytest.raises(ValueError, match="is not a file that ukjax.sweep wrote"):
            study.run(folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("...")
    (mine / "data.zarr").mkdir()
    with pytest.raises(ValueError, match="holds something else"):
        study.run(mine)
    with pytest.raises(ValueError, match="There is no study in"):
        ukjax.study.sweep_status(mine)


def test_a_second_writer_is_refused(whole):

    with opened(whole).locked(), pytest.raises(BlockingIOError, match="Another process is writing"):
        study.run(whole)


GRID = {"stiffness": (1.0, 9.0, 3), "amplitude": [1.0, 2.0]}
WRONG = {
    "design": ({"design": "best"}, "design must be one of grid, random, lhs, sobol"),
    "nothing": ({"vary": {}}, "vary must name at least one"),
    "no such name": ({"vary": {"mass": (1.0, 2.0, 3)}}, "cannot be made with mass = 1: .*mass"),
    "backwards": ({"vary": {"stiffness": (2.0, 1.0, 3)}}, "must go from low to high, but goes from 2 to 1"),
    "how many": ({"vary": {"stiffness": (1.0, 2.0)}}, "low, high, how many"),
    "no number of": ({"vary": {"stiffness": (1.0, 2.0, 0)}}, "must be a positive integer"),
    "nan": ({"vary": {"stiffness": (float("nan"), 2.0, 3)}}, "must be finite"),
    "values": ({"vary": {"stiffness": [1.0, float("inf")]}}, "must be finite"),
    "no values": ({"vary": {"stiffness": []}}, "or a list of values"),
    "logarithm": ({"vary": {"stiffness": (0.0, 2.0, 3, "log")}}, "must be positive with 'log'"),
    "samples of a grid": ({"samples": 4}, "samples has no effect with a grid"),
    "samples": ({"vary": {"stiffness": (1.0, 2.0)}, "design": "random"}, "samples must be given"),
    "no samples": ({"vary": {"stiffness": (1.0, 2.0)}, "design": "random", "samples": 0}, "samples must be a pos"),
    "sobol": ({"vary": {"stiffness": (1.0, 2.0)}, "design": "sobol", "samples": 12}, "a power of two .* such as 16"),
    "seed": ({"seed": -1}, "seed must be an integer"),
    "twice": ({"settings": {"stiffness": 2.0}}, "'stiffness' is in vary and in settings"),
    "a field": ({"keep": "speed"}, "keep must name fields"),
    "no fields": ({"keep": "all of them"}, "keep must name fields of .* but has 'all of them'"),
    "too many": ({"vary": {"stiffness": (1.0, 2.0, 10**6), "amplitude": (1.0, 2.0, 10**6)}}, "at most 1,000,000,000 p"),
    "too many samples": (
        {"vary": {"stiffness": (1.0, 2.0)}, "design": "sobol", "samples": 2**63},
        "samples must ask for at most",
    ),
    "what is taken": ({"reduce": len}, "reduce is set by a study"),
    "a figure like a field": (
        {"figures": {"Q": len, "q [m]": len}},
        r"figures\['q \[m\]'\] must have a name of its own",
    ),
    "a figure like a parameter": ({"figures": {"stiffness": len}}, "the results have 'stiffness' already"),
    "figures alike": ({"figures": {"end [m]": len, "end": len}}, r"figures\['end'\] must have a name of its own"),
    "a figure that is there": ({"figures": {"drift of energy": len}}, "the results have 'drift_of_energy' already"),
    "a figure without a name": ({"figures": {"": len}}, r"figures\[''\] must have a name"),
    "no number": (
        {"figures": {"end": lambda trajectory: trajectory.q[-1]}},
        r"figures\['end'\] must return an array of",
    ),
    "times": ({"ts": [1.0, 0.0]}, "ts must increase"),
    "chunk": ({"chunk": 0}, "chunk must be a positive integer"),
    "an option": ({"rtol": -1.0}, "rtol and atol must not be negative"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_and_nothing_is_left(name, tmp_path):
    given, words = WRONG[name]
    given = {"vary": GRID, "ts": study.TS, "progress": False, **given}
    with pytest.raises(ValueError, match=words):
        ukjax.sweep(study.scenario, given.pop("vary"), tmp_path / "study", **given)
    assert not (tmp_path / "study").exists()


@pytest.mark.long
def test_what_tells_one_study_from_another(tmp_path):
    """Times in between; figures, and functions without a name of their own, by what they do; arrays as a whole."""
    vary, table = {"stiffness": (1.0, 9.0, 2)}, np.full(5000, 1e-4)
    scenario = lambda stiffness, table, bonus: study.scenario(stiffness + bonus(table))
    end = lambda factor: lambda trajectory: factor * trajectory.q[-1, 0]

    def run(factory=scenario, ts=study.TS, figures=end(1.0), table=table, bonus=np.sum, vary=vary):
        settings = {"table": table, "bonus": bonus}
        return ukjax.sweep(factory, vary, tmp_path, settings=settings, ts=ts, figures={"end": figures}, progress=False)

    first = run()
    again = run(figures=end(1.0), table=table.copy(), vary={"stiffness": (1, np.float64(9), np.int64(2))})
    assert_close(np.asarray(again.end), np.asarray(first.end))
    other = table.copy()
    other[2500] = 1.0
    for given, words in [
        ({"ts": [0.0, 0.1, 0.2, 0.3, 2.0]}, "its times is"),
        ({"figures": end(2.0)}, "its figures differ in 'end'"),
        ({"table": other}, "its settings is"),
        ({"bonus": np.max}, "its settings is"),
        ({"factory": lambda stiffness, table, bonus: study.scenario(2 * stiffness)}, "what its factory makes was chan"),
    ]:
        with pytest.raises(ValueError, match=words):
            run(**given)


def test_what_a_person_has_in_the_folder_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ZeroDivisionError):
        study.run(tmp_path, figures={"end": lambda trajectory: 1 / 0})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", [".zmetadata", "time/0", "q/.zarray"])
def test_what_the_chunks_share_is_damaged(name, whole, tmp_path):
    folder = copied(whole, tmp_path / "study")
    path = folder / "data.zarr" / name
    path.write_bytes(path.read_bytes()[:-1])
    for use in (study.run, ukjax.study.sweep_status, lambda folder: ukjax.study.sweep_export(folder, tmp_path / "out")):
        with pytest.raises(ValueError, match=f"{name} is missing, or not as it was written. Remove .*study and begin"):
            use(folder)


def test_a_parameter_that_is_called_like_a_result(tmp_path):
    factory = lambda v=1.0, unit=1.0, drift_of_energy=1.0: study.scenario(v * unit * drift_of_energy)
    for name, words in (("v", ", or leave it out of keep"), ("unit", ""), ("drift_of_energy", "")):
        with pytest.raises(ValueError, match=f"vary must not name '{name}', .* by another name{words}"):
            ukjax.sweep(factory, {name: (1.0, 2.0, 2)}, tmp_path / "study", progress=False)
    assert not (tmp_path / "study").exists()
    data = ukjax.sweep(factory, {"v": [4.0]}, tmp_path / "study", ts=study.TS, keep="q", progress=False)
    assert data.v.dims == ("sample",)


def test_a_folder_that_cannot_be_made(whole, tmp_path):
    (tmp_path / "file").write_text("")
    for write in (study.run, lambda out: ukjax.study.sweep_export(whole, out)):
        with pytest.raises(
            OSError, match=r"out=.*file/below cannot be written to: (Not a directory|File exists)\. Pass"
        ):
            write(tmp_path / "file" / "below")


def test_what_is_no_factory_or_client(tmp_path):
    with pytest.raises(TypeError, match=r"factory must be a function"):
        ukjax.sweep(study.scenario(), GRID, tmp_path)
    with pytest.raises(TypeError, match="must be an instance of Scenario"):
        ukjax.sweep(lambda stiffness, amplitude: stiffness, GRID, tmp_path)
    with pytest.raises(TypeError, match=r"client must be a dask.distributed.Client"):
        ukjax.sweep(study.scenario, GRID, tmp_path / "study", client="tcp://localhost:8786")
    assert not (tmp_path / "study").exists()
    with pytest.raises(TypeError, match=r"figures\['height'\] must be a function"):
        ukjax.sweep(study.scenario, GRID, tmp_path, figures={"height": 3})


def test_designs():
    grid = design_of({"a": (1.0, 100.0, 3, "log"), "b": [5.0, 7.0]}, "grid", None, 0)
    assert grid.shape == (3, 2)
    assert_close(grid.values["a"], np.array([1.0, 1.0, 10.0, 10.0, 100.0, 100.0]), atol=1e-12)
    assert_close(grid.values["b"], np.array([5.0, 7.0] * 3))
    for kind in ("random", "lhs", "sobol"):
        one, again, other = (design_of({"a": (2.0, 3.0)}, kind, 16, seed) for seed in (3, 3, 4))
        assert_close(one.values["a"], again.values["a"])
        assert np.any(one.values["a"] != other.values["a"])
        assert np.all((one.values["a"] >= 2.0) & (one.values["a"] < 3.0))
    strata = np.sort(np.floor(16 * (design_of({"a": (2.0, 3.0)}, "lhs", 16, 0).values["a"] - 2.0)))
    assert_close(strata, np.arange(16.0))
    assert parse(["a=1:2:3", "b=1:9:log", "c=1,2.5", "d=0.1:10:5:log"]) == {
        "a": (1.0, 2.0, 3), "b": (1.0, 9.0, "log"), "c": [1.0, 2.5], "d": (0.1, 10.0, 5, "log"),
    }  # fmt: skip
    one = design_of({"c [N s/m]": (1.0, 10.0, 2, "log"), "n": [1.0]}, "grid", None, 0)
    assert list(one.values) == list(one.text) == ["c", "n"]
    assert one.about == {
        "c": {"long_name": "c", "units": "N s/m", "scale": "log"}, "n": {"long_name": "n", "scale": "linear"},
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"vary must name each parameter once, but names c, c \[m\]"):
        design_of({"c": [1.0], "c [m]": [2.0]}, "grid", None, 0)
    for text in ("a", "a=", "=1:2:3", "a=x", "a=1:2:x"):
        with pytest.raises(ValueError, match="--vary takes"):
            parse([text])


class Spring(ukjax.AbstractSystem):
    stiffness: jnp.ndarray

    def mass(self, q, t):
        return jnp.eye(1)

    def force(self, q, v, t):
        return -self.stiffness * q


def numeric(stiffness=4.0, name="numbers", where=1.0):
    """Decides by a value, which cannot be traced."""
    if stiffness < 0:
        raise ValueError("stiffness must be positive")
    return ukjax.Scenario(ukjax.Mechanism(Spring(jnp.asarray(stiffness)), []), [where], [0.0], 1.0, name=name)


def drawn(stiffness=4.0):
    """Makes an array of NumPy's of a constant of JAX's, as drawings do."""
    np.asarray(jnp.linspace(0.0, 1.0, 3))
    return ukjax.Scenario(ukjax.Mechanism(Spring(jnp.asarray(stiffness)), []), [1.0], [0.0], 1.0)


@pytest.mark.long
def test_a_chunk_of_one_sample_of_a_factory_that_wants_numbers(tmp_path):
    """Which differs from no other in its chunk; and a study of one sample."""
    for name, values, chunk in (("last", [1.0, 4.0, 9.0], 2), ("alone", [4.0], None)):
        vary = {"stiffness": values}
        data = ukjax.sweep(numeric, vary, tmp_path / name, ts=study.TS, chunk=chunk, keep="all", progress=False)
        want = np.cos(np.sqrt(np.array(values))[:, None] * study.TS)
        assert_close(np.asarray(data.q)[..., 0], want, atol=1e-7)


def test_a_factory_that_raises(tmp_path):
    def factory(stiffness):
        return numeric(1.0 / (float(stiffness) - 2.0) ** 2)

    with pytest.raises(
        ValueError, match=r"cannot be made with stiffness = 2: ZeroDivisionError: float division by zero"
    ):
        ukjax.sweep(factory, {"stiffness": (1.0, 3.0, 3)}, tmp_path / "study", progress=False)
    assert not (tmp_path / "study").exists()


@pytest.mark.long
@pytest.mark.parametrize("factory", [numeric, drawn])
def test_factories_that_cannot_be_traced(factory, tmp_path):
    data = ukjax.sweep(factory, {"stiffness": (1.0, 9.0, 5)}, tmp_path, ts=study.TS, progress=False)
    want = np.cos(np.sqrt(np.asarray(data.stiffness))[:, None] * study.TS)
    assert_close(np.asarray(data.q)[..., 0], want, atol=1e-7)


def test_a_factory_whose_functions_branch_on_a_value(tmp_path):
    """Each sample has a program of its own."""

    def factory(stiffness):
        case = study.scenario(stiffness)

        def force(q, v, t):
            return jnp.zeros(2) if stiffness < 2.0 else -stiffness * q

        system = ukjax.System(mass=case.mechanism.system.mass, force=force)
        energy = lambda q, v, t: (v @ v + (0.0 if stiffness < 2.0 else stiffness * q @ q)) / 2
        mechanism = ukjax.Mechanism(system, case.mechanism.constraints)
        return ukjax.Scenario(mechanism, case.q0, case.v0, 2.0, invariants={"energy [J]": energy})

    data = ukjax.sweep(factory, {"stiffness": [1.0, 4.0]}, tmp_path, ts=study.TS, chunk=1, progress=False)
    assert_close(np.asarray(data.q)[..., 0], np.stack([np.ones(5), np.cos(2.0 * study.TS)]), atol=1e-7)
    assert np.all(np.asarray(data.drift_of_energy) < 1e-6)
    assert np.all(np.asarray(data.result) == 0)


def test_samples_that_have_no_room_in_one_table(tmp_path):
    longer = lambda t1: ukjax.Scenario(study.scenario().mechanism, jnp.ones(2), jnp.zeros(2), t1)
    with pytest.raises(ValueError, match="The times of the scenarios differ when t1 vary. Pass ts"):
        ukjax.sweep(longer, {"t1": [1.0, 2.0]}, tmp_path / "study", progress=False)

    def more(n):
        system = ukjax.System(mass=lambda q, t: jnp.eye(int(n)), force=lambda q, v, t: -q)
        return ukjax.Scenario(ukjax.Mechanism(system), jnp.ones(int(n)), jnp.zeros(int(n)), 1.0)

    with pytest.raises(ValueError, match="The results have another shape for every sample when n vary"):
        ukjax.sweep(more, {"n": [1.0, 2.0]}, tmp_path / "study", progress=False)
    assert not (tmp_path / "study").exists()


def test_pictures(whole, tmp_path):
    data = xr.open_zarr(whole / "data.zarr", chunks=None)
    figure = plot.quantiles(data)
    assert [axis.get_ylabel() for axis in figure.axes] == ["x [m]", "y [m]"]
    panels = plot.over_parameters(data, "drift_of_energy")
    assert [axis.get_xlabel() for axis in panels.axes] == ["stiffness", "amplitude"]
    assert panels.axes[0].get_ylabel() == "drift of energy [nJ]"
    for wrong in (lambda: plot.quantiles(data, "drift_of_energy"), lambda: plot.over_parameters(data, "q")):
        with pytest.raises(ValueError, match="must be one of"):
            wrong()
    grid = data.isel(sample=slice(4)).assign_coords(
        stiffness=("sample", [1.0, 1.0, 2.0, 2.0]), amplitude=("sample", [1.0, 2.0, 1.0, 2.0])
    )
    grid["result"] = ("sample", [0.0, 3.0, np.nan, 0.0])
    picture = plot.over_parameters(grid, "drift_of_energy", "a map")
    assert [t.get_text() for t in picture.axes[0].get_legend().get_texts()] == ["failed: 1", "not done: 1"]
    picture.savefig(tmp_path / "map.png")
