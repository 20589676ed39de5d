"""The `ukjax` command."""

from ._app import main as main
