"""Object files of modules in LLVM's language, for any of LLVM's targets, and WebAssembly modules of them.

LLVM ends the process where it has no code for something, or does not know a processor. It therefore works in a process
of its own.

LLVM, as llvmlite sets it up, passes numbers in integer registers on ARM, 32 bits. Functions that say otherwise are
right, but the object does not tell linkers so, and calls of the target's library of mathematics would be wrong.

For WebAssembly LLVM writes an object: a module whose memory and stack pointer are imports, and whose further sections
tell a linker what to move. There is one object, which calls nothing outside of itself, so that nothing has to be moved:
the numbers that LLVM wrote are those of the module. What is left of a linker's work is to define memory and stack
pointer, and to export functions.

Source of the latter: the WebAssembly specification, 5 (binary format), and its tool conventions, Linking.md.
"""

import importlib.resources
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._compile import CODE


HEADER = "<16sHHIIIIIHHHHHH"
SECTION = "<IIIIIIIIII"
SYMBOL = "<IIIBBH"
SYMBOLS, ARM_ATTRIBUTES = 2, 0x70000003
# The attribute Tag_ABI_VFP_args, with the value for numbers in floating-point registers.
IN_FLOATING_REGISTERS = bytes([28, 1])


class Section(NamedTuple):
    """A section: the place of its entry in the table, its kind, its bytes, and the section that it refers to."""

    entry: int
    kind: int
    content: bytes
    link: int


def _sections(code: bytes) -> list[Section]:
    fields = struct.unpack_from(HEADER, code)
    table, size, count = fields[6], fields[11], fields[12]
    found = []
    for entry in range(table, table + size * count, size):
        _, kind, _, _, offset, length, link, *_ = struct.unpack_from(SECTION, code, entry)
        found.append(Section(entry, kind, code[offset : offset + length], link))
    return found


def undefined_symbols(code: bytes) -> list[str]:
    """The names of the functions that an object calls and does not have."""
    sections, found = _sections(code), []
    for one in sections:
        if one.kind == SYMBOLS:
            names = sections[one.link].content
            for name, _, _, _, _, section in struct.iter_unpack(SYMBOL, one.content):
                if name and not section:
                    found.append(names[name : names.index(0, name)].decode())
    return found


def with_numbers_in_floating_registers(code: bytes) -> bytes:
    """The object with the note that its functions take numbers in floating-point registers."""
    for one in _sections(code):
        if one.kind == ARM_ATTRIBUTES:
            changed = _with_attribute(one.content)
            fields = list(struct.unpack_from(SECTION, code, one.entry))
            fields[4], fields[5] = len(code), len(changed)
            end = one.entry + struct.calcsize(SECTION)
            return code[: one.entry] + struct.pack(SECTION, *fields) + code[end:] + changed
    return code


def _with_attribute(content: bytes) -> bytes:
    """The attributes with one more: after a letter, a length and a name follow a kind, a length, and attributes."""
    start = content.index(0, 5) + 1
    (whole,), (inner,) = struct.unpack_from("<I", content, 1), struct.unpack_from("<I", content, start + 1)
    more = len(IN_FLOATING_REGISTERS)
    sizes = struct.pack("<I", whole + more), struct.pack("<I", inner + more)
    head = content[:1] + sizes[0] + content[5 : start + 1] + sizes[1]
    return head + content[start + 5 :] + IN_FLOATING_REGISTERS


class Target(NamedTuple):
    """A machine that code is for, in LLVM's words; this one by default.

    Attributes:
        triple: Such as "thumbv7em-none-eabihf".
        cpu: Such as "cortex-m7"; "" for any of the triple.
        features: Such as "+fma,+avx2".
    """

    triple: str = ""
    cpu: str = ""
    features: str = ""

    @property
    def has_hard_floats(self) -> bool:
        """Whether functions of an ARM target take numbers in floating-point registers."""
        return self.triple.startswith(("arm", "thumb")) and self.triple.endswith("hf")


