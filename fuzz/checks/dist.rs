//! What holds when any bytes at all are read as a distribution. Shared by the fuzz target and by
//! `crates/traffic/tests/dist_mutations.rs`, which runs it on the stable compiler.

use tapdeck_traffic::dist::{
    DistInput, Error, Format, Length, Options, read, write_dist, write_pktgen, write_sizes,
    write_toml,
};

pub const FORMATS: [Format; 4] = [Format::Sizes, Format::Dist, Format::Pktgen, Format::Toml];

/// Reads `data` as each kind of text and as what it seems to be. Returns how many readers took
/// it.
///
/// # Panics
/// If a reader breaks one of its promises.
pub fn check(data: &[u8]) -> usize {
    let _ = read(data, Options::default());
    FORMATS.into_iter().filter(|format| check_as(*format, data).is_ok()).count()
}

/// Reads `data` as one format. What was read and is written is read back equal.
pub fn check_as(format: Format, data: &[u8]) -> Result<(), Error> {
    let options = Options { format: Some(format), ..Options::default() };
    let source = read(data, options)?;
    let sum: u64 = source.counts.iter().map(|(_, packets)| packets).sum();
    assert!(sum > 0 && sum == source.counts.packets(), "a total that is not the sum");
    assert!(source.counts.iter().all(|(size, _)| size > 0), "packets of no bytes");

    let written = write(format, &source);
    let again = read(&written[..], options)
        .unwrap_or_else(|e| panic!("{}: {e}", String::from_utf8_lossy(&written)));
    assert_eq!(again.counts, source.counts);
    assert_eq!(again.model, source.model);
    if format != Format::Sizes {
        assert_eq!(again.length, Some(source.length.unwrap_or(Length::Frame)));
    }
    // What we write is told by how it begins.
    let detected = read(&written[..], Options::default()).expect("read above");
    assert_eq!(detected.format, format);
    assert_eq!(detected.counts, source.counts);
    Ok(())
}

fn write(format: Format, source: &DistInput) -> Vec<u8> {
    let mut out = Vec::new();
    let length = source.length.unwrap_or(Length::Frame);
    let counts = &source.counts;
    match format {
        Format::Trace => unreachable!("no text"),
        Format::Sizes => {
            let each = counts.iter().flat_map(|(size, n)| std::iter::repeat_n(size, n as usize));
            write_sizes(&mut out, each)
        }
        Format::Dist => write_dist(&mut out, counts, length, ' '),
        Format::Pktgen => {
            let model = source.model.as_ref().expect("pktgen's commands are a model");
            write_pktgen(&mut out, model, length, true)
        }
        Format::Toml => write_toml(&mut out, counts, length, source.model.as_ref()),
    }
    .expect("memory takes everything, and TOML what came out of TOML");
    out
}
