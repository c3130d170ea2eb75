"""What fork servers share: what is imported before the first fork, and the process that a command talks to.

A server has imported what its children need and what no planted change touches, so that a child starts at once, without
torch or numpy; the engine, and what imports it, a child imports anew with the change in it.  It is a process of its own
because a process with threads, as a command line's, must not fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from queue import SimpleQueue
from typing import Any, TypeVar

from kvcrucible.contract.errors import CrucibleError
from kvcrucible.fuzz.cores import usable_cores
from kvcrucible.fuzz.mutants.subjects import ENGINE

Work = TypeVar("Work")
Result = TypeVar("Result")

#: What is imported before the first fork: all of it heavy, none of it knows an engine.
PRELOADED = (
    "concurrent.futures.process",
    "hypothesis.stateful",
    "yaml",
    "kvcrucible.contract.codec",
    "kvcrucible.fuzz.coverage",
    "kvcrucible.fuzz.draws",
    "kvcrucible.fuzz.judge",
    "kvcrucible.invariants.monitor",
    "kvcrucible.invariants.registry",
    "kvcrucible.reference.accounting",
)


def preload() -> None:
    """Import what all children share; raises ``AssertionError`` where that brings the engine or a tensor library in."""
    for name in PRELOADED:
        import_module(name)
    unwanted = [name for name in sys.modules if name.startswith(f"{ENGINE}.") or name in ("torch", "numpy")]
    assert not unwanted, f"the server has imported {unwanted}, so nothing could be planted"


class ForkServer:
    """The process of one fork server, a module that answers a line of JSON with a line of JSON.

    It starts with the first request, and again where it has ended since; it ends with the ``with`` block, and what it
    has forked with it.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        # Whoever closes it may be another thread than the one that asks.
        self._lock = threading.Lock()

    def __enter__(self) -> ForkServer:
        """Return itself; nothing is started yet."""
        return self

    def __exit__(self, *ignored: object) -> None:
        """End it for good, and what it has forked."""
        with self._lock:
            self._closed = True
        self._end()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raises ``CrucibleError`` where the server is gone, or is closed."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            told = process.stdout.readline()
        except (BrokenPipeError, ValueError):
            # A pipe is closed too where another thread has ended the server meanwhile.
            told = ""
        try:
            answer: dict[str, Any] = json.loads(told)
        except ValueError:
            # Nothing, or half a line: it has ended as it wrote.
            self._end()
            raise CrucibleError(f"the fork server ended with status {process.wait()}") from None
        return answer

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise CrucibleError("the fork server is closed")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self._module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            return self._process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        # Its children are in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def share_out(
    module: str,
    work: Sequence[Work],
    run: Callable[[ForkServer, Work], Result],
    jobs: int,
    on_done: Callable[[int, Result], None] | None = None,
    on_end: Callable[[], None] | None = None,
) -> list[Result]:
    """Run all of ``work``, at most ``jobs`` and no more than this process has cores at a time, each with a fork server
    of ``module`` that nobody else uses meanwhile; results in the given order.

    ``on_done`` is told the position and the result of each as they end, by the caller's own thread; what it raises, an
    interruption too, ends the servers and goes on to the caller.  ``on_end`` is called when the servers have ended and
    what still runs is about to be waited for.
    """
    jobs = max(1, min(jobs, usable_cores(), len(work)))
    idle: SimpleQueue[ForkServer] = SimpleQueue()

    def one(item: Work) -> Result:
        server = idle.get()
        try:
            return run(server, item)
        finally:
            idle.put(server)

    # Servers end before the pool is waited for, so that an interruption does not wait for what takes long.
    with ThreadPoolExecutor(jobs) as pool, contextlib.ExitStack() as servers:
        if on_end is not None:
            servers.callback(on_end)
        for _ in range(jobs):
            idle.put(servers.enter_context(ForkServer(module)))
        waited = {pool.submit(one, item): at for at, item in enumerate(work)}
        try:
            for done in as_completed(waited):
                if on_done is not None:
                    on_done(waited[done], done.result())
            return [done.result() for done in waited]
        finally:
            for done in waited:
                done.cancel()
