"""Exported functions as an object file for any of LLVM's targets, with the same header as in C."""

import re
from collections.abc import Sequence

import numpy as np

from .._lowering import Target, object_code, scalar_type
from ._c import Title
from ._program import Exported


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
