"""A long program cut into parts, each of which is a function of its own: LLVM compiles long functions slowly."""

from collections.abc import Iterator, Sequence

from .._expand import Program, cut


# Operations of a part.
PART = 1500


def parts_of(program: Program, part: int = PART) -> Iterator[Program]:
    """Parts of about equal length, to be run in order."""
    count = len(program.steps)

    def end_of(place: dict[int, int], last: Sequence[int], begin: int) -> int:
        left = count - begin
        return begin + -(-left // -(-left // part))

    return cut(program.steps, program.outputs, end_of)
