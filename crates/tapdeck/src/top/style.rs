//! How do parts of the screen look? What matters is told by words, and shown by bold and reversed
//! letters; colours only add to that, and are left out where `NO_COLOR` is set (no-color.org).

use ratatui::style::{Color, Style};
use ratatui::text::Line;

/// What should not be.
pub fn fault() -> Style {
    Style::new().fg(Color::Red).bold()
}

/// What is said of the screen itself.
pub fn title() -> Style {
    Style::new().bold()
}

/// Headings of a table.
pub fn head() -> Style {
    Style::new().reversed()
}

/// The heading by which a table is sorted, and the view that is shown.
pub fn chosen() -> Style {
    Style::new().bold().underlined()
}

pub fn chart() -> Style {
    Style::new().fg(Color::Green)
}

/// Takes the colours out of lines.
pub fn uncolour(lines: &mut [Line<'_>]) {
    for span in lines.iter_mut().flat_map(|line| &mut line.spans) {
        (span.style.fg, span.style.bg) = (None, None);
    }
}
