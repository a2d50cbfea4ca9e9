"""The function that names flows, against the library of those who specified it."""

import ipaddress
import random

import communityid
import pytest

from tapdeck_lake.engine import engine

Ends = tuple[str, str, int, int, int]


def address(rng: random.Random, is_ipv6: bool) -> str:
    if not is_ipv6:
        return str(ipaddress.IPv4Address(rng.getrandbits(32)))
    mask = rng.choice([0xFFFF, 0xFFFF << 112, 0xFFFF_0000_FFFF << 40, (1 << 64) - 1 << 64, 0, -1])
    return str(ipaddress.IPv6Address(rng.getrandbits(128) & mask & ((1 << 128) - 1)))


def drawn(rng: random.Random) -> Ends:
    is_ipv6 = rng.random() < 0.5
    proto = rng.choice([6, 17, 132, 1, 58, 47, 136])
    one, other = address(rng, is_ipv6), address(rng, is_ipv6)
    if proto in (1, 58):
        kinds = [8, 0, 3, 9, 10, 13, 128, 129, 135, rng.randrange(256)]
        return one, other, proto, rng.choice(kinds), rng.randrange(16)
    return one, other, proto, rng.randrange(65_536), rng.randrange(65_536)


def reference(one: str, other: str, proto: int, port: int, other_port: int) -> str:
    flow = communityid.FlowTuple
    if proto in (6, 17, 132):
        made = flow(proto, one, other, port, other_port)
    elif proto == 1:
        made = flow.make_icmp(one, other, port, other_port)
    elif proto == 58:
        made = flow.make_icmp6(one, other, port, other_port)
    else:
        made = flow.make_ip(one, other, proto)
    return str(communityid.CommunityID().calc(made))


@pytest.mark.parametrize("seed", range(4))
def test_flows_have_the_names_that_others_give_them(seed: int) -> None:
    rng = random.Random(seed)
    rows = [drawn(rng) for _ in range(500)]
    rows += [("::ffff:192.0.2.1", "::", 6, 1, 2), ("::", "::1", 17, 3, 3)]
    rows += [("10.0.0.9", "10.0.0.9", 6, 7, 5), ("10.0.0.9", "10.0.0.9", 6, 5, 7)]
    db = engine()
    db.execute("create table t (a text, b text, p int, s int, d int)")
    db.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
    answers = db.execute("select *, community_id(a, b, p, s, d) from t").fetchall()
    assert len(answers) == len(rows)
    for *ends, name in answers:
        one, other, proto, port, other_port = ends
        assert name == reference(one, other, proto, port, other_port), ends


def test_what_has_no_name_is_null() -> None:
    query = "select community_id('10.0.0.1', '::1', 6, 1, 2), community_id(null, '::1', 6, 1, 2)"
    query += ", community_id('10.0.0.1', '10.0.0.2', 6, null, 2)"
    assert engine().execute(query).fetchall() == [(None, None, None)]
