"""Adds the models of the repository to a wheel, as `ukjax.examples`; an editable install finds them by itself."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Examples(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for path in sorted((Path(self.root) / "models").glob("[!_]*.py")):
            build_data["force_include"][str(path)] = f"ukjax/examples/{path.name}"
