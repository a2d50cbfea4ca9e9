"""The name by which Zeek, Suricata and others know a flow, as a function of DuckDB's.

It is made when rows are read: in the files it would be 20 bytes a row that nothing compresses.

The Community ID, version 1, with seed 0 (https://github.com/corelight/community-id-spec): SHA-1 of
addresses, protocol and ports, the lesser end first. ICMP has its type and that of the answer in
place of ports; where a type has no answer, type and code stand there, and ends keep their order.
Other protocols than TCP, UDP, SCTP and ICMP have no ports.

Everything is SQL, so that DuckDB runs it over a million rows at once, and so that other programs
with DuckDB can be given the same text (`tapdeck-lake functions`).
"""

from __future__ import annotations

# RFC 792, 950, 1256; RFC 4443, 2710, 4861, 4620, 6275: types that ask, and those that answer.
PAIRS = {
    1: [(8, 0), (13, 14), (15, 16), (17, 18), (10, 9)],
    58: [(128, 129), (130, 131), (133, 134), (135, 136), (139, 140), (144, 145)],
}


def answers() -> str:
    """Returns SQL that gives the type that answers `kind` of protocol `proto`, or null."""
    cases = []
    for proto, pairs in PAIRS.items():
        both = [*pairs, *((answer, question) for question, answer in pairs)]
        whens = " ".join(f"when {one} then {other}" for one, other in both)
        cases.append(f"when {proto} then case kind {whens} end")
    return f"case proto {' '.join(cases)} end"


FUNCTIONS = f"""
create or replace macro icmp_answer(proto, kind) as {answers()};

-- The 16 bytes of an IPv6 address, or the 4 of an IPv4 address, as hexadecimal digits.
create or replace macro hex_of_ipv4(ip) as
    printf('%02x%02x%02x%02x',
        split_part(ip, '.', 1)::int, split_part(ip, '.', 2)::int,
        split_part(ip, '.', 3)::int, split_part(ip, '.', 4)::int);
create or replace macro hex_of_groups(groups) as
    coalesce(list_reduce(list_transform(
        list_filter(string_split(groups, ':'), g -> g != ''),
        g -> case when contains(g, '.') then hex_of_ipv4(g) else lpad(g, 4, '0') end),
        (a, b) -> a || b, ''), '');
create or replace macro hex_of_halves(head, tail) as
    head || repeat('0', 32 - length(head) - length(tail)) || tail;
create or replace macro hex_of_ip(ip) as
    case when contains(ip, ':')
        then hex_of_halves(
            hex_of_groups(split_part(ip, '::', 1)), hex_of_groups(split_part(ip, '::', 2)))
        else hex_of_ipv4(ip) end;

-- Each end is an address and a port, as hexadecimal digits. A list of one binds both, so that they
-- are made once.
create or replace macro community_id_of_ends(one, other, proto, has_ports, is_one_way) as
    list_transform(
        [case when is_one_way then [one, other] else list_sort([one, other]) end],
        ends -> '1:' || to_base64(unhex(sha1(unhex(
            '0000' || left(ends[1], -4) || left(ends[2], -4) || printf('%02x00', proto)
            || case when has_ports then right(ends[1], 4) || right(ends[2], 4) else '' end)))))[1];

-- Of ICMP, ports are the type and the code of a message.
create or replace macro community_id(src_ip, dst_ip, proto, src_port, dst_port) as
    case
        when contains(src_ip, ':') != contains(dst_ip, ':') then null
        when proto in (1, 58) then community_id_of_ends(
            hex_of_ip(src_ip) || printf('%04x', src_port),
            hex_of_ip(dst_ip) || printf('%04x', coalesce(icmp_answer(proto, src_port), dst_port)),
            proto, true, icmp_answer(proto, src_port) is null)
        when proto in (6, 17, 132) then community_id_of_ends(
            hex_of_ip(src_ip) || printf('%04x', src_port),
            hex_of_ip(dst_ip) || printf('%04x', dst_port), proto, true, false)
        else community_id_of_ends(
            hex_of_ip(src_ip) || '0000', hex_of_ip(dst_ip) || '0000', proto, false, false)
    end;
"""
"""What makes the functions, to be run by DuckDB."""
