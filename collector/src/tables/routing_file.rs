//! Writing a file of a `routing_*` table.

use std::{collections::HashMap, fs::File, path::Path, sync::Arc};

use gatescope_routing::{rows::Rows, span::Role};
use parquet::{
    arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata},
    basic::Encoding,
    column::writer::ColumnCloseResult,
    data_type::Int32Type,
    errors::Result as ParquetResult,
    file::{
        properties::{EnabledStatistics, WriterProperties},
        reader::ChunkReader,
        writer::SerializedFileWriter,
    },
};

use super::{
    chunk::{Chunk, Codec, Dictionary, PageCompressor, Pages, compression, pages_of, run_column},
    counts::LayerCounts,
    early_sync::EarlySync,
    error::{Context, Result},
    gather::LayerSource,
    parquet_file::{DataFile, FileName, Stats, Unreferenced},
    routing::{KEY_COLUMNS, Phase, RoutingTable},
};

/// Bytes of rows gathered at a time: they stay in the cache while layer after layer is taken out of them.
const BLOCK_BYTES: usize = 256 << 10;

/// The column that has a bloom filter.
const REQUEST_ID: usize = 1;

/// What a run of adjacent rows has in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunKey {
    pub(super) run: Arc<str>,
    pub(super) request_id: Arc<str>,
    pub(super) choice: i32,
    pub(super) phase: Phase,
    pub(super) role: Role,
    pub(super) instance: Arc<str>,
}

/// A file of a routing table. A row group is in memory, compressed, until it is full.
pub(super) struct RoutingFile {
    table: RoutingTable,
    file: Unreferenced,
    writer: SerializedFileWriter<File>,
    early: EarlySync,
    compressor: PageCompressor,
    stats: Stats,
    keys: KeyRuns,
    layers: Vec<LayerColumn>,
    /// Rows in the page in the making, the same in every layer.
    page_rows: usize,
    group_rows: usize,
}

/// One layer in the row group in the making.
struct LayerColumn {
    /// None until a page shows how its pages are best kept.
    chunk: Option<Pages>,
    /// Room for a page.
    page: Vec<u8>,
}

impl RoutingFile {
    pub(super) fn create(root: &Path, table: &RoutingTable, name: FileName) -> Result<Self> {
        let (file, handle) = Unreferenced::create(root, &table.name(), name)?;
        let early = EarlySync::of(&handle).context(file.path(), "open a second time")?;
        let writer = Self::writer(table, handle).context(file.path(), "write")?;
        let compressor = PageCompressor::new().context(file.path(), "write")?;
        let page = table.rows_per_page() * table.slot_bytes();
        let layers = table.layers().iter().map(|_| LayerColumn { chunk: None, page: vec![0; page] }).collect();
        Ok(Self {
            table: table.clone(),
            file,
            writer,
            early,
            compressor,
            stats: Stats::default(),
            keys: KeyRuns::default(),
            layers,
            page_rows: 0,
            group_rows: 0,
        })
    }

