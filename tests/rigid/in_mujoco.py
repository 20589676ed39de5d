"""A file's model in MuJoCo, as far as ours has it, and whether M, forces and accelerations agree."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import ukjax


FREE, BALL = 0, 1


def full_mass(model, data):
    """M (n, n); older versions of MuJoCo take other arguments."""
    M = np.zeros((model.nv, model.nv))
    try:
        mujoco.mj_fullM(model, data, M)
    except TypeError:
        mujoco.mj_fullM(model, M, data.qM)
    return M


class Theirs:
    """MuJoCo's model without what is not simulated here; speeds of free joints seen from the body, as ours are."""

    def __init__(self, model):
        self.model, self.data = model, mujoco.MjData(model)
        no = mujoco.mjtDisableBit
        model.opt.disableflags |= no.mjDSBL_CONTACT | no.mjDSBL_LIMIT | no.mjDSBL_FRICTIONLOSS | no.mjDSBL_ACTUATION
        model.opt.density = model.opt.viscosity = 0.0
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
        model.body_gravcomp[:] = 0.0
        for name in ("tendon_stiffness", "tendon_damping", "tendon_armature"):
            if hasattr(model, name):  # older versions of MuJoCo lack some
                getattr(model, name)[:] = 0.0
        for j in np.flatnonzero(model.jnt_type <= BALL):
            model.jnt_stiffness[j] = 0.0

    def turn(self, q):
        """To our speeds from theirs: the linear velocity of a free joint is seen from the ground there."""
        turn = np.eye(self.model.nv)
        for dof, at in self._free():
            R = np.zeros(9)
            mujoco.mju_quat2Mat(R, q[at + 3 : at + 7])
            turn[dof : dof + 3, dof : dof + 3] = R.reshape(3, 3).T
        return turn

    def with_axes(self, v):
        """What the rate of our speeds lacks of that of theirs, for the body's axes turn; in our coordinates."""
        found = np.zeros(self.model.nv)
        for dof, _ in self._free():
            found[dof : dof + 3] = np.cross(v[dof + 3 : dof + 6], v[dof : dof + 3])
        return found

    def _free(self):
        joints = np.flatnonzero(self.model.jnt_type == FREE)
        return [(self.model.jnt_dofadr[j], self.model.jnt_qposadr[j]) for j in joints]

    def state(self, seed, spread=1.0):
        """Coordinates and our speeds at random, around where it starts, as the equalities allow."""
        rng = np.random.default_rng(seed)
        q, v = self.model.qpos0 + spread * rng.normal(size=self.model.nq), rng.normal(size=self.model.nv)
        for j in np.flatnonzero(self.model.jnt_type <= BALL):
            at = self.model.jnt_qposadr[j] + (3 if self.model.jnt_type[j] == FREE else 0)
            q[at : at + 4] /= np.linalg.norm(q[at : at + 4])
        for _ in range(20):
            A, gaps = self.rows(q), np.array(self.data.efc_pos[: self.data.nefc])
            back = np.linalg.pinv(A, rcond=1e-9)
            mujoco.mj_integratePos(self.model, q, -back @ gaps, 1.0)
        assert np.max(np.abs(gaps), initial=0.0) < 1e-12
        return q, self.turn(q) @ (v - back @ (A @ v))

    def at(self, q, v):
        """M, and the force without constraints: springs and dampers less what the motion asks for; theirs."""
        self.data.qpos, self.data.qvel = q, v
        mujoco.mj_forward(self.model, self.data)
        return full_mass(self.model, self.data), self.data.qfrc_passive - self.data.qfrc_bias

    def rows(self, q):
        """The Jacobian of its equalities; `data.efc_pos` is how far they are off."""
        self.data.qpos, self.data.qvel = q, 0.0
        mujoco.mj_forward(self.model, self.data)
        kinds = self.data.efc_type[: self.data.nefc]
        assert np.all(kinds == mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        return np.array(self.data.efc_J).reshape(-1, self.model.nv)[: self.data.nefc]

    def drift(self, q, v, h=1e-3):
        """J' v, by differences of fourth order along the motion."""
        found = 0.0
        for steps, weight in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
            there = np.array(q)
            mujoco.mj_integratePos(self.model, there, np.asarray(v, float), steps * h)
            found = found + weight * self.rows(there) @ v
        return found / (12 * h)

    def acceleration(self, q, v):
        """Theirs, by M, the force and the rows: of all that the equalities allow, the one nearest to the free one."""
        M, force = self.at(q, v)
        free = np.linalg.solve(M, force)
        A = self.rows(q)
        if not len(A):
            return free
        L = np.linalg.cholesky(M)
        B = np.linalg.solve(L, A.T).T
        return free + np.linalg.solve(L.T, np.linalg.pinv(B, rcond=1e-9) @ (-self.drift(q, v) - A @ free))


@jax.jit
def found_by(robot, q, v):
    """M, the force, and the motion; of one state, which compiles soonest, and once for robots of the same parts."""
    t = jnp.zeros(())
    motion = ukjax.equation_of_motion(robot.mechanism(), q, v, t, throw=False)
    return robot.mass(q, t), robot.force(q, v, t), motion


def differences(robot, theirs, seeds=range(3), spread=1.0):
    """The largest of M, of the force and of the acceleration, relative to the largest entry of theirs."""
    worst = np.zeros(3)
    for seed in seeds:
        q, v = theirs.state(seed, spread)
        mass, force, motion = found_by(robot, jnp.asarray(q), jnp.asarray(v))
        assert bool(motion.result == ukjax.RESULTS.successful)
        turn, lacks = theirs.turn(q), theirs.with_axes(v)
        M, Q = theirs.at(q, turn.T @ v)
        want = turn @ M @ turn.T, turn @ (Q - M @ turn.T @ lacks), turn @ theirs.acceleration(q, turn.T @ v) - lacks
        got = mass, force, motion.acceleration
        worst = np.maximum(worst, [relative(*pair) for pair in zip(got, want, strict=True)])
    return dict(zip(("mass", "force", "acceleration"), map(float, worst), strict=True))


def relative(got, want):
    assert np.shape(got) == np.shape(want)
    return np.max(np.abs(np.asarray(got) - want)) / np.max(np.abs(want))


def assert_same(robot, theirs, seeds=range(3), spread=1.0, mass=1e-12, force=1e-12, acceleration=1e-10):
    """M, the force and the acceleration at random states."""
    within = {"mass": mass, "force": force, "acceleration": acceleration}
    for what, found in differences(robot, theirs, seeds, spread).items():
        assert found <= within[what], f"{what} is off by {found:.1e}, relatively"
