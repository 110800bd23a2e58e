"""JSONPath as RFC 9535 has it: what is a query, what is none, and what is found; XPath as far as it goes."""

from typing import Any

import pytest

from bindings.http.jsonpath import JSONPath
from bindings.http.xpath import XPath
from things.errors import Invalid

BOOKS = {
    "books": [
        {"title": "A", "price": 5, "tags": ["x", "y"], "@type": "Novel"},
        {"title": "B", "price": 15.5, "tags": []},
        {"title": "C", "old": True, "price": None},
    ],
    "limit": 10,
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("$.limit", [10]),
        ("$['limit']", [10]),
        ("$.books[0].title", ["A"]),
        ("$.books[-1].title", ["C"]),
        ("$.books[0:2].title", ["A", "B"]),
        ("$.books[::-1].title", ["C", "B", "A"]),
        ("$.books[0,2].title", ["A", "C"]),
        ("$.books.*.title", ["A", "B", "C"]),
        ("$..title", ["A", "B", "C"]),
        ("$..[0]", [BOOKS["books"][0], "x"]),  # type: ignore[index]
        ("$.books[?@.price < $.limit].title", ["A"]),
        ("$.books[?(@.price >= 15)].title", ["B"]),
        ("$.books[?@.old].title", ["C"]),
        ("$.books[?!@.old].title", ["A", "B"]),
        ("$.books[?@.price == null].title", ["C"]),
        ("$.books[?@.old == true || @.price == 5].title", ["A", "C"]),
        ("$.books[?@.old && @.price == 5].title", []),
        ("$.books[?length(@.tags) == 2].title", ["A"]),
        ("$.books[?count(@.tags[*]) == 0].title", ["B", "C"]),
        ("$.books[?@['@type'] == 'Novel'].title", ["A"]),
        ("$.books[?@.nothing == @.neither].title", ["A", "B", "C"]),
        ("$.books[?match(@.title, '[AB]')].title", ["A", "B"]),
        ("$.books[?search(@['@type'], 'ov')].title", ["A"]),
        ("$.books[?search(@.title, '[')].title", []),
        ("$.books[9].title", []),
        ("$", [BOOKS]),
    ],
)
def test_jsonpath_over_books(query: str, expected: list[Any]) -> None:
    assert list(JSONPath(query).find(BOOKS)) == expected


