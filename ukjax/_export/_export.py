"""The public function: a mechanism's functions as files for other programs."""

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import diffrax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from .. import _check
from .._coordinate import Coordinate, named, rate_unit, speeds_named
from .._lowering import Target
from .._manifold import Projection
from .._mechanism import Mechanism
from .._result import is_traced
from .._servo import AbstractController, ServoLike, Uncontrolled, as_controller
from .._simulation import Rattle
from .._types import Numbers
from ._c import Title, header, javascript, object_file, source, wasm_file
from ._casadi import casadi_file, has_casadi
from ._fmu import check_solver, fmu_archive, needed_compiler
from ._further import QUANTITIES
from ._program import Exported, Parameter, exported, parameters_of, values_of
from ._quantities import OF_ACTUATORS, OF_STATE, Context
from ._run import run_of
from ._system import SYSTEMS, System, system_of


TO = ("c", "object", "wasm", "casadi", "fmu")
# States of the test in a C file: the given one, and others around it.
STATES = 8
# What is a loop over others.
RUN = "run"


def export(
    mechanism: Mechanism,
    q: Numbers,
    v: Numbers,
    t: ArrayLike = 0.0,
    *,
    out: str | Path,
    to: str = "c",
    what: str | Sequence[str] | None = None,
    servo: ServoLike = None,
    name: str = "mechanism",
    parameters: bool | Sequence[str] = False,
    solver: diffrax.AbstractERK | Rattle = diffrax.Tsit5(),
    projection: Projection | None = None,
    target: str = "",
    cpu: str = "",
    features: str = "",
    coordinates: Sequence[str] | None = None,
    speeds: Sequence[str] | None = None,
    controls: Sequence[str] | None = None,
) -> list[Path]:
    r"""Writes functions of a mechanism as C99, an object, WebAssembly, for CasADi, or as an FMU; returns the paths.

    The functions have the bits of `ukjax.compile` for one name: the same sums are fused, and sines come from the same
    arithmetic. They need no memory, and no library but C's `math.h`. Each returns whether it is certain of its results.
    Elsewhere, next to a state in which the rank changes, its results are NaN, and the program that calls it decides.

    Args:
        mechanism: System and constraints.
        q: Coordinates (n_q,) [m or rad] of a state, for the shapes and for the test.
        v: Speeds (n,) [m/s or rad/s] of that state.
        t: Time of that state, scalar [s].
        out: Folder to write to. Files of the same names are replaced, all of them or none.
        to: What to write.

            - "c": NAME.c and NAME.h;
            - "object": NAME.o and NAME.h;
            - "wasm": NAME.wasm, a WebAssembly module that imports nothing, and NAME.js, which calls it with arrays;
            - "casadi": a file for each function, NAME_acceleration.casadi, which `casadi.Function.load` reads. It is
              symbolic, with `certain` as its last result. Results are numbers also where they are not certain, so that
              CasADi sees what depends on what.
            - "fmu": NAME.fmu of FMI 3.0, for model exchange and co-simulation on this platform, with its sources. It
              needs a C compiler. `what` is then "acceleration" for the mechanism with its servo inside, "plant" with
              the control as inputs, or "control" for the controller alone.
        what: One name or several; by default "acceleration", and "control" if there is a servo.

            - "acceleration" (n,), "constraint_force" (n,), "jacobian" (n, n_q + n) by q and v: under the servo, if any;
            - "multipliers" (m,) of all rows, "constraint_forces" (c, n) of each constraint, as by
              `equation_of_motion(reactions=True)`; "reactions" (j, 6), the force and torque of each joint of a robot;
            - "control" (p,) of the servo, or of a `Feedback`; one with memory takes it and gives the next;
            - "step": one step of `solver` of size h, with the servo at work at each of its stages; "rattle_step": one
              of RATTLE, certain where its iterations arrive;
            - "run": a loop over steps, "rattle_step" if `solver` is one, which saves states to arrays of the caller;
            - "plant", "plant_jacobian" (n, n_q + n + p) by q, v and u, "plant_step": the same under a given control u;
            - "linearization" (k, k), "plant_linearization" (k, k) and (k, p): A and B for independent states, which
              are chosen at the given state, as by `ukjax.analysis.linearize`;
            - "inverse_dynamics": the force M a - Q (n,) of an acceleration a;
            - "projection": the nearest state that satisfies the constraints.
        servo: `Servo` or several, or a `Feedback`; None for none.
        name: The name of the files, which all names in them begin with.
        parameters: Whether the parameters of mechanism and servo are arguments of the functions; or the names of those
            that are, as in the header that True makes. Others are constants, which makes shorter code. Those of an FMU
            are tunable.
        solver: An explicit Runge-Kutta method of diffrax for steps, and for co-simulation, which adapts their size. A
            `Rattle` for "rattle_step" and "run".
        projection: `Projection()` to end a step on the constraints; None for none.
        target: For objects, a target of LLVM such as "thumbv7em-none-eabihf"; this machine if empty.
        cpu: For objects, a processor such as "cortex-m7"; any of the target if empty.
        features: For objects, features of LLVM such as "+fma".
        coordinates: A name with unit for each coordinate, such as "q1 [rad]", for comments and variables.
        speeds: Names for speeds that are not the rates of the coordinates.
        controls: A name with unit for each actuator.

    Raises:
        TypeError: If an argument is something else than listed.
        ValueError: If a name is none that C takes, `what`, `to` or `target` is not known, a function is no scalar
            program, there is no compiler for an FMU, or `out` cannot be written to.

    Gradients: none; ask for "jacobian".

    Example:
        ```python
        import tempfile
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Mechanism(
            system, ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        )
        with tempfile.TemporaryDirectory() as folder:
            for path in ukjax.export(
                rod, [1.0, 0.0], [0.0, 0.0], name="rod", out=folder
            ):
                print(path.name, path.stat().st_size, "bytes")  # rod.c and rod.h
        ```
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    controller = as_controller(servo)
    _check_target(to, Target(target, cpu, features))
    if is_traced(mechanism, controller, q, v, t):
        raise TypeError("export writes files, which jit and other transformations cannot. Call it outside of them.")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    _check.finite(q, "q")
    _check.finite(v, "v")
    _check.finite(t, "t")
    _check_methods(solver, projection)
    names = _what(what, controller, to, solver) if to != "fmu" else [_system(what, controller, q)]
    if to == "fmu":
        check_solver(solver)
    folder = _check.path(out, "out")
    context = _context(mechanism, controller, (q, v, t), coordinates, speeds, controls, solver, projection)
    chosen = _chosen(parameters, parameters_of(mechanism, controller))
    title = _title(_name(name), context, chosen)
    if to == "fmu":
        return _written(folder, lambda: {f"{name}.fmu": _fmu(names[0], context, chosen, title)})
    asked = Target(target, cpu, features)
    return _written(folder, lambda: _files(to, names, context, chosen, title, asked))


def _fmu(what: str, context: Context, chosen: Sequence[Parameter], title: Title) -> bytes:
    system = system_of(what, context, context.mechanism, context.controller, chosen, context.start)
    return fmu_archive(_of_system(title, system), system, context.solver, float(context.start[2]))


def _files(
    to: str, names: Sequence[str], context: Context, chosen: Sequence[Parameter], title: Title, asked: Target
) -> dict[str, bytes]:
    """The files of C, of an object, of WebAssembly, or of CasADi, by their names."""
    quantities = {x: QUANTITIES[x](context) for x in names if x != RUN}
    sizes = [size for x in quantities.values() for size in x.sizes.items()]
    title, name, dtype = (
        title._replace(sizes={**title.sizes, **dict(sizes)}),
        title.name,
        np.dtype(context.start[0].dtype),
    )
    made = [exported(x, y, context.mechanism, context.controller, chosen, dtype) for x, y in quantities.items()]
    if to == "casadi":
        return {f"{name}_{x.name}.casadi": casadi_file(f"{name}_{x.name}", x) for x in made}
    if to == "wasm":
        return {f"{name}.wasm": wasm_file(title, made), f"{name}.js": javascript(title, made).encode()}
    runs = [run_of(title, made)] if RUN in names else []
    texts = {f"{name}.h": header(title, made, [line for x in runs for line in x.declaration()]).encode()}
    if to == "object":
        return {f"{name}.o": object_file(title, made, asked, [x.llvm_text() for x in runs]), **texts}
    states = _states(made, context.controller, chosen, context.start)
    return {f"{name}.c": source(title, made, states, [x.c_text() for x in runs]).encode(), **texts}


def _what(
    what: str | Sequence[str] | None, controller: AbstractController, to: str, solver: diffrax.AbstractERK | Rattle
) -> list[str]:
    """The names of functions, with those that a run needs. Raises TypeError or ValueError."""
    acts = not isinstance(controller, Uncontrolled)
    first = "plant" if controller.has_store else "acceleration"
    if what is None:
        return [first, *(["control"] if acts else [])]
    known = ", ".join(map(repr, (*QUANTITIES, RUN)))
    if not isinstance(what, str | tuple | list):
        raise TypeError(f"what must be a name, or a tuple of names, of {known}, but is {what!r}.")
    names = list(dict.fromkeys([what] if isinstance(what, str) else what))
    if not names:
        raise ValueError(f"what must name at least one of {known}, but is empty.")
    for name in names:
        if name not in QUANTITIES and name != RUN:
            raise ValueError(f"what must be of {known}, but is or has {name!r}.")
        if name in OF_ACTUATORS and not acts:
            raise ValueError(f"what={name!r} is about actuators, but there is no servo. Pass servo=ukjax.Servo(...).")
        if name in OF_STATE and controller.has_store:
            raise ValueError(
                f"what={name!r} needs a servo that is a function of the state, but this one has memory or samples. "
                'Export "control", and "plant" or "plant_step", which take the control as an argument.'
            )
    if RUN not in names:
        return names
    if to == "casadi":
        raise ValueError("what='run' is a loop, of which CasADi has its own. Export \"step\", and call its mapaccum.")
    if to == "wasm":
        raise ValueError(
            "what='run' is a loop, which is for C and objects. Export \"step\", and call it in JavaScript."
        )
    if controller.has_store and controller.period is None:
        raise ValueError("what='run' needs a controller without memory, or one with samples, but this one has rates.")
    needed = (
        ["control", "plant_step"] if controller.has_store else ["rattle_step" if isinstance(solver, Rattle) else "step"]
    )
    return list(dict.fromkeys([*names, *needed]))


def _system(what: str | Sequence[str] | None, controller: AbstractController, q: Array) -> str:
    """The system inside of an FMU. Raises TypeError or ValueError."""
    known, acts = ", ".join(map(repr, SYSTEMS)), not isinstance(controller, Uncontrolled)
    if q.dtype != np.float64:
        raise ValueError(
            f'to="fmu" is of double precision, but q is {q.dtype}. Call jax.config.update("jax_enable_x64", True).'
        )
    if what is None:
        return "acceleration"
    names = [what] if isinstance(what, str) else what
    if not isinstance(names, tuple | list):
        raise TypeError(f'what must be a name of {known} for to="fmu", but is {what!r}.')
    if len(names) != 1 or names[0] not in SYSTEMS:
        raise ValueError(f'what must be one of {known} for to="fmu", but is {what!r}.')
    if names[0] != "acceleration" and not acts:
        raise ValueError(f"what={names[0]!r} is about actuators, but there is no servo. Pass servo=ukjax.Servo(...).")
    return names[0]


def _of_system(title: Title, system: System) -> Title:
    """The title with the sizes of a system."""
    sizes = {"STATES": len(system.states), "INPUTS": len(system.given), "OUTPUTS": len(system.outputs)}
    sizes["HELD"] = len(system.held)
    kept = {k: n for k, n in title.sizes.items() if k == "PARAMETERS"}
    return title._replace(sizes={k: n for k, n in sizes.items() if n} | kept)


def _check_target(to: str, target: Target) -> None:
    """Raises TypeError or ValueError if there is no such target, or what it needs is not there."""
    if to not in TO:
        raise ValueError(f"to must be of {', '.join(map(repr, TO))}, but is {to!r}.")
    for name, given in zip(("target", "cpu", "features"), target, strict=True):
        if not isinstance(given, str):
            raise TypeError(f"{name} must be text in LLVM's words, or empty, but is {given!r}.")
    if to != "object" and any(target):
        raise ValueError(f'target, cpu and features are for to="object", and do not go with to="{to}". Leave them out.')
    if to == "fmu":
        needed_compiler(to)
    if to == "casadi" and not has_casadi():
        raise ValueError('to="casadi" needs CasADi. Run: pip install "ukjax[casadi]".')


def _check_methods(solver: object, projection: object) -> None:
    if not isinstance(solver, Rattle):
        _check.instance(solver, diffrax.AbstractERK, "solver", "diffrax.Tsit5()")
    if projection is not None:
        _check.instance(projection, Projection, "projection", "ukjax.Projection()")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be text, but is {name!r}.")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name, re.ASCII):
        raise ValueError(
            f"name must be one that C takes: a letter, then letters, digits and underscores, at most 64 in all, but "
            f"is {name!r}."
        )
    return name


def _context(
    mechanism: Mechanism,
    controller: AbstractController,
    state: tuple[Array, Array, Array],
    coordinates: Sequence[str] | None,
    speeds: Sequence[str] | None,
    controls: Sequence[str] | None,
    solver: diffrax.AbstractERK | Rattle,
    projection: Projection | None,
) -> Context:
    q, v, t = state
    of_q = named(coordinates, q.shape[0], "q", "coordinates, coordinate")
    of_v = speeds_named(speeds, of_q, v.shape[0])
    rates = tuple(Coordinate(f"{x.name}'", rate_unit(x.unit)) for x in of_q)
    of_u = named(controls, controller.actuators(q, t, v.shape[0]), "u", "controls, actuator")
    memory = 0 if controller.memory is None else controller.memory.shape[0]
    of_v = rates if of_v is None else of_v
    rattle, explicit = (solver, diffrax.Tsit5()) if isinstance(solver, Rattle) else (Rattle(), solver)
    return Context(mechanism, controller, state, of_q, of_v, of_u, memory, explicit, projection, rattle)


def _chosen(asked: bool | Sequence[str], known: list[Parameter]) -> list[Parameter]:
    """The parameters that are to be arguments. Raises TypeError or ValueError."""
    if asked is True and not known:
        raise ValueError(
            "parameters=True makes arguments of the arrays of mechanism and servo, but there are none: numbers within "
            "functions are constants. Pass False, or make them fields of a ukjax.AbstractSystem."
        )
    if isinstance(asked, bool):
        return known if asked else []
    if isinstance(asked, str) or not isinstance(asked, Sequence):
        raise TypeError(f"parameters must be True, False or a list of names, but is {asked!r}.")
    names = {x.name: x for x in known}
    for name in asked:
        if name not in names:
            raise ValueError(f"parameters must be of {', '.join(names) or 'none, for there are none'}; not {name!r}.")
    return [names[name] for name in dict.fromkeys(asked)]


def _title(name: str, context: Context, chosen: Sequence[Parameter]) -> Title:
    sizes = {"COORDINATES": len(context.coordinates), "SPEEDS": len(context.speeds)}
    sizes |= {"CONTROLS": len(context.controls)} if context.controls else {}
    sizes |= {"MEMORY": context.memory} if context.memory else {}
    sizes |= {"PARAMETERS": sum(x.values.size for x in chosen)} if chosen else {}
    return Title(name, f"{name}: a constrained mechanical system", sizes, chosen)


def _states(
    functions: Sequence[Exported],
    controller: AbstractController,
    chosen: Sequence[Parameter],
    state: tuple[Array, Array, Array],
) -> list[list[list[np.ndarray]]]:
    """Arguments for the test of each function: those of the given state, and of others around it."""
    random = np.random.default_rng(0)
    q, v, t = map(np.asarray, state)
    memory = np.zeros(0) if controller.memory is None else np.asarray(controller.memory)
    p = values_of(chosen)
    middle = {"q": q, "v": v, "t": t, "x": memory, "h": np.asarray(1e-3)}
    widths = {"q": 0.1, "v": 0.5, "t": 1.0, "x": 0.1, "h": 0.0, "p": 0.0}
    found = []
    for one in functions:
        sizes = {x.name: () if x.size is None else (x.size,) for x in one.quantity.takes}
        drawn = [
            {k: middle.get(k, np.zeros(n) if k != "p" else p) + (i > 0) * widths.get(k, 1.0) * random.normal(size=n)
             for k, n in sizes.items()}
            for i in range(STATES)
        ]  # fmt: skip
        found.append([[some[x.name] for x in one.quantity.takes] for some in drawn])
    return found


def _written(folder: Path, make: Callable[[], dict[str, bytes]]) -> list[Path]:
    """Writes the files of `make`, all of them or none, to a folder that is found writable before. Raises ValueError."""
    made = [x for x in (folder, *folder.parents) if not x.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as aside:
            files = make()
            for name, content in files.items():
                (Path(aside) / name).write_bytes(content)
            for name in files:
                shutil.move(Path(aside) / name, folder / name)
    except OSError as error:
        _remove(made)
        raise ValueError(f"out={str(folder)!r} cannot be written to: {error.strerror}. Pass another folder.") from error
    except BaseException:
        _remove(made)
        raise
    return [folder / name for name in files]


def _remove(folders: Sequence[Path]) -> None:
    """Removes folders that were made for nothing."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
