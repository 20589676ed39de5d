"""The site builds without a warning and without a network, refers to what is there, and has every public name in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ukjax
from ukjax import plot, rigid


ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.html")}


def test_every_page_is_built_and_nothing_is_loaded_from_elsewhere(site):
    written = {path.with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {str(path.relative_to(ROOT / "docs")) for path in written} <= site.keys()
    for name, html in site.items():
        assert not re.findall(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//', html), (
            name
        )
    assert 'src="../assets/javascripts/file-worker.js"' in site["reference/motion.html"]


def test_mathematics_needs_no_script(site):
    motion = site["reference/motion.html"]
    assert "<math" in motion
    assert not any("arithmatex" in html for html in site.values())


@pytest.mark.parametrize(("module", "prefix"), [(ukjax, "ukjax"), (plot, "ukjax.plot"), (rigid, "ukjax.rigid")])
def test_every_public_name_is_in_the_reference_once(site, module, prefix):
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    named = re.findall(rf"^::: {re.escape(prefix)}\.(\w+)$", text, re.MULTILINE)
    public = {name for name in vars(module) if not name.startswith("_")} - {"rigid", "plot", "cli"}
    assert sorted(named) == sorted(public)
    pages = [html for name, html in site.items() if name.startswith("reference/")]
    for name in public:
        assert sum(f'id="{prefix}.{name}"' in html for html in pages) == 1, name
