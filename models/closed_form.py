"""The motion of a pendulum in closed form, with which mechanisms of one degree of freedom are compared.

psi: angle from the hanging position [rad]; psi'' = -w^2 sin psi; k: modulus.

With k = sqrt(psi'(0)^2 / (2 w)^2 + sin^2(psi(0) / 2)): for k < 1 it swings, sin(psi / 2) = k sn(w t + u | k^2); for
k > 1 it goes round, psi / 2 = am(k w t + u | 1 / k^2).

Source: any text on elliptic functions; Jacobi's sn and am by SciPy.
"""

import numpy as np
from scipy.special import ellipj, ellipk, ellipkinc


def pendulum(t, psi0: float, rate0: float, w: float):
    """psi and psi' (T,) at times t (T,) [s], for psi(0) = psi0 [rad], psi'(0) = rate0 [rad/s] and w [1/s]."""
    t = np.asarray(t, float)
    k2 = (rate0 / (2 * w)) ** 2 + np.sin(psi0 / 2) ** 2
    k = np.sqrt(k2)
    if k2 < 1:
        start = ellipkinc(np.arcsin(np.clip(np.sin(psi0 / 2) / k, -1, 1)), k2)
        start = start if rate0 >= 0 else 2 * ellipk(k2) - start
        sn, cn, _, _ = ellipj(w * t + start, k2)
        return 2 * np.arcsin(k * sn), 2 * w * k * cn
    if k2 == 1:
        raise ValueError("The pendulum just reaches its highest point, which takes forever; start it a little faster.")
    way = 1 if rate0 >= 0 else -1
    start = ellipkinc(way * psi0 / 2, 1 / k2)
    _, _, dn, amplitude = ellipj(k * w * t + start, 1 / k2)
    return 2 * way * amplitude, 2 * way * w * k * dn


def period(psi0: float, rate0: float, w: float) -> float:
    """Of a swing, or of one turn [s]."""
    k2 = (rate0 / (2 * w)) ** 2 + np.sin(psi0 / 2) ** 2
    return float(4 * ellipk(k2) / w if k2 < 1 else 2 * ellipk(1 / k2) / (w * np.sqrt(k2)))
