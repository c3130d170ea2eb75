"""Machines that do not exist, whose truth is known: everything that comes from here is marked SIMULATED."""
