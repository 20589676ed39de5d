"""The command keeps compiled programs where its environment says so: JAX's settings are as before after each test."""

import jax
import pytest


NAMES = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def settings():
    before = {name: getattr(jax.config, name) for name in NAMES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
