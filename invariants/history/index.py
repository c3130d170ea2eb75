"""Which checkpoints share the longest prefix with a prompt (DESIGN 4.9, 4.14.6): a radix tree over token runs.

One tree for each identity.  A node's ``members`` are the checkpoints that end at or below it, the earliest first; so
the best hit is found on the way back from where a prompt leaves the tree, without a look at what lies below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvcrucible.contract.operations import Identity
from kvcrucible.contract.tokens import Run, Token


class _Node:
    __slots__ = ("children", "edge", "length", "members", "parent")

    def __init__(self, parent: _Node | None, edge: list[Run], length: int) -> None:
        self.parent, self.edge, self.length = parent, edge, length
        self.members: dict[int, None] = {}
        #: By the first token of the child's edge.
        self.children: dict[Token, _Node] = {}


class _Cursor:
    """A place in a list of runs."""

    __slots__ = ("index", "offset", "runs")

    def __init__(self, runs: list[Run]) -> None:
        self.runs, self.index, self.offset = runs, 0, 0

    @property
    def token(self) -> Token | None:
        if self.index == len(self.runs):
            return None
        source, start, _ = self.runs[self.index]
        return source, start + self.offset

    def rest(self) -> list[Run]:
        source, start, length = self.runs[self.index]
        first = (source, start + self.offset, length - self.offset)
        return [first, *self.runs[self.index + 1 :]]

    def follow(self, edge: list[Run]) -> int:
        """Go along ``edge`` as far as the two agree; return the tokens that they share."""
        shared = 0
        runs, index, offset = self.runs, self.index, self.offset
        count = len(runs)
        for run in edge:
            if index < count and not offset and runs[index] == run:
                shared += run[2]
                index += 1
                continue
            source, start, length = run
            done = 0
            while done < length and index < count:
                own_source, own_start, own_length = runs[index]
                if own_source != source or own_start + offset != start + done:
                    break
                step = min(length - done, own_length - offset)
                done += step
                offset += step
                if offset == own_length:
                    index, offset = index + 1, 0
            shared += done
            if done < length:
                break
        self.index, self.offset = index, offset
        return shared


class CheckpointIndex:
    """Checkpoints by their tokens.  ``entries`` counts what is kept: runs of edges and members of nodes."""

    def __init__(self) -> None:
        self.entries = 0
        self._roots: dict[Identity, _Node] = {}
        self._ends: dict[int, tuple[Identity, _Node]] = {}

    def insert(self, checkpoint: int, runs: list[Run], length: int, identity: Identity) -> None:
        """Add a checkpoint of ``length`` tokens, at least 1; later ones have higher numbers."""
        node = self._roots.get(identity)
        if node is None:
            node = self._roots[identity] = _Node(None, [], 0)
        cursor, done = _Cursor(runs), 0
        while True:
            node.members[checkpoint] = None
            self.entries += 1
            token = cursor.token
            if token is None:
                break
            child = node.children.get(token)
            if child is None:
                edge = cursor.rest()
                child = node.children[token] = _Node(node, edge, length - done)
                child.members[checkpoint] = None
                self.entries += len(edge) + 1
                node = child
                break
            shared = cursor.follow(child.edge)
            node = child if shared == child.length else self._split(child, shared)
            done += shared
        self._ends[checkpoint] = identity, node

    def remove(self, checkpoint: int) -> None:
        """Take a checkpoint out."""
        identity, end = self._ends.pop(checkpoint)
        node: _Node | None = end
        while node is not None:
            del node.members[checkpoint]
            self.entries -= 1
            parent = node.parent
            if not node.members:
                self.entries -= len(node.edge)
                if parent is None:
                    del self._roots[identity]
                else:
                    source, start, _ = node.edge[0]
                    del parent.children[source, start]
            elif parent is not None and len(node.children) == 1:
                self._join(parent, node)
            node = parent

    def best(
        self, runs: list[Run], identity: Identity, may_hit: Callable[[int], bool]
    ) -> tuple[int, Iterable[int]]:
        """Return the longest prefix that ``runs`` share with a checkpoint that may be hit, and all checkpoints that
        share it, the earliest first and those that may not be hit among them; (0, ()) without any.
        """
        node = self._roots.get(identity)
        if node is None:
            return 0, ()
        cursor, length = _Cursor(runs), 0
        path = [(0, node)]
        while (token := cursor.token) is not None and (child := node.children.get(token)) is not None:
            shared = cursor.follow(child.edge)
            length += shared
            path.append((length, child))
            if shared < child.length:
                break
            node = child
        for length, node in reversed(path):
            if length and any(map(may_hit, node.members)):
                return length, node.members
        return 0, ()

    def _join(self, parent: _Node, node: _Node) -> None:
        """Take a node out at which nothing ends or branches any more, so that what has ended leaves no trace."""
        (child,) = node.children.values()
        if len(child.members) < len(node.members):
            return
        upper, lower = node.edge, child.edge
        source, start, length = upper[-1]
        if lower[0][:2] == (source, start + length):
            lower = [(source, start, length + lower[0][2]), *lower[1:]]
            upper = upper[:-1]
        self.entries += len(upper) + len(lower) - len(node.edge) - len(child.edge) - len(node.members)
        child.parent, child.edge, child.length = parent, upper + lower, node.length + child.length
        parent.children[node.edge[0][:2]] = child

    def _split(self, child: _Node, length: int) -> _Node:
        """Put a node ``length`` tokens down the edge to ``child``; return it."""
        parent = child.parent
        assert parent is not None
        upper: list[Run] = []
        left = length
        for index, run in enumerate(child.edge):
            source, start, size = run
            if size > left:
                lower = child.edge[index:]
                if left:
                    upper.append((source, start, left))
                    lower[0] = (source, start + left, size - left)
                break
            upper.append(run)
            left -= size
        else:
            raise AssertionError("an edge is split inside")
        node = _Node(parent, upper, length)
        node.members = dict(child.members)
        self.entries += len(upper) + len(lower) - len(child.edge) + len(node.members)
        source, start, _ = child.edge[0]
        parent.children[source, start] = node
        child.parent, child.edge, child.length = node, lower, child.length - length
        source, start, _ = lower[0]
        node.children[source, start] = child
        return node


def common_prefix(left: list[Run], right: list[Run]) -> int:
    """Return the number of leading tokens that two lists of runs share."""
    return _Cursor(left).follow(right)


def head(runs: list[Run], length: int) -> list[Run]:
    """Return the first ``length`` tokens of a list of runs that has at least as many."""
    kept: list[Run] = []
    for run in runs:
        if run[2] >= length:
            if length:
                kept.append((run[0], run[1], length))
            return kept
        kept.append(run)
        length -= run[2]
    return kept


def extend(runs: list[Run], more: Iterable[Run]) -> int:
    """Put ``more`` behind ``runs``, joined where runs go on; return by how many runs the list grew."""
    before = len(runs)
    for run in more:
        if runs:
            source, start, length = runs[-1]
            if source == run[0] and start + length == run[1]:
                runs[-1] = (source, start, length + run[2])
                continue
        runs.append(run)
    return len(runs) - before
