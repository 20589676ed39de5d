"""The 3RRR mechanism in NumPy, in other coordinates and by Lagrange multipliers; no code of models/three_rrr.py.

s = (theta of A, B, C; centre of mass (x, y) and angle of the distal bars A, B, C; platform (x, y, phi)): 15 coordinates
with a constant diagonal mass matrix, 12 rows. A rotor adds N^2 J to the inertia of its bar and N tau to its torque.
"""

import numpy as np
from scipy.integrate import solve_ivp


ALPHA = np.deg2rad([90.0, 210.0, 330.0])
RB, RP, L1, L2, C1, C2 = 0.5, 0.15, 0.4, 0.35, 0.19, 0.16
M1, I1, M2, I2, MP, IP, J, N = 1.2, 0.07, 0.8, 0.009, 1.5, 0.02, 0.0015, 3.0
D = L2 - C2
MASS = np.array([I1 + N * N * J] * 3 + [M2, M2, I2] * 3 + [MP, MP, IP])


def rows(s, ds):
    """Constraint rows (12, 15) and the right-hand side of rows @ dds = -(d rows / dt) ds."""
    A, b = np.zeros((12, 15)), np.zeros(12)
    turn, dturn = s[14], ds[14]
    for k in range(3):
        theta, dtheta, phi, dphi = s[k], ds[k], s[3 + 3 * k + 2], ds[3 + 3 * k + 2]
        x, y, p = 3 + 3 * k, 4 + 3 * k, 5 + 3 * k
        a = turn + ALPHA[k]
        r = 4 * k
        A[r, [x, p, k]] = 1, C2 * np.sin(phi), L1 * np.sin(theta)
        b[r] = -(C2 * np.cos(phi) * dphi**2 + L1 * np.cos(theta) * dtheta**2)
        A[r + 1, [y, p, k]] = 1, -C2 * np.cos(phi), -L1 * np.cos(theta)
        b[r + 1] = -(C2 * np.sin(phi) * dphi**2 + L1 * np.sin(theta) * dtheta**2)
        A[r + 2, [x, p, 12, 14]] = 1, -D * np.sin(phi), -1, RP * np.sin(a)
        b[r + 2] = D * np.cos(phi) * dphi**2 - RP * np.cos(a) * dturn**2
        A[r + 3, [y, p, 13, 14]] = 1, D * np.cos(phi), -1, -RP * np.cos(a)
        b[r + 3] = D * np.sin(phi) * dphi**2 - RP * np.sin(a) * dturn**2
    return A, b


def force(s, g, torques):
    Q = np.zeros(15)
    Q[:3] = -M1 * g * C1 * np.cos(s[:3]) + N * np.asarray(torques)
    Q[[4, 7, 10]] = -M2 * g
    Q[13] = -MP * g
    return Q


def acceleration(s, ds, g, torques):
    A, b = rows(s, ds)
    K = np.block([[np.diag(MASS), A.T], [A, np.zeros((12, 12))]])
    return np.linalg.solve(K, np.concatenate([force(s, g, torques), b]))[:15]


def from_modules(q):
    """s from the coordinates of models/three_rrr.py."""
    q = np.asarray(q)
    elbow, phi = [q[5 * k + 2 : 5 * k + 4] for k in range(3)], q[[4, 9, 14]]
    bars = [[*(elbow[k] + C2 * np.array([np.cos(phi[k]), np.sin(phi[k])])), phi[k]] for k in range(3)]
    return np.concatenate([q[[1, 6, 11]], *bars, q[15:]])


def rates_from_modules(q, v):
    q, v = np.asarray(q), np.asarray(v)
    bars = []
    for k in range(3):
        phi, dphi = q[5 * k + 4], v[5 * k + 4]
        bars.append([v[5 * k + 2] - C2 * np.sin(phi) * dphi, v[5 * k + 3] + C2 * np.cos(phi) * dphi, dphi])
    return np.concatenate([v[[1, 6, 11]], *bars, v[15:]])


def trajectory(q, v, ts, g, torques=(0.0, 0.0, 0.0), rtol=1e-12):
    """s (T, 15) and its rates, from a state in the coordinates of models/three_rrr.py."""
    start = np.concatenate([from_modules(q), rates_from_modules(q, v)])
    f = lambda t, y: np.concatenate([y[15:], acceleration(y[:15], y[15:], g, torques)])
    found = solve_ivp(f, (ts[0], ts[-1]), start, method="DOP853", t_eval=ts, rtol=rtol, atol=rtol * 1e-1)
    return found.y.T[:, :15], found.y.T[:, 15:]


def driving_torques(s, ds, acceleration):
    """The rotors' torques by virtual work: no constraint force works along the motions that the rows allow."""
    A, _ = rows(s, ds)
    _, _, Vt = np.linalg.svd(A)
    T = Vt[12:].T  # (15, 3)
    needed = lambda g: T.T @ (MASS * acceleration - force(s, g, (0.0, 0.0, 0.0)))
    return lambda g: np.linalg.solve(N * T[:3].T, needed(g))
