"""Which options somebody gave, where that is not the same as what they come to: a default may be given, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def given_options(context: typer.Context) -> Iterator[tuple[str, str]]:
    """Yield (name of the parameter, option as it is typed) of all that stand on the command line, in order of help."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            off = context.params.get(option.name or "") is False and option.secondary_opts
            yield option.name or "", (option.secondary_opts if off else option.opts)[0]


def was_given(context: typer.Context, option: str) -> bool:
    """Say whether ``option``, as it is typed, stands on the command line."""
    return any(typed == option for _, typed in given_options(context))
