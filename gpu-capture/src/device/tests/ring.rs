//! The ring on host memory.
#![allow(unsafe_code)]

use super::{layout, seeded, trial};
use crate::device::{DeviceError, Place, Taken, driver_is_here, ring};

#[test]
fn steps_come_out_in_order_as_the_rule_says_and_a_full_ring_drops_the_new_one() {
    let mut random = seeded(4);
    let layout = layout(&mut random, 8, 64);
    let trials: Vec<_> = (1..6).map(|n| trial(&mut random, layout.clone(), n * 7)).collect();
    let (mut capture, mut steps) = ring(Place::Host, layout, 3).unwrap();

    for round in 0..4 {
        for (tag, trial) in trials.iter().enumerate() {
            // SAFETY: the trial's own ids, which outlive the call.
            let taken = unsafe { capture.capture(trial.ids.as_ptr() as u64, trial.tokens(), 0, tag as u64, true) };
            assert_eq!(taken, Ok(if tag < 3 { Taken::Kept } else { Taken::Dropped }));
        }
        assert_eq!(capture.dropped(), 2 * (round + 1));
        for (tag, trial) in trials.iter().take(3).enumerate() {
            let step = steps.oldest().unwrap().unwrap();
            let expected = trial.expected();
            assert_eq!((step.tag(), step.tokens()), (tag as u64, trial.tokens()));
            assert_eq!(step.rows(), expected.rows);
            assert_eq!(step.faults_by_layer(), expected.faults);
            assert_eq!(step.counts(), Some(expected.counts.as_slice()));
        }
        assert!(steps.oldest().unwrap().is_none());
    }
}

#[test]
fn what_cannot_be_a_step_is_refused() {
    let mut random = seeded(5);
    let layout = layout(&mut random, 4, 8);
    let (mut capture, mut steps) = ring(Place::Host, layout, 1).unwrap();
    // SAFETY: neither address is read: the first step is too long, the next two are no addresses of ids, the last is empty.
    unsafe {
        assert_eq!(capture.capture(64, 9, 0, 0, false), Err(DeviceError::TooManyTokens { tokens: 9, most: 8 }));
        assert_eq!(capture.capture(0, 1, 0, 0, false), Err(DeviceError::Address(0)));
        assert_eq!(capture.capture(66, 1, 0, 0, false), Err(DeviceError::Address(66)));
        assert_eq!(capture.capture(64, 0, 0, 0, false), Ok(Taken::Kept));
    }
    assert!(steps.oldest().unwrap().is_none(), "a step without tokens takes no slot");
}

#[test]
fn each_end_outlives_the_other() {
    let mut random = seeded(6);
    let layout = layout(&mut random, 4, 8);
    let trial = trial(&mut random, layout.clone(), 5);
    let (mut capture, mut steps) = ring(Place::Host, layout.clone(), 2).unwrap();
    // SAFETY: the trial's own ids.
    assert_eq!(unsafe { capture.capture(trial.ids.as_ptr() as u64, 5, 0, 1, false) }, Ok(Taken::Kept));
    drop(capture);
    assert_eq!(steps.oldest().unwrap().unwrap().tag(), 1);
    assert!(steps.oldest().unwrap().is_none());

    let (mut capture, steps) = ring(Place::Host, layout, 2).unwrap();
    drop(steps);
    for tag in 0..3 {
        // SAFETY: the trial's own ids.
        let taken = unsafe { capture.capture(trial.ids.as_ptr() as u64, 5, 0, tag, false) };
        assert!(matches!(taken, Ok(Taken::Kept | Taken::Dropped)), "{taken:?}");
    }
}

#[test]
fn without_a_driver_a_device_ring_is_an_error_and_not_a_panic() {
    if driver_is_here() {
        return;
    }
    let mut random = seeded(7);
    let layout = layout(&mut random, 4, 8);
    assert_eq!(ring(Place::Device, layout, 2).err(), Some(DeviceError::NoDriver));
}
