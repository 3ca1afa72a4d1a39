//! `gatescope vacuum`: table maintenance.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context, bail};
use chrono::NaiveDate;
use clap::ValueEnum;
use gatescope_collector::tables::{CompactionOptions, KEPT_AFTER_REMOVAL, Tables};
use indicatif::ProgressBar;
use serde_json::json;

use super::DataFolder;
use crate::{settings::Settings, shutdown};

/// Free the space of files that are no longer needed, and merge small ones
///
/// Removes data files that no table refers to any more, once they have been unneeded for a week: a query or another
/// program may still be reading them. With --compact, small files are merged first, towards 256 MiB. The folder must not
/// be written to meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope vacuum
  gatescope vacuum --data /srv/routing --compact
  gatescope vacuum --compact --keep-hours 0        # nobody is reading
  gatescope vacuum --expire-before 2026-09-01      # requests closed before that day are gone

Exit codes: 0 done, 1 interrupted, 2 wrong usage or a fatal error. Everything stays readable at every moment.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    data: DataFolder,
    /// Merge small files, of all tables, as far as it goes
    #[arg(long)]
    compact: bool,
    /// Take out the requests that were closed before this day (UTC) first, with all that belongs to them
    #[arg(long, value_name = "YYYY-MM-DD")]
    expire_before: Option<NaiveDate>,
    /// How long files are kept after they were replaced or expired, up to a week [default: 168]
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(..=168))]
    keep_hours: Option<u32>,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object
    Json,
}

/// What was done.
#[derive(Debug, Default)]
struct Summary {
    expired_requests: u64,
    expired_files: usize,
    merged_files: usize,
    merged_into: usize,
    removed_files: usize,
    removed_bytes: u64,
    interrupted: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let folder = arguments.data.path(settings);
    if !folder.join("requests").join("_delta_log").is_dir() {
        bail!("{}: there are no gatescope tables in it", folder.display());
    }
    let interrupted = shutdown::on_signal()?;
    let mut tables = Tables::open(&folder)?;
    let mut summary = Summary::default();
    if let Some(day) = arguments.expire_before {
        let before = day.and_hms_opt(0, 0, 0).context("--expire-before: no such time")?.and_utc();
        if let Some(expired) = tables.expire(before.timestamp_micros())? {
            (summary.expired_requests, summary.expired_files) = (expired.requests, expired.files);
        }
    }
    if arguments.compact {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        let options = CompactionOptions { thorough: true, ..CompactionOptions::default() };
        while !interrupted.load(Ordering::Relaxed)
            && let Some(compaction) = tables.plan_compaction(&options)
        {
            if let Some(bar) = &bar {
                bar.set_message(format!("merging {} files, {}", compaction.files(), size(compaction.bytes())));
                bar.tick();
            }
            let merged = tables.commit_compacted(compaction.run()?)?;
            summary.merged_files += merged.files;
            summary.merged_into += merged.into;
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }
    summary.interrupted = interrupted.load(Ordering::Relaxed);
    if !summary.interrupted {
        let hours = arguments.keep_hours.map(|hours| Duration::from_secs(3600 * u64::from(hours)));
        let removed = tables.vacuum(hours.unwrap_or(KEPT_AFTER_REMOVAL))?;
        (summary.removed_files, summary.removed_bytes) = (removed.files, removed.bytes);
    }
    print(&summary, &arguments)?;
    Ok(if summary.interrupted { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn print(summary: &Summary, arguments: &Arguments) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = match arguments.format {
        Format::Json => writeln!(out, "{}", as_json(summary)),
        Format::Text => out.write_all(as_text(summary, arguments).as_bytes()),
    };
    match printed.and_then(|()| out.flush()) {
        // Who closed the pipe does not want the rest.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn as_json(summary: &Summary) -> serde_json::Value {
    json!({
        "expired": {"requests": summary.expired_requests, "files": summary.expired_files},
        "merged": {"files": summary.merged_files, "into": summary.merged_into},
        "removed": {"files": summary.removed_files, "bytes": summary.removed_bytes},
        "interrupted": summary.interrupted,
    })
}

fn as_text(summary: &Summary, arguments: &Arguments) -> String {
    let mut text = String::new();
    if arguments.expire_before.is_some() {
        text += &format!("expired {} requests in {} files\n", summary.expired_requests, summary.expired_files);
    }
    if arguments.compact {
        text += &format!("merged {} files into {}\n", summary.merged_files, summary.merged_into);
    }
    if summary.interrupted {
        text + "interrupted: no file was removed\n"
    } else {
        text + &format!("removed {} files, {}\n", summary.removed_files, size(summary.removed_bytes))
    }
}

fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
