//! The ring's arithmetic: the code of `bpf/ring.h`, which the hook programs run, compiled for user
//! space.

mod c {
    unsafe extern "C" {
        pub safe fn tapdeck_fits(word: u64, len: u32, block_bytes: u32) -> i32;
        pub safe fn tapdeck_next_is_free(word: u64, released: u32, nblocks: u32) -> i32;
        pub safe fn tapdeck_next_block(word: u64, epoch: u32, len: u32) -> u64;
        pub safe fn tapdeck_word(block: u32, epoch: u32, bytes: u32) -> u64;
        pub safe fn tapdeck_word_block(word: u64) -> u32;
        pub safe fn tapdeck_word_epoch(word: u64) -> u32;
        pub safe fn tapdeck_word_bytes(word: u64) -> u32;
        pub safe fn tapdeck_commit(reserved: u32, frame: u32, packets: u32) -> u64;
        pub safe fn tapdeck_is_complete(commit: u64, block_bytes: u32) -> i32;
        pub safe fn tapdeck_wakes(block: u32, released: u32, awake: u32) -> i32;
        #[cfg(test)]
        pub safe fn tapdeck_shed_by_fill(used: u32, nblocks: u32, most: u32, now: u32) -> u32;
        #[cfg(test)]
        pub safe fn tapdeck_shed_saves(whole: u32, keep: u32, option: u32) -> u32;
        #[cfg(test)]
        pub safe static tapdeck_layout: [u32; 33];
        #[cfg(test)]
        pub safe static tapdeck_params_layout: [u32; 31];
        #[cfg(test)]
        pub safe static tapdeck_serve_layout: [u32; 34];
    }
}

/// Returns whether a reservation of `len` bytes fits into the block that the word has open.
pub fn fits(word: u64, len: u32, block_bytes: u32) -> bool {
    c::tapdeck_fits(word, len, block_bytes) != 0
}

/// Returns whether the block after the open one may be used; it may not while the reader holds its
/// slot.
pub fn next_is_free(word: u64, released: u32, nblocks: u32) -> bool {
    c::tapdeck_next_is_free(word, released, nblocks) != 0
}

/// Returns the word that closes the open block and reserves `len` bytes of the next.
pub fn next_block(word: u64, epoch: u32, len: u32) -> u64 {
    c::tapdeck_next_block(word, epoch, len)
}

/// Makes a reservation word of its parts.
pub fn word(block: u32, epoch: u32, bytes: u32) -> u64 {
    c::tapdeck_word(block, epoch, bytes)
}

/// Returns the number of the block that the word has open.
pub fn word_block(word: u64) -> u32 {
    c::tapdeck_word_block(word)
}

/// Returns the epoch of the block that the word has open.
pub fn word_epoch(word: u64) -> u32 {
    c::tapdeck_word_epoch(word)
}

/// Returns how many bytes are reserved in the block that the word has open.
pub fn word_bytes(word: u64) -> u32 {
    c::tapdeck_word_bytes(word)
}

/// Returns what a packet adds to the commit counter of its block.
pub fn commit(reserved: u32, frame: u32, packets: u32) -> u64 {
    c::tapdeck_commit(reserved, frame, packets)
}

/// Returns whether a block is complete whose commit counter has become this.
pub fn is_complete(commit: u64, block_bytes: u32) -> bool {
    c::tapdeck_is_complete(commit, block_bytes) != 0
}

/// Returns whether the reader is to be woken for a block that has just become complete.
pub fn wakes(block: u32, released: u32, awake: bool) -> bool {
    c::tapdeck_wakes(block, released, awake.into()) != 0
}

/// Returns how many bytes of a packet are kept where so many blocks of a ring are in use, 0 for all
/// of them; `most` is what is kept while packets are shed, and `now` whether they are.
#[cfg(test)]
pub fn shed_by_fill(used: u32, nblocks: u32, most: u32, now: u32) -> u32 {
    c::tapdeck_shed_by_fill(used, nblocks, most, now)
}

/// Returns whether a packet of which `whole` bytes would be kept takes less room where `keep` are
/// kept, with an option of so many bytes that tells of it.
#[cfg(test)]
pub fn shed_saves(whole: u32, keep: u32, option: u32) -> bool {
    c::tapdeck_shed_saves(whole, keep, option) != 0
}

/// Sizes, offsets and constants as the C compiler has them, in the order of
/// `bpf/ring_user.c`.
#[cfg(test)]
pub fn layout() -> [u32; 33] {
    c::tapdeck_layout
}

/// Sizes and offsets of what programs are told, in the order of `bpf/ring_user.c`.
#[cfg(test)]
pub fn params_layout() -> [u32; 31] {
    c::tapdeck_params_layout
}

/// Sizes and offsets of what programs of groups share with user space, in the order of
/// `bpf/serve_user.c`.
#[cfg(test)]
pub fn serve_layout() -> [u32; 34] {
    c::tapdeck_serve_layout
}
