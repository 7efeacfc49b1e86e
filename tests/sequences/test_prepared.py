"""How names are divided into splits: by their digests, and so that enough is left to learn from."""

from hypothesis import given
from hypothesis import strategies as st

from sequences.prepared import LARGE, digest_of, divide

SHARES = {"valid": 0.05, "test": 0.05}


@given(st.dictionaries(st.text("abcdefgh", min_size=1), st.floats(0.1, 100), min_size=3, max_size=60))
def test_every_name_is_in_one_split_and_each_split_has_one(sizes: dict[str, float]) -> None:
    parts = divide(sizes, SHARES)
    assert list(parts) == ["valid", "test", "train"]
    assert all(parts.values())
    assert sorted(name for names in parts.values() for name in names) == sorted(sizes)
    assert divide(dict(reversed(sizes.items())), SHARES) == parts

    # Of each split in turn, the first names that reach its share: without the last one they do not.
    total = sum(sizes.values())
    left = [name for name in sorted(sizes, key=digest_of) if sizes[name] <= LARGE * total]
    for split, share in SHARES.items():
        if len(parts[split]) > 1:
            assert sum(sizes[name] for name in parts[split][:-1]) < share * total
            assert parts[split] == left[: len(parts[split])]
        left = [name for name in left if name not in parts[split]]


def test_a_long_file_is_learned_from() -> None:
    """Wherever its digest stands among those of the short ones."""
    for number in range(20):
        sizes = {f"short {index}": 1.0 for index in range(9)} | {f"long {number}": 83.0}
        assert f"long {number}" in divide(sizes, SHARES)["train"]

    # One short file is enough for a split, where only long ones could fill it.
    parts = divide({"short": 1.0, "long 1": 33.0, "long 2": 33.0, "long 3": 33.0}, SHARES)
    assert parts["valid"] == ["short"]
    assert [len(names) for names in parts.values()] == [1, 1, 2]

    # Of three files one must be held out, however long they are.
    parts = divide({"a": 30.0, "b": 30.0, "c": 40.0}, SHARES)
    assert [len(names) for names in parts.values()] == [1, 1, 1]
