"""What mkdocs does besides: mathematics as MathML, which browsers draw without a script; pages made of other files."""

import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import jupytext
from latex2mathml.converter import convert
from mkdocs.structure.files import File


ROOT = Path(__file__).parent.parent
# Pages that are notebooks too, for those who teach.
NOTEBOOKS = ("first_hour", "rigid", "analysis")
# A link to another page, or a picture.
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
INLINE = re.compile(
    r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL
)
DISPLAY = re.compile(
    r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL
)


MATHML = "http://www.w3.org/1998/Math/MathML"
# Accents as the converter writes them: dots, hat, tilde, bar; and as characters
# that are made to stand over a letter.
ACCENTS = "\u00a8\u02d9^~\u00af"
OVER = str.maketrans("^~", "\u02c6\u02dc")
ElementTree.register_namespace("", MATHML)


def on_page_content(html: str, **_) -> str:
    html = INLINE.sub(lambda found: mathml(found[1], "inline"), html)
    return DISPLAY.sub(lambda found: mathml(found[1], "block"), html)


def mathml(text: str, display: str) -> str:
    """TeX as MathML, in which dots and hats are accents: they keep their size, and are as near as accents are."""
    tree = ElementTree.fromstring(convert(unescape(text), display=display))
    for over in tree.iter(f"{{{MATHML}}}mover"):
        accent = over[-1]
        if accent.text and accent.text in ACCENTS:
            over.set("accent", "true")
            accent.set("stretchy", "false")
            accent.text = accent.text.translate(OVER)
    return ElementTree.tostring(tree, encoding="unicode")


def notebook(name: str) -> str:
    """The page of that name as a notebook in a folder beside it, whose links lead back to the site."""
    # What a shell does is not for a cell.
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    page = page.replace("```sh", "```text")
    made = jupytext.reads(LINK.sub(_from_beside, page), "md")
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return jupytext.writes(made, "ipynb")


def _from_beside(link: re.Match[str]) -> str:
    return f"](../{link[1].replace('.md', '.html')})"


def on_files(files, config, **_):
    """The changelog as a page; and, where it was not made, a page that says how to make the gallery."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    # Its links lead to the pages as they lie in the repository.
    files.append(
        File.generated(
            config, "changes.md", content=changes.replace("](docs/", "](")
        )
    )
    if files.get_file_from_path("gallery/index.md") is None:
        text = (
            "# Gallery\n\nThis site was built without it. Before the site,\n\n"
            "```sh\nukjax gallery models --out docs/gallery\n```\n\n"
            "simulates every scenario of the models and makes their pages: some minutes on two cores.\n"
        )
        files.append(File.generated(config, "gallery/index.md", content=text))
    for name in NOTEBOOKS:
        files.append(
            File.generated(
                config, f"notebooks/{name}.ipynb", content=notebook(name)
            )
        )
    for picture in sorted((ROOT / "out").glob("*/*.png")):
        page = files.get_file_from_path(f"papers/{picture.parent.name}.md")
        if page is not None:
            name = f"papers/{picture.parent.name}/{picture.name}"
            files.append(
                File.generated(config, name, abs_src_path=str(picture))
            )
            pictures.setdefault(page.src_uri, []).append(
                f"{picture.parent.name}/{picture.name}"
            )
    return files


# Of pages that show what an experiment drew, if it was run here.
pictures: dict[str, list[str]] = {}


def on_page_markdown(markdown: str, page, **_) -> str:
    if page.file.src_uri.removesuffix(".md") in NOTEBOOKS:
        notebook = f"notebooks/{page.file.src_uri.removesuffix('.md')}.ipynb"
        markdown = f"{markdown}\n\n[This page as a notebook]({notebook})"
    drawn = pictures.get(page.file.src_uri, [])
    shown = [
        f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in drawn
    ]
    return "\n\n".join([markdown, *(["## Pictures", *shown] if shown else [])])


# A page that is opened as a file may start no worker from another file. The theme asks a server for a remedy; here the
# worker of its search comes along as text.
REMEDY = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
WORKER = "assets/javascripts/file-worker.js"
START = """if (location.protocol === "file:") {
  const code = %s;
  const Plain = window.Worker;
  window.Worker = class extends Plain {
    constructor(url) { super(/workers\\/search/.test(url) ? URL.createObjectURL(new Blob([code])) : url); }
  };
}
"""


def on_post_page(output: str, page, **_) -> str:
    up = "../" * page.url.count("/")
    return output.replace(REMEDY, f'<script src="{up}{WORKER}"></script>')


def on_post_build(config, **_) -> None:
    site = Path(config.site_dir)
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    (site / WORKER).write_text(
        START % json.dumps(worker.read_text("utf-8")), "utf-8"
    )


def on_post_template(output_content: str, template_name: str, **_) -> str:
    return output_content.replace(REMEDY, f'<script src="/{WORKER}"></script>')
