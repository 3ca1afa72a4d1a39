//! Bytes that are not what was written.

use super::*;
use crate::log::{
    Lost,
    frame::{FILE_HEADER, FRAME_HEADER},
};

fn frame_bytes(position: u64) -> usize {
    FRAME_HEADER + payload(position).len()
}

fn salvage() -> Options {
    Options { salvage: true, ..small() }
}

#[test]
fn a_torn_tail_is_cut_at_every_byte_and_reported() {
    // Given: the last of five records, written in a group of its own.
    let whole = disk_with(5, Options { roll_bytes: 1 << 20, ..small() });
    let path = whole.paths()[0].clone();
    let bytes = whole.read(&path);
    let start = bytes.len() - frame_bytes(5);
    for end in start..bytes.len() {
        let rest = bytes.len() - end;
        let tails = [Vec::new(), vec![0; rest], vec![0xFF; rest], bytes[..rest].to_vec()];
        for (kind, tail) in tails.into_iter().enumerate() {
            // When: the file ends there, or goes on with what happened to be on the disk.
            let disk = whole.copy();
            let torn = [&bytes[..end], &tail].concat();
            if torn == bytes {
                continue;
            }
            disk.write(&path, torn.clone());
            let (log, mut replay) = open(&disk, 0, small()).unwrap();

            // Then
            let found: Vec<_> = replay.by_ref().map(Result::unwrap).collect();
            assert_eq!(found, records(1..=4), "{end}, tail {kind}");
            assert_eq!(disk.read(&path), bytes[..start]);
            let cut = replay.cut().map(|cut| (cut.length, cut.bytes, cut.position));
            let expected = (torn.len() > start).then_some((start as u64, (torn.len() - start) as u64, 5));
            assert_eq!(cut, expected, "{end}, tail {kind}");
            append_each(&log, 1);
            drop(log);
            assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=5));
        }
    }
}

#[test]
fn a_group_that_the_disk_took_in_another_order_is_torn_and_not_damaged() {
    // Given: two durable records, then a group of three of which the middle was not yet on the disk.
    let disk = disk_with(2, small());
    let path = disk.paths()[0].clone();
    let start = disk.read(&path).len();
    add_group(&disk, 3, 3);
    let mut bytes = disk.read(&path);
    let middle = start + frame_bytes(3);
    bytes[middle..middle + frame_bytes(4)].fill(0);
    disk.write(&path, bytes);

    // Then
    let (found, replay) = replayed(&disk, 0, small()).unwrap();
    assert_eq!(found, records(1..=3));
    assert_eq!(replay.cut().map(|cut| cut.position), Some(4));
}

#[test]
fn damage_before_a_later_group_stops_with_file_offset_and_expectation() {
    // Given: the second of four records damaged, all in the last file.
    let disk = disk_with(4, Options { roll_bytes: 1 << 20, ..small() });
    let path = disk.paths()[0].clone();
    let mut bytes = disk.read(&path);
    let offset = FILE_HEADER + frame_bytes(1);
    bytes[offset + FRAME_HEADER] ^= 1;
    disk.write(&path, bytes);

    // When
    let stopped = open(&disk, 0, small()).map(drop).unwrap_err();

    // Then
    let LogError::Damaged { lost, expected, .. } = &stopped else { panic!("{stopped}") };
    let to = (offset + frame_bytes(2)) as u64;
    assert_eq!(*lost, Lost { path: path.clone(), from: offset as u64, to, first: 2, last: Some(2) });
    assert_eq!(expected, "record 2");
    let text = stopped.to_string();
    assert!(
        text.starts_with(&format!("{}: damaged from byte {offset} to {to}: record 2 lost", path.display())),
        "{text}"
    );
    assert!(text.contains("expected record 2, found checksum "), "{text}");

    // And: with salvage the others come; once they are committed nothing stops any more.
    let (found, replay) = replayed(&disk, 0, salvage()).unwrap();
    assert_eq!(found, records([1, 3, 4]));
    assert_eq!(replay.lost(), std::slice::from_ref(lost));
    assert_eq!(replayed(&disk, 2, small()).unwrap().0, records(3..=4));
}

#[test]
fn after_salvage_the_log_goes_on_in_a_new_file() {
    // Given
    let disk = disk_with(4, Options { roll_bytes: 1 << 20, ..small() });
    let path = disk.paths()[0].clone();
    let mut bytes = disk.read(&path);
    bytes[FILE_HEADER + FRAME_HEADER] ^= 1;
    disk.write(&path, bytes);

    // When
    let (log, _) = open(&disk, 0, salvage()).unwrap();
    append_each(&log, 1);

    // Then: the damaged file goes with what is committed.
    assert_eq!(disk.paths().len(), 2);
    assert_eq!(log.delete_below(4).unwrap().files, 1);
    drop(log);
    assert_eq!(replayed(&disk, 4, small()).unwrap().0, records([5]));
}

