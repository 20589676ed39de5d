"""A system under a force that something else decides on."""

from collections.abc import Callable

import ukjax


class Driven(ukjax.AbstractSystem):
    """`plant`, with `applied(q, v, t)` (n,) [N or N m] on top of its own force.

    `applied` is a module rather than a plain function, so that its arrays have gradients.
    """

    plant: ukjax.AbstractSystem
    applied: Callable

    def mass(self, q, t):
        return self.plant.mass(q, t)

    def force(self, q, v, t):
        return self.plant.force(q, v, t) + self.applied(q, v, t)
