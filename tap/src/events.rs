//! Answers that came as a stream of events (`text/event-stream`), put together as the one answer that they would have been.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What a stream says about routing: one answer of an OpenAI or vLLM stream, an answer per index of SGLang's own. Text is left out.
pub(crate) fn answers(stream: &[u8]) -> Vec<Value> {
    let mut merged = Merged::default();
    for data in events(stream) {
        if let Ok(Value::Object(event)) = serde_json::from_slice(&data) {
            merged.take(event);
        }
    }
    merged.answers()
}

#[derive(Default)]
struct Merged {
    shared: Map<String, Value>,
    choices: BTreeMap<u64, Map<String, Value>>,
    sglang: BTreeMap<u64, Map<String, Value>>,
}

impl Merged {
    fn take(&mut self, mut event: Map<String, Value>) {
        if event.get("meta_info").is_some_and(Value::is_object) {
            // Each event has all that is known so far; the last one that has rows is the answer.
            if event.get("meta_info").and_then(|info| info.get("routed_experts")).is_some_and(|rows| !rows.is_null()) {
                let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
                self.sglang.insert(index, event);
            }
            return;
        }
        if let Some(Value::Array(choices)) = event.remove("choices") {
            for choice in choices {
                let Value::Object(choice) = choice else { continue };
                let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
                add(self.choices.entry(index).or_default(), choice);
            }
        }
        add(&mut self.shared, event);
    }

    fn answers(self) -> Vec<Value> {
        let mut answers: Vec<Value> = self.sglang.into_values().map(Value::Object).collect();
        let choices: Vec<Value> = self.choices.into_values().map(Value::Object).collect();
        let mut answer = self.shared;
        let routed = has_rows(&Value::Object(answer.clone())) || choices.iter().any(has_rows);
        if routed {
            answer.insert("choices".to_owned(), Value::Array(choices));
            answers.push(Value::Object(answer));
        }
        answers
    }
}

/// Sampled tokens come piece by piece; of all else, what was said last holds.
fn add(to: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (key.as_str(), value) {
            ("text" | "delta" | "logprobs", _) | (_, Value::Null) => {}
            ("token_ids", Value::Array(more)) => match to.get_mut("token_ids") {
                Some(Value::Array(tokens)) => tokens.extend(more),
                _ => {
                    to.insert(key, Value::Array(more));
                }
            },
            (_, value) => {
                to.insert(key, value);
            }
        }
    }
}

fn has_rows(value: &Value) -> bool {
    let here = |key: &str| value.get(key).is_some_and(|rows| !rows.is_null());
    let extended =
        |key: &str| value.get(key).is_some_and(|more| more.get("routed_experts").is_some_and(|rows| !rows.is_null()));
    here("routed_experts") || here("prompt_routed_experts") || extended("sglext") || extended("sgl_ext")
}

/// The data of each event. Lines end with `\n`, `\r\n` or `\r`, an event with an empty line.
fn events(stream: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut lines = Lines(stream);
    std::iter::from_fn(move || {
        let mut data: Option<Vec<u8>> = None;
        loop {
            match lines.next() {
                Some([]) => {
                    if let Some(data) = data.take() {
                        return Some(data);
                    }
                }
                Some(line) => {
                    if let Some(more) = line.strip_prefix(b"data:") {
                        let more = more.strip_prefix(b" ").unwrap_or(more);
                        match &mut data {
                            Some(data) => {
                                data.push(b'\n');
                                data.extend_from_slice(more);
                            }
                            None => data = Some(more.to_vec()),
                        }
                    }
                }
                // A last event without its empty line came broken off.
                None => return None,
            }
        }
    })
}

struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr2(b'\n', b'\r', self.0)?;
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix(b"\r\n").unwrap_or(&rest[1..]);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stream_of_choices_becomes_one_answer_without_its_text() {
        let stream = b": ping\n\ndata: {\"request_id\":\"r\",\"prompt_token_ids\":[1,2],\"choices\":[{\"index\":0,\"token_ids\":[5],\"routed_experts\":null}]}\n\n\
            data: {\"request_id\":\"r\",\"choices\":[{\"index\":1,\"token_ids\":[7],\"text\":\"x\"},{\"index\":0,\"token_ids\":[6],\"finish_reason\":\"stop\",\"routed_experts\":\"AA==\"}]}\r\n\r\n\
            data: {\"request_id\":\"r\",\"choices\":[],\"usage\":{\"prompt_tokens\":2}}\n\ndata: [DONE]\n\n";
        assert_eq!(
            answers(stream),
            [json!({
                "request_id": "r",
                "prompt_token_ids": [1, 2],
                "usage": {"prompt_tokens": 2},
                "choices": [
                    {"index": 0, "token_ids": [5, 6], "finish_reason": "stop", "routed_experts": "AA=="},
                    {"index": 1, "token_ids": [7]},
                ],
            })]
        );
    }

    #[test]
    fn of_sglang_the_last_event_with_rows_counts_per_index() {
        let event = |index, rows: Value, tokens| {
            format!(
                "data: {}\n\n",
                json!({"index": index, "meta_info": {"id": "r", "completion_tokens": tokens, "routed_experts": rows}})
            )
        };
        let stream =
            [event(0, Value::Null, 1), event(0, json!("A"), 2), event(1, json!("B"), 1), event(0, json!("C"), 3)]
                .concat();
        let answers = answers(stream.as_bytes());
        assert_eq!(answers.iter().map(|a| a["meta_info"]["routed_experts"].clone()).collect::<Vec<_>>(), ["C", "B"]);
    }

    #[test]
    fn without_rows_there_is_no_answer_and_bad_events_are_passed_over() {
        assert_eq!(
            answers(b"data: {\"choices\":[{\"index\":0,\"token_ids\":[1]}]}\n\ndata: [DONE]\n\n"),
            Vec::<Value>::new()
        );
        assert_eq!(answers(b"data: {\"choices\"\n\ndata: 7\n\nnonsense\n\n\n\ndata:\n\n"), Vec::<Value>::new());
        assert_eq!(answers(b"data: {\"choices\":[{\"routed_experts\":\"A\"}]}\n"), Vec::<Value>::new(), "broken off");
        assert_eq!(
            answers(b"data: {\"choices\":\ndata: [{\"routed_experts\":\"A\"}]}\n\n").len(),
            1,
            "two lines of data"
        );
    }
}
