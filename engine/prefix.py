"""The prefix index: a radix tree over token runs that finds the longest common prefix exactly (DESIGN 4.9, 4.14.6).

One tree per :class:`Identity`, compared by equality.  Inside a tree the hash of a token only chooses which children are
looked at; what decides is always the comparison of the runs themselves, so a hash with many collisions costs time and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvcrucible.contract.operations import Identity
from kvcrucible.contract.tokens import EMPTY, Token, Tokens, concat, span

#: Narrows the search for a child by its first token; any function will do, equality decides.
TokenHash = Callable[[Token], int]


class _Node:
    """An edge of runs and what lies below.  ``members``: checkpoints whose tokens pass through or end here."""

    __slots__ = ("children", "edge", "members", "parent")

    def __init__(self, parent: _Node | None, edge: Tokens) -> None:
        self.parent = parent
        self.edge = edge
        self.members: set[int] = set()
        self.children: dict[int, list[_Node]] = {}


class _Cursor:
    """A position in a token sequence, advanced run by run."""

    __slots__ = ("index", "offset", "tokens")

    def __init__(self, tokens: Tokens) -> None:
        self.tokens, self.index, self.offset = tokens, 0, 0

    @property
    def at_end(self) -> bool:
        return self.index == len(self.tokens)

    def token(self) -> Token:
        source, start, _ = self.tokens[self.index]
        return source, start + self.offset

    def rest(self) -> Tokens:
        source, start, length = self.tokens[self.index]
        return ((source, start + self.offset, length - self.offset), *self.tokens[self.index + 1 :])

    def advance_along(self, edge: Tokens) -> tuple[int, bool]:
        """Move past what ``edge`` and the sequence share; return its length and whether that is the whole edge."""
        matched = 0
        for source, start, length in edge:
            done = 0
            while done < length:
                if self.at_end:
                    return matched, False
                own_source, own_start, own_length = self.tokens[self.index]
                if own_source != source or own_start + self.offset != start + done:
                    return matched, False
                step = min(length - done, own_length - self.offset)
                matched, done, self.offset = matched + step, done + step, self.offset + step
                if self.offset == own_length:
                    self.index, self.offset = self.index + 1, 0
        return matched, True


class PrefixIndex:
    """Checkpoints by their tokens.  Holds no reference to any page: it narrows nothing but the search."""

    def __init__(self, token_hash: TokenHash = hash) -> None:
        self._hash = token_hash
        self._roots: dict[Identity, _Node] = {}
        self._ends: dict[int, tuple[Identity, _Node]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, checkpoint: int) -> bool:
        return checkpoint in self._ends

    def insert(self, checkpoint: int, tokens: Tokens, identity: Identity) -> None:
        """Make ``checkpoint`` findable under its non-empty ``tokens``; an id is inserted once."""
        assert tokens
        assert checkpoint not in self._ends
        node = self._roots.setdefault(identity, _Node(None, EMPTY))
        node.members.add(checkpoint)
        cursor = _Cursor(tokens)
        while not cursor.at_end:
            child = self._child(node, cursor.token())
            if child is None:
                child = self._attach(node, cursor.rest())
                child.members.add(checkpoint)
                node = child
                break
            matched, whole = cursor.advance_along(child.edge)
            if not whole:
                child = self._split(child, matched)
            child.members.add(checkpoint)
            node = child
        self._ends[checkpoint] = (identity, node)

    def remove(self, checkpoint: int) -> None:
        """Forget ``checkpoint``; nodes that lead nowhere else go with it."""
        identity, at = self._ends.pop(checkpoint)
        node: _Node | None = at
        while node is not None:
            node.members.remove(checkpoint)
            parent = node.parent
            if not node.members:
                if parent is None:
                    del self._roots[identity]
                else:
                    self._detach(parent, node)
            node = parent

    def tokens(self, checkpoint: int) -> tuple[Tokens, Identity]:
        """Return what the index itself holds for ``checkpoint``, read back from the tree."""
        identity, at = self._ends[checkpoint]
        edges: list[Tokens] = []
        node: _Node | None = at
        while node is not None:
            edges.append(node.edge)
            node = node.parent
        held = EMPTY
        for edge in reversed(edges):
            held = concat(held, edge)
        return held, identity

    def checkpoints(self) -> tuple[int, ...]:
        """Return the ids of every findable checkpoint."""
        return tuple(self._ends)

    def longest(
        self,
        tokens: Tokens,
        identity: Identity,
        excluded: Collection[int] = frozenset(),
        deferred: Collection[int] = frozenset(),
    ) -> tuple[int, int] | None:
        """Return (length, checkpoint) of the longest common prefix of at least one token.

        Checkpoints in ``excluded`` do not count.  Ties go to those that are not in ``deferred``, then to the lowest id.
        """
        node = self._roots.get(identity)
        if node is None:
            return None
        path: list[tuple[int, _Node]] = []
        cursor, depth = _Cursor(tokens), 0
        while not cursor.at_end:
            child = self._child(node, cursor.token())
            if child is None:
                break
            matched, whole = cursor.advance_along(child.edge)
            depth += matched
            path.append((depth, child))
            if not whole:
                break
            node = child
        # Everybody below the deepest node that was reached shares exactly ``depth`` tokens; members of a node above
        # who are not below share exactly that node's depth.
        for depth, reached in reversed(path):
            candidates = reached.members.difference(excluded) if excluded else reached.members
            if candidates:
                first = candidates.difference(deferred) if deferred else candidates
                return depth, min(first or candidates)
        return None

    def _child(self, node: _Node, token: Token) -> _Node | None:
        for child in node.children.get(self._hash(token), ()):
            if child.edge[0][:2] == token:
                return child
        return None

    def _attach(self, parent: _Node, edge: Tokens) -> _Node:
        child = _Node(parent, edge)
        parent.children.setdefault(self._hash(edge[0][:2]), []).append(child)
        return child

    def _detach(self, parent: _Node, child: _Node) -> None:
        key = self._hash(child.edge[0][:2])
        siblings = parent.children[key]
        siblings.remove(child)
        if not siblings:
            del parent.children[key]

    def _split(self, lower: _Node, at: int) -> _Node:
        """Cut the edge of ``lower`` after ``at`` tokens; return the new node above it."""
        parent = lower.parent
        assert parent is not None
        whole = lower.edge
        self._detach(parent, lower)
        upper = self._attach(parent, span(whole, 0, at))
        upper.members = set(lower.members)
        lower.edge = span(whole, at, sum(length for _, _, length in whole))
        lower.parent = upper
        upper.children[self._hash(lower.edge[0][:2])] = [lower]
        return upper
