"""An answer is cut into spans that have each of its packets once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import tapdeck

MIB = 1 << 20


def spans_tile(spans: list[tuple[int, int]], first: int = -(2**63), last: int = 2**63 - 1) -> bool:
    joined = all(one[1] == other[0] for one, other in pairwise(spans))
    return joined and (spans[0][0], spans[-1][1]) == (first, last)


@pytest.mark.parametrize("expression", ["", "vlan and udp", "vlan and host 198.18.0.65"])
def test_the_spans_have_each_packet_once(store: Path, expression: str) -> None:
    opened = tapdeck.open(store)
    spans = opened.split(expression, size=MIB)
    assert spans_tile(spans)
    whole = opened.query(expression).to_arrow()
    assert whole.num_rows > 0
    parts = [
        opened.query(expression, after=after, before=before).to_arrow() for after, before in spans
    ]
    assert [row for part in parts for row in part.to_pylist()] == whole.to_pylist()
    if not expression:
        sizes = [sum(part["original_length"].to_pylist()) for part in parts]
        assert len(spans) > 10 and max(sizes) < 2 * MIB


def test_what_the_index_leaves_out_has_no_weight(store: Path) -> None:
    opened = tapdeck.open(store)
    assert len(opened.split("host 203.0.113.77", size=MIB)) == 1


def test_the_spans_are_of_the_span_that_was_asked_for(store: Path) -> None:
    opened = tapdeck.open(store)
    stat = opened.stat()
    middle = tapdeck.open(store).query(after=stat["first"], limit=30_000).to_arrow()
    after, before = (t.value for t in middle["time"].to_pandas().iloc[[1_000, 29_000]])
    spans = opened.split(after=after, before=before, size=MIB)
    assert spans_tile(spans, after, before) and len(spans) > 5


def test_one_that_makes_no_sense_is_refused(store: Path) -> None:
    opened = tapdeck.open(store)
    with pytest.raises(tapdeck.QuestionError, match="1 MiB"):
        opened.split(size=1000)
    with pytest.raises(tapdeck.FilterError):
        opened.split("prot tcp")
