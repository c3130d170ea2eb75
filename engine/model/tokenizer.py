"""Byte-level BPE from a model file's own metadata."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from kvcrucible.contract.errors import InputError

#: Values of ``tokenizer.ggml.token_type``.
_CONTROL, _USER_DEFINED = 3, 4
#: ``tokenizer.ggml.pre`` by which the text is cut before merging: whether every digit stands alone.
_DIGITS_ALONE = {"smollm": True, "gpt-2": False, "default": False}
#: Ends of a turn or text besides the one that the metadata name; a model may end with any of them.
_STOP_NAMES = ("<|endoftext|>", "<|im_end|>")


class ByteLevelTokenizer:
    """Text to token ids and back.  Immutable after construction; ids are positions in the file's list of tokens."""

    def __init__(self, metadata: Mapping[str, Any], source: Path) -> None:
        """Build from GGUF ``metadata``; ``source`` is only named in errors.  Raises ``InputError``."""
        tokens = _strings(metadata, "tokenizer.ggml.tokens", source)
        merges = [_pair(line, source) for line in _strings(metadata, "tokenizer.ggml.merges", source)]
        types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        kind, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or cut not in _DIGITS_ALONE:
            raise InputError(f"{source}: tokenizer {kind!r} with pre-tokenizer {cut!r} is not supported")
        vocabulary = {text: index for index, text in enumerate(tokens)}
        if len(vocabulary) != len(tokens) or not isinstance(types, list) or len(types) != len(tokens):
            raise InputError(
                f"{source}: {len(tokens)} tokens, {len(vocabulary)} of them distinct, "
                "or not one type for each"
            )
        try:
            self._bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
            raise InputError(f"{source}: the merges do not fit the vocabulary: {error}") from error
        steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        if _DIGITS_ALONE[cut]:
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(steps)
        control = {index for index, kind in enumerate(types) if kind == _CONTROL}
        whole = [index for index, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)]
        self._bpe.add_tokens([AddedToken(tokens[i], normalized=False, special=i in control) for i in whole])
        self._pieces = [
            b"" if i in control else text.encode() if types[i] == _USER_DEFINED else _raw(text)
            for i, text in enumerate(tokens)
        ]
        self._control = {tokens[index]: index for index in control}
        stop = {self._control[name] for name in _STOP_NAMES if name in self._control}
        end = metadata.get("tokenizer.ggml.eos_token_id")
        self.stop_ids: frozenset[int] = frozenset(stop | ({end} if isinstance(end, int) else set()))

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``.  Names of control tokens in it are text like any other."""
        self._bpe.encode_special_tokens = True
        return list(self._bpe.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, message: str, system: str = "You are a helpful AI assistant.") -> list[int]:
        """Return the ids of one user message in the ChatML form, up to where the assistant speaks.

        Raises ``InputError`` where the model has no such tokens.
        """
        try:
            start, end = self._control["<|im_start|>"], self._control["<|im_end|>"]
        except KeyError:
            raise InputError("this model has no chat tokens (<|im_start|>, <|im_end|>)") from None
        ids: list[int] = []
        for role, content in (("system", system), ("user", message)):
            ids += [start, *self.encode(f"{role}\n{content}"), end, *self.encode("\n")]
        return [*ids, start, *self.encode("assistant\n")]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; control tokens vanish, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self._pieces[index] for index in ids).decode("utf-8", errors="replace")

    def stream(self) -> TextStream:
        """Return a decoder that takes ids one at a time."""
        return TextStream(self._pieces)


class TextStream:
    """Turns ids into text as they come; a character whose bytes lie in several tokens appears with the last one."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the text that ``token`` completes, perhaps empty.  Mutates the stream."""
        return self._utf8.decode(self._pieces[token])

    def finish(self) -> str:
        """Return what an incomplete character at the end amounts to: U+FFFD or nothing."""
        return self._utf8.decode(b"", final=True)


def _strings(metadata: Mapping[str, Any], name: str, source: Path) -> list[str]:
    value = metadata.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{source}: {name} is not a list of strings")
    return value


def _pair(line: str, source: Path) -> tuple[str, str]:
    """Return the two tokens of a merge."""
    left, gap, right = line.partition(" ")
    if not (left and gap and right) or " " in right:
        raise InputError(f"{source}: the merge {line[:60]!r} is not a pair of tokens")
    return left, right


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, take the characters from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _raw(token: str) -> bytes:
    """Return the bytes of a byte-level token; one with a foreign character stands for itself in UTF-8."""
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    return token.encode()
