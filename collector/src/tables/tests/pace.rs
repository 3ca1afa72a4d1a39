//! How long a commit takes after many.

use std::time::Instant;

use super::{Tables, commit, compaction::rows_of, small};
use crate::tables::CompactionOptions;

#[test]
#[ignore = "measures; takes minutes"]
fn the_time_of_a_commit_after_a_thousand() {
    let merge = std::env::var("MERGE").is_ok();
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let mut times = Vec::new();
    for id in 0..1_100 {
        let request = small(&id.to_string());
        let start = Instant::now();
        commit(&mut tables, &[request]);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        let mut merged = 0;
        while merge
            && let Some(compaction) =
                tables.plan_compaction(&CompactionOptions { target_bytes: 1 << 20, thorough: false })
        {
            merged += tables.commit_compacted(compaction.run().unwrap()).unwrap().files;
        }
        let merging = start.elapsed().as_secs_f64() * 1e3;
        if id % 100 == 99 {
            let mut last = times[times.len() - 100..].to_vec();
            last.sort_by(f64::total_cmp);
            let files = tables.logs["requests"].files().count();
            let log = std::fs::read_dir(folder.path().join("requests/_delta_log")).unwrap().count();
            println!(
                "{id}: median {:.1} ms, p99 {:.1} ms, {files} files, {log} in the log, merged {merged} in {merging:.0} ms",
                last[50], last[98]
            );
        }
    }
    drop(tables);
    let start = Instant::now();
    let tables = Tables::open(folder.path()).unwrap();
    println!("opening {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    assert_eq!(rows_of(&tables, "requests").len(), 1_100);
}
