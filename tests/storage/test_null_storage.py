"""Ledger depth: the storage interface without tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvcrucible.engine.storage.interface import Storage
from kvcrucible.engine.storage.null import NullStorage


def test_it_counts_what_it_was_asked_for() -> None:
    null = NullStorage()
    storage: Storage = null
    storage.copy_columns(0, 1, 2, 40)
    storage.copy_columns(0, 3, 4, 1)
    storage.write_table(0, 0, [5, 6, 7])
    storage.clear_table(0, 1, 2)
    assert (null.copies, null.columns_copied, null.table_writes, null.table_clears) == (2, 41, 3, 2)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("contract.profiles", False),
        ("engine.storage.interface", False),
        ("engine.storage.null", False),
        ("engine.kernels", False),
        ("engine.storage.torch_storage", True),  # the canary: this one must be seen importing torch
    ],
)
def test_only_tensor_modules_import_tensor_libraries(module: str, heavy: bool) -> None:
    if heavy:
        pytest.importorskip("torch")
    code = f"import sys, kvcrucible.{module}; print(bool({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == str(heavy)
