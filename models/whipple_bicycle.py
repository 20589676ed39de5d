"""Whipple's bicycle: two wheels, a rear frame with a rigid rider, and a front fork, on level ground.

            .--H            C: centre of the rear wheel; R: radius     x forward, z up; it stands upright and straight
           /    \\           P: contact of the rear wheel, the origin   where all joints are zero
     ---B-'      \\          B, H: centres of mass of rear frame and fork
    /      .      \\         the steering axis leans back by `tilt` and meets the ground `trail` before
   (C)             (F)      the contact Q of the front wheel
    P--- wheelbase --Q

Ten coordinates: of the rear frame a position and a quaternion, of the three hinges an angle; nine speeds. Each wheel is
a thin disc that rolls: six rows, so that three degrees of freedom are left, lean, steer and speed.

Riding straight at a constant speed u it obeys M q'' + u C1 q' + (g K0 + u^2 K2) q = 0 for small lean and steer: without
a rider's hands it is stable from 4.29 to 6.02 m/s.

Source: Meijaard, Papadopoulos, Ruina & Schwab (2007), Linearized dynamics equations for the balance and steer of a
bicycle: a benchmark and review, Proc. R. Soc. A 463, 1955-1982, table 1. Their z points down.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

import ukjax
from ukjax import rigid


WHEELBASE, TRAIL, TILT, G = 1.02, 0.08, np.pi / 10, 9.81  # [m, m, rad, m/s^2]
RADII = {"rear": 0.3, "front": 0.35}  # [m]
# Mass [kg]; moments about the centre of mass (xx, yy, zz, and xz with z down) [kg m^2]; centre (x, height) [m].
REAR = (2.0, (0.0603, 0.12, 0.0603, 0.0), (0.0, 0.3))
FRAME = (85.0, (9.2, 11.0, 2.8, 2.4), (0.3, 0.9))
FORK = (4.0, (0.05892, 0.06, 0.00708, -0.00756), (0.9, 0.7))
FRONT = (3.0, (0.1405, 0.28, 0.1405, 0.0), (WHEELBASE, 0.35))


def robot() -> rigid.Robot:
    """Bodies and joints; every body's frame has its origin where its joint is, and is upright where that is zero."""
    hubs = {"rear": jnp.array([0.0, 0.0, RADII["rear"]]), "front": jnp.array([WHEELBASE, 0.0, RADII["front"]])}
    axis = jnp.array([-np.sin(TILT), 0.0, np.cos(TILT)])
    # Where the steering axis meets the ground; the fork's frame is there.
    foot = jnp.array([WHEELBASE + TRAIL, 0.0, 0.0])
    wheel = lambda part, name: rigid.Body(_inertia(part, hubs[name]), shapes=rigid.Shape.circle(RADII[name], "y"))
    head = 0.9 / jnp.cos(TILT) * axis
    bodies = {
        "frame": rigid.Body(
            _inertia(FRAME, hubs["rear"]),
            {"head": rigid.Frame(foot - hubs["rear"])},
            rigid.Shape([(0, 0, 0), (0.3, 0, 0.6), tuple(np.asarray(foot + head - hubs["rear"])), (0.3, 0, 0.6)]),
        ),
        "rear wheel": wheel(REAR, "rear"),
        "fork": rigid.Body(
            _inertia(FORK, foot),
            {"hub": rigid.Frame(hubs["front"] - foot)},
            rigid.Shape([tuple(np.asarray(x)) for x in (hubs["front"] - foot, head, hubs["front"] - foot)]),
        ),
        "front wheel": wheel(FRONT, "front"),
    }
    joints = {
        "bicycle": rigid.Free("ground", "frame"),
        "rear hub": rigid.Revolute("frame", "rear wheel", "y"),
        "steering": rigid.Revolute("frame.head", "fork", axis),
        "front hub": rigid.Revolute("fork.hub", "front wheel", "y"),
        "rear": rigid.Rolling("ground", "rear wheel", RADII["rear"]),
        "front": rigid.Rolling("ground", "front wheel", RADII["front"]),
    }
    return rigid.Robot(bodies, joints, gravity=(0.0, 0.0, -G))


def _inertia(part: tuple, origin: jnp.ndarray) -> rigid.Inertia:
    mass, (xx, yy, zz, xz), (x, height) = part
    # The product of inertia changes sign with the direction of z.
    moments = jnp.array([[xx, 0.0, -xz], [0.0, yy, 0.0], [-xz, 0.0, zz]])
    return rigid.Inertia(mass, moments, jnp.array([x, 0.0, height]) - origin)


def straight(bicycle: rigid.Robot, speed: ArrayLike) -> tuple[jnp.ndarray, jnp.ndarray]:
    """q and v, upright and straight ahead at a speed [m/s]."""
    q = jnp.zeros(bicycle.layout.n_q).at[:4].set(jnp.array([0.0, 0.0, RADII["rear"], 1.0]))
    rates = {"bicycle": (speed, 0.0, 0.0, 0.0, 0.0, 0.0)}
    rates |= {f"{name} hub": speed / radius for name, radius in RADII.items()}
    rates["steering"] = 0.0
    v = jnp.concatenate([jnp.atleast_1d(jnp.asarray(rates[joint], float)) for joint in bicycle.layout.tree])
    return q, v


def lean(bicycle: rigid.Robot, q: jnp.ndarray) -> jnp.ndarray:
    """Of the rear frame, to the right [rad]."""
    R = bicycle.pose(q, "frame").R
    return jnp.arctan2(R[2, 1], R[2, 2])


def scenario(speed: float = 4.6, push: float = 0.3, t1: float = 4.0) -> ukjax.Scenario:
    """Straight ahead at `speed` [m/s], pushed to a lean rate of `push` [rad/s]: in the stable range it comes back."""
    bicycle = robot()
    q, v = straight(bicycle, speed)
    # What tips about the line of the contacts moves the hub sideways.
    v = v.at[1].set(-push * RADII["rear"]).at[3].set(push)
    q, v = ukjax.assemble(bicycle.mechanism(), q, v)
    return bicycle.scenario(
        q,
        v,
        t1,
        name="Whipple's bicycle",
        projection=ukjax.Projection(),
        invariants={"energy [J]": bicycle.energy},
        observables={
            "lean [rad]": lambda q, v, t: lean(bicycle, q),
            "steer [rad]": lambda q, v, t: bicycle.coordinate(q, "steering"),
        },
        drawing=bicycle.drawing(trails=["fork"]),
        source="Meijaard et al. (2007), table 1",
    )
