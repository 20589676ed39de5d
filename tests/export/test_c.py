"""Exported C has the bits of machine code, under every compiler, and says where it is not certain."""

import numpy as np
import pytest

import ukjax
from models import governor, n_pendulum, scara, unicycle
from ukjax.cli import factories

from ..helpers import sampled
from ..inside import replaced
from .compilers import COMPILERS, Library, first


def awkward(scenario, count):
    """States around the start, and some that no mechanism likes: zeros, huge and tiny numbers, NaN, infinity."""
    random, q, v = np.random.default_rng(3), np.asarray(scenario.q0), np.asarray(scenario.v0)
    for scale in (0.0, 1e-12, 0.1, 3.0):
        for _ in range((count - 12) // 4):
            yield q + scale * random.normal(size=q.shape), v + scale * random.normal(size=v.shape), random.normal()
    for value in (0.0, -0.0, 1e-310, 1e-8, 1e8, 1e200, np.inf, np.nan):
        yield np.full_like(q, value), np.full_like(v, value), 0.0
    for value in (0.0, 1e300):
        yield q, np.full_like(v, value), 0.0
        yield np.full_like(q, 0.5), v, value


def bits(x):
    """The bits of numbers, of which all that are NaN are alike."""
    return np.where(np.isnan(x), np.nan, x).view(np.uint64)


def compared(scenario, folder, what, count, compilers=()):
    """Compares C with machine code at awkward states; returns how many of them are certain."""
    acts = scenario.servo
    paths = ukjax.export(
        scenario.mechanism, scenario.q0, scenario.v0, scenario.t0, out=folder, what=what, servo=acts, name="it"
    )
    libraries, sure = [Library(paths[0], "it", x) for x in compilers or [first()]], []
    # What is fused depends on all results of a program.
    handles = {name: ukjax.compile(scenario.mechanism, servo=acts, what=name) for name in what}
    with replaced(sure_way=lambda *_: None):  # the results of machine code also where it is not certain
        for q, v, t in awkward(scenario, count):
            for name, handle in handles.items():
                want = handle(q, v, t)
                for library in libraries:
                    certain, (found,) = library(name, q, v, t, gives=[want.size])
                    assert certain == handle.certain, (name, q, v, t)
                    np.testing.assert_array_equal(
                        bits(found), bits(want.ravel() if certain else np.full(want.size, np.nan))
                    )
            sure.append(handles[what[0]].certain)
    return sum(sure)


@pytest.mark.parametrize("compiler", sampled(list(COMPILERS), [first()]))
def test_bits_are_those_of_machine_code(compiler, tmp_path):
    what = ("acceleration", "constraint_force", "jacobian")
    assert 20 < compared(scara.scenario(), tmp_path, what, 100, [compiler]) < 100


@pytest.mark.parametrize("case", [governor.scenario, lambda: n_pendulum.closed(N=3)], ids=["governor", "three_rods"])
def test_bits_of_other_mechanisms(case, tmp_path):
    assert 20 < compared(case(), tmp_path, ("acceleration", "constraint_force"), 100) < 100


def test_bits_of_a_servo(tmp_path):
    assert 20 < compared(unicycle.scenario(), tmp_path, ("acceleration", "control"), 100) < 100


GALLERY = factories("models")[0]


def of_gallery(target):
    """A scenario, what of it can be exported, and whether it is scalar code."""
    scenario = GALLERY[target]()
    what = ["acceleration"] if scenario.servo is None else ["acceleration", "control"]
    handle = ukjax.compile(scenario.mechanism, servo=scenario.servo)
    with replaced(sure_way=lambda *_: None):
        handle(scenario.q0, scenario.v0, scenario.t0)
    return scenario, what, handle.operations is not None


@pytest.mark.long
@pytest.mark.parametrize("target", GALLERY)
def test_bits_of_the_gallery(target, tmp_path):
    """Every scenario, with its servo, by every compiler; those that go by matrices say so."""
    scenario, what, scalar = of_gallery(target)
    if not scalar:
        with pytest.raises(ValueError, match="no scalar program"):
            ukjax.export(scenario.mechanism, scenario.q0, scenario.v0, out=tmp_path / "no", servo=scenario.servo)
        assert not (tmp_path / "no").exists()
        return
    compared(scenario, tmp_path, what, 100, COMPILERS)
