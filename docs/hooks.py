"""What mkdocs does besides: mathematics as MathML, which browsers draw without a script; pages made of other files."""

import json
import re
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File


ROOT = Path(__file__).parent.parent
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_) -> str:
    html = INLINE.sub(lambda found: convert(unescape(found[1])), html)
    return DISPLAY.sub(lambda found: convert(unescape(found[1]), display="block"), html)


def on_files(files, config, **_):
    """The changelog as a page; and, where it was not made, a page that says how to make the gallery."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    # Its links lead to the pages as they lie in the repository.
    files.append(File.generated(config, "changes.md", content=changes.replace("](docs/", "](")))
    if files.get_file_from_path("gallery/index.md") is None:
        text = (
            "# Gallery\n\nThis site was built without it. Before the site,\n\n"
            "```sh\nukjax gallery models --out docs/gallery\n```\n\n"
            "simulates every scenario of the models and makes their pages: some minutes on two cores.\n"
        )
        files.append(File.generated(config, "gallery/index.md", content=text))
    return files


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
    (site / WORKER).write_text(START % json.dumps(worker.read_text("utf-8")), "utf-8")


def on_post_template(output_content: str, template_name: str, **_) -> str:
    return output_content.replace(REMEDY, f'<script src="/{WORKER}"></script>')
