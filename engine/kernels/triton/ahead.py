"""Compiles every variant for a target ahead of time, on a machine that need not have it; a program of its own.

``python -m kvcrucible.engine.kernels.triton.ahead sm_90`` writes one JSON object a line: a header with the versions of
Triton and the assembler, then one for each variant: registers, spills, shared memory, instructions by kind, or why the
target cannot hold it.  It runs in a process without ``TRITON_INTERPRET``: a process interprets or compiles, never both.

What is compiled is what :mod:`backend` would launch: the same functions, constants and configurations.  The figures are
deterministic for one version of Triton and of the assembler.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kvcrucible.contract.errors import BadArgument
from kvcrucible.contract.profiles import PROFILES, Geometry, PlaneOrder, Side
from kvcrucible.engine.kernels.triton import backend, launch
from kvcrucible.engine.kernels.view import LayerView

#: Targets by the name that users give: Triton's backend, architecture and lanes of a warp.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}

#: Head dimensions, grouped heads and page size of the variants: what current models have.
HEAD_DIMS, GROUPS, PAGE_SIZE = (64, 128, 256), (1, 4, 8), 64

#: KV heads of a variant; a constant of the kernel that changes only multiplications.
KV_HEADS = 8

#: Instructions that are counted, by the pattern that finds them in the target's assembly.
_INSTRUCTIONS = {
    "cuda": {
        "matrix": r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b|\bmma\.sync|wgmma\.mma_async|tcgen05\.mma",
        "global_load": r"\bld\.global",
        "global_store": r"\bst\.global",
        "async_copy": r"\bcp\.async\.c[ag]",
        "shared": r"\b(?:ld|st)\.shared|\b(?:ldmatrix|stmatrix)\.",
        "barrier": r"\bbar(?:rier)?\.",
    },
    "hip": {
        "matrix": r"\bv_mfma_",
        "global_load": r"\b(?:global|buffer)_load_",
        "global_store": r"\b(?:global|buffer)_store_",
        "async_copy": r"\b(?:global|buffer)_load_lds_",
        "shared": r"\bds_(?:read|write|load|store)",
        "barrier": r"\bs_barrier",
    },
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as it would be launched; ``length`` and ``group`` are of attention alone."""

    kernel: str
    profile: str
    head_dim: int
    group: int = 0
    length: str = ""


def variants(profiles: Sequence[str] = tuple(PROFILES)) -> Iterator[Variant]:
    """Yield every variant of the given profiles, and the copies, which know no profile."""
    for profile in profiles:
        for head_dim in HEAD_DIMS:
            try:
                PROFILES[profile].check_head_dim(head_dim)
            except BadArgument:
                continue
            for side in ("k", "v"):
                yield Variant(f"append_{side}", profile, head_dim)
            for group in GROUPS:
                for length in launch.LENGTH_CLASSES:
                    yield Variant("attend", profile, head_dim, group, length)
                    if length != "prefill":
                        yield Variant("reduce", profile, head_dim, group, length)
    for kernel in ("copy_columns", "pack", "unpack"):
        yield Variant(kernel, "any", 0)


def call_of(variant: Variant, target: str) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
    """Return a variant's function, the types of its arguments, its constants and its launch options."""
    from kvcrucible.engine.kernels.triton import append, attention, copies

    if variant.kernel in ("copy_columns", "pack", "unpack"):
        constants: dict[str, Any] = {"UNIT": 8, "BLOCK": backend.COPY_BLOCK}
        if variant.kernel == "copy_columns":
            constants["PLANE_FIELDS"] = backend.PLANE_FIELDS
            return copies.copy_columns, {"planes": "*i64", "copies": "*i64", "heads": "i32"}, constants, {}
        constants |= {"TO_HOST": variant.kernel == "pack", "PARTS": backend.COPY_PARTS}
        constants["ROW_FIELDS"] = backend.ROW_FIELDS
        return copies.transfer, {"rows": "*i64", "runs": "*i64"}, constants, {}
    view = _view(variant)
    if variant.kernel.startswith("append"):
        side = view.key if variant.kernel == "append_k" else view.value
        constants = backend.append_constants(side, view.page_size)
        types = {"rows": "*bf16", "slots": "*i64", "codes": _pointer(side.codes)}
        if side.scales is not None:
            types["scales"] = _pointer(side.scales)
        function = append.append_numbers if side.codec is None else append.append_groups
        return function, types, constants, {}
    chosen = launch.config(
        launch.Key(target, backend.profile_name(view), view.head_dim, variant.group, variant.length)
    )
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    shared = {"blocks": "*i32", "out": "*i16", "lse": "*fp32", "partial_sums": "*fp32"}
    shared["partial_stats"] = "*fp32"
    if variant.kernel == "reduce":
        return attention.reduce, shared, backend.reduce_constants(view, variant.group, chosen), {}
    types = shared | {"q": "*bf16", "tables": "*i32", "scale_log2": "fp32"}
    for name, side in (("k", view.key), ("v", view.value)):
        codes = "*bf16" if side.codes.dtype == torch.bfloat16 else _pointer(side.codes)
        types[f"{name}_codes"] = codes
        types[f"{name}_scales"] = codes if side.scales is None else _pointer(side.scales)
    constants = backend.attention_constants(view, variant.group, torch.bfloat16, chosen, causal=True)
    return attention.attend, types, constants, options


