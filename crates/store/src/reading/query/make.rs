//! Makes indexes of capture files of other recorders.
//!
//! A granule of such a file must be readable by itself, with nothing but what stands at the file's
//! beginning: so a file with several sections, or with interfaces that are described later, has no
//! index; nor has one that is cut or damaged, or has packets without times. All of those are
//! read from end to end, as without an index.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::slice;

use super::blocks::PieceEnd;
use super::capture_file::{BEGINNING, Begin, begin};
use super::error::Error;
use super::foreign::shown;
use super::note::Note;
use super::packet::Packet;
use super::scan::{Context, Passed, Record, Scanner};
use crate::format::index::{ForeignPacket, Identity, Maker, places};
use crate::io::{Access, Object, Paths, Storage};

/// Makes an index of each capture file at `path` that has none: beside it, or in `cache` where that
/// cannot be. `watch` is called every 128 KiB with how many bytes were indexed; where it returns
/// false, the making ends, and the file that it was at has no index. Returns a note for each file
/// of which no index can be made.
pub fn index_captures(
    path: &Path,
    cache: Option<&Path>,
    mut watch: impl FnMut(u64) -> bool,
) -> Result<Vec<Note>, Error> {
    let (mut notes, mut bytes) = (Vec::new(), 0);
    let fail = |e| Error::new(path.to_owned(), e);
    let storage = Paths::at(path, |_| ()).map_err(fail)?;
    for name in storage.list().map_err(fail)? {
        let mut goes_on = true;
        let mut add = |more| {
            bytes += more;
            goes_on = watch(bytes);
            goes_on
        };
        let path = Path::new(&name);
        match index(&storage, path, cache, &mut add) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(_) if !goes_on => break,
            Err(e) => {
                notes.push(Note::NotIndexed { segment: shown(path), why: e.to_string() });
            }
        }
    }
    Ok(notes)
}

/// Makes the index of a file. An error says why it has none.
fn index(
    storage: &dyn Storage,
    path: &Path,
    cache: Option<&Path>,
    watch: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    let object = storage.open(path.as_os_str(), Access::Ranges)?;
    let context = match begin(&*object)? {
        Begin::Pcapng => Context::default(),
        Begin::Pcap(header) => Context::pcap(&header, 0),
        Begin::Short(_) => return Err(unfit("it is cut")),
        Begin::Damaged(_, what) => return Err(unfit(what)),
        Begin::Compressed | Begin::Other => return Ok(()),
    };
    let identity = Identity::of(&*object)?;
    let places = places(path, cache);
    if identity.open_index(storage, &places).is_some_and(|mut index| index.read_all().is_ok()) {
        return Ok(());
    }
    // An index that is not believed is another's, and is left where it is.
    let is_free = |place: &PathBuf| identity.disbelief(storage, slice::from_ref(place)).is_none();
    let places: Vec<PathBuf> = places.into_iter().filter(is_free).collect();
    let mode = fs::metadata(path)?.mode();
    let mut maker = Maker::new(identity.clone(), mode, &places)?;
    take_all(&*object, context, &mut maker, watch)?;
    if Identity::of(&*object)? != identity {
        return Err(unfit("it was changed meanwhile"));
    }
    maker.finish()
}

/// Indexes all of a file.
fn take_all(
    object: &dyn Object,
    context: Context,
    maker: &mut Maker,
    watch: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    let len = object.length()?;
    let mut scanner = Scanner::default();
    let (first, mut at, mut context) = (context.head_len(), context.head_len(), context);
    loop {
        let mut is_timeless = false;
        let passed =
            scanner.read(object, &context, at..len, BEGINNING, &mut |_| Some(0), |_, record| {
                is_timeless |= record.is_timeless;
                maker.builder.foreign_packet(at, &of_index(record));
            })?;
        if is_timeless {
            return Err(unfit("it has packets without a time"));
        }
        for unseen in &passed.unseen {
            let (first_ns, last_ns) = (unseen.first_ns as i64, unseen.last_ns as i64);
            maker.builder.foreign_time(at, first_ns, last_ns);
        }
        let is_described = !passed.context.has_head_of(&context);
        refuse(&passed, is_described && at > first || passed.sections > 1)?;
        let granule_len = (passed.end - at) as usize;
        // The scanner passes over what is longer, which holds no packet.
        if let Some(bytes) = scanner.bytes().get(..granule_len).filter(|b| !b.is_empty()) {
            maker.builder.foreign_granule(at, bytes);
        }
        if maker.builder.is_full() {
            maker.flush()?;
        }
        if passed.stop == PieceEnd::End {
            return Ok(());
        }
        if !watch(passed.end - at) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        at = passed.end;
        context = passed.context;
    }
}

fn of_index<'a>(record: &Record<'a>) -> ForeignPacket<'a> {
    let Packet { time_ns, link, dropped, frame, .. } = record.packet;
    let interface = record.id;
    ForeignPacket { time_ns, interface, link, dropped, frame }
}

/// Fails where a file cannot be indexed.
fn refuse(passed: &Passed, is_described_late: bool) -> io::Result<()> {
    match passed.stop {
        PieceEnd::Cut => Err(unfit("it is cut, or being written")),
        PieceEnd::Damaged(what) => Err(unfit(what)),
        _ if is_described_late => {
            Err(unfit("it has several sections, or interfaces that are described late"))
        }
        PieceEnd::More | PieceEnd::End => Ok(()),
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
