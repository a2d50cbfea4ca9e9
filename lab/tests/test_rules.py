"""The rule files of the signature experiments."""

import ipaddress

import pytest

from tapdeck_lab import rules


@pytest.mark.parametrize("n", [1, 2, 26, 500])
def test_signatures_are_different_and_ordered_by_rank(n: int) -> None:
    found = rules.signatures(n)
    assert len(set(found)) == n
    ranks = [rules.rank(s) for s in found]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.parametrize("match", ["last", "middle"])
def test_exactly_one_rule_matches_what_is_generated(match: str) -> None:
    lines = [line for line in rules.text(500, match).splitlines() if not line.startswith("#")]
    assert len(set(lines)) == 500
    matching = []
    for i, line in enumerate(lines):
        words = line.split()
        fields = dict(zip(words[1::2], words[2::2], strict=True))
        inside = all(
            ipaddress.IPv4Network(net).subnet_of(ipaddress.IPv4Network(fields[key]))
            for key, net in (("src", "198.18.0.0/24"), ("dst", "198.19.0.0/24"))
        )
        # The generator's ports are 9, its protocol is UDP.
        if inside and fields["sport"] in ("9", "any") and fields["dport"] in ("9", "any"):
            matching.append(i)
    assert len(matching) == 1
    assert matching[0] >= 490 if match == "last" else 200 <= matching[0] <= 300
