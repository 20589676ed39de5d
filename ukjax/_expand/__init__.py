"""Small programs as scalar code."""

from ._solved import Certain as Certain
from ._where_certain import motion_or as motion_or
from ._where_certain import where_certain as where_certain
