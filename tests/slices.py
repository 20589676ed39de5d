"""Options that divide the tests marked `long` into slices, end a run in time, and note how long tests take.

Hooks of pytest, which conftest.py hands on. A slice is a run of neighbours in the order of node ids: they share
fixtures and compiled programs, and a new test moves only those next to a border.
"""

import argparse
import bisect
import contextlib
import itertools
import json
import signal
import time
from pathlib import Path

import pytest


BEGIN = time.monotonic()
DURATIONS = Path(__file__).with_name("long_durations.json")
# Tests take so many seconds unless they are in that file, which holds those that take more than twice as long.
USUAL = 5.0
NOT_RUN = "no time left"
measured: dict[str, float] = {}  # by this run


def sliced(names, k, n, seconds):
    """Part k of n of some node ids, all parts about as long."""
    names = sorted(names)
    ends = list(itertools.accumulate(seconds.get(name, USUAL) for name in names))
    middles = [end - seconds.get(name, USUAL) / 2 for name, end in zip(names, ends, strict=True)]
    first, last = (bisect.bisect_left(middles, ends[-1] * i / n) if names else 0 for i in (k, k + 1))
    return names[first:last]


def slice_of(text):
    """The numbers of "k/n"."""
    k, n = map(int, text.split("/"))
    if not 0 <= k < n:
        raise argparse.ArgumentTypeError(f"must be K/N with K from 0 to N - 1, but is {text}")
    return k, n


def with_measured(known, measured):
    """The seconds of the tests worth noting, as they were last measured."""
    both = known | {name: round(x) for name, x in measured.items()}
    return {name: x for name, x in sorted(both.items()) if x > 2 * USUAL}


def known_seconds():
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


def pytest_addoption(parser):
    group = parser.getgroup("long tests")
    group.addoption("--slice", type=slice_of, metavar="K/N", help="of the tests marked long only part K, from 0, of N")
    group.addoption("--budget", type=float, metavar="SECONDS", help="start no test, and go on with none, after so long")
    group.addoption("--record-durations", action="store_true", help=f"note seconds of long tests in {DURATIONS.name}")


def pytest_collection_modifyitems(config, items):
    if config.option.slice is None:
        return
    long = {item.nodeid for item in items if item.get_closest_marker("long")}
    kept = set(sliced(long, *config.option.slice, known_seconds()))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    budget = item.config.option.budget
    if budget is not None and time.monotonic() - BEGIN + known_seconds().get(item.nodeid, 0.0) > budget:
        pytest.skip(NOT_RUN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    budget = item.config.option.budget
    with contextlib.nullcontext() if budget is None else cut_off(budget - (time.monotonic() - BEGIN)):
        return (yield)


@contextlib.contextmanager
def cut_off(seconds):
    """Ends what takes longer as a skipped test, whatever it makes of the exception."""
    late = False

    def end(*_):
        nonlocal late
        late = True
        pytest.skip(f"{NOT_RUN}, cut off")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    except BaseException:
        if late:
            pytest.skip(f"{NOT_RUN}, cut off")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report):
    """Sums up what setting up, running, and tearing down take."""
    if "long" in report.keywords and not report.skipped:
        measured[report.nodeid] = measured.get(report.nodeid, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter, config):
    if config.option.record_durations:
        DURATIONS.write_text(json.dumps(with_measured(known_seconds(), measured), indent=0) + "\n")
    skipped = [x for x in terminalreporter.stats.get("skipped", []) if NOT_RUN in str(x.longrepr)]
    if config.option.budget is not None:
        terminalreporter.section("not run, as there was no time left" if skipped else "there was time for all tests")
    for report in skipped:
        terminalreporter.line(report.nodeid + (" (cut off)" if "cut off" in str(report.longrepr) else ""))
