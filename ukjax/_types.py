"""Array aliases. n: coordinates; m: constraint rows; T: saved times; with a kinematics n speeds, n_q coordinates."""

from jaxtyping import Array, Bool, Float, Int


Scalar = Float[Array, ""]
IntScalar = Int[Array, ""]
BoolScalar = Bool[Array, ""]
Vector = Float[Array, " n"]
Coordinates = Float[Array, " n_q"]
Matrix = Float[Array, "n n"]
Rows = Float[Array, "m n"]
RowValues = Float[Array, " m"]

# Coordinates of the blocks of a block-diagonal matrix, equal blocks together.
Partition = tuple[tuple[tuple[int, ...], ...], ...]
