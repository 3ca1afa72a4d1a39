//! The `routing_*` tables: one per geometry of stored rows, a row per position, a column per layer.

use std::{collections::HashMap, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use gatescope_routing::shape::{IdWidth, LayerSet, RowShape};
use xxhash_rust::xxh3::xxh3_64;

/// Columns before the layers.
pub(super) const KEY_COLUMNS: usize = 7;

/// Rows of a page and of a row group, unless a row is so wide that these bounds come first.
const ROWS_PER_PAGE: usize = 8_192;
pub(super) const ROWS_PER_GROUP: usize = 65_536;

/// Most bytes of ids in the pages of all layers, and in a row group: both are held in memory.
const MOST_PAGE_BYTES: usize = 8 << 20;
const MOST_GROUP_BYTES: usize = 128 << 20;

/// Longest list of dense layers in a name; a longer one is hashed.
const LONGEST_RANGES: usize = 96;

/// What the rows of a `routing_*` table look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoutingTable {
    shape: RowShape,
    width: IdWidth,
    layers: Vec<usize>,
}

impl RoutingTable {
    /// The table for rows of this geometry that stores these of its layers, in ids of this width.
    pub fn new(shape: RowShape, width: IdWidth, layers: &LayerSet) -> Self {
        Self { shape, width, layers: layers.iter().filter(|&layer| layer < shape.layers()).collect() }
    }

    /// Its name: `routing_<layers>x<top_k>_<u8|u16>`, then `_dense<ranges>` where layers are left out, with `_` for the
    /// comma (`routing_61x8_u8_dense0-2`). A name too long for a folder has a hash of the ranges in their place; the
    /// columns, not the name, say which layers there are.
    pub fn name(&self) -> String {
        let (layers, top_k, width) = (self.shape.layers(), self.shape.top_k(), self.width.name());
        let dense: LayerSet = (0..layers).filter(|layer| !self.layers.contains(layer)).collect();
        if dense.is_empty() {
            return format!("routing_{layers}x{top_k}_{width}");
        }
        let mut ranges = dense.to_string().replace(',', "_");
        if ranges.len() > LONGEST_RANGES {
            ranges = format!("_{:016x}", xxh3_64(ranges.as_bytes()));
        }
        format!("routing_{layers}x{top_k}_{width}_dense{ranges}")
    }

    /// Geometry of the rows, dense layers included.
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Width of the stored ids.
    pub fn width(&self) -> IdWidth {
        self.width
    }

    /// The stored layers, ascending: the layer columns in their order.
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// Bytes of one value of a layer column.
    pub fn slot_bytes(&self) -> usize {
        self.shape.top_k() * self.width.bytes()
    }

    /// Rows of a page, the same in every column: a reader that wants one request decompresses one or two pages a
    /// column, and a batch of the usual reader (8,192 rows) ends where a page does.
    pub(super) fn rows_per_page(&self) -> usize {
        rows_within(MOST_PAGE_BYTES / self.row_bytes(), ROWS_PER_PAGE)
    }

    /// Rows of a row group.
    pub(super) fn rows_per_group(&self) -> usize {
        rows_within(MOST_GROUP_BYTES / self.row_bytes(), ROWS_PER_GROUP).max(self.rows_per_page())
    }

    fn row_bytes(&self) -> usize {
        (self.slot_bytes() * self.layers.len()).max(1)
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int32, false);
        let mut fields = vec![
            text("run"),
            text("request_id"),
            number("choice"),
            number("position"),
            text("phase"),
            text("role"),
            text("instance"),
        ];
        fields.extend(self.layers.iter().map(|&layer| {
            let metadata = HashMap::from([
                ("gatescope.layer".to_owned(), layer.to_string()),
                ("gatescope.layers".to_owned(), self.shape.layers().to_string()),
                ("gatescope.top_k".to_owned(), self.shape.top_k().to_string()),
                ("gatescope.width".to_owned(), self.width.name().to_owned()),
            ]);
            Field::new(format!("l{layer:02}"), DataType::FixedSizeBinary(self.slot_bytes() as i32), false)
                .with_metadata(metadata)
        }));
        Arc::new(Schema::new(fields))
    }

    /// The table with these columns; `None` where they are not those of a routing table.
    pub fn from_schema(schema: &Schema) -> Option<Self> {
        let said = |field: &Field, what: &str| field.metadata().get(what)?.parse::<u64>().ok();
        let columns = schema.fields().get(KEY_COLUMNS..)?;
        let first = columns.first()?;
        let width = match first.metadata().get("gatescope.width")?.as_str() {
            "u8" => IdWidth::U8,
            "u16" => IdWidth::U16,
            _ => return None,
        };
        let shape = RowShape::new(said(first, "gatescope.layers")?, said(first, "gatescope.top_k")?).ok()?;
        let layers =
            columns.iter().map(|field| Some(said(field, "gatescope.layer")? as usize)).collect::<Option<_>>()?;
        Some(Self { shape, width, layers })
    }
}

/// The largest power of two within both bounds.
fn rows_within(bytes_allow: usize, most: usize) -> usize {
    let rows = bytes_allow.clamp(1, most);
    1 << rows.ilog2()
}

/// `prompt` or `completion`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    Prompt,
    Completion,
}

impl Phase {
    pub(super) const ALL: [Self; 2] = [Self::Prompt, Self::Completion];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Completion => "completion",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(layers: u64, dense: &[usize]) -> RoutingTable {
        let moe = (0..layers as usize).filter(|layer| !dense.contains(layer)).collect();
        RoutingTable::new(RowShape::new(layers, 8).unwrap(), IdWidth::U8, &moe)
    }

    #[test]
    fn a_table_is_named_after_its_geometry_and_its_dense_layers() {
        assert_eq!(table(48, &[]).name(), "routing_48x8_u8");
        assert_eq!(table(61, &[0, 1, 2, 9]).name(), "routing_61x8_u8_dense0-2_9");
    }

    #[test]
    fn a_name_stays_short_and_apart_however_many_layers_are_dense() {
        let even: Vec<usize> = (0..1000).step_by(2).collect();
        let odd: Vec<usize> = (1..1000).step_by(2).collect();

        let (even, odd) = (table(1000, &even).name(), table(1000, &odd).name());

        assert!(even.len() < 64, "{even}");
        assert_ne!(even, odd);
    }

    #[test]
    fn the_columns_say_what_the_table_is() {
        let table = table(61, &[0, 1, 2]);

        assert_eq!(RoutingTable::from_schema(&table.schema()), Some(table));
    }
}
