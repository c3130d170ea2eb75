"""The statistics behind a verdict: blocks of fresh processes, intervals, sequential looks, noise floors, change points."""
