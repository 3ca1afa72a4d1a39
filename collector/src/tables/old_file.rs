//! Reading a file of a routing table, to write its rows again.

use std::{fs::File, path::Path};

use arrow::array::{Array, FixedSizeBinaryArray};
use gatescope_routing::span::{RequestKey, Role};
use parquet::{
    arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
    column::writer::ColumnCloseResult,
    file::{page_index::column_index::ColumnIndexMetaData, statistics::Statistics},
};

use super::{
    columns::Cells,
    error::{Context, Result, TablesError},
    gather::LayerSource,
    lookup::{FileIndex, Wanted},
    parquet_file::Stats,
    routing::{KEY_COLUMNS, Phase, RoutingTable},
    routing_file::{RoutingFile, RunKey},
};

/// A file of a routing table, to be written again.
pub(super) struct OldFile<'a> {
    path: &'a Path,
    handle: File,
    index: FileIndex,
}

impl<'a> OldFile<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self> {
        let handle = File::open(path).context(path, "open")?;
        let index = FileIndex::load(path, &handle)?;
        Ok(Self { path, handle, index })
    }

    /// The table that it is of.
    pub(super) fn table(&self) -> Result<RoutingTable> {
        RoutingTable::from_schema(self.index.metadata.schema()).ok_or_else(|| TablesError::Damaged {
            path: self.path.to_owned(),
            detail: "expected the columns of a routing table".to_owned(),
        })
    }

    pub(super) fn has(&self, wanted: &Wanted<'_>) -> Result<bool> {
        Ok(!self.index.rows(self.path, wanted)?.is_empty())
    }

    /// Copies every row but those of the wanted requests; `taken` is told the ids of those, layer by layer.
    pub(super) fn copy_without(
        &self,
        wanted: &Wanted<'_>,
        new: &mut RoutingFile,
        mut taken: impl FnMut(&RequestKey, &RunKey, usize, &[u8]),
    ) -> Result<()> {
        let candidates = self.index.groups(wanted);
        for group in 0..self.groups() {
            if candidates.contains(&group) {
                self.append_rows(group, new, |request| wanted.has(request), &mut taken)?;
            } else {
                self.append_as_it_is(group, new)?;
            }
        }
        Ok(())
    }

    /// Copies every row. A row group is copied as it is where it is at least half full and so is the one in the making:
    /// all but the last one of the new file are then at least half full too.
    pub(super) fn copy(&self, new: &mut RoutingFile) -> Result<()> {
        let fair = new.table().rows_per_group() / 2;
        for group in 0..self.groups() {
            let rows = self.index.metadata.metadata().row_group(group).num_rows() as usize;
            if rows >= fair && (new.rows_pending() == 0 || new.rows_pending() >= fair) {
                self.append_as_it_is(group, new)?;
            } else {
                self.append_rows(group, new, |_| false, |_, _, _, _| {})?;
            }
        }
        Ok(())
    }

    fn groups(&self) -> usize {
        self.index.metadata.metadata().num_row_groups()
    }

    fn append_as_it_is(&self, group: usize, new: &mut RoutingFile) -> Result<()> {
        new.append_group(&self.handle, self.columns(group), &self.stats(group))
    }

    /// Appends the rows of a row group that are not `out`; `taken` is told the ids of those that are.
    fn append_rows(
        &self,
        group: usize,
        new: &mut RoutingFile,
        out: impl Fn(&RequestKey) -> bool,
        mut taken: impl FnMut(&RequestKey, &RunKey, usize, &[u8]),
    ) -> Result<()> {
        let handle = self.handle.try_clone().context(self.path, "open")?;
        // A page of each layer at a time.
        let batches = ParquetRecordBatchReaderBuilder::new_with_metadata(handle, self.index.metadata.clone())
            .with_row_groups(vec![group])
            .with_batch_size(new.table().rows_per_page())
            .build()
            .context(self.path, "read")?;
        for batch in batches {
            let batch = batch.context(self.path, "read")?;
            let cells = Cells { path: self.path, batch: &batch };
            let layers = BatchLayers::of(cells, new.table())?;
            for run in Run::all(cells)? {
                let rows = run.rows.len();
                let at = AtRow { layers: &layers, first: run.rows.start };
                if !out(&run.request) {
                    new.append_layers(&run.key, run.position, rows, &at, |_, _| {})?;
                    continue;
                }
                let mut ids = vec![0; rows * layers.slot_bytes];
                for &(layer, _) in &layers.columns {
                    at.copy_layer(layer, 0, &mut ids);
                    taken(&run.request, &run.key, layer, &ids);
                }
            }
        }
        Ok(())
    }

    /// The chunks of a row group, as they are.
    fn columns(&self, group: usize) -> Vec<ColumnCloseResult> {
        let metadata = self.index.metadata.metadata();
        let described = metadata.row_group(group);
        let columns = described.columns().iter().enumerate();
        columns
            .map(|(index, column)| {
                let column_index = metadata.column_index().and_then(|groups| groups.get(group)?.get(index));
                let offset_index = metadata.offset_index().and_then(|groups| groups.get(group)?.get(index));
                ColumnCloseResult {
                    bytes_written: column.compressed_size() as u64,
                    rows_written: described.num_rows() as u64,
                    metadata: column.clone(),
                    bloom_filter: self.index.filter(group, index).cloned(),
                    column_index: column_index.filter(|index| !matches!(index, ColumnIndexMetaData::NONE)).cloned(),
                    offset_index: offset_index.cloned(),
                }
            })
            .collect()
    }

    /// The ranges of a row group, by its footer.
    fn stats(&self, group: usize) -> Stats {
        let described = self.index.metadata.metadata().row_group(group);
        let mut stats = Stats::default();
        stats.count_rows(described.num_rows() as usize);
        for column in described.columns() {
            let name = column.column_path().string();
            match column.statistics() {
                Some(Statistics::ByteArray(range)) if matches!(&*name, "run" | "request_id") => {
                    for end in [range.min_opt(), range.max_opt()].into_iter().flatten() {
                        std::str::from_utf8(end.data()).into_iter().for_each(|end| stats.see_str(&name, end));
                    }
                }
                Some(Statistics::Int32(range)) if name == "position" => {
                    for end in [range.min_opt(), range.max_opt()].into_iter().flatten() {
                        stats.see_int(&name, i64::from(*end));
                    }
                }
                _ => {}
            }
        }
        stats
    }
}

