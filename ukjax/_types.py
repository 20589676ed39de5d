"""Array aliases. n: coordinates; m: constraint rows; T: saved times."""

from jaxtyping import Array, Bool, Float, Int


Scalar = Float[Array, ""]
IntScalar = Int[Array, ""]
BoolScalar = Bool[Array, ""]
Vector = Float[Array, " n"]
Matrix = Float[Array, "n n"]
Rows = Float[Array, "m n"]
RowValues = Float[Array, " m"]

# Coordinates of the blocks of a block-diagonal matrix, equal blocks together.
Partition = tuple[tuple[tuple[int, ...], ...], ...]
