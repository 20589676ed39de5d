"""What the tables of de Falco, Pennestri & Vita (2008) print."""

from collections.abc import Callable


# Table 1: floating point operations of an acceleration, m rows and n coordinates.
FLOPS: dict[str, Callable[[int, int], int]] = {
    "UdwadiaKalaba (31)": lambda m, n: 12 * m * n**2 + 4 * m**2 * n + 9 * n**3 + 6 * n**2 + 4 * n,
    "UdwadiaPhohomsiri (43)": lambda m, n: (
        4 * m**2 * n + 10 * m * n**2 + 11 * n**3 + 4 * (n + m) ** 2 * n + (n + m) * (8 * n**2 + 2 * n) + n
    ),
    "RangeSpace (35)": lambda m, n: 8 * n**2 * m + 21 * m**3 + 2 * m**2 * n + 6 * n**2 + 3 * n,
    "PennestriDeFalco (41)": lambda m, n: 4 * m**2 * n + 12 * m * n**2 + 34 * n**3 + 3 * n + 4 * n**2,
}

_svd = lambda m, n: 4 * m**2 * n + 8 * m * n**2 + 9 * n**3

# Tables 2 to 5: the same, operation by operation; with D for A M^(-1/2) and + for a pseudoinverse.
OPERATIONS: dict[str, list[tuple[str, Callable[[int, int], int]]]] = {
    "UdwadiaKalaba (31)": [
        ("M^-1", lambda m, n: n),
        ("M^(-1/2)", lambda m, n: n),
        ("D", lambda m, n: 2 * n**2 * m),
        ("D+", _svd),
        ("a = M^-1 Q", lambda m, n: 2 * n**2),
        ("A a", lambda m, n: 2 * n**2),
        ("b - A a", lambda m, n: n),
        ("M^(-1/2) D+", lambda m, n: 2 * n**2 * m),
        ("M^(-1/2) D+ (b - A a)", lambda m, n: 2 * n**2),
        ("sum", lambda m, n: n),
    ],
    "RangeSpace (35)": [
        ("M^-1", lambda m, n: n),
        ("M^-1 A^T", lambda m, n: 2 * n**2 * m),
        ("A M^-1 A^T", lambda m, n: 2 * n**2 * m),
        ("(A M^-1 A^T)+", lambda m, n: 21 * m**3),
        ("A^T (..)+", lambda m, n: 2 * m**2 * n),
        ("H", lambda m, n: 2 * n**2 * m),
        ("H A", lambda m, n: 2 * n**2 * m),
        ("I - H A", lambda m, n: n),
        ("M^-1 Q", lambda m, n: 2 * n**2),
        ("(I - H A) M^-1 Q", lambda m, n: 2 * n**2),
        ("H b", lambda m, n: 2 * n**2),
        ("sum", lambda m, n: n),
    ],
    "PennestriDeFalco (41)": [
        ("A+", _svd),
        ("A+ A", lambda m, n: 2 * n**2 * m),
        ("E", lambda m, n: n),
        ("E M E", lambda m, n: 4 * n**3),
        ("(E M E)+", lambda m, n: 21 * n**3),
        ("I + M", lambda m, n: n),
        ("(I + M) A+", lambda m, n: 2 * n**2 * m),
        ("(..)+ Q", lambda m, n: 2 * n**2),
        ("(..) b", lambda m, n: 2 * n**2),
        ("sum", lambda m, n: n),
    ],
    "UdwadiaPhohomsiri (43)": [
        ("A+", _svd),
        ("A+ A", lambda m, n: 2 * m * n**2),
        ("E", lambda m, n: n),
        ("E M", lambda m, n: 2 * n**3),
        ("[E M; A]+", lambda m, n: _svd(n + m, n)),
        ("[E M; A]+ [Q; b]", lambda m, n: 2 * (n + m) * n),
    ],
}
SIZES = ((2, 3), (15, 18), (19, 28))
TABLE_6 = {
    "UdwadiaKalaba (31)": (573, 129024, 421568),
    "UdwadiaPhohomsiri (43)": (1218, 294102, 975716),
    "RangeSpace (35)": (399, 119853, 288211),
    "PennestriDeFalco (41)": (1227, 274158, 968772),
}

# Tables 7 to 12: (stabilised, tolerance) -> method -> result, sum of psi^2, function evaluations.
RUNS: dict[tuple[bool, float], dict[str, tuple[str, str, str]]] = {
    (False, 1e-10): {
        "SVD": ("fails at 9.1 s", "3.7e-7", "-"),
        "Varga": ("fails at 8.0 s", "9.9e-2", "-"),
        "Greville": ("correct to 17.5 s", "4.5e-5", "2,961,955"),
        "HouseholderLS": ("correct to 16.5 s", "2.3e-4", "6,131,159"),
        "GramSchmidtLS": ("correct to 17.0 s", "1.1e-4", "3,749,766"),
    },
    (False, 1e-8): {
        "SVD": ("fails at 12.1 s", "3.4e-6", "-"),
        "Varga": ("fails at 8.1 s", "9.9e-2", "-"),
        "Greville": ("correct to 17.5 s", "1.9e-4", "1,648,055"),
        "HouseholderLS": ("correct to 18.0 s", "7.9e-4", "1,641,751"),
        "GramSchmidtLS": ("correct to 18.0 s", "5.2e-4", "1,644,341"),
    },
    (False, 1e-6): {
        "SVD": ("correct to 17.5 s", "4.1e-4", "1,033,381"),
        "Varga": ("fails at 7.3 s", "9.9e-2", "-"),
        "Greville": ("correct to 19.0 s", "9.7e-4", "1,017,558"),
        "HouseholderLS": ("correct", "7.9e-4", "1,641,751"),
        "GramSchmidtLS": ("correct", "6.9e-4", "1,013,795"),
    },
    (True, 1e-10): {
        "SVD": ("fails at 1.2 s", "-", "-"),
        "Varga": ("correct", "4.5e-5", "78,491,398"),
        "Greville": ("correct", "2.1e-7", "74,043,990"),
        "HouseholderLS": ("correct", "3.3e-7", "73,707,588"),
        "GramSchmidtLS": ("correct", "4.1e-7", "73,910,268"),
    },
    (True, 1e-8): {
        "SVD": ("fails at 0.2 s", "-", "-"),
        "Varga": ("fails at 15.0 s", "-", "-"),
        "Greville": ("correct", "4.9e-7", "80,109,155"),
        "HouseholderLS": ("correct", "3.5e-7", "80,197,458"),
        "GramSchmidtLS": ("correct", "4.9e-7", "80,112,706"),
    },
    (True, 1e-6): {
        "SVD": ("fails at 0.5 s", "-", "-"),
        "Varga": ("fails at 9.7 s", "-", "-"),
        "Greville": ("correct", "1.9e-6", "80,483,163"),
        "HouseholderLS": ("correct", "1.1e-6", "80,689,071"),
        "GramSchmidtLS": ("correct", "1.1e-6", "80,636,983"),
    },
}
