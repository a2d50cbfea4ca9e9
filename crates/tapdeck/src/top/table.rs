//! Rows under headings that can be sorted by any column, and that fit into the width there is.

use std::cmp::Ordering;

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::style;

/// A column: what stands above it, and how wide it is.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    /// 0 takes what is left.
    pub width: usize,
}

/// A cell: what is shown, and what it is sorted by.
#[derive(Clone, Debug)]
pub struct Cell {
    pub text: String,
    rank: Rank,
    style: Style,
}

#[derive(Clone, Copy, Debug)]
enum Rank {
    Text,
    Number(f64),
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), rank: Rank::Text, style: Style::new() }
    }

    /// Makes a cell at the right of its column, which stands before others the larger it is.
    pub fn number(value: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), rank: Rank::Number(value), style: Style::new() }
    }

    /// Makes a number that should be 0.
    pub fn fault(value: f64, text: impl Into<String>) -> Self {
        let style = if value > 0.0 { style::fault() } else { Style::new() };
        Self { style, ..Self::number(value, text) }
    }
}

/// The column that rows are sorted by, and whether backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub column: usize,
    pub backwards: bool,
}

pub struct Table {
    pub columns: &'static [Column],
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Sorts the rows: numbers with the largest first, texts from a to z, and the other way round
    /// if that is wanted.
    pub fn sort(&mut self, order: Order) {
        let compare = |a: &[Cell], b: &[Cell], column: usize| match (a.get(column), b.get(column)) {
            (Some(a), Some(b)) => match (a.rank, b.rank) {
                (Rank::Number(a), Rank::Number(b)) => b.total_cmp(&a),
                _ => a.text.cmp(&b.text),
            },
            _ => Ordering::Equal,
        };
        self.rows.sort_by(|a, b| {
            let sorted = compare(a, b, order.column);
            let sorted = if order.backwards { sorted.reverse() } else { sorted };
            // Rows that are equal do not change places from one look to the next.
            sorted.then_with(|| compare(a, b, 0))
        });
    }

    /// Returns the headings.
    pub fn head(&self, width: usize, order: Order) -> Line<'static> {
        let widths = self.widths(width);
        let mut spans = Vec::new();
        for (at, (column, width)) in self.columns.iter().zip(widths).enumerate() {
            let style = if at == order.column { style::chosen() } else { style::head() };
            let text = fitted(column.head, width, self.is_number(at));
            spans.extend([Span::styled(text, style), Span::styled(" ", style::head())]);
        }
        spans.pop();
        Line::from(spans)
    }

    /// Returns a row.
    pub fn row(&self, number: usize, width: usize) -> Line<'static> {
        let widths = self.widths(width);
        let mut spans = Vec::new();
        for (cell, width) in self.rows[number].iter().zip(widths) {
            let text = fitted(&cell.text, width, matches!(cell.rank, Rank::Number(_)));
            spans.extend([Span::styled(text, cell.style), Span::raw(" ")]);
        }
        spans.pop();
        Line::from(spans)
    }

    fn is_number(&self, column: usize) -> bool {
        // Without rows it is a guess that only moves headings.
        self.rows.first().map_or(column > 0, |row| matches!(row[column].rank, Rank::Number(_)))
    }

    fn widths(&self, width: usize) -> impl Iterator<Item = usize> {
        let fixed: usize = self.columns.iter().map(|column| column.width).sum();
        let rest = width.saturating_sub(fixed + self.columns.len() - 1).max(8);
        self.columns.iter().map(move |column| if column.width == 0 { rest } else { column.width })
    }
}

/// Returns a text that is just so wide: filled up, or cut where it is too long.
pub fn fitted(text: &str, width: usize, right: bool) -> String {
    let wide = Span::raw(text).width();
    if wide <= width {
        let fill = " ".repeat(width - wide);
        return if right { fill + text } else { text.to_owned() + &fill };
    }
    let mut cut = String::new();
    let mut have = 0;
    for c in text.chars() {
        let more = Span::raw(c.to_string()).width();
        if have + more >= width {
            break;
        }
        cut.push(c);
        have += more;
    }
    // Not the sign for three dots: not every terminal has it.
    cut + &"~".repeat(width - have)
}

#[cfg(test)]
mod tests {
    use super::{Cell, Column, Order, Table, fitted};

    const COLUMNS: &[Column] =
        &[Column { head: "host", width: 0 }, Column { head: "pkt/s", width: 7 }];

    fn hosts(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row[0].text.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_by_any_column_and_backwards() {
        let row = |host: &str, n: f64| vec![Cell::text(host), Cell::number(n, format!("{n}"))];
        let rows = vec![row("b", 1.0), row("c", 30.0), row("a", 1.0), row("d", 4.0)];
        let mut table = Table { columns: COLUMNS, rows };
        table.sort(Order { column: 1, backwards: false });
        assert_eq!(hosts(&table), ["c", "d", "a", "b"], "equal rows stay in one order");
        table.sort(Order { column: 1, backwards: true });
        assert_eq!(hosts(&table), ["a", "b", "d", "c"]);
        table.sort(Order { column: 0, backwards: true });
        assert_eq!(hosts(&table), ["d", "c", "b", "a"]);
        let order = Order { column: 0, backwards: false };
        assert_eq!(table.head(20, order).to_string(), "host           pkt/s");
        assert_eq!(table.row(1, 20).to_string(), "c                 30");
    }

    #[test]
    fn texts_fit() {
        assert_eq!(fitted("abc", 5, false), "abc  ");
        assert_eq!(fitted("abc", 5, true), "  abc");
        assert_eq!(fitted("abcdef", 5, false), "abcd~");
        assert_eq!(fitted("漢字漢字", 5, false), "漢字~", "a wide letter has two columns");
        assert_eq!(fitted("漢字漢字", 4, false), "漢~~");
    }
}
