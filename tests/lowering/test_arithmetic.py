"""Elementary functions of machine code, against numbers of 60 digits, at random and at awkward arguments.

References: mpmath for values; NumPy, which follows IEEE 754, for zeros, infinities, NaN, and domains.
"""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from .code import machine_code


COUNT = 400
WORST = 2.0  # ulp
RANDOM = np.random.default_rng(1)
SMALL = [0.0, 5e-324, 1e-310, 2.2e-308, 1e-16, 0.5, 1 - 1e-16, 1.0, 1 + 2.3e-16, np.pi / 2, np.pi, 22.0]
LARGE = [709.78, 710.0, 745.2, 2.0**52, 2.0**53, 1e22, 1e308, np.inf, np.nan]
AWKWARD = np.array([*SMALL, *LARGE])
AWKWARD = np.concatenate([AWKWARD, -AWKWARD])


def everywhere(low, high):
    """Numbers of all sizes between two powers of e, of both signs."""
    return RANDOM.choice([-1.0, 1.0], COUNT) * np.exp(RANDOM.uniform(low, high, COUNT))


def usual():
    return RANDOM.normal(size=COUNT) * RANDOM.choice([1e-3, 0.1, 1.0, 10.0, 300.0], COUNT)


def near_one():
    return RANDOM.choice([-1.0, 1.0], COUNT) * (1 - np.exp(RANDOM.uniform(-36.0, 0.0, COUNT)))


def angles():
    return np.concatenate([usual(), RANDOM.uniform(-1, 1, COUNT) * 2.0 ** RANDOM.uniform(0, 53, COUNT)])


def logistic(x):
    return 1 / (1 + mpmath.exp(-x))


def cube_root(x):
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


# The function of JAX, of mpmath and of NumPy, and arguments.
FUNCTIONS = {
    "sin": (jnp.sin, mpmath.sin, np.sin, angles),
    "cos": (jnp.cos, mpmath.cos, np.cos, angles),
    "tan": (jnp.tan, mpmath.tan, np.tan, angles),
    "exp": (jnp.exp, mpmath.exp, np.exp, lambda: np.concatenate([usual(), RANDOM.uniform(-745, 709.7, COUNT)])),
    "expm1": (jnp.expm1, mpmath.expm1, np.expm1, lambda: np.concatenate([usual(), everywhere(-700, 6)])),
    "log": (jnp.log, mpmath.log, np.log, lambda: np.abs(np.concatenate([everywhere(-745, 709), near_one()]))),
    "log1p": (jnp.log1p, mpmath.log1p, np.log1p, lambda: np.concatenate([everywhere(-700, 0), np.abs(usual())])),
    "cbrt": (jnp.cbrt, cube_root, np.cbrt, lambda: np.concatenate([everywhere(-745, 709), usual()])),
    "atan": (jnp.arctan, mpmath.atan, np.arctan, lambda: np.concatenate([everywhere(-745, 709), usual()])),
    "asin": (jnp.arcsin, mpmath.asin, np.arcsin, lambda: np.concatenate([near_one(), everywhere(-700, 0)])),
    "acos": (jnp.arccos, mpmath.acos, np.arccos, lambda: np.concatenate([near_one(), everywhere(-700, 0)])),
    "sinh": (jnp.sinh, mpmath.sinh, np.sinh, lambda: np.concatenate([usual(), everywhere(-700, 6.56)])),
    "cosh": (jnp.cosh, mpmath.cosh, np.cosh, lambda: np.concatenate([usual(), everywhere(-700, 6.56)])),
    "tanh": (jnp.tanh, mpmath.tanh, np.tanh, lambda: np.concatenate([usual(), everywhere(-700, 700)])),
    "asinh": (jnp.arcsinh, mpmath.asinh, np.arcsinh, lambda: np.concatenate([usual(), everywhere(-700, 700)])),
    "acosh": (jnp.arccosh, mpmath.acosh, np.arccosh, lambda: 1 + np.abs(everywhere(-36, 700))),
    "atanh": (jnp.arctanh, mpmath.atanh, np.arctanh, lambda: np.concatenate([near_one(), everywhere(-700, 0)])),
    "logistic": (jax.nn.sigmoid, logistic, lambda x: 1 / (1 + np.exp(-x)), usual),
}  # fmt: skip


