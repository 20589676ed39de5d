"""Exported functions in C99, as an object file for any of LLVM's targets, or as a WebAssembly module.

C has a header, and a file with a test of its own. The object has the same header. A module of JavaScript calls those of
WebAssembly with arrays.
"""

import importlib.metadata
import json
import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._lowering import CArray, Target, c_function, c_number, c_type, object_code, scalar_type, wasm_module
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


def object_file(title: Title, functions: Sequence[Exported], target: Target, further: Sequence[str] = ()) -> bytes:
    """The object file of the functions that the header declares. Raises ValueError for a target that is none.

    `further`: texts of further functions, in LLVM's language.
    """
    texts = [with_c_signature(f"{title.name}_{one.name}", one) for one in functions]
    if title.parameters:
        texts.append(defaults_text(title, functions[0].dtype))
    texts += further
    if target.has_hard_floats:
        texts = [
            re.sub(rf"\b(define|declare|call) (signext i32 @{title.name}_)", r"\1 arm_aapcs_vfpcc \2", x) for x in texts
        ]
    return object_code(texts, target)


def defaults_text(title: Title, dtype: np.dtype) -> str:
    kind, lines = scalar_type(dtype), []
    values = [float(y) for x in title.parameters for y in np.asarray(x.values, dtype).ravel()]
    for i, x in enumerate(values):
        bits = np.float64(x).view(np.uint64)
        lines += [f"  %p{i} = getelementptr {kind}, ptr %p, i64 {i}", f"  store {kind} 0x{bits:016X}, ptr %p{i}"]
    return "\n".join([f"define void @{title.name}_defaults(ptr %p) {{", *lines, "  ret void", "}", ""])


def with_c_signature(name: str, one: Exported) -> str:
    """The kernel of a function, with a function around it that has the signature of the header."""
    kind, places, lines = scalar_type(one.dtype), [], []
    heads = []
    for x in one.quantity.takes:
        if x.size is None:
            heads.append(f"{kind} %{x.name}")
            lines += [f"  %{x.name}.place = alloca {kind}", f"  store {kind} %{x.name}, ptr %{x.name}.place"]
            places.append(f"%{x.name}.place")
        else:
            heads.append(f"ptr %{x.name}")
            places.append(f"%{x.name}")
    for x in one.quantity.gives:
        heads.append(f"ptr %{x.name}")
        places.append(f"%{x.name}")
    places.append("%certain")
    lines += ["  %certain = alloca i8", f"  %arrays = alloca [{len(places)} x ptr]"]
    for i, place in enumerate(places):
        lines += [f"  %at{i} = getelementptr ptr, ptr %arrays, i64 {i}", f"  store ptr {place}, ptr %at{i}"]
    lines += ["  call void @run(ptr %arrays, i64 0, i64 1)", "  %found = load i8, ptr %certain"]
    lines += ["  %result = zext i8 %found to i32", "  ret i32 %result"]
    body = "\n".join(lines)
    # The kernel's own entry is not for others.
    text = one.kernel.text.replace("define void @run(", "define internal void @run(")
    return f"{text}\ndefine signext i32 @{name}({', '.join(heads)}) {{\n{body}\n}}\n"


def wasm_file(
    title: Title, functions: Sequence[Exported], further: Sequence[str] = (), more: Sequence[str] = ()
) -> bytes:
    """The module of the functions, under the names of the C header, and of those that `further` texts define.

    `more`: the names of the latter. Raises ValueError if WebAssembly lacks an operation.
    """
    names = [f"{title.name}_{one.name}" for one in functions]
    texts = [with_c_signature(name, one) for name, one in zip(names, functions, strict=True)]
    if title.parameters:
        names.append(f"{title.name}_defaults")
        texts.append(defaults_text(title, functions[0].dtype))
    room = sum(x.total for one in functions for x in (*one.quantity.takes, *one.quantity.gives))
    return wasm_module([*texts, *further], [*names, *more], room * functions[0].dtype.itemsize)


LOADER = """\
const FUNCTIONS = %FUNCTIONS%;

/** Numbers of coordinates, speeds, and so on. */
export const SIZES = %SIZES%;
%PARAMETERS%
/**
 * Returns the functions of %NAME%.wasm: each takes numbers and arrays, and returns {certain, ...results}.
 * @param {BufferSource | Response | Promise<Response>} source Its bytes, or what fetch("%NAME%.wasm") returns.
 */
export async function load(source) {
  const given = await source;
  const bytes = typeof given.arrayBuffer === "function" ? await given.arrayBuffer() : given;
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const { memory, arrays } = instance.exports;
  const loaded = {};
  for (const [name, { takes, gives }] of Object.entries(FUNCTIONS)) {
    loaded[name] = (...given) => {
      if (given.length !== takes.length) {
        throw new TypeError(`${name} takes ${takes.map(([x]) => x).join(", ")}`);
      }
      let place = arrays.value;
      const next = size => {
        const view = new %ARRAY%(memory.buffer, place, size);
        place += view.byteLength;
        return view;
      };
      const passed = takes.map(([argument, size], i) => {
        if (size === null) return Number(given[i]);
        if (given[i].length !== size) throw new RangeError(`${argument} has ${size} numbers`);
        const view = next(size);
        view.set(given[i]);
        return view.byteOffset;
      });
      const results = gives.map(([, size]) => next(size));
      const certain = instance.exports[`%NAME%_${name}`](...passed, ...results.map(x => x.byteOffset)) === 1;
      return { certain, ...Object.fromEntries(gives.map(([x], i) => [x, results[i].slice()])) };
    };
  }
  return loaded;
}
"""


def javascript(title: Title, functions: Sequence[Exported]) -> str:
    """The module of JavaScript: what there is, with units and order of all arguments, and a function that loads it."""
    about = [
        f"{title.about}, by ukjax {importlib.metadata.version('ukjax')}.",
        f"Results are certain, or NaN: see the functions of {title.name}.wasm below. Units are SI, in brackets.",
    ]
    for one in functions:
        takes, gives = one.quantity.takes, one.quantity.gives
        called = f"{one.name}({', '.join(x.name for x in takes)}) -> {{certain, {', '.join(x.name for x in gives)}}}"
        about += ["", f"{called}: {one.quantity.about}", *map(described, (*takes, *gives))]
    listed = {
        one.name: {
            "takes": [[x.name, x.size] for x in one.quantity.takes],
            "gives": [[x.name, x.total] for x in one.quantity.gives],
        }
        for one in functions
    }
    pairs = [(x.entries, x.values.ravel()) for x in title.parameters]
    entries = [(name, float(y)) for names, values in pairs for name, y in zip(names, values, strict=True)]
    parameters = [
        "",
        "/** Names and values of the parameters in p, as they were exported. */",
        f"export const PARAMETERS = {json.dumps(dict(entries))};",
        "",
    ]
    filled = {
        "FUNCTIONS": json.dumps(listed),
        "SIZES": json.dumps(title.sizes),
        "PARAMETERS": "\n".join(parameters) if entries else "",
        "NAME": title.name,
        "ARRAY": "Float64Array" if functions[0].dtype.itemsize == 8 else "Float32Array",
    }
    text = LOADER
    for name, value in filled.items():
        text = text.replace(f"%{name}%", value)
    return "\n".join([*safe_comment(about), "", text])
