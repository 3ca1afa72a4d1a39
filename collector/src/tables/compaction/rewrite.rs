//! Writing the rows of several files into one, a page or a batch of rows in memory.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::array::{Int64Array, RecordBatch};
use gatescope_routing::span::Role;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::super::{
    arrow_file::{ArrowFile, Columns},
    captures::Captures,
    columns::Cells,
    error::{Context, Result, TablesError},
    expert_load::{ExpertLoad, LoadKey},
    mismatches::Mismatches,
    old_file::OldFile,
    parquet_file::{DataFile, FileName},
    requests::Requests,
    routing::Phase,
    routing_file::RoutingFile,
};

/// Writes the rows of these files of a table into one; `None` where nothing is left of them.
pub(super) fn rewrite(root: &Arc<Path>, table: &str, files: &[PathBuf], name: FileName) -> Result<Option<DataFile>> {
    match table {
        Requests::TABLE => copy::<Requests>(root, files, name),
        Mismatches::TABLE => copy::<Mismatches>(root, files, name),
        Captures::TABLE => copy::<Captures>(root, files, name),
        ExpertLoad::TABLE => sum(root, files, name),
        _ => copy_rows(root, table, files, name),
    }
}

fn copy_rows(root: &Path, table: &str, files: &[PathBuf], name: FileName) -> Result<Option<DataFile>> {
    let Some(first) = files.first() else { return Ok(None) };
    let columns = OldFile::open(first)?.table()?;
    if columns.name() != table {
        let detail = format!("has the columns of {}, expected those of {table}", columns.name());
        return Err(TablesError::Damaged { path: first.clone(), detail });
    }
    let mut new = RoutingFile::create(root, &columns, name)?;
    for path in files {
        let old = OldFile::open(path)?;
        if old.table()? != columns {
            let detail = format!("has other columns than {}", first.display());
            return Err(TablesError::Damaged { path: path.clone(), detail });
        }
        old.copy(&mut new)?;
    }
    new.finish()
}

fn copy<C: Columns>(root: &Arc<Path>, files: &[PathBuf], name: FileName) -> Result<Option<DataFile>> {
    let mut new = ArrowFile::<C>::new(root.clone(), name);
    for path in files {
        for batch in batches(path)? {
            new.add_batch(&batch?)?;
        }
    }
    new.finish()
}

fn batches(path: &Path) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
    let file = File::open(path).context(path, "open")?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|reader| reader.build());
    Ok(reader.context(path, "read")?.map(|batch| batch.context(path, "read")))
}

/// Adds up the increments of equal keys; those that come to 0 go.
fn sum(root: &Arc<Path>, files: &[PathBuf], name: FileName) -> Result<Option<DataFile>> {
    let mut new = ArrowFile::new(root.clone(), name);
    let mut sums = Sums::default();
    for path in files {
        for batch in batches(path)? {
            sums.add(Cells { path, batch: &batch? })?;
            if sums.entries > MOST_ENTRIES {
                sums.write_to(&mut new)?;
            }
        }
    }
    sums.write_to(&mut new)?;
    new.finish()
}

/// Most sums in memory; beyond it they go to the file, and a key may come twice. A minute of one instance of a model of 61
/// layers and 256 experts has 31,000 for both phases.
const MOST_ENTRIES: usize = if cfg!(test) { 100 } else { 1 << 19 };

#[derive(Default)]
struct Sums {
    /// By key: layer and expert, tokens.
    sums: HashMap<LoadKey, BTreeMap<(u32, u32), i64>>,
    entries: usize,
}

impl Sums {
    fn add(&mut self, cells: Cells<'_>) -> Result<()> {
        let (minutes, tokens) = (cells.times("minute")?, cells.column::<Int64Array>("tokens")?);
        let text = |name| cells.text(name);
        let (runs, models, instances) = (text("run")?, text("model")?, text("instance")?);
        let (roles, phases) = (text("role")?, text("phase")?);
        let (layers, experts) = (cells.ints("layer")?, cells.ints("expert")?);
        let mut row = 0;
        while row < cells.batch.num_rows() {
            // Neighbours mostly have the same key.
            let first = row;
            let same = |row: usize| {
                minutes.value(row) == minutes.value(first)
                    && [runs, models, instances, roles, phases].iter().all(|of| of.value(row) == of.value(first))
            };
            let phase = phases.value(row);
            let key = LoadKey {
                minute: minutes.value(row),
                run: runs.value(row).into(),
                model: models.value(row).into(),
                instance: instances.value(row).into(),
                role: roles.value(row).parse::<Role>().map_err(|error| cells.damaged(format!("{error}")))?,
                phase: Phase::from_name(phase).ok_or_else(|| cells.damaged(format!("phase {phase:?} is none")))?,
            };
            let sums = self.sums.entry(key).or_default();
            let before = sums.len();
            while row < cells.batch.num_rows() && same(row) {
                *sums.entry((layers.value(row) as u32, experts.value(row) as u32)).or_default() += tokens.value(row);
                row += 1;
            }
            self.entries += sums.len() - before;
        }
        Ok(())
    }

    /// Writes every sum that is not 0 and starts anew.
    fn write_to(&mut self, file: &mut ArrowFile<ExpertLoad>) -> Result<()> {
        let mut sums: Vec<_> = self.sums.drain().collect();
        sums.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        self.entries = 0;
        for (key, sums) in sums {
            let key = Arc::new(key);
            for ((layer, expert), tokens) in sums.into_iter().filter(|&(_, tokens)| tokens != 0) {
                file.add(|columns| columns.push(&key, layer, expert, tokens))?;
            }
        }
        Ok(())
    }
}
