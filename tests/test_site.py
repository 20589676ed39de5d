"""The site builds without a warning and without a network, refers to what is there, and has every public name in it."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import nbclient
import nbformat
import pytest
from fontTools.ttLib import TTFont

import ukjax
from ukjax import plot

from .plot.browser import Browser, needs_chromium


ROOT = Path(__file__).parent.parent
KINDS = (".html", ".ipynb")


def _hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = _hooks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture(scope="module")
def site(folder):
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
    assert not re.findall(r"<math[^>]*>[^$]*?\\(?:begin|frac|dot)", motion)


def test_the_font_has_every_letter_of_the_mathematics(site):
    """And tables by which a browser places dots; in italics where a letter stands for a quantity."""
    font = TTFont(ROOT / "docs" / "assets" / "stix-two-math.woff2")
    assert "MATH" in font
    known = font.getBestCmap()
    seen = set()
    for html in site.values():
        for text in re.findall(r"<math.*?</math>", html, re.DOTALL):
            seen |= set(unescape(re.sub(r"<[^>]*>", "", text)))
    assert {"q", "Φ", "∂", "˙", "¨", "="} <= seen
    assert not {x for x in seen if ord(x) not in known and not x.isspace()}
    italic = [0x1D434 + i for i in range(26)] + [0x1D44E + i for i in range(26) if i != 7]
    assert set(italic) <= known.keys()


def test_dots_are_accents_and_equations_are_aligned():
    assert '<mover accent="true"><mi>q</mi><mo stretchy="false">¨</mo></mover>' in HOOKS.mathml(r"\ddot q", "inline")
    assert HOOKS.mathml(r"\dot{q}", "inline").count('accent="true"') == 1
    assert "\u02c6" in HOOKS.mathml(r"\hat M", "inline")
    with pytest.raises(ElementTree.ParseError):  # a page with an environment that is not known is not built
        HOOKS.mathml(r"\begin{aligned} a &= b \end{aligned}", "block")


def test_a_signature_has_a_line_for_each_argument(site):
    (code,) = re.findall(
        r"<pre.*?</pre>", site["reference/trajectories.html"].partition('id="ukjax.simulate"')[2], re.DOTALL
    )[:1]
    lines = unescape(re.sub(r"<[^>]*>", "", code)).strip().splitlines()
    assert lines[0].endswith("simulate(")
    assert [line.strip() for line in lines[1:4]] == ["mechanism,", "q0,", "v0,"]


def test_pages_lead_on_and_back(site):
    assert "md-footer__link--next" in site["first_hour.html"]
    assert "md-footer__link--prev" in site["first_hour.html"]
    assert site["index.html"].count(".webp") == 6


# Of each page what does not fit: the page, or a block of code; and of pictures those that are not there.
FITS = """
(() => {
  const wide = [...document.querySelectorAll("pre > code")].filter((x) => x.scrollWidth > x.clientWidth + 1);
  const gone = [...document.images].filter((x) => x.loading !== "lazy" && x.complete && !x.naturalWidth);
  return {page: document.documentElement.scrollWidth, code: wide.map((x) => x.innerText.slice(0, 60)),
          gone: gone.map((x) => x.src)};
})()
"""


@pytest.mark.long
@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_fits_its_window(folder, width, dark):
    pages = [path for path in sorted(folder.rglob("*.html")) if "<article" in path.read_text("utf-8")]
    pages.remove(folder / "404.html")  # which a server shows, in any folder
    assert len(pages) > 50
    grounds = set()
    with Browser(pages[0], width=width, dark=dark) as browser:
        for page in pages:
            browser.ask("Page.navigate", url=page.as_uri())
            browser.wait(f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'")
            found = browser(FITS)
            assert found["page"] <= width, page
            assert found["gone"] == [], page
            assert width < 1280 or found["code"] == [], page
            grounds.add(browser("getComputedStyle(document.body).backgroundColor"))
        assert not browser.errors
    assert (grounds == {"rgb(255, 255, 255)"}) != dark


@pytest.mark.parametrize("name", ["first_hour", "rigid", "analysis"])
def test_a_notebook_has_the_code_of_its_page(site, name):
    cells = json.loads(site[f"notebooks/{name}.ipynb"])["cells"]
    code = ["".join(cell["source"]).strip() for cell in cells if cell["cell_type"] == "code"]
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert code == [block.strip() for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    assert f'href="notebooks/{name}.ipynb"' in site[f"{name}.html"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["first_hour", "rigid", "analysis"])
def test_a_notebook_shows_pictures_tables_and_progress(name, tmp_path):
    made = nbformat.reads(HOOKS.notebook(name), as_version=4)
    nbclient.NotebookClient(made, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in made.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
    written = "".join(output.text for output in shown if output.output_type == "stream" and output.name == "stderr")
    assert name != "first_hour" or "100%" in written


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
