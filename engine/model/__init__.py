"""A real decoder that writes through a paged cache."""
