"""Installed packages, which are known by their versions."""

import functools as ft
import importlib.metadata
import sys
import sysconfig
from pathlib import Path


PACKAGES = ("ukjax", "jax", "jaxlib", "diffrax", "numpy")  # on which results depend


def versions() -> dict[str, str]:
    """The versions of the installed packages on which results depend."""
    return {package: importlib.metadata.version(package) for package in PACKAGES}


@ft.cache
def release(module: str | None) -> str | None:
    """The name and version of the installed package that a module belongs to; None for a module of the user."""
    top = (module or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return top
    package = sys.modules.get(top)
    version = getattr(package, "__version__", "")
    if top == "ukjax" or (package is not None and _is_installed(package)):
        return f"{top} {version}"
    return None


def _is_installed(package: object) -> bool:
    places = [getattr(package, "__file__", None), *getattr(package, "__path__", ())]
    roots = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    return any(root in Path(place).resolve().parents for place in places if place for root in roots)
