"""Mechanisms of modules: names, couplings, composites, and level by level on them."""

from ._composite import Composite as Composite
from ._composite import Coupled as Coupled
from ._composite import Coupling as Coupling
from ._composite import Module as Module
from ._modular_level import ModularLevel as ModularLevel
