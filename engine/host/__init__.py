"""The Host tier: an arena of extents, the packed layout inside them, and the transfers that fill and empty them."""
