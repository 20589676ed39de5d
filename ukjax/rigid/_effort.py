"""Springs, dampers, rotor inertias and stops of joints."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .. import _check
from .._result import is_traced
from .._types import Numbers


class Limit(eqx.Module):
    r"""Stops at the ends of a joint's range: stiff springs beyond, $k\,x\,(1 + d\,\dot x)$ inwards, never outwards.

    x: distance of the joint beyond the end. The force is continuous; how far the joint goes beyond depends on k.

    Args:
        lower: Least coordinate [rad or m].
        upper: Greatest coordinate [rad or m].
        stiffness: k [N m/rad or N/m], positive.
        damping: d, not negative [s/rad or s/m].

    Raises:
        ValueError: If a number is no scalar, not finite or of the wrong sign, or `upper` is below `lower`.

    Gradients: from either side at the ends.

    Source: Hunt & Crossley (1975), Coefficient of restitution interpreted as damping in vibroimpact.
    """

    lower: Array
    upper: Array
    stiffness: Array
    damping: Array

    def __init__(self, lower: ArrayLike, upper: ArrayLike, stiffness: ArrayLike, damping: ArrayLike = 0.0):
        self.lower, self.upper = number(lower, "lower"), number(upper, "upper")
        self.stiffness, self.damping = number(stiffness, "stiffness"), number(damping, "damping")
        if not is_traced(self.lower, self.upper) and self.upper < self.lower:
            raise ValueError(f"upper must not be below lower, {self.lower}, but is {self.upper}.")
        if not is_traced(self.stiffness) and self.stiffness <= 0:
            raise ValueError(f"stiffness must be positive, but is {self.stiffness}.")
        if not is_traced(self.damping) and self.damping < 0:
            raise ValueError(f"damping must not be negative, but is {self.damping}.")

    def of(self, q: Array, v: Array) -> Array:
        """The generalised force of the stops at a coordinate and a speed."""
        return self._push(jnp.maximum(self.lower - q, 0.0), -v) - self._push(jnp.maximum(q - self.upper, 0.0), v)

    def _push(self, x: Array, rate: Array) -> Array:
        return self.stiffness * x * jnp.maximum(1 + self.damping * rate, 0.0)

    def energy(self, q: Array) -> Array:
        """The energy in the springs of the stops [J]."""
        beyond = jnp.maximum(self.lower - q, 0.0) + jnp.maximum(q - self.upper, 0.0)
        return self.stiffness * beyond**2 / 2


class Effort(eqx.Module):
    """The spring, damper, rotor inertia and stops of a joint of one coordinate.

    Args:
        stiffness: [N m/rad or N/m].
        rest: Coordinate at which the spring is relaxed [rad or m].
        damping: [N m s/rad or N s/m].
        armature: Inertia that moves with the coordinate only, of a rotor behind a gear [kg m^2 or kg].
        limit: `Limit`, the ends of the joint's range, or None for no stops.

    Raises:
        TypeError: If `limit` is not a `Limit`.
        ValueError: If a number is no scalar, not finite, or armature is negative.
    """

    stiffness: Array
    rest: Array
    damping: Array
    armature: Array
    limit: Limit | None

    def __init__(
        self,
        stiffness: ArrayLike = 0.0,
        rest: ArrayLike = 0.0,
        damping: ArrayLike = 0.0,
        armature: ArrayLike = 0.0,
        limit: Limit | None = None,
    ):
        if limit is not None:
            _check.instance(limit, Limit, "limit", "rigid.Limit(-1.0, 1.0, stiffness=1e4)")
        self.limit = limit
        self.stiffness, self.rest = number(stiffness, "stiffness"), number(rest, "rest")
        self.damping = damping_of(damping)
        self.armature = _inertia(armature)

    def of(self, q: Array, v: Array) -> Array:
        """The generalised force of the spring, the damper and the stops."""
        force = -self.stiffness * (q - self.rest) - self.damping * v
        return force if self.limit is None else force + self.limit.of(q, v)

    def energy(self, q: Array) -> Array:
        """The energy in the spring and the stops [J]."""
        energy = self.stiffness * (q - self.rest) ** 2 / 2
        return energy if self.limit is None else energy + self.limit.energy(q)


class Drag(eqx.Module):
    """The damping and rotor inertia of a ball joint's angular velocity.

    Args:
        damping: [N m s/rad].
        armature: Inertia that turns with the ball only [kg m^2].

    Raises:
        ValueError: If a number is no scalar, not finite, or armature is negative.
    """

    damping: Array
    armature: Array

    def __init__(self, damping: ArrayLike = 0.0, armature: ArrayLike = 0.0):
        self.damping = damping_of(damping)
        self.armature = _inertia(armature)


def _inertia(armature: object) -> Array:
    """`armature` as a finite scalar; raises ValueError if it is negative."""
    x = number(armature, "armature")
    if not is_traced(x) and x < 0:
        raise ValueError(f"armature must not be negative, but is {x}.")
    return x


def damping_of(value: object) -> Array:
    """`value` as a finite scalar; warns if it is negative."""
    x = number(value, "damping")
    _check.warn_if_negative(x, "damping", "it drives the motion instead of damping it", callers=5)
    return x


def number(value: object, name: str) -> Array:
    """`value` as a finite scalar; raises ValueError if `value` is not one."""
    x = _check.floating(value, name)
    if x.ndim:
        raise ValueError(f"{name} must be a scalar, but has shape {x.shape}.")
    _check.finite(x, name)
    return x


def pitch_of(value: object) -> Array:
    """The pitch of a screw as a nonzero scalar [m/rad]; raises ValueError if `value` is not one."""
    pitch = _check.floating(value, "pitch")
    _check.finite(pitch, "pitch")
    if pitch.ndim or (not is_traced(pitch) and pitch == 0):
        raise ValueError(f"pitch must be a nonzero number [m/rad] (zero is a Revolute), but is {pitch}.")
    return pitch


class Motor(eqx.Module):
    """An actuator on a joint of one coordinate.

    Args:
        joint: Name of the joint.
        gear: Torque [N m], or force [N], of the joint for a unit of control.
    """

    joint: str = eqx.field(static=True)
    gear: Array

    def __init__(self, joint: str, gear: ArrayLike = 1.0):
        self.joint, self.gear = joint, number(gear, "gear")


class Gear(eqx.Module):
    """A coupling of two joints of one coordinate: c_first = a_0 + a_1 c_second + a_2 c_second^2 + ...; one row.

    Either side may be a sum, as of a tendon over several joints: c_first = sum of f_i c_i.

    Args:
        first: Name of a joint, or joint -> factor f for a sum.
        second: Likewise; None to hold the first at a_0.
        coefficients: a (k,); the ratio a_1 alone if it is a number.

    Raises:
        TypeError: If a side is neither a name nor a mapping.
        ValueError: If the coefficients are not finite, or have another shape; or if a sum is empty, or has such
            factors.
    """

    first: str | tuple[str, ...] = eqx.field(static=True)
    second: str | tuple[str, ...] | None = eqx.field(static=True)
    coefficients: Array
    factors: tuple[Array | None, Array | None]

    def __init__(
        self,
        first: str | Mapping[str, ArrayLike],
        second: str | Mapping[str, ArrayLike] | None,
        coefficients: Numbers,
    ):
        a = _check.floating(coefficients, "coefficients")
        if a.ndim > 1 or 0 in a.shape:
            raise ValueError(f"coefficients must be a number or have shape (k,), but have shape {a.shape}.")
        _check.finite(a, "coefficients")
        self.coefficients = jnp.stack([jnp.zeros_like(a), a]) if a.ndim == 0 else a
        self.first, of_first = _side(first, "first")
        self.second, of_second = (None, None) if second is None else _side(second, "second")
        self.factors = of_first, of_second

    @property
    def joints(self) -> tuple[str, ...]:
        """The names of the joints on both sides."""
        sides = ((side,) if isinstance(side, str) else side for side in (self.first, self.second) if side is not None)
        return tuple(name for side in sides for name in side)

    def row(self, coordinate: Callable[[str], Array]) -> Array:
        """The first side less the polynomial of the second, where `coordinate` gives that of a joint by name."""
        first, second = (
            coordinate(side) if isinstance(side, str) else self._sum(side, factors, coordinate)
            for side, factors in zip((self.first, self.second), self.factors, strict=True)
        )
        wanted = jnp.zeros_like(first)
        for a in self.coefficients[::-1]:
            wanted = wanted * second + a
        return first - wanted

    def of(self, c: Array) -> Array:
        """The row (1,) for coordinates of its joints (k,), which are all different."""
        return self.row(dict(zip(self.joints, c, strict=True)).__getitem__)[None]

    def _sum(self, side: tuple[str, ...] | None, factors: Array | None, coordinate: Callable[[str], Array]) -> Array:
        if side is None or factors is None:
            return jnp.zeros((), self.coefficients.dtype)
        return sum(f * coordinate(name) for f, name in zip(factors, side, strict=True))  # pyright: ignore


def _side(value: object, name: str) -> tuple[str | tuple[str, ...], Array | None]:
    """A side of a gear as the name of a joint without factors, or names with factors."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, Mapping):
        raise TypeError(
            f'{name} must be the name of a joint, or a mapping such as {{"a": 1.0, "b": -0.5}}, but is {value!r}.'
        )
    if not value:
        raise ValueError(f'{name} must name a joint at least, such as {{"a": 1.0, "b": -0.5}}, but is empty.')
    return tuple(value), jnp.stack([number(factor, f"{name}[{joint!r}]") for joint, factor in value.items()])
