"""The description of a system in XML, as FMI 3.0 asks for it, with units."""

import importlib.metadata
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from ._program import Parameter, values_of
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
