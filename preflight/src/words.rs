//! A command line that came as one piece of text, as a shell would take it apart.

/// Splits at white space outside of quotes. Variables, pipes and patterns stay as they are written.
pub(crate) fn split(text: &str) -> Result<Vec<String>, Unclosed> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('\n') | None => {}
                Some(letter) => word.get_or_insert_default().push(letter),
            },
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        Some('\'') => break,
                        Some(letter) => word.push(letter),
                        None => return Err(Unclosed('\'')),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next() {
                        Some('"') => break,
                        Some('\\') => match letters.next() {
                            Some('\n') => {}
                            Some(letter @ ('"' | '\\' | '$' | '`')) => word.push(letter),
                            Some(letter) => word.extend(['\\', letter]),
                            None => return Err(Unclosed('"')),
                        },
                        Some(letter) => word.push(letter),
                        None => return Err(Unclosed('"')),
                    }
                }
            }
            letter if letter.is_whitespace() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}

/// A quote that nothing closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unclosed(pub(crate) char);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_continued_lines_are_taken_apart_as_a_shell_does() {
        let text = "A=1 vllm \\\n  serve 'a b' \"c \\\"d\\\" \\n\" e\\ f '' --x='{\"k\": 1}'";
        let words = ["A=1", "vllm", "serve", "a b", "c \"d\" \\n", "e f", "", "--x={\"k\": 1}"];
        assert_eq!(split(text).unwrap(), words);
        assert_eq!(split("  \n "), Ok(vec![]));
        assert_eq!(split("a 'b"), Err(Unclosed('\'')));
        assert_eq!(split("a \"b\\"), Err(Unclosed('"')));
    }
}
