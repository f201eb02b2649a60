"""GPT-2's spelling of bytes: each of the 256 as one visible character, so that any text is a string without spaces.

Source: GPT-2's encoder.py (Radford et al. 2019), ``bytes_to_unicode``; the ``ByteLevel`` of Hugging Face's tokenizers.
"""

import json

# A byte that prints in Latin-1 is its own character; the others are, in order, the characters from U+0100 on.
_PRINTED = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTED]
CHARACTERS: tuple[str, ...] = tuple(chr(byte if byte in _PRINTED else 256 + _OTHERS.index(byte)) for byte in range(256))
"""Byte → its character."""
BYTE_OF = {character: byte for byte, character in enumerate(CHARACTERS)}


def bytes_tokenizer_json() -> str:
    """ "A token a byte" as a ``tokenizer.json``: BPE without merges, each byte its own id, as ``tokenizer.BYTES``."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": dict(zip(CHARACTERS, range(256), strict=True)),
                "merges": [],
            },
        },
        ensure_ascii=False,
        indent=1,
    )