@pytest.mark.parametrize(
    ("query", "document", "expected"),
    [
        # names
        (r'$["\uD834\uDD1E"]', {"𝄞": 1}, [1]),
        (r'$["\u263A"]', {"☺": 1}, [1]),
        ("$.☺", {"☺": 1}, [1]),
        (r"$['\'']", {"'": 1}, [1]),
        (r'$["\""]', {'"': 1}, [1]),
        (r'$["\\"]', {"\\": 1}, [1]),
        (r'$["\b\f\n\r\t\/"]', {"\b\f\n\r\t/": 1}, [1]),
        (r'$["\u0000"]', {"\0": 1}, [1]),
        ("$['']", {"": 1}, [1]),
        ("$._a1", {"_a1": 1}, [1]),
        ("$.true", {"true": 1}, [1]),
        # indexes and slices
        ("$[9007199254740991]", [1], []),
        ("$[-9007199254740991]", [1], []),
        ("$[0]", {"0": 1}, []),
        ("$[1:2:0]", [1, 2], []),
        ("$[::]", [1, 2], [1, 2]),
        ("$[5:0:-2]", [0, 1, 2, 3, 4, 5], [5, 3, 1]),
        ("$[-2:]", [1, 2, 3], [2, 3]),
        ("$[0, 0]", [1], [1, 1]),
        ("$[ 0 , 'a' ]", [1], [1]),
        ("$\n.a\t['b']", {"a": {"b": 1}}, [1]),
        # descendants
        ("$..[1]", [[1, 2], [3, 4]], [[3, 4], 2, 4]),
        ("$..*", {"a": {"b": 1}}, [{"b": 1}, 1]),
        # filters
        ("$[?@.a==1]", [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}], [{"a": 1}, {"a": 1.0}]),
        ("$[?@.a==1e2]", [{"a": 100}], [{"a": 100}]),
        ("$[?@.a==-0]", [{"a": 0}], [{"a": 0}]),
        ("$[?@.a<='b']", [{"a": "a"}, {"a": 1}, {}], [{"a": "a"}]),
        (
            "$[?@.a==@.b]",
            [{"a": [1, {"c": 2}], "b": [1, {"c": 2}]}, {"a": 1}],
            [{"a": [1, {"c": 2}], "b": [1, {"c": 2}]}],
        ),
        ("$[?@.a!=null]", [{"a": None}, {"b": 1}], [{"b": 1}]),
        ("$[?!(@.a && @.b)]", [{"a": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        ("$[?@.a || @.b && @.c]", [{"a": 1}, {"b": 1}, {"b": 1, "c": 1}], [{"a": 1}, {"b": 1, "c": 1}]),
        ("$[?@.*]", [[], [1], {}, {"a": None}, 1], [[1], {"a": None}]),
        ("$[?@[?@>1]]", [[1], [1, 2]], [[1, 2]]),
        ("$[?length(@)==2]", ["ab", "𝄞a", [1, 2], {"a": 1, "b": 2}, 2], ["ab", "𝄞a", [1, 2], {"a": 1, "b": 2}]),
        ("$[?count(@..*)>2]", [[1], [1, [2]]], [[1, [2]]]),
        ("$[?value(@..a)==1]", [{"a": 1}, {"a": 1, "b": {"a": 1}}], [{"a": 1}]),
        ("$[?match(@, 'a.c')]", ["abc", "abcd", "a\nc"], ["abc"]),
        ("$[?search(@, 'b')]", ["abc", "ac", 1], ["abc"]),
        # the node itself, whatever its value
        ("$[?@]", [0, "", None, False, [], {}], [0, "", None, False, [], {}]),
        ("$[?!(@.a==1) && !@.b]", [{"a": 1}, {"a": 2}, {"b": 1}], [{"a": 2}]),
        ("$[?count(@.*)==1 && !match(@.a, 'x')]", [{"a": "x"}, {"a": "y"}], [{"a": "y"}]),
        ("$[?!@]", [0, "", None, False, [], {}], []),
        ("$[?@ && @!=0]", [0, "", 1], ["", 1]),
        ("$[?@==0]", [0, "", None], [0]),
        ("$[?count(@)==1]", [0, "a", [1, 2]], [0, "a", [1, 2]]),
        ("$[?value(@)==@]", [0, "a", [1, 2]], [0, "a", [1, 2]]),
        ("$[?value(@)=='a']", [0, "a", [1, 2]], ["a"]),
        # nothing equals nothing
        ("$[?@.a>=@.b]", [{"c": 1}, {"a": 1}], [{"c": 1}]),
        # blanks between segments
        ("$ ..a\n[0]", {"a": [1]}, [1]),
    ],
)
def test_what_the_standard_lets_a_query_find(query: str, document: Any, expected: list[Any]) -> None:
    assert list(JSONPath(query).find(document)) == expected


@pytest.mark.parametrize(
    "query",
    [
        "",
        "books",
        "@.a",
        " $",
        "$ ",
        "$\n",
        "$.",
        "$..",
        "$[",
        "$[]",
        "$[,]",
        "$[0,]",
        "$.a.",
        "$. a",
        "$.1a",
        "$.-a",
        "$.@type",
        "$.'a'",
        "$[a]",
        "$['a",
        "$['a\"]",
        "$['\n']",
        r"""$["\'"]""",
        r"""$['\"']""",
        r'$["\a"]',
        r'$["\u12"]',
        r'$["\uD834"]',
        r'$["\uDD1E\uD834"]',
        "$[01]",
        "$[-0]",
        "$[1.5]",
        "$[1e1]",
        "$[+1]",
        "$[9007199254740992]",
        "$[-9007199254740992]",
        "$[0:9007199254740992]",
        "$[0:01]",
        "$[1:2:3:4]",
        "$[0:-0]",
        "$ $",
        "$[?]",
        "$[?@.a ==]",
        "$[?@.a&&]",
        "$[?@.a & @.b]",
        "$[?@.a = 1]",
        "$[?@.a===1]",
        "$[?@[*]==0]",
        "$[?@..a==0]",
        "$[?@.a==1.]",
        "$[?@.a==.1]",
        "$[?@.a==01]",
        "$[?@.a==True]",
        "$[?'a']",
        "$[?true]",
        "$[?length(@)]",
        "$[?length(@.*)<3]",
        "$[?length(@.a, @.b)==1]",
        "$[?count(1)>1]",
        "$[?count(@.*)]",
        "$[?!count(@.*)]",
        "$[?!(count(@.*))]",
        "$[?@.a && count(@.*)]",
        "$[?length(@.a) || @.b]",
        "$[?!(1)]",
        "$[?!@.a==1]",
        "$[?!!@.a]",
        "$[?! !(@.a==1)]",
        "$[?(@.a==1)==true]",
        "$[?@.a==1==2]",
        "$[?match(@.a)]",
        "$[?match(@.a, 'b')==true]",
        "$[?nothing(@)]",
        "$[?count (@.*)==1]",
        "$[?(@.a]",
        "$" + "[?(" * 40,
        "$[?" + "!" * 1_900 + "@.a]",
        "$[?" + "(" * 900 + "@.a" + ")" * 900 + "]",
    ],
)
def test_what_the_standard_does_not_call_a_query_is_refused(query: str) -> None:
    with pytest.raises(Invalid):
        list(JSONPath(query).find({}))


@pytest.mark.parametrize(
    ("query", "is_of_each"),
    [
        ("$[*].title", True),
        ("$[?@.title == 'Lamp'].id", True),
        ("$..unit", True),
        ("$", False),
        ("$[0]", False),
        ("$[*, *]", False),
        ("$..*", False),
        ("$..[0]", False),
        ("$[?@.title == $[0].title]", False),
        ("$.title", False),
    ],
)
def test_a_query_that_asks_each_thing_alike_needs_one_at_a_time(query: str, is_of_each: bool) -> None:
    things = [{"title": "A", "unit": ["m", {"unit": "s"}]}, {"title": "B", "unit": 1}, {"title": "Lamp", "id": "c"}]
    parsed = JSONPath(query)

    assert parsed.is_of_each is is_of_each
    if is_of_each:
        assert [one for thing in things for one in parsed.find([thing])] == list(parsed.find(things))


def test_xpath_finds_elements_by_text_and_position() -> None:
    tds = [{"title": "A", "actions": {"go": {"title": "Go"}}}, {"title": "B", "@type": ["Lamp", "Light"]}]

    assert list(XPath("//title").find(tds)) == ["A", "Go", "B"]
    assert list(XPath("/things/thing[title='B']").find(tds)) == [tds[1]]
    assert list(XPath("//thing[type='Light']/title").find(tds)) == ["B"]
    assert list(XPath("/things/thing[1]/title").find(tds)) == ["A"]
    assert list(XPath("/things/thing[last()]/title/text()").find(tds)) == ["B"]
    assert XPath("//title").is_of_each
    assert not XPath("/things/thing[1]/title").is_of_each


@pytest.mark.parametrize(
    "query", ["thing[", "//[[", "thing[]", "thing[0]", "thing[last()-", "thing['a']", "[", "*[1", "a:b"]
)
def test_what_is_no_xpath_is_refused(query: str) -> None:
    with pytest.raises(Invalid):
        list(XPath(query).find([{"title": "A"}]))