#[test]
fn any_flipped_bit_gives_the_exact_records_or_fewer_at_the_end_or_a_clear_error() {
    // Given: records 1 to 12 in some files, the last three as one group.
    let whole = disk_with(9, small());
    add_group(&whole, 10, 3);
    let files = whole.paths();
    let all = records(1..=12);
    let last_group: Vec<_> = (9..=12).map(|count| &all[..count]).collect();
    assert!(files.len() > 2);
    for path in &files {
        let bytes = whole.read(path);
        let is_last = path == files.last().unwrap();
        for bit in 0..bytes.len() * 8 {
            let disk = whole.copy();
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            disk.write(path, flipped);

            // When
            let strict = replayed(&disk.copy(), 0, small());
            let (saved, replay) = replayed(&disk, 0, salvage()).unwrap();

            // Then
            match strict {
                Ok((found, _)) if found == all => {}
                Ok((found, replay)) => {
                    assert!(is_last && last_group.contains(&&found[..]), "{path:?} bit {bit}: {found:?}");
                    assert!(replay.cut().is_some());
                }
                Err(LogError::Damaged { lost, .. }) => {
                    assert_eq!(lost.path, *path);
                    assert!((lost.from..lost.to.max(lost.from + 1)).contains(&(bit as u64 / 8)), "{lost} bit {bit}");
                }
                Err(other) => panic!("{path:?} bit {bit}: {other}"),
            }
            // Salvage gives all that it does not report as lost or cut.
            let gone = |position: u64| {
                let lost = replay.lost().iter().any(|lost| lost.first <= position && Some(position) <= lost.last);
                lost || replay.cut().is_some_and(|cut| cut.position <= position)
            };
            let kept: Vec<_> = all.iter().filter(|record| !gone(record.position)).cloned().collect();
            assert_eq!(saved, kept, "{path:?} bit {bit}");
            assert!(saved.len() + 3 >= all.len(), "one bit costs a record, or the newest group");
        }
    }
}

#[test]
fn a_whole_sector_of_any_file_may_go_and_salvage_says_what_was_in_it() {
    let whole = disk_with(12, small());
    for path in whole.paths() {
        let bytes = whole.read(&path);
        for start in (0..bytes.len()).step_by(16) {
            let disk = whole.copy();
            let mut wiped = bytes.clone();
            let end = (start + 64).min(bytes.len());
            wiped[start..end].fill(0xA5);
            disk.write(&path, wiped);
            let (saved, replay) = replayed(&disk, 0, salvage()).unwrap();
            let gone = |position: u64| {
                let lost = replay.lost().iter();
                let lost = lost.map(|lost| (lost.first, lost.last.unwrap_or(u64::MAX)));
                let mut ranges = lost.chain(replay.cut().map(|cut| (cut.position, u64::MAX)));
                ranges.any(|(first, last)| (first..=last).contains(&position))
            };
            let kept = records((1..=12).filter(|position| !gone(*position)));
            assert_eq!(saved, kept, "{path:?} from {start}");
        }
    }
}

#[test]
fn a_missing_file_stops_and_salvage_says_which_records() {
    // Given
    let disk = disk_with(30, small());
    let files = disk.paths();
    let first = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let (from, to) = (first(&files[1]), first(&files[2]) - 1);
    disk.delete(&files[1]);

    // Then
    let stopped = replayed(&disk, 0, small()).map(drop).unwrap_err();
    let LogError::Damaged { lost, .. } = &stopped else { panic!("{stopped}") };
    assert_eq!((lost.path.as_path(), lost.first, lost.last), (files[0].as_path(), from, Some(to)));
    let expected =
        format!("expected record {from}, found the end of the file, and the next one begins with record {}", to + 1);
    assert!(stopped.to_string().contains(&expected), "{stopped}");
    let (found, replay) = replayed(&disk, 0, salvage()).unwrap();
    assert_eq!(found, records((1..from).chain(to + 1..=30)));
    assert_eq!(replay.lost().len(), 1);

    // And: the first file, too, is missed where its records are not committed.
    let disk = disk_with(30, small());
    disk.delete(&files[0]);
    let stopped = replayed(&disk, 0, small()).map(drop).unwrap_err();
    assert!(stopped.to_string().contains("expected a file that holds record 1"), "{stopped}");
    assert_eq!(replayed(&disk, from - 1, small()).unwrap().0, records(from..=30));
}

