"""The benchmarks measure what they say; their times are nobody's business here."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import ukjax
from benchmarks import __main__ as main
from benchmarks import (
    _batch,
    _chain,
    _compile,
    _exact,
    _expand,
    _forces,
    _gpu,
    _gradients,
    _linkages,
    _measure,
    _profile,
    _pseudoinverse,
    _scara,
    _servo,
    _work,
)
from models import legged_chains
from models.scara import scenario

from .helpers import assert_close, command, long, standard_promotion


def test_measure_compiles_runs_and_returns_the_output():
    got = _measure.measure(lambda x: x + 1, jnp.ones(3), repeats=3)
    assert_close(got.output, jnp.full(3, 2.0))
    assert got.compile_s > 0
    assert got.run_s > 0


def test_the_straight_formula_is_the_same_acceleration():
    case = scenario("printed")
    ours = _scara._ukjax_acceleration(case.mechanism, case.q0, case.v0).acceleration
    assert_close(_scara._pinv_acceleration(case.mechanism, case.q0, case.v0), ours, atol=1e-11)


@pytest.mark.long
@pytest.mark.parametrize("linkage", [_linkages.chain(5), long(_linkages.overconstrained())], ids=lambda x: x.name)
def test_a_linkage_moves_in_angles_as_in_absolute_coordinates(linkage):
    q, v = _linkages.states(linkage, 4)
    move = lambda mechanism: jax.jit(lambda q, v: ukjax.equation_of_motion(mechanism, q, v))
    whole, in_angles = move(linkage.absolute), move(linkage.mechanism())
    for at, rate in zip(q, v, strict=True):
        want, got = whole(*linkage.place(at, rate)), in_angles(at, rate)
        assert_close(got.acceleration, want.acceleration[jnp.array(linkage.angles)], atol=1e-10)
    assert int(got.rank) == (3 if linkage.name == "parallelogram" else 2)


def test_a_peer_that_is_missing_is_asked_for():
    with pytest.raises(ModuleNotFoundError, match=r'pip install -e ".\[bench\]"'):
        _linkages.library("a_peer_of_nobody")


def test_a_table_is_written_as_json_with_a_picture(tmp_path, monkeypatch, capsys):
    curves = [_work.Curve(f"way {i}", [1e-3, 1e-6], [0.001, 0.002 * (i + 1)]) for i in range(8)]
    monkeypatch.setattr(_work, "curves", lambda report: curves)
    monkeypatch.setitem(main.TABLES, "peers", (lambda report: [("chain", "1 ns")], ("system", "time")))
    assert command(main.main, "peers", "--out", tmp_path / "new") == 0
    assert "| chain | 1 ns |" in capsys.readouterr().out
    whole = json.loads((tmp_path / "new" / "peers.json").read_text())
    assert (whole["header"], whole["rows"]) == (["system", "time"], [["chain", "1 ns"]])
    assert whole["curves"][2] == {"name": "way 2", "errors": [1e-3, 1e-6], "seconds": [0.001, 0.006]}
    assert plt.imread(tmp_path / "new" / "peers.png").std() > 0.01


def test_a_file_is_no_folder_for_a_table(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert command(main.main, "--out", tmp_path / "taken") == 2
    assert "--out must be a folder" in capsys.readouterr().err


@pytest.mark.long
def test_processes_of_a_batch_run_when_they_are_told():
    with _batch._Process("uneven", "batch", 1, 0, 50) as one, _batch._Process("uneven", "batch", 1, 1, 50) as other:
        for process in (one, other):
            process.compiled()
        assert (one.count, other.count) == (40, 40)
        assert one.most > 10 * other.most  # every other of the first share goes round twenty times as fast
        assert _batch._together([one, other]) > 0


@pytest.mark.parametrize(("case", "devices", "words"), [("?", 1, "KeyError: '?'"), ("uneven", 0, "JAX finds no GPU")])
def test_a_process_of_a_benchmark_that_ends_early_is_told(case, devices, words, monkeypatch, capfd):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(RuntimeError, match="ended early"):
        _batch._Process(case, "batch", devices, 0, 1).compiled()
    assert words in capfd.readouterr().err


@pytest.mark.long
def test_the_table_of_forces():
    rows = _forces.rows(lambda what: None, members=8, rounds=2)
    assert [row[0] for row in rows] == list(_forces.FORCES)
    assert all(len(row) == len(_forces.HEADER) for row in rows)


@pytest.mark.long
def test_the_table_of_servos():
    rows = _servo.rows(lambda what: None, size=64, rounds=2)
    assert len(rows) == 2 * len(_servo.PROJECTED) + 2 * len(_servo.DRIVEN)
    assert all(len(row) == len(_servo.HEADER) for row in rows)
    assert all(float(row[-1]) < 1e-9 for row in rows)


@pytest.mark.long
def test_the_table_of_pseudoinverses():
    rows = _pseudoinverse._at(2, 5, 3, lambda what: None)
    assert [row[2] for row in rows] == ["jnp.linalg.pinv", *(type(s).__name__ for s in _pseudoinverse.STRATEGIES)]
    assert all(len(row) == len(_pseudoinverse.HEADER) for row in rows)
    assert all(float(row[-1]) < 1e-12 for row in rows[1:])


@pytest.mark.long
def test_the_table_of_scalar_code():
    rows = _expand.rows(lambda what: None, size=500, rounds=2)
    assert len(rows) == 2 * len(_expand.SCENARIOS)
    assert all(len(row) == len(_expand.HEADER) for row in rows)
    assert all(float(row[-1]) < 1e-9 for row in rows)


@pytest.mark.long
def test_the_table_of_chains():
    rows = _chain.rows(lambda what: None, numbers=(9, 12), batch=4, rounds=1)
    assert all(len(row) == len(_chain.HEADER) for row in rows)
    assert [row[1] for row in rows] == 2 * ["9", "12", "slope"]
    assert all(float(x) < 1e-11 for row in rows if row[1] != "slope" for x in row[-2:])


@pytest.mark.long
def test_the_profile_names_most_of_the_time():
    rows = _profile.rows(lambda what: None, size=300, motion=0.05)
    assert all(len(row) == len(_profile.HEADER) for row in rows)
    assert sum(bool(row[0]) for row in rows) == 5
    batch = next(i for i, row in enumerate(rows) if row[0] == "a batch of 300")
    assert sum(int(row[2].rstrip("%")) for row in rows[batch : batch + _profile.MOST]) > 70


@pytest.mark.long
def test_the_table_for_a_gpu_runs_anywhere():
    rows = _gpu.rows(lambda what: None, sizes=(3,), motion=0.01)
    checks, timed = rows[:6], rows[6:]
    assert all(len(row) == len(_gpu.HEADER) for row in rows)
    assert {row[3] for row in checks} == {"the same bits"}  # of this CPU
    assert [row[1:3] for row in timed] == [("float64", "3")] * 6 + [("float32", "3")] * 6
    assert all(float(row[4].replace(",", "")) > 0 for row in timed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "no such"}, "--only must be a part of a scenario's name.*'no such'"),
        ({"only": "scara", "against": Path("nowhere")}, "--against must be a checkout of ukjax.*nowhere"),
    ],
)
def test_what_cannot_be_compiled_is_named(options, message):
    with pytest.raises(SystemExit, match=message):
        _compile.rows(lambda what: None, **options)


def test_rows_of_compile_times():
    assert _compile._row("new", [1.0, math.nan]) == ("new", "1.0 s", "-", "")
    assert _compile._row("old", [3.0, 2.0]) == ("old", "3.0 s", "2.0 s", "1.50")


@pytest.mark.long
def test_the_table_of_compile_times():
    (one, total) = _compile.rows(lambda what: None, only="projectile:scenario")
    assert one[0] == "projectile:scenario"
    assert one[1:] == total[1:]
    assert float(one[1].split()[0]) > 0.1


@pytest.mark.long
@pytest.mark.parametrize("name", ["knee_leg", "five_bar", "kangaroo_ankle"])
def test_derivatives_are_those_of_forty_digits(name):
    """Of robots with loops, whose rows may be redundant, and whose knee may be straight."""
    chain = getattr(legged_chains, name)()
    one = _gradients.Audited(chain, _gradients.STRAIGHT if name == "knee_leg" else {})
    if name == "knee_leg":
        assert float(one.robot.coordinate(one.q, "shin_joint")) == 0.0
    ways = one.directions()
    ours = _gradients.forward(one, ways), _gradients.reverse(one, ways)
    for kind, change in ways.items():
        want = _exact.derivative(chain, np.asarray(one.q), np.asarray(one.v), one.exactly(change))
        size = np.max(np.abs(want))
        assert size > 1e-3
        assert_close(ours[0].slopes[kind], want, atol=1e-12 * size)
        assert_close(ours[1].slopes[kind], np.asarray(one.weights @ want), atol=1e-11 * size)


@pytest.mark.long
def test_the_table_of_gradients():
    with standard_promotion(), jax.numpy_rank_promotion("allow"):  # for MJX
        rows = _gradients.rows(lambda what: None, ((legged_chains.five_bar, {}),))
    assert all(len(row) == len(_gradients.HEADER) for row in rows)
    off = {row[1]: dict(zip(_gradients.HEADER[2:-1], row[2:-1], strict=True)) for row in rows}
    for mode in ("forward", "reverse"):
        assert all(float(x) < 1e-12 for x in off[f"ukjax, {mode} mode"].values())
    # The same robot in Pinocchio, by its accelerations.
    assert float(off["Pinocchio"]["acceleration"]) < 1e-12
    assert float(off["Pinocchio, differences"]["its derivative by state"]) < 1e-6
    assert float(off["MuJoCo, differences"]["acceleration"]) < 1e-2
    assert off["MuJoCo, differences"]["its derivative by masses"] == _gradients.NONE
    assert float(off["MJX, forward mode"]["its derivative by places"]) < 0.1
