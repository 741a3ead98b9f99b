use cel::Context;
use serde_json::json;

use super::*;

fn compile(text: &str) -> Result<Expression, String> {
    Expression::compile(&Env::stdlib(), text)
}

/// Whether `text` may be evaluated with an event with these members.
fn may_run(text: &str, event: &Json) -> bool {
    let expression = compile(text).unwrap();
    expression.check(event.as_object().unwrap()).is_ok()
}

fn items(count: usize) -> Json {
    (0..count).map(|n| json!({"id": n, "parent": n})).collect()
}

#[test]
fn sizes_include_nested_values() {
    let value = json!({"a": {"b": ["long text", 1, 2, null]}, "c": "short"});
    let size = Size::of(&value);
    assert_eq!((size.elements, size.longest, size.bytes), (2, 4, 9 + 5 + 3));
}

#[test]
fn rejects_deep_nesting() {
    let nested = |prefix: &str, part: &str, suffix: &str| {
        let count = (MAX_LENGTH - prefix.len() - suffix.len()) / part.len();
        format!("{prefix}{}{suffix}", part.repeat(count))
    };
    for text in [
        nested("1", " + 1", " == 2"),
        nested("event", "[\"b\"]", ""),
        nested("event", ".size()", ""),
        nested("a", ".b", ""),
        nested("", "(", "a"),
        nested("", "[", "a"),
        nested("", "a?b:", "c"),
        nested("", "{1:", "1"),
        nested("", "f(", "a"),
        nested("", "a.map(a,", "a"),
    ] {
        assert!(compile(&text).is_err(), "{}", start(&text));
    }
    let error = compile(&"a".repeat(MAX_LENGTH + 1)).unwrap_err();
    assert!(error.contains("longer than 8192 bytes"), "{error}");
    let error = compile(&format!("1{}", " + 1".repeat(MAX_DEPTH))).unwrap_err();
    assert!(error.contains("deeper than 100"), "{error}");
}

#[test]
fn evaluates_deepest_accepted_expressions() {
    let sum = format!("1{} > 1", " + 1".repeat(MAX_DEPTH - 2));
    let loops = |depth| format!("{}true{}", "[1].all(x, ".repeat(depth), ")".repeat(depth));
    let deepest = (1..)
        .map(loops)
        .take_while(|text| compile(text).is_ok())
        .last()
        .unwrap();
    for text in [sum, deepest] {
        let expression = compile(&text).unwrap();
        assert!(expression.check(&Event::new()).is_ok());
        let evaluating = move || expression.0.execute(&Context::default());
        // Many times the stack needed in release builds: in debug builds each level takes some tens of
        // kilobytes.
        let evaluating = thread::Builder::new().stack_size(16 << 20).spawn(evaluating);
        let result = evaluating.unwrap().join().unwrap();
        assert_eq!(result, Ok(cel::Value::Bool(true)));
    }
}

#[test]
fn accepts_many_alternatives() {
    let event = json!({"type": "kind.7", "data": {"numbers": vec![1; 500_000]}});
    let either: Vec<String> = (0..150)
        .map(|n| format!("event.type == 'order.kind.{n}'"))
        .collect();
    assert!(may_run(&either.join(" || "), &event));
    let names: Vec<String> = (0..500).map(|n| format!("'kind.{n}'")).collect();
    assert!(may_run(&format!("event.type in [{}]", names.join(", ")), &event));
}

#[test]
fn bounds_loops_by_visited_elements() {
    let event = |count| json!({"source": "s", "items": items(count), "tags": ["vip"]});
    let once = "event.items.exists(x, x.id == event.source)";
    assert!(may_run(once, &event(10_000)));
    assert!(!may_run(once, &event(200_000)));
    assert!(
        may_run("event.tags.exists(tag, tag == 'vip')", &event(200_000)),
        "another list is long"
    );
    let nested = "event.items.all(x, event.items.exists(y, y.id == x.parent))";
    assert!(may_run(nested, &event(100)));
    assert!(!may_run(nested, &event(1_000)));
    assert!(may_run(
        "[1, 2, 3].all(x, [1, 2, 3].all(y, x * y < 10))",
        &event(0)
    ));
    let growing = format!("(event.items{}).all(x, x.id > 0)", " + event.items".repeat(90));
    assert!(!may_run(&growing, &event(1_000)));
    let trees = json!({"items": vec![json!({"leaves": vec![1; 1_000]}); 100]});
    assert!(
        !may_run("event.items.all(x, event.items.exists(y, y.a == 1))", &trees),
        "elements are copied"
    );
    let looks = ["event.items[0].leaves.size() > 0"; 100].join(" && ");
    assert!(!may_run(&looks, &trees), "each look measures the list");
    assert!(
        !may_run("event.items.all(x, event.items == event.items)", &trees),
        "elements are compared"
    );
}

#[test]
fn bounds_values_growing_in_loops() {
    for part in ["a + a", "[a, a]"] {
        let grown = (0..20).fold("'x'".to_owned(), |text, _| format!("[{text}].map(a, {part})[0]"));
        assert!(!may_run(&format!("size({grown}) > 0"), &json!({})), "{part}");
    }
    let chain = "event.items.filter(x, x.id > 3).map(x, x.parent).exists(x, x == 7)";
    assert!(may_run(chain, &json!({"items": items(1_000)})));
}

#[test]
fn bounds_text_searches_by_bytes() {
    let text = "a".repeat(4 << 20);
    let event = json!({"text": text, "words": vec!["b"; 1_000], "pattern": "a+"});
    let searches = ["event.text.contains('b')"; 10].join(" || ");
    assert!(may_run(&searches, &event));
    assert!(may_run("event.text.matches('^a+$')", &event));
    assert!(!may_run(
        "event.words.exists(word, event.text.contains(word))",
        &event
    ));
    assert!(!may_run(
        "event.words.exists(word, event.text.startsWith(word))",
        &event
    ));
    assert!(may_run("event.words[0].matches(event.pattern)", &event));
    assert!(!may_run(
        "event.words.all(word, word.matches(event.pattern))",
        &event
    ));
}
