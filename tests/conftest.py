"""Double precision, and no implicit conversions: what is promoted by accident elsewhere is an error here."""

import gc
import os
from pathlib import Path

import jax
import pytest

from .slices import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_runtest_call,
    pytest_runtest_logreport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)


# As the command does it; here the library must not be imported before its types are checked.
flags = os.environ.get("XLA_FLAGS", "")
if jax.__version_info__[:2] == (0, 10) and "fusion_emitters" not in flags:
    flags = f"{flags} --xla_cpu_use_fusion_emitters=false"
    # Each worker has a core of its own at best: a program in 32 parts, for 32 threads, is only more work.
    flags = f"{flags} --xla_cpu_parallel_codegen_split_count=1"
# Nearly all time goes to compiling programs that then run for milliseconds. LLVM without its optimisations takes half
# as long or less; what a program computes stays the same but for rounding.
if "backend_optimization_level" not in flags:
    flags = f"{flags} --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = flags
os.environ["UKJAX_CACHE"] = "off"  # the command is to keep nothing of ours in the user's folder
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)  # for batches; everything else runs on the first
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Tracing makes millions of small objects, and the collector looks through all of them again and again.
gc.set_threshold(200_000, 50, 1000)


@pytest.fixture(autouse=True, scope="module")
def _forget_what_was_compiled():
    yield
    _forget(beyond=20_000)


@pytest.fixture(autouse=True)
def _forget_within_a_file(request):
    """Tests that are long compile large programs, and some files have many of them."""
    yield
    if request.node.get_closest_marker("long"):
        _forget(beyond=30_000)


def _forget(beyond):
    """Every compiled function holds mappings of memory, of which Linux grants a process 65 530; then LLVM aborts."""
    mappings = Path("/proc/self/maps")
    if not mappings.exists() or mappings.read_text().count("\n") > beyond:
        jax.clear_caches()
