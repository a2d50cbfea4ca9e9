"""Metrics: what is measured in a run, with its unit and which way is better.

"Sent" is what arrived at the far end of the wire by its own counter, so that what a generator could
not send is nobody's loss; where a thread of its own receives, it is what the generator sent, since
what that thread does not get to is lost as at a network card. "Captured" is what the method's
output holds, by counting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    title: str
    unit: str
    better: str
    """"more", "less", or "" where neither is better."""
    scale: float = 1.0
    """Shown is the value times this."""

    @property
    def label(self) -> str:
        return f"{self.title} [{self.unit}]" if self.unit else self.title


METRICS: dict[str, Metric] = {
    "asked": Metric("packets generated", "packets", ""),
    "sent": Metric("packets sent", "packets", ""),
    "undelivered": Metric("packets generated that did not arrive", "packets", ""),
    "detected": Metric("packets detected", "packets", "more"),
    "captured": Metric("packets captured", "packets", "more"),
    "not_detected": Metric("packets not detected", "packets", "less"),
    "dropped": Metric("packets detected and dropped", "packets", "less"),
    "lost": Metric("packets lost", "packets", "less"),
    "loss": Metric("loss", "%", "less", 100),
    "capture_rate": Metric("capturing rate", "%", "more", 100),
    "capture_rate_worst": Metric("capturing rate of the worst application", "%", "more", 100),
    "capture_rate_best": Metric("capturing rate of the best application", "%", "more", 100),
    "sent_pps": Metric("packets sent", "million/s", "", 1e-6),
    "sent_mbit": Metric("data rate", "Mbit/s", ""),
    "captured_pps": Metric("packets captured", "million/s", "more", 1e-6),
    "captured_mbit": Metric("throughput", "Mbit/s", "more"),
    "no_drop_pps": Metric("highest rate without a loss", "million/s", "more", 1e-6),
    "trials": Metric("trials of the search", "", ""),
    "cpu_busy": Metric("CPU, all cores", "%", "less"),
    "cpu_user": Metric("CPU, user", "%", ""),
    "cpu_system": Metric("CPU, system", "%", ""),
    "cpu_softirq": Metric("CPU, softirq", "%", ""),
    "cpu_steal": Metric("CPU, taken by the hypervisor", "%", ""),
    "cpu_capture": Metric("CPU of the capture processes", "% of a core", "less"),
    "cpu_ms_per_mpkt": Metric(
        "CPU time of the capture processes", "ms per million packets", "less"
    ),
    "rss_mib": Metric("resident memory", "MiB", "less"),
    "switches_per_s": Metric("context switches", "1/s", "less"),
    "disk_mib_per_s": Metric("written to disk", "MiB/s", ""),
    "index_share": Metric("index, of what is stored", "%", "less", 100),
    "queries": Metric("queries done", "", "more"),
    "query_ms": Metric("delay of a query", "ms", "less"),
    "answered_mib": Metric("given to readers", "MiB", "more"),
    "segments": Metric("segments closed meanwhile", "", ""),
    "tables": Metric("segments with a flow table", "", "more"),
    "shipped": Metric("segments shipped", "", "more"),
    "found_after_ms": Metric("longest time until an answer has a packet", "ms", "less"),
    "first_packet_ms": Metric("first packet of a conversation", "ms", "less"),
    "flow_ms": Metric("a conversation, all of it", "ms", "less"),
    "scan_ms": Metric("the same by `tcpdump -r` of all that was stored", "ms", ""),
    "first_packet_share": Metric(
        "first packet of a conversation, of the time of a scan", "%", "less", 100
    ),
    "stored_mib": Metric("stored", "MiB", ""),
    "marked_found": Metric("marked packets found", "%", "more", 100),
    "repeated": Metric("packets stored twice", "packets", "less"),
    "uncounted": Metric("packets lost that the method does not count", "packets", "less"),
    "unread_ms": Metric("time in which no process read", "ms", "less"),
    "lost_ms": Metric("packets lost, as time at the rate sent", "ms", "less"),
    "mended_ms": Metric("time until what was left is mended", "ms", "less"),
    "flows_seen": Metric("flows of which a packet is stored", "%", "more", 100),
    "bytes_kept": Metric("bytes of frames stored, of those sent", "%", "more", 100),
    "cut_short": Metric("packets cut short, of those stored", "%", "", 100),
    "cut_off": Metric("packets left out of flows, of those seen", "%", "", 100),
    "ring_used": Metric("most that a ring was filled", "%", "less", 100),
    "unsynced_ms": Metric("longest time not durable", "ms", "less"),
    "seconds": Metric("time of sending", "s", ""),
}


def number(x: float) -> str:
    """Write a number for people, with about four digits."""
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    if x == 0:
        return "0"
    text = f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" if abs(x) < 1e-3 else f"{x:.4g}"
    return text.replace("-", "−", 1)
