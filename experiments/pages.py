"""One page a paper for the site: what it says, and what we measure. Runs the papers' experiments, which takes minutes.

`python -m experiments.pages` writes docs/papers/NAME.md of each, and its pictures to out/NAME, where a site finds them.
"""

import argparse
import platform
import re
import subprocess
import sys
from pathlib import Path

import jax
from rich.progress import track


ROOT = Path(__file__).parent.parent
PAPERS = {
    "xu2017_scara": "Xu & Liu (2017): a SCARA robot",
    "defalco2008_pseudoinverse": "de Falco et al. (2008): pseudoinverses",
    "liu2015_servo": "Liu et al. (2015): servo constraints",
    "orsino2017_recursive": "Orsino (2017): level by level",
    "zhao2018_examples": "Zhao et al. (2018): examples",
    "zhao2018_spiral": "Zhao et al. (2018): a spiral",
    "zhao2018_swarm": "Zhao et al. (2018): a swarm",
    "zhao2018_flexible_joint": "Zhao et al. (2018): a flexible joint",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("papers", nargs="*", help=f"of {', '.join(PAPERS)}; all if omitted")
    chosen = parser.parse_args().papers or list(PAPERS)
    unknown = [name for name in chosen if name not in PAPERS]
    if unknown:
        parser.error(f"there is no {unknown[0]}: pass some of {', '.join(PAPERS)}.")
    folder = ROOT / "docs" / "papers"
    folder.mkdir(exist_ok=True)
    for name in track(chosen, "Running the experiments"):
        out = ROOT / "out" / name
        command = [sys.executable, "-m", f"experiments.{name}", "--out", str(out)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        (folder / f"{name}.md").write_text(page(name, (out / "report.md").read_text("utf-8")), "utf-8")


def page(name: str, report: str) -> str:
    """The Markdown of a page, of the report of an experiment.

    The site adds the pictures themselves; here are their captions.
    """
    machine = f"Python {platform.python_version()}, JAX {jax.__version__}, {platform.machine()}"
    how = f"`python -m experiments.{name}` prints this and draws the pictures; here it ran with {machine}."
    report = re.sub(r"!\[.*\]\((.*)\..*\)\n\n", lambda found: f"**{found[1].replace('_', ' ')}**: ", report)
    return f"# {PAPERS[name]}\n\n{how}\n\n{report}"


if __name__ == "__main__":
    main()
