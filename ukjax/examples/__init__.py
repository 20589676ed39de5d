"""Example mechanisms, one file each, which `ukjax list` lists.

A wheel has some of them in this folder; in a clone all are in the folder `models` beside the library.
"""

from pathlib import Path


_CLONE = Path(__file__).parents[2] / "models"
if not (Path(__file__).parent / "scara.py").exists() and _CLONE.is_dir():
    __path__.append(str(_CLONE))
