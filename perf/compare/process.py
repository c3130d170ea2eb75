"""One fresh process of a comparison: ``python process.py SETTINGS``, a JSON file; prints one JSON object.

Run as a file, with the code of a revision on ``PYTHONPATH``.  The modules that time and count, and the suite, come from
whoever compares: they are loaded from files that the settings name, under their own names, before anything else can
load the revision's.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def _load(modules: dict[str, str]) -> None:
    for name, file in modules.items():
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)


def _counted(case: Any, count_bytecodes: Any) -> dict[str, Any]:
    # Once before: what is imported and computed on the first call is the process's work, not the case's.
    work = case.run()
    return {"work": work, "bytecodes": count_bytecodes(case.run, "kvcrucible.engine")}


def _timed(case: Any, settings: dict[str, Any], counter: Any, time_cpu: Any) -> dict[str, list[float]]:
    timings = time_cpu(case.run, settings["repeats"], slowdown=settings["slowdown"], counter=counter)
    found = {"cpu": [one.cpu_s for one in timings], "wall": [one.wall_s for one in timings]}
    if counter is not None and all(one.instructions is not None for one in timings):
        found["instructions"] = [one.instructions for one in timings]
    return found


def main() -> int:
    """Run what the settings say and print what was found, case by case; a case that fails says why."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _load(settings["modules"])
    code = Path(str(import_module("kvcrucible").__path__[0])).resolve()
    if not code.is_relative_to(Path(settings["root"]).resolve()):
        sys.stderr.write("another kvcrucible than the revision's was imported\n")
        return 4
    smoke = sys.modules["kvcrucible.perf.compare.smoke"]
    time_cpu = sys.modules["kvcrucible.perf.timing.cpu"].time_cpu
    count_bytecodes = sys.modules["kvcrucible.perf.timing.bytecodes"].count_bytecodes
    counting = settings["mode"] == "count"
    opened = None if counting else sys.modules["kvcrucible.perf.timing.instructions"].open_counter()
    counter = None if isinstance(opened, str) else opened
    cases, failed = {}, {}
    for name, case in smoke.CASES.items():
        if not counting and not case.timed:
            continue
        try:
            cases[name] = (
                _counted(case, count_bytecodes) if counting else _timed(case, settings, counter, time_cpu)
            )
        except Exception as error:
            # Whatever an old revision lacks: the case is left out, and the reason is shown.
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    print(
        json.dumps(
            {"cases": cases, "failed": failed, "no_instructions": opened if isinstance(opened, str) else ""}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
