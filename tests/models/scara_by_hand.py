"""The SCARA of Xu & Liu (2017) in NumPy, from the paper's own hand-derived A and b (eq. 49 and 54).

Shares no code with models/scara.py or ukjax.
"""

import numpy as np
from scipy.integrate import solve_ivp


M1, M2, M3, M4, L0, L1, L2, R1, R2 = 20.0, 15.0, 15.0, 0.5, 0.0, 0.2, 0.25, 0.1, 0.125
I1, I2, I3, I4, G = 0.27, 0.31, 0.02, 0.0001, 9.81
W = 0.4 * np.pi
ALPHA = I1 + R1**2 * M1 + L1**2 * M2 + L1**2 * M3 + L1**2 * M4
BETA = I2 + I3 + I4 + L2**2 * M3 + L2**2 * M4 + M2 * R2**2
GAMMA = L1 * L2 * M3 + L1 * L2 * M4 + L1 * M2 * R2
DELTA = I3 + I4


def mass(q):
    c2 = np.cos(q[1])
    return np.array(
        [
            [ALPHA + BETA + 2 * GAMMA * c2, BETA + GAMMA * c2, DELTA, 0],
            [BETA + GAMMA * c2, BETA, DELTA, 0],
            [DELTA, DELTA, DELTA, 0],
            [0, 0, 0, M4],
        ]
    )


def force(q, v):
    s = GAMMA * np.sin(q[1])
    return -np.array([-s * v[1] * v[0] - s * (v[0] + v[1]) * v[1], s * v[0] ** 2, 0, M4 * G])


def errors(q, v, t):
    """Phi and its rate, eq. 48."""
    s1, c1, s12, c12 = np.sin(q[0]), np.cos(q[0]), np.sin(q[0] + q[1]), np.cos(q[0] + q[1])
    w1, w12 = v[0], v[0] + v[1]
    phi = [
        -L1 * s1 - L2 * s12 - 0.05 * np.sin(W * t),
        L1 * c1 + L2 * c12 - 0.35 - 0.05 * np.cos(W * t),
        q[0] + q[1] + q[2],
        q[3] + L0 - 0.02 * t,
    ]
    rate = [
        -w1 * L1 * c1 - w12 * L2 * c12 - 0.05 * W * np.cos(W * t),
        -w1 * L1 * s1 - w12 * L2 * s12 + 0.05 * W * np.sin(W * t),
        v[0] + v[1] + v[2],
        v[3] - 0.02,
    ]
    return np.array(phi), np.array(rate)


def rows(q, v, t, damping=0.0, stiffness=0.0):
    """A and b of eq. 49, with the terms of eq. 54."""
    s1, c1, s12, c12 = np.sin(q[0]), np.cos(q[0]), np.sin(q[0] + q[1]), np.cos(q[0] + q[1])
    A = np.array(
        [
            [-L1 * c1 - L2 * c12, -L2 * c12, 0, 0],
            [-L1 * s1 - L2 * s12, -L2 * s12, 0, 0],
            [1, 1, 1, 0],
            [0, 0, 0, 1],
        ]
    )
    b = np.array(
        [
            -(v[0] ** 2) * L1 * s1 - (v[0] + v[1]) ** 2 * L2 * s12 - 0.05 * W**2 * np.sin(W * t),
            v[0] ** 2 * L1 * c1 + (v[0] + v[1]) ** 2 * L2 * c12 - 0.05 * W**2 * np.cos(W * t),
            0,
            0,
        ]
    )
    phi, rate = errors(q, v, t)
    return A, b - damping * rate - stiffness * phi


def acceleration(q, v, t, damping=0.0, stiffness=0.0):
    """By Lagrange multipliers, eq. 53."""
    A, b = rows(q, v, t, damping, stiffness)
    augmented = np.block([[mass(q), -A.T], [A, np.zeros((4, 4))]])
    return np.linalg.solve(augmented, np.concatenate([force(q, v), b]))[:4]


def integrate(q0, v0, ts, damping, stiffness):
    """States (T, 8) by SciPy's DOP853."""
    slope = lambda t, y: np.concatenate([y[4:], acceleration(y[:4], y[4:], t, damping, stiffness)])
    start = np.concatenate([q0, v0])
    options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}
    return solve_ivp(slope, (ts[0], ts[-1]), start, t_eval=ts, **options).y.T
