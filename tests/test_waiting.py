"""Calls that take long say so, where somebody is looking."""

import io
import time

import jax.numpy as jnp
import pytest
from rich.console import Console

import ukjax

from .helpers import falling
from .inside import replaced, reported, working


class Terminal(io.StringIO):
    def isatty(self):
        return True


def looked_at(monkeypatch):
    """Makes stderr a terminal: within the test, for between its phases pytest changes stderr itself."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.delenv("UKJAX_PROGRESS", raising=False)
    return screen


def test_a_long_call_is_reported_until_it_ends(monkeypatch):
    screen = looked_at(monkeypatch)
    with replaced(report_after=0.1), reported("assemble"), reported("what is within"):
        time.sleep(1.2)
    time.sleep(0.6)
    lines = screen.getvalue().split("\r")
    assert "ukjax: assemble, 1 s; the first call compiles" in [line.rstrip() for line in lines]
    assert "what is within" not in screen.getvalue()
    assert lines[-1] == ""
    assert lines[-2].strip() == ""  # the line is gone


def test_a_short_call_is_not(monkeypatch):
    screen = looked_at(monkeypatch)
    for _ in range(3):
        with reported("assemble"):
            time.sleep(0.3)
    time.sleep(0.6)
    assert screen.getvalue() == ""


def test_where_nobody_looks_nothing_is_written(monkeypatch):
    screen = looked_at(monkeypatch)
    monkeypatch.setenv("UKJAX_PROGRESS", "off")
    with replaced(report_after=0.0), reported("assemble"):
        time.sleep(0.7)
    monkeypatch.delenv("UKJAX_PROGRESS")
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    with replaced(report_after=0.0), reported("assemble"):
        time.sleep(0.7)
    assert screen.getvalue() + file.getvalue() == ""


def test_public_functions_report(monkeypatch):
    """And end as they do otherwise, with an error too."""
    screen = looked_at(monkeypatch)

    def slow(q, v, t):
        time.sleep(0.5)
        return 1 / 0

    with replaced(report_after=0.0), pytest.raises(ZeroDivisionError):
        ukjax.simulate(ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), slow)), jnp.ones(2), jnp.zeros(2), [0, 1])
    assert "ukjax: simulate, 0 s" in screen.getvalue()
    time.sleep(0.6)
    assert screen.getvalue().split("\r")[-2].strip() == ""
    assert bool(ukjax.equation_of_motion(ukjax.Mechanism(falling()), jnp.ones(2), jnp.zeros(2)).rank == 0)


def test_the_command_says_what_it_is_doing():
    plain, fancy = Console(file=io.StringIO(), width=80), Console(file=Terminal(), force_terminal=True, width=80)
    for console in (plain, fancy):
        with replaced(silent=0.2), working(console, "Compiling [it]"):
            time.sleep(0.5)
    assert plain.file.getvalue() == "Compiling [it] ...\n"
    assert "Compiling [it]" in fancy.file.getvalue()
    assert "0:00:0" in fancy.file.getvalue()
