"""Starts the sampler's process around something that is timed, and collects what it wrote."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from kvcrucible.contract.errors import InputError
from kvcrucible.perf.nvml.binding import NvmlAbsentError
from kvcrucible.perf.nvml.records import Record, read_record
from kvcrucible.perf.nvml.sampler_process import ABSENT

#: Milliseconds between readings.  The driver renews most of its values no more often than that.
INTERVAL_MS = 100.0

#: Milliseconds between looks at the energy counter: how exactly a window of energy begins and ends.
POLL_MS = 10.0

#: Seconds in which the sampler has to start, and to stop; the driver may have to wake the device first.
PATIENCE_SECONDS = 60.0


def sampler_cpu() -> int | None:
    """Return the last CPU of those that this process may use, None where there is only one."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


class Sampler:
    """A sampler's process, from :meth:`start` to :meth:`stop`; as a context manager it does not outlive its block.

    ``device``: index of a GPU, or the UUID of a MIG slice.  It is pinned to ``cpu`` so that whoever is timed can be
    kept away from there.  One use only.
    """

    def __init__(
        self,
        device: str = "0",
        *,
        interval_ms: float = INTERVAL_MS,
        poll_ms: float = POLL_MS,
        cpu: int | None = None,
    ) -> None:
        if not 0 < poll_ms <= interval_ms <= 60_000:
            raise InputError(f"sampler: 0 < poll ({poll_ms} ms) <= interval ({interval_ms} ms) <= 60,000 ms")
        self._folder = tempfile.TemporaryDirectory(prefix="kvcrucible-nvml-")
        self._file = Path(self._folder.name, "record.jsonl")
        self._command = (
            *(sys.executable, "-m", "kvcrucible.perf.nvml.sampler_process", str(self._file)),
            *(str(interval_ms), str(poll_ms), str(-1 if cpu is None else cpu), device),
        )
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start sampling; returns once the first reading is there.

        Raises :class:`NvmlAbsentError` where there is no library and :class:`InputError` where the device is not there.
        """
        assert self._process is None, "a sampler is started once"
        self._process = process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
        if ready and process.stdout.readline() == "ready\n":
            return
        if not ready:
            process.kill()
        said = process.communicate()[1]
        last = (said.strip().splitlines() or [f"the sampler ended with status {process.returncode}"])[-1]
        self._folder.cleanup()
        if process.returncode == ABSENT:
            raise NvmlAbsentError(last)
        raise InputError(f"sampler: {last[:500] if ready else 'the driver did not answer'}")

    def stop(self) -> Record:
        """Stop sampling and return all that was recorded; raises :class:`InputError` where the sampler broke off."""
        assert self._process is not None, "a sampler is started first"
        try:
            _, said = self._process.communicate(timeout=PATIENCE_SECONDS)
            if self._process.returncode:
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise InputError(f"sampler: status {self._process.returncode}; {last[:500]}")
            return read_record(self._file)
        except subprocess.TimeoutExpired:
            raise InputError("sampler: it did not stop; the driver does not answer") from None
        finally:
            self._end()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()
        self._folder.cleanup()
