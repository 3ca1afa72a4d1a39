//! Which files to merge.

use std::collections::BTreeMap;

use super::{super::parquet_file::FileName, CompactionOptions};

/// A file that a table has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: FileName,
    pub(super) bytes: u64,
    /// The day that its rows belong to.
    pub(super) day: Option<i64>,
}

/// Each step of sizes is this many times the one before it (a power of two).
const STEP_BITS: u32 = 4;
const STEPS: u32 = 4;

/// Files that are adjacent in the order of commits and of one day, to be merged into one; the oldest that qualify.
///
/// Files below a step of sizes are merged as soon as that takes them above it, so no row is written again more often than
/// there are steps. What a day leaves over is merged when it has passed.
pub(super) fn choose(mut files: Vec<Candidate>, options: &CompactionOptions) -> Option<Vec<Candidate>> {
    files.sort_unstable_by_key(|file| file.name);
    let newest = files.iter().map(|file| file.day).max()?;
    let mut days: BTreeMap<Option<i64>, Vec<Candidate>> = BTreeMap::new();
    for file in files {
        days.entry(file.day).or_default().push(file);
    }
    let target = options.target_bytes;
    for (day, files) in days {
        if options.thorough {
            if let Some(run) = runs(&files, u64::MAX, target).find(|run| run.len() >= 2) {
                return Some(run.to_vec());
            }
            continue;
        }
        for step in (0..STEPS).rev() {
            let size = (target / 2) >> (step * STEP_BITS);
            if let Some(run) = runs(&files, size, target).find(|run| run.len() >= 2 && bytes(run) >= size) {
                return Some(run.to_vec());
            }
        }
        if day < newest
            && let Some(run) = runs(&files, target, target).find(|run| is_worth_it(run))
        {
            return Some(run.to_vec());
        }
    }
    None
}

fn bytes(run: &[Candidate]) -> u64 {
    run.iter().map(|file| file.bytes).sum()
}

/// Whether merging at least halves what has to be opened without writing one large file again for a small one.
fn is_worth_it(run: &[Candidate]) -> bool {
    run.len() >= 2 && run.iter().all(|file| file.bytes <= bytes(run) / 2)
}

/// Adjacent files smaller than `below` and together not larger than `target`.
fn runs(files: &[Candidate], below: u64, target: u64) -> impl Iterator<Item = &[Candidate]> {
    let mut rest = files;
    std::iter::from_fn(move || {
        let first = rest.iter().position(|file| file.bytes < below)?;
        rest = &rest[first..];
        let mut bytes = 0;
        let mut fits = |file: &Candidate| {
            bytes += file.bytes;
            file.bytes < below && bytes <= target
        };
        let len = rest.iter().take_while(|file| fits(file)).count().max(1);
        let (run, after) = rest.split_at(len);
        rest = after;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn file(position: u64, bytes: u64, day: i64) -> Candidate {
        Candidate { name: FileName { position, id: Uuid::from_u128(position.into()) }, bytes, day: Some(day) }
    }

    /// Commits of one size, merged whenever something can be: the files at the end, and the bytes written by merging.
    fn live(commits: u64, bytes: u64, options: &CompactionOptions) -> (Vec<Candidate>, u64) {
        let (mut files, mut written) = (Vec::new(), 0);
        for position in 0..commits {
            files.push(file(position, bytes, 0));
            while let Some(run) = choose(files.clone(), options) {
                let bytes = run.iter().map(|file| file.bytes).sum();
                files.retain(|file| !run.contains(file));
                files.push(Candidate { bytes, ..run[0].clone() });
                written += bytes;
            }
        }
        (files, written)
    }

    #[test]
    fn a_day_of_commits_ends_in_few_files_and_each_row_is_written_again_few_times() {
        let options = CompactionOptions::default();
        for bytes in [20_000, 1 << 20, 40 << 20] {
            let (files, written) = live(8_640, bytes, &options);

            let total: u64 = files.iter().map(|file| file.bytes).sum();
            assert_eq!(total, 8_640 * bytes);
            assert!(files.len() as u64 <= 4 * 17 + 2 * total / options.target_bytes, "{}", files.len());
            assert!(written <= 4 * total, "{} times", written as f64 / total as f64);
            assert!(files.iter().all(|file| file.bytes <= options.target_bytes));
        }
    }

    #[test]
    fn what_a_day_leaves_over_is_merged_when_it_has_passed() {
        let options = CompactionOptions::default();
        let day = |day: u64| (0..5).map(|n| file(day * 5 + n, 1_000, day as i64)).collect::<Vec<_>>();

        assert_eq!(choose(day(0), &options), None);
        assert_eq!(choose([day(1), day(0)].concat(), &options), Some(day(0)));
    }

    #[test]
    fn a_large_file_is_not_written_again_for_a_small_one() {
        let files = vec![file(0, 100 << 20, 0), file(1, 1_000, 0), file(2, 5, 1)];

        assert_eq!(choose(files.clone(), &CompactionOptions::default()), None);
        assert_eq!(
            choose(files.clone(), &CompactionOptions { thorough: true, ..CompactionOptions::default() }),
            Some(files[..2].to_vec())
        );
    }

    proptest! {
        #[test]
        fn only_adjacent_files_of_a_day_are_merged_and_it_comes_to_an_end(
            sizes in proptest::collection::vec((1u64..3_000, 0i64..3), 0..60),
            thorough in any::<bool>(),
        ) {
            let options = CompactionOptions { target_bytes: 4_096, thorough };
            let mut files: Vec<_> =
                sizes.iter().zip(0..).map(|(&(bytes, day), position)| file(position, bytes, day)).collect();
            let mut rounds = 0;
            while let Some(run) = choose(files.clone(), &options) {
                prop_assert!(run.len() >= 2);
                prop_assert!(run.iter().all(|file| file.day == run[0].day));
                prop_assert!(run.iter().map(|file| file.bytes).sum::<u64>() <= 4_096);
                let of_day: Vec<_> = files.iter().filter(|file| file.day == run[0].day).cloned().collect();
                let first = of_day.iter().position(|file| *file == run[0]).unwrap();
                prop_assert_eq!(&of_day[first..first + run.len()], &run[..]);
                let merged = Candidate { bytes: run.iter().map(|file| file.bytes).sum(), ..run[0].clone() };
                files.retain(|file| !run.contains(file));
                files.push(merged);
                files.sort_unstable_by_key(|file| file.name);
                rounds += 1;
                prop_assert!(rounds <= 60);
            }
        }
    }
}
