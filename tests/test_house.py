"""The rules of the house, read off the source."""

import ast
import graphlib
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import pytest

import ukjax


ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "ukjax": {"ukjax"},
    "models": {"ukjax", "models"},
    "experiments": {"ukjax", "models", "experiments"},
    "benchmarks": {"ukjax", "models", "benchmarks"},
}
OURS = {*MAY_IMPORT, "tests"}


def imports(path: Path) -> set[str]:
    """Absolute dotted names of all that a file imports, wherever in the file."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_run_one_way(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        ours = {name.split(".")[0] for name in imports(path)} & OURS
        assert ours <= MAY_IMPORT[folder], f"{path} imports {ours - MAY_IMPORT[folder]}"


def test_numerical_core_imports_neither_plots_nor_commands():
    for path in (ROOT / "ukjax").rglob("*.py"):
        if {"plot", "cli"} & set(path.relative_to(ROOT / "ukjax").parts):
            continue
        outside = {n for n in imports(path) if re.match(r"ukjax\.(plot|cli)|matplotlib|typer|rich", n)}
        assert not outside, f"{path} imports {outside}"


def test_no_files_import_each_other_in_a_circle():
    """Wherever in a file the import stands, under TYPE_CHECKING too."""
    name = lambda path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    files = {name(path): path for path in (ROOT / "ukjax").rglob("*.py")}
    names = {file: imports(path) & set(files) - {file} for file, path in files.items()}
    # `from .room import name` takes a name of the room's, or a file in it; a room imports its own files.
    needed = {file: {n for n in of if not any(other.startswith(f"{n}.") for other in of)} for file, of in names.items()}
    graphlib.TopologicalSorter(needed).prepare()  # CycleError names the files


def test_docstrings_begin_with_a_sentence_that_stands_alone():
    """Not with a clause or a pronoun that needs the code, or the docstring above, to be understood."""
    clause = re.compile(
        r"(What|How|Of|The same|By|With|One|That|Those|If|None|No|To|For|In|At|From|On|It|They|As|Which)\b"
    )
    for path in (ROOT / "ukjax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                assert not clause.match(text), f"{path}: {text[:60]!r}"
                assert not re.search(r"\b(a|the) person\b|\bsomebody\b", text), f"{path}: who is meant? {text[:60]!r}"


def test_thresholds_are_those_of_the_source():
    page = (ROOT / "docs/design/thresholds.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", page, re.MULTILINE)
    assert len(rows) > 20
    for name, file in rows:
        assert re.search(rf"\b{name}\b", (ROOT / "ukjax" / file).read_text()), f"{file} has no {name}"


def test_outside_of_the_library_only_public_names_are_used():
    for folder in ("models", "experiments", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            private = {n for n in imports(path) if re.match(r"ukjax(\.\w+)*\._[a-z]", n)}
            assert not private, f"{path} imports {private}"


def library_classes() -> list[type]:
    for module in pkgutil.walk_packages(ukjax.__path__, "ukjax."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, todo = [], [eqx.Module]
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            if cls.__module__.split(".")[0] == "ukjax" and "_Initable" not in cls.__qualname__:
                found.append(cls)
    return found


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without those of its docstring."""
    first = function.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    lines = lambda node: (node.end_lineno or 0) - node.lineno + 1
    return lines(function) - (lines(first) if is_text else 0)


def test_files_and_functions_are_short():
    for path in (ROOT / "ukjax").rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 600, f"{path} has more than 600 lines: more than one idea"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert own_lines(node) <= 60, f"{path}: {node.name} has more than 60 lines"


def test_classes_are_abstract_or_final():
    classes = library_classes()
    assert len(classes) > 10
    for cls in classes:
        abstract = inspect.isabstract(cls)
        assert abstract == cls.__name__.startswith("Abstract"), f"{cls} is not named for what it is"
        bases = [base for base in cls.__mro__[1:] if base.__module__.split(".")[0] == "ukjax"]
        assert all(inspect.isabstract(base) for base in bases), f"{cls} inherits from a final class"
        for base in bases:
            concrete = {
                name
                for name, member in vars(base).items()
                if inspect.isfunction(member) and name[:2] != "__" and name not in base.__abstractmethods__
            }
            assert not concrete & set(vars(cls)), f"{cls} overrides {concrete & set(vars(cls))} of {base}"


def test_importing_has_no_side_effect():
    """Nor does it load what is heavy and used by some only: that took twice as long as all the rest."""
    heavy = {
        "matplotlib",
        "xarray",
        "zarr",
        "pandas",
        "typer",
        "sympy",
        "scipy.signal",
        "scipy.stats",
        "scipy.optimize",
    }
    code = "import jax, ukjax, sys; assert not jax.config.jax_enable_x64; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert not heavy & set(ended.stdout.split())


def test_every_public_name_has_a_docstring():
    todo, seen = [ukjax], 0
    while todo:
        module = todo.pop()
        assert module.__doc__, f"{module.__name__} has no docstring"
        for name, public in vars(module).items():
            if name.startswith("_"):
                continue
            if inspect.ismodule(public):
                todo += [public] if module is ukjax else []
                continue
            assert public.__doc__, f"{module.__name__}.{name} has no docstring"
            seen += 1
    assert seen > 100


def test_few_names_are_shown_and_old_ones_tell_where_they_are():
    shown = [name for name in dir(ukjax) if not name.startswith("_")]
    assert len(shown) <= 50
    assert {"Mechanism", "simulate", "analysis", "rigid"} <= set(shown)
    assert "Trajectory" not in shown
    assert inspect.isclass(ukjax.Trajectory)
    with pytest.raises(AttributeError, match=r"There is ukjax\.pseudoinverse\.Jacobi\."):
        ukjax.Jacobi  # pyright: ignore # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing'.$"):
        ukjax.nothing  # pyright: ignore # noqa: B018


def test_readme_commands_are_what_ci_runs():
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run, test = blocks[0].strip(), blocks[1].strip()
    assert "\n" not in run
    assert "\n" not in test
    assert "experiments.xu2017_scara" in run
    assert "pytest" in test
    # CI takes the second block out of the README itself, so the two cannot differ.
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_tests_know_the_inside_from_one_file():
    for path in (ROOT / "tests").rglob("*.py"):
        private = {n for n in imports(path) if re.match(r"ukjax(\.\w+)*\._[a-z]", n)}
        assert not private or path.name == "inside.py", f"{path} imports {private}: tests/inside.py is for that"
