"""State machines and campaigns that set an engine against the reference."""
