//! Packet-size distributions: the two-stage model against the thesis' formulas, drawing against the
//! model, every format there and back, and what is refused.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tapdeck_packet::link::LinkType;
use tapdeck_traffic::dist::{
    Cells, Counts, DistInput, Error, Format, Length, Options, Parameters, Tally, TwoStage, plot,
    read, write_dist, write_pktgen, write_sizes, write_toml,
};
use tapdeck_traffic::sampling::SplitMix64;

type Sizes = BTreeMap<u16, u64>;

fn counts(sizes: &Sizes) -> Counts {
    let mut counts = Counts::new();
    for (size, packets) in sizes {
        counts.add(*size, *packets).expect("they fit");
    }
    counts
}

/// Distributions as networks have them: many packets of few sizes, few of many.
fn any_sizes() -> impl Strategy<Value = Sizes> {
    let few = prop::collection::btree_map(1..=2000u16, 1..1_000_000u64, 0..12);
    let many = prop::collection::btree_map(1..=2000u16, 1..300u64, 1..300);
    (few, many).prop_map(|(mut few, many)| {
        few.extend(many);
        few
    })
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let max_size = prop_oneof![Just(None), (1..2500u16).prop_map(Some)];
    let bound = prop_oneof![Just(0.002), Just(0.02), 0.0001..1.0f64];
    (bound, prop_oneof![Just(20), 1..400u16], prop_oneof![Just(1000), 1..5000u32], max_size)
        .prop_map(|(outlier_bound, bin_width, precision, max_size)| Parameters {
            outlier_bound,
            bin_width,
            precision,
            max_size,
        })
}

/// What the thesis' formulas say, (4.1) to (4.9), each written down as it stands there: the
/// probabilities of outliers and of bins.
fn thesis(c: &Sizes, p: &Parameters, n_ps: u16) -> (BTreeMap<u16, f64>, BTreeMap<u16, f64>) {
    let c_i = |i: u32| c.get(&(i as u16)).map_or(0.0, |n| *n as f64);
    let n_ps = u32::from(n_ps);
    let c_all: f64 = (1..=n_ps).map(c_i).sum();
    let omega: Vec<u32> =
        (1..=n_ps).filter(|i| c_i(*i) > 0.0 && c_i(*i) / c_all >= p.outlier_bound).collect();
    let sigma = u32::from(p.bin_width);
    let (mut outliers, mut bins) = (BTreeMap::new(), BTreeMap::new());
    for j in 0..=n_ps / sigma {
        let inside = |i: &u32| j * sigma <= *i && *i < (j + 1) * sigma;
        let omega_j: Vec<u32> = omega.iter().copied().filter(inside).collect();
        let n_omega_j = omega_j.len() as f64;
        let not_outliers = (1..=n_ps).filter(inside).filter(|i| !omega_j.contains(i));
        let mut b_j: f64 = not_outliers.map(c_i).sum();
        let avg_j = if b_j > 0.0 { b_j / (f64::from(sigma) - n_omega_j) } else { 0.0 };
        for i in omega_j {
            outliers.insert(i as u16, (c_i(i) - avg_j) / c_all);
        }
        b_j += n_omega_j * avg_j;
        if b_j > 0.0 {
            bins.insert((j * sigma) as u16, b_j / c_all);
        }
    }
    (outliers, bins)
}

