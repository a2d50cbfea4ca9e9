//! Whose index is believed?
//!
//! An index says which parts of a segment or capture file need not be read. So whoever writes it
//! decides what is not found, and where others may write into a directory they can put an index
//! beside somebody's file. An index is believed if it belongs to root, to the user who asks, or to
//! the owner of the file that it is of, and if nobody may write to it who may not write to that
//! file. What is not believed is as good as not there: the file is read from end to end.

use std::io;

use super::code::refused;
use crate::io::{Object, Owner};

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Fails where an index is not to be believed, and says why. `of` looks at the file that the index
/// is of, which is needed where the index alone does not decide.
pub(super) fn believe(
    index: &dyn Object,
    of: impl FnOnce() -> io::Result<Option<Owner>>,
) -> io::Result<()> {
    let Some(index) = index.state()?.owner else { return Ok(()) };
    let asks = rustix::process::geteuid().as_raw();
    if is_above_doubt(index, asks) {
        return Ok(());
    }
    let Some(file) = of()? else { return Ok(()) };
    let why = distrust(index, file, asks);
    why.map_or(Ok(()), |why| Err(refused(why)))
}

/// Returns whether what an index says of a file is believed, by the owners of both.
pub(super) fn is_believed(index: Option<Owner>, file: Option<Owner>) -> bool {
    let (Some(index), Some(file)) = (index, file) else { return true };
    let asks = rustix::process::geteuid().as_raw();
    is_above_doubt(index, asks) || distrust(index, file, asks).is_none()
}

/// Returns whether an index is believed whoever may write to its file.
fn is_above_doubt(index: Owner, asks: u32) -> bool {
    [0, asks].contains(&index.user) && index.mode & (GROUP_WRITES | OTHERS_WRITE) == 0
}

/// Returns why an index is not to be believed; `None` where it is.
fn distrust(index: Owner, file: Owner, asks: u32) -> Option<String> {
    let Owner { user, group, mode } = index;
    if ![0, asks, file.user].contains(&user) {
        return Some(format!(
            "it belongs to user {user}, who is neither root nor the file's owner"
        ));
    }
    let is_same_group =
        mode & GROUP_WRITES == 0 || file.mode & GROUP_WRITES != 0 && (group == file.group);
    let may_all = mode & OTHERS_WRITE == 0 || file.mode & OTHERS_WRITE != 0;
    (!is_same_group || !may_all)
        .then(|| "users may write to it who may not write to the file".into())
}

#[cfg(test)]
mod tests {
    use super::{Owner, distrust};

    const ASKS: u32 = 1000;

    fn owner(user: u32, group: u32, mode: u32) -> Owner {
        Owner { user, group, mode }
    }

    #[test]
    fn root_the_asker_and_the_files_owner_are_believed_and_nobody_else() {
        let file = owner(7, 7, 0o644);
        for user in [0, ASKS, 7] {
            assert_eq!(distrust(owner(user, 9, 0o644), file, ASKS), None, "{user}");
        }
        let why = distrust(owner(8, 7, 0o644), file, ASKS).unwrap();
        assert!(why.contains("belongs to user 8"), "{why}");
    }

    #[test]
    fn an_index_is_no_easier_to_write_than_its_file() {
        for (index, file, is_believed) in [
            (owner(7, 5, 0o664), owner(7, 5, 0o664), true),
            (owner(7, 5, 0o664), owner(7, 5, 0o644), false),
            (owner(7, 5, 0o664), owner(7, 6, 0o664), false),
            (owner(7, 5, 0o646), owner(7, 5, 0o644), false),
            (owner(0, 0, 0o666), owner(7, 5, 0o664), false),
            (owner(7, 5, 0o666), owner(7, 5, 0o666), true),
            (owner(7, 6, 0o640), owner(7, 5, 0o600), true),
        ] {
            assert_eq!(distrust(index, file, ASKS).is_none(), is_believed, "{index:?} {file:?}");
        }
    }
}
