//! Taking out the stored selves of requests that a batch stores anew.
//!
//! Files never change, so a file that has such a request is removed and written again without it. A row group without
//! one is copied as it is.

use std::{collections::BTreeMap, fs::File, path::Path, sync::Arc};

use arrow::{
    array::{Array, BooleanArray, FixedSizeBinaryArray, RecordBatch},
    compute::{concat_batches, filter_record_batch},
};
use deltalake::kernel::Remove;
use gatescope_routing::span::{RequestKey, Role};
use parquet::{
    arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder},
    column::writer::ColumnCloseResult,
    file::{page_index::column_index::ColumnIndexMetaData, statistics::Statistics},
};

use super::{
    Tables,
    arrow_file::{ArrowFile, Columns},
    batch::Contents,
    columns::Cells,
    error::{Context, Result},
    expert_load::{Load, LoadKey},
    gather::LayerSource,
    lookup::{FileIndex, Wanted},
    mismatches::Mismatches,
    parquet_file::{DataFile, Stats},
    requests::{RequestRow, Requests},
    routing::{KEY_COLUMNS, Phase, RoutingTable},
    routing_file::{RoutingFile, RunKey},
};

/// What taking requests out does to one table.
#[derive(Default)]
pub(super) struct Replacement {
    pub(super) add: Vec<DataFile>,
    pub(super) remove: Vec<Remove>,
}

impl Tables {
    /// Takes the stored selves of the batch's replaced requests out of `requests`, `mismatches` and the routing tables.
    /// What else was in their files goes to the batch's own files or to new ones; the load that they had added goes to
    /// the batch's load, negative.
    pub(super) fn take_out_replaced(
        &self,
        contents: &mut Contents,
        position: u64,
    ) -> Result<BTreeMap<String, Replacement>> {
        let replaced = std::mem::take(&mut contents.replaced);
        let mut changes = BTreeMap::new();
        if replaced.is_empty() {
            return Ok(changes);
        }
        let wanted = Wanted::new(&replaced);

        let mut stored: BTreeMap<Arc<str>, Vec<RequestRow>> = BTreeMap::new();
        for (path, batch) in self.rows_of(Requests::TABLE, &wanted)? {
            for row in RequestRow::read(Cells { path: &path, batch: &batch })? {
                if let Some(table) = &row.routing_table {
                    stored.entry(table.clone()).or_default().push(row);
                }
            }
        }
        for (table, requests) in stored {
            let change = self.take_out_rows(&table, &requests, &mut contents.load, position)?;
            changes.insert(table.to_string(), change);
        }
        changes.insert(Requests::TABLE.to_owned(), self.take_out(&wanted, &mut contents.requests)?);
        changes.insert(Mismatches::TABLE.to_owned(), self.take_out(&wanted, &mut contents.mismatches)?);
        Ok(changes)
    }

    /// Takes requests out of a fixed table; what is left of a file goes to `file`.
    fn take_out<C: Columns>(&self, wanted: &Wanted<'_>, file: &mut ArrowFile<C>) -> Result<Replacement> {
        let mut change = Replacement::default();
        let Some(log) = self.logs.get(C::TABLE) else { return Ok(change) };
        for view in log.files()?.filter(|view| wanted.may_be_in(view)) {
            let path = log.folder().join(&*view.path());
            if self.indexes.of(&path)?.rows(&path, wanted)?.is_empty() {
                continue;
            }
            let handle = File::open(&path).context(&path, "open")?;
            let rows = ParquetRecordBatchReaderBuilder::try_new(handle).and_then(|reader| reader.build());
            for batch in rows.context(&path, "read")? {
                let batch = batch.context(&path, "read")?;
                let keys = Cells { path: &path, batch: &batch }.keys()?;
                let stays: BooleanArray = keys.iter().map(|key| Some(!wanted.has(key))).collect();
                file.add_batch(&filter_record_batch(&batch, &stays).context(&path, "read")?)?;
            }
            change.remove.push(view.remove_action(true));
        }
        Ok(change)
    }

