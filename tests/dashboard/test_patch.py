"""A patch makes one document of another, as the page applies it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.dashboard.hub import difference
from tests.dashboard.scenes import merged

LEAVES = st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
DOCUMENTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=1),
    st.recursive(
        LEAVES, lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=1), inner, max_size=3)
    ),
    max_size=3,
)


@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_makes_the_new_document_of_the_old(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert merged(before, difference(before, after)) == after


@given(DOCUMENTS)
def test_nothing_changed_is_an_empty_patch(document: dict[str, Any]) -> None:
    assert difference(document, document) == {}


def test_only_what_changed_is_sent() -> None:
    before = {"jobs": {"a": {"rate": 1.0, "state": "running"}, "b": {"rate": 2.0}}}
    after = {"jobs": {"a": {"rate": 1.5, "state": "running"}}}
    assert difference(before, after) == {"jobs": {"a": {"rate": 1.5}, "b": None}}
