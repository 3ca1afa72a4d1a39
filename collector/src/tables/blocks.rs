//! Finding the rows of a KV block that is named by hash: some stored request has them.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    path::Path,
    sync::Arc,
};

use arrow::{
    array::{BinaryArray, BooleanArray, RecordBatch},
    error::ArrowError,
};
use bytes::Bytes;
use gatescope_routing::{
    join::{BlockReference, Segment},
    rows::Rows,
    span::{BlockHash, RequestKey},
};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowPredicateFn, ArrowReaderMetadata, ParquetRecordBatchReaderBuilder, RowFilter},
    },
    bloom_filter::Sbbf,
};

use super::{
    Tables,
    arrow_file::Columns,
    captures::{CaptureRow, Captures},
    columns::Cells,
    error::{Context, Result, TablesError},
};

/// The column by which blocks are found.
pub(super) const BLOCK_HASH: &str = "block_hash";
/// Stored requests that are tried for one block.
const MOST_TRIED: usize = 4;

/// A block: the same hash on another instance or in another generation is another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockName {
    /// The instance that computed it.
    pub instance: Arc<str>,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
    /// Its hash.
    pub hash: BlockHash,
}

impl From<&BlockReference> for BlockName {
    fn from(reference: &BlockReference) -> Self {
        let (instance, hash) = (Arc::clone(&reference.source.instance), reference.hash.clone());
        Self { instance, generation: reference.generation, hash }
    }
}

impl Tables {
    /// The rows of these blocks, as far as a stored request has them from the instance that computed them. Reads the
    /// newest files first, and of each what may have one of the hashes.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn blocks(&self, wanted: &HashSet<BlockName>) -> Result<HashMap<BlockName, Rows>> {
        let Some(log) = self.logs.get(Captures::TABLE) else { return Ok(HashMap::new()) };
        let hashes: Arc<HashSet<Arc<[u8]>>> = Arc::new(wanted.iter().map(|name| Arc::clone(&name.hash.0)).collect());
        let mut places: HashMap<BlockName, Vec<(RequestKey, u32, u32)>> = HashMap::new();
        let mut files: Vec<_> = log.files().map(|file| log.folder().join(&file.path)).collect();
        files.sort_unstable();
        for path in files.into_iter().rev() {
            if wanted.iter().all(|name| places.contains_key(name)) {
                break;
            }
            for (key, capture) in captures_with(&path, &hashes)? {
                let (Some(hash), Some(start)) = (capture.block, capture.start) else { continue };
                let (instance, generation) = (capture.source.instance, capture.generation);
                let name = BlockName { instance, generation, hash };
                if wanted.contains(&name) {
                    let places = places.entry(name).or_default();
                    if places.len() < MOST_TRIED {
                        places.push((key, start, capture.rows));
                    }
                }
            }
        }
        self.rows_at(places)
    }

    fn rows_at(&self, places: HashMap<BlockName, Vec<(RequestKey, u32, u32)>>) -> Result<HashMap<BlockName, Rows>> {
        let keys: HashSet<RequestKey> = places.values().flatten().map(|(key, ..)| key.clone()).collect();
        let keys: Vec<RequestKey> = keys.into_iter().collect();
        let stored = self.stored(&keys)?;
        let mut segments: HashMap<RequestKey, Vec<Segment>> = HashMap::new();
        let mut found = HashMap::new();
        for (name, places) in places {
            for (key, start, rows) in places {
                let Some(stored) = stored.get(&key) else { continue };
                if !segments.contains_key(&key) {
                    segments.insert(key.clone(), self.stored_rows(&stored.request)?);
                }
                let all = segments.get(&key).map_or(&[][..], Vec::as_slice);
                if let Some(rows) = rows_between(all, &name.instance, start, start + rows) {
                    found.insert(name, rows);
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// The rows of these positions, where this instance computed all of them.
pub fn rows_between(segments: &[Segment], instance: &str, start: u32, end: u32) -> Option<Rows> {
    let mut bytes = Vec::new();
    let mut at = start;
    let mut shape = None;
    for segment in segments.iter().filter(|segment| segment.end() > start && segment.start < end) {
        if segment.start > at || &*segment.source.instance != instance {
            return None;
        }
        let to = segment.end().min(end);
        let rows = segment.rows.slice((at - segment.start) as usize..(to - segment.start) as usize);
        shape = Some((rows.shape(), rows.width()));
        bytes.extend_from_slice(rows.bytes());
        at = to;
    }
    let (shape, width) = shape.filter(|_| at == end)?;
    Rows::new(Bytes::from(bytes), shape, width).ok()
}

/// The captures of a file that are blocks with one of these hashes.
fn captures_with(path: &Path, hashes: &Arc<HashSet<Arc<[u8]>>>) -> Result<Vec<(RequestKey, CaptureRow)>> {
    let file = File::open(path).context(path, "open")?;
    let metadata = ArrowReaderMetadata::load(&file, Default::default()).context(path, "read")?;
    let columns = metadata.parquet_schema().columns();
    let column = columns.iter().position(|column| column.path().string() == BLOCK_HASH);
    let column = column.ok_or_else(|| TablesError::Damaged {
        path: path.to_owned(),
        detail: format!("expected a column {BLOCK_HASH:?}"),
    })?;
    let mut groups = Vec::new();
    for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
        let filter = Sbbf::read_from_column_chunk(group.column(column), &file).context(path, "read")?;
        if filter.is_none_or(|filter| hashes.iter().any(|hash| filter.check(&**hash))) {
            groups.push(index);
        }
    }
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = Arc::clone(hashes);
    let mask = ProjectionMask::leaves(metadata.parquet_schema(), [column]);
    let is_wanted = ArrowPredicateFn::new(mask, move |batch: RecordBatch| {
        let found = batch.column(0).as_any().downcast_ref::<BinaryArray>();
        let found = found.ok_or_else(|| ArrowError::SchemaError(format!("{BLOCK_HASH}: expected binary")))?;
        Ok(found.iter().map(|hash| Some(hash.is_some_and(|hash| wanted.contains(hash)))).collect::<BooleanArray>())
    });
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_row_groups(groups)
        .with_row_filter(RowFilter::new(vec![Box::new(is_wanted)]))
        .build()
        .context(path, "read")?;
    let mut captures = Vec::new();
    for batch in reader {
        let batch = batch.context(path, "read")?;
        captures.extend(CaptureRow::read(Cells { path, batch: &batch })?);
    }
    Ok(captures)
}
