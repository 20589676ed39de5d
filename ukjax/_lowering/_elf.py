"""Object files of 32 bits in ELF: the symbols that they lack, and how their functions take floating-point numbers.

LLVM, as llvmlite sets it up, passes numbers in integer registers on ARM. Functions that say otherwise are right, but
the object does not tell linkers so, and calls of the target's library of mathematics would be wrong.
"""

import struct
from typing import NamedTuple


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
