//! Finding the rows of given requests without reading the files that have none of them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::File,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arrow::{
    array::{AsArray, BooleanArray, RecordBatch},
    error::ArrowError,
};
use gatescope_routing::span::RequestKey;
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowFilter,
        },
    },
    bloom_filter::Sbbf,
    file::{
        metadata::{PageIndexPolicy, RowGroupMetaData},
        statistics::Statistics,
    },
};

use super::{
    columns::Cells,
    error::{Context, Result},
    table_file::TableFile,
};

/// Most bytes of footers and bloom filters held from one lookup to the next.
const MOST_HELD: usize = 64 << 20;

/// Requests that are looked for.
pub(super) struct Wanted<'a> {
    keys: HashSet<&'a RequestKey>,
    ids: Arc<BTreeSet<Arc<str>>>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(keys: impl IntoIterator<Item = &'a RequestKey>) -> Self {
        let keys: HashSet<&RequestKey> = keys.into_iter().collect();
        let ids = keys.iter().map(|key| key.request_id.clone()).collect();
        Self { keys, ids: Arc::new(ids) }
    }

    pub(super) fn has(&self, key: &RequestKey) -> bool {
        self.keys.contains(key)
    }

    fn within(&self, min: &str, max: &str) -> bool {
        min <= max && self.ids.range::<str, _>((Bound::Included(min), Bound::Included(max))).next().is_some()
    }

    /// Whether a file of this table may have any of them, by the range that its log states.
    pub(super) fn may_be_in(&self, file: &TableFile) -> bool {
        file.ids.as_ref().is_none_or(|(min, max)| self.within(min, max))
    }

    fn may_be_in_group(&self, group: &RowGroupMetaData, column: usize, filter: Option<&Sbbf>) -> bool {
        if let Some(Statistics::ByteArray(range)) = group.column(column).statistics()
            && let (Some(min), Some(max)) = (range.min_opt(), range.max_opt())
            && let (Ok(min), Ok(max)) = (std::str::from_utf8(min.data()), std::str::from_utf8(max.data()))
            && !self.within(min, max)
        {
            return false;
        }
        filter.is_none_or(|filter| self.ids.iter().any(|id| filter.check(&**id)))
    }
}

/// A file's footer and the bloom filters of its row groups.
pub(super) struct FileIndex {
    pub(super) metadata: ArrowReaderMetadata,
    request_id: usize,
    filters: Vec<Option<Sbbf>>,
}

impl FileIndex {
    pub(super) fn load(path: &Path, file: &File) -> Result<Self> {
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(file, options).context(path, "read")?;
        let columns = metadata.parquet_schema().columns();
        let request_id = columns.iter().position(|column| column.path().string() == "request_id");
        let request_id = request_id.ok_or_else(|| super::TablesError::Damaged {
            path: path.to_owned(),
            detail: "expected a column \"request_id\"".to_owned(),
        })?;
        let filters = metadata
            .metadata()
            .row_groups()
            .iter()
            .map(|group| Sbbf::read_from_column_chunk(group.column(request_id), file))
            .collect::<parquet::errors::Result<Vec<_>>>()
            .context(path, "read")?;
        Ok(Self { metadata, request_id, filters })
    }

    /// The row groups that may have any of these requests.
    pub(super) fn groups(&self, wanted: &Wanted<'_>) -> Vec<usize> {
        let groups = self.metadata.metadata().row_groups().iter().zip(&self.filters).enumerate();
        groups
            .filter(|(_, (group, filter))| wanted.may_be_in_group(group, self.request_id, filter.as_ref()))
            .map(|(index, _)| index)
            .collect()
    }

    /// The bloom filter of a column chunk.
    pub(super) fn filter(&self, group: usize, column: usize) -> Option<&Sbbf> {
        self.filters.get(group).filter(|_| column == self.request_id)?.as_ref()
    }

    fn bytes(&self) -> usize {
        self.metadata.metadata().memory_size()
            + self.filters.iter().flatten().map(|filter| filter.num_blocks() * 32).sum::<usize>()
    }

    /// The rows of these requests.
    pub(super) fn rows(&self, path: &Path, wanted: &Wanted<'_>) -> Result<Vec<RecordBatch>> {
        let groups = self.groups(wanted);
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let file = File::open(path).context(path, "open")?;
        let ids = wanted.ids.clone();
        let column = ProjectionMask::leaves(self.metadata.parquet_schema(), [self.request_id]);
        let is_wanted = ArrowPredicateFn::new(column, move |batch: RecordBatch| {
            let found = batch.column(0).as_string_opt::<i32>();
            let found = found.ok_or_else(|| ArrowError::SchemaError("request_id: expected strings".to_owned()))?;
            Ok(found.iter().map(|id| Some(id.is_some_and(|id| ids.contains(id)))).collect())
        });
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_row_groups(groups)
            .with_row_filter(RowFilter::new(vec![Box::new(is_wanted)]))
            .build()
            .context(path, "read")?;
        let mut found = Vec::new();
        for batch in reader {
            let batch = batch.context(path, "read")?;
            // The filter knows ids alone; another run or choice may have the same.
            let keys = Cells { path, batch: &batch }.keys()?;
            let exact: BooleanArray = keys.iter().map(|key| Some(wanted.has(key))).collect();
            let batch = arrow::compute::filter_record_batch(&batch, &exact).context(path, "read")?;
            if batch.num_rows() > 0 {
                found.push(batch);
            }
        }
        Ok(found)
    }
}

/// File indexes held from one lookup to the next: files never change.
#[derive(Default)]
pub(super) struct FileIndexes {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    indexes: HashMap<PathBuf, Arc<FileIndex>>,
    bytes: usize,
}

impl FileIndexes {
    pub(super) fn of(&self, path: &Path) -> Result<Arc<FileIndex>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.indexes.get(path) {
            return Ok(index.clone());
        }
        let file = File::open(path).context(path, "open")?;
        let index = Arc::new(FileIndex::load(path, &file)?);
        if held.bytes > MOST_HELD {
            *held = Held::default();
        }
        held.bytes += index.bytes();
        held.indexes.insert(path.to_owned(), index.clone());
        Ok(index)
    }
}
