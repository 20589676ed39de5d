"""A system as a functional mock-up unit of FMI 3.0: an archive with a library, its sources, and a description.

The library is made by a C compiler of this machine. The description in XML has units.
"""

import hashlib
import importlib.metadata
import importlib.util
import io
import math
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import diffrax
import numpy as np

from .._lowering import c_number
from ._c import Title, header, source
from ._program import Exported, Parameter, values_of
from ._system import System, dependencies, has_derivatives


# Units by their exponents of SI's base units, and factors to them.
BASE = ("kg", "m", "s", "A", "K", "mol", "cd", "rad")
UNITS: dict[str, tuple[float, dict[str, int]]] = {
    **{x: (1.0, {x: 1}) for x in BASE},
    "N": (1.0, {"kg": 1, "m": 1, "s": -2}),
    "J": (1.0, {"kg": 1, "m": 2, "s": -2}),
    "W": (1.0, {"kg": 1, "m": 2, "s": -3}),
    "Pa": (1.0, {"kg": 1, "m": -1, "s": -2}),
    "Hz": (1.0, {"s": -1}),
    "V": (1.0, {"kg": 1, "m": 2, "s": -3, "A": -1}),
    "g": (1e-3, {"kg": 1}),
    "mm": (1e-3, {"m": 1}),
    "cm": (1e-2, {"m": 1}),
    "km": (1e3, {"m": 1}),
    "deg": (math.pi / 180, {"rad": 1}),
    "1": (1.0, {}),
}


def base_unit(text: str) -> tuple[float, dict[str, int]] | None:
    """The factor and the exponents of a unit such as "N m/rad^2"; None if it is not known."""
    factor, found = 1.0, dict[str, int]()
    for i, part in enumerate(text.replace("*", " ").split("/")):
        for word in part.split():
            name, _, power = word.partition("^")
            if name not in UNITS or not (power or "1").lstrip("-").isdigit():
                return None
            exponent = int(power or 1) * (1 if i == 0 else -1)
            factor *= UNITS[name][0] ** exponent
            for x, of in UNITS[name][1].items():
                found[x] = found.get(x, 0) + of * exponent
    return factor, found


class Variable(NamedTuple):
    """A variable: its place, name and unit, and its attributes in XML."""

    reference: int
    name: str
    unit: str
    attributes: dict[str, str]


def variables(system: System, parameters: Sequence[Parameter]) -> list[Variable]:
    """All variables by their references: time, states, their rates, inputs, outputs, parameters, what is held."""
    found, taken = [Variable(0, "time", "s", {"causality": "independent", "variability": "continuous"})], {"time"}

    def add(name: str, unit: str, **attributes: object) -> None:
        kept = " ".join(name.split())
        distinct = next(x for k in range(1, len(taken) + 2) if (x := kept + f" ({k})" * (k > 1)) not in taken)
        taken.add(distinct)
        shown = {k: value if isinstance(value, str) else repr(value) for k, value in attributes.items()}
        found.append(Variable(len(found), distinct, unit, shown))

    states = len(system.states)
    for x, start in zip(system.states, system.start, strict=True):
        add(x.name, x.unit, causality="output", variability="continuous", initial="exact", start=float(start))
    for i, x in enumerate(system.derivatives):
        add(x.name, x.unit, causality="output", variability="continuous", initial="calculated", derivative=1 + i)
    for x, start in zip(system.inputs, system.given, strict=False):
        add(x.name, x.unit, causality="input", variability="continuous", start=float(start))
    for x in system.outputs:
        add(x.name, x.unit, causality="output", variability="continuous", initial="calculated")
    for one in parameters:
        for name, value in zip(one.entries, np.ravel(one.values), strict=True):
            add(name, "", causality="parameter", variability="tunable", initial="exact", start=float(value))
    for x in system.held:
        add(x.name, x.unit, causality="output", variability="discrete", initial="calculated")
    assert found[1 + states : 1 + 2 * states] == [x for x in found if "derivative" in x.attributes]
    return found


