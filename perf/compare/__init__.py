"""Two revisions of this repository against each other, on a small suite: exact work first, then time.

:mod:`smoke` has the cases, :mod:`process` is one fresh process, :mod:`revisions` brings the code of a revision,
:mod:`run` makes the blocks and asks the gate.
"""
