"""The experiments on Zhao et al. (2018) run, print what theory says, and draw."""

import re

import numpy as np
import pytest

import experiments.zhao2018_examples
import experiments.zhao2018_spiral
import experiments.zhao2018_swarm

from .test_experiments import drawn, run


def table(shown):
    """Row name -> what we measure."""
    cells = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    return [(cell[1].strip(), cell[3].strip()) for cell in cells]


def row(shown, name):
    return next(measured for title, measured in table(shown) if name in title)


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", text)]


@pytest.mark.long
def test_spiral(capsys, tmp_path):
    shown = run(experiments.zhao2018_spiral, capsys, tmp_path)
    assert row(shown, "r at 0, 20 and 40 s") == "20.086, 2.718, 0.368"
    assert max(numbers(row(shown, "theta - (30 - t)"))) < 1e-8
    assert max(numbers(row(shown, "r - exp"))) < 1e-8
    assert max(numbers(row(shown, "epsilon 1, 2"))) < 1e-8
    assert 1e-6 < numbers(row(shown, "ode45"))[0] < 1e-2
    assert max(numbers(row(shown, "both against the closed form"))) < 1e-7
    # (-2e-3 + 20 * 1e-4, 1e-3 + 20 * 2e-4): the radius is back, the angle is 5e-3 off.
    assert numbers(row(shown, "not stabilised")) == [2.2e-3, 5e-3]
    assert numbers(row(shown, "alpha = beta = 2"))[1] < 1e-8
    assert numbers(row(shown, "energy gained"))[0] > 1000
    assert row(shown, "its speed is infinite") == "0.456"
    names = drawn(tmp_path)
    assert [int(name[6:8]) for name in names if name.startswith("figure")] == [2, 3, 4, 5]
    assert {"bead", "forces"} < set(names)


@pytest.mark.long
def test_swarm(capsys, tmp_path):
    shown = run(experiments.zhao2018_swarm, capsys, tmp_path)
    first, last = numbers(row(shown, "as printed"))[:2]
    assert first == last > 40
    below, theory = numbers(row(shown, "below 0.01"))
    assert below == pytest.approx(theory, abs=0.02)
    low, high = numbers(row(shown, "circumradius"))[:2]
    assert low == high == round(0.1 / np.tan(np.pi / 10), 8)
    for N in (3, 5, 10, 20):
        smallest = numbers(row(shown, f"smallest distance, {N} robots"))[0]
        assert smallest > 1 / N
    met, theory = numbers(row(shown, "driven at each other"))
    assert met == pytest.approx(np.log(7) / 2, abs=1e-6) == pytest.approx(theory, abs=1e-6)
    assert drawn(tmp_path) == ["any_number", "figure06_start", "figure07_paths", "figure08_error"]


@pytest.mark.long
def test_examples(capsys, tmp_path):
    shown = run(experiments.zhao2018_examples, capsys, tmp_path)
    for name, good in (("free, 1 s", 3), ("on the wire", 2)):
        off = [numbers(part)[-1] for part in row(shown, name).split(";")]
        assert max(off[:good]) < 1e-9
    assert off[2] > 1.0
    kinds = [measured for title, measured in table(shown) if title.endswith("kind")]
    assert kinds == ["scleronomic", "rheonomic", "nonholonomic"]
    assert [measured for title, measured in table(shown) if "eq. 11" in title] == ["0", "0", "2"]
    varies = [numbers(measured)[0] for title, measured in table(shown) if title.endswith("varies by")]
    assert len(varies) == 8
    assert max(varies) < 1e-9
    assert row(shown, "A and b of examples 2 and 3") == "0"
    names = ["example1_paths", "example1_wire", "examples2_to_4_invariants", "examples2_to_4_paths"]
    assert drawn(tmp_path) == names