def model_description(
    name: str, about: str, token: str, system: System, parameters: Sequence[Parameter], run: tuple[float, float]
) -> bytes:
    """The file modelDescription.xml; `run`: start and tolerance of a run."""
    root = Element(
        "fmiModelDescription",
        fmiVersion="3.0",
        modelName=name,
        instantiationToken=token,
        description=about,
        generationTool=f"ukjax {importlib.metadata.version('ukjax')}",
    )
    able = ["canGetAndSetFMUState", "canSerializeFMUState"]
    if has_derivatives(system, run[0], values_of(parameters)):
        able += ["providesDirectionalDerivatives", "providesAdjointDerivatives"]
    flags = {"modelIdentifier": name, **dict.fromkeys(able, "true")}
    SubElement(root, "ModelExchange", flags)
    SubElement(root, "CoSimulation", {**flags, "canHandleVariableCommunicationStepSize": "true"})
    found = variables(system, parameters)
    _units(root, (x.unit for x in found))
    categories = SubElement(root, "LogCategories")
    SubElement(categories, "Category", name="uncertain", description="There is no certain result, and why.")
    SubElement(categories, "Category", name="misuse", description="A call that FMI does not allow here.")
    SubElement(root, "DefaultExperiment", startTime=repr(run[0]), tolerance=repr(run[1]))
    listed = SubElement(root, "ModelVariables")
    for x in found:
        unit = {"unit": x.unit} if x.unit else {}
        SubElement(listed, "Float64", {"name": x.name, "valueReference": str(x.reference), **x.attributes, **unit})
    _structure(SubElement(root, "ModelStructure"), system, found)
    return _text(root)


def _units(root: Element, names: Iterable[str]) -> None:
    defined = SubElement(root, "UnitDefinitions")
    for name in dict.fromkeys(x for x in names if x):
        unit, base = SubElement(defined, "Unit", name=name), base_unit(name)
        if base is not None:
            factor = {"factor": repr(base[0])} if base[0] != 1 else {}
            SubElement(unit, "BaseUnit", {k: str(n) for k, n in base[1].items() if n} | factor)


def _structure(root: Element, system: System, found: Sequence[Variable]) -> None:
    """Adds the unknowns, and the knowns that each of them depends on."""
    n, inputs = len(system.states), len(system.inputs)
    # The arguments of the program are s, t, u, p: their references, without those of parameters and of what is held.
    arguments = [*range(1, 1 + n), 0, *range(1 + 2 * n, 1 + 2 * n + inputs)]
    needs = [sorted(arguments[i] for i in each if i < len(arguments)) for each in dependencies(system.rates)]
    held = {x.reference: [] for x in found[len(found) - len(system.held) :]}
    knowns = held | {x.reference: [x.reference] for x in found[1 : 1 + n]}
    knowns |= {1 + n + i: each for i, each in enumerate(needs[:n])}
    knowns |= {1 + 2 * n + inputs + i: each for i, each in enumerate(needs[n:])}

    def add(kind: str, x: Variable, known: bool = True) -> None:
        of = {"dependencies": " ".join(map(str, knowns[x.reference]))} if known else {}
        SubElement(root, kind, {"valueReference": str(x.reference), **of})

    rates = found[1 + n : 1 + 2 * n]
    outputs = [x for x in found if x.attributes["causality"] == "output"]
    for x in outputs:
        add("Output", x)
    for x in rates:
        add("ContinuousStateDerivative", x)
    for x in outputs:
        if x.attributes["initial"] == "calculated":
            add("InitialUnknown", x, False)


def build_description(name: str, sources: Sequence[str], options: Sequence[str]) -> bytes:
    """The file sources/buildDescription.xml."""
    root = Element("fmiBuildDescription", fmiVersion="3.0")
    build = SubElement(root, "BuildConfiguration", modelIdentifier=name)
    files = SubElement(build, "SourceFileSet", language="C99", compilerOptions=" ".join(options))
    for x in sources:
        SubElement(files, "SourceFile", name=x)
    SubElement(build, "Library", name="m")
    return _text(root)


