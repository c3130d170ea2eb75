"""The loader: a good file gives exactly its weights; every bad one is refused with what was found."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

import numpy as np
import tiny_model
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from kvcrucible.contract.errors import InputError
from kvcrucible.engine.model.gguf_file import open_gguf


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write_model(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_model.random_weights())


def refused(path: Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        open_gguf(path).weights()
    assert str(path) in str(caught.value)


def test_configuration_and_weights_are_those_of_the_file(good: Path) -> None:
    model = open_gguf(good)
    config = model.config
    assert (config.layers, config.embedding, config.heads, config.kv_heads) == (2, 64, 4, 2)
    assert (config.head_dim, config.ffn, config.context_tokens, config.vocabulary) == (16, 96, 256, 263)
    assert (config.rope_base, config.group) == (10_000.0, 2)
    assert config.norm_epsilon == pytest.approx(1e-5)
    weights = model.weights()
    written = tiny_model.random_weights()
    assert weights.keys() == written.keys()
    name = "blk.1.ffn_down.weight"
    assert weights[name].dtype == np.float32
    np.testing.assert_array_equal(weights[name], written[name])
    assert model.parameters == sum(array.size for array in written.values())
    assert model.quantisation() == {"F32": len(written)}


def test_quantised_tensors_are_expanded(tmp_path: Path) -> None:
    weights = tiny_model.random_weights()
    name = "token_embd.weight"
    model = open_gguf(tiny_model.write_model(tmp_path / "q.gguf", weights, quantised=[name]))
    kind = GGMLQuantizationType.Q8_0
    np.testing.assert_array_equal(model.weights()[name], dequantize(quantize(weights[name], kind), kind))
    assert model.quantisation()["Q8_0"] == 1


def test_every_truncation_is_refused(good: Path, tmp_path: Path) -> None:
    whole = good.read_bytes()
    header = whole.index(b"blk.1.ffn_down.weight")
    offsets = [
        0,
        3,
        4,
        7,
        8,
        23,
        24,
        40,
        *range(100, header, 997),
        header + 5,
        len(whole) // 2,
        len(whole) - 1,
    ]
    cut = tmp_path / "cut.gguf"
    for offset in offsets:
        cut.write_bytes(whole[:offset])
        refused(cut, r"not a GGUF file|truncated")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors, more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata entries, more than"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(60), "bytes in a metadata key"),
        # An array of 2^60 bytes in a file of a hundred: the library alone goes on reading nothing for ever.
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 1 << 60) + bytes(60), "elements in 'k'"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 1 << 20), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(60), "unsupported type 9"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77) + bytes(60), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"\xff", 4) + bytes(60), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 0, 0, 0), "shape"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 33, 8, 0), "blocks of 32"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 0, 7), "offset 7"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 1 << 62, 0, 0), "parameters"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 4, 999, 0), "unknown type 999"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 4, 0, 1 << 40), "truncated: tensor 't'"),
    ],
)  # fmt: skip
def test_hostile_headers(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    refused(path, match)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"block_count": 0}, "layers is 0"),
        ({"block_count": 3}, "9 tensors are missing, the first 'blk.2"),
        ({"block_count": 1}, "9 tensors mean nothing"),
        ({"block_count": "two"}, "block_count is 'two' where an integer"),
        ({"block_count": None}, "block_count is missing"),
        ({"attention.head_count": 5}, "does not divide into 5 heads"),
        ({"attention.head_count": 0}, "does not divide into 0 heads"),
        ({"attention.head_count_kv": 3}, "do not divide into groups"),
        ({"attention.head_count_kv": 1}, r"'blk.0.attn_k.weight' has shape \(32, 64\) where \(16, 64\)"),
        ({"feed_forward_length": 95}, "has shape"),
        ({"context_length": 1 << 30}, "context_tokens"),
        ({"rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"rope.scaling.type": "yarn"}, "scaling 'yarn'"),
    ],
)
def test_geometry_that_does_not_fit(tmp_path: Path, overrides: dict[str, Any], match: str) -> None:
    path = tmp_path / "bad.gguf"
    refused(tiny_model.write_model(path, tiny_model.random_weights(), overrides=overrides), match)


def test_another_architecture(tmp_path: Path) -> None:
    path = tiny_model.write_model(tmp_path / "g.gguf", tiny_model.random_weights(), architecture="gemma")
    refused(path, "architecture 'gemma' where 'llama' is due")


def test_missing_tensor(tmp_path: Path) -> None:
    weights = tiny_model.random_weights()
    del weights["blk.1.attn_v.weight"]
    refused(tiny_model.write_model(tmp_path / "m.gguf", weights), "1 tensors are missing.*blk.1.attn_v")


def test_a_tensor_the_decoder_would_ignore(tmp_path: Path) -> None:
    weights = tiny_model.random_weights() | {"blk.0.attn_q.bias": np.zeros(64, dtype=np.float32)}
    refused(tiny_model.write_model(tmp_path / "b.gguf", weights), "mean nothing.*attn_q.bias")


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    weights = tiny_model.random_weights()
    weights["output_norm.weight"][3] = np.nan
    refused(tiny_model.write_model(tmp_path / "n.gguf", weights), "'output_norm.weight' holds values")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "absent.gguf", "No such file.*kvcrucible model fetch")
    refused(tmp_path, "Is a directory")
