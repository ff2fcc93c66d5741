"""The text of each token, from a model's tokenizer.json: neither torch nor a tokenizer is loaded.

Tokens are pieces of bytes, so a token may be a part of a character. Two ways to write them are in use: with
a letter for each byte (GPT-2 and most since), or as text with ▁ for a space and <0xE2> for a byte
(SentencePiece).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 128 << 20
"""The largest known are some 35 MB."""
PARTS = re.compile("[\udc80-\udcff]+")
"""What `surrogateescape` makes of bytes that are no character."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")

Vocabulary = Mapping[int, bytes]


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises OSError, and ValueError for a file of another form."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError("not a file, or too large")
    tree = json.loads(path.read_bytes())
    try:
        return _read(tree)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("not a tokenizer of the tokenizers library") from None


def text_of(vocabulary: Vocabulary | None, token: int) -> str:
    """The token's text, with its bytes where it has parts of a character; the token's number where it is
    not known.

    Example: text_of({6: b" \\xe2\\x9c"}, 6) == " ‹E2 9C›"
    """
    piece = vocabulary.get(token) if vocabulary else None
    if piece is None:
        return f"‹{token}›"
    return PARTS.sub(_bytes, piece.decode("utf-8", "surrogateescape"))


def text_of_all(vocabulary: Vocabulary, tokens: Iterable[int]) -> str:
    """The text that they make together."""
    return b"".join(vocabulary.get(token, b"") for token in tokens).decode(errors="replace")


def _bytes(parts: re.Match[str]) -> str:
    return f"‹{parts[0].encode('utf-8', 'surrogateescape').hex(' ').upper()}›"


def _read(tree: dict[str, Any]) -> Vocabulary:
    vocab = tree["model"]["vocab"]
    if isinstance(vocab, dict):
        pieces: dict[str, int] = vocab
    else:
        pieces = {piece: token for token, (piece, _) in enumerate(vocab)}
    has_byte_letters = '"ByteLevel"' in json.dumps([tree.get("decoder"), tree.get("pre_tokenizer")])
    if has_byte_letters:
        letters = _byte_letters()
        found = {token: _from_letters(piece, letters) for piece, token in pieces.items()}
    else:
        found = {token: _from_text(piece) for piece, token in pieces.items()}
    return found | {added["id"]: added["content"].encode() for added in tree["added_tokens"]}


def _from_letters(piece: str, letters: Mapping[str, int]) -> bytes:
    """A piece with a letter that stands for no byte is a text of its own."""
    if all(letter in letters for letter in piece):
        return bytes(letters[letter] for letter in piece)
    return piece.encode()


def _from_text(piece: str) -> bytes:
    if byte := BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace("▁", " ").encode()


def _byte_letters() -> dict[str, int]:
    """GPT-2's: visible Latin-1 letters stand for themselves, the others for those from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(0x100 + index): byte for index, byte in enumerate(hidden)
    }
