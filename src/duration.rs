//! Times as people write them: `10s`, `5m`, `250ms`.

use std::time::Duration;

/// Reads a time with its unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let expected = || format!("{text:?}: expected a number and a unit, ms, s, m, h or d, as in 10s");
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let number: u64 = text[..unit].parse().map_err(|_| expected())?;
    let millis = match &text[unit..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(expected()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(expected)
}

/// Writes a time so that [`parse`] reads it.
pub(crate) fn text(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1_000) { format!("{}s", millis / 1_000) } else { format!("{millis}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse(&text(Duration::from_millis(1500))), Ok(Duration::from_millis(1500)));
    }

    #[test]
    fn a_time_without_a_unit_is_refused_with_what_was_expected() {
        for wrong in ["10", "s", "", "10 s", "1y", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse(wrong).unwrap_err().contains("expected a number and a unit"), "{wrong}");
        }
    }
}