/// Adjacent rows of adjacent positions with the same keys.
struct Run {
    request: RequestKey,
    key: RunKey,
    position: u32,
    rows: std::ops::Range<usize>,
}

impl Run {
    fn all(cells: Cells<'_>) -> Result<Vec<Self>> {
        let requests = cells.keys()?;
        let (positions, phases) = (cells.ints("position")?.values(), cells.text("phase")?);
        let (roles, instances) = (cells.text("role")?, cells.text("instance")?);
        let mut runs: Vec<Self> = Vec::new();
        for (row, request) in requests.into_iter().enumerate() {
            let position = positions[row] as u32;
            if let Some(last) = runs.last_mut()
                && last.request == request
                && last.position + last.rows.len() as u32 == position
                && last.key.phase.name() == phases.value(row)
                && last.key.role.name() == roles.value(row)
                && *last.key.instance == *instances.value(row)
            {
                last.rows.end = row + 1;
                continue;
            }
            let phase = Phase::from_name(phases.value(row))
                .ok_or_else(|| cells.damaged(format!("phase {:?} is none", phases.value(row))))?;
            let role = roles.value(row).parse::<Role>().map_err(|error| cells.damaged(format!("{error}")))?;
            let key = RunKey {
                run: request.run.clone(),
                request_id: request.request_id.clone(),
                choice: request.choice as i32,
                phase,
                role,
                instance: instances.value(row).into(),
            };
            runs.push(Self { request, key, position, rows: row..row + 1 });
        }
        Ok(runs)
    }
}

/// The layer columns of a row group.
struct BatchLayers<'a> {
    columns: Vec<(usize, &'a FixedSizeBinaryArray)>,
    slot_bytes: usize,
}

impl<'a> BatchLayers<'a> {
    fn of(cells: Cells<'a>, table: &RoutingTable) -> Result<Self> {
        let column = |index: usize, layer: usize| {
            let column = cells.batch.column(KEY_COLUMNS + index).as_any().downcast_ref::<FixedSizeBinaryArray>();
            column.filter(|column| column.value_length() as usize == table.slot_bytes()).ok_or_else(|| {
                cells.damaged(format!("layer {layer}: expected {} bytes a position", table.slot_bytes()))
            })
        };
        let columns = table.layers().iter().enumerate();
        let columns = columns.map(|(index, &layer)| Ok((layer, column(index, layer)?))).collect::<Result<_>>()?;
        Ok(Self { columns, slot_bytes: table.slot_bytes() })
    }
}

/// Rows of a row group from one of them on.
struct AtRow<'a> {
    layers: &'a BatchLayers<'a>,
    first: usize,
}

impl LayerSource for AtRow<'_> {
    fn copy_layer(&self, layer: usize, first: usize, out: &mut [u8]) {
        let Some((_, column)) = self.layers.columns.iter().find(|(of, _)| *of == layer) else { return };
        for (row, to) in out.chunks_exact_mut(self.layers.slot_bytes).enumerate() {
            to.copy_from_slice(column.value(self.first + first + row));
        }
    }
}
