"""Corpora: which text is in which split, token files that are there whole, and one line for what is wrong."""

import codecs
import gzip
import multiprocessing
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sequences.text import corpora
from sequences.text.corpora import SPLITS, Corpus, load
from sequences.text.tokens import open_tokens, prepare


def contents(corpus: Corpus) -> dict[str, list[bytes]]:
    """The texts of each split."""
    return {split: [document.read() for document in documents] for split, documents in corpus.items()}


def write(root: Path, files: dict[str, str]) -> Path:
    """Texts by name, in a folder and in folders below it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def many(root: Path, count: int = 60) -> Path:
    """Different texts of growing length, in seven folders."""
    return write(root, {f"{index % 7}/{index}.txt": f"file {index}\n" * (index + 1) for index in range(count)})


def lengths(texts: Iterable[bytes]) -> list[int]:
    return [len(text) for text in texts]


ONE_EACH = {"train": [b"a"], "valid": [b"b"], "test": [b"c"]}
"""A corpus of one text for each split."""


class TestSplits:
    def test_whole_files_by_a_hash_of_their_names(self, tmp_path: Path) -> None:
        """Each file is in one split, which does not depend on the folder."""
        corpus = contents(load("folder", many(tmp_path / "a")))
        files = corpus["train"] + corpus["valid"] + corpus["test"]
        assert len(files) == len(set(files)) == 60
        assert all(corpus.values())
        size = sum(lengths(files))
        shares = [sum(lengths(corpus[split])) / size for split in SPLITS]
        assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.04)
        assert contents(load("folder", many(tmp_path / "b"))) == corpus

    @pytest.mark.parametrize("note", [80, 8_000])
    def test_a_book_beside_notes_is_cut(self, note: int, tmp_path: Path) -> None:
        """As a whole it would leave little to learn from in test, or nothing to validate on in train."""
        book = "".join(f"line {index} of the book\n" for index in range(30_000))
        notes = {f"{index}.txt": f"{index}\n".rjust(note, "a") for index in range(24)}
        texts = write(tmp_path, {"book.txt": book, **notes})
        corpus = contents(load("folder", texts))
        size = len(book) + sum(map(len, notes.values()))
        shares = [sum(lengths(corpus[split])) / size for split in SPLITS]
        assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.03)
        of_book = [b"".join(text for text in corpus[split] if b"of the book" in text) for split in SPLITS]
        assert b"".join(of_book) == book.encode()
        found = [text for split in SPLITS for text in corpus[split] if b"of the book" not in text]
        assert sorted(found) == sorted(text.encode() for text in notes.values())

    def test_equal_files_count_once(self, tmp_path: Path) -> None:
        files = [path.read_text() for path in many(tmp_path).rglob("*.txt")]
        write(tmp_path, {f"copies/{index}.txt": text for index, text in enumerate(files)})
        corpus = contents(load("folder", tmp_path))
        found = corpus["train"] + corpus["valid"] + corpus["test"]
        assert sorted(found) == sorted(text.encode() for text in files)

    def test_few_files_are_cut_at_line_ends(self, tmp_path: Path) -> None:
        first = "".join(f"line {index} é\n" for index in range(1000))
        second = "x\n" * 100
        corpus = contents(load("folder", write(tmp_path, {"a.txt": first, "b.md": second})))
        for index, whole in enumerate((first, second)):
            parts = [corpus[split][index] for split in SPLITS]
            assert b"".join(parts) == whole.encode()
            assert all(part.endswith(b"\n") for part in parts)

    def test_text_is_cut_where_no_line_ends(self, tmp_path: Path) -> None:
        """The second choice is a carriage return, then a space, then any place between two characters."""
        words = b"some words of one line "
        texts = {
            "text8": words * 100,
            "mac": b"a line\r" * 300,
            "dos": b"a line\r\n" * 300,
            "long": (words * 30 + b"\n") * 3,
            "japanese": "\u65e5\u672c\u8a9e".encode() * 300,
        }
        ends = {"text8": " ", "mac": "\r", "dos": "\r", "long": " ", "japanese": ""}
        for name, text in texts.items():
            (tmp_path / name).write_bytes(text)
            corpus = contents(load("folder", tmp_path / name))
            parts = corpus["train"] + corpus["valid"] + corpus["test"]
            assert b"".join(parts) == text
            shares = [len(part) / len(text) for part in parts]
            assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.02), name
            for part in parts:
                characters = part.decode()  # raises an error if one is cut
                assert characters.rstrip("\n").endswith(ends[name]), f"{name}: whole words or lines"

        # In one folder each of these few files is cut.
        together = load("folder", tmp_path)
        assert all(len(documents) == len(texts) for documents in together.values())

    @pytest.mark.parametrize("name", ["{}", "wiki.{}", "{}-00000-of-00001", "{}_a", "wiki-{}"])
    def test_files_are_splits_by_their_names_whatever_their_suffix(self, name: str, tmp_path: Path) -> None:
        suffixes = ".txt .json .jsonl .csv .tsv .xml .en .cs .utf8 .bpe .tok .TXT .2014 .tokens .md .txt.gz"
        for suffix in ("", *suffixes.split()):
            root = tmp_path / f"of{suffix}"
            root.mkdir()
            for split, text in {"train": b"a", "dev": b"b", "test": b"c"}.items():
                data = gzip.compress(text) if suffix.endswith("gz") else text
                (root / f"{name.format(split)}{suffix}").write_bytes(data)
            assert contents(load("folder", root)) == ONE_EACH, suffix

    @pytest.mark.parametrize(
        "names",
        [
            ("train/a.txt", "val/b.txt", "test/deeper/c.txt"),
            ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
            ("Train", "dev.txt", "test/c.txt"),
            ("training/a.txt", "validation/b.txt", "testing/c.txt"),
            ("train-clean-100/a.txt", "dev-clean/b.txt", "test-clean/c.txt"),
            ("train-v2.0.json", "dev-v2.0.json", "test.json"),
        ],
    )
    def test_folders_and_files_named_after_splits(self, names: tuple[str, str, str], tmp_path: Path) -> None:
        """Other files, such as hidden ones, belong to no split."""
        others = ["readme.md", ".train.swp", "train.py", "train.txt~", "__MACOSX/train.txt"]
        if names[0] == "train/a.txt":
            others += ["train/.a.txt", "val/b~"]
        write(tmp_path, dict.fromkeys(others, "none of them"))
        train, valid, test = names
        write(tmp_path, {train: "a", valid: "b", test: "c"})
        assert contents(load("folder", tmp_path)) == ONE_EACH

    def test_exact_names_go_before_similar_ones(self, tmp_path: Path) -> None:
        write(tmp_path, {"train.txt": "a", "valid.txt": "b", "test.txt": "c"})
        write(tmp_path, {"train-notes.md": "d", "pre-test.md": "e"})
        assert contents(load("folder", tmp_path)) == ONE_EACH

    @pytest.mark.parametrize(
        ("names", "found"),
        [
            (("train.txt", "dev.txt", "a.txt"), "dev.txt and train.txt but no test"),
            (("train.jsonl", "a.jsonl"), "train.jsonl but no valid and no test"),
            (("books.txt", "test.txt"), "test.txt but no train and no valid"),
            (("train-1.csv", "test-1.csv"), "test-1.csv and train-1.csv but no valid"),
        ],
    )
    def test_some_splits_without_the_others_are_refused(
        self, names: tuple[str, str, str] | tuple[str, str], found: str, tmp_path: Path
    ) -> None:
        expected = "expected all of train, valid .* or none of them"
        with pytest.raises(ValueError, match=f"{tmp_path}: {expected}, found {found}; rename what is no split"):
            load("folder", write(tmp_path, dict.fromkeys(names, "text")))

    @pytest.mark.parametrize("names", [("train.txt", "valid.txt", "test.txt"), ("train/a.txt", "dev/a.txt")])
    def test_splits_in_a_folder_below_are_not_mixed(
        self, names: tuple[str, str, str] | tuple[str, str], tmp_path: Path
    ) -> None:
        below = tmp_path / "corpora" / "wiki"
        write(below, dict.fromkeys(names, "text"))
        expected = f"{tmp_path}: expected splits in it or none at all, found train and .* in {below}; give"
        with pytest.raises(ValueError, match=expected):
            load("folder", tmp_path)

    def test_folders_of_programs_named_after_splits_are_no_splits(self, tmp_path: Path) -> None:
        """A warning says so of each, because there is none for training."""
        programs = ("test/a.py", "dev/b.py", "train.py", "test.py", "Test.SH", "below/train.py", "below/test.py")
        write(tmp_path, {name: f"{name}\n" * 50 for name in programs})
        with pytest.warns(UserWarning, match=r"is no split, because there is none for training") as said:
            corpus = load("folder", tmp_path)
        named = [str(warning.message).partition(" is no")[0] for warning in said]
        assert named == [f"{tmp_path}/dev", f"{tmp_path}/test"]
        assert {document.path.relative_to(tmp_path).as_posix() for document in corpus["train"]} == set(programs)

    def test_words_in_names_make_no_split(self, tmp_path: Path) -> None:
        for name in ("train-to-nowhere", "the-last-train", "retest", "latest"):
            write(tmp_path, {f"{name}.txt": f"{name}\n" * 50})
        assert len(load("folder", tmp_path)["train"]) == 4

    def test_of_equal_files_the_one_that_is_held_out_stays(self, tmp_path: Path) -> None:
        """In the test split first, then in that of validation. A split that has no other text is an error."""
        folder = tmp_path / "folder"
        write(folder, {"train/a.txt": "train", "train/b.txt": "valid", "train/c.txt": "tests", "train/d.txt": "train"})
        write(folder, {"valid/1.txt": "valid", "valid/2.txt": "tests"})
        write(folder, {"test/1.txt": "tests", "test/2.txt": ""})
        assert contents(load("folder", folder)) == {"train": [b"train"], "valid": [b"valid"], "test": [b"tests"]}

        write(tmp_path / "wiki", {f"wiki.{split}.tokens": "the same" for split in SPLITS})
        with pytest.raises(ValueError, match="expected text for train, found none of its own"):
            load("wikitext103", tmp_path / "wiki")

    def test_of_equal_texts_one_stays_zipped_or_not(self, tmp_path: Path) -> None:
        write(tmp_path, {"train/a.txt": "tests", "train/b.txt": "train", "valid/a.txt": "valid", "test/a.txt": "tests"})
        (tmp_path / "train" / "c.txt.gz").write_bytes(gzip.compress(b"tests"))
        (tmp_path / "train" / "d.txt").write_bytes(codecs.BOM_UTF8 + b"valid")
        (tmp_path / "train" / "e.txt").write_bytes(codecs.BOM_UTF8)
        assert contents(load("folder", tmp_path)) == {"train": [b"train"], "valid": [b"valid"], "test": [b"tests"]}

    def test_python_has_no_tests_in_it(self) -> None:
        corpus = load("python")
        paths = [document.path for documents in corpus.values() for document in documents]
        assert len(paths) == len(set(paths)) > 100
        for path in paths:
            assert "test" not in path.parts
            assert "site-packages" not in path.parts

    @pytest.mark.parametrize("zipped", [False, True])
    def test_enwik8_is_cut_in_its_proportions(self, zipped: bool, tmp_path: Path) -> None:
        data = ("é<page>" * 1250).encode()  # cuts fall within characters, as they do in Enwik8
        path = tmp_path / "enwik8"
        path.write_bytes(data)
        if zipped:
            path = tmp_path / "enwik8.gz"
            path.write_bytes(gzip.compress(data))
        parts = contents(load("enwik8", path))
        assert [len(parts[split][0]) for split in SPLITS] == [9000, 500, 500]
        assert b"".join(parts[split][0] for split in SPLITS) == data

    @pytest.mark.parametrize("missing", [0, 1, 2])
    def test_a_beginning_of_enwik8_may_end_in_a_character(self, missing: int, tmp_path: Path) -> None:
        data = ("<page>" * 100 + "日").encode()
        (tmp_path / "enwik8").write_bytes(data[: len(data) - missing])
        parts = contents(load("enwik8", tmp_path / "enwik8"))
        assert b"".join(parts[split][0] for split in SPLITS) == data[: len(data) - missing]

        # What is no character is refused there, too.
        (tmp_path / "other").write_bytes(b"\xe6 " + data)
        with pytest.raises(ValueError, match="other: expected UTF-8, got byte 0xe6 at 0"):
            load("enwik8", tmp_path / "other")

    def test_pg19_has_the_published_numbers_of_words(self, tmp_path: Path) -> None:
        """Of 50 and 100 books of the held-out splits, equal ones among them. The words of training are counted."""
        books = {"train": range(1, 4), "validation": range(100, 150), "test": range(200, 300)}
        texts = {}
        for name, ids in books.items():
            for book in ids:
                texts[f"{name}/{book}.txt"] = f"book {book}\n\nits text\n"
        for copy in ("test/201.txt", "validation/101.txt", "train/1.txt"):
            texts[copy] = texts["test/200.txt"]
        texts["train/2.txt"] = texts["train/3.txt"]
        folder = write(tmp_path / "pg19", texts)
        corpus = load("pg19", folder)
        assert [document.path.stem for document in corpus["train"]] == ["2", "3"], "never trains on held-out text"

        found = open_tokens(prepare("pg19", corpus, cache=tmp_path / "cache")).splits
        assert [len(found[split].starts) for split in SPLITS] == [2, 50, 100]
        assert [found[split].words for split in SPLITS] == [8, 3_007_061, 6_966_499]
        assert [found[split].prescribed for split in SPLITS] == [False, True, True]

        # The same books as a folder have no published numbers.
        other = open_tokens(prepare("folder", load("folder", folder), cache=tmp_path / "cache"))
        assert not other.splits["test"].prescribed


FEW_WORDS = {"train/a.txt": "one two two\n", "valid/b.txt": "three\n", "test/c.txt": "four two\n"}


class TestTokens:
    @pytest.mark.parametrize("kind", ["bytes", "words"])
    def test_files_hold_every_document_behind_a_separator(self, kind: str, tmp_path: Path) -> None:
        corpus = load("folder", many(tmp_path / "text"))
        folder = prepare("folder", corpus, kind, cache=tmp_path / "cache")
        tokens = open_tokens(folder)
        for split, documents in contents(corpus).items():
            made = tokens.splits[split]
            assert isinstance(made.tokens, np.memmap)
            expected = [np.append(tokens.tokenizer.separator, tokens.tokenizer.encode(text)) for text in documents]
            assert np.array_equal(made.tokens, np.concatenate(expected))
            starts = np.cumsum([0, *[len(each) for each in expected]])[:-1]
            assert made.starts.tolist() == starts.tolist()
            assert made.bytes == sum(lengths(documents))
            assert made.words == sum(len(text.split()) for text in documents)
        assert prepare("folder", corpus, kind, cache=tmp_path / "cache") == folder
        assert corpora._read_utf8.cache_info().currsize == 0, "no text stays in memory while a model is trained"

    def test_words_of_the_training_text_are_the_vocabulary(self, tmp_path: Path) -> None:
        root = write(tmp_path / "text", FEW_WORDS)
        tokens = open_tokens(prepare("folder", load("folder", root), "words", cache=tmp_path))
        words = tokens.tokenizer.to_plain()["words"]
        assert words == ["two", "<eos>", "one", "<unk>"]
        assert [words[token] for token in tokens.splits["test"].tokens] == ["<eos>", "<unk>", "two", "<eos>"]

    def test_other_text_or_another_vocabulary_has_other_files(self, tmp_path: Path) -> None:
        root = write(tmp_path / "text", FEW_WORDS)
        first = prepare("folder", load("folder", root), "words", cache=tmp_path)
        write(root, {"valid/b.txt": "threa\n"})
        corpora._read_utf8.cache_clear()
        corpus = load("folder", root)
        other_text = prepare("folder", corpus, "words", None, tmp_path)
        other_vocabulary = prepare("folder", corpus, "words", 3, tmp_path)
        assert len({first, other_text, other_vocabulary}) == 3

    def test_a_byte_order_mark_is_no_text(self, tmp_path: Path) -> None:
        """Neither in a text file nor in a gzip file that is cut."""
        marked = {"train.txt": "first word\n", "valid.txt": "first\n", "test.txt": "word\n"}
        for name, text in marked.items():
            (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
        folder = prepare("folder", load("folder", tmp_path), "words", cache=tmp_path / "cache")
        assert open_tokens(folder).tokenizer.to_plain()["words"] == ["<eos>", "first", "word", "<unk>"]

        single = b"one two three four five six seven eight nine ten " * 9
        (tmp_path / "single.txt.GZ").write_bytes(gzip.compress(codecs.BOM_UTF8 + single))
        corpus = contents(load("folder", tmp_path / "single.txt.GZ"))
        assert b"".join(corpus[split][0] for split in SPLITS) == single

    def test_damage_is_noticed(self, tmp_path: Path) -> None:
        """Fewer tokens over the same bytes would look like a better model."""
        corpus = load("folder", many(tmp_path / "text", 300))
        folder = prepare("folder", corpus, "words", cache=tmp_path / "cache")
        file = folder / "test.tokens"
        count = len(open_tokens(folder).splits["test"].tokens)
        whole = file.read_bytes()
        bytes_of_token = len(whole) // count
        for found in (0, count - 1, count + 1):
            file.write_bytes((whole * 2)[: found * bytes_of_token])
            said = f"{folder} is damaged; delete it: test.tokens: expected {count} tokens, got {found}"
            with pytest.raises(ValueError, match=re.escape(said)):
                open_tokens(folder)

        for damage in (file.unlink, lambda: (folder / "corpus.json").write_text("[")):
            damage()
            with pytest.raises(ValueError, match=re.escape(f"{folder} is damaged; delete it: ")):
                open_tokens(folder)

    def test_two_processes_at_once(self, tmp_path: Path) -> None:
        root = many(tmp_path / "text", 200)
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            made = pool.starmap(_prepare, [(root, tmp_path / "cache")] * 4)
        assert list((tmp_path / "cache").iterdir()) == [made[0]]


def _prepare(root: Path, cache: Path) -> Path:
    """What each process does."""
    return prepare("folder", load("folder", root), "words", cache=cache)


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "name", "path", "message"),
        [
            (FileNotFoundError, "folder", "none", "none: expected folder, found nothing there"),
            (ValueError, "folder", "", "expected text for train, found none"),
            (FileNotFoundError, "wikitext103", "", r"folder with wiki.train.tokens, .*, found no wiki.train.tokens"),
            (FileNotFoundError, "enwik8", "", "enwik8: expected a file, found none"),
            (ValueError, "enwik8", None, "path: expected where enwik8 is on this machine .*enwik8.zip"),
            (FileNotFoundError, "pg19", "", "books ID.txt in its folders train, validation, test, found none in train"),
        ],
    )
    def test_missing_files(
        self, error: type[Exception], name: str, path: str | None, message: str, tmp_path: Path
    ) -> None:
        root = None if path is None else tmp_path / path
        with pytest.raises(error, match=message):
            load(name, root)

    def test_empty_files(self, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").touch()
        with pytest.raises(ValueError, match=r"expected text for train, found 0 bytes"):
            prepare("enwik8", load("enwik8", tmp_path / "empty.txt"), cache=tmp_path / "cache")
        assert list((tmp_path / "cache").iterdir()) == []

        write(tmp_path, {"validation/2.txt": "\n \r\n"})
        with pytest.raises(ValueError, match=r"validation/2.txt: expected the text of a book, found none; fetch"):
            load("pg19", tmp_path)

    @pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"no"])
    def test_a_damaged_gzip_file(self, damage: Callable[..., Any], tmp_path: Path) -> None:
        path = tmp_path / "enwik8.gz"
        path.write_bytes(damage(gzip.compress(bytes(range(32, 127)) * 50)))
        with pytest.raises(ValueError, match=r"enwik8.gz: expected a whole gzip file, got: "):
            load("enwik8", path)

    def test_names_need_not_be_utf8(self, tmp_path: Path) -> None:
        for index in range(30):
            (tmp_path / os.fsdecode(b"\xff%d.txt" % index)).write_text(f"file {index}\n")
        corpus = load("folder", tmp_path)
        assert sum(len(documents) for documents in corpus.values()) == 30
        tokens = open_tokens(prepare("folder", corpus, cache=tmp_path / "cache"))
        assert sum(len(split.starts) for split in tokens.splits.values()) == 30

    def test_text_must_be_utf8(self, tmp_path: Path) -> None:
        many(tmp_path, 30)
        (tmp_path / "0.txt").write_bytes("caf\u00e9".encode("latin-1"))
        with pytest.raises(ValueError, match=r"0.txt: expected UTF-8, got byte 0xe9 at 3"):
            prepare("folder", load("folder", tmp_path), cache=tmp_path / "cache")

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be"])
    def test_other_encodings_are_named(self, encoding: str, tmp_path: Path) -> None:
        """By their byte order marks or, without one, by their NUL bytes, because they can be valid UTF-8."""
        (tmp_path / "a.txt").write_bytes("plain English".encode(encoding))
        has_mark = encoding in ("utf-16", "utf-32")  # Python writes none if the order is named
        got = "got .* NUL bytes of .*, as UTF-16"
        if has_mark:
            got = f"got the byte order mark of {encoding}; "
        with pytest.raises(ValueError, match=rf"a.txt: expected UTF-8, (?i:{got})"):
            load("folder", tmp_path)


class TestDownloads:
    @pytest.fixture
    def library(self, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
        """In place of `datasets`; tests give it a function `load_dataset`."""
        module = types.ModuleType("datasets")
        monkeypatch.setitem(sys.modules, "datasets", module)
        return module

    def test_wikitext_is_downloaded_once(self, library: types.ModuleType, tmp_path: Path) -> None:
        asked = []

        def load_dataset(*place: str) -> dict[str, list[dict[str, str]]]:
            asked.append(place)
            return {name: [{"text": ""}, {"text": f" = {name} = \n"}] for name in ("train", "validation", "test")}

        library.load_dataset = load_dataset
        expected = {
            "train": [b" \n = train = \n"],
            "valid": [b" \n = validation = \n"],
            "test": [b" \n = test = \n"],
        }
        for _ in range(2):
            corpus = contents(load("wikitext103", cache=tmp_path))
            assert corpus == expected, "a blank line is a target, too"
        assert asked == [("Salesforce/wikitext", "wikitext-103-v1")]

    def test_books_are_named_by_their_numbers(self, library: types.ModuleType, tmp_path: Path) -> None:
        def load_dataset(*place: str) -> dict[str, list[dict[str, str]]]:
            found = {}
            for number, name in enumerate(("train", "validation", "test")):
                url = f"http://www.gutenberg.org/ebooks/{number}"
                found[name] = [{"url": url, "text": f"book {number}\n"}]
            return found

        library.load_dataset = load_dataset
        books = load("pg19", cache=tmp_path)
        assert [documents[0].path.name for documents in books.values()] == ["0.txt", "1.txt", "2.txt"]

    def test_without_a_network_or_the_library_it_says_so(
        self, library: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def offline(*names: Any) -> None:
            raise ConnectionError("no route")

        library.load_dataset = offline
        with pytest.raises(ValueError, match=r"pg19 cannot be downloaded \(ConnectionError: no route\); .*--path"):
            load("pg19", cache=tmp_path)
        assert list(tmp_path.iterdir()) == []

        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ImportError, match=r"pg19 .*--path.* needs the extra `text`: pip install -e '.\[text\]'"):
            load("pg19", cache=tmp_path)
