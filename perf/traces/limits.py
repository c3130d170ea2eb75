"""Limits on what a trace may ask of the reader: a trace comes from strangers (SECURITY.md).

Each is far beyond the public traces that the readers were tried on, and small enough that passing it costs no more than
seconds and megabytes before it is noticed.
"""

from __future__ import annotations

#: Bytes of one line, its end included. The longest public line holds 2,347 block ids in 14 KB; this is 200 times that.
#: Parsed, such a line takes under 100 MB for a moment: the most memory that a reader ever needs.
MAX_LINE_BYTES = 3 << 20

#: Bytes of the whole trace, decompressed: bounds the time of one pass. The largest public trace has 1.5 GB.
MAX_TOTAL_BYTES = 16 << 30

#: Decompressed bytes for one compressed byte, and from how many decompressed bytes on this is judged: the first lines
#: of a small file may be all alike. Public traces reach 29; deflate itself ends at 1,032, which is what bombs use.
MAX_RATIO, RATIO_FROM_BYTES = 200, 4 << 20

#: Requests of one trace. The largest public trace has 28 million.
MAX_REQUESTS = 100_000_000

#: Tokens of one prompt, and of one answer: 16.8 million, beyond the longest context that a model offers.
MAX_TOKENS = 1 << 24

#: Block ids of one request: a prompt of four million tokens in blocks of 16.
MAX_BLOCK_IDS = 1 << 18

#: Highest block id: what an unsigned 64-bit hash can be.
MAX_BLOCK_ID = (1 << 64) - 1

#: Tokens of one block.
MAX_BLOCK_SIZE = 1 << 20

#: Latest arrival in seconds. Seconds since 1970 fit; a float still tells ten microseconds apart there.
MAX_ARRIVAL_S = 1e11

#: Characters of an id that is text.
MAX_ID_CHARACTERS = 256

#: Tokens that one round of speculation accepts: far beyond any draft; and rounds of one file, which is held as a whole.
MAX_ACCEPTED, MAX_ROUNDS = 1 << 12, 10_000_000
