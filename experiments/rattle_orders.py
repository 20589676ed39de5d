"""The order of `ukjax.Rattle` with forces that depend on velocities: drag, magnetic and gyroscopic, on constraints.

Every mechanism is integrated with ever shorter steps. The reference is the same mechanism by SciPy's DOP853 at 1e-12:
its multipliers from the equations in NumPy, without ukjax. An order is the logarithm of base two of how many times
smaller an error is with half the step.

    python -m experiments.rattle_orders [--out DIR]

q: coordinates [m]; v: their rates; Q: force [N]; M: masses [kg]; J: rows; c: what is left of their second derivative.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import ukjax

from . import _report


G = 9.81  # [m/s^2]
STEPS = (0.02, 0.01, 0.005, 0.0025)  # [s]
# The second of these is no multiple of any of the steps.
TIMES = np.array([0.0, 0.8765, 2.0])  # [s]


class Case(NamedTuple):
    """A mechanism for ukjax and its equations for NumPy: `force(q, v, t)` and `rows(q, v, t)` -> (J, c)."""

    name: str
    masses: tuple[float, ...]
    force: Callable
    constraint: Callable
    rows: Callable
    q0: tuple[float, ...]
    v0: tuple[float, ...]
    copies: int = 1

    def mechanism(self) -> ukjax.Mechanism:
        M = jnp.diag(jnp.array(self.masses))
        system = ukjax.System(lambda q, t: M, lambda q, v, t: self.force(jnp, q, v, t))
        return ukjax.Mechanism(system, [ukjax.Holonomic(lambda q, t: self.constraint(jnp, q, t))] * self.copies)


def _length(_, q, t):
    return (q @ q - 1.0)[None] / 2


def _length_rows(q, v, t):
    return q[None], np.array([v @ v])


def _falling(xp, n, m=1.0):
    return xp.array([0.0] * (n - 1) + [-m * G])


def _anisotropic(xp, q, v, t):
    return _falling(xp, 2) - xp.array([1.5, 0.0]) * v


def _quadratic(xp, q, v, t):
    return _falling(xp, 2) - 0.4 * xp.sqrt(v @ v + 1e-6) * v


def _stiff(xp, q, v, t):
    return _falling(xp, 2) - xp.array([300.0, 0.0]) * v


def _magnetic(xp, q, v, t):
    field = 3.0 * (1 + q[0] / 2)  # along z [T], of a charge of 1 C
    return _falling(xp, 3) + field * xp.array([v[1], -v[0], 0.0])


def _turning(xp, q, v, t):
    """Two points in a plane that turns: centrifugal forces, and those of Coriolis, which do no work."""
    turn = xp.array([4.0, 4.0, 2.0, 2.0])  # 2 m W, W = 2 rad/s
    coriolis = turn * xp.array([v[1], -v[0], v[3], -v[2]])
    return xp.array([1.0, 1.0, 0.5, 0.5]) * (4.0 * q - xp.array([0.0, G, 0.0, G])) + coriolis


def _two_rods(xp, q, t):
    d = q[2:] - q[:2]
    return xp.array([q[:2] @ q[:2] - 1.0, d @ d - 0.64]) / 2


def _two_rods_rows(q, v, t):
    d, e, none = q[2:] - q[:2], v[2:] - v[:2], np.zeros(2)
    return np.stack([np.concatenate([q[:2], none]), np.concatenate([-d, d])]), np.array([v[:2] @ v[:2], e @ e])


def _guide(xp, q, t):
    """A straight guide through the origin that swings."""
    turn = 0.8 * xp.sin(2.0 * t)
    return (q[1] * xp.cos(turn) - q[0] * xp.sin(turn))[None]


def _guide_rows(q, v, t):
    turn, rate, change = 0.8 * np.sin(2.0 * t), 1.6 * np.cos(2.0 * t), -3.2 * np.sin(2.0 * t)
    s, c = np.sin(turn), np.cos(turn)
    along, of_along = q[0] * c + q[1] * s, q[1] * c - q[0] * s
    rest = -2 * rate * (v[0] * c + v[1] * s) - change * along - rate**2 * of_along
    return np.array([[-s, c]]), np.array([rest])


CASES = (
    Case("pendulum, drag along x", (1.0, 1.0), _anisotropic, _length, _length_rows, (1.0, 0.0), (0.0, 0.0)),
    Case("pendulum, quadratic drag", (1.0, 1.0), _quadratic, _length, _length_rows, (1.0, 0.0), (0.0, 0.0)),
    Case("pendulum, stiff drag along x", (1.0, 1.0), _stiff, _length, _length_rows, (1.0, 0.0), (0.0, 0.0)),
    Case(
        "charge on a sphere in a magnetic field, row twice", (1.0,) * 3, _magnetic, _length, _length_rows,
        (0.6, 0.0, -0.8), (0.0, 1.2, 0.0), 2,
    ),
    Case(
        "double pendulum in a turning plane", (1.0, 1.0, 0.5, 0.5), _turning, _two_rods, _two_rods_rows,
        (0.6, -0.8, 0.6, -1.6), (0.4, 0.3, 0.4, 0.3),
    ),
    Case(
        "bead on a guide that swings, drag along x", (1.0, 1.0), _anisotropic, _guide, _guide_rows,
        (0.3, 0.0), (0.5, 0.48),
    ),
)  # fmt: skip


def reference(case: Case) -> np.ndarray:
    """(q, v) at `TIMES`, (T, 2 n), from M a + J^T mu = Q, J a = -c."""
    n, M = len(case.q0), np.diag(case.masses)

    def rates(t, y):
        q, v = y[:n], y[n:]
        J, c = case.rows(q, v, t)
        whole = np.block([[M, J.T], [J, np.zeros((len(J), len(J)))]])
        return np.concatenate([v, np.linalg.solve(whole, np.concatenate([case.force(np, q, v, t), -c]))[:n]])

    y0 = np.array([*case.q0, *case.v0])
    return solve_ivp(rates, TIMES[[0, -1]], y0, method="DOP853", t_eval=TIMES, rtol=1e-12, atol=1e-12).y.T


class Row(NamedTuple):
    """Errors of a case by step: at the last time, and at one between two steps; and how far it is off the rows."""

    errors: np.ndarray
    between: np.ndarray
    off: float

    @property
    def orders(self) -> np.ndarray:
        return np.log2(self.errors[:-1] / self.errors[1:])

    @property
    def orders_between(self) -> np.ndarray:
        return np.log2(self.between[:-1] / self.between[1:])


def measured(case: Case, steps: tuple[float, ...] = STEPS) -> Row:
    want, errors, off = reference(case), [], []
    for h in steps:
        run = ukjax.simulate(
            case.mechanism(), case.q0, case.v0, TIMES, solver=ukjax.Rattle(), dt0=h,
            stepsize_controller=diffrax.ConstantStepSize(), keep=("q", "v", "position_residual", "velocity_residual"),
        )  # fmt: skip
        got = np.concatenate([np.asarray(run.q), np.asarray(run.v)], axis=1)
        errors.append(np.linalg.norm(got - want, axis=1))
        off.append(max(float(run.position_residual.max()), float(run.velocity_residual.max())))
    _, between, last = np.transpose(errors)
    return Row(last, between, max(off))


def main() -> None:
    _report.start(__doc__ or "", "rattle_orders")
    rows = []
    for case in CASES:
        found = measured(case)
        orders = lambda x: ", ".join(f"{order:.2f}" for order in x)
        cells = f"{found.errors[0]:.1e}", f"{found.errors[-1]:.1e}", orders(found.orders), orders(found.orders_between)
        rows.append((case.name, *cells, f"{found.off:.0e}"))
    first, last = STEPS[0], STEPS[-1]
    columns = ("mechanism", f"error at h = {first:g} s", f"at {last:g} s", "orders", "between two steps",
               "off the constraints")  # fmt: skip
    _report.table("RATTLE with forces that depend on velocities", columns, rows)


if __name__ == "__main__":
    main()
