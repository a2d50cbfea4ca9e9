//! Capture files of any size, packet by packet: pcap and pcapng from anything that can be read.
