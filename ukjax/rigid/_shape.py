"""Outlines of bodies for pictures, without mass and without contacts."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _check
from ._frame import Frame, vector


# Points on a circle.
ROUND = 25


class Shape(eqx.Module):
    """A line through points that are fixed on a body, for pictures.

    Args:
        points: Seen from the body (k, 3) [m].

    Raises:
        ValueError: If the points have another shape, or are not finite.

    `box`, `cylinder`, `sphere`, `circle` and `axes` make such lines, about a `position`, turned by a `rotation` as of
    a `Frame`. The points are static, not leaves.
    """

    points: tuple[tuple[float, float, float], ...] = eqx.field(static=True)

    def __init__(self, points: Any):
        found = np.asarray(points, float)
        if found.ndim != 2 or found.shape[1] != 3 or not len(found):
            raise ValueError(f"points must have shape (k, 3), but have shape {found.shape}.")
        if not np.all(np.isfinite(found)):
            raise ValueError("points must be finite.")
        self.points = tuple((float(x), float(y), float(z)) for x, y, z in found)

    @property
    def array(self) -> Array:
        """The points (k, 3) [m]."""
        return jnp.array(self.points)

    @classmethod
    def box(cls, size: Any, position: Any = (0.0, 0.0, 0.0), rotation: Any = None) -> "Shape":
        """The edges of a box of `size` (3,) [m]."""
        edges = np.asarray(vector(size, "size"), float)
        if not np.all(edges > 0):
            raise ValueError(f"size must be positive, but is {edges}.")
        around = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])
        below, above = (np.column_stack([around, np.full(5, z)]) for z in (-1, 1))
        # Round the bottom and round the top, down and up again at each corner; it ends where it starts.
        top = [point for k in range(5) for point in ((above[k], below[k], above[k]) if k in (1, 2, 3) else (above[k],))]
        walk = [*below, *top, below[0]]
        return cls(_placed(np.array(walk) * edges / 2, position, rotation))

    @classmethod
    def cylinder(cls, radius: float, length: float, position: Any = (0.0, 0.0, 0.0), rotation: Any = None) -> "Shape":
        """The outline of a cylinder about z [m]."""
        radius, length = _check.positive(radius, "radius"), _check.positive(length, "length")
        angle = np.linspace(0.0, 2 * np.pi, ROUND)
        ring = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(ROUND)])
        up, half = np.array([0.0, 0.0, length / 2]), ROUND // 2
        # Round the bottom and round the top, down and up again half way; it ends where it starts.
        top = [ring[: half + 1] + up, ring[half : half + 1] - up, ring[half:] + up]
        return cls(_placed(np.concatenate([ring - up, *top, ring[:1] - up]), position, rotation))

    @classmethod
    def sphere(cls, radius: float, position: Any = (0.0, 0.0, 0.0)) -> "Shape":
        """Three great circles of a sphere [m]."""
        radius = _check.positive(radius, "radius")
        angle = np.linspace(0.0, 2 * np.pi, ROUND)
        s, c, zero = np.sin(angle), np.cos(angle), np.zeros(ROUND)
        rings = [(c, s, zero), (c, zero, s)]
        quarter = np.column_stack([c, s, zero])[: ROUND // 4 + 1]
        rest = np.column_stack([zero, c, s])
        circles = [np.column_stack(ring) for ring in rings]
        return cls(_placed(radius * np.concatenate([*circles, quarter, rest, quarter[::-1]]), position, None))

    @classmethod
    def circle(cls, radius: float, axis: str = "z", position: Any = (0.0, 0.0, 0.0)) -> "Shape":
        """A wheel about "x", "y" or "z", with a spoke that shows how it turns [m]."""
        if axis not in ("x", "y", "z"):
            raise ValueError(f'axis must be "x", "y" or "z", but is {axis!r}.')
        radius, angle = _check.positive(radius, "radius"), np.linspace(0.0, 2 * np.pi, ROUND)
        flat = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(ROUND)])
        flat = np.concatenate([flat, np.zeros((1, 3)), flat[:1]])
        return cls(_placed(np.roll(flat, {"x": 1, "y": 2, "z": 0}[axis], axis=1), position, None))

    @classmethod
    def axes(cls, length: float, position: Any = (0.0, 0.0, 0.0), rotation: Any = None) -> "Shape":
        """The three axes of a frame [m]."""
        zero = np.zeros(3)
        x, y, z = _check.positive(length, "length") * np.eye(3)
        return cls(_placed(np.stack([x, zero, y, zero, z, zero, x]), position, rotation))


def _placed(points: np.ndarray, position: Any, rotation: Any) -> np.ndarray:
    pose = Frame(position, rotation).pose
    return points @ np.asarray(pose.R, float).T + np.asarray(pose.p, float)
