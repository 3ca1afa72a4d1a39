use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn parse(text: &str) -> Json<'_> {
    Json::parse(text).unwrap()
}

/// Builds the value anew from the slices.
fn rebuilt(json: Json<'_>) -> Value {
    match json.kind() {
        Kind::Object => json.fields().map(|(name, value)| (name.into_owned(), rebuilt(value))).collect(),
        Kind::List => json.items().map(rebuilt).collect(),
        Kind::String => Value::String(json.characters().unwrap().into_owned()),
        Kind::Null | Kind::Boolean | Kind::Number => serde_json::from_str(json.text()).unwrap(),
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[\\[\\]{}\",:\\\\]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[^\u{0}]{0,6}", inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

#[test]
fn values_keep_their_kind_and_text() {
    let json = parse(r#" {"a": [1, -2.5e3], "b": null, "c": true, "d": "x\/y", "e": {} } "#);
    let kinds: Vec<_> = json.fields().map(|(_, value)| value.kind()).collect();
    let texts: Vec<_> = json.fields().map(|(_, value)| value.text()).collect();

    assert_eq!(kinds, [Kind::List, Kind::Null, Kind::Boolean, Kind::String, Kind::Object]);
    assert_eq!(texts, ["[1, -2.5e3]", "null", "true", r#""x\/y""#, "{}"]);
    assert_eq!(json.items().count(), 0);
}

#[test]
fn names_with_escapes_are_the_names_they_stand_for() {
    let json = parse(r#"{"\u0072ole": 1}"#);
    assert_eq!(json.fields().next().unwrap().0, "role");
}

#[test]
fn what_is_not_json_is_said_with_its_place() {
    let cases = [
        ("", JsonError::End("a value")),
        (r#"{"a": "b"#, JsonError::End("the end of a string")),
        (r#"{"a": 1"#, JsonError::End("',' or '}'")),
        ("[1, 2", JsonError::End("',' or ']'")),
        ("[1 2]", JsonError::Expected { at: 3, expected: "',' or ']'" }),
        ("[1}", JsonError::Expected { at: 2, expected: "',' or ']'" }),
        ("{} {}", JsonError::Expected { at: 3, expected: "nothing behind the value" }),
        ("01", JsonError::Expected { at: 1, expected: "nothing behind the value" }),
        ("[1,]", JsonError::Expected { at: 3, expected: "a value" }),
        ("{'a': 1}", JsonError::Expected { at: 1, expected: "a field's name" }),
        ("\"a\nb\"", JsonError::Expected { at: 2, expected: "no bare control character inside a string" }),
        (r#""\x""#, JsonError::Expected { at: 2, expected: "an escape" }),
        ("NaN", JsonError::Expected { at: 0, expected: "a value" }),
    ];
    for (text, error) in cases {
        assert_eq!(Json::parse(text).map(Json::text), Err(error), "{text:?}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(Json::parse(&nested(MAX_DEPTH as usize)).is_ok());
    assert_eq!(Json::parse(&nested(MAX_DEPTH as usize + 1)).unwrap_err(), JsonError::Depth(MAX_DEPTH as usize));
    assert_eq!(Json::parse(&"[".repeat(1 << 20)).unwrap_err(), JsonError::Depth(MAX_DEPTH as usize));
}

#[test]
fn lone_surrogates_read_as_the_replacement_character() {
    assert_eq!(parse(r#""a\ud800b""#).characters().unwrap(), "a\u{fffd}b");
    assert_eq!(parse(r#""\ud83d\ude00""#).characters().unwrap(), "😀");
}

proptest! {
    #[test]
    fn what_was_written_is_read(value in value(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(rebuilt(parse(&text)), value);
    }

    #[test]
    fn broken_text_can_be_searched(text in "[\\[\\]{}\",:\\\\ u0-9e\u{1}é]{0,24}") {
        /// Visits everything that is found.
        fn search(json: Json<'_>, depth: usize) {
            json.characters();
            if depth < 8 {
                json.fields().for_each(|(_, value)| search(value, depth + 1));
                json.items().for_each(|item| search(item, depth + 1));
            }
        }
        search(Json::broken(&text), 0);
    }

    #[test]
    fn the_grammar_is_that_of_serde_json(text in "[\\[\\]{}\",:\\\\ 0-9eE.+\\-tfnruals\u{1}é]{0,12}") {
        prop_assert_eq!(
            Json::parse(&text).is_ok(),
            serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok(),
            "{}", text
        );
    }

    #[test]
    fn mutated_json_is_refused_as_serde_json_refuses_it(value in value(), at: prop::sample::Index, byte in 0x20..0x7f_u8) {
        let mut bytes = serde_json::to_vec(&value).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let expected = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            prop_assert_eq!(Json::parse(text).is_ok(), expected, "{}", text);
        }
    }
}
