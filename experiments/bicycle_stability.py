"""Whipple's bicycle over its speed: eigenvalues of its linearisation, and the speeds at which it becomes stable.

The bicycle is made of bodies and joints, its wheels roll without slip; `ukjax.analysis.linearize` takes lean, steer
and their rates as states, which tell how they change by themselves, wherever the bicycle is. Compared with Meijaard et
al. (2007): eigenvalues of their equation M q'' + u C1 q' + (g K0 + u^2 K2) q = 0 with the printed matrices, and the
speeds of their figure 3.

    python -m experiments.bicycle_stability [--out DIR]
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import root_scalar

import ukjax
from models import whipple_bicycle
from ukjax import plot

from . import _report
from ._figures import captioned, legend_above


SPEEDS = (0.1, 10.0)  # [m/s]
COUNT = 200
# Eq. 5.3 to 5.6.
M = np.array([[80.81722, 2.31941332208709], [2.31941332208709, 0.29784188199686]])
C1 = np.array([[0.0, 33.86641391492494], [-0.85035641456978, 1.68540397397560]])
K0 = np.array([[-80.95, -2.59951685249872], [-2.59951685249872, -0.80329488458618]])
K2 = np.array([[0.0, 76.59734589573222], [0.0, 2.65431523794604]])
PAPER = {"weave becomes stable": 4.29238253634111, "capsize becomes unstable": 6.02426201538837}  # [m/s]


def states(bicycle):
    """Lean and steer [rad] and their rates [rad/s]."""
    mechanism = bicycle.mechanism()
    both = lambda q: jnp.stack([whipple_bicycle.lean(bicycle, q), bicycle.coordinate(q, "steering")])
    return lambda q, v, t: jnp.concatenate(jax.jvp(both, (q,), (mechanism.rates(q, v, t),)))


def linear_system():
    """A (4, 4) as a compiled function of the speed."""
    bicycle = whipple_bicycle.robot()
    mechanism, of = bicycle.mechanism(), states(bicycle)

    def A(speed):
        q, v = whipple_bicycle.straight(bicycle, speed)
        return ukjax.analysis.linearize(mechanism, q, v, states=of, throw=False).A

    return jax.jit(jax.vmap(A))


def published(speed: float) -> np.ndarray:
    """Eigenvalues (4,) [1/s] of the paper's matrices."""
    stiffness, damping = np.linalg.solve(M, whipple_bicycle.G * K0 + speed**2 * K2), np.linalg.solve(M, speed * C1)
    return np.linalg.eigvals(np.block([[np.zeros((2, 2)), np.eye(2)], [-stiffness, -damping]]))


def differences(found: np.ndarray, speeds: np.ndarray) -> float:
    """The largest distance of a published eigenvalue from the next of ours."""
    return max(
        float(np.max(np.min(np.abs(published(u)[:, None] - mine[None]), axis=1)))
        for u, mine in zip(speeds, found, strict=True)
    )


def critical(A) -> dict[str, float]:
    """The speeds at which the weave becomes stable and the capsize unstable [m/s]."""
    values = lambda u: np.linalg.eigvals(np.asarray(A(jnp.array([u]))[0]))
    weave = lambda u: max(x.real for x in values(u) if abs(x.imag) > 1e-6)
    capsize = lambda u: float(np.linalg.det(np.asarray(A(jnp.array([u]))[0])))  # the product of all eigenvalues
    roots = root_scalar(weave, bracket=(4.0, 5.0), xtol=1e-13), root_scalar(capsize, bracket=(5.5, 6.5), xtol=1e-13)
    return {what: float(found.root) for what, found in zip(PAPER, roots, strict=True)}


def figure_of(speeds: np.ndarray, found: np.ndarray) -> Figure:
    figure = plot.eigenvalues(speeds, found, "speed [m/s]")
    wanted = np.stack([published(u) for u in speeds[::10]])
    for axis, part in zip(figure.axes, (np.real(wanted), np.imag(wanted)), strict=True):
        axis.plot(np.repeat(speeds[::10], 4), part.ravel(), "o", mfc="none", mec="0.4", ms=6, label="published")
        axis.set_ylim(-12, 12)
    legend_above(figure.axes[0])
    return captioned(
        figure,
        "Eigenvalues of Whipple's bicycle over its speed, of lean and steer without a rider's hands, and those that "
        "Meijaard et al. (2007) publish.",
    )


def rows(A, speeds: np.ndarray, found: np.ndarray) -> list[tuple[str, str, str]]:
    ours = critical(A)
    return [
        ("eigenvalues at the speeds drawn", "by its matrices", f"the same to {differences(found, speeds):.1e} 1/s"),
        *((f"{what} [m/s]", f"{PAPER[what]:.10f}", f"{ours[what]:.10f}") for what in PAPER),
    ]


def main() -> None:
    out = _report.start(__doc__ or "", "bicycle_stability")
    speeds = np.linspace(*SPEEDS, COUNT)
    with _report.console.status("Linearising the bicycle at every speed"):
        A = linear_system()
        found = np.linalg.eigvals(np.asarray(A(jnp.asarray(speeds))))
    _report.table("Whipple's bicycle", ("", "paper says", "we measure"), rows(A, speeds, found))
    _report.save({"eigenvalues": figure_of(speeds, found)}, out)


if __name__ == "__main__":
    main()
