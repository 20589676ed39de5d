"""Random trees, and the same for MuJoCo and for Pinocchio."""

from typing import NamedTuple

import mujoco
import numpy as np
import pinocchio as pin

from ukjax import rigid

from .in_mujoco import full_mass


class Link(NamedTuple):
    """A body and the joint that it hangs on: `parent` is the number of another one, or -1 for the ground."""

    parent: int
    kind: str
    mass: float
    center: np.ndarray
    moments: np.ndarray
    position: np.ndarray
    quaternion: np.ndarray
    axis: np.ndarray


def random_links(count, seed, kinds=("hinge", "slide", "ball")):
    """Bodies on bodies before them, with frames, axes and inertias in any direction."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        spread = rng.normal(size=(3, 3))
        square = 0.05 * spread @ spread.T
        moments = np.trace(square) * np.eye(3) - square  # of some mass, whatever the square is
        turn, axis = rng.normal(size=4), rng.normal(size=3)
        link = Link(
            int(rng.integers(-1, i)) if i else -1,
            str(rng.choice(kinds)),
            float(rng.uniform(0.5, 2.0)),
            0.1 * rng.normal(size=3),
            moments,
            0.3 * rng.normal(size=3),
            turn / np.linalg.norm(turn),
            axis / np.linalg.norm(axis),
        )
        found.append(link)
    return found


def robot(links, **options):
    """The tree as a `Robot`; body i hangs on joint i."""
    frames = {i: {} for i in range(-1, len(links))}
    for i, link in enumerate(links):
        frames[link.parent][f"to{i}"] = rigid.Frame(link.position, link.quaternion)
    make = {
        "hinge": lambda parent, child, axis: rigid.Revolute(parent, child, axis),
        "slide": lambda parent, child, axis: rigid.Prismatic(parent, child, axis),
        "ball": lambda parent, child, axis: rigid.Spherical(parent, child),
        "free": lambda parent, child, axis: rigid.Free(parent, child),
    }
    bodies, joints = {}, {}
    for i, link in enumerate(links):
        bodies[f"b{i}"] = rigid.Body(rigid.Inertia(link.mass, link.moments, link.center), frames[i])
        parent = f"ground.to{i}" if link.parent < 0 else f"b{link.parent}.to{i}"
        joints[f"j{i}"] = make[link.kind](parent, f"b{i}", link.axis)
    return rigid.Robot(bodies, joints, frames=frames[-1], **options)


def random_state(of, seed):
    """Coordinates with quaternions of unit length, and speeds."""
    rng = np.random.default_rng(seed)
    q, v = rng.normal(size=of.layout.n_q), rng.normal(size=of.layout.n)
    for node in of.layout.nodes:
        start, end = node.q
        if end - start >= 4:
            q[end - 4 : end] /= np.linalg.norm(q[end - 4 : end])
    return q, v


# Coordinates and speeds.
SIZES = {"hinge": (1, 1), "slide": (1, 1), "ball": (4, 3)}


class InMujoco:
    """The tree in MuJoCo; coordinates and speeds in the order of the `Robot`."""

    def __init__(self, links):
        self.links = links
        text = "".join(self._body(i) for i, link in enumerate(links) if link.parent < 0)
        self.model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{text}</worldbody></mujoco>")
        self.data = mujoco.MjData(self.model)
        self.q, self.v = [], []
        for i, link in enumerate(links):
            joint = self.model.body_jntadr[self.model.body(f"b{i}").id]
            q, v = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
            self.q += range(q, q + SIZES[link.kind][0])
            self.v += range(v, v + SIZES[link.kind][1])

    def _body(self, i):
        link = self.links[i]
        show = lambda x: " ".join(repr(float(y)) for y in x)
        J = link.moments
        full = show((J[0, 0], J[1, 1], J[2, 2], J[0, 1], J[0, 2], J[1, 2]))
        axis = "" if link.kind == "ball" else f'axis="{show(link.axis)}"'
        inside = "".join(self._body(k) for k, other in enumerate(self.links) if other.parent == i)
        return (
            f'<body name="b{i}" pos="{show(link.position)}" quat="{show(link.quaternion)}">'
            f'<joint type="{link.kind}" {axis}/>'
            f'<inertial pos="{show(link.center)}" mass="{link.mass!r}" fullinertia="{full}"/>{inside}</body>'
        )

    def at(self, q, v):
        """Put it there; M and the bias force."""
        self.data.qpos[self.q], self.data.qvel[self.v] = q, v
        mujoco.mj_forward(self.model, self.data)
        M = full_mass(self.model, self.data)
        return M[np.ix_(self.v, self.v)], self.data.qfrc_bias[self.v]

    def pose(self, body):
        """R and p."""
        found = self.data.body(body)
        return np.array(found.xmat).reshape(3, 3), np.array(found.xpos)

    def jacobian(self, body):
        """Of the body's origin and of its angular velocity, seen from the ground (3, n) each."""
        linear, angular = np.zeros((3, self.model.nv)), np.zeros((3, self.model.nv))
        mujoco.mj_jacBody(self.model, self.data, linear, angular, self.model.body(body).id)
        return linear[:, self.v], angular[:, self.v]

    def inverse(self, q, v, acceleration):
        """Generalised forces for an acceleration."""
        self.at(q, v)
        self.data.qacc[self.v] = acceleration
        mujoco.mj_inverse(self.model, self.data)
        return self.data.qfrc_inverse[self.v].copy()


