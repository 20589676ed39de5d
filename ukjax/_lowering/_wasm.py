"""WebAssembly modules of modules in LLVM's language.

LLVM writes an object: a module whose memory and stack pointer are imports, and whose further sections tell a linker
what to move. There is one object, which calls nothing outside of itself, so that nothing has to be moved: the numbers
that LLVM wrote are those of the module. What is left of a linker's work is to define memory and stack pointer, and to
export functions.

Source: the WebAssembly specification, 5 (binary format), and its tool conventions, Linking.md.
"""

import importlib.resources
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._object import Target, object_code


PAGE = 65536
# Bytes for what functions put on the stack, above the constants.
STACK = 8 * PAGE
WASM = Target("wasm32-unknown-unknown", features="+bulk-memory,+nontrapping-fptoint,+sign-ext")
# Numbers of sections, and of kinds of imports and exports.
IMPORT, MEMORY, GLOBAL, EXPORT, DATA = 2, 5, 6, 7, 11
FUNCTION, TABLE, OF_MEMORY, OF_GLOBAL = range(4)
# The order of sections in a module; 12 counts the parts of the data.
ORDER = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 10, 11)


def wasm_module(texts: Sequence[str], names: Sequence[str], room: int) -> bytes:
    """A WebAssembly module of the functions `names`, with `room` bytes for the caller's arrays behind its own memory.

    Its export `memory` is the memory, and `arrays`, a number, the place of the first free byte. Raises ValueError if a
    function calls one that WebAssembly does not have.
    """
    support = importlib.resources.files("ukjax._lowering").joinpath("wasm.ll").read_text("utf-8")
    return _linked(object_code([*map(_without_fma, texts), support], WASM), names, room)


def _without_fma(text: str) -> str:
    """The module with fused products by our own function."""
    for letter, kind in (("f64", "double"), ("f32", "float")):
        text = re.sub(rf"^declare .*@llvm\.fma\.{letter}\(.*$", "", text, flags=re.MULTILINE)
        if f"@llvm.fma.{letter}(" in text:
            text = text.replace(f"@llvm.fma.{letter}(", f"@fma.{letter}(")
            text += f"\ndeclare {kind} @fma.{letter}({kind}, {kind}, {kind})\n"
    return text


class _Bytes:
    """Bytes that are read one after the other."""

    def __init__(self, data: bytes, at: int = 0):
        self.data, self.at = data, at

    def number(self) -> int:
        """Reads an integer of 7 bits a byte."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        return self.take(self.number()).decode()


class _Import(NamedTuple):
    name: str
    kind: int
    whole: bytes


class _Symbol(NamedTuple):
    name: str
    place: int


def _number(value: int, largest: int = 127) -> bytes:
    """A number in LEB128; `largest`: what its last byte may hold."""
    found = bytearray()
    while value > largest:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _signed(value: int) -> bytes:
    """A positive number as a signed one."""
    return _number(value, 63)


def _text(name: str) -> bytes:
    return _number(len(name)) + name.encode()


def _vector(items: Sequence[bytes]) -> bytes:
    return _number(len(items)) + b"".join(items)


def _linked(code: bytes, names: Sequence[str], room: int) -> bytes:
    """The module of an object whose functions call only each other."""
    sections, symbols = dict[int, bytes](), dict[str, int]()
    reader = _Bytes(code, 8)
    while reader.at < len(code):
        kind = reader.take(1)[0]
        content = reader.take(reader.number())
        if kind:
            sections[kind] = content
        elif (custom := _Bytes(content)).text() == "linking":
            symbols = {x.name: x.place for x in _functions(custom)}
    lacking = [x.name for x in _imports(sections[IMPORT]) if x.kind == FUNCTION]
    if lacking:
        raise ValueError(f"WebAssembly has no {', '.join(lacking)}.")
    if [x.name for x in _imports(sections[IMPORT]) if x.kind == OF_GLOBAL] not in ([], ["__stack_pointer"]):
        raise ValueError("LLVM has another idea of a stack than this linker.")
    top = -(-(_end_of_data(sections.get(DATA, b"\0")) + STACK) // 16) * 16
    pages = -(-(top + room) // PAGE)
    del sections[IMPORT]
    sections[MEMORY] = _vector([b"\0" + _number(pages)])
    i32, constant, end = 0x7F, 0x41, 0x0B
    first = bytes([i32, 1, constant]) + _signed(top) + bytes([end])
    second = bytes([i32, 0, constant]) + _signed(top) + bytes([end])
    sections[GLOBAL] = _vector([first, second])
    exports = [(name, FUNCTION, symbols[name]) for name in names]
    exports += [("memory", OF_MEMORY, 0), ("arrays", OF_GLOBAL, 1)]
    sections[EXPORT] = _vector([_text(name) + bytes([kind]) + _number(index) for name, kind, index in exports])
    parts = [bytes([kind]) + _number(len(sections[kind])) + sections[kind] for kind in ORDER if kind in sections]
    return code[:8] + b"".join(parts)


def _imports(content: bytes) -> Iterator[_Import]:
    reader = _Bytes(content)
    for _ in range(reader.number()):
        begin = reader.at
        reader.text()
        name, kind = reader.text(), reader.take(1)[0]
        if kind == FUNCTION:
            reader.number()
        elif kind == OF_GLOBAL:
            reader.take(2)
        else:  # a table has a type before its limits
            reader.take(int(kind == TABLE))
            for _ in range(1 + (reader.number() & 1)):
                reader.number()
        yield _Import(name, kind, content[begin : reader.at])


def _functions(reader: _Bytes) -> Iterator[_Symbol]:
    """The functions of an object with their numbers, from its section for linkers."""
    reader.number()  # the version
    while reader.at < len(reader.data):
        kind, size = reader.take(1)[0], reader.number()
        part = _Bytes(reader.take(size))
        if kind != 8:  # no table of symbols
            continue
        for _ in range(part.number()):
            what, flags = part.take(1)[0], part.number()
            undefined = flags & 16
            if what == 1:  # data
                part.text()
                if not undefined:
                    for _ in range(3):
                        part.number()
            elif what == 3:  # a section
                part.number()
            else:
                index = part.number()
                name = part.text() if not undefined or flags & 64 else ""
                if what == 0 and not undefined:
                    yield _Symbol(name, index)


def _end_of_data(content: bytes) -> int:
    """The place behind the constants."""
    reader, end = _Bytes(content), 0
    for _ in range(reader.number()):
        reader.number()  # active, in the one memory
        reader.take(1)
        at = reader.number()
        reader.take(1)
        size = reader.number()
        reader.take(size)
        end = max(end, at + size)
    return end
