"""Stored results: what was measured, where, of which revision, with the raw samples behind each figure.

:mod:`schema` has the tables and their versions, :mod:`store` writes and reads them, :mod:`foreign` takes in the results
of other tools.
"""
