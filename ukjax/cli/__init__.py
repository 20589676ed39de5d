"""The `ukjax` command."""

from ._app import main as main
from ._list import factories as factories
