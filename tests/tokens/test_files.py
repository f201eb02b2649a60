"""Tokenizers as files: the ids are those of the packages that people have, any bytes come back, and what does not fit
is said when a bundle is built."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea_export.bundle.contents import read_contents
from andrea_export.core.errors import UsageError
from andrea_export.tokens.byte_level import bytes_tokenizer_json
from andrea_export.tokens.files import TokenizerFacts, find_tokenizer, open_tokenizer
from andrea_export.tokens.library import LibraryTokenizer
from andrea_export.tokens.segments import SegmentTokenizer
from andrea_export.tokens.tokenizer import BYTES, Tokenizer
from andrea_model import PRESETS
from support.foreign import write_gpt2
from support.paths import FIXTURES
from tests.conftest import Andrea

tokenizers = pytest.importorskip("tokenizers")

TEXT = (FIXTURES / "austen_held_out.txt").read_text(encoding="utf-8")
CONFIG = PRESETS["andrea-12m"]
SEGMENTS = json.dumps(["the", "th", "there", " the ", "e", "é", "日本"])


def trained_bpe(num_tokens: int, alphabet: list[str] | None = None) -> Any:
    """A byte-level BPE as GPT-2's, trained on the held-out text."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=byte_level.alphabet() if alphabet is None else alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def bpe() -> Any:
    return trained_bpe(400)


@pytest.fixture(scope="module")
def all_of_them(bpe: Any) -> dict[str, Tokenizer]:
    return {
        "bytes": BYTES,
        "trained": LibraryTokenizer(bpe.to_str(), "here"),
        "bytes as tokenizer.json": LibraryTokenizer(bytes_tokenizer_json(), "here"),
        "segments": SegmentTokenizer(SEGMENTS, "here"),
    }


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore")))
def test_any_bytes_in_come_back_out(all_of_them: dict[str, Tokenizer], content: bytes) -> None:
    for name, tokenizer in all_of_them.items():
        tokens = tokenizer.encode_bytes(content)
        assert b"".join(tokenizer.spelled(token) or b"?" for token in tokens) == content, name
        assert max(tokens, default=0) < tokenizer.vocab_size


def test_a_character_is_given_out_once_it_is_whole(all_of_them: dict[str, Tokenizer]) -> None:
    for tokenizer in all_of_them.values():
        text = "thé 🙂 日本 <|endoftext|> end"
        stream = tokenizer.stream()
        pieces = [stream.feed(token) for token in tokenizer.encode(text)]
        assert "".join(pieces) + stream.finish() == text
        assert not any("�" in piece for piece in pieces)


def test_the_library_gives_the_same_ids(bpe: Any) -> None:
    assert LibraryTokenizer(bpe.to_str(), "here").encode(TEXT) == tuple(bpe.encode(TEXT).ids)


def test_bytes_as_a_tokenizer_json_are_bytes() -> None:
    assert LibraryTokenizer(bytes_tokenizer_json(), "here").encode(TEXT) == BYTES.encode(TEXT)


def test_the_longest_segment_is_taken() -> None:
    tokenizer = SegmentTokenizer(SEGMENTS, "here")
    assert tokenizer.encode("there then") == (258, 32, 256, 110)
    assert tokenizer.encode("thx") == (257, 120)
    assert tokenizer.spelled(263) is None


@pytest.mark.parametrize("special", [{}, {"eos_token": {"content": "<|endoftext|>"}}])
def test_gpt2s_two_files_give_transformers_ids(bpe: Any, tmp_path: Path, special: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    facts = json.loads(bpe.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(facts["vocab"]), encoding="utf-8")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in facts["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    found = find_tokenizer(str(tmp_path), None, CONFIG)
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    text = f"{TEXT[:2000]}\n\n  It's 🙂 café<|endoftext|>end"
    assert found.open(tmp_path).encode(text) == tuple(theirs.encode(text))


# --- in a bundle ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(bpe: Any, trained: Any, tmp_path: Path) -> Path:
    """A model of 257 tokens with a tokenizer of as many, whose ids are not the bytes."""
    folder = write_gpt2(tmp_path / "gpt2", trained.model)
    trained_bpe(257).save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 50256]}')
    return folder


