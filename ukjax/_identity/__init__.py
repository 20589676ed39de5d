"""Checksums of programs, which are the same in another process, on another machine, and in another folder."""

from ._checksum import checksum_of as checksum_of
from ._code import PACKAGES as PACKAGES
from ._code import versions as versions
