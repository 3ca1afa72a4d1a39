//! Answers that belong together under other names: a decode that names its prefill, a turn that leaves out what an earlier
//! one has.

use serde_json::{Value, json};

use crate::{
    gatescope::{Gatescope, fixture_lines, fixture_path},
    payload,
};

fn parsed(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(answers: &[Value]) -> String {
    answers.iter().map(|answer| format!("{answer}\n")).collect()
}

/// The recording, with decodes of other outer ids, that name the prefill whose KV they took.
fn linked_by_kv_alone() -> Vec<Value> {
    let mut answers = parsed(&fixture_lines("pair.pd.jsonl"));
    let names: Vec<(Value, Value)> = answers
        .iter()
        .filter(|answer| answer["role"] == "prefill")
        .map(|answer| (answer["request_id"].clone(), answer["response"]["kv_transfer_params"].clone()))
        .collect();
    for answer in answers.iter_mut().filter(|answer| answer["role"] == "decode") {
        let (_, link) = names.iter().find(|(id, _)| *id == answer["request_id"]).unwrap();
        answer["kv_transfer_params"] = link.clone();
        let id = format!("d-{}", answer["request_id"].as_str().unwrap());
        answer["response"]["id"] = json!(format!("cmpl-{id}"));
        answer["request_id"] = json!(id);
    }
    answers
}

#[test]
fn a_decode_that_names_its_prefill_is_joined_with_it_in_any_order_and_with_little_room() {
    let ids = "SELECT concat(position, ' ', layer, ' ', slot, ' ', expert) AS id FROM experts \
               ORDER BY replace(request_id, 'd-', ''), position, layer, slot";
    let whole = Gatescope::new();
    whole.import(&[&fixture_path("pair.pd.jsonl")]);
    let expected = whole.sql(ids);
    let mut apart = linked_by_kv_alone();
    apart.sort_by_key(|answer| answer["role"] == "decode");
    let mut reversed = apart.clone();
    reversed.reverse();
    for (answers, room) in [(linked_by_kv_alone(), "1000000"), (apart, "5000"), (reversed, "5000")] {
        // given
        let gatescope = Gatescope::new();

        // when
        let import = gatescope.import_from(&["-", "--held-bytes", room], text(&answers).as_bytes());

        // then
        assert_eq!(import.numbers(["refused", "requests", "whole"]), [0, 16, 16], "{}", import.summary);
        assert_eq!(import.summary["findings"], json!([]));
        assert_eq!(gatescope.count("SELECT count(*) FROM requests WHERE request_id LIKE 'd-%'"), 16);
        assert_eq!(gatescope.sql(ids), expected);
    }
}

/// A first turn, and a second one that leaves out the rows of the first: the same answer, cut.
fn turns() -> [Value; 2] {
    let first = parsed(&fixture_lines("pair.colocated.jsonl")).swap_remove(0);
    let mut second = first.clone();
    let rows = payload::rows(&first);
    payload::set_rows(&mut second, &rows[20..]);
    second["request_id"] = json!("second");
    second["response"]["id"] = json!("cmpl-second");
    second["parent"] = first["request_id"].clone();
    second["routed_experts_prompt_start"] = json!(20);
    [first, second]
}

#[test]
fn rows_left_out_are_taken_from_the_earlier_turn_wherever_it_is() {
    let [first, second] = turns();
    let id = first["request_id"].as_str().unwrap().to_owned();
    let ids = |id: &str| {
        format!(
            "SELECT concat(position, ' ', layer, ' ', slot, ' ', expert) AS id FROM experts \
                 WHERE request_id = '{id}' ORDER BY position, layer, slot"
        )
    };
    for imports in [vec![vec![&first, &second]], vec![vec![&second, &first]], vec![vec![&first], vec![&second]]] {
        // given
        let gatescope = Gatescope::new();

        // when
        let mut last = None;
        for answers in &imports {
            let text: String = answers.iter().map(|answer| format!("{answer}\n")).collect();
            last = Some(gatescope.import_from(&["-"], text.as_bytes()));
        }

        // then
        assert_eq!(last.unwrap().summary["findings"], json!([]));
        assert_eq!(gatescope.count("SELECT count(*) FROM requests WHERE status = 'whole'"), 2);
        assert_eq!(gatescope.sql(&ids("second")), gatescope.sql(&ids(&id)));
    }
}

#[test]
fn turns_that_name_each_other_are_stored_without_the_rows_left_out() {
    // given
    let gatescope = Gatescope::new();
    let [_, mut one] = turns();
    let mut other = one.clone();
    one["parent"] = json!("other");
    other["request_id"] = json!("other");
    other["response"]["id"] = json!("cmpl-other");
    other["parent"] = json!("second");

    // when
    let import = gatescope.import_from(&["-"], text(&[one, other]).as_bytes());

    // then
    assert_eq!(import.number("requests"), 2);
    assert!(import.findings("GS022") > 0, "{}", import.summary);
}
