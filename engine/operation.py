"""What every public operation of an engine begins with, and what becomes of the engine where one is cut short.

An operation ends in one of four ways (DESIGN 4.13, decision 0030):

1. it takes full effect;
2. it raises a ``Refusal``: nothing has changed;
3. it raises an error that nobody has foreseen *before it has acted*: nothing has changed either, and the engine goes
   on;
4. it raises one afterwards: what is half done cannot be taken back, so the engine is lost and says so from the next
   operation on.

An operation has *acted* once it has done something that it never takes back; each place where that begins sets
``engine.acted``.  What strikes anywhere (``KeyboardInterrupt``) always counts as the fourth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from kvcrucible.contract.errors import Refusal

if TYPE_CHECKING:
    from kvcrucible.engine.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")


def operation(method: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """Make a method of the engine a public operation.  Raises ``EngineLost`` where the engine is lost already."""

    @wraps(method)
    def carried_out(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine.stream.require_sound()
        engine.evicted, engine.given_up, engine.acted = [], [], False
        try:
            return method(engine, *args, **kwargs)
        except Refusal:
            raise
        except BaseException as error:
            if engine.acted or not isinstance(error, Exception):
                engine.stream.lose(f"{method.__name__} stopped half done: {error!r}", half_done=True)
            raise

    return carried_out
