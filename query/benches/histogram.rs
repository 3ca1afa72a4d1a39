//! The histogram of one layer by SQL, inside the process: the counterpart of `tests/bench/histogram_baseline.py`.
//!
//! `GATESCOPE_BENCH_DATA` names a data folder of `gatescope import`; `tests/bench/run` makes one of 10 million positions.
//! Warm, best of ten; the last line is JSON, for that script.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{path::PathBuf, time::Instant};

use gatescope_query::{Catalog, Format, Options};

const QUERY: &str = "SELECT expert_counts(l07) AS counts FROM routing_48x8_u8";
const REPEATS: u32 = 10;

#[tokio::main]
async fn main() {
    let Some(folder) = std::env::var_os("GATESCOPE_BENCH_DATA").map(PathBuf::from) else {
        println!("GATESCOPE_BENCH_DATA is not set: nothing to measure (see tests/bench/run)");
        return;
    };
    let catalog = Catalog::open(&folder, &Options::default()).await.unwrap();
    let counts = histogram(&catalog).await;
    let (mut best, cpu) = (f64::INFINITY, cpu_seconds());
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let again = histogram(&catalog).await;
        best = best.min(begun.elapsed().as_secs_f64());
        assert!(again == counts, "every run counts the same ids");
    }
    let cpu = (cpu_seconds() - cpu) / f64::from(REPEATS);
    println!(r#"{{"seconds": {best:.4}, "cpu_seconds": {cpu:.4}, "answer": {}}}"#, counts.trim());
}

async fn histogram(catalog: &Catalog) -> String {
    let mut answer = Vec::new();
    catalog.query(QUERY).await.unwrap().write(Format::Json, &mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// User and system time of this process, in ticks of 10 ms (`/proc/self/stat`, fields 14 and 15); 0 where there is no
/// such file.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
