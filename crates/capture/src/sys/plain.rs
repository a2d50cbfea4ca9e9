//! Structures as bytes, for programs that read them as C does.

/// A structure that is nothing but integers, and arrays of them, without a gap between.
///
/// # Safety
/// The type is `repr(C)`, each of its bytes belongs to an integer, and any bytes are a valid value.
pub(super) unsafe trait Plain: Copy {}

/// Returns the bytes of a structure, as they lie in memory.
pub(super) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the bytes are those of a value that is borrowed as long as they are, and none of them
    // is padding, which might hold nothing (`Plain`).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
