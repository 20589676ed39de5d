"""Contact sheets: many pictures in one figure."""

import textwrap
from collections.abc import Sequence
from io import BytesIO

import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

from .. import _check


PNG = b"\x89PNG"
COLUMNS = 6
CELL = (2.6, 2.8)  # size of a picture with its caption [in]
LETTERS = 46  # most letters in a line of a caption


def contact_sheet(pictures: Sequence[bytes], captions: Sequence[str], columns: int = COLUMNS) -> Figure:
    """PNG pictures side by side in rows, each with a caption above.

    Args:
        pictures: PNG files, as bytes.
        captions: A text for each picture.
        columns: Pictures in a row.

    Raises:
        ValueError: If there are no pictures, a picture is no PNG file, captions and pictures differ in number, or
            `columns` is no positive integer.
    """
    _check.count(columns, "columns")
    if not pictures or not all(isinstance(one, bytes) and one.startswith(PNG) for one in pictures):
        raise ValueError("pictures must be at least one PNG file, as bytes: pass path.read_bytes() of each.")
    if len(captions) != len(pictures):
        raise ValueError(f"captions must be as many as pictures, {len(pictures)}, but are {len(captions)}.")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(CELL[0] * columns, CELL[1] * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, picture, caption in zip(axes, pictures, captions, strict=False):
        axis.imshow(matplotlib.image.imread(BytesIO(picture), format="png"), interpolation="antialiased")
        lines = (textwrap.fill(line, LETTERS) for line in caption.splitlines())
        axis.set_title("\n".join(lines), fontsize=7, pad=2)
    figure.set_dpi(160)
    return figure
