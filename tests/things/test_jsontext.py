"""JSON in and out at the edge: strict, bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from things.errors import Malformed, TooDeep, TooLarge
from things.jsontext import MAX_REPEATED, decode, decode_unique, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@given(values)
def test_values_survive_a_round_trip(value: object) -> None:
    assert decode(encode(value), max_depth=100) == value
    assert decode_unique(encode(value), max_depth=100) == value


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((_depth(member) for member in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(member) for member in value), default=0)
    return 0


@given(values, st.integers(0, 6))
def test_depth_is_counted_outside_of_strings_only(value: object, limit: int) -> None:
    text = json.dumps(value).encode()
    if _depth(value) <= limit:
        assert decode(text, max_depth=limit) == value
    elif text.count(b"[") + text.count(b"{") > limit:
        with pytest.raises(TooDeep):
            decode(text, max_depth=limit)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"[Infinity]", b"{'a':1}", b"\xff", b'"\xed\xa0\x80"', b"1 2", b"[1,]"]
)
def test_what_is_no_json_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        decode(text)
    with pytest.raises(Malformed):
        decode_unique(text)


def test_a_key_that_stands_twice_is_malformed_only_where_people_write() -> None:
    assert decode(b'{"a":1,"a":2}') == {"a": 2}
    with pytest.raises(Malformed, match="'a' stands twice"):
        decode_unique(b'{"a":1,"a":2}')


def test_each_repeated_key_is_named_by_its_pointer() -> None:
    text = b'{"a":[{"b/c":{"b":1,"b":2}},{"d":1,"d":2,"d":3}],"e":{"b":1}}'

    with pytest.raises(Malformed) as refused:
        decode_unique(text)

    assert [problem.pointer for problem in refused.value.problems] == ["/a/0/b~1c/b", "/a/1/d", "/a/1/d"]
    assert {problem.code for problem in refused.value.problems} == {"repeated"}


def test_of_many_repeated_keys_a_bounded_number_is_named() -> None:
    with pytest.raises(Malformed) as refused:
        decode_unique(b"{%s}" % b",".join([b'"a":1'] * 5_000))

    assert len(refused.value.problems) == MAX_REPEATED


def test_one_byte_over_the_limit_is_too_large() -> None:
    assert decode(b'"abc"', max_bytes=5) == "abc"
    with pytest.raises(TooLarge):
        decode(b'"abcd"', max_bytes=5)


@pytest.mark.parametrize("text", [b"1e999", b"[-1E+4000]", b"9" * 400 + b".0"])
def test_a_number_no_double_holds_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed, match="larger than a double"):
        decode(text)


def test_a_long_whole_number_is_kept_digit_by_digit() -> None:
    assert decode(b"9" * 400) == int("9" * 400)


def test_numbers_json_lacks_are_written_as_null() -> None:
    assert encode([float("nan"), float("inf")]) == b"[null,null]"


def _repeats(text: bytes) -> bool:
    """Whether a key stands twice in one object, found the slow way."""
    repeated = []

    def noted(pairs: list[tuple[str, object]]) -> dict[str, object]:
        repeated.append(len({key for key, _ in pairs}) != len(pairs))
        return dict(pairs)

    json.loads(text, object_pairs_hook=noted)
    return any(repeated)


keys = st.sampled_from(["a", "b", "a:b", 'q"uote', "back\\", "{", "ä", ""])
scalars = st.none() | st.integers() | keys.map(lambda text: f"{text}: [{{")


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)} : {value}" for key, value in pairs) + "}"


texts = st.recursive(
    scalars.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(keys, inner), max_size=4).map(_object)
    ),
    max_leaves=12,
)


@given(texts.map(str.encode))
def test_repeated_keys_are_found_at_any_depth(text: bytes) -> None:
    if _repeats(text):
        with pytest.raises(Malformed, match="stands twice"):
            decode_unique(text, max_depth=100)
    else:
        assert decode_unique(text, max_depth=100) == json.loads(text)


@pytest.mark.parametrize("text", [b"1e400", b"[-1E+999]", b"9" * 310 + b".5"])
def test_a_number_that_no_double_holds_is_malformed(text: bytes) -> None:
    for decoded in (decode, decode_unique):
        with pytest.raises(Malformed):
            decoded(text)
