//! Answers of several sequences.

use serde_json::{Value, json};

use super::*;
use crate::{engine, rows::Rows, shape::IdWidth, span::Anchor};

/// An answer of a choice per number of rows: of one prompt or of a list, for `usage` that counts these tokens.
fn answer(rows: &[u8], usage: (u32, u32)) -> Value {
    let choices = rows.iter().enumerate().map(|(index, &rows)| {
        let ids: Vec<u8> = (0..2 * rows).collect();
        let rows = Rows::new(ids.into(), RowShape::new(1, 2).unwrap(), IdWidth::U8).unwrap();
        json!({"index": index, "routed_experts": engine::vllm::encode(&rows)})
    });
    let (prompt, sampled) = usage;
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled});
    json!({"id": "cmpl-abc", "choices": choices.collect::<Vec<_>>(), "usage": usage})
}

/// Has a choice list as many tokens of the prompt, and, where it says so, as many that it sampled.
fn listing(mut answer: Value, choice: usize, prompt: Option<u32>, sampled: Option<u32>) -> Value {
    for (name, count) in [("prompt_token_ids", prompt), ("token_ids", sampled)] {
        if let Some(count) = count {
            answer["choices"][choice][name] = json!((0..count).collect::<Vec<_>>());
        }
    }
    answer
}

fn read_as(role: &str, response: &Value) -> Record {
    let line = json!({"role": role, "response": response}).to_string();
    read_record(line.as_bytes(), &RecordOptions::default()).unwrap()
}

fn refusal(role: &str, response: &Value) -> String {
    let line = json!({"role": role, "response": response}).to_string();
    read_record(line.as_bytes(), &RecordOptions::default()).unwrap_err().to_string()
}

/// Tokens of the prompt and sampled tokens of each choice.
fn lengths(record: &Record) -> Vec<(Option<u32>, Option<u32>)> {
    record.choices.iter().map(|choice| (choice.prompt_tokens, choice.completion_tokens)).collect()
}

fn anchors(record: &Record) -> Vec<Anchor> {
    record.choices.iter().map(|choice| choice.spans.as_ref().unwrap()[0].anchor).collect()
}

fn problems(record: &Record) -> Vec<String> {
    record.choices.iter().filter_map(|choice| Some(choice.spans.as_ref().err()?.to_string())).collect()
}

const UNKNOWN: &str = "rows without a start, and how many tokens this choice sampled cannot be known: ";
const EXPECTED: &str = "; expected token_ids in each choice (return_token_ids in vLLM)";

#[test]
fn whole_rows_tell_choices_apart_that_usage_counts_together() {
    // given: a prompt of 4 tokens; 3 and 5 sampled
    let colocated = answer(&[6, 8], (4, 8));
    let prefill = answer(&[4, 4], (4, 2));
    let decode = answer(&[3, 5], (4, 8));

    // when
    let read = [read_as("colocated", &colocated), read_as("prefill", &prefill), read_as("decode", &decode)];

    // then
    let sampled = [[3, 5], [1, 1], [3, 5]];
    for (record, sampled) in read.iter().zip(sampled) {
        assert_eq!(lengths(record), sampled.map(|tokens| (Some(4), Some(tokens))));
        assert_eq!(anchors(record), sampled.map(|completion_tokens| Anchor::End { completion_tokens }));
    }
}

#[test]
fn rows_with_a_stated_start_tell_their_choices_apart() {
    // given: rows from position 2 on, of a prompt of 4 tokens
    let mut line = json!({"role": "colocated", "routed_experts_prompt_start": 2, "response": answer(&[4, 6], (4, 8))});

    // when
    let asked = read_record(line.to_string().as_bytes(), &RecordOptions::default()).unwrap();
    line["response"]["usage"]["completion_tokens"] = json!(9);
    let contradicted = read_record(line.to_string().as_bytes(), &RecordOptions::default()).unwrap();

    // then
    assert_eq!(lengths(&asked), [(Some(4), Some(3)), (Some(4), Some(5))]);
    assert_eq!(anchors(&asked), [Anchor::Start(2); 2]);
    // They have their place all the same.
    assert_eq!(lengths(&contradicted), [(Some(4), None); 2]);
    assert_eq!(anchors(&contradicted), [Anchor::Start(2); 2]);
}

#[test]
fn usage_tells_of_the_one_choice_that_does_not_list_its_tokens() {
    // given: the second choice has lost a row
    let response = listing(answer(&[6, 7], (4, 8)), 0, None, Some(3));

    // when
    let record = read_as("colocated", &response);

    // then
    assert_eq!(lengths(&record), [(Some(4), Some(3)), (Some(4), Some(5))]);
    assert_eq!(anchors(&record)[1], Anchor::End { completion_tokens: 5 });
    let less = listing(answer(&[6, 7], (4, 2)), 0, None, Some(3));
    let fewer = "usage counts fewer tokens than the 3 that the other choices list";
    let expected = format!("response.choices[1].routed_experts: 7 {UNKNOWN}{fewer}{EXPECTED}");
    assert_eq!(problems(&read_as("colocated", &less)), [expected]);
}

