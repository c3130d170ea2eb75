"""The canary: an engine that must fail in every stage, or what the stage reports is void (decision 0028)."""
