"""MATLAB's default ode45, as far as its step sizes go: what a paper's "numerical value" often is.

Dormand-Prince 5(4) with rtol 1e-3 on the largest component, relative to the larger end value but at least
atol / rtol; steps of at most a tenth of the interval; growth by at most 5, a first rejection by the error, further ones
by half. Tableau from SciPy; step control after Shampine & Reichelt (1997), The MATLAB ODE suite.
"""

import numpy as np
from scipy.integrate import RK45


def ode45(f, t0: float, t1: float, y, rtol: float = 1e-3, atol: float = 1e-6):
    """Accepted times (k,) and states (k, n) of y' = f(t, y)."""
    floor, longest, power = atol / rtol, 0.1 * (t1 - t0), 0.2
    t, y = t0, np.asarray(y, float)
    slope = f(t, y)
    rate = np.max(np.abs(slope) / np.maximum(np.abs(y), floor)) / (0.8 * rtol**power)
    h = min(longest, 1 / rate)
    times, states = [t], [y]
    while t < t1:
        h = t1 - t if 1.1 * h >= t1 - t else min(longest, h)
        rejected = False
        while True:
            new, new_slope, error = _step(f, t, y, slope, h)
            error = np.max(np.abs(error) / np.maximum(np.maximum(np.abs(y), np.abs(new)), floor))
            if error <= rtol:
                break
            h *= 0.5 if rejected else max(0.1, 0.8 * (rtol / error) ** power)
            rejected = True
        t, y, slope = t + h, new, new_slope
        times.append(t)
        states.append(y)
        if not rejected:
            h /= max(1.25 * (error / rtol) ** power, 0.2)
    return np.array(times), np.array(states)


def _step(f, t, y, slope, h):
    k = [slope]
    for a, c in zip(RK45.A[1:], RK45.C[1:]):
        k.append(f(t + c * h, y + h * (a[: len(k)] @ k)))
    new = y + h * (RK45.B @ k)
    k.append(f(t + h, new))
    return new, k[-1], h * (RK45.E @ k)
