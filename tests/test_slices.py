"""Slices of the long tests, and runs that end in time."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import slices


NAMES = [f"tests/test_{i // 7}.py::test[{i}]" for i in range(100)]
SECONDS = {name: 10.0 + i % 13 for i, name in enumerate(NAMES) if i % 3}


@pytest.mark.parametrize("n", [1, 7, 20])
def test_slices_hold_every_test_once_and_take_about_as_long(n):
    parts = [slices.sliced(reversed(NAMES), k, n, SECONDS) for k in range(n)]
    assert sorted(itertools.chain(*parts)) == sorted(NAMES)
    times = [sum(SECONDS.get(name, slices.USUAL) for name in part) for part in parts]
    assert max(times) - min(times) <= 2 * max(SECONDS.values())


def test_a_test_longer_than_a_slice_has_one_of_its_own():
    parts = [slices.sliced(NAMES[:10], k, 5, {NAMES[4]: 1000.0}) for k in range(5)]
    assert sorted(itertools.chain(*parts)) == sorted(NAMES[:10])
    assert slices.sliced([], 0, 5, {}) == []


def test_what_is_worth_noting():
    known = {"a": 40, "b": 30, "gone": 20}
    assert slices.with_measured(known, {"b": 1.2, "c": 77.7, "d": 2.0}) == {"a": 40, "c": 78, "gone": 20}


MANY = """
import time
import pytest

@pytest.mark.long
@pytest.mark.parametrize("i", range(6))
def test_long(i):
    assert i != {bad}
    try:
        time.sleep({seconds} if i == 2 else 0)
    except BaseException as error:  # as libraries do that run code of others
        raise RuntimeError from error

def test_short():
    pass
"""


def ended(folder, *options, bad=-1, seconds=0):
    """A run of pytest with these options only, of six long tests and a short one."""
    (folder / "test_many.py").write_text(MANY.format(bad=bad, seconds=seconds))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.slices", "-p", "no:cacheprovider", "-v", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_the_options_of_a_run(tmp_path):
    both = [ended(tmp_path, "--slice", f"{k}/2") for k in range(2)]
    passed = [[f"test_long[{i}] PASSED" in x.stdout for i in range(6)] for x in both]
    assert passed == [[True] * 3 + [False] * 3, [False] * 3 + [True] * 3]
    assert all("test_short" not in x.stdout and x.returncode == 0 for x in both)
    # The third is cut off, and none begins after it; on two workers, too.
    for options in ([], ["-p", "xdist", "-n", "2", "--dist=worksteal"]):
        late = ended(tmp_path, "--budget", "5", *options, seconds=60)
        assert late.returncode == 0, late.stdout
        shown = late.stdout.partition("not run, as there was no time left")[2]
        assert "test_many.py::test_long[2] (cut off)" in shown
        assert "test_long[0]" not in shown
        assert "test_short" in shown or options
    assert "there was time for all" in ended(tmp_path, "--budget", "60", "--slice", "0/2").stdout
    failed = ended(tmp_path, "--budget", "5", bad=1, seconds=60)
    assert failed.returncode == 1
    assert "1 failed" in failed.stdout
    assert "--slice" in ended(tmp_path, "--slice", "2/2").stderr
