"""The statistics of the gate against known truth: what ``kvcrucible perf selftest`` prints and checks."""
