"""Tokenizers: decoding returns the text, vocabularies are closed, and JSON keeps both."""

import codecs
import json
from typing import Any

import numpy as np
import pytest

from sequences.text import tokenization
from sequences.text.config import TextConfig
from sequences.text.tokenization import Bytes, Tokenizer, Words, encode_prompt, from_plain, learn

TEXT = "the cat saw the dog\n\nthe dog, naïve 日本, saw\tthe cat\n".encode()


def decoded(tokenizer: Tokenizer, tokens: np.ndarray) -> str:
    """The text of tokens, decoded one by one."""
    decode = tokenizer.decoder()
    return "".join(decode(int(token)) for token in tokens)


def test_bytes_are_themselves() -> None:
    tokens = Bytes().encode(TEXT)
    assert bytes(tokens) == TEXT
    assert decoded(Bytes(), tokens).encode() == TEXT


def test_words_are_ranked_and_lines_end() -> None:
    words = Words.learn([TEXT])
    assert words.words[:4] == ["the", "<eos>", "cat", "saw"]
    tokens = words.encode(b"the dog\n\nthe").tolist()
    assert tokens == [words.index[word] for word in ("the", "dog", "<eos>", "<eos>", "the", "<eos>")]
    assert decoded(words, words.encode(b"the dog\nsaw\n")) == "the dog \nsaw \n"
    assert words.encode(b"mouse\n").tolist() == [words.index["<unk>"], words.separator]


def test_a_vocabulary_of_words_has_the_most_frequent() -> None:
    words = Words.learn([TEXT], 4)
    assert words.words == ["the", "<eos>", "cat", "<unk>"]
    assert words.encode(b"the dog\n").tolist() == [0, 3, 1]


def test_lines_end_with_carriage_returns_where_nothing_else_ends_them() -> None:
    words = Words.learn([TEXT])
    for text in (b"the dog\rsaw\r", b"the dog\r\nsaw\r\n", b"the dog\nsaw\n"):
        assert decoded(words, words.encode(text)) == "the dog \nsaw \n"
    assert words.encode(b"the\rdog\n").tolist() == words.encode(b"the dog\n").tolist(), "white space within a line"


def test_prompts_begin_after_a_byte_order_mark_and_may_end_within_a_line() -> None:
    words = Words.learn([TEXT])
    the = words.index["the"]
    dog = words.index["dog"]
    end = words.index["<eos>"]
    for prompt, expected in (
        (b"the dog", [end, the, dog]),
        (b"the\ndog\n", [end, the, end, dog, end]),
        (b"dog\r", [end, dog, end]),
    ):
        assert encode_prompt(words, prompt) == expected
        assert encode_prompt(words, codecs.BOM_UTF8 + prompt) == expected


def test_wikitext_counts_its_own_unknown_word_and_line_ends() -> None:
    """As WikiText-103 is counted: 267,735 words with <eos>, and the end of every line is a target."""
    words = Words.learn([b" \n = Title = \n \n a <unk> b \n"])
    assert words.vocabulary == 6
    assert words.words[0] == "<eos>"
    assert len(words.encode(b" \n = Title = \n")) == 5


@pytest.mark.parametrize("kind", ["bytes", "words", "subwords"])
def test_json_keeps_a_tokenizer(kind: str) -> None:
    if kind == "subwords":
        pytest.importorskip("tokenizers")
    vocabulary = None if kind == "bytes" else 300
    tokenizer = learn(kind, [TEXT] * 20, vocabulary)
    again = from_plain(json.loads(json.dumps(tokenizer.to_plain())))
    assert (again.vocabulary, again.separator) == (tokenizer.vocabulary, tokenizer.separator)
    assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


def model() -> Any:
    """What the library writes of a tokenizer of subwords."""
    return json.loads(learn("subwords", [TEXT] * 20, 300).to_plain()["model"])


def test_subwords_of_earlier_runs_are_the_same() -> None:
    """As the library itself reads them; earlier ones wrote a merge as one text."""
    library = pytest.importorskip("tokenizers")
    plain = model()
    direct = library.Tokenizer.from_str(json.dumps(plain))
    direct.encode_special_tokens = True
    text = TEXT.decode() * 3 + " <document> Ω never seen\r\n"
    for merges in (plain["model"]["merges"], [" ".join(merge) for merge in plain["model"]["merges"]]):
        plain["model"]["merges"] = merges
        read = from_plain({"kind": "subwords", "model": json.dumps(plain)})
        assert read.encode(text.encode()).tolist() == [
            token for piece in tokenization._paragraphs(text.encode()) for token in direct.encode(piece).ids
        ]
        assert (read.vocabulary, read.separator) == (direct.get_vocab_size(), direct.token_to_id("<document>"))