# The larger and the smaller of two numbers, for which LLVM has no code on machines of 32 bits: NaN if either is, and 0
# is larger than -0.
EXTREME = """
define internal {kind} @{name}({kind} %x, {kind} %y) alwaysinline {{
  %beyond = fcmp {order} {kind} %x, %y
  %one = select i1 %beyond, {kind} %x, {kind} %y
  %same = fcmp oeq {kind} %x, %y
  %bits = bitcast {kind} %x to {whole}
  %negative = icmp slt {whole} %bits, 0
  %zero = select i1 %negative, {kind} %{first}, {kind} %{second}
  %other = select i1 %same, {kind} %zero, {kind} %one
  %unknown = fcmp uno {kind} %x, %y
  %nan = fadd {kind} %x, %y
  %found = select i1 %unknown, {kind} %nan, {kind} %other
  ret {kind} %found
}}
"""
WORK = """
import json, sys
from llvmlite import binding as llvm

asked = json.load(sys.stdin)
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple, cpu, features = asked["triple"], asked["cpu"], asked["features"]
if not (triple or cpu or features):
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
triple = triple or llvm.get_process_triple()
# Where no loader moves code, its addresses are known.
reloc = "static" if "none" in triple or triple.startswith("wasm") else "pic"
target = llvm.Target.from_triple(triple)
machine = target.create_target_machine(cpu=cpu, features=features, opt=asked["opt"], reloc=reloc, codemodel="default")
first, *others = [llvm.parse_assembly(text) for text in asked["texts"]]
for other in others:
    first.link_in(other)
first.verify()
first.triple, first.data_layout = triple, str(machine.target_data)
if triple.startswith("wasm"):  # functions that are to be part of others become that
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    passes.getModulePassManager().run(first, passes)
sys.stdout.buffer.write(machine.emit_object(first))
"""


# Functions that take no numbers, or take them in the same way on all ARM targets.
HARMLESS = ("__", "memcpy", "memmove", "memset")


def object_code(texts: Sequence[str], target: Target) -> bytes:
    """Modules as one object file. Raises ValueError if LLVM does not know the target, or has no code for it."""
    code = _code(texts, target)
    if not target.has_hard_floats:
        return code
    calls = [x for x in undefined_symbols(code) if not x.startswith(HARMLESS)]
    if calls:
        raise ValueError(
            f"LLVM makes no code for {' '.join(x for x in target if x)}: it would have to call {', '.join(calls)}. "
            'Name a processor with such instructions, as in cpu="cortex-m7", or export C.'
        )
    return with_numbers_in_floating_registers(code)


def _code(texts: Sequence[str], target: Target) -> bytes:
    asked = {**target._asdict(), "texts": [_without_extremes(x) for x in texts], "opt": CODE}
    # -P: no file of the current folder stands in for a module.
    run = subprocess.run([sys.executable, "-P", "-c", WORK], input=json.dumps(asked).encode(), capture_output=True)
    said = run.stderr.decode(errors="replace").strip()
    ignored = [x for x in said.splitlines() if "is not a recognized" in x]
    if run.returncode or ignored:
        shown = " ".join(x for x in target if x) or "this machine"
        reason = ignored[0] if ignored else said.splitlines()[-1] if said else f"exit status {run.returncode}"
        raise ValueError(f"LLVM makes no code for {shown}: {reason}")
    return run.stdout


def _without_extremes(text: str) -> str:
    """The module with LLVM's `maximum` and `minimum` written out."""
    for name, letter in sorted(set(re.findall(r"@llvm\.(maximum|minimum)\.(f64|f32)\(", text))):
        kind, whole = ("double", "i64") if letter == "f64" else ("float", "i32")
        larger = name == "maximum"
        first, second = ("y", "x") if larger else ("x", "y")
        text = re.sub(rf"^declare .*@llvm\.{name}\.{letter}\(.*$", "", text, flags=re.MULTILINE)
        text = text.replace(f"@llvm.{name}.{letter}(", f"@{name}.{letter}(")
        order = "ogt" if larger else "olt"
        text += EXTREME.format(kind=kind, whole=whole, name=f"{name}.{letter}", order=order, first=first, second=second)
    return text


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