#[test]
fn a_file_that_ends_early_stops_with_the_records_that_it_should_hold() {
    let disk = disk_with(30, small());
    let path = disk.paths()[0].clone();
    let bytes = disk.read(&path);
    disk.write(&path, bytes[..FILE_HEADER + frame_bytes(1)].to_vec());
    let stopped = replayed(&disk, 0, small()).map(drop).unwrap_err();
    assert!(stopped.to_string().contains("expected record 2, found the end of the file"), "{stopped}");
}

#[test]
fn a_renamed_file_is_told_from_its_header() {
    let disk = disk_with(30, small());
    let files = disk.paths();
    let bytes = disk.read(&files[1]);
    disk.write(&files[2], bytes);
    let stopped = replayed(&disk, 0, small()).map(drop).unwrap_err();
    let text = stopped.to_string();
    assert!(text.contains("found the header of a file that begins with record"), "{text}");
}

#[test]
fn a_last_file_without_header_is_set_aside_by_salvage_only() {
    // Given
    let disk = disk_with(30, small());
    let path = disk.paths().pop().unwrap();
    let first: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let mut bytes = disk.read(&path);
    bytes[..FILE_HEADER].fill(0);
    disk.write(&path, bytes.clone());

    // Then
    assert!(matches!(open(&disk, 0, small()), Err(LogError::Damaged { .. })));
    let (found, replay) = replayed(&disk, 0, salvage()).unwrap();
    assert_eq!(found, records(1..first));
    assert_eq!(replay.lost().iter().map(|lost| (lost.first, lost.last)).collect::<Vec<_>>(), [(first, None)]);
    assert_eq!(disk.read(&path.with_extension("log.damaged")), bytes);
}

#[test]
fn a_file_that_a_crash_kept_from_beginning_is_begun_again() {
    for length in 0..=FILE_HEADER {
        // Given: a name without a header, after records that its name says were durable.
        let disk = disk_with(5, Options { roll_bytes: 1 << 20, ..small() });
        let path = crate::log::folder::file_path(folder(), 6);
        disk.write(&path, vec![0; length]);

        // Then
        let (log, replay) = open(&disk, 0, small()).unwrap();
        assert_eq!(replay.map(Result::unwrap).collect::<Vec<_>>(), records(1..=5));
        append_each(&log, 1);
        drop(log);
        assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=6));
    }
}

#[test]
fn bytes_inside_a_record_cannot_pose_as_a_frame() {
    // Given: a record that holds a copy of this log's own later frames, then damage just before it.
    let donor = disk_with(6, Options { roll_bytes: 1 << 20, ..small() });
    let frames = donor.read(&donor.paths()[0])[FILE_HEADER..].to_vec();
    let disk = disk_with(1, Options { roll_bytes: 1 << 20, ..small() });
    let (log, _) = open(&disk, 0, grouped()).unwrap();
    log.append_blocking(frames.into()).unwrap();
    drop(log);
    let path = disk.paths()[0].clone();
    let mut bytes = disk.read(&path);
    let second = FILE_HEADER + frame_bytes(1);
    bytes[second] ^= 1;
    disk.write(&path, bytes);

    // Then: it is the torn tail that it looks like, and not records 2 to 6.
    let (found, replay) = replayed(&disk, 0, small()).unwrap();
    assert_eq!(found, records([1]));
    assert_eq!(replay.cut().map(|cut| cut.length), Some(second as u64));
}

#[test]
fn replay_ends_after_its_first_error() {
    let disk = disk_with(30, small());
    disk.delete(&disk.paths()[1]);
    let (_log, replay) = open(&disk, 0, small()).unwrap();
    let outcomes: Vec<_> = replay.collect();
    assert!(outcomes.last().unwrap().is_err());
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1);
}

#[test]
fn a_later_format_is_refused_by_name() {
    let disk = disk_with(1, small());
    let path = disk.paths()[0].clone();
    let mut bytes = disk.read(&path);
    for copy in [0, FILE_HEADER / 2] {
        bytes[copy + 8] = 2;
        let covered = [&bytes[copy..copy + 12], &bytes[copy + 16..copy + 32]].concat();
        let crc = crc32c::crc32c(&covered).to_le_bytes();
        bytes[copy + 12..copy + 16].copy_from_slice(&crc);
    }
    disk.write(&path, bytes);
    let refused = open(&disk, 0, salvage()).map(drop).unwrap_err();
    assert!(matches!(refused, LogError::Version { found: 2, supported: 1, .. }), "{refused}");
}
