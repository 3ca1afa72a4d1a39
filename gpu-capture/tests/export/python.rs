//! The page on formats: its example works as pasted.

use std::process::Command;

use gatescope_wire::{Event, Request, Told};

use crate::collector::Collector;

/// The first Python example below the heading.
fn example(page: &str, heading: &str) -> String {
    let section = page.split_once(heading).expect("the heading").1;
    let code = section.split_once("```python\n").expect("an example").1;
    code.split_once("```").expect("its end").0.to_owned()
}

#[test]
#[ignore = "needs pyarrow and numpy: GATESCOPE_PYTHON names the interpreter"]
fn the_example_of_the_wire_format_works_as_pasted() {
    let python = std::env::var("GATESCOPE_PYTHON").unwrap_or_else(|_| "python3".into());
    let collector = Collector::start();
    let pasted = example(include_str!("../../../docs/formats.md"), "\n## Wire\n");
    let code = pasted.replace("127.0.0.1:7879", &collector.address.to_string());
    assert_ne!(pasted, code, "the example names the default port");

    let output = Command::new(python).args(["-c", &code]).output().unwrap();

    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((&*out, output.status.success()), ("durable up to message 1\n", true), "{err}");
    let disk = collector.disk.lock().unwrap();
    assert_eq!(disk.positions().0, (0..3).map(|position| ("hello".to_owned(), position)).collect::<Vec<_>>());
    let [Event::Request(Request { told: Told::Span(span), .. }), Event::Request(Request { told: Told::Finish(_), .. })] =
        &disk.taken[..]
    else {
        panic!("{:?}", disk.taken)
    };
    assert_eq!(span.rows.experts(2, 1), [2, 6, 3, 4]);
}
