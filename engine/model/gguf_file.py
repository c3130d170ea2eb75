"""Reads a GGUF file of the Llama family into a configuration and float32 weights.

The file is untrusted: its header is walked within limits first, then ``gguf`` reads it, then every tensor
must have the name and the shape that the configuration asks for, no more and no fewer, and finite values.
A tensor that this decoder does not know (a bias, a rotation table, an expert) is refused, since to ignore
it would give wrong text in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize

from kvcrucible.contract.errors import InputError
from kvcrucible.engine.model.config import LlamaConfig
from kvcrucible.engine.model.gguf_header import check_header

FloatArray = npt.NDArray[np.float32]

ARCHITECTURE = "llama"


@dataclass(frozen=True)
class GgufModel:
    """An opened model file: configuration, metadata (scalars, strings, lists) and the tensors as they lie on disk.

    ``tensors`` are memory-mapped; :meth:`weights` reads and expands them.
    """

    path: Path
    config: LlamaConfig
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]

    @property
    def parameters(self) -> int:
        """Elements of all tensors together; a tied output head counts once."""
        return sum(tensor.n_elements for tensor in self.tensors.values())

    def quantisation(self) -> dict[str, int]:
        """Return how many tensors there are of each storage type, by the type's name."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
        return dict(sorted(counts.items()))

    def weights(self) -> dict[str, FloatArray]:
        """Return every tensor as a fresh float32 array, matrices as ``[out, in]``, vectors as ``[n]``.

        Takes four bytes a parameter.  Raises ``InputError`` for a storage type that cannot be expanded,
        or for values that are not finite.
        """
        expanded: dict[str, FloatArray] = {}
        for name, tensor in self.tensors.items():
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise InputError(
                    f"{self.path}: tensor {name!r} is stored as {tensor.tensor_type.name}, "
                    "which cannot be expanded"
                ) from error
            if not np.isfinite(values).all():
                raise InputError(f"{self.path}: tensor {name!r} holds values that are not finite")
            expanded[name] = np.array(values, dtype=np.float32).reshape(_shape(tensor))
        return expanded


def open_gguf(path: Path) -> GgufModel:
    """Open ``path`` and check everything about it but the values of its weights.

    Raises ``InputError``, which says what was found, for a file that is truncated, no GGUF, of another
    architecture, of impossible geometry, or whose tensors are not exactly those that the decoder needs.
    """
    check_header(path, {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()})
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise InputError(f"{path}: cannot be read as GGUF: {error}") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(path, metadata)
    _check_tensors(path, config, tensors)
    return GgufModel(path, config, metadata, tensors)


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a model of this configuration has, without the optional head."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocabulary, config.embedding),
        "output_norm.weight": (config.embedding,),
    }
    for layer in range(config.layers):
        block = f"blk.{layer}"
        shapes |= {
            f"{block}.attn_norm.weight": (config.embedding,),
            f"{block}.attn_q.weight": (config.query_width, config.embedding),
            f"{block}.attn_k.weight": (config.kv_width, config.embedding),
            f"{block}.attn_v.weight": (config.kv_width, config.embedding),
            f"{block}.attn_output.weight": (config.embedding, config.query_width),
            f"{block}.ffn_norm.weight": (config.embedding,),
            f"{block}.ffn_gate.weight": (config.ffn, config.embedding),
            f"{block}.ffn_up.weight": (config.ffn, config.embedding),
            f"{block}.ffn_down.weight": (config.embedding, config.ffn),
        }
    return shapes


def _config(path: Path, metadata: Mapping[str, Any]) -> LlamaConfig:
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise InputError(f"{path}: architecture {architecture!r} where {ARCHITECTURE!r} is due")
    heads = _number(path, metadata, "attention.head_count")
    embedding = _number(path, metadata, "embedding_length")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise InputError(f"{path}: tokenizer.ggml.tokens is {type(tokens).__name__} where a list is due")
    if heads < 1 or embedding % heads:
        raise InputError(f"{path}: an embedding of {embedding} does not divide into {heads} heads")
    head_dim = _number(path, metadata, "attention.key_length", embedding // heads)
    for name, due in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        found = _number(path, metadata, name, due)
        if found != due:
            raise InputError(f"{path}: {name} is {found}; this decoder needs the head size, {due}")
    scaling = metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if scaling != "none":
        raise InputError(f"{path}: rotation scaling {scaling!r} is not supported")
    try:
        return LlamaConfig(
            layers=_number(path, metadata, "block_count"),
            embedding=embedding,
            heads=heads,
            kv_heads=_number(path, metadata, "attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=_number(path, metadata, "feed_forward_length"),
            rope_base=_real(path, metadata, "rope.freq_base", 10_000.0),
            norm_epsilon=_real(path, metadata, "attention.layer_norm_rms_epsilon", 1e-5),
            context_tokens=_number(path, metadata, "context_length"),
            vocabulary=len(tokens),
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _number(path: Path, metadata: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return an integer of the architecture's metadata."""
    value = metadata.get(f"{ARCHITECTURE}.{name}", default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{path}: {ARCHITECTURE}.{name} is {_shown(value)} where an integer is due")
    return value


def _real(path: Path, metadata: Mapping[str, Any], name: str, default: float) -> float:
    """Return a real number of the architecture's metadata."""
    value = metadata.get(f"{ARCHITECTURE}.{name}", default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{path}: {ARCHITECTURE}.{name} is {_shown(value)} where a number is due")
    return float(value)


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


def _check_tensors(path: Path, config: LlamaConfig, tensors: Mapping[str, ReaderTensor]) -> None:
    due = expected_shapes(config)
    missing = sorted(due.keys() - tensors.keys())
    if missing:
        raise InputError(f"{path}: {len(missing)} tensors are missing, the first {missing[0]!r}")
    due.setdefault("output.weight", due["token_embd.weight"])
    unknown = sorted(tensors.keys() - due.keys())
    if unknown:
        raise InputError(
            f"{path}: {len(unknown)} tensors mean nothing to this decoder, the first {unknown[0]!r}"
        )
    for name, tensor in tensors.items():
        found = _shape(tensor)
        if found != due[name]:
            raise InputError(f"{path}: tensor {name!r} has shape {found} where {due[name]} is due")


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """Return the shape slowest axis first; the file stores it fastest first."""
    return tuple(int(extent) for extent in reversed(tensor.shape))
