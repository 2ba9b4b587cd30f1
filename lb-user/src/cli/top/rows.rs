//! The rows of each view, as they stand in its table.

mod counted;
mod noted;

use super::state::{RowFilter, TopState, View};
use crate::{cli::color::Standing, system::escape::escaped};

/// The table of a view.
pub(super) struct TopRows {
    /// The headers of its columns.
    pub(super) columns: &'static [&'static str],
    /// What is shown of it.
    pub(super) rows: Vec<TopRow>,
    /// How many rows there are.
    pub(super) of: usize,
}

/// A row.
pub(super) struct TopRow {
    /// A cell for each column; nothing in it moves a cursor.
    pub(super) cells: Vec<String>,
    /// How well that is which it is of.
    pub(super) standing: Standing,
    /// The networks that it is of; none if it is of all.
    networks: Vec<String>,
}

impl TopRow {
    /// A row that is of one network.
    fn of(network: &str, standing: Standing, cells: impl IntoIterator<Item = String>) -> Self {
        Self::of_many(vec![network.to_owned()], standing, cells)
    }

    fn of_many(
        networks: Vec<String>,
        standing: Standing,
        cells: impl IntoIterator<Item = String>,
    ) -> Self {
        let cells = cells.into_iter().map(|cell| escaped(&cell).into_owned());
        Self {
            cells: cells.collect(),
            standing,
            networks,
        }
    }

    fn is_chosen(&self, filter: &RowFilter) -> bool {
        let RowFilter {
            network,
            text,
            problems,
        } = filter;
        let is_of = |network: &String| self.networks.is_empty() || self.networks.contains(network);
        let text = text.to_lowercase();
        let has_text = |cell: &String| cell.to_lowercase().contains(&text);
        network.as_ref().is_none_or(is_of)
            && (text.is_empty() || self.cells.iter().any(has_text))
            && !(*problems && self.standing == Standing::Good)
    }
}

/// The rows of the view of a state that its filter leaves.
pub(super) fn of(state: &TopState) -> TopRows {
    let (columns, mut rows) = match state.view {
        View::Services => counted::services(state),
        View::Backends => counted::backends(state),
        View::Shared => noted::shared(&state.overview),
        View::Drops => noted::drops(&state.overview),
        View::Events => noted::events(&state.overview),
        View::Snat => noted::snat(&state.overview),
    };
    let of = rows.len();
    rows.retain(|row| row.is_chosen(&state.filter));
    TopRows { columns, rows, of }
}

/// The networks, which stand above every view.
pub(super) fn networks(state: &TopState) -> TopRows {
    let (columns, mut rows) = counted::networks(state);
    let of = rows.len();
    if let Some(network) = &state.filter.network {
        rows.retain(|row| row.networks.contains(network));
    }
    TopRows { columns, rows, of }
}

type Table = (&'static [&'static str], Vec<TopRow>);

/// What stands for nothing.
fn none() -> String {
    "-".to_owned()
}
