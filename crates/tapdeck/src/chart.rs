//! Charts of text: bars beside each other, each an eighth of a line high or more, in one line or in
//! several.

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

/// Returns a chart of so many rows, the highest first. Without `eighths` all is ASCII, and a row
/// has a sign or none.
pub fn area(values: &[f64], rows: usize, eighths: bool) -> Vec<String> {
    let most = values.iter().copied().fold(0.0, f64::max);
    let row = |row: usize| {
        let cell = |value: &f64| {
            // A value above 0 always shows.
            let high = if *value > 0.0 { (value / most * 8.0 * rows as f64).ceil() } else { 0.0 };
            let over = high - 8.0 * row as f64;
            match over {
                over if over <= 0.0 => ' ',
                _ if !eighths => '#',
                over => BARS[(over as usize).clamp(1, 8) - 1],
            }
        };
        values.iter().map(cell).collect()
    };
    (0..rows).rev().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{area, bars};

    #[test]
    fn bars_grow_with_their_values() {
        assert_eq!(bars(&[0.0, 0.001, 1.0, 1.1, 4.0, 8.0]), " ▁▁▂▄█");
        assert_eq!(bars(&[0.0, 0.0]), "  ");
        assert_eq!(bars(&[3.0]), "█");
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn an_area_has_bars_of_several_rows() {
        assert_eq!(area(&[0.0, 1.0, 8.0, 9.0, 16.0], 2, true), ["   ▁█", " ▁███"]);
        assert_eq!(area(&[0.0, 1.0, 8.0, 9.0, 16.0], 2, false), ["   ##", " ####"]);
        assert!(area(&[1.0], 0, true).is_empty());
    }
}
