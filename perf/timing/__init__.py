"""How one process times something: CPU and wall time, instructions, work counters, and device time behind an interface."""
