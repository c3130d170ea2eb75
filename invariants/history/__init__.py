"""Judges a recorded history offline, in one pass (DESIGN 6): ``check.check_file`` is all that a user needs."""
