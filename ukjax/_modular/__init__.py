"""Mechanisms of modules: names, couplings, composites, and the motion level by level."""

from ._composite import Composite as Composite
from ._coupled import Coupled as Coupled
from ._modular_level import ModularLevel as ModularLevel
from ._module import Coupling as Coupling
from ._module import Module as Module
