"""Recorded traces: three public formats come down to one stream of requests, read with limits."""

from kvcrucible.perf.traces.formats import TraceFormat
from kvcrucible.perf.traces.reader import Trace, TraceInfo, open_trace
from kvcrucible.perf.traces.request import RequestId, TraceRequest
from kvcrucible.perf.traces.synthetic import synthetic_trace, write_trace

__all__ = [
    "RequestId",
    "Trace",
    "TraceFormat",
    "TraceInfo",
    "TraceRequest",
    "open_trace",
    "synthetic_trace",
    "write_trace",
]
