"""Compiled programs are kept from one call of the command to the next."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import xarray as xr

from ..inside import CACHE_VARIABLE, are_kept, keep_programs, replaced
from .test_cli import OWN


ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_what_was_compiled_once_is_not_compiled_again(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    without = {name: value for name, value in os.environ.items() if name != CACHE_VARIABLE}
    environment = {**without, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    kept, runs = [], []
    for out in ("first", "again"):
        command = [sys.executable, "-m", "ukjax.cli", "simulate", "own.py:scenario", "--points", "11", "--out", out]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "rror" not in ended.stderr
        (folder,) = (path for path in tmp_path.rglob("programs/*") if path.is_dir())
        kept.append({path.name for path in folder.glob("*-cache")})
        runs.append(xr.load_dataset(tmp_path / out / "trajectory.nc", engine="scipy"))
    assert any("_simulate" in name or "lambda" in name for name in kept[0]), kept[0]
    assert kept[0] == kept[1]
    assert runs[0].equals(runs[1])


@pytest.fixture
def caching(monkeypatch, tmp_path):
    """The command keeps programs in a folder of its own."""
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    with replaced(cache_folder=lambda name: tmp_path / name):
        yield monkeypatch


@pytest.mark.parametrize("word", ["0", "off", "No", "FALSE"])
def test_one_variable_switches_it_off(caching, tmp_path, word):
    caching.setenv(CACHE_VARIABLE, word)
    keep_programs()
    assert not are_kept()
    assert list(tmp_path.iterdir()) == []


def test_it_is_bounded_and_leaves_a_persons_own_alone(caching, tmp_path):
    keep_programs()
    assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path / "ukjax"))
    assert 0 < jax.config.jax_compilation_cache_max_size <= 10**9
    jax.config.update("jax_compilation_cache_dir", "mine")
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == "mine"


def test_where_nothing_can_be_written_it_goes_without(caching, tmp_path):
    (tmp_path / "ukjax").write_text("a file")
    keep_programs()
    assert not are_kept()
