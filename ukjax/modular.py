"""Composites of modules, which are coupled level by level."""

from ._modular import Composite as Composite
from ._modular import Coupling as Coupling
from ._modular import ModularLevel as ModularLevel
from ._modular import Module as Module
from ._system import AbstractModularSystem as AbstractModularSystem