def _text(root: Element) -> bytes:
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True) + b"\n"


# Compilers in the order in which they are looked for; the wheel of ziglang is a clang.
KNOWN = ("cc", "gcc", "clang")
OPTIONS = ("-std=c99", "-O2", "-ffp-contract=off")
OF_LIBRARY = ("-fPIC", "-fvisibility=hidden", "-shared")


def c_compiler() -> list[str] | None:
    """The command of a C compiler; None if there is none."""
    for name in KNOWN:
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def needed_compiler(to: str) -> list[str]:
    """The command of a C compiler. Raises ValueError if there is none."""
    found = c_compiler()
    if found is None:
        raise ValueError(
            f'to="{to}" needs a C compiler, but none of {", ".join(KNOWN)} is to be found, nor the wheel of ziglang. '
            "Install one of them: pip install ziglang."
        )
    return found


def shared_library(compiler: list[str], files: Mapping[str, bytes], sources: list[str]) -> bytes:
    """The shared library of some of the files, for this machine. Raises ValueError if the compiler fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        command = [*compiler, *OPTIONS, *OF_LIBRARY, *sources, "-o", "library", "-lm"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"The C compiler {compiler[0]} cannot be run: {error.strerror}.") from error
        if done.returncode:
            last = (done.stderr.strip() or f"exit status {done.returncode}")[-500:]
            raise ValueError(f"The C compiler {compiler[0]} failed: {last}")
        return (Path(folder) / "library").read_bytes()


def platform_name() -> tuple[str, str]:
    """The name that FMI 3.0 has for this platform, such as x86_64-linux, and the ending of its libraries."""
    system = {"Darwin": "darwin", "Windows": "windows"}.get(platform.system(), "linux")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    return f"{machine}-{system}", {"darwin": ".dylib", "windows": ".dll"}.get(system, ".so")


# Relative tolerance of co-simulation where the importer asks for none.
TOLERANCE = 1e-8
GLUE = ("fmu-functions.c", "fmu-absent.h")
FRAME = """\
/* What fmu-functions.c needs to know of the model. */
#ifndef MODEL_IS_KNOWN
#define MODEL_IS_KNOWN
#include "{name}.h"

#define MODEL_NAME "{name}"
#define TOKEN "{token}"
#define TOLERANCE {tolerance}
#define NS {states}
#define NU {inputs}
#define NZ {held}
#define PERIOD {period}
#define NY {outputs}
#define NP {parameters}
#define STAGES {stages}
#define ORDER {order}

{tables}

