"""Slices of the long tests, and runs that end in time."""

import argparse
import itertools
import os
import subprocess
import sys
import time
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


def test_what_takes_too_long_is_cut_off_whatever_it_makes_of_that():
    """Also on a worker, as here; a failure before it is a failure."""

    def without_end():
        try:
            time.sleep(60.0)
        except BaseException as error:  # as libraries do that run code of others
            raise RuntimeError from error

    with pytest.raises(pytest.skip.Exception, match="no time left, cut off"), slices.cut_off(0.1):
        without_end()
    with pytest.raises(RuntimeError, match="wrong"), slices.cut_off(60.0):
        raise RuntimeError("wrong")
    with slices.cut_off(0.05):
        pass
    time.sleep(0.1)


MANY = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("i", range(6))
def test_long(i):
    pass

def test_short():
    pass
"""


def test_the_options_of_a_run(tmp_path):
    """With these options only, of six long tests and a short one."""
    (tmp_path / "test_many.py").write_text(MANY)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "tests.slices", "-p", "no:cacheprovider", "-v", *options]
        others = {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **others})

    whole = run("--slice", "1/2", "--budget", "600")
    assert [f"test_long[{i}] PASSED" in whole.stdout for i in range(6)] == [False] * 3 + [True] * 3
    assert "test_short" not in whole.stdout
    assert "there was time for all tests" in whole.stdout
    late = run("--slice", "0/2", "--budget", "0", "-p", "xdist", "-n", "2", "--dist=worksteal")
    assert whole.returncode == late.returncode == 0, late.stdout
    left = late.stdout.partition("not run, as there was no time left")[2].splitlines()
    assert {line for line in left if "::" in line} == {f"test_many.py::test_long[{i}]" for i in range(3)}


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "a/b"])
def test_what_is_no_slice(text):
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        slices.slice_of(text)
