"""A check that every joint of a URDF file moves a mass: M without constraints, before a robot is made.

M = sum of S^T G S over the links; S: twist of a link per unit of each speed, (linear, angular) at the ground's origin
(6, n); G: the link's inertia there (6, 6). M is computed link by link in NumPy, so nothing is compiled.
"""

from collections.abc import Callable

import numpy as np

from ._urdf import Description, Inertial, Joint, Placed


# A direction has no mass if its eigenvalue of M, scaled to a unit diagonal, is at most this times n.
SMALLEST = 1e-13


# The kind of the joint that a link hangs on, from the link's name and that joint (None for a root).
Kind = Callable[[str, Joint | None], str]


def without_mass(found: Description, kind: Kind) -> tuple[str | None, str | None]:
    """Names of a joint that can move without any mass, as drawn and in a generic state; None where no joint can.

    Args:
        found: The file; its links' inertias are credible.
        kind: Gives the kind of the joint that a link hangs on.

    A joint with a <mimic> counts as held by the joint that it follows.
    """
    rng = np.random.default_rng(0)
    drawn = _loose(found, kind, lambda: np.zeros(6))
    return drawn, None if drawn is None else _loose(found, kind, lambda: rng.uniform(0.3, 1.0, 6))


def _loose(found: Description, kind: Kind, way: Callable[[], np.ndarray]) -> str | None:
    """The joint with the largest part in the direction of least M, <mimic> rows included; None if M is definite."""
    M, owners = _mass(found, kind, way)
    n = len(owners)
    if not n:
        return None
    # The units of the speeds make the diagonal of M one, which separates small masses from zero.
    size = np.sqrt(np.where(np.diag(M) > 0, np.diag(M), 1.0))
    M = M / np.outer(size, size)
    for joint in found.joints.values():
        if joint.mimic is not None and joint.name in owners:
            row = np.zeros(n)
            row[owners.index(joint.name)] += 1.0
            if joint.mimic.joint in owners:
                row[owners.index(joint.mimic.joint)] -= joint.mimic.multiplier
            row /= size
            M = M + np.outer(row, row) / (row @ row)
    values, vectors = np.linalg.eigh(M)
    return None if values[0] > SMALLEST * n else owners[int(np.argmax(np.abs(vectors[:, 0])))]


def _mass(found: Description, kind: Kind, way: Callable[[], np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """M (n, n), and the owner of each speed: a joint, or a root link that floats."""
    ground, columns, owners = Placed(np.eye(3), np.zeros(3)), [], []
    places: dict[str, Placed] = {}
    moved: dict[str, list[int]] = {}
    for link, joint in found.tree():
        parent = "" if joint is None else joint.parent
        own = _twists(kind(link, joint), np.array([1.0, 0.0, 0.0]) if joint is None else joint.axis)
        place = places.get(parent, ground)
        place = place if joint is None else _then(place, joint.origin)
        linear, angular = np.split(own @ way()[: own.shape[1]], 2)
        places[link] = place = _then(place, Placed(_rotation(angular), linear))
        moved[link] = [*moved.get(parent, []), *range(len(columns), len(columns) + own.shape[1])]
        columns += list((_at_ground(place) @ own).T)
        owners += [link if joint is None else joint.name] * own.shape[1]
    M = np.zeros((len(owners), len(owners)))
    for name, link in found.links.items():
        if link.inertial is not None and moved[name]:
            S = _at_ground(_inverse(places[name])) @ np.array([columns[k] for k in moved[name]]).T
            M[np.ix_(moved[name], moved[name])] += S.T @ _spatial(link.inertial) @ S
    return M, owners


def _twists(kind: str, axis: np.ndarray) -> np.ndarray:
    """The twists (linear, angular) per unit of a joint's speeds, as columns (6, k)."""
    if kind == "floating":
        return np.eye(6)
    if kind == "spherical":
        return np.eye(6)[:, 3:]
    if kind == "fixed":
        return np.zeros((6, 0))
    slides, turns = np.append(axis, np.zeros(3)), np.append(np.zeros(3), axis)
    if kind == "planar":
        across = np.linalg.svd(axis[None])[2][1:]
        return np.stack([np.append(across[0], np.zeros(3)), np.append(across[1], np.zeros(3)), turns], axis=1)
    return (slides if kind == "prismatic" else turns)[:, None]


def _then(outer: Placed, inner: Placed) -> Placed:
    return Placed(outer.R @ inner.R, outer.p + outer.R @ inner.p)


def _cross(u: np.ndarray) -> np.ndarray:
    return np.array([[0.0, -u[2], u[1]], [u[2], 0.0, -u[0]], [-u[1], u[0], 0.0]])


def _rotation(w: np.ndarray) -> np.ndarray:
    """The rotation matrix of a rotation vector, by Rodrigues's formula."""
    angle = np.linalg.norm(w)
    if not angle:
        return np.eye(3)
    K = _cross(w / angle)
    return np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K


def _inverse(place: Placed) -> Placed:
    return Placed(place.R.T, -(place.R.T @ place.p))


def _at_ground(place: Placed) -> np.ndarray:
    """The matrix (6, 6) that maps a twist seen from a frame to the twist seen from, and about, the outer frame."""
    found = np.zeros((6, 6))
    found[:3, :3] = found[3:, 3:] = place.R
    found[:3, 3:] = _cross(place.p) @ place.R
    return found


def _spatial(inertial: Inertial) -> np.ndarray:
    """The inertia (6, 6) that maps (linear, angular) to (force, torque), about the link's origin."""
    C, m = _cross(inertial.center), inertial.mass
    return np.block([[m * np.eye(3), -m * C], [m * C, inertial.J - m * C @ C]])
