//! Answers of several choices: of one prompt, and of a list of prompts.

use serde_json::{Value, json};

use crate::{
    gatescope::{Gatescope, fixture_lines},
    payload,
};

/// The answers of a recording's first request that was sampled twice, without token ids: the second choice is shorter.
fn twice() -> Vec<Value> {
    let mut answers: Vec<Value> =
        fixture_lines("pair.pd.jsonl")[..2].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for answer in &mut answers {
        let mut shorter = answer.clone();
        let mut sampled = 2 * answer["response"]["usage"]["completion_tokens"].as_u64().unwrap();
        if answer["role"] == "decode" {
            let rows = payload::rows(answer);
            payload::set_rows(&mut shorter, &rows[..rows.len() - 3]);
            sampled -= 3;
        }
        let mut second = shorter["response"]["choices"][0].take();
        second["index"] = json!(1);
        answer["response"]["choices"].as_array_mut().unwrap().push(second);
        answer["response"]["usage"]["completion_tokens"] = json!(sampled);
        for choice in answer["response"]["choices"].as_array_mut().unwrap() {
            choice["token_ids"] = Value::Null;
            choice["prompt_token_ids"] = Value::Null;
        }
    }
    answers
}

fn text(answers: &[Value]) -> String {
    answers.iter().map(|answer| format!("{answer}\n")).collect()
}

#[test]
fn two_choices_without_token_ids_are_whole() {
    // given
    let gatescope = Gatescope::new();

    // when
    let import = gatescope.import_from(&["-"], text(&twice()).as_bytes());

    // then
    assert_eq!(import.numbers(["refused", "requests", "whole"]), [0, 2, 2], "{:?}", import.ran);
    assert_eq!(import.summary["findings"], json!([]));
    let sampled = gatescope.sql("SELECT completion_tokens FROM requests ORDER BY choice");
    assert_eq!(sampled, [json!(8), json!(5)]);
}

#[test]
fn two_choices_of_which_one_has_lost_a_row_are_refused_with_the_reason() {
    // given
    let gatescope = Gatescope::new();
    let mut answers = twice();
    let rows = payload::rows(&answers[1]);
    payload::set_rows(&mut answers[1], &rows[1..]);

    // when
    let import = gatescope.import_from(&["-"], text(&answers).as_bytes());

    // then
    assert_eq!(import.numbers(["refused", "requests", "incomplete"]), [2, 2, 2], "{:?}", import.ran);
    let expected = "response.choices[0].routed_experts: 7 rows without a start, and how many tokens this choice sampled cannot be \
                    known: the choices' rows are those of 12 sampled tokens, usage counts 13, and nothing says which choice is \
                    not whole; expected token_ids in each choice (return_token_ids in vLLM)";
    assert!(import.messages()[0].ends_with(expected), "{:?}", import.messages());
}

#[test]
fn a_list_of_prompts_is_one_request_for_each_where_the_prompts_are_listed() {
    // given
    let lines = fixture_lines("pair.colocated.jsonl");
    let answers: [Value; 2] = [0, 1].map(|line| serde_json::from_str(&lines[line]).unwrap());
    let mut listed = answers[0].clone();
    let mut second = answers[1]["response"]["choices"][0].clone();
    second["index"] = json!(1);
    listed["response"]["choices"].as_array_mut().unwrap().push(second);
    for name in ["prompt_tokens", "completion_tokens"] {
        let sum: u64 = answers.iter().map(|answer| answer["response"]["usage"][name].as_u64().unwrap()).sum();
        listed["response"]["usage"][name] = json!(sum);
    }
    let mut unlisted = listed.clone();
    for choice in unlisted["response"]["choices"].as_array_mut().unwrap() {
        choice["prompt_token_ids"] = Value::Null;
        choice["token_ids"] = Value::Null;
    }
    let (gatescope, other) = (Gatescope::new(), Gatescope::new());

    // when
    let whole = gatescope.import_from(&["-"], text(&[listed]).as_bytes());
    let refused = other.import_from(&["-"], text(&[unlisted]).as_bytes());

    // then
    assert_eq!(whole.numbers(["refused", "requests", "whole"]), [0, 2, 2], "{:?}", whole.ran);
    assert_eq!(whole.summary["findings"], json!([]));
    assert_eq!(refused.number("refused"), 2);
    for said in refused.messages() {
        assert!(said.contains("the choices answer several prompts, which usage counts together"), "{said}");
    }
}
