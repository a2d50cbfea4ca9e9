//! What do the hook programs find in a packet? Their code, compiled for user space from
//! `bpf/headers.h`, `bpf/steer.h` and `bpf/cutoff.h`.

use std::mem::transmute_copy;

/// `struct td_tuple`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// 4 or 6; 0 where there is no IP packet, and then nothing else means anything.
    pub family: u8,
    /// The protocol. In IPv6 that of the header behind the extension headers, or of the header
    /// where reading stopped.
    pub protocol: u8,
    /// The flags of `headers` (`HAS_PORTS` and others), added up.
    pub flags: u8,
    /// What comes next inside of the packet, where the reader stopped (`enum td_next`); 0 for
    /// nothing that it knows.
    pub next: u8,
    pub source_port: u16,
    pub destination_port: u16,
    /// The identification of a fragment as it stands in the header; that of IPv4 in the first two
    /// bytes.
    pub fragment_id: [u8; 4],
    /// Where the next header would begin.
    pub offset: u32,
    /// The addresses in network order; those of IPv4 in the first four bytes.
    pub source: [u8; 16],
    pub destination: [u8; 16],
}

/// `struct td_found`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub outer: Tuple,
    innermost: Tuple,
    have: u32,
    pub number: [u32; 9],
    pub second: u32,
}

impl Found {
    /// Returns the tuple of the innermost IP packet.
    pub fn innermost(&self) -> &Tuple {
        const ARE_TWO: u32 = 4;
        if self.have & ARE_TWO == 0 { &self.outer } else { &self.innermost }
    }

    /// Reads the bytes that a program left.
    ///
    /// # Panics
    /// If there are fewer than a `Found` has.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let bytes: &[u8; size_of::<Self>()] = bytes.first_chunk().expect("a whole td_found");
        // SAFETY: any bytes are a valid value of integers alone, and the length is that of the
        // type.
        unsafe { transmute_copy(bytes) }
    }
}

/// `struct td_flow_found`: the flow of a packet as those programs find it that cut flows off.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFound {
    /// The hash of the tuple that the walk through the headers finds; without `is_ip` it means
    /// nothing.
    pub hash: u64,
    /// The hash of the header fields in place; without `is_plain` it means nothing.
    pub plain_hash: u64,
    pub tcp_flags: u32,
    pub plain_tcp_flags: u32,
    /// Other than 0: there is an IP packet.
    pub is_ip: u32,
    /// Other than 0: the packet is so simple that it is read in place.
    pub is_plain: u32,
}

mod c {
    use super::{FlowFound, Found};

    unsafe extern "C" {
        pub safe fn tapdeck_headers_forget();
        pub fn tapdeck_headers_find(
            bytes: *const u8,
            linear: u32,
            len: u32,
            has_link: u32,
            tag: u32,
            ns: u64,
            found: *mut Found,
        );
        pub fn tapdeck_flow_find(
            bytes: *const u8,
            linear: u32,
            len: u32,
            has_link: u32,
            tag: u32,
            seed: u64,
            found: *mut FlowFound,
        );
        #[cfg(test)]
        pub fn tapdeck_plain_headers_len(bytes: *const u8, len: u32, has_link: u32) -> u32;
    }
}

/// Forgets the fragments that this thread has seen.
pub fn forget() {
    c::tapdeck_headers_forget();
}

/// Looks at a frame as a hook would. `linear` of its bytes are read in place and the others through
/// a copy; `tag` is that of `struct packet`.
///
/// # Panics
/// If `linear` is more than there are bytes.
pub fn find(frame: &[u8], linear: usize, has_link: bool, tag: u32, ns: u64) -> Found {
    assert!(linear <= frame.len(), "{linear} of {} bytes", frame.len());
    let mut found = Found::default();
    // SAFETY: the function reads `len` bytes behind the pointer at most, which are the frame's, and
    // writes one `td_found`, whose layout a test below compares; it keeps no pointer.
    unsafe {
        c::tapdeck_headers_find(
            frame.as_ptr(),
            linear as u32,
            frame.len() as u32,
            has_link.into(),
            tag,
            ns,
            &raw mut found,
        );
    }
    found
}

/// Finds the flow of a frame in both ways. The arguments are those of [`find`]; `seed` is the
/// hash's.
///
/// # Panics
/// If `linear` is more than there are bytes.
pub fn find_flow(frame: &[u8], linear: usize, has_link: bool, tag: u32, seed: u64) -> FlowFound {
    assert!(linear <= frame.len(), "{linear} of {} bytes", frame.len());
    let mut found = FlowFound::default();
    // SAFETY: as in `find`, with one `td_flow_found`, whose layout the same test compares.
    unsafe {
        c::tapdeck_flow_find(
            frame.as_ptr(),
            linear as u32,
            frame.len() as u32,
            has_link.into(),
            tag,
            seed,
            &raw mut found,
        );
    }
    found
}

/// Returns how many bytes the headers of a frame have; `None` where that takes a closer look.
#[cfg(test)]
pub fn plain_headers_len(frame: &[u8], has_link: bool) -> Option<u32> {
    // SAFETY: the function reads `len` bytes behind the pointer at most, which are the frame's.
    let len = unsafe {
        c::tapdeck_plain_headers_len(frame.as_ptr(), frame.len() as u32, has_link.into())
    };
    (len > 0).then_some(len)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::{FlowFound, Found, Tuple};

    mod c {
        unsafe extern "C" {
            pub safe static tapdeck_headers_layout: [u32; 24];
        }
    }

    #[test]
    fn fields_are_where_c_has_them() {
        let here = [
            size_of::<Tuple>(),
            offset_of!(Tuple, family),
            offset_of!(Tuple, protocol),
            offset_of!(Tuple, flags),
            offset_of!(Tuple, next),
            offset_of!(Tuple, source_port),
            offset_of!(Tuple, destination_port),
            offset_of!(Tuple, fragment_id),
            offset_of!(Tuple, offset),
            offset_of!(Tuple, source),
            offset_of!(Tuple, destination),
            size_of::<Found>(),
            offset_of!(Found, outer),
            offset_of!(Found, innermost),
            offset_of!(Found, have),
            offset_of!(Found, number),
            offset_of!(Found, second),
            size_of::<FlowFound>(),
            offset_of!(FlowFound, hash),
            offset_of!(FlowFound, plain_hash),
            offset_of!(FlowFound, tcp_flags),
            offset_of!(FlowFound, plain_tcp_flags),
            offset_of!(FlowFound, is_ip),
            offset_of!(FlowFound, is_plain),
        ];
        assert_eq!(here.map(|n| n as u32), c::tapdeck_headers_layout);
    }
}