    fn writer(table: &RoutingTable, file: File) -> ParquetResult<SerializedFileWriter<File>> {
        let schema = table.schema();
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("gatescope version ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(compression()?)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_data_page_row_count_limit(table.rows_per_page())
            // The limit is looked at once per this many values.
            .set_write_batch_size(table.rows_per_page())
            .set_column_encoding("position".into(), Encoding::DELTA_BINARY_PACKED)
            .build();
        add_encoded_arrow_schema_to_metadata(&schema, &mut properties);
        let columns = ArrowSchemaConverter::new().convert(&schema)?;
        SerializedFileWriter::new(file, columns.root_schema_ptr(), Arc::new(properties))
    }

    pub(super) fn table(&self) -> &RoutingTable {
        &self.table
    }

    /// Rows of the row group in the making.
    pub(super) fn rows_pending(&self) -> usize {
        self.group_rows
    }

    /// Appends rows of adjacent positions, from `position` on, and counts their ids.
    pub(super) fn append(&mut self, key: &RunKey, position: u32, rows: &Rows, counts: &mut LayerCounts) -> Result<()> {
        let width = self.table.width();
        self.append_layers(key, position, rows.len(), rows, |layer, ids| counts.count(layer, ids, width, 1))
    }

    /// Appends rows of adjacent positions from any source.
    pub(super) fn append_layers(
        &mut self,
        key: &RunKey,
        position: u32,
        rows: usize,
        source: &impl LayerSource,
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let slots = self.table.slot_bytes();
        let (page, group) = (self.table.rows_per_page(), self.table.rows_per_group());
        let most = (BLOCK_BYTES / self.table.shape().row_bytes(self.table.width())).max(1);
        let mut done = 0;
        while done < rows {
            let space = (page - self.page_rows).min(group - self.group_rows);
            let block = (rows - done).min(space).min(most);
            for (&layer, column) in self.table.layers().iter().zip(&mut self.layers) {
                let out = &mut column.page[self.page_rows * slots..][..block * slots];
                source.copy_layer(layer, done, out);
                see(layer, out);
            }
            self.keys.push(key, position + done as u32, block as u32);
            self.page_rows += block;
            self.group_rows += block;
            done += block;
            if self.page_rows == page {
                self.end_page().context(self.file.path(), "write")?;
            }
            if self.group_rows == group {
                self.end_group().context(self.file.path(), "write")?;
            }
        }
        if rows > 0 {
            self.stats.see_str("run", &key.run);
            self.stats.see_str("request_id", &key.request_id);
            self.stats.see_int("position", i64::from(position));
            self.stats.see_int("position", i64::from(position) + rows as i64 - 1);
            self.stats.count_rows(rows);
        }
        Ok(())
    }

    fn end_page(&mut self) -> ParquetResult<()> {
        let bytes = self.page_rows * self.table.slot_bytes();
        for LayerColumn { chunk, page } in &mut self.layers {
            let chunk = match chunk {
                Some(chunk) => chunk,
                None => {
                    let codec = self.compressor.codec_for(&page[..bytes])?;
                    let full = self.table.rows_per_group() * self.table.slot_bytes();
                    chunk.insert(Pages::new(codec, if codec == Codec::Plain { full } else { 0 }))
                }
            };
            // Splitting wide ids into byte streams would save a tenth, but DuckDB refuses that of fixed-size bytes.
            chunk.write_data(&mut self.compressor, &page[..bytes], self.page_rows, Encoding::PLAIN)?;
        }
        self.page_rows = 0;
        Ok(())
    }

    fn end_group(&mut self) -> ParquetResult<()> {
        if self.group_rows == 0 {
            return Ok(());
        }
        if self.page_rows > 0 {
            self.end_page()?;
        }
        let columns = self.writer.schema_descr().columns().to_vec();
        let mut group = self.writer.next_row_group()?;
        let keys = std::mem::take(&mut self.keys);
        let rows_per_page = self.table.rows_per_page();
        let mut key_column =
            |index: usize, dictionary: Dictionary<'_>, of: &dyn Fn(&KeyRun) -> u32| -> ParquetResult<Chunk> {
                let pages = pages_of(keys.runs.iter().map(|run| (of(run), run.rows)), rows_per_page);
                run_column(&mut self.compressor, columns[index].clone(), &dictionary, &pages, index == REQUEST_ID)
            };
        let choices = keys.choices();
        let choice = |run: &KeyRun| choices.partition_point(|&value| value < run.choice) as u32;
        let before = [
            key_column(0, Dictionary::Strings(&keys.run.values), &|run| run.run)?,
            key_column(REQUEST_ID, Dictionary::Strings(&keys.request_id.values), &|run| run.request_id)?,
            key_column(2, Dictionary::Ints(&choices), &choice)?,
        ];
        let (phases, roles) = (Phase::ALL.map(|phase| phase.name().into()), Role::ALL.map(|role| role.name().into()));
        let after = [
            key_column(4, Dictionary::Strings(&phases), &|run| run.phase as u32)?,
            key_column(5, Dictionary::Strings(&roles), &|run| run.role as u32)?,
            key_column(6, Dictionary::Strings(&keys.instance.values), &|run| run.instance)?,
        ];
        for (bytes, close) in before {
            group.append_column(&bytes, close)?;
        }
        if let Some(mut column) = group.next_column()? {
            column.typed::<Int32Type>().write_batch(&keys.positions(), None, None)?;
            column.close()?;
        }
        for (bytes, close) in after {
            group.append_column(&bytes, close)?;
        }
        for (index, layer) in self.layers.iter_mut().enumerate() {
            // A group has rows, so each layer has had a page.
            let Some(pages) = layer.chunk.take() else { continue };
            let (bytes, close) = pages.close(columns[KEY_COLUMNS + index].clone(), None, None, None)?;
            group.append_column(&bytes, close)?;
        }
        group.close()?;
        self.group_rows = 0;
        self.early.start()?;
        Ok(())
    }

