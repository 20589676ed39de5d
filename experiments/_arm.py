"""An arm of MJCF whose elbow is driven by a parallelogram, and its motion under a known control.

          o---o elbow ---- forearm ----o wrist -- hand     z up, x to the right, hinges across the plane
      rod |   | upper arm                                 motors at shoulder, crank and wrist; the rod carries the
          |   |                                           crank's motion to the forearm and closes the loop
          o---o shoulder
         crank  (ground)

q: angles of the hinges (shoulder, elbow, wrist, crank, rod) [rad]; v: their rates [rad/s].
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optimistix as optx

from ukjax import rigid

from . import _identification
from ._identification import Control, Sample


T1, POINTS = 2.0, 51
STEPS = 160  # of a fixed length
FOLLOWING = (1, 4)  # elbow, rod: where the loop wants them
ENCODERS = (0, 1, 2, 3)  # coordinates that are measured: of the motors, and the elbow
STIFFNESS, DAMPING = (800.0, 20.0, 600.0), (60.0, 1.0, 40.0)  # of the control [N m/rad, N m s/rad]
TEXT = """
<mujoco model="arm with a parallelogram">
  <option gravity="0 0 -9.81"/>
  <default><joint axis="0 1 0"/></default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" damping="3"/>
      <inertial pos="0 0 0.25" mass="6" diaginertia="0.13 0.13 0.01"/>
      <body name="forearm" pos="0 0 0.5">
        <joint name="elbow" damping="1"/>
        <inertial pos="0.2 0 0" mass="4" diaginertia="0.01 0.08 0.08"/>
        <body name="hand" pos="0.5 0 0">
          <joint name="wrist" damping="0.3"/>
          <inertial pos="0.1 0 0" mass="2" diaginertia="0.005 0.01 0.01"/>
        </body>
      </body>
    </body>
    <body name="crank">
      <joint name="crank" damping="2"/>
      <inertial pos="-0.075 0 0" mass="1.5" diaginertia="0.001 0.004 0.004"/>
      <body name="rod" pos="-0.15 0 0">
        <joint name="rod"/>
        <inertial pos="0 0 0.25" mass="1" diaginertia="0.02 0.02 0.001"/>
      </body>
    </body>
  </worldbody>
  <equality><connect name="loop" body1="rod" body2="forearm" anchor="0 0 0.5"/></equality>
  <actuator><motor joint="shoulder"/><motor joint="wrist"/><motor joint="crank"/></actuator>
</mujoco>
"""


def start(robot: rigid.Robot) -> Any:
    """Angles (5,) with the motors at zero, the others as the loop wants them: differentiable, as `assemble` is not."""
    free = jnp.array(FOLLOWING)

    def gap(x, _):
        q = jnp.zeros(5).at[free].set(x)
        off = robot.position(q, "rod.loop_0") - robot.position(q, "forearm.loop_1")
        return off[jnp.array([0, 2])]

    found = optx.root_find(gap, optx.Newton(1e-12, 1e-12), jnp.zeros(2))
    return jnp.zeros(5).at[free].set(found.value)


def motion(robot: rigid.Robot, sample: Sample, steps: int = STEPS) -> Any:
    """Angles that the encoders see (POINTS, 4) [rad]."""
    return angles(robot, sample, steps)[:, jnp.array(ENCODERS)]


def angles(robot: rigid.Robot, sample: Sample, steps: int = STEPS) -> Any:
    """All of them (POINTS, 5) [rad], from rest with the motors at zero."""
    control = Control(robot, sample, STIFFNESS, DAMPING)
    return _identification.motion(control, start(robot), T1, POINTS, steps)


def told(count: int, seed: int = 0) -> Sample:
    """Different motions."""
    rng = np.random.default_rng(seed)
    amplitude = rng.uniform(0.2, 0.4, (count, 3)) * rng.choice([-1, 1], (count, 3))
    return Sample(jnp.asarray(amplitude), jnp.asarray(rng.uniform(3.0, 7.0, (count, 3))))