fn is_within_a_cell(
    cells: &[(u16, u32)],
    expected: &BTreeMap<u16, f64>,
    scale: f64,
) -> Result<(), TestCaseError> {
    let cells: BTreeMap<u16, u32> = cells.iter().copied().collect();
    prop_assert!(cells.keys().all(|size| expected.contains_key(size)));
    for (size, p) in expected {
        let n = f64::from(cells.get(size).copied().unwrap_or(0));
        prop_assert!((n - p * scale).abs() < 1.0 + 1e-6, "{size}: {n} cells for {}", p * scale);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_cells_are_those_of_the_thesis(c in any_sizes(), p in any_parameters()) {
        let source = counts(&c);
        let max_size = p.max_size.unwrap_or(*c.keys().last().expect("not empty").max(&1500));
        let model = match TwoStage::new(&source, &p) {
            Err(Error::AllAbove { .. }) => {
                prop_assert!(c.keys().all(|size| *size > max_size));
                return Ok(());
            }
            model => model.expect("there are packets"),
        };
        let Cells { outliers, bins, precision, .. } = model.cells();
        prop_assert_eq!(model.cells().max_size, max_size);
        let (want_outliers, want_bins) = thesis(&c, &p, max_size);
        let precision = f64::from(*precision);
        is_within_a_cell(outliers, &want_outliers, precision)?;
        is_within_a_cell(bins, &want_bins, precision)?;
        let sum = |of: &[(u16, u32)]| of.iter().map(|(_, n)| n).sum::<u32>();
        prop_assert_eq!(sum(bins) + sum(outliers), p.precision);
        prop_assert!(outliers.iter().chain(bins).all(|(_, n)| *n > 0));
    }

    #[test]
    fn the_model_draws_only_what_can_occur_and_all_of_it(c in any_sizes(), p in any_parameters()) {
        let Ok(model) = TwoStage::new(&counts(&c), &p) else { return Ok(()) };
        let probabilities = model.probabilities();
        let total: f64 = probabilities.iter().map(|(_, p)| p).sum();
        prop_assert!((total - 1.0).abs() < 1e-9, "{total}");
        let max_size = model.cells().max_size;
        prop_assert!(probabilities.iter().all(|(size, _)| *size >= 1 && *size <= max_size));
        let mut random = SplitMix64::new(1);
        let arrays = Arrays::of(model.cells());
        for _ in 0..200 {
            let size = arrays.draw(&mut random);
            prop_assert!(probabilities.binary_search_by_key(&size, |(size, _)| *size).is_ok());
        }
    }

    #[test]
    fn a_fine_model_is_near_its_source(c in any_sizes()) {
        let source = counts(&c);
        let fine = Parameters { bin_width: 1, precision: 1_000_000, ..Parameters::default() };
        let model = TwoStage::new(&source, &fine).expect("there are packets");
        // Each of at most 2,000 entries is off by less than a cell.
        prop_assert!(source.ks_distance(&model.probabilities()) < 0.002);
    }

    #[test]
    fn a_models_counts_stand_as_its_probabilities(c in any_sizes(), p in any_parameters()) {
        let Ok(model) = TwoStage::new(&counts(&c), &p) else { return Ok(()) };
        let whole = model.counts().expect("they fit");
        prop_assert!(whole.ks_distance(&model.probabilities()) < 1e-9);
    }

    #[test]
    fn every_format_goes_there_and_back(
        c in prop::collection::btree_map(1..=u16::MAX, 1..1u64 << 40, 1..100), ip: bool
    ) {
        let source = counts(&c);
        let length = if ip { Length::Ip } else { Length::Frame };
        let parameters = Parameters { bin_width: 500, ..Parameters::default() };
        let model = TwoStage::new(&source, &parameters).expect("there are packets");
        for separator in [' ', ',', '\t', ';'] {
            let mut text = Vec::new();
            write_dist(&mut text, &source, length, separator).expect("memory");
            let options = Options { separator: Some(separator), ..Options::default() };
            let back = read(&text[..], options).expect("it was written so");
            prop_assert_eq!((back.counts, back.length), (source.clone(), Some(length)));
        }
        let mut text = Vec::new();
        write_toml(&mut text, &source, length, Some(&model)).expect("memory");
        let back = read(&text[..], Options::default()).expect("it was written so");
        prop_assert_eq!(back.format, Format::Toml);
        prop_assert_eq!((back.counts, back.length), (source.clone(), Some(length)));
        prop_assert_eq!(back.model, Some(model.clone()));
        for surround in [false, true] {
            let mut text = Vec::new();
            write_pktgen(&mut text, &model, length, surround).expect("memory");
            let back = read(&text[..], Options::default()).expect("it was written so");
            prop_assert_eq!(back.format, Format::Pktgen);
            prop_assert_eq!(back.length, surround.then_some(length));
            prop_assert!(back.counts.ks_distance(&model.probabilities()) < 1e-9);
            let (back, mut cells) = (back.model.expect("a model"), model.cells().clone());
            cells.outlier_bound = None;
            prop_assert_eq!(back.cells(), &cells);
        }
    }

    #[test]
    fn sizes_are_counted_however_they_stand(
        sizes in prop::collection::vec(1..=u16::MAX, 3..200), per_line in 3..9usize
    ) {
        let mut lines = Vec::new();
        write_sizes(&mut lines, sizes.iter().copied()).expect("memory");
        let words: Vec<String> = sizes.iter().map(u16::to_string).collect();
        let wide: Vec<String> = words.chunks(per_line).map(|line| line.join(" \t")).collect();
        let (a, b) = (read_text(&String::from_utf8(lines).expect("text")), read_text(&wide.join("\r\n")));
        let (a, b) = (a.expect("sizes"), b.expect("sizes"));
        prop_assert_eq!(a.format, Format::Sizes);
        prop_assert_eq!(a.counts.packets(), sizes.len() as u64);
        prop_assert!(sizes.iter().all(|s| a.counts.get(*s) == sizes.iter().filter(|t| *t == s).count() as u64));
        prop_assert_eq!(a.counts, b.counts);
    }

    #[test]
    fn the_ks_distance_is_the_largest_gap_between_the_curves(a in any_sizes(), b in any_sizes()) {
        let (one, other) = (counts(&a), counts(&b));
        let up_to = |of: &Sizes, size: u16| -> f64 {
            let part: u64 = of.range(..=size).map(|(_, n)| n).sum();
            part as f64 / of.values().sum::<u64>() as f64
        };
        let gaps = (1..=2000).map(|size| (up_to(&a, size) - up_to(&b, size)).abs());
        let largest = gaps.fold(0.0, f64::max);
        prop_assert!((one.ks_distance(&other.probabilities()) - largest).abs() < 1e-9);
        prop_assert!((other.ks_distance(&one.probabilities()) - largest).abs() < 1e-9);
        prop_assert!(one.ks_distance(&one.probabilities()) < 1e-12);
    }

    #[test]
    fn counts_add_up(a in any_sizes(), b in any_sizes(), cut in 1..2000u16) {
        let mut both = counts(&a);
        both.merge(&counts(&b)).expect("they fit");
        let bytes = |of: &Sizes| of.iter().map(|(size, n)| u64::from(*size) * n).sum::<u64>();
        let packets = |of: &Sizes| of.values().sum::<u64>();
        prop_assert_eq!(both.packets(), packets(&a) + packets(&b));
        let mean = (bytes(&a) + bytes(&b)) as f64 / both.packets() as f64;
        prop_assert!((both.mean().expect("packets") - mean).abs() < 1e-6);
        prop_assert_eq!(both.up_to(cut).packets() + both.above(cut), both.packets());
        prop_assert!(both.up_to(cut).iter().all(|(size, n)| size <= cut && n == both.get(size)));
        let top = both.top(5);
        prop_assert!(top.windows(2).all(|w| w[0].packets >= w[1].packets && w[0].cumulative < w[1].cumulative));
        prop_assert_eq!(top[0].packets, both.iter().map(|(_, n)| n).max().expect("packets"));
    }
}

/// The thesis' example of a distribution in small: three outliers and noise.
fn example() -> Counts {
    let mut counts = Counts::new();
    for (size, packets) in [(40, 20_000), (552, 5_000), (1500, 30_000)] {
        counts.add(size, packets).expect("they fit");
    }
    for size in 40..=1500 {
        counts.add(size, 1 + u64::from(size % 7)).expect("they fit");
    }
    counts
}

/// The generator of the thesis (section 4.2.2, figure 4.3), to the letter: two arrays, filled cell
/// by cell.
struct Arrays {
    first: Vec<Option<u16>>,
    second: Vec<u16>,
    bin_width: u16,
    max_size: u16,
}

impl Arrays {
    fn of(cells: &Cells) -> Self {
        let fill = |entries: &[(u16, u32)]| -> Vec<u16> {
            entries.iter().flat_map(|(size, n)| vec![*size; *n as usize]).collect()
        };
        let mut first: Vec<Option<u16>> = fill(&cells.outliers).into_iter().map(Some).collect();
        first.resize(cells.precision as usize, None);
        let Cells { bin_width, max_size, .. } = *cells;
        Self { first, second: fill(&cells.bins), bin_width, max_size }
    }

    fn draw(&self, random: &mut SplitMix64) -> u16 {
        let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
        if let Some(size) = self.first[below(self.first.len())] {
            return size;
        }
        // The jitter, cut to the sizes that can occur.
        let bin = self.second[below(self.second.len())];
        let sizes: Vec<u16> = (bin.max(1)..=self.max_size.min(bin + self.bin_width - 1)).collect();
        sizes[below(sizes.len())]
    }
}

#[test]
fn draws_follow_the_models_probabilities() {
    const DRAWS: u32 = 1_000_000;
    let model = TwoStage::new(&example(), &Parameters::default()).expect("there are packets");
    let arrays = Arrays::of(model.cells());
    let mut random = SplitMix64::new(2005);
    let mut drawn = Counts::new();
    for _ in 0..DRAWS {
        drawn.add(arrays.draw(&mut random), 1).expect("they fit");
    }
    let probabilities = model.probabilities();
    let chi: f64 = probabilities
        .iter()
        .map(|(size, p)| {
            let expected = p * f64::from(DRAWS);
            assert!(expected > 5.0, "chi-square needs more draws of size {size}");
            (drawn.get(*size) as f64 - expected).powi(2) / expected
        })
        .sum();
    // The 0.999 quantile of chi-square, by Wilson and Hilferty.
    let k = (probabilities.len() - 1) as f64;
    let quantile = k * (1.0 - 2.0 / (9.0 * k) + 3.09 * (2.0 / (9.0 * k)).sqrt()).powi(3);
    assert!(chi < quantile, "{chi} with {k} degrees of freedom, at most {quantile}");
}

fn read_text(text: &str) -> Result<DistInput, Error> {
    read(text.as_bytes(), Options::default())
}

#[test]
fn bad_text_is_refused_with_its_line() {
    let pktgen = "dist 10 20 1500 1 1\noutl 60 5\n";
    let toml = "length = \"frame\"\npackets = 5\n";
    for (text, said) in [
        ("", "is empty"),
        ("# nothing\n\n", "is empty"),
        ("60 0\n1514 0\n", "all its counts are 0"),
        ("60 5\n\n# c\n61 -5\n", "line 4: -5 is negative"),
        ("60 5\n61 five\n", "line 2: \"five\" is no whole number"),
        ("60 5\n61 1e3\n", "line 2: \"1e3\" is no whole number"),
        ("sixty 5\n", "line 1: \"sixty\" is no whole number"),
        ("60 5\n61 18446744073709551616\n", "line 2: the count 18446744073709551616 does not fit"),
        (
            "60 5\n61 18446744073709551611\n",
            "line 2: the sum of all counts, with this one of size 61",
        ),
        ("0 5\n", "line 1: size 0 is not within 1 to 65535"),
        ("60 5\n65536 5\n", "line 2: size 65536 is not within"),
        ("60 5\n60\n", "line 2: a line of a distribution is a size and a count, not 1 fields"),
        ("60\n-1\n", "line 2: -1 is negative"),
        ("60\n99999999999999999999\n", "line 2: size 99999999999999999999 is not within"),
        ("hello world\n", "line 1: \"hello world\" is no size"),
        ("60\n\u{0}\n", "line 2: holds bytes that are neither text"),
        ("# length: feet\n60 1\n", "line 1: length \"feet\" is neither"),
        (
            "# length: ip\n60 1\n# length: frame\n60 1\n",
            "line 3: the sizes above it are those of IP packets",
        ),
        ("outl 60 5\n", "line 1: the command dist must come before"),
        ("dist 10 20 1500 1 1\ndist 10 20 1500 1 1\n", "line 2: there is a dist command above"),
        ("dist 10 20 1500 1\n", "none of the commands"),
        ("pgset dist 10 20 1500 1 1\n", "none of the commands"),
        (pktgen, "hist: dist says 1, there are 0"),
        (
            "dist 10 20 1500 1 0\noutl 60 5\n",
            "fewer cells than the precision, and there are no bins",
        ),
        ("dist 10 20 1500 1 0\noutl 60 11\n", "more cells than the precision"),
        ("dist 10 20 1500 1 0\noutl 1501 10\n", "outl or hist 1501"),
        ("dist 10 20 1500 2 0\noutl 60 5\noutl 60 5\n", "outl or hist 60"),
        ("dist 10 20 1500 0 1\nhist 61 10\n", "outl or hist 61"),
        ("dist 10 20 1500 0 1\nhist 1520 10\n", "outl or hist 1520"),
        ("dist 0 20 1500 0 1\nhist 60 10\n", "the precision is from 1"),
        ("dist 10 20 70000 0 1\n", "line 1: the number 70000 is too large"),
        (
            &format!("{toml}sizes = [[60, 4]]\n"),
            "line 2: packets = 5, but the sizes' counts sum to 4",
        ),
        (&format!("{toml}sizes = [[0, 5]]\n"), "line 3: size 0 is not within"),
        (&format!("{toml}sizes = [[60, -5]]\n"), "line 3: "),
        (&format!("{toml}sizes = [[60, 5]]\ncolour = 3\n"), "line 4: unknown field `colour`"),
        (&format!("{toml}sizes = [[60, 5\n"), "line 3: "),
        ("length = \"frame\"\npackets = 0\nsizes = []\n", "all its counts are 0"),
    ] {
        let e = read_text(text).expect_err(text);
        let shown = e.to_string();
        assert!(shown.contains(said), "{text:?}: {shown:?}, not {said:?}");
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }
}

#[test]
fn a_line_without_end_takes_no_memory_without_end() {
    let zeros = std::io::Read::take(std::io::repeat(b'1'), 1 << 40);
    let e = read(zeros, Options::default()).expect_err("no number is so long");
    assert!(e.to_string().contains("longer than 16 MiB"), "{e}");
}

#[test]
fn what_is_good_at_the_edges_is_taken() {
    let zero_line = read_text("59 0\n60 18446744073709551615\n").expect("it fits to the last");
    assert_eq!(zero_line.counts.packets(), u64::MAX);
    let twice = read_text("# length: ip\n60 1\n# length: ip\n60 2\n").expect("two files in one");
    assert_eq!((twice.counts.get(60), twice.length), (3, Some(Length::Ip)));
    // Cells that were rounded so that the second array is not full.
    let theirs = "dist 1000 20 1500 1 2\noutl 40 179\nhist 40 91\nhist 1500 9\nflag PKTSIZE_REAL\n";
    let model = read_text(theirs).expect("createDist writes so").model.expect("a model");
    let p: BTreeMap<u16, f64> = model.probabilities().into_iter().collect();
    assert!((p[&1500] - 0.821 * 0.09).abs() < 1e-9, "{}", p[&1500]);
    assert!((p[&41] - 0.821 * 0.91 / 20.0).abs() < 1e-9, "{}", p[&41]);
    assert!((p[&40] - 0.179 - p[&41]).abs() < 1e-9, "{}", p[&40]);
    // TOML promises 63 bits; this one keeps all 64.
    let mut text = Vec::new();
    write_toml(&mut text, &zero_line.counts, Length::Frame, None).expect("memory");
    let back = read(&text[..], Options::default()).expect("it was written so");
    assert_eq!(back.counts, zero_line.counts);
}

#[test]
fn lengths_are_not_mixed() {
    let asked = Options { length: Some(Length::Frame), ..Options::default() };
    let e = read(&b"# length: ip\n60 1\n"[..], asked).expect_err("they differ");
    assert!(e.to_string().contains("IP packets, not of frames"), "{e}");
    assert!(e.to_string().contains("--length ip"), "{e}");
}

const IPV4: [u8; 20] = [0x45, 0, 0x02, 0x28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
const IPV6: [u8; 8] = [0x60, 0, 0, 0, 0x01, 0xf4, 17, 64];
const MACS: [u8; 12] = [2; 12];

fn ip_length(link: u16, pieces: &[&[u8]]) -> Tally {
    let mut tally = Tally::new(Length::Ip);
    tally.packet(LinkType(link), 9000, &pieces.concat()).expect("a known link type");
    tally
}

#[test]
fn ip_packets_are_found_behind_every_link_layer() {
    let cooked: [u8; 14] = [0; 14];
    let cooked2: [u8; 18] = [0; 18];
    for (link, header4, header6) in [
        (1, [&MACS[..], &[8, 0]].concat(), [&MACS[..], &[0x86, 0xdd]].concat()),
        (
            1,
            [&MACS[..], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]].concat(),
            [&MACS[..], &[0x81, 0, 0, 2, 0x86, 0xdd]].concat(),
        ),
        (0, vec![2, 0, 0, 0], vec![0, 0, 0, 30]),
        (108, vec![0, 0, 0, 2], vec![0, 0, 0, 24]),
        (9, vec![0xff, 3, 0, 0x21], vec![0, 0x57]),
        (12, vec![], vec![]),
        (14, vec![], vec![]),
        (101, vec![], vec![]),
        (113, [&cooked[..], &[8, 0]].concat(), [&cooked[..], &[0x86, 0xdd]].concat()),
        (276, [&[8, 0], &cooked2[..]].concat(), [&[0x86, 0xdd], &cooked2[..]].concat()),
    ] {
        assert_eq!(ip_length(link, &[&header4, &IPV4]).counts.get(552), 1, "IPv4 on {link}");
        assert_eq!(ip_length(link, &[&header6, &IPV6]).counts.get(540), 1, "IPv6 on {link}");
        // Every way in which the capture may have cut it ends well.
        for whole in [[&header4[..], &IPV4].concat(), [&header6[..], &IPV6].concat()] {
            for end in 0..whole.len() {
                let tally = ip_length(link, &[&whole[..end]]);
                assert_eq!(tally.counts.packets() + tally.left_out.not_ip, 1, "{link}, {end}");
            }
        }
    }
    assert_eq!(ip_length(228, &[&IPV4]).counts.get(552), 1);
    assert_eq!(ip_length(229, &[&IPV6]).counts.get(540), 1);
}

#[test]
fn what_is_no_ip_packet_is_left_out_and_told() {
    let arp = ip_length(1, &[&MACS, &[8, 6], &IPV4]);
    assert_eq!((arp.counts.packets(), arp.left_out.not_ip), (0, 1));
    let short_header = ip_length(101, &[&[0x45, 0, 0, 19]]);
    assert_eq!(short_header.left_out.not_ip, 1);
    // A segment that Linux has yet to cut, a jumbogram, and 40 bytes more than 16 bits hold.
    let segment = ip_length(101, &[&[0x45, 0, 0, 0]]);
    let jumbo = ip_length(101, &[&[0x60, 0, 0, 0, 0, 0, 0, 64]]);
    let long = ip_length(101, &[&[0x60, 0, 0, 0, 0xff, 0xff, 17, 64]]);
    for tally in [segment, jumbo, long] {
        assert_eq!((tally.counts.packets(), tally.left_out.no_size), (0, 1));
    }
    let mut frames = Tally::new(Length::Frame);
    for len in [0, 1, 65_535, 65_536, 65_550] {
        frames.packet(LinkType(147), len, &[]).expect("frames of any kind");
    }
    assert_eq!((frames.counts.packets(), frames.left_out.no_size), (2, 3));
    let e = Tally::new(Length::Ip).packet(LinkType(147), 60, &[]).expect_err("link type of a user");
    assert!(
        e.to_string().contains("link type 147") && e.to_string().contains("--length frame"),
        "{e}"
    );
}

#[test]
fn a_plot_has_axes_with_units_a_legend_and_both_curves() {
    let source = example();
    let model = TwoStage::new(&source, &Parameters::default()).expect("there are packets");
    let (source, model) = (source.probabilities(), model.probabilities());
    let svg = plot::svg("Sizes of <a> & \"b\"", Length::Ip, &source, &model).expect("it draws");
    let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
    let texts: Vec<&str> = document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    for text in [
        "Sizes of <a> & \"b\"",
        "IP packet size, bytes",
        "share of packets, %",
        "packets up to this size, %",
        "source",
        "two-stage model",
    ] {
        assert!(texts.contains(&text), "{text:?} is not in {texts:?}");
    }
    let lines = document.descendants().filter(|n| n.has_tag_name("polyline")).count();
    assert!(lines >= 4, "{lines} lines");
    // One size alone has a picture too.
    plot::svg("one", Length::Frame, &[(60, 1.0)], &[(60, 1.0)]).expect("it draws");
}