def compile_variant(variant: Variant, target: str) -> dict[str, Any]:
    """Return the figures of one variant, or ``unsupported`` with the reason."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, types, constants, options = call_of(variant, target)
    names = function.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i64") for name in names}
    # Triton tells multiples of 16 apart when it launches: in these variants all addresses and strides are some.
    divisible = [["tt.divisibility", 16]]
    attributes = {
        (place,): divisible
        for place, name in enumerate(names)
        if signature[name].startswith("*") or (signature[name] == "i64" and name.endswith(_ALIGNED_STRIDES))
    }
    source = ASTSource(function, signature, constants, attributes)
    found: dict[str, Any] = asdict(variant)
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(
                source, target=GPUTarget(*TARGETS[target]), options=options | {"enable_fp_fusion": True}
            )
    except Exception as error:
        return found | {"unsupported": _reason(error)}
    assembly = compiled.asm["ptx" if "ptx" in compiled.asm else "amdgcn"]
    kind = TARGETS[target][0]
    counts = {name: len(re.findall(pattern, assembly)) for name, pattern in _INSTRUCTIONS[kind].items()}
    counts["all"] = _instruction_count(assembly)
    figures = _nvidia_figures(log.getvalue()) if kind == "cuda" else _amd_figures(assembly)
    limit = _SHARED_LIMITS[target]
    if compiled.metadata.shared > limit:
        reason = f"{compiled.metadata.shared} bytes of shared memory, {limit} there"
        return found | {"unsupported": reason}
    return (
        found
        | figures
        | {
            "shared_bytes": compiled.metadata.shared,
            "num_warps": compiled.metadata.num_warps,
            "num_stages": compiled.metadata.num_stages,
            "instructions": dict(sorted(counts.items())),
        }
    )


#: Shared memory that one block may have, in bytes.
_SHARED_LIMITS = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "gfx942": 65_536}

#: Strides that span whole rows of at least 16 elements in the variants.
_ALIGNED_STRIDES = ("_page", "_head", "page_stride", "head_stride")


def _view(variant: Variant) -> LayerView:
    """Return planes of one page that have the variant's types; nothing is ever launched on them."""
    from kvcrucible.engine.storage.planes import allocate_side

    geometry, profile = Geometry(1, KV_HEADS, variant.head_dim), PROFILES[variant.profile]
    shape = (geometry, 1, PAGE_SIZE, PlaneOrder.PAGE_MAJOR, "cpu")
    key, value = allocate_side(profile, Side.KEY, *shape), allocate_side(profile, Side.VALUE, *shape)
    return LayerView(key, value, torch.zeros((1, 1), dtype=torch.int32))


def _pointer(plane: torch.Tensor) -> str:
    names = {torch.int8: "*i8", torch.uint8: "*u8", torch.int16: "*i16", torch.float32: "*fp32"}
    return names[backend.patterns(plane).dtype]


def _reason(error: Exception) -> str:
    """Return the first line of what the compiler said that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def _nvidia_figures(log: str) -> dict[str, int]:
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert registers, f"the assembler said nothing that is understood: {log[-500:]}"
    assert spills, f"the assembler said nothing of spills: {log[-500:]}"
    stack, stores, loads = map(int, spills.groups())
    return {
        "registers": int(registers.group(1)),
        "stack_bytes": stack,
        "spill_store_bytes": stores,
        "spill_load_bytes": loads,
    }


def _amd_figures(assembly: str) -> dict[str, int]:
    def value(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        assert found, f"no .{name} in the assembly"
        return int(found.group(1))

    spilled = 4 * value("vgpr_spill_count")
    return {
        "registers": value("vgpr_count"),
        "stack_bytes": value("private_segment_fixed_size"),
        "spill_store_bytes": spilled,
        "spill_load_bytes": spilled,
    }


def _instruction_count(assembly: str) -> int:
    """Return the lines that are instructions: indented, and neither directive, label nor comment."""
    return sum(1 for line in assembly.splitlines() if re.match(r"\s+(?:@!?%\w+\s+)?[a-z][\w.]*\s", line))


def versions(target: str) -> dict[str, str]:
    """Return the versions on which the figures depend."""
    import triton

    found = {"triton": triton.__version__}
    if TARGETS[target][0] == "cuda":
        from triton import knobs

        capability = TARGETS[target][1]
        assembler = knobs.nvidia.ptxas_blackwell if int(capability) >= 90 else knobs.nvidia.ptxas
        said = subprocess.run(
            [assembler.path, "--version"], capture_output=True, text=True, check=True
        ).stdout
        release = re.search(r"release [\d.]+, V([\d.]+)", said)
        found["ptxas"] = release.group(1) if release else "unknown"
    return found


def main(arguments: Sequence[str]) -> int:
    """Compile for the target named first; further arguments are the profiles to be compiled, all if none."""
    target, profiles = arguments[0], arguments[1:] or tuple(PROFILES)
    # A cache hit prints no figures, and the caller's cache is not ours to fill.
    os.environ["TRITON_ALWAYS_COMPILE"] = os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    with tempfile.TemporaryDirectory(prefix="kvcrucible-ahead-") as folder:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder))
        print(json.dumps({"target": target, "versions": versions(target)}), flush=True)
        compiled: dict[str, dict[str, Any]] = {}
        for variant in variants(profiles):
            # Variants that the launch table does not tell apart are one program: it is compiled once.
            function, *rest = call_of(variant, target)
            program = json.dumps([function.__name__, *rest], sort_keys=True)
            if program not in compiled:
                compiled[program] = compile_variant(variant, target)
            print(json.dumps(compiled[program] | asdict(variant)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
