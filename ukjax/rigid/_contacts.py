"""Geoms of a model that may touch, by MuJoCo's rules for selecting pairs.

model: MuJoCo's. Source: MuJoCo's documentation, Computation, Collision detection, Selection.
"""

from typing import Any

import numpy as np

from ._switches import Switches


def touching(model: Any, switches: Switches) -> list[int]:
    """Numbers of the geoms that may touch another geom, with at least one of the two on a moving body."""
    if not switches.contact:
        return []
    moves = _moving(model)
    found = np.zeros(model.ngeom, bool)
    if model.ngeom:
        found |= _by_type(model, switches, moves)
    for first, second in zip(model.pair_geom1, model.pair_geom2, strict=True):
        if moves[model.geom_bodyid[first]] or moves[model.geom_bodyid[second]]:
            found[[first, second]] = True
    return np.flatnonzero(found).tolist()


def _by_type(model: Any, switches: Switches, moves: np.ndarray) -> np.ndarray:
    """Whether each geom may touch a geom of another body, by the bits of type and affinity (ngeom,)."""
    types, affinities = np.asarray(model.geom_contype), np.asarray(model.geom_conaffinity)
    body = np.asarray(model.geom_bodyid)
    bodies = np.unique(body[(types != 0) | (affinities != 0)])
    allowed = _allowed(model, switches, bodies, moves)
    of_types, of_affinities = (_together(bits, body, bodies) for bits in (types, affinities))
    found = np.zeros(model.ngeom, bool)
    for i, b in enumerate(bodies):
        others = allowed[i]
        type_there = np.bitwise_or.reduce(of_types[others], initial=0)
        affinity_there = np.bitwise_or.reduce(of_affinities[others], initial=0)
        found |= (body == b) & (((types & affinity_there) | (affinities & type_there)) != 0)
    return found


def _allowed(model: Any, switches: Switches, bodies: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Whether MuJoCo checks geoms of two bodies: not within a body, nor, by default, between a body and its parent."""
    weld = np.asarray(model.body_weldid)[bodies]
    parent = np.asarray(model.body_weldid)[np.asarray(model.body_parentid)[weld]]
    allowed = weld[:, None] != weld[None]
    allowed &= moves[bodies][:, None] | moves[bodies][None]
    if switches.filters_parents:
        kin = (weld[:, None] == parent[None]) | (parent[:, None] == weld[None])
        allowed &= ~(kin & (weld[:, None] != 0) & (weld[None] != 0))
    place = {b: i for i, b in enumerate(bodies.tolist())}
    for signature in np.asarray(model.exclude_signature).tolist():
        pair = [place.get(b) for b in (signature >> 16, signature & 0xFFFF)]
        if None not in pair:
            allowed[pair, pair[::-1]] = False
    return allowed


def _together(bits: np.ndarray, body: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """The bitwise or of the bits of all geoms of each body."""
    return np.array([np.bitwise_or.reduce(bits[body == b], initial=0) for b in bodies], bits.dtype)


def _moving(model: Any) -> np.ndarray:
    """Whether each body moves: it has a joint, or hangs on a body that moves."""
    moves = np.asarray(model.body_dofnum) > 0
    for i in range(1, model.nbody):  # parents come first
        moves[i] |= moves[model.body_parentid[i]]
    return moves
