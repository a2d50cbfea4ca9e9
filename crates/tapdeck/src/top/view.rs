//! What does the person at the screen want to see? Which table, how it is sorted, from which row
//! on, and whether it stands still.

use std::time::SystemTime;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::answer::Of;
use super::board::Known;
use super::table::Order;

/// A table of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    Flows,
    Hosts,
    Interfaces,
    Groups,
    Members,
    Ports,
    Store,
}

impl Tab {
    const ALL: [Self; 7] = [
        Self::Flows,
        Self::Hosts,
        Self::Interfaces,
        Self::Groups,
        Self::Members,
        Self::Ports,
        Self::Store,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Hosts => "hosts",
            Self::Interfaces => "interfaces",
            Self::Groups => "groups",
            Self::Members => "members",
            Self::Ports => "ports",
            Self::Store => "store",
        }
    }

    /// Returns the tables that there are.
    pub fn all(known: &Known) -> Vec<Self> {
        let has_store = known.whole.is_some() || known.store_fault.is_some();
        let is_there = |tab: &Self| match (tab, known.answer.as_ref().map(|answer| &answer.of)) {
            (Self::Flows | Self::Hosts | Self::Store, _) => has_store,
            (Self::Interfaces, Some(Of::Recorder(_)))
            | (Self::Groups | Self::Members | Self::Ports, Some(Of::Daemon(_))) => true,
            _ => false,
        };
        Self::ALL.into_iter().filter(is_there).collect()
    }

    /// Returns by which column the table is sorted unless something else is wanted.
    pub fn usual_order(self) -> Order {
        // Flows and hosts by bits, the rest by name.
        let column = if matches!(self, Self::Flows | Self::Hosts) { 2 } else { 0 };
        Order { column, backwards: false }
    }
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Redraw,
    Stop,
    Quit,
}

/// What is wanted at the moment.
pub struct View {
    tab: Option<Tab>,
    orders: [Order; Tab::ALL.len()],
    pub first_row: usize,
    pub is_help: bool,
    /// What was known when the view was paused, and when that was.
    pub paused: Option<(Known, SystemTime)>,
}

impl View {
    pub fn new() -> Self {
        let orders = Tab::ALL.map(Tab::usual_order);
        Self { tab: None, orders, first_row: 0, is_help: false, paused: None }
    }

    /// Returns the table that is shown: the one that was chosen, as long as it is there.
    pub fn tab(&self, tabs: &[Tab]) -> Option<Tab> {
        self.tab.filter(|tab| tabs.contains(tab)).or(tabs.first().copied())
    }

    pub fn order(&self, tab: Tab) -> Order {
        self.orders[tab as usize]
    }

    /// Takes a key. `columns` says how many the table has that is shown, `rows` how many rows of it
    /// are on the screen, and `now` what is known.
    pub fn key(&mut self, key: KeyEvent, now: &Known, columns: usize, rows: usize) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let tabs = Tab::all(self.paused.as_ref().map_or(now, |(known, _)| known));
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('z') => Wish::Stop,
                KeyCode::Char('l') => Wish::Redraw,
                _ => Wish::Nothing,
            };
        }
        if self.is_help && !matches!(key.code, KeyCode::Char('q')) {
            self.is_help = false;
            return Wish::Redraw;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char('p' | ' ') => {
                self.paused = match self.paused {
                    None => Some((now.clone(), SystemTime::now())),
                    Some(_) => None,
                };
            }
            KeyCode::Char('s') => self.change_order(&tabs, |order| Order {
                column: (order.column + 1) % columns.max(1),
                backwards: false,
            }),
            KeyCode::Char('r') => {
                self.change_order(&tabs, |order| Order { backwards: !order.backwards, ..order });
            }
            KeyCode::Tab | KeyCode::Right => self.turn(&tabs, 1),
            KeyCode::BackTab | KeyCode::Left => self.turn(&tabs, tabs.len().saturating_sub(1)),
            KeyCode::Char(digit @ '1'..='9') => {
                let Some(tab) = tabs.get(digit as usize - '1' as usize) else {
                    return Wish::Nothing;
                };
                (self.tab, self.first_row) = (Some(*tab), 0);
            }
            KeyCode::Down | KeyCode::Char('j') => self.first_row += 1,
            KeyCode::Up | KeyCode::Char('k') => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::PageDown => self.first_row += rows,
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(rows),
            KeyCode::Home => self.first_row = 0,
            _ => return Wish::Nothing,
        }
        Wish::Redraw
    }

    fn change_order(&mut self, tabs: &[Tab], change: impl FnOnce(Order) -> Order) {
        if let Some(tab) = self.tab(tabs) {
            self.orders[tab as usize] = change(self.order(tab));
            self.first_row = 0;
        }
    }

    fn turn(&mut self, tabs: &[Tab], by: usize) {
        let at = tabs.iter().position(|tab| Some(*tab) == self.tab(tabs)).unwrap_or(0);
        self.tab = tabs.get((at + by) % tabs.len().max(1)).copied();
        self.first_row = 0;
    }
}