#[test]
fn rows_that_do_not_tell_choices_apart_are_refused_and_the_message_says_why() {
    // given
    let one_lost = answer(&[6, 7], (4, 8));
    let mut no_usage = answer(&[6, 8], (4, 8));
    no_usage["usage"] = Value::Null;
    let mut no_prompt = answer(&[6, 8], (4, 8));
    no_prompt["usage"] = json!({"completion_tokens": 8});
    let mut no_rows = answer(&[6, 8], (4, 8));
    no_rows["choices"][0]["routed_experts"] = Value::Null;
    let too_few = answer(&[6, 2], (4, 8));
    let lost =
        "the choices' rows are those of 7 sampled tokens, usage counts 8, and nothing says which choice is not whole";
    for (response, rows, why) in [
        (one_lost, vec![6, 7], lost),
        (no_usage, vec![6, 8], "usage does not say how many tokens were sampled in all"),
        (no_prompt, vec![6, 8], "the prompt's length is not stated"),
        (no_rows, vec![8], "response.choices[0] has no rows to tell its part of usage by"),
        (too_few, vec![6, 2], "response.choices[1] has 2 rows, fewer than its prompt"),
    ] {
        // when
        let record = read_as("colocated", &response);

        // then
        let problem = |(index, rows): (usize, &u8)| {
            format!(
                "response.choices[{}].routed_experts: {rows} {UNKNOWN}{why}{EXPECTED}",
                index + 2 - rows_of(&response)
            )
        };
        assert_eq!(problems(&record), rows.iter().enumerate().map(problem).collect::<Vec<_>>());
        assert!(record.choices.iter().all(|choice| choice.completion_tokens.is_none()));
    }
    let one = json!({"role": "decode", "completion_tokens": 3, "response": answer(&[3, 5], (4, 8))}).to_string();
    assert_eq!(
        read_record(one.as_bytes(), &RecordOptions::default()).unwrap_err().to_string(),
        "request abc: completion_tokens: one number for an answer of several sequences: expected none"
    );
}

/// Choices that have rows.
fn rows_of(response: &Value) -> usize {
    response["choices"].as_array().unwrap().iter().filter(|choice| !choice["routed_experts"].is_null()).count()
}

#[test]
fn choices_of_several_prompts_have_the_lengths_that_they_list() {
    // given: prompts of 4 and 2 tokens, 3 and 5 sampled
    let listed = listing(listing(answer(&[6, 6], (6, 8)), 0, Some(4), Some(3)), 1, Some(2), Some(5));
    let sampled_unknown = listing(listing(answer(&[6, 6], (6, 8)), 0, Some(4), None), 1, Some(2), None);
    let two_of_each = (0..4).fold(answer(&[6, 6, 4, 4], (6, 12)), |answer, choice| {
        listing(answer, choice, Some(if choice < 2 { 4 } else { 2 }), None)
    });
    let equal = listing(listing(answer(&[6, 8], (8, 8)), 0, Some(4), None), 1, Some(4), None);

    // when
    let records = [listed, sampled_unknown, two_of_each, equal].map(|response| read_as("colocated", &response));

    // then
    let both = vec![(Some(4), Some(3)), (Some(2), Some(5))];
    assert_eq!(lengths(&records[0]), both);
    assert_eq!(lengths(&records[1]), both);
    assert_eq!(lengths(&records[2]), [(Some(4), Some(3)), (Some(4), Some(3)), (Some(2), Some(3)), (Some(2), Some(3))]);
    assert_eq!(lengths(&records[3]), [(Some(4), Some(3)), (Some(4), Some(5))]);
    assert!(records.iter().all(|record| problems(record).is_empty()));
}

#[test]
fn choices_of_several_prompts_that_do_not_list_them_are_named() {
    let expected = "and the choices answer several prompts, which usage counts together: expected the prompt_token_ids of \
                    each choice (return_token_ids in vLLM)";

    // given: prompts of 4 and 2 tokens, 3 and 5 sampled
    let unlisted = answer(&[6, 6], (6, 8));
    let sampled = listing(listing(unlisted.clone(), 0, None, Some(3)), 1, None, Some(5));
    let half = listing(unlisted.clone(), 0, Some(4), Some(3));
    let wrong = listing(listing(answer(&[6, 6], (7, 8)), 0, Some(4), Some(3)), 1, Some(2), Some(5));

    // then
    for response in [&unlisted, &sampled] {
        let problem = |index| format!("response.choices[{index}].routed_experts: 6 rows without a start, {expected}");
        assert_eq!(problems(&read_as("colocated", response)), [problem(0), problem(1)]);
    }
    assert_eq!(
        refusal("colocated", &half),
        format!("request abc: response.choices[1]: no prompt_token_ids, {expected}")
    );
    assert_eq!(
        refusal("colocated", &wrong),
        "request abc: response.usage.prompt_tokens: 7 tokens, but the prompts of 2 choices have 6: expected it to count each \
         prompt once"
    );
}
