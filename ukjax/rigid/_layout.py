"""The tree of a robot's joints, and the joints that close loops: static, found once when a robot is built."""

from collections.abc import Mapping
from typing import NamedTuple

from ._joint import AbstractJoint
from ._motion import AbstractMotion


GROUND = "ground"


class Node(NamedTuple):
    """A joint of the tree, and the body that hangs on it.

    Attributes:
        parent: Number of the parent node; -1 for the ground.
        joint: Name of the joint.
        body: Name of the body.
        q: Range of its coordinates in q, (from, to).
        v: Range of its speeds in v, likewise.
    """

    parent: int
    joint: str
    body: str
    q: tuple[int, int]
    v: tuple[int, int]


class Layout(NamedTuple):
    """The tree, parents before children, and the joints that close loops.

    Attributes:
        nodes: Nodes of the tree.
        tree: Names of the joints of the tree, in order.
        loops: Names of the other joints.
        bodies: Names of the bodies, in the given order.
        counted: Names of the hinges of `loops` whose turns have an entry at the end of q, in order.
    """

    nodes: tuple[Node, ...]
    tree: tuple[str, ...]
    loops: tuple[str, ...]
    bodies: tuple[str, ...]
    counted: tuple[str, ...] = ()

    @property
    def n_q(self) -> int:
        return (self.nodes[-1].q[1] if self.nodes else 0) + len(self.counted)

    @property
    def n(self) -> int:
        return self.nodes[-1].v[1] if self.nodes else 0

    def node_of(self, body: str) -> int:
        """The number of the node that a body hangs on; -1 for the ground."""
        return -1 if body == GROUND else next(i for i, node in enumerate(self.nodes) if node.body == body)

    def node(self, joint: str) -> Node:
        """The node of a joint of the tree."""
        return next(node for node in self.nodes if node.joint == joint)

    def path(self, node: int) -> list[int]:
        """The numbers of a node and its ancestors, up to the ground."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.nodes[node].parent
        return found


def body_of(end: str) -> str:
    """The body of an end "body" or "body.frame"."""
    return end.partition(".")[0]


def frame_of(end: str) -> str:
    """The frame of an end "body.frame"; empty for "body"."""
    return end.partition(".")[2]


def laid_out(bodies: tuple[str, ...], joints: Mapping[str, AbstractJoint]) -> Layout:
    """The tree of joints, each of which moves its child unless an earlier joint does; ValueError if bodies are left."""
    at: dict[str, int] = {GROUND: -1}
    nodes: list[Node] = []
    tree: list[str] = []
    waiting = dict(joints)
    while True:
        fitting = (
            name
            for name, j in waiting.items()
            if j.motion is not None and body_of(j.parent) in at and body_of(j.child) not in at
        )
        name = next(fitting, None)
        if name is None:
            break
        joint = waiting.pop(name)
        child = body_of(joint.child)
        nodes.append(Node(at[body_of(joint.parent)], name, child, *_places(nodes, joint.motion)))
        at[child] = len(nodes) - 1
        tree.append(name)
    left = [body for body in bodies if body not in at]
    if left:
        raise ValueError(_loose(left, joints))
    return Layout(tuple(nodes), tuple(tree), tuple(name for name in joints if name not in tree), bodies)


def _places(nodes: list[Node], motion: AbstractMotion | None) -> tuple[tuple[int, int], tuple[int, int]]:
    q, v = (nodes[-1].q[1], nodes[-1].v[1]) if nodes else (0, 0)
    n_q, n = (0, 0) if motion is None else (len(motion.coordinates), len(motion.speeds))
    return (q, q + n_q), (v, v + n)


def _loose(left: list[str], joints: Mapping[str, AbstractJoint]) -> str:
    """The error message for bodies that hang on nothing."""
    first = left[0]
    turned = [
        name for name, joint in joints.items() if body_of(joint.parent) in left and body_of(joint.child) not in left
    ]
    hint = f" Joint {turned[0]!r} has it as its parent: swap parent and child." if turned else ""
    return (
        f"joints must lead from the ground to every body, but {', '.join(map(repr, left))} hang on nothing: give "
        f"{first!r} a joint whose child it is, rigid.Free('ground', {first!r}) if it floats.{hint}"
    )
