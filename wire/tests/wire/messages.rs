//! Names and acknowledgements.

use gatescope_wire::{Ack, MessageId, Nack, NackCode};
use uuid::Uuid;

#[test]
fn a_message_says_its_name() {
    let id = MessageId { agent: "host-3/\"gpu\" 0".into(), boot: Uuid::from_u128(7), seq: u64::MAX };

    assert_eq!(MessageId::read(&id.metadata()), Ok(id));
}

#[test]
fn names_that_cannot_be_are_refused_with_what_was_expected() {
    let boot = Uuid::nil();
    for (metadata, found) in [
        (String::new(), "empty"),
        ("7".to_owned(), "invalid type"),
        (format!(r#"{{"wire":1,"agent":"a","boot":"{boot}"}}"#), "missing field `seq`"),
        (format!(r#"{{"wire":2,"agent":"a","boot":"{boot}","seq":1}}"#), "\"wire\": 2"),
        (format!(r#"{{"wire":1,"agent":"","boot":"{boot}","seq":1}}"#), "\"agent\" of 0 bytes"),
        (format!(r#"{{"wire":1,"agent":"a","boot":"{boot}","seq":0}}"#), "\"seq\": 0"),
        (r#"{"wire":1,"agent":"a","boot":"x","seq":1}"#.to_owned(), "UUID"),
    ] {
        let error = MessageId::read(metadata.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(found) && error.contains("expected {\"wire\": 1"), "{metadata}: {error}");
    }
    // Keys of later versions are passed over.
    let later = format!(r#"{{"wire":1,"agent":"a","boot":"{boot}","seq":1,"mood":"good"}}"#);
    assert!(MessageId::read(later.as_bytes()).is_ok());
}

#[test]
fn acknowledgements_come_back_as_they_went_in_pieces_of_bounded_size() {
    let nack = |seq, row, code| Nack { seq, row, code, reason: "é\n".repeat(3000), retryable: row.is_none() };
    let codes = [NackCode::Malformed, NackCode::Storage, NackCode::Other("later".into())];
    let nacks: Vec<Nack> =
        (0..100).map(|i| nack(i, (i % 2 == 0).then_some(3), codes[i as usize % 3].clone())).collect();
    let ack = Ack { agent: "a".into(), boot: Uuid::from_u128(3), durable: 17, nacks };

    let pieces: Vec<Ack> = ack.metadata().iter().map(|piece| Ack::read(piece).unwrap()).collect();

    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.durable == 17 && piece.boot == ack.boot));
    let came: Vec<Nack> = pieces.into_iter().flat_map(|piece| piece.nacks).collect();
    let shortened: Vec<Nack> =
        ack.nacks.into_iter().map(|nack| Nack { reason: nack.reason.chars().take(400).collect(), ..nack }).collect();
    assert_eq!(came, shortened);
}

#[test]
fn an_acknowledgement_is_json() {
    let nacks =
        vec![Nack { seq: 5, row: None, code: NackCode::OutOfOrder, reason: "4 has not come".into(), retryable: true }];
    let ack = Ack { agent: "a".into(), boot: Uuid::nil(), durable: 3, nacks };

    assert_eq!(
        ack.metadata()[0],
        concat!(
            r#"{"wire":1,"agent":"a","boot":"00000000-0000-0000-0000-000000000000","durable":3,"nacks":["#,
            r#"{"seq":5,"code":"out-of-order","reason":"4 has not come","retryable":true}]}"#
        )
    );
}