    /// Takes the rows of requests out of a routing table and their ids out of the load.
    fn take_out_rows(
        &self,
        table: &str,
        requests: &[RequestRow],
        load: &mut Load,
        position: u64,
    ) -> Result<Replacement> {
        let wanted = Wanted::new(requests.iter().map(|request| &request.key));
        let mut change = Replacement::default();
        let Some(log) = self.logs.get(table) else { return Ok(change) };
        for view in log.files()?.filter(|view| wanted.may_be_in(view)) {
            let path = log.folder().join(&*view.path());
            let handle = File::open(&path).context(&path, "open")?;
            let index = FileIndex::load(&path, &handle)?;
            let old = OldFile { path: &path, handle, index };
            if !old.has(&wanted)? {
                continue;
            }
            let schema = old.index.metadata.schema().clone();
            let table = RoutingTable::from_schema(&schema)
                .ok_or_else(|| old.damaged("expected the columns of a routing table".to_owned()))?;
            let mut new = RoutingFile::create(&self.root, &table, position)?;
            old.copy_without(&wanted, &mut new, |row, key, layer, ids| {
                let stored = requests.iter().find(|request| request.key == *row);
                if let Some(stored) = stored {
                    let counts = load.of(LoadKey {
                        minute: stored.minute(),
                        run: key.run.clone(),
                        model: stored.model.clone().unwrap_or_else(|| "".into()),
                        instance: key.instance.clone(),
                        role: key.role,
                        phase: key.phase,
                    });
                    counts.count(layer, ids, table.width(), -1);
                }
            })?;
            change.add.extend(new.finish()?);
            change.remove.push(view.remove_action(true));
        }
        Ok(change)
    }
}

/// A file of a routing table, to be written again without some requests.
struct OldFile<'a> {
    path: &'a Path,
    handle: File,
    index: FileIndex,
}

impl OldFile<'_> {
    fn has(&self, wanted: &Wanted<'_>) -> Result<bool> {
        Ok(!self.index.rows(self.path, wanted)?.is_empty())
    }

    /// Copies every row but those of the wanted requests; `taken` is told the ids of those, layer by layer.
    fn copy_without(
        &self,
        wanted: &Wanted<'_>,
        new: &mut RoutingFile,
        mut taken: impl FnMut(&RequestKey, &RunKey, usize, &[u8]),
    ) -> Result<()> {
        let candidates = self.index.groups(wanted);
        for group in 0..self.index.metadata.metadata().num_row_groups() {
            if !candidates.contains(&group) {
                new.append_group(&self.handle, self.columns(group), &self.stats(group))?;
                continue;
            }
            let batch = self.read(group)?;
            let cells = Cells { path: self.path, batch: &batch };
            let layers = BatchLayers::of(cells, new.table())?;
            for run in Run::all(cells)? {
                let rows = run.rows.len();
                let at = AtRow { layers: &layers, first: run.rows.start };
                if !wanted.has(&run.request) {
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

    fn read(&self, group: usize) -> Result<RecordBatch> {
        let metadata: &ArrowReaderMetadata = &self.index.metadata;
        let handle = self.handle.try_clone().context(self.path, "open")?;
        let rows = metadata.metadata().row_group(group).num_rows() as usize;
        let batches = ParquetRecordBatchReaderBuilder::new_with_metadata(handle, metadata.clone())
            .with_row_groups(vec![group])
            .with_batch_size(rows.max(1))
            .build()
            .context(self.path, "read")?
            .collect::<std::result::Result<Vec<_>, _>>()
            .context(self.path, "read")?;
        concat_batches(metadata.schema(), &batches).context(self.path, "read")
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

    fn damaged(&self, detail: String) -> super::TablesError {
        super::TablesError::Damaged { path: self.path.to_owned(), detail }
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
