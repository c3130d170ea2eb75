"""Engines by which the judge is judged: cheaters that it must reject, honest ones that it must not (decision 0028)."""
