"""Engines from outside the package, named as ``package.module:factory``; the factory returns an adapter for a setting.

Importing a module runs it, so a name is imported where whoever runs a campaign gave it, by :func:`use_engine` alone: a
setting that comes out of a file is never a reason to import anything.

A module or factory that ends the process (``sys.exit``) has failed like one that raises: its status says nothing of
what a campaign found.  Does not verify: that an adapter is honest; a campaign judges what it shows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcrucible.contract.capabilities import Capabilities
from kvcrucible.contract.errors import CrucibleError, InputError, NotRunError, OutputFailed
from kvcrucible.contract.extras import install_remedy
from kvcrucible.contract.profiles import PROFILES
from kvcrucible.fuzz.adapters import registry
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.adapters.registry import ENGINES, build
from kvcrucible.fuzz.setting import Depth, Setting
from kvcrucible.invariants.judgements import raised

#: How such a name is written: a dotted module, a colon, what to call in it.
_NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")

#: Methods of an adapter, and those that payload depth needs beside them (:mod:`kvcrucible.fuzz.adapters.protocol`).
_METHODS = ("execute", "snapshot", "drain")
_PAYLOAD_METHODS = ("write", "read", "attend", "device_row", "poison", "run_effects", "settle")


def is_external(name: str) -> bool:
    """Say whether an engine's name is one of a module and a factory, rightly written or not."""
    return ":" in name


def use_engine(name: str) -> None:
    """Import the factory called ``name`` and let campaigns of this process build it; any other name is left alone.

    The module is looked for in the working folder first, as by ``python -m``, which is added to ``sys.path`` for good:
    factories may import later.  Raises ``InputError`` where name, module or factory cannot be used, ``NotRunError``
    where the module imports something that is not installed.
    """
    if not is_external(name) or name in ENGINES:
        return
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise InputError(f"engine {name!r}: write an engine of your own as package.module:factory")
    factory = _attribute(name, _imported(parts[1]), parts[2])
    if not callable(factory):
        raise InputError(f"engine {name}: {parts[2]} cannot be called; name a factory that takes a Setting")
    ENGINES[name] = _checked(name, factory)


def probe(setting: Setting) -> EngineAdapter:
    """Return a fresh engine that is only to be asked for its capabilities; raises what :func:`build` raises.

    In which storage profiles an engine from outside can hold rows nobody knows before there is one.  So where its
    factory cannot build the setting, each other profile is tried in turn; where it builds none, the error is the first.
    """
    try:
        return build(setting)
    except InputError:
        for name in PROFILES if is_external(setting.engine) else ():
            if name != setting.profile:
                with suppress(InputError):
                    return build(replace(setting, profile=name))
        raise


def depths_of(name: str) -> tuple[Depth, ...]:
    """Return the depths at which an engine shows what it does; raises ``InputError`` for an unknown one.

    Of one from outside, which has to be in use: payload depth where its capabilities say ``payload``; not ledger depth
    where its factory refuses that with ``InputError``.
    """
    if not is_external(name):
        return registry.depths_of(name)
    try:
        adapter = probe(Setting(name, Depth.LEDGER))
    except InputError:
        probe(Setting(name, Depth.PAYLOAD))
        return (Depth.PAYLOAD,)
    return tuple(Depth) if adapter.capabilities.payload else (Depth.LEDGER,)


def _imported(module: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        lacking = error.name or ""
        if f"{module}.".startswith(f"{lacking}."):
            raise InputError(
                f"no module {lacking} in {folder} or on PYTHONPATH; start in the folder that holds it"
            ) from error
        raise NotRunError(f"{module} needs {lacking}, which is not installed here; install it") from error
    except OutputFailed:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"importing {module} raised {raised(error)}") from error


def _attribute(name: str, module: Any, path: str) -> Any:
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError:
        raise InputError(f"engine {name}: {module.__name__} has no {path}") from None


def _checked(name: str, factory: Callable[[Setting], EngineAdapter]) -> Callable[[Setting], EngineAdapter]:
    def checked(setting: Setting) -> EngineAdapter:
        if setting.depth is Depth.PAYLOAD and find_spec("numpy") is None:
            raise NotRunError(f"payload depth needs numpy: {install_remedy('engine')}, or use --depth ledger")
        try:
            adapter = factory(setting)
            # An attribute may be a property, so that asking for it runs foreign code too.
            problem = _problem(adapter, setting.depth)
        except (CrucibleError, OutputFailed):
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"engine {name}: building it for {setting} raised {raised(error)}") from error
        if problem is not None:
            raise InputError(f"engine {name}: {problem}")
        return adapter

    return checked


def _problem(adapter: Any, depth: Depth) -> str | None:
    """Return what keeps an object from being an adapter at a depth, None where nothing does."""
    able = getattr(adapter, "capabilities", None)
    if not isinstance(able, Capabilities):
        return (
            f"{type(adapter).__name__} has no capabilities; a factory returns an adapter (docs/adapters.md)"
        )
    asked: tuple[str, ...] = _METHODS
    if depth is Depth.PAYLOAD:
        if not able.payload:
            return "its capabilities say payload=False; use --depth ledger"
        asked = (*_METHODS, *_PAYLOAD_METHODS, *(["read_copy"] if able.host else []))
    lacking = [method for method in asked if not callable(getattr(adapter, method, None))]
    if depth is Depth.PAYLOAD and not isinstance(getattr(adapter, "layers", None), int):
        lacking.append("layers")
    return f"{type(adapter).__name__} lacks {', '.join(lacking)} (docs/adapters.md)" if lacking else None
