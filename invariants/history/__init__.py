"""Judges a recorded history offline, in one pass (DESIGN 6): ``check_file`` is all that a user needs."""

from kvcrucible.invariants.history.check import HistoryChecker, check_file
from kvcrucible.invariants.history.outcome import Broken, Judgement, Undecided, Verdict

__all__ = ["Broken", "HistoryChecker", "Judgement", "Undecided", "Verdict", "check_file"]
