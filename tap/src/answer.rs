//! Recorded responses out of what passed.

use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::budget::Copied;
use crate::events;
use crate::options::Role;
use crate::tee::Asked;

/// An answer that has passed, and what it answered.
pub(crate) struct Seen {
    pub(crate) asked: Option<Asked>,
    pub(crate) answer: Copied,
    pub(crate) events: bool,
    /// `X-Request-Id`.
    pub(crate) request_id: Option<String>,
}

/// What is the same for all answers of a tap.
pub(crate) struct About {
    pub(crate) role: Role,
    pub(crate) instance: Option<String>,
    pub(crate) run: Option<String>,
}

/// What of a request says where its rows belong.
#[derive(Deserialize, Default)]
struct Request<'a> {
    #[serde(borrow, default)]
    kv_transfer_params: Option<&'a RawValue>,
    #[serde(default)]
    routed_experts_prompt_start: Option<u64>,
    #[serde(default)]
    routed_experts_start_len: Option<u64>,
}

/// A line of recorded responses, see `docs/formats.md`.
#[derive(Serialize)]
struct Recorded<'a> {
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts_prompt_start: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<&'a RawValue>,
    response: &'a RawValue,
}

impl Seen {
    /// A recorded response a line, of those answers that have rows.
    pub(crate) fn lines(&self, about: &About) -> Vec<Vec<u8>> {
        let Some(answer) = self.answer.whole().filter(|answer| self.events || has_rows(answer)) else {
            return Vec::new();
        };
        let asked = self.asked.as_ref().and_then(|asked| asked.get()?.whole());
        // A request that is not JSON, or has other types there, says nothing of this.
        let request: Request<'_> = asked.and_then(|asked| serde_json::from_slice(asked).ok()).unwrap_or_default();
        let line = |response: &RawValue, request_id: Option<&str>| {
            let recorded = Recorded {
                role: about.role,
                instance: about.instance.as_deref(),
                run: about.run.as_deref(),
                request_id,
                routed_experts_prompt_start: request.routed_experts_prompt_start.or(request.routed_experts_start_len),
                kv_transfer_params: request.kv_transfer_params.filter(|_| about.role == Role::Decode),
                response,
            };
            let mut line = serde_json::to_vec(&recorded).ok()?;
            // Raw parts may be written over several lines; inside of text JSON has no such bytes.
            line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
            line.push(b'\n');
            Some(line)
        };
        let id = self.request_id.as_deref();
        if self.events {
            let answers = events::answers(answer);
            let id = id.filter(|_| answers.len() == 1);
            let raw = answers.iter().filter_map(|answer| serde_json::value::to_raw_value(answer).ok());
            return raw.filter_map(|response| line(&response, id)).collect();
        }
        match serde_json::from_slice::<&RawValue>(answer) {
            // SGLang answers a list of prompts with a list; each has an id of its own.
            Ok(list) if list.get().starts_with('[') => {
                let each: Vec<&RawValue> = serde_json::from_str(list.get()).unwrap_or_default();
                each.into_iter()
                    .filter(|one| has_rows(one.get().as_bytes()))
                    .filter_map(|one| line(one, None))
                    .collect()
            }
            Ok(response) => line(response, id).into_iter().collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Whether a key `routed_experts` (or `prompt_routed_experts`) has a value. Inside of text its quote would be escaped.
fn has_rows(answer: &[u8]) -> bool {
    const KEY: &[u8] = b"routed_experts\"";
    memmem::find_iter(answer, KEY).any(|at| {
        let rest = answer[at + KEY.len()..].trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use serde_json::{Value, json};

    use super::*;
    use crate::budget::Budget;

    fn copied(bytes: &[u8]) -> Copied {
        let mut copy = Copied::new(&Budget::new(1 << 20), 1 << 20);
        copy.push(bytes);
        copy
    }

    fn lines(role: Role, request: &str, answer: &str, events: bool) -> Vec<Value> {
        let asked = OnceLock::new();
        asked.set(copied(request.as_bytes())).unwrap();
        let seen = Seen {
            asked: Some(Arc::new(asked)),
            answer: copied(answer.as_bytes()),
            events,
            request_id: Some("outer".to_owned()),
        };
        let about = About { role, instance: Some("d0".to_owned()), run: None };
        seen.lines(&about).iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn an_answer_goes_unchanged_with_what_its_request_says_of_its_place() {
        let answer = "{\n  \"id\": \"cmpl-x\",\r\n  \"f\": 1.50e3, \"choices\": [{\"text\": \"a\\nb\", \"routed_experts\" : \"AA\"}]}";
        let request = r#"{"prompt": [1], "routed_experts_prompt_start": 3, "kv_transfer_params": {"remote_engine_id": "e", "remote_request_id": "r"}}"#;
        let decode = lines(Role::Decode, request, answer, false);
        assert_eq!(
            decode,
            [json!({
                "role": "decode", "instance": "d0", "request_id": "outer", "routed_experts_prompt_start": 3,
                "kv_transfer_params": {"remote_engine_id": "e", "remote_request_id": "r"},
                "response": {"id": "cmpl-x", "f": 1500.0, "choices": [{"text": "a\nb", "routed_experts": "AA"}]},
            })]
        );
        assert_eq!(lines(Role::Prefill, request, answer, false)[0].get("kv_transfer_params"), None);
        assert_eq!(lines(Role::Decode, "not json", answer, false).len(), 1);
    }

    #[test]
    fn answers_without_rows_are_not_told() {
        for answer in [
            r#"{"choices": [{"routed_experts": null}]}"#,
            r#"{"choices": [{"text": "\"routed_experts\": \"AA\""}]}"#,
            r#"{"data": [{"id": "model"}]}"#,
            "",
            r#"{"routed_experts": "cut off"#,
        ] {
            assert_eq!(lines(Role::Decode, "{}", answer, false), Vec::<Value>::new(), "{answer}");
        }
        assert_eq!(lines(Role::Decode, "{}", r#"{"prompt_routed_experts": [[[1]]]}"#, false).len(), 1);
    }

    #[test]
    fn a_list_of_answers_is_a_line_each_under_their_own_ids() {
        let list = r#"[{"meta_info": {"id": "a", "routed_experts": "A"}}, {"meta_info": {"id": "b", "routed_experts": null}}, {"meta_info": {"id": "c", "routed_experts": "C"}}]"#;
        let lines = lines(Role::Colocated, r#"{"routed_experts_start_len": 2}"#, list, false);
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[1].get("request_id"), &lines[1]["routed_experts_prompt_start"]), (None, &json!(2)));
    }
}
