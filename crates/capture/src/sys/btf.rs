//! What the kernel tells of types that hook programs cannot name: those of its modules.

use std::ffi::CStr;
use std::slice;
use std::sync::OnceLock;

use libbpf_sys as bpf;

/// What a veth hands its XDP program, since Linux 6.3 (`drivers/net/veth.c`).
const VETH_XDP_BUFF: &CStr = c"veth_xdp_buff";

/// Returns where behind the beginning of what a veth hands its XDP program the frame's socket
/// buffer is named; `None` where the kernel has no such place. It is found out once.
///
/// libbpf relocates programs by the types of modules, too, but only for who may have the kernel
/// list its modules' types. These are files that everybody may read.
pub(crate) fn veth_skb() -> Option<u32> {
    static AT: OnceLock<Option<u32>> = OnceLock::new();
    *AT.get_or_init(|| {
        // SAFETY: there is no precondition.
        let kernel = Types(unsafe { bpf::btf__load_vmlinux_btf() });
        kernel.offset(VETH_XDP_BUFF, c"skb").or_else(|| {
            // SAFETY: the name ends, and the kernel's types stay as long as the module's.
            let veth = Types(unsafe { bpf::btf__load_module_btf(c"veth".as_ptr(), kernel.0) });
            veth.offset(VETH_XDP_BUFF, c"skb")
        })
    })
}

/// Types that libbpf has read; a null pointer where it could not.
struct Types(*mut bpf::btf);

impl Types {
    /// Returns where a member of a structure lies, in bytes.
    fn offset(&self, name: &CStr, member: &CStr) -> Option<u32> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the types were read, and the name ends.
        let id =
            unsafe { bpf::btf__find_by_name_kind(self.0, name.as_ptr(), bpf::BTF_KIND_STRUCT) };
        let id = u32::try_from(id).ok().filter(|id| *id > 0)?;
        // SAFETY: libbpf found the type, and its members stand behind it, as many as it says.
        let (members, has_bits) = unsafe {
            let of: *const bpf::btf_type = bpf::btf__type_by_id(self.0, id);
            let info = of.as_ref()?.info;
            let first = of.add(1).cast::<bpf::btf_member>();
            (slice::from_raw_parts(first, (info & 0xffff) as usize), info >> 31 != 0)
        };
        let found = members.iter().find(|m| {
            // SAFETY: libbpf has looked at the offsets of all names.
            let is = unsafe { bpf::btf__name_by_offset(self.0, m.name_off) };
            // SAFETY: a name of libbpf's ends.
            !is.is_null() && unsafe { CStr::from_ptr(is) } == member
        })?;
        let bits = if has_bits { found.offset & 0x00ff_ffff } else { found.offset };
        Some(bits / 8)
    }
}

impl Drop for Types {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: they are this value's own. A module's are dropped before the kernel's.
            unsafe { bpf::btf__free(self.0) };
        }
    }
}