def ulps(got, want):
    """The error of a double in units of the last place of the exact value, and none where both overflow."""
    nearest = float(want)
    if not np.isfinite(nearest):
        return 0.0 if got == nearest else np.inf
    return float(abs(mpmath.mpf(got) - want) / np.spacing(abs(nearest)))


def agree(got, want):
    """Whether two numbers are the same, the signs of zeros and NaN included."""
    return (np.isnan(got) & np.isnan(want)) | ((got == want) & (np.signbit(got) == np.signbit(want)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_two_ulps_with_the_same_bits_at_every_width(name):
    of_jax, exact, of_numpy, draw = FUNCTIONS[name]
    x = np.concatenate([draw(), AWKWARD])
    _, (found,) = machine_code(of_jax, 1, x)
    _, (again,) = machine_code(of_jax, 8, x)
    np.testing.assert_array_equal(found.view(np.int64), again.view(np.int64))
    with np.errstate(all="ignore"):
        usual_value = of_numpy(x)
    if name in ("sin", "cos", "tan"):
        usual_value = np.where(np.abs(x) < 2.0**53, usual_value, np.nan)
    ordinary = np.isfinite(usual_value) & (x != 0)
    assert np.all(agree(found, usual_value)[~ordinary]), x[~ordinary & ~agree(found, usual_value)]
    with mpmath.workprec(1200 if name in ("sin", "cos", "tan") else 240):
        errors = [ulps(y, exact(mpmath.mpf(a))) for a, y in zip(x[ordinary], found[ordinary], strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= WORST, f"{name}({x[ordinary][worst]!r}) is off by {errors[worst]:.2f} ulp"


def pairs():
    x = np.concatenate([np.abs(usual()), np.abs(everywhere(-700, 700)), 1 + everywhere(-36, -3), usual()])
    y = np.concatenate([usual(), RANDOM.uniform(-1, 1, COUNT), everywhere(0, 30), np.round(usual())])
    awkward = np.array([(a, b) for a in AWKWARD for b in (*AWKWARD, 2.0, 3.0, -3.0, 0.5, 3.5, 1e300)])
    return np.concatenate([x, awkward[:, 0]]), np.concatenate([y, awkward[:, 1]])


@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_a_function_of_two_is_right_to_two_ulps_with_the_same_bits_at_every_width(name):
    of_jax, of_numpy = {"pow": (jnp.power, np.power), "atan2": (jnp.arctan2, np.arctan2)}[name]
    x, y = pairs()
    _, (found,) = machine_code(of_jax, 1, x, y)
    _, (again,) = machine_code(of_jax, 8, x, y)
    np.testing.assert_array_equal(found.view(np.int64), again.view(np.int64))
    with np.errstate(all="ignore"):
        # NumPy takes a root for the power 1/2, with other values at -0 and -inf than IEEE 754 has.
        usual_value = of_numpy(x, y)
    root = (name == "pow") & (y == 0.5) & (np.signbit(x)) & ((x == 0) | np.isinf(x))
    usual_value = np.where(root, np.abs(x), usual_value)
    ordinary = np.isfinite(usual_value) & np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0) & (usual_value != 0)
    others = ~ordinary & ~((usual_value == 0) & np.isfinite(x) & (x != 0) & np.isfinite(y))
    assert np.all(agree(found, usual_value)[others])
    exact = {"pow": lambda a, b: mpmath.power(a, b).real, "atan2": mpmath.atan2}[name]
    with mpmath.workprec(240):
        each = zip(x[ordinary], y[ordinary], found[ordinary], strict=True)
        errors = [ulps(z, exact(mpmath.mpf(a), mpmath.mpf(b))) for a, b, z in each]
    worst = int(np.argmax(errors))
    assert errors[worst] <= WORST, f"{name}({x[ordinary][worst]!r}, {y[ordinary][worst]!r}): {errors[worst]:.2f} ulp"


def test_single_precision_is_rounded_once():
    with np.errstate(over="ignore"):
        x = np.concatenate([usual(), AWKWARD]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.where(np.abs(x) < 2.0**53, np.sin(x.astype(np.float64)), np.nan).astype(np.float32)
    _, (found,) = machine_code(jnp.sin, 8, x)
    np.testing.assert_allclose(found, want, rtol=1.2e-7)
