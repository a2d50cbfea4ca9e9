//! Changing several things together: either all of them change or none does.
//!
//! The kernel changes one hook at a time, and may refuse any of them. Whoever asked for a change of
//! several hooks is told that it was done or that it was not, never that it was done in part. This
//! module holds the order of doing and undoing; what is changed, and how, is the caller's.

/// Makes one change after the other. At the first that fails, undoes those that were made, the last
/// one first, and returns the error.
///
/// `change` gets `on`, what is changed, and one of `items`; it returns what `undo` needs to bring
/// back what was there before. A change that fails must leave its own item as it was.
///
/// # Errors
/// The error of the change that failed.
pub fn change_all<On: ?Sized, Item, Before, E>(
    on: &mut On,
    items: impl IntoIterator<Item = Item>,
    mut change: impl FnMut(&mut On, Item) -> Result<Before, E>,
    mut undo: impl FnMut(&mut On, Before),
) -> Result<(), E> {
    let mut made = Vec::new();
    for item in items {
        match change(on, item) {
            Ok(before) => made.push(before),
            Err(e) => {
                while let Some(before) = made.pop() {
                    undo(on, before);
                }
                return Err(e);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::change_all;

    /// Sets each to `to`, unless it is `refused`; writes down what is done.
    fn set_all(
        values: &mut [u32],
        to: u32,
        refused: u32,
        log: &mut Vec<String>,
    ) -> Result<(), u32> {
        let indices = 0..values.len();
        let log = std::cell::RefCell::new(log);
        change_all(
            values,
            indices,
            |values, at| {
                let before = values[at];
                if before == refused {
                    return Err(before);
                }
                values[at] = to;
                log.borrow_mut().push(format!("set {at}"));
                Ok((at, before))
            },
            |values, (at, before)| {
                values[at] = before;
                log.borrow_mut().push(format!("undo {at}"));
            },
        )
    }

    #[test]
    fn all_change_or_all_are_as_before() {
        let (mut values, mut log) = (vec![1, 2, 3, 4], Vec::new());
        assert_eq!(set_all(&mut values, 9, 0, &mut log), Ok(()));
        assert_eq!(values, [9, 9, 9, 9]);
        assert_eq!(log, ["set 0", "set 1", "set 2", "set 3"]);

        for (refused, expected) in [
            (1, &[][..]),
            (3, &["set 0", "set 1", "undo 1", "undo 0"][..]),
            (4, &["set 0", "set 1", "set 2", "undo 2", "undo 1", "undo 0"][..]),
        ] {
            let (mut values, mut log) = (vec![1, 2, 3, 4], Vec::new());
            assert_eq!(set_all(&mut values, 9, refused, &mut log), Err(refused));
            assert_eq!(values, [1, 2, 3, 4], "{refused} refuses");
            assert_eq!(log, expected, "{refused} refuses");
        }
        assert_eq!(set_all(&mut [], 9, 0, &mut Vec::new()), Ok(()));
    }
}