def test_it_travels_in_the_bundle_and_is_used(andrea: Andrea, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--checkpoint", folder, "--target", "onnx", "--cache-dir", tmp_path / "cache")
    built = andrea("build", out, *options)
    assert built.code == 0, built.stderr
    assert "note: generation_config.json: eos_token_id 50256 is outside the vocabulary" in built.stderr
    contents = read_contents(out)
    assert contents.text == TokenizerFacts(kind="library", stop=(0,))
    assert "tokenizer.json" in contents.files
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = json.loads(andrea("run", out, "--prompt", "Emma Ü", "--max-new-tokens", 8, "--json").stdout)
    assert said["prompt"] == theirs.encode("Emma Ü").ids
    assert said["text"] == theirs.decode(said["tokens"])
    traced = json.loads(andrea("trace", out, "--prompt", "Emma Ü", "--json").stdout)
    assert traced["tokens"] == said["prompt"]
    text = tmp_path / "text.txt"
    text.write_text(TEXT[:200])
    assert andrea("diff", folder, out, "--text", text).code == 0
    again = andrea(
        "build", out, "--checkpoint", folder, "--target", "onnx", "--cache-dir", tmp_path / "cache", "--json"
    )
    assert all(step["reused"] for step in json.loads(again.stdout)["steps"])
    (out / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in andrea("run", out, "--prompt", "x").error


def test_a_bundle_without_one_says_so(andrea: Andrea, folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    options = ("--checkpoint", folder, "--target", "onnx", "--cache-dir", tmp_path / "cache")
    assert "has no tokenizer, so text is token ids" in andrea("build", tmp_path / "out", *options).stderr
    refused = andrea("run", tmp_path / "out", "--prompt", "x")
    assert (refused.code, refused.error) == (2, f"bundle {tmp_path / 'out'} has no tokenizer")
    assert andrea("run", tmp_path / "out", "--tokens", "1,2").code == 0
    assert andrea("build", tmp_path / "out", *options, "--tokenizer", "bytes").code == 0
    assert andrea("run", tmp_path / "out", "--prompt", "x").code == 0


# --- what does not fit ------------------------------------------------------------------------------------------------


def words(folder: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))


def too_large(folder: Path) -> None:
    trained_bpe(300).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (words, "is a tokenizer of another family: WordLevel, decoder none; expected a byte-level one"),
        (too_large, "has token ids up to 299, and the model's vocabulary ends at 256"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"is not a tokenizer\.json"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"), "is not text"),
        (lambda folder: (folder / "tokenizer.json").rename(folder / "merges.txt"), "expected both"),
        (lambda folder: (folder / "tokenizer.json").rename(folder / "segments.json"), "is not a list of segments"),
    ],
)
def test_one_that_does_not_fit_is_refused(
    trained: Any, folder: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(folder)
    with pytest.raises(UsageError, match=said) as caught:
        find_tokenizer(None, folder, trained.config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [("[1]", "expected a JSON list of texts"), ('["a", "a"]', "names segment 'a' twice"), ("[", "is not a list")],
)
def test_a_list_of_segments_that_is_none(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "list").write_text(content)
    with pytest.raises(UsageError, match=said):
        find_tokenizer(str(tmp_path / "list"), None, CONFIG)


def test_a_tokenizer_that_cannot_spell_all_bytes_is_said(tmp_path: Path) -> None:
    trained_bpe(100, alphabet=[]).save(str(tmp_path / "tokenizer.json"))
    found = find_tokenizer(str(tmp_path), None, CONFIG)
    assert any("of 256 bytes, so text with them is refused" in note for note in found.notes)
    with pytest.raises(UsageError, match="has no token for byte 0x82"):
        found.open(tmp_path).encode("🙂")


def test_segments_are_called_an_assumption(tmp_path: Path) -> None:
    (tmp_path / "segments.json").write_text(SEGMENTS, encoding="utf-8")
    found = find_tokenizer(str(tmp_path / "segments.json"), None, CONFIG)
    assert found.facts.kind == "segments"
    assert "assumed" in found.notes[0]
    with pytest.raises(UsageError, match="ids up to 262"):
        find_tokenizer(str(tmp_path), None, replace(CONFIG, vocab_size=262))


def test_a_missing_file_names_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file") as caught:
        find_tokenizer(str(tmp_path / "absent"), None, CONFIG)
    assert str(caught.value.hint).startswith("expected tokenizer.json")
    with pytest.raises(UsageError, match="has no tokenizer"):
        find_tokenizer(str(tmp_path), None, CONFIG)


def test_the_kinds_open() -> None:
    assert open_tokenizer("bytes", None, "here") is BYTES
