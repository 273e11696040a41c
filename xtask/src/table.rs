//! Tables as all commands print them.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table, TableComponent};

/// An empty table: a line below the header, none between rows. Columns from `numbers` on are aligned to the right, except a last
/// one without a heading, which is for remarks.
pub(crate) fn table(header: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(header);
    table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
    for (index, heading) in header.iter().enumerate().skip(numbers) {
        if let (Some(column), false) = (table.column_mut(index), heading.is_empty()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
