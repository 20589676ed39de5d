"""Many trajectories on every device, in bounded memory."""

from ._devices import Tiles as Tiles
from ._devices import devices_of as devices_of
from ._devices import on_each as on_each
from ._devices import on_one_device as on_one_device
from ._plan import Reduction as Reduction
from ._simulate_batch import simulate_batch as simulate_batch
