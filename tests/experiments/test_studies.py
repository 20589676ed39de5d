"""The parameter studies: what is foretold is what runs do, and a batch is what its trajectories are one by one."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import experiments.study_baumgarte as baumgarte
import experiments.study_robots as robots
from experiments._tuned_robots import run as one_chain

from ..helpers import assert_close, standard_promotion
from .test_experiments import drawn, run


def test_the_stability_function_is_that_of_the_method():
    """A step of diffrax on a linear equation; and its expansion begins like the exponential function."""
    z = np.array([[0.0, 0.3], [-0.8, -0.5]])
    term = diffrax.ODETerm(lambda t, y, args: jnp.asarray(z) @ y)
    step = lambda y: diffrax.diffeqsolve(
        term, diffrax.Tsit5(), 0.0, 1.0, 1.0, y, stepsize_controller=diffrax.ConstantStepSize(), max_steps=1
    ).ys[0]  # fmt: skip
    got = jnp.stack([step(y) for y in jnp.eye(2)], axis=1)
    assert_close(np.asarray(got), baumgarte.amplification(z), atol=1e-14)
    assert_close(baumgarte.amplification(1e-2 * z), scipy.linalg.expm(1e-2 * z), atol=1e-14)


@pytest.mark.long
def test_where_baumgartes_gains_keep_the_scara(tmp_path):
    """A coarser map; the picture."""
    data = baumgarte.study(tmp_path, 14)
    kept, theory = baumgarte.verdicts(data)
    assert 0.2 < np.mean(kept) < 0.4
    assert np.mean(kept == theory) >= 0.98
    both = kept & theory
    foretold = baumgarte.foretold(np.asarray(data.damping), np.asarray(data.stiffness))[both]
    # But for what the steps make of the motion along the helix.
    assert_close(np.asarray(data.tool_error_after_a_second)[both], foretold, rtol=0.01, atol=1e-6)
    assert len(baumgarte.rows(data)) == 6
    baumgarte.figure_of(data).canvas.draw()


@pytest.mark.long
def test_tuned_gains_under_many_chains(capsys, tmp_path):
    shown = run(robots, capsys, tmp_path, unseen=60, many=12)
    assert "60 chains" in shown
    assert drawn(tmp_path) == ["distance", "masses"]
    chains = robots.samples(60, 1)
    paper = {k: np.array(x) for k, x in robots.PAPER.items()}
    with standard_promotion():
        found = robots.outcome(paper, chains)
    assert found.okay.all()
    alone, _ = jax.jit(one_chain)(paper, jax.tree_util.tree_map(lambda x: x[7], chains))
    assert_close(found.distance[7], np.asarray(robots.distance(alone)), rtol=1e-9, atol=1e-12)