{functions}
#endif
"""


def fmu_archive(title: Title, system: System, solver: diffrax.AbstractERK, start: float) -> bytes:
    """The archive, with a library for this machine. Raises ValueError if there is no compiler, or it fails.

    `start`: the time at which a run starts.
    """
    compiler, name = needed_compiler("fmu"), title.name
    files = {f"{name}.h": header(title, system.functions).encode()}
    files[f"{name}.c"] = source(title, system.functions, None).encode()
    files |= {x: Path(__file__).with_name(x).read_bytes() for x in GLUE}
    token = hashlib.sha256(b"".join([*files.values(), _tables(title, system, solver).encode()])).hexdigest()[:32]
    files["fmu-model.h"] = _model(title, system, solver, token).encode()
    sources = [f"{name}.c", "fmu-functions.c"]
    platform, ending = platform_name()
    library = shared_library(compiler, files, sources)
    description = model_description(name, title.about, token, system, title.parameters, (start, TOLERANCE))
    return _zipped(
        {
            "modelDescription.xml": description,
            f"binaries/{platform}/{name}{ending}": library,
            "sources/buildDescription.xml": build_description(name, sources, OPTIONS),
            **{f"sources/{x}": content for x, content in files.items()},
        }
    )


def check_solver(solver: object) -> None:
    """Raises ValueError if a method has no estimate of its error."""
    tableau = solver.tableau if isinstance(solver, diffrax.AbstractERK) else None
    if not isinstance(tableau, diffrax.ButcherTableau) or not np.any(np.asarray(tableau.b_error)):
        raise ValueError(
            f'solver must have an estimate of its error for to="fmu", for co-simulation chooses its steps by that, but '
            f"{type(solver).__name__} has none. Pass diffrax.Tsit5()."
        )


def _model(title: Title, system: System, solver: diffrax.AbstractERK, token: str) -> str:
    """The text of fmu-model.h."""
    assert isinstance(solver.tableau, diffrax.ButcherTableau)
    return FRAME.format(
        name=title.name,
        token=token,
        tolerance=TOLERANCE,
        states=len(system.states),
        inputs=len(system.inputs),
        held=len(system.held),
        period=c_number(system.period),
        outputs=len(system.outputs),
        parameters=sum(x.values.size for x in title.parameters),
        stages=len(solver.tableau.b_sol),
        order=solver.order(None),  # pyright: ignore[reportArgumentType]
        tables=_tables(title, system, solver),
        functions="\n".join(_functions(title, system)),
    )


def _tables(title: Title, system: System, solver: diffrax.AbstractERK) -> str:
    tableau = solver.tableau
    assert isinstance(tableau, diffrax.ButcherTableau)
    stages = len(tableau.b_sol)
    matrix = np.zeros((stages, stages))
    for i, row in enumerate(tableau.a_lower):
        matrix[i + 1, : len(row)] = row
    rows = ",\n    ".join("{ " + _numbers(row) + " }" for row in matrix)
    vectors = {
        "start_states[NS + 1]": [*system.start, 0.0],
        "start_inputs[NU + NZ + 1]": [*system.given, 0.0],
        "start_parameters[NP + 1]": [*values_of(title.parameters), 0.0],
        "weights[STAGES]": tableau.b_sol,
        "estimate[STAGES]": tableau.b_error,
        "times[STAGES]": [0.0, *tableau.c],
    }
    lines = [f"static const double {x} = {{ {_numbers(values)} }};" for x, values in vectors.items()]
    return "\n".join([*lines, f"static const double matrix[STAGES][STAGES] = {{\n    {rows}\n}};"])


def _numbers(values: Sequence[float] | np.ndarray) -> str:
    return ", ".join(c_number(float(x)) for x in values)


# Arguments of the functions that fmu-functions.c calls.
POINT = "const double *s, double t, const double *u, const double *p"
CALLED = {
    "rates": f"{POINT}, double *ds, double *y",
    "tangent": f"{POINT}, const double *s_rate, double t_rate, const double *u_rate, const double *p_rate, "
    "double *ds_rate, double *y_rate",
    "adjoint": f"{POINT}, const double *ds_weight, const double *y_weight, "
    "double *s_weight, double *t_weight, double *u_weight, double *p_weight",
    "projected": "const double *s, double t, const double *p, double *s_next",
    "sample": f"{POINT}, double *held",
}


def _functions(title: Title, system: System) -> list[str]:
    """Functions with all arguments, also those that have no entries here."""
    made: Mapping[str, Exported] = {x.name: x for x in system.functions}
    lines = []
    for name, takes in CALLED.items():
        words = [x.split()[-1].lstrip("*") for x in takes.split(", ")]
        lines += [f"static int model{name.capitalize()}({takes})", "{"]
        if name in made:
            one = made[name].quantity
            used = [x.name for x in (*one.takes, *one.gives)]
            lines += [f"    (void){x};" for x in words if x not in used]
            lines += [f"    return {title.name}_{name}({', '.join(used)}) == {title.prefix}_CERTAIN;"]
        else:
            lines += [*(f"    (void){x};" for x in words), "    return 1;"]
        lines += ["}", ""]
    return lines


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """An archive that depends on nothing but the files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return made.getvalue()
