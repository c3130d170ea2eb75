"""Which engines can be put under test, and how each is built for a setting.

Engines from outside the package are added by :func:`kvcrucible.fuzz.adapters.external.use_engine`.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcrucible.contract.errors import InputError, NotRunError
from kvcrucible.contract.extras import install_remedy
from kvcrucible.contract.profiles import storage_profile
from kvcrucible.engine.streams.cuda_runtime import why_no_cuda
from kvcrucible.fuzz.adapters.paged import PagedAdapter
from kvcrucible.fuzz.adapters.protocol import EngineAdapter
from kvcrucible.fuzz.geometry import PAYLOAD_GEOMETRY, payload_geometry
from kvcrucible.fuzz.setting import Depth, Setting


def build(setting: Setting) -> EngineAdapter:
    """Return a fresh engine for ``setting``; raises ``InputError`` for an unknown one, ``NotRunError`` without torch or
    the setting's device.
    """
    return builder_of(setting.engine)(setting)


def builder_of(engine: str) -> Callable[[Setting], EngineAdapter]:
    """Return what builds ``engine``, be it one under test or one of the judge's own; raises ``InputError`` for an
    unknown one.
    """
    builder = ENGINES.get(engine)
    if builder is None:
        # Engines that exist for the sake of the judge are built on those here, and are none of a child's business in
        # which one of those is judged.
        from kvcrucible.fuzz.cheaters.registry import judges_own

        builder = judges_own(engine)
    if builder is None:
        raise unknown_engine(engine)
    return builder


def depths_of(engine: str) -> tuple[Depth, ...]:
    """Return the depths at which ``engine``, one of those here, shows what it does; raises ``InputError`` for an
    unknown one.
    """
    builder_of(engine)
    if engine in ENGINES:
        return (Depth.PAYLOAD,) if engine in PAYLOAD_ONLY else tuple(Depth)
    from kvcrucible.fuzz.cheaters.cheats import CHEATS
    from kvcrucible.fuzz.cheaters.orders import ORDERS

    if engine in CHEATS:
        return (CHEATS[engine].depth,)
    return (Depth.LEDGER,) if engine in ORDERS else tuple(Depth)


def unknown_engine(name: str) -> InputError:
    """Return the error for an engine that nobody has; an engine from outside may be meant and not be in use."""
    from kvcrucible.fuzz.cheaters.registry import JUDGES_OWN

    return InputError(
        f"unknown engine {name!r:.100}; known: {', '.join(sorted(ENGINES))}; "
        f"of the judge: {', '.join(JUDGES_OWN)}; your own: package.module:factory"
    )


def _paged(setting: Setting) -> EngineAdapter:
    if setting.device == "cuda":
        reason = why_no_cuda()
        if reason is not None:
            raise NotRunError(reason)
    if setting.depth is Depth.LEDGER:
        return PagedAdapter(setting)
    try:
        from kvcrucible.engine.storage.torch_storage import TorchStorage
    except ImportError as error:
        raise NotRunError(_lacking("payload depth needs torch and numpy", error)) from None
    from kvcrucible.fuzz.adapters.paged import PagedPayloadAdapter

    config, profile = setting.engine_config(), storage_profile(setting.profile)

    def storages(pages: int | None, rows: int) -> list[TorchStorage]:
        return [
            TorchStorage(
                profile,
                payload_geometry(profile),
                spec.capacity_pages if pages is None else pages,
                spec.page_size,
                rows,
                config.blocks_per_row(pool),
                setting.device,
                pool=pool,
                order=spec.order,
            )
            for pool, spec in enumerate(config.pools)
        ]

    if setting.host_bytes is None:
        return PagedPayloadAdapter(setting, storages(None, setting.max_concurrency))
    from kvcrucible.engine.storage.host_memory import TorchHostMemory

    memory = TorchHostMemory(setting.host_bytes, pinned=setting.device == "cuda")
    return PagedPayloadAdapter(setting, storages(None, setting.max_concurrency), memory, storages(1, 1))


def _torch_paged(setting: Setting) -> EngineAdapter:
    if setting.device != "cpu":
        raise InputError("torch-paged-attention is driven in main memory alone; use --device cpu")
    if setting.depth is Depth.LEDGER:
        raise InputError("torch-paged-attention exists at payload depth alone; use --depth payload")
    try:
        from kvcrucible.fuzz.adapters.torch_paged import TorchPagedAdapter
    except ImportError as error:
        needs = "torch-paged-attention needs numpy and a torch that has its experimental PagedAttention"
        raise NotRunError(_lacking(needs, error)) from None
    return TorchPagedAdapter(setting, PAYLOAD_GEOMETRY)


def _lacking(needs: str, error: ImportError) -> str:
    """Say what is needed, what of it is absent and how to get it; an import that fails otherwise is told as it is."""
    # A dotted name is a part that the installed library does not have.
    absent = isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name
    what = f"{error.name} is not installed" if absent else str(error)
    return f"{needs}: {what}; {install_remedy('engine')}"


ENGINES: dict[str, Callable[[Setting], EngineAdapter]] = {
    "paged": _paged,
    "torch-paged-attention": _torch_paged,
}

#: Engines that exist at payload depth alone.
PAYLOAD_ONLY = frozenset({"torch-paged-attention"})
