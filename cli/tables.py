"""Tables as the commands print them: what is too wide for the terminal goes on in the next line, nothing is cut."""

from __future__ import annotations

from typing import Any

from rich import table


class Table(table.Table):
    """A table whose cells fold: an id that ends in "…" can be neither read nor copied."""

    def __init__(self, *headings: str, **options: Any) -> None:
        chosen: dict[str, Any] = {"title_justify": "left", "pad_edge": False, **options}
        super().__init__(*headings, **chosen)

    def add_column(self, *heading: Any, **options: Any) -> None:
        """Add a column as ``rich.table.Table`` does, one that folds."""
        chosen: dict[str, Any] = {"overflow": "fold", **options}
        super().add_column(*heading, **chosen)