PADDING = {
    "strategy": {"Fixed": 1_000_000},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "x",
}
ADDED = {"id": 1, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
FORGED: dict[str, tuple[Any, str]] = {
    "padding": (PADDING, "model.padding: expected None, got {'strategy'"),
    "truncation": ({"max_length": 1}, "model.truncation: expected None, got"),
    "normalizer": ({"type": "Prepend", "prepend": "x" * 9}, "model.normalizer: expected None, got"),
    "post_processor": ({"type": "ByteLevel"}, "model.post_processor: expected None, got"),
    "pre_tokenizer": (SPLIT, "model.pre_tokenizer.type: expected 'ByteLevel', got 'Split'"),
    "added_tokens": ([ADDED | {"special": False}], "model.added_tokens.0.content: expected '<document>', got 'a'"),
    "model": ({"vocab": {}, "merges": []}, "vocab: expected <document> and all bytes"),
    "model dropout": (0.5, "model.model.dropout: expected None, got 0.5"),
    "model unk_token": ("a", "model.model.unk_token: expected None, got 'a'"),
    "model vocab": ({"a": 0, "b": 1 << 30}, "vocab: expected tokens 0 to 1, got [0, 1073741824]"),
    "model vocab a": ("b", "vocab: expected tokens 0 to "),
    "model merges": ([["a", "\u00ff"]], "merges: expected tokens of the vocabulary, got ['a', "),
    "model merges 0": ("a", "expected subwords"),
}


@pytest.mark.parametrize("path", FORGED)
@pytest.mark.timeout(20)
def test_a_forged_tokenizer_is_refused(path: str) -> None:
    pytest.importorskip("tokenizers")
    value, words = FORGED[path]
    plain = model()
    *within, name = path.split()
    place: Any = plain
    for each in within:
        place = place[each]
    place[int(name) if isinstance(place, list) else name] = value
    with pytest.raises(ValueError, match=r"^tokenizer: expected subwords as this version writes them, got: ") as caught:
        from_plain({"kind": "subwords", "model": json.dumps(plain)})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_panic_of_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no Exception."""
    pytest.importorskip("tokenizers")
    plain = learn("subwords", [TEXT] * 20, 300).to_plain()
    panic = type("PanicException", (BaseException,), {})

    def fail(*_: object) -> None:
        raise panic("index out of bounds")

    monkeypatch.setattr(tokenization, "_make_tokenizer", fail)
    with pytest.raises(ValueError, match="got: the library tokenizers failed: index out of bounds"):
        from_plain(plain)


def test_subwords_lose_nothing() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = learn("subwords", [TEXT] * 20, 300)
    unseen = TEXT + "\n\n\n  Ω never seen\r\n".encode()
    tokens = tokenizer.encode(unseen)
    assert tokenizer.vocabulary <= 300
    assert len(tokens) < len(unseen)
    assert tokenizer.separator not in tokens
    assert decoded(tokenizer, tokens).encode() == unseen


def test_the_name_of_the_separator_in_a_text_is_text() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = learn("subwords", [TEXT + b" <document> "] * 20, 300)
    for text in (b"a <document> b", b"<document>", b"<document><document>\n\n<document>"):
        tokens = tokenizer.encode(text)
        assert tokenizer.separator not in tokens
        assert decoded(tokenizer, tokens).encode() == text


def test_words_are_counted_as_they_are_cut() -> None:
    """Between white space of Unicode: no-break and ideographic spaces, and what ends lines in it."""
    text = "un\u00a0deux\u3000trois quatre\r\n\ncinq\u2028six\x85sept\n"
    assert tokenization.count_words(text.encode()) == 7
    words = Words.learn([text.encode()])
    assert len(words.encode(text.encode())) == 7 + 3, "and three ends of lines"


def test_what_is_drawn_follows_a_prompt() -> None:
    words = Words.learn([TEXT])
    assert tokenization.before_continuation(words, b"the cat") == "the cat "
    assert tokenization.before_continuation(words, b"the cat\n") == "the cat\n"
    assert tokenization.before_continuation(words, b"") == ""
    assert tokenization.before_continuation(Bytes(), b"the cat") == "the cat"


def test_text_without_line_ends_becomes_subwords_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that begin with a space, as words do; the library needs 130 bytes for each character of a piece."""
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(tokenization, "LONGEST", 20)
    line = TEXT.replace(b"\n", b" ") * 20
    pieces = tokenization._paragraphs(line)
    assert "".join(pieces).encode() == line
    assert max(len(piece) for piece in pieces) <= 20
    assert all(piece.startswith(" ") for piece in pieces[1:])
    assert [len(piece) for piece in tokenization._paragraphs(b"x" * 50)] == [20, 20, 10], "without spaces"

    # The tokens are the same as those of one piece.
    tokenizer = learn("subwords", [line], 300)
    tokens = tokenizer.encode(line)
    monkeypatch.setattr(tokenization, "LONGEST", len(line))
    assert np.array_equal(tokens, tokenizer.encode(line))


@pytest.mark.parametrize(("kind", "size"), [("bytes", 300), ("words", 2), ("subwords", 257)])
def test_impossible_vocabularies_are_refused(kind: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"vocabulary: expected None for bytes, .*, got {size} {kind}"):
        TextConfig(tokens=kind, vocabulary=size)
