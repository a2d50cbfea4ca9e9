//! A chart in one line of text: bars, each an eighth of a line high or more.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns a bar for each value, the highest for the largest value. A value above 0 always shows.
pub fn bars(values: &[f64]) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match (value / most * 8.0).ceil() as usize {
        _ if *value <= 0.0 => ' ',
        eighths => BARS[eighths.clamp(1, 8) - 1],
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::bars;

    #[test]
    fn bars_grow_with_their_values() {
        assert_eq!(bars(&[0.0, 0.001, 1.0, 1.1, 4.0, 8.0]), " ▁▁▂▄█");
        assert_eq!(bars(&[0.0, 0.0]), "  ");
        assert_eq!(bars(&[3.0]), "█");
        assert_eq!(bars(&[]), "");
    }
}
