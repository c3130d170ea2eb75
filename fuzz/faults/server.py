"""A fork server for faults of ledger depth: each line is the command line of one child (:mod:`.child`).

``python -m kvcrucible.fuzz.faults.server``.  In: ``{"arguments", "seconds"}``, the latter by the clock.  Out:
``{"returncode", "stdout", "stderr"}`` as of a process, ``returncode`` None where it did not end in time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
from typing import IO, Any, TextIO

from kvcrucible.fuzz.faults.child import guarded
from kvcrucible.fuzz.forking import preload


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer every request, one after another, until there are no more."""
    preload()
    for line in requests:
        request = json.loads(line)
        answers.write(json.dumps(answer(request["arguments"], request["seconds"], requests.fileno())) + "\n")
        answers.flush()


def answer(arguments: list[str], seconds: float, requests: int) -> dict[str, Any]:
    """Run one child to its end, or for so many ``seconds``.

    It ends with this process where the descriptor ``requests`` can be read meanwhile: whoever asks waits for an answer
    before the next request, so that nobody is there any more.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _be_the_child(arguments, out, err)
        ended = os.pidfd_open(child)
        try:
            ready, _, _ = select.select([ended, requests], [], [], seconds)
        finally:
            os.close(ended)
        in_time = ended in ready
        if not in_time:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if requests in ready and not in_time:
            raise SystemExit(f"nobody waits for {' '.join(arguments)} any more")
        returncode = os.waitstatus_to_exitcode(status) if in_time else None
        return {"returncode": returncode, "stdout": _text(out), "stderr": _text(err)}


def _be_the_child(arguments: list[str], out: IO[bytes], err: IO[bytes]) -> None:
    status = 1 << 7
    try:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for stream, target in enumerate((nowhere, out.fileno(), err.fileno())):
            os.dup2(target, stream)
        status = guarded(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
