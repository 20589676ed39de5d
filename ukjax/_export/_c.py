"""Exported functions in C99: a header, and a file with a test of its own."""

import importlib.metadata
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._lowering import CArray, c_function, c_number, c_type
from ._program import Exported, Parameter
from ._quantities import Argument


class Title(NamedTuple):
    """The name of the files, which all names in them begin with, and what is written about the mechanism.

    `sizes`: the names of sizes, and the sizes.
    """

    name: str
    about: str
    sizes: dict[str, int]
    parameters: Sequence[Parameter]

    @property
    def prefix(self) -> str:
        return self.name.upper()

    def room(self, argument: Argument) -> str:
        return argument.room.format(**{size: f"{self.prefix}_{size}" for size in self.sizes})


WIDTH = 110
# Arguments that the header describes once.
STATE = ("q", "v", "t", "u", "h", "p")


def safe_comment(lines: Sequence[str]) -> list[str]:
    """A comment of C. Text of the user's neither ends it nor starts another one."""
    safe = [x.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/") for x in lines]
    wrapped = [y for x in safe for y in textwrap.wrap(x, WIDTH, subsequent_indent="        " * x.startswith(" "))]
    if len(wrapped) == 1:
        return [f"/* {wrapped[0]} */"]
    return ["/* " + wrapped[0], *(f" * {x}".rstrip() for x in wrapped[1:]), " */"]


def described(argument: Argument) -> str:
    """The line about an argument in a comment."""
    entries = f": {', '.join(argument.entries)}" if argument.entries else ""
    return f"    {argument.name}: {argument.about}{entries}"


def _signature(title: Title, one: Exported) -> str:
    kind = c_type(one.dtype)
    takes = [
        f"{kind} {x.name}" if x.size is None else f"const {kind} {x.name}[{title.room(x)}]" for x in one.quantity.takes
    ]
    gives = [f"{kind} {x.name}[{title.room(x)}]" for x in one.quantity.gives]
    return f"int {title.name}_{one.name}({', '.join([*takes, *gives])})"


def header(title: Title, functions: Sequence[Exported], further: Sequence[str] = ()) -> str:
    """The header, the same for C and for an object; `further`: lines about further functions."""
    name, prefix = title.name, title.prefix
    about = [
        f"{title.about}, by ukjax {importlib.metadata.version('ukjax')}.",
        f"Functions return {prefix}_CERTAIN where they are certain of their results. Elsewhere they return "
        f"{prefix}_UNCERTAIN, and all results are NaN: next to a state in which the rank of the constraints changes a "
        "singular value decomposition would have to decide, or there is no motion at all.",
        "They have no memory, and no global variables. Units are SI, in brackets.",
    ]
    state = {x.name: x for one in functions for x in one.quantity.takes if x.name in STATE}
    about += ["Arguments of several functions, in this order:", *map(described, state.values())]
    lines = [*safe_comment(about), f"#ifndef {prefix}_H", f"#define {prefix}_H", ""]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += [f"#define {prefix}_{size} {count}" for size, count in title.sizes.items()]
    lines += ["", f"enum {name}_result {{ {prefix}_UNCERTAIN = 0, {prefix}_CERTAIN = 1 }};"]
    if title.parameters:
        kind = c_type(functions[0].dtype)
        entries = [entry for x in title.parameters for entry in x.entries]
        lines += ["", *safe_comment(["Places of parameters in the array p."]), f"enum {name}_parameter {{"]
        lines += [f"    {prefix}_P_{x.upper()}," for x in entries[:-1]] + [
            f"    {prefix}_P_{entries[-1].upper()}",
            "};",
        ]
        lines += ["", *safe_comment(["Writes the values that the parameters had when they were exported."])]
        lines += [f"void {name}_defaults({kind} p[{prefix}_PARAMETERS]);"]
    for one in functions:
        takes, gives = one.quantity.takes, one.quantity.gives
        about = [one.quantity.about, *(described(x) for x in takes if x.name not in STATE)]
        about += ["Results:", *map(described, gives)]
        lines += ["", *safe_comment(about), f"{_signature(title, one)};"]
    return "\n".join([*lines, *further, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


# Bits depend on sums and products being rounded one by one.
DEMANDS = """\
#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "The arithmetic must be that of IEEE 754: compile without -ffast-math, and on x86 with SSE."
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif"""


def source(
    title: Title,
    functions: Sequence[Exported],
    states: Sequence[Sequence[Sequence[np.ndarray]]] | None,
    further: Sequence[str] = (),
) -> str:
    """The C file. Raises NotScalar.

    `states`: for each function the arguments of its test, None for no test. `further`: texts of further functions.
    """
    name, prefix = title.name, title.prefix
    helpers: dict[str, str] = {}
    texts = []
    for one in functions:
        takes = [CArray(x.name, x.total, one.dtype, x.size is None) for x in one.quantity.takes]
        gives = [CArray(x.name, x.total, one.dtype) for x in one.quantity.gives]
        gives.append(CArray("certain", 1, np.dtype(bool), True))
        full = f"{name}_{one.name}"
        lines, parts = c_function(full, name, helpers, one.program, takes, gives)
        body = ["int certain;", *lines, f"return certain ? {prefix}_CERTAIN : {prefix}_UNCERTAIN;"]
        texts += [*parts, block(_signature(title, one), body)]
    if title.parameters:
        texts.append(_defaults(title, functions[0].dtype))
    texts += further
    start = [*safe_comment([f"{title.about}: see {name}.h. Compile with -std=c99 -ffp-contract=off, link with -lm."])]
    if states is not None:
        texts.append(test(title, functions, states))
        start += safe_comment(
            [f"With -D{prefix}_TEST it has a main that compares results with those of ukjax, bit by bit."]
        )
    start += [f'#include "{name}.h"', "", "#include <float.h>", "#include <math.h>", "#include <stdint.h>"]
    start += ["#include <string.h>", "", DEMANDS, ""]
    return "\n".join([*start, "\n\n".join([*helpers.values(), *texts]), ""])


def block(head: str, lines: Sequence[str]) -> str:
    """A function of C."""
    return "\n".join([head, "{", *(f"    {x}" for x in lines), "}"])


def _defaults(title: Title, dtype: np.dtype) -> str:
    values = [float(y) for x in title.parameters for y in np.asarray(x.values, dtype).ravel()]
    kind = c_type(dtype)
    lines = [f"p[{i}] = ({kind}){c_number(x)};" for i, x in enumerate(values)]
    return block(f"void {title.name}_defaults({kind} p[{title.prefix}_PARAMETERS])", lines)


TEST = """\
#ifdef {prefix}_TEST
#include <stdio.h>

static int {name}_differs(const {kind} *found, const {whole} *expected, int size)
{{
    int i, differs = 0;
    for (i = 0; i < size; i++) {{
        {kind} x;
        memcpy(&x, &expected[i], sizeof x);
        if (x != x ? found[i] == found[i] : memcmp(&x, &found[i], sizeof x) != 0) differs++;
    }}
    return differs;
}}

int main(void)
{{
    int i, wrong = 0;
{functions}
    printf("%d results differ\\n", wrong);
    return wrong != 0;
}}
#endif"""


def test(title: Title, functions: Sequence[Exported], states: Sequence[Sequence[Sequence[np.ndarray]]]) -> str:
    """The main that compares results at some states with those of machine code, bit by bit."""
    dtype = functions[0].dtype
    whole = f"uint{8 * dtype.itemsize}_t"
    blocks = [x for one, some in zip(functions, states, strict=True) for x in _compared(title, one, some, whole)]
    shown = "\n".join(f"    {x}" for x in blocks)
    return TEST.format(prefix=title.prefix, name=title.name, kind=c_type(dtype), whole=whole, functions=shown)


def _compared(title: Title, one: Exported, states: Sequence[Sequence[np.ndarray]], whole: str) -> list[str]:
    """The block that compares the results of one function."""
    found = [one(*some) for some in states]
    given = [np.concatenate([np.ravel(x) for x in some]).astype(one.dtype) for some in states]
    wanted = [np.concatenate(results) for results, _ in found]
    certain = ", ".join(str(int(x)) for _, x in found)
    kind, count, takes = c_type(one.dtype), len(states), one.quantity.takes
    places = np.cumsum([0, *(x.total for x in takes)])
    names = [x.name for x in (*takes, *one.quantity.gives)]
    ends = np.cumsum([0, *(x.total for x in one.quantity.gives)])
    return [
        "{",
        f"    static const {whole} given[{count}][{len(given[0])}] = {_bits(given)};",
        f"    static const {whole} expected[{count}][{len(wanted[0])}] = {_bits(wanted)};",
        f"    static const int certain[{count}] = {{ {certain} }};",
        *(f"    {kind} {x.name}{'' if x.size is None else f'[{x.total}]'};" for x in (*takes, *one.quantity.gives)),
        f"    for (i = 0; i < {count}; i++) {{",
        *(
            f"        memcpy({'&' if x.size is None else ''}{x.name}, &given[i][{at}], {x.total} * sizeof({kind}));"
            for x, at in zip(takes, places, strict=False)
        ),
        f"        if ({title.name}_{one.name}({', '.join(names)}) != certain[i]) wrong++;",
        *(
            f"        wrong += {title.name}_differs({x.name}, &expected[i][{at}], {x.total});"
            for x, at in zip(one.quantity.gives, ends, strict=False)
        ),
        "    }",
        f'    printf("{title.name}_{one.name}: {count} states\\n");',
        "}",
    ]


def _bits(rows: Sequence[np.ndarray]) -> str:
    """The initialiser of a table of numbers by their bits."""
    kind = np.dtype(f"u{rows[0].dtype.itemsize}")
    suffix = "ull" if kind.itemsize == 8 else "u"
    shown = ["{ " + ", ".join(f"0x{int(x):x}{suffix}" for x in row.view(kind)) + " }" for row in rows]
    return "{\n        " + ",\n        ".join(shown) + " }"