class InPinocchio:
    """The tree in Pinocchio, whose quaternions have the scalar part last; loops between bodies."""

    def __init__(self, links):
        self.links, self.model = links, pin.Model()
        numbers = {-1: 0}
        for i in self._depth_first(-1):
            link = links[i]
            placement = pin.SE3(pin.Quaternion(*link.quaternion), link.position)
            kinds = {
                "hinge": lambda a: pin.JointModelRevoluteUnaligned(a),
                "slide": lambda a: pin.JointModelPrismaticUnaligned(a),
                "ball": lambda a: pin.JointModelSpherical(),
            }
            joint = kinds[link.kind](link.axis)
            numbers[i] = self.model.addJoint(numbers[link.parent], joint, placement, f"j{i}")
            inertia = pin.Inertia(link.mass, link.center, link.moments)
            self.model.appendBodyToJoint(numbers[i], inertia, pin.SE3.Identity())
        self.model.gravity.linear = np.array([0.0, 0.0, -9.81])
        self.numbers, self.data = numbers, self.model.createData()
        sizes = [(self.model.joints[numbers[i]].idx_q, self.model.joints[numbers[i]].idx_v) for i in range(len(links))]
        self.q, self.v = [], []
        for link, (q, v) in zip(links, sizes, strict=True):
            self.q += [q + 3, q, q + 1, q + 2] if link.kind == "ball" else [q]
            self.v += range(v, v + (3 if link.kind == "ball" else 1))

    def _depth_first(self, parent):
        """Numbers of the links, each branch to its end: Pinocchio takes the joints after one for its subtree."""
        for i, link in enumerate(self.links):
            if link.parent == parent:
                yield i
                yield from self._depth_first(i)

    def state(self, q, v):
        theirs_q, theirs_v = np.zeros(self.model.nq), np.zeros(self.model.nv)
        theirs_q[self.q], theirs_v[self.v] = q, v
        return theirs_q, theirs_v

    def at(self, q, v):
        """M and the bias force."""
        q, v = self.state(q, v)
        M = pin.crba(self.model, self.data, q)
        M = np.triu(M) + np.triu(M, 1).T
        return M[np.ix_(self.v, self.v)], pin.nonLinearEffects(self.model, self.data, q, v)[self.v]

    def inverse(self, q, v, acceleration):
        """Generalised forces for an acceleration."""
        _, a = self.state(q, acceleration)
        return pin.rnea(self.model, self.data, *self.state(q, v), a)[self.v]

    def constrained(self, q, v, pairs):
        """The acceleration where pairs of bodies are joined at their origins."""
        origin, kind = pin.SE3.Identity(), pin.ContactType.CONTACT_3D
        ends = lambda i, k: (self.numbers[i], origin, self.numbers[k], origin, pin.LOCAL)
        contacts, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for i, k in pairs:
            contacts.append(pin.RigidConstraintModel(kind, self.model, *ends(i, k)))
            datas.append(contacts[-1].createData())
        pin.initConstraintDynamics(self.model, self.data, contacts, datas)
        settings = pin.ProximalSettings(1e-14, 1e-14, 50)
        q, v = self.state(q, v)
        zero = np.zeros(self.model.nv)
        return pin.constraintDynamics(self.model, self.data, q, v, zero, contacts, datas, settings)[self.v]
