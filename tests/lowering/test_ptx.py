"""The kernels of every model are assembly of NVIDIA's that their assembler takes, and keep numbers in registers."""

import re

import jax.numpy as jnp
import pytest

import ukjax
from ukjax import cli

from ..helpers import long
from .ptx import assembling, kernels, lowered
from .test_models import scenario_of


# Its servo and its law leave scalar code, on a CPU too.
NO_LOOPS = ("models.flexible_joint:scenario",)
NAMES = cli.factories("models")[0]


@pytest.mark.parametrize("name", [name if name == "models.scara:scenario" else long(name) for name in NAMES])
def test_kernels_of_a_model(name, tmp_path):
    found = kernels(scenario_of(name), tmp_path)
    assert found.acceleration
    assert bool(found.run) == bool(found.gradient) == (name not in NO_LOOPS)
    # Of 255 registers 32 are left where the assembler gives up.
    assert all(x.registers > 32 for some in found for x in some if x.operations > 1000)


def test_what_xla_calls_on_a_gpu(tmp_path):
    """One call, which has counters as its last result; products and sums are rounded one by one."""
    with assembling(tmp_path) as gpu:
        text = lowered(ukjax.expand(lambda x: jnp.sin(x) * x[0] + x[1]), jnp.ones(3))
    (call,) = re.findall(r"stablehlo.custom_call @(\w+)", text)
    assert call == gpu.target
    assert "tensor<2xi64>" in text
    assembly = (tmp_path / "kernel.ptx").read_text()
    assert re.search(r"\bfma\.rn\.f64", assembly)
    assert not re.search(r"\b(mul|add|sub)\.f64|approx", assembly)
    assert ".maxntid 128" in assembly