    /// Appends a row group of another file of this table as it is: `columns` are its chunks in `source`.
    pub(super) fn append_group(
        &mut self,
        source: &impl ChunkReader,
        columns: Vec<ColumnCloseResult>,
        stats: &Stats,
    ) -> Result<()> {
        self.end_group()
            .and_then(|()| {
                let mut group = self.writer.next_row_group()?;
                for column in columns {
                    group.append_column(source, column)?;
                }
                group.close()
            })
            .context(self.file.path(), "write")?;
        self.stats.merge(stats);
        Ok(())
    }

    /// Ends the file and makes it durable; `None` where it has no row.
    pub(super) fn finish(mut self) -> Result<Option<DataFile>> {
        if self.stats.rows() == 0 {
            return Ok(None);
        }
        self.end_group().context(self.file.path(), "write")?;
        let handle = self.writer.into_inner().context(self.file.path(), "write")?;
        self.early.wait().context(self.file.path(), "sync")?;
        self.file.finish(handle, self.stats).map(Some)
    }
}

/// The key columns of the row group in the making, as runs of rows.
#[derive(Default)]
struct KeyRuns {
    runs: Vec<KeyRun>,
    run: Distinct,
    request_id: Distinct,
    instance: Distinct,
    last: Option<RunKey>,
}

#[derive(Clone, Copy)]
struct KeyRun {
    run: u32,
    request_id: u32,
    choice: i32,
    position: u32,
    phase: Phase,
    role: Role,
    instance: u32,
    rows: u32,
}

impl KeyRuns {
    fn push(&mut self, key: &RunKey, position: u32, rows: u32) {
        if self.last.as_ref() == Some(key)
            && let Some(run) = self.runs.last_mut()
            && run.position + run.rows == position
        {
            run.rows += rows;
            return;
        }
        self.runs.push(KeyRun {
            run: self.run.index(&key.run),
            request_id: self.request_id.index(&key.request_id),
            choice: key.choice,
            position,
            phase: key.phase,
            role: key.role,
            instance: self.instance.index(&key.instance),
            rows,
        });
        self.last = Some(key.clone());
    }

    fn positions(&self) -> Vec<i32> {
        self.runs
            .iter()
            .flat_map(|run| (run.position..run.position + run.rows).map(|position| position as i32))
            .collect()
    }

    /// The distinct choices, ascending.
    fn choices(&self) -> Vec<i32> {
        let mut choices: Vec<i32> = self.runs.iter().map(|run| run.choice).collect();
        choices.sort_unstable();
        choices.dedup();
        choices
    }
}

/// Distinct strings in the order of their first use.
#[derive(Default)]
struct Distinct {
    values: Vec<Arc<str>>,
    indices: HashMap<Arc<str>, u32>,
}

impl Distinct {
    fn index(&mut self, value: &Arc<str>) -> u32 {
        if let Some(&index) = self.indices.get(value) {
            return index;
        }
        let index = self.values.len() as u32;
        self.values.push(value.clone());
        self.indices.insert(value.clone(), index);
        index
    }
}
