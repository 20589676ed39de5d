"""Modes: the solutions exp(lambda t) of a linear system, with their shapes.

lambda: eigenvalue [1/s]; w0: natural frequency |lambda| [rad/s]; zeta: damping ratio, -Re(lambda) / |lambda|.
"""

from typing import NamedTuple

import numpy as np


# A real part counts as rounding below this part of the largest eigenvalue.
ROUNDING = 1e-13


class Modes(NamedTuple):
    """The modes of a linearisation, the slowest first; for a complex pair the one with positive imaginary part.

    Attributes:
        eigenvalues: lambda [1/s], (k,), complex.
        frequencies: w0 = |lambda| [rad/s], (k,).
        damping: zeta = -Re(lambda) / |lambda|, (k,): 1 for decay without oscillation, negative for growth; NaN where
            lambda is zero, for a freedom without a restoring force.
        shapes: Amplitudes of q and v, one after the other, (n_q + n, k), complex; the largest of q is one.
        states: Amplitudes of the states, (number of states, k).
        names: Names of the states.
        coordinates: Number of rows of `shapes` that belong to q.
    """

    eigenvalues: np.ndarray
    frequencies: np.ndarray
    damping: np.ndarray
    shapes: np.ndarray
    states: np.ndarray
    names: tuple[str, ...]
    coordinates: int

    @classmethod
    def of(cls, A: np.ndarray, directions: np.ndarray, coordinates: int, names: tuple[str, ...]) -> "Modes":
        """Returns the modes of A (k, k) whose states move q and v along `directions`."""
        values, vectors = np.linalg.eig(A.astype(complex))
        # Below this, an imaginary part or a whole eigenvalue is the rounding error of a double eigenvalue.
        rounding = np.sqrt(np.finfo(A.dtype).eps) * np.max(np.abs(values), initial=0.0)
        values = np.where(np.abs(np.imag(values)) > rounding, values, np.real(values))
        real = np.where(np.abs(np.real(values)) > ROUNDING * np.max(np.abs(values), initial=0.0), np.real(values), 0.0)
        values = real + 1j * np.imag(values)
        values = np.where(np.abs(values) > rounding, values, 0)
        kept = [i for i in range(len(values)) if values[i].imag >= 0]
        order = sorted(kept, key=lambda i: (round(abs(values[i]), 12), -values[i].real))
        values, vectors = values[order], vectors[:, order]
        shapes = directions @ vectors
        moved = shapes[:coordinates] if np.any(np.abs(shapes[:coordinates]) > 0) else shapes
        largest = moved[np.argmax(np.abs(moved), axis=0), np.arange(moved.shape[1])] if len(values) else np.ones(0)
        unit = np.where(largest == 0, 1, largest)
        size = np.abs(values)
        damping = np.where(size > rounding, 0.0 - np.real(values) / np.where(size > rounding, size, 1), np.nan)
        return cls(values, size, damping, shapes / unit, vectors / unit, names, coordinates)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns eigenvalue [1/s], frequency [Hz], damping, and the dominant states of each mode, as text."""
        rows = []
        for value, size, zeta, state in zip(
            self.eigenvalues, self.frequencies, self.damping, self.states.T, strict=True
        ):
            turning = f" +- {value.imag:.6g}i" if value.imag else ""
            part = np.abs(state)
            most = [self.names[i] for i in np.argsort(-part, kind="stable")[:3] if part[i] >= 0.3 * part.max()]
            damping = "" if np.isnan(zeta) else f"{zeta:.4g}"
            rows.append((f"{value.real:.6g}{turning}", f"{size / (2 * np.pi):.6g}", damping, ", ".join(most)))
        return rows

    def __str__(self) -> str:
        rows = [("eigenvalue [1/s]", "frequency [Hz]", "damping", "mostly"), *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join(f"{x:{w}}" for x, w in zip(row, widths, strict=True)).rstrip() for row in rows)
