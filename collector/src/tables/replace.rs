//! Taking out the stored selves of requests that a batch stores anew.
//!
//! Files never change, so a file that has such a request is removed and written again without it. What stays of it stays
//! in its day (see [`super::closed`]): in files of their own, or in the batch's where that is of the same day.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    sync::Arc,
};

use arrow::{array::BooleanArray, compute::filter_record_batch};
use deltalake::kernel::Remove;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{
    Tables,
    arrow_file::{ArrowFile, Columns},
    batch::Contents,
    captures::Captures,
    closed::{Closed, both},
    columns::Cells,
    error::{Context, Result},
    expert_load::{ExpertLoad, Load, LoadKey},
    lookup::Wanted,
    mismatches::Mismatches,
    old_file::OldFile,
    parquet_file::{DataFile, FileName},
    requests::{RequestRow, Requests},
    routing_file::RoutingFile,
};

/// What taking requests out does to one table.
#[derive(Default)]
pub(super) struct Replacement {
    pub(super) add: Vec<DataFile>,
    pub(super) remove: Vec<Remove>,
}

/// What becomes of the rows that are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The batch has others in their place.
    Goes,
    /// They go to the batch's day, where the request is from now on.
    Moves,
}

/// The day of rows; `None` for those of a build that did not say it.
type Day = Option<i64>;

impl Tables {
    /// Takes the stored selves of the batch's replaced requests out of `requests`, `mismatches` and the routing tables,
    /// and moves their rows of `captures` to the batch. The load that they had added is taken away on the day on which
    /// it was added.
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
        let mut loads = BTreeMap::new();
        for (table, requests) in stored {
            let change = self.take_out_rows(&table, &requests, &mut loads, position)?;
            changes.insert(table.to_string(), change);
        }
        let day = contents.closed.map(Closed::day);
        let mut load = Replacement::default();
        for (of, (mut taken, closed)) in loads {
            if of.is_some() && of == day {
                contents.closed = both(contents.closed, closed);
                contents.load.merge(taken);
                continue;
            }
            let mut file = ArrowFile::<ExpertLoad>::new(self.root.clone(), FileName::new(position));
            taken.write_to(&mut file)?;
            load.add.extend(file.finish()?.map(|file| file.closed(closed)));
        }
        changes.insert(ExpertLoad::TABLE.to_owned(), load);
        let closed = &mut contents.closed;
        let requests = self.take_out(&wanted, Found::Goes, &mut contents.requests, closed, position)?;
        let mismatches = self.take_out(&wanted, Found::Goes, &mut contents.mismatches, closed, position)?;
        let captures = self.take_out(&wanted, Found::Moves, &mut contents.captures, closed, position)?;
        changes.insert(Requests::TABLE.to_owned(), requests);
        changes.insert(Mismatches::TABLE.to_owned(), mismatches);
        changes.insert(Captures::TABLE.to_owned(), captures);
        Ok(changes)
    }

    /// Takes requests out of a fixed table. `own` is the batch's file, of the day of `closed`.
    fn take_out<C: Columns>(
        &self,
        wanted: &Wanted<'_>,
        found: Found,
        own: &mut ArrowFile<C>,
        closed: &mut Option<Closed>,
        position: u64,
    ) -> Result<Replacement> {
        let mut change = Replacement::default();
        let mut others: BTreeMap<Day, (ArrowFile<C>, Option<Closed>)> = BTreeMap::new();
        let Some(log) = self.logs.get(C::TABLE) else { return Ok(change) };
        for file in log.files().filter(|file| wanted.may_be_in(file)) {
            let path = log.folder().join(&file.path);
            if self.indexes.of(&path)?.rows(&path, wanted)?.is_empty() {
                continue;
            }
            let of = file.closed;
            let with_batch = of.is_some() && of.map(Closed::day) == closed.map(Closed::day);
            if with_batch {
                *closed = both(*closed, of);
            } else {
                let (_, range) = match others.entry(of.map(Closed::day)) {
                    Entry::Occupied(there) => there.into_mut(),
                    Entry::Vacant(none) => {
                        none.insert((ArrowFile::new(self.root.clone(), FileName::new(position)), of))
                    }
                };
                *range = both(*range, of);
            }
            let handle = File::open(&path).context(&path, "open")?;
            let rows = ParquetRecordBatchReaderBuilder::try_new(handle).and_then(|reader| reader.build());
            for batch in rows.context(&path, "read")? {
                let batch = batch.context(&path, "read")?;
                let keys = Cells { path: &path, batch: &batch }.keys()?;
                let is_wanted: BooleanArray = keys.iter().map(|key| Some(wanted.has(key))).collect();
                let stays = arrow::compute::not(&is_wanted).context(&path, "read")?;
                let rest = filter_record_batch(&batch, &stays).context(&path, "read")?;
                match others.get_mut(&of.map(Closed::day)) {
                    Some((other, _)) if !with_batch => other.add_batch(&rest)?,
                    _ => own.add_batch(&rest)?,
                }
                if found == Found::Moves {
                    own.add_batch(&filter_record_batch(&batch, &is_wanted).context(&path, "read")?)?;
                }
            }
            change.remove.push(file.remove(true));
        }
        for (file, closed) in others.into_values() {
            change.add.extend(file.finish()?.map(|file| file.closed(closed)));
        }
        Ok(change)
    }

    /// Takes the rows of requests out of a routing table and their ids out of the load of their day.
    fn take_out_rows(
        &self,
        table: &str,
        requests: &[RequestRow],
        loads: &mut BTreeMap<Day, (Load, Option<Closed>)>,
        position: u64,
    ) -> Result<Replacement> {
        let wanted = Wanted::new(requests.iter().map(|request| &request.key));
        let mut change = Replacement::default();
        let Some(log) = self.logs.get(table) else { return Ok(change) };
        for file in log.files().filter(|file| wanted.may_be_in(file)) {
            let path = log.folder().join(&file.path);
            let old = OldFile::open(&path)?;
            if !old.has(&wanted)? {
                continue;
            }
            let closed = file.closed;
            let (load, range) = loads.entry(closed.map(Closed::day)).or_default();
            *range = both(*range, closed);
            let table = old.table()?;
            let mut new = RoutingFile::create(&self.root, &table, FileName::new(position))?;
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
            change.add.extend(new.finish()?.map(|file| file.closed(closed)));
            change.remove.push(file.remove(true));
        }
        Ok(change)
    }
}
