"""A system as a functional mock-up unit of FMI 3.0: an archive with a library, its sources, and a description."""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import diffrax
import numpy as np

from .._lowering import c_number
from ._c import Title, header, source
from ._compiler import OPTIONS, needed_compiler, platform_name, shared_library
from ._fmi import build_description, model_description
from ._program import Exported, values_of
from ._system import System


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
