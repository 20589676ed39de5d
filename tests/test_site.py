"""The site builds without a warning and without a network, refers to what is there, and has every public name in it."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ukjax
from ukjax import plot


ROOT = Path(__file__).parent.parent
KINDS = (".html", ".ipynb")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {
        str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.suffix in KINDS
    }


def test_every_page_is_built_and_nothing_is_loaded_from_elsewhere(site):
    written = {path.with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {str(path.relative_to(ROOT / "docs")) for path in written} <= site.keys()
    for name, html in site.items():
        assert not name.endswith(".html") or not re.findall(
            r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//', html
        ), name
    assert 'src="../assets/javascripts/file-worker.js"' in site["reference/motion.html"]


def test_mathematics_needs_no_script(site):
    motion = site["reference/motion.html"]
    assert "<math" in motion
    assert not any("arithmatex" in html for html in site.values())


@pytest.mark.parametrize("name", ["first_hour", "rigid", "analysis"])
def test_a_notebook_has_the_code_of_its_page(site, name):
    cells = json.loads(site[f"notebooks/{name}.ipynb"])["cells"]
    code = ["".join(cell["source"]).strip() for cell in cells if cell["cell_type"] == "code"]
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert code == [block.strip() for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert f'href="notebooks/{name}.ipynb"' in site[f"{name}.html"]


SPACES = [
    m for name, m in vars(ukjax).items() if inspect.ismodule(m) and name[0] != "_" and name not in ("cli", "plot")
]


@pytest.mark.parametrize("module", [ukjax, plot, *SPACES], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference_once(site, module):
    prefix = module.__name__
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    named = re.findall(rf"^::: {re.escape(prefix)}\.(\w+)$", text, re.MULTILINE)
    public = {name for name, x in vars(module).items() if not (name.startswith("_") or inspect.ismodule(x))}
    public -= set() if module is ukjax else set(vars(ukjax))
    assert sorted(named) == sorted(public)
    pages = [html for name, html in site.items() if name.startswith("reference/")]
    for name in public:
        assert sum(f'id="{prefix}.{name}"' in html for html in pages) == 1, name
