//! A running collector: agents stream to it, it dies, it comes back.

#[cfg(feature = "fail-points")]
mod crash;
mod fleet;
mod hostile;
mod http;
mod kill;
mod serve;
mod simulated;
mod sql;
mod stop;
mod stream;

use std::{collections::BTreeMap, path::Path};

use gatescope_collector::tables::Tables;
use gatescope_routing::{RequestKey, Status};

use self::fleet::Simple;

/// Panics unless every request is stored once, whole, without a finding, and with the rows that were computed.
fn assert_stored(data: &Path, requests: &[Simple]) {
    if let Err(difference) = compare(data, requests) {
        panic!("{difference}");
    }
}

/// What differs between what is stored and what was computed.
fn compare(data: &Path, requests: &[Simple]) -> Result<(), String> {
    let tables = Tables::open(data).map_err(|error| error.to_string())?;
    let mut listed: BTreeMap<RequestKey, usize> = BTreeMap::new();
    tables
        .request_keys(|key| {
            *listed.entry(key).or_default() += 1;
            true
        })
        .map_err(|error| error.to_string())?;
    if let Some((key, times)) = listed.iter().find(|(_, times)| **times != 1) {
        return Err(format!("{key} is stored {times} times"));
    }
    let keys: Vec<RequestKey> = requests.iter().map(Simple::key).collect();
    if let Some(key) = listed.keys().find(|key| !keys.contains(key)) {
        return Err(format!("{key} is stored and was never sent"));
    }
    let stored = tables.stored(&keys).map_err(|error| error.to_string())?;
    // Reading rows back opens files for each request: of many, some.
    let compared = requests.len() / 300 + 1;
    for (index, request) in requests.iter().enumerate() {
        let key = request.key();
        let Some(stored) = stored.get(&key) else { return Err(format!("{key} is not stored")) };
        if stored.request.status != Status::Whole || !stored.findings.is_empty() {
            let (status, findings) = (stored.request.status, &stored.findings);
            return Err(format!("{key} is {status:?} with {findings:?}"));
        }
        if index % compared != 0 {
            continue;
        }
        let segments = tables.stored_rows(&stored.request).map_err(|error| error.to_string())?;
        let rows: Vec<u8> = segments.iter().flat_map(|segment| segment.rows.bytes().to_vec()).collect();
        if rows != request.rows() {
            return Err(format!("{key}: other rows are stored than were computed"));
        }
    }
    Ok(())
}
