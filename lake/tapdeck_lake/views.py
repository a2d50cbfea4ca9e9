"""The names that Zeek, the Elastic Common Schema and OCSF have for what is in flows, as views.

A view costs what is asked of it: `community_id` is made for the rows and the questions that want
it.
"""

from __future__ import annotations

HOUR_OF = """
-- The hour in which a time is, UTC, ten times as fast as date_trunc of a time with a zone.
create or replace macro hour_of(t) as
    make_timestamptz((epoch_us(t) // 3600000000) * 3600000000);
"""

HOSTS = """
select hour_of(start) as hour, sensor, src_ip as host, src_num as host_num,
    count(*) as flows,
    sum(fwd_packets)::bigint as sent_packets, sum(fwd_bytes)::bigint as sent_bytes,
    sum(rev_packets)::bigint as received_packets, sum(rev_bytes)::bigint as received_bytes,
    min(start) as first, max("end") as last
from {flows} where src_ip is not null group by all
union all
select hour_of(start), sensor, dst_ip, dst_num, count(*),
    sum(rev_packets)::bigint, sum(rev_bytes)::bigint,
    sum(fwd_packets)::bigint, sum(fwd_bytes)::bigint, min(start), max("end")
from {flows} where dst_ip is not null group by all
"""
"""Rows of hosts, of which one hour, sensor and host may have several."""

HOSTS_TOGETHER = """
select hour, sensor, host, host_num, sum(flows)::bigint as flows,
    sum(sent_packets)::bigint as sent_packets, sum(sent_bytes)::bigint as sent_bytes,
    sum(received_packets)::bigint as received_packets,
    sum(received_bytes)::bigint as received_bytes, min(first) as first, max(last) as last
from ({parts}) group by hour, sensor, host, host_num
"""
"""One row for each hour, sensor and host."""

# Where the source sent nothing, the message is the other end's (docs/FLEET.md).
PORTS = """
select *,
    case when icmp_type_code is null then src_port
        when fwd_packets > 0 then icmp_type_code >> 8
        else coalesce(icmp_answer(proto, icmp_type_code >> 8), icmp_type_code & 255)
    end as from_port,
    case when icmp_type_code is null then dst_port
        when fwd_packets > 0
            then coalesce(icmp_answer(proto, icmp_type_code >> 8), icmp_type_code & 255)
        else icmp_type_code >> 8
    end as to_port
from flows where src_ip is not null and dst_ip is not null and proto is not null
"""

IDENTITY = "community_id(src_ip, dst_ip, proto, from_port, to_port)"

CONN_STATE = """
case
    when proto = 17 then case when fwd_packets > 0 and rev_packets > 0 then 'SF'
        when fwd_packets > 0 then 'S0' when rev_packets > 0 then 'SHR' else 'OTH' end
    when fwd_tcp_flags is null then 'OTH'
    when fwd_tcp_flags & 2 != 0 and rev_tcp_flags & 2 != 0 then case
        when fwd_tcp_flags & 4 != 0 then 'RSTO'
        when rev_tcp_flags & 4 != 0 then 'RSTR'
        when fwd_tcp_flags & 1 != 0 and rev_tcp_flags & 1 != 0 then 'SF'
        when fwd_tcp_flags & 1 != 0 then 'S2'
        when rev_tcp_flags & 1 != 0 then 'S3'
        else 'S1' end
    when fwd_tcp_flags & 2 != 0 then case
        when rev_tcp_flags & 4 != 0 then 'REJ'
        when fwd_tcp_flags & 4 != 0 then 'RSTOS0'
        when fwd_tcp_flags & 1 != 0 then 'SH'
        else 'S0' end
    when rev_tcp_flags & 2 != 0 then case
        when rev_tcp_flags & 4 != 0 then 'RSTRH'
        when rev_tcp_flags & 1 != 0 then 'SHR'
        else 'OTH' end
    else 'OTH' end
"""
"""Zeek's state of a connection, as far as the slice shows it."""

ZEEK = f"""
select start as ts, src_ip as "id.orig_h", coalesce(from_port, 0) as "id.orig_p",
    dst_ip as "id.resp_h", coalesce(to_port, 0) as "id.resp_p",
    case proto when 6 then 'tcp' when 17 then 'udp' when 1 then 'icmp' when 58 then 'icmp'
        else 'unknown_transport' end as proto,
    case when fwd_packets + rev_packets > 1 then duration_ns / 1e9 end as duration,
    {CONN_STATE} as conn_state,
    fwd_packets as orig_pkts, rev_packets as resp_pkts, vlan, proto as ip_proto,
    {IDENTITY} as community_id, sensor, segment, "offset", span
from ({PORTS})
"""

TRANSPORT = """
case proto when 6 then 'tcp' when 17 then 'udp' when 1 then 'icmp' when 58 then 'ipv6-icmp'
    when 132 then 'sctp' when 33 then 'dccp' when 136 then 'udplite' end
"""

ECS = f"""
select start as "@timestamp", 'network' as "event.category", start as "event.start",
    "end" as "event.end", duration_ns as "event.duration",
    src_ip as "source.ip", src_port as "source.port",
    fwd_packets as "source.packets", fwd_bytes as "source.bytes",
    dst_ip as "destination.ip", dst_port as "destination.port",
    rev_packets as "destination.packets", rev_bytes as "destination.bytes",
    case ip_version when 4 then 'ipv4' when 6 then 'ipv6' end as "network.type",
    proto::varchar as "network.iana_number", {TRANSPORT} as "network.transport",
    fwd_packets + rev_packets as "network.packets", fwd_bytes + rev_bytes as "network.bytes",
    vlan::varchar as "network.vlan.id", {IDENTITY} as "network.community_id",
    sensor as "observer.name", segment, "offset", span
from ({PORTS})
"""

OCSF = f"""
select 4 as category_uid, 4001 as class_uid, 6 as activity_id, 400106 as type_uid,
    1 as severity_id, epoch_ms(start) as time, epoch_ms(start) as start_time,
    epoch_ms("end") as end_time, duration_ns // 1000000 as duration,
    struct_pack(ip := src_ip, port := src_port) as src_endpoint,
    struct_pack(ip := dst_ip, port := dst_port) as dst_endpoint,
    struct_pack(protocol_num := proto, protocol_name := {TRANSPORT},
        protocol_ver_id := ip_version, direction_id := 0,
        tcp_flags := fwd_tcp_flags | rev_tcp_flags,
        community_uid := {IDENTITY}) as connection_info,
    struct_pack(packets := fwd_packets + rev_packets, bytes := fwd_bytes + rev_bytes,
        packets_out := fwd_packets, bytes_out := fwd_bytes,
        packets_in := rev_packets, bytes_in := rev_bytes) as traffic,
    struct_pack(product := struct_pack(name := 'tapdeck'), log_provider := sensor) as metadata,
    struct_pack(segment := segment, "offset" := "offset", span := span) as unmapped
from ({PORTS})
"""

MISSING = """
select sensor, number + 1 as first, next_number - 1 as last
from (select sensor, number, lead(number) over (partition by sensor order by number) as next_number
    from segments)
where next_number > number + 1
"""
"""Numbers of segments that the table has no rows of, between others that it has."""

VIEWS = {
    "missing": MISSING,
    "zeek_conn": ZEEK,
    "ecs": ECS,
    "ocsf_network_activity": OCSF,
}
