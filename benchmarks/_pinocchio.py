"""In Pinocchio, one state at a time: linkages, `constraintDynamics` and its derivatives; open trees, and theirs."""

import functools as ft
import multiprocessing
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from . import _measure
from ._linkages import GROUND, G, Linkage, library


class InPinocchio:
    """A loop is a contact in space, one row of which is always zero here; its proximal solver takes that."""

    def __init__(self, linkage: Linkage):
        self.pin = pin = library("pinocchio")
        self.model = pin.Model()
        self.model.gravity.linear = np.array([0.0, -G, 0.0])
        along = lambda x: pin.SE3(np.eye(3), np.array([x, 0.0, 0.0]))
        joints: list[int] = []
        for i, bar in enumerate(linkage.bars):
            on = 0 if bar.on == GROUND else joints[bar.on]
            joints.append(self.model.addJoint(on, pin.JointModelRZ(), along(bar.at), f"joint{i}"))
            inertia = np.diag([1e-3 * bar.inertia, bar.inertia, bar.inertia])
            of_bar = pin.Inertia(bar.mass, np.array([bar.middle, 0.0, 0.0]), inertia)
            self.model.appendBodyToJoint(joints[-1], of_bar, pin.SE3.Identity())
        self.data = self.model.createData()
        self.loops, self.memory = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for loop in linkage.loops:
            place = joints[loop.on], along(loop.at)
            if loop.to != GROUND:
                place = *place, joints[loop.to], along(loop.to_at)
            frame = pin.ReferenceFrame.LOCAL
            contact = pin.RigidConstraintModel(pin.ContactType.CONTACT_3D, self.model, *place, frame)
            self.loops.append(contact)
            self.memory.append(contact.createData())
        pin.initConstraintDynamics(self.model, self.data, self.loops, self.memory)
        self.solver = pin.ProximalSettings(1e-12, 1e-10, 10)
        self.torque = np.zeros(self.model.nv)

    def put(self, theta: np.ndarray, rate: np.ndarray) -> None:
        self.state = np.ascontiguousarray(theta), np.ascontiguousarray(rate)

    def acceleration(self) -> np.ndarray:
        return self.pin.constraintDynamics(
            self.model, self.data, *self.state, self.torque, self.loops, self.memory, self.solver
        )

    def free(self, torque: np.ndarray) -> np.ndarray:
        """The acceleration without loops under torques at the joints."""
        return np.array(self.pin.aba(self.model, self.data, *self.state, np.ascontiguousarray(torque)))

    def derivative(self) -> None:
        self.acceleration()
        self.pin.computeConstraintDynamicsDerivatives(self.model, self.data, self.loops, self.memory, self.solver)


def open_tree(text: str) -> Any:
    """The model of an MJCF text."""
    pin = library("pinocchio")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree.xml"
        path.write_text(text)
        model = pin.buildModelFromMJCF(str(path))
    model.armature[:] = 0.0
    return model


def seconds_of_derivatives(text: str, q: np.ndarray, v: np.ndarray, rounds: int, processes: int) -> float:
    """Of `computeABADerivatives` for a state, if so many processes do it at once, each for states of its own."""
    context = multiprocessing.get_context("spawn")
    at_once = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, initializer=_meet_at, initargs=(at_once,)) as pool:
        each = list(pool.map(ft.partial(_seconds_of_one, text, q, v), [rounds] * processes))
    return float(np.mean(each)) / processes


_meeting: threading.Barrier | None = None


def _meet_at(barrier: Any) -> None:
    global _meeting
    _meeting = barrier


def _seconds_of_one(text: str, q: np.ndarray, v: np.ndarray, rounds: int) -> float:
    pin, model = library("pinocchio"), open_tree(text)
    data, tau = model.createData(), np.zeros(len(v))
    call: Callable[[], Any] = lambda: pin.computeABADerivatives(model, data, q, v, tau)
    call()
    assert _meeting is not None
    _meeting.wait()
    # Long enough that both are at it for most of the time.
    return _measure.least(call, rounds, 20_000)
