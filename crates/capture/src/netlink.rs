//! Questions to the kernel over netlink(7): rtnetlink dumps, and the generic families `netdev` and
//! `ethtool`.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// Asks one rtnetlink question and collects the answers: one, or all there are (`dump`).
pub fn ask(question: RouteNetlinkMessage, dump: bool) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(question));
    message.header.flags = if dump { NLM_F_REQUEST | NLM_F_DUMP } else { NLM_F_REQUEST };
    message.header.sequence_number = 1;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    loop {
        let (received, _) = socket.recv_from_full()?;
        let mut rest = &received[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
            let len = (message.header.length as usize).next_multiple_of(4);
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                NetlinkPayload::InnerMessage(m) => answers.push(m),
                _ => {}
            }
            rest = rest.get(len..).unwrap_or(&[]);
        }
        if !dump {
            return Ok(answers);
        }
    }
}

/// What a driver tells an XDP program about a received frame (`enum netdev_xdp_rx_metadata`
/// of `linux/netdev.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMetadata {
    pub timestamp: bool,
    pub vlan_tag: bool,
}

/// Asks what metadata a driver gives. Kernels that do not know the question have no programs that
/// could ask the driver either; the answer is then that it gives nothing.
pub fn rx_metadata(ifindex: u32) -> RxMetadata {
    let bits = rx_metadata_bits(ifindex).unwrap_or(0);
    RxMetadata { timestamp: bits & 1 != 0, vlan_tag: bits & 4 != 0 }
}

/// Returns whether this kernel tells what drivers can do (since 6.3).
pub fn knows_devices() -> bool {
    family("netdev").is_ok()
}

/// Asks for a link's speed in Mbit/s. `None` where the link is down, or where the driver or the
/// kernel cannot tell.
pub fn speed_mbit(ifindex: u32) -> io::Result<Option<u32>> {
    const ETHTOOL_MSG_LINKMODES_GET: u8 = 4;
    const ETHTOOL_A_LINKMODES_HEADER: u16 = 1;
    const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
    const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
    const NLA_F_NESTED: u16 = 1 << 15;
    const SPEED_UNKNOWN: u32 = u32::MAX;

    let mut device = Vec::from(8u16.to_ne_bytes());
    device.extend(ETHTOOL_A_HEADER_DEV_INDEX.to_ne_bytes());
    device.extend(ifindex.to_ne_bytes());
    let header = ETHTOOL_A_LINKMODES_HEADER | NLA_F_NESTED;
    let answer = family("ethtool")
        .and_then(|ethtool| generic(ethtool, ETHTOOL_MSG_LINKMODES_GET, header, &device));
    let modes = match answer {
        Ok(modes) => modes,
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOENT)) => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let speed = attribute(&modes, ETHTOOL_A_LINKMODES_SPEED).and_then(|s| s.try_into().ok());
    Ok(speed.map(u32::from_ne_bytes).filter(|&s| s != 0 && s != SPEED_UNKNOWN))
}

/// Asks for the number of a generic family.
///
/// # Errors
/// `ENOENT` where the kernel does not have it.
fn family(name: &str) -> io::Result<u16> {
    const GENL_ID_CTRL: u16 = 16;
    const CTRL_CMD_GETFAMILY: u8 = 3;
    const CTRL_ATTR_FAMILY_ID: u16 = 1;
    const CTRL_ATTR_FAMILY_NAME: u16 = 2;
    let name = [name.as_bytes(), &[0]].concat();
    let family = generic(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, &name)?;
    let id = attribute(&family, CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok());
    id.map(u16::from_ne_bytes).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn rx_metadata_bits(ifindex: u32) -> io::Result<u64> {
    const NETDEV_CMD_DEV_GET: u8 = 1;
    const NETDEV_A_DEV_IFINDEX: u16 = 1;
    const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;

    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let family = family("netdev")?;
    let device = generic(family, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes())?;
    let bits = attribute(&device, NETDEV_A_DEV_XDP_RX_METADATA_FEATURES).ok_or_else(unknown)?;
    Ok(u64::from_ne_bytes(bits.try_into().map_err(|_| unknown())?))
}

/// Sends a generic netlink request with one attribute. Returns the attributes of the answer.
fn generic(family: u16, command: u8, attribute: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    const HEADERS: usize = 16 + 4;
    const NLMSG_ERROR: u16 = 2;
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = vec![0; 4];
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend([command, 1, 0, 0]);
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    socket.send(&message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    match answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])) {
        Some(NLMSG_ERROR) => {
            let code = answer.get(16..20).and_then(|code| code.try_into().ok());
            Err(io::Error::from_raw_os_error(-code.map_or(-libc::EIO, i32::from_ne_bytes)))
        }
        _ => Ok(answer.get(HEADERS..).unwrap_or(&[]).to_vec()),
    }
}

/// Returns the value of an attribute in a run of attributes.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [l0, l1, k0, k1, rest @ ..] = bytes {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = rest.get(..len.checked_sub(4)?)?;
        if u16::from_ne_bytes([*k0, *k1]) == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
    None
}
