//! Who reads another part of a segment that is just being read need not open it again.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::io::Object;

/// Entries that are kept at least.
const FEW: usize = 16;

/// The segments that are being read at the moment, by their numbers in a snapshot. None is kept
/// open for longer: one that is deleted while nobody reads on gives its room back.
#[derive(Default)]
pub struct Opened(Mutex<BTreeMap<usize, Weak<dyn Object>>>);

impl Opened {
    /// Returns a segment that somebody reads, or opens it.
    pub fn get(
        &self,
        number: usize,
        open: impl FnOnce() -> io::Result<Arc<dyn Object>>,
    ) -> io::Result<Arc<dyn Object>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = lock().get(&number).and_then(Weak::upgrade) {
            return Ok(object);
        }
        let object = open()?;
        let mut opened = lock();
        if opened.len() >= FEW {
            opened.retain(|_, object| object.strong_count() > 0);
        }
        opened.insert(number, Arc::downgrade(&object));
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::{FEW, Opened};
    use crate::io::Object;

    #[test]
    fn a_segment_is_open_as_long_as_it_is_read() {
        let opened = Opened::default();
        let mut times = 0;
        let mut get = |number| {
            opened.get(number, || {
                times += 1;
                Ok(Arc::new(vec![number as u8]) as Arc<dyn Object>)
            })
        };
        let first = get(7).unwrap();
        assert!(Arc::ptr_eq(&first, &get(7).unwrap()));
        assert!(!Arc::ptr_eq(&first, &get(8).unwrap()));
        assert_eq!(Arc::strong_count(&first), 1, "nobody else keeps it");
        drop(first);
        get(7).unwrap();
        for number in 100..1000 {
            get(number).unwrap();
        }
        assert_eq!(times, 3 + 900);
        assert!(opened.0.lock().unwrap().len() <= FEW);
        assert!(opened.get(1, || Err(io::ErrorKind::NotFound.into())).is_err());
    }
}
