"""The module map, ``docs/modules.md``: every module of the package with the first sentence that it says of itself.

``python tests/repository/module_map.py --write`` makes it anew; a test holds the page to what this makes.  Does not
verify: that the sentence is true.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby
from pathlib import Path

from import_rule import MAY_IMPORT, PACKAGE
from tree import package_files

PAGE = "docs/modules.md"

_HEAD = """# Module map

**For** whoever looks for the place of something. **Answers** which modules there are, each with the first sentence
that it says of itself. How they fit together is in [ARCHITECTURE.md](../ARCHITECTURE.md).

Made by `python tests/repository/module_map.py --write`; a test fails where it is not what that makes.
"""

#: The first sentence ends at a full stop before a space, or with the paragraph.
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)`”])\.(?=\s+[A-Z`])|\n\s*\n")


def first_sentence(source: str) -> str:
    """Return the first sentence of a module's docstring on one line, without its full stop; raises ``ValueError`` where
    it has none.
    """
    said = ast.get_docstring(ast.parse(source))
    if not said:
        raise ValueError("a module without a docstring")
    sentence = " ".join(_SENTENCE_END.split(said, maxsplit=1)[0].split()).rstrip(".")
    # In Markdown's code, and without a role that only Sphinx knows.
    return re.sub(r"``([^`]+)``|:\w+:`~?([^`]+)`", lambda found: f"`{found[1] or found[2]}`", sentence)


def module_map(root: Path) -> str:
    """Return the page for the package under ``root``."""
    source = root / "src"
    modules = [
        path.relative_to(PACKAGE)
        for path in package_files(root)
        if path.suffix == ".py" and path.name != "__init__.py" and len(path.parts) > 2
    ]
    order = list(MAY_IMPORT)
    modules.sort(key=lambda path: (order.index(path.parts[0]), path.parent.parts, path.name))
    lines = [_HEAD]
    for folder, members in groupby(modules, key=lambda path: path.parent):
        opening = (source / PACKAGE / folder / "__init__.py").read_text(encoding="utf-8")
        lines.append(f"## `{folder.as_posix()}/`\n\n{first_sentence(opening)}.\n")
        for path in members:
            text = (source / PACKAGE / path).read_text(encoding="utf-8")
            lines.append(f"- [{path.name}](../{path.as_posix()}): {first_sentence(text)}")
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it must be."""
    root = Path(__file__).resolve().parents[2]
    page, due = root / PAGE, module_map(root)
    if arguments == ["--write"]:
        page.write_text(due, encoding="utf-8")
        return 0
    same = page.exists() and page.read_text(encoding="utf-8") == due
    print(f"{PAGE} {'is' if same else 'is not'} what the modules say")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
