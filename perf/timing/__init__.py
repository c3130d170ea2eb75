"""How one process times something: CPU and wall time, instructions, work counters, device time behind an interface."""
