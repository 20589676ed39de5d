"""Array aliases. n: coordinates; m: constraint rows; T: saved times; with a kinematics n speeds, n_q coordinates."""

from collections.abc import Sequence

from jaxtyping import Array, ArrayLike, Bool, Float, Int


Scalar = Float[Array, ""]
IntScalar = Int[Array, ""]
BoolScalar = Bool[Array, ""]
Vector = Float[Array, " n"]
Coordinates = Float[Array, " n_q"]
Matrix = Float[Array, "n n"]
Rows = Float[Array, "m n"]
RowValues = Float[Array, " m"]

# Numbers that the user passes: a scalar, an array, or lists of numbers.
Numbers = ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]]

# Coordinates of the blocks of a block-diagonal matrix, equal blocks together.
Partition = tuple[tuple[tuple[int, ...], ...], ...]
