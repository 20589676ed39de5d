"""Mechanisms of modules: names, couplings, composites, and the motion level by level."""

from ._composite import Composite as Composite
from ._composite import Coupling as Coupling
from ._composite import Module as Module
from ._coupled import Coupled as Coupled
from ._modular_level import ModularLevel as ModularLevel
