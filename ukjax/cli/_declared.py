"""The scenarios of a package as its source declares them: nothing is imported but the packages themselves."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import _target
from ._target import UsageError


EXAMPLES = "ukjax.examples"  # what is listed by default


class Declared(NamedTuple):
    """A scenario as it is declared.

    Attributes:
        target: TARGET in the command.
        name: The name of the scenario; the first line of a docstring where the name is computed.
        source: The source of the system; empty where none is declared, or it is computed.
        about: The docstring of the module: sketch, equations, source.
    """

    target: str
    name: str
    source: str
    about: str


def declared(package: str) -> tuple[list[Declared], list[str]]:
    """Returns the scenarios of a package, a module or a file, and a line for each file that cannot be read.

    A scenario is a public function that is annotated to return a `Scenario` and needs no argument. Raises UsageError
    if there is no such package.
    """
    if _target.is_robot(package):
        if not Path(package).is_file():
            raise UsageError(f"There is no file {package}.")
        return [Declared(package, Path(package).stem, "", "")], []
    found: list[Declared] = []
    failures: list[str] = []
    for place, path in files(package):
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, ValueError, OSError) as error:
            failures.append(f"{place} cannot be read: {type(error).__name__}: {error}")
            continue
        found += _in_module(place, tree)
    return found, failures


def files(package: str) -> Iterator[tuple[str, Path]]:
    """The source files of a package, by the place of each in a TARGET; public ones only."""
    if package.endswith(".py"):
        if not Path(package).is_file():
            raise UsageError(f"There is no file {package}.")
        yield package, Path(package)
        return
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a console script does not look in the current folder
    try:
        if package == EXAMPLES:
            importlib.import_module(package)  # which knows where its files are
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UsageError(_target.no_module(package))
    if spec.origin is not None:
        yield package, Path(spec.origin)
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                yield ".".join((package, *parts)), path
            elif parts[-1] == "__init__" and len(parts) > 1 and not any(part.startswith("_") for part in parts[:-1]):
                yield ".".join((package, *parts[:-1])), path


def _in_module(place: str, tree: ast.Module) -> list[Declared]:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    about = (ast.get_docstring(tree) or "").strip()
    found = []
    for name, function in functions.items():
        if name.startswith("_") or not _returns_scenario(function) or _needs_arguments(function):
            continue
        words = _first_line(ast.get_docstring(function) or about) or name
        title = _keyword(function, "name", functions, texts) or words
        found.append(Declared(f"{place}:{name}", title, _keyword(function, "source", functions, texts), about))
    return found


def _returns_scenario(function: ast.FunctionDef) -> bool:
    returned = function.returns
    if isinstance(returned, ast.Constant) and isinstance(returned.value, str):
        return returned.value.split(".")[-1] == "Scenario"
    last = returned.attr if isinstance(returned, ast.Attribute) else getattr(returned, "id", None)
    return last == "Scenario"


def _needs_arguments(function: ast.FunctionDef) -> bool:
    given = function.args
    positional = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return positional > 0 or any(default is None for default in given.kw_defaults)


def _keyword(
    function: ast.FunctionDef, name: str, functions: dict[str, ast.FunctionDef], texts: dict[str, str], depth: int = 2
) -> str:
    """The text of a keyword of a call in a function, or in a function of the module that it calls; empty if none."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for keyword in (keyword for call in calls for keyword in call.keywords if keyword.arg == name):
        value = keyword.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        if isinstance(value, ast.Name) and value.id in texts:
            return texts[value.id]
        if isinstance(value, ast.JoinedStr):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in value.values)
    called = [call.func.id for call in calls if isinstance(call.func, ast.Name) and call.func.id in functions]
    if depth:
        for other in called:
            if found := _keyword(functions[other], name, functions, texts, depth - 1):
                return found
    return ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()
