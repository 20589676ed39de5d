"""Many trajectories on every device, in bounded memory, with none waiting for another."""

from ._devices import devices_of as devices_of
from ._devices import gathered as gathered
from ._devices import lanes_of as lanes_of
from ._devices import on_each as on_each
from ._devices import on_one_device as on_one_device
from ._devices import share_out as share_out
from ._plan import Reduction as Reduction
from ._simulate_batch import simulate_batch as simulate_batch
