"""Exported functions as a WebAssembly module, and a module of JavaScript that calls them with arrays."""

import importlib.metadata
import json
from collections.abc import Sequence

from .._lowering import wasm_module
from ._c import Title, described, safe_comment
from ._object import defaults_text, with_c_signature
from ._program import Exported


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
