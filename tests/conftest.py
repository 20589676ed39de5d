"""Double precision, and no implicit conversions: what is promoted by accident elsewhere is an error here."""

import jax


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
