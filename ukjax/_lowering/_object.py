"""Object files of modules in LLVM's language, for any of LLVM's targets.

LLVM ends the process where it has no code for something, or does not know a processor. It therefore works in a process
of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ._compile import CODE
from ._elf import undefined_symbols, with_numbers_in_floating_registers


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
