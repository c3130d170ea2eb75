"""The statistics behind a verdict: blocks of processes, intervals, sequential looks, noise floors, change points."""
