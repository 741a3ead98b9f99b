//! Expressions in CEL, bounded before they run: the interpreter recurses, and nothing can stop it.

use std::thread;

use cel::{
    Env, Program,
    common::ast::{EntryExpr, Expr, IdedExpr},
};
use serde_json::Value as Json;

/// The longest expression, bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// How deep an expression may be nested, levels of its syntax tree.
const MAX_DEPTH: usize = 100;
/// Steps that one evaluation may take: some tenths of a microsecond each.
const MAX_STEPS: u64 = 500_000;
/// Bytes of text that one evaluation may search or copy.
const MAX_TEXT: u64 = 64 * 1024 * 1024;

/// The stack for compiling the longest expression, however it is nested. Only what is used of it takes memory.
const STACK: usize = 128 * 1024 * 1024;
/// Steps of `matches`: the regular expression is compiled each time.
const REGEX: u64 = 500;

/// A compiled expression, and what it costs.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) program: Program,
    cost: Cost,
}

/// What evaluating takes, by the number of loops around: `all`, `exists` and their like visit every element.
#[derive(Debug, Default)]
struct Cost {
    steps: Vec<u64>,
    /// Of them, those that read a whole text.
    texts: Vec<u64>,
    /// The longest list that is written out.
    literal: u64,
    /// Lists that are put together from two.
    sums: u64,
}

/// How large the values are that an expression sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Of the longest list or object.
    elements: u64,
    /// Of the longest text, bytes.
    text: u64,
}

impl Sizes {
    /// Makes room for one more value.
    pub(crate) fn add(&mut self, value: &Json) {
        match value {
            Json::String(text) => self.text = self.text.max(text.len() as u64),
            Json::Array(items) => {
                self.elements = self.elements.max(items.len() as u64);
                items.iter().for_each(|item| self.add(item));
            }
            Json::Object(members) => {
                self.elements = self.elements.max(members.len() as u64);
                members.values().for_each(|member| self.add(member));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

impl Expression {
    /// # Errors
    /// What is wrong with `text`, for whoever wrote it.
    pub(crate) fn compile(env: &Env, text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("it is longer than {MAX_LENGTH} bytes"));
        }
        let compile = || {
            let program = env.compile(text).map_err(|error| error.to_string())?;
            let cost = Cost::of(program.expression())?;
            Ok(Self { program, cost })
        };
        thread::scope(|scope| {
            let compiling = thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, compile);
            let compiling =
                compiling.map_err(|error| format!("there is no thread to compile it: {error}"))?;
            compiling
                .join()
                .unwrap_or_else(|_| Err("the compiler failed".to_owned()))
        })
    }

    /// # Errors
    /// With values of these sizes it could take more than [`MAX_STEPS`] or [`MAX_TEXT`].
    pub(crate) fn check(&self, sizes: Sizes) -> Result<(), String> {
        let Cost {
            steps,
            texts,
            literal,
            sums,
        } = &self.cost;
        let elements = sizes
            .elements
            .max(*literal)
            .saturating_mul(sums.saturating_add(1));
        let total = |by_loops: &[u64]| {
            by_loops.iter().rev().fold(0u64, |inner, each| {
                inner.saturating_mul(elements).saturating_add(*each)
            })
        };
        let (steps, text) = (total(steps), total(texts).saturating_mul(sizes.text));
        if steps > MAX_STEPS {
            return Err(format!(
                "with lists of {elements} elements it could take {steps} steps, and {MAX_STEPS} are allowed"
            ));
        }
        if text > MAX_TEXT {
            return Err(format!(
                "with texts of {} bytes it could search {text} bytes, and {MAX_TEXT} are allowed",
                sizes.text
            ));
        }
        Ok(())
    }
}

impl Cost {
    /// # Errors
    /// The expression is deeper than [`MAX_DEPTH`].
    fn of(root: &IdedExpr) -> Result<Self, String> {
        let mut cost = Self::default();
        let mut open = vec![(root, 1, 0)];
        while let Some((expression, depth, loops)) = open.pop() {
            if depth > MAX_DEPTH {
                return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
            }
            cost.count(&expression.expr, loops);
            let mut inner = |expression, loops| open.push((expression, depth + 1, loops));
            match &expression.expr {
                Expr::Call(call) => {
                    let parts = call.target.as_deref().into_iter().chain(&call.args);
                    parts.for_each(|part| inner(part, loops));
                }
                Expr::Comprehension(comprehension) => {
                    let once = [
                        &comprehension.iter_range,
                        &comprehension.accu_init,
                        &comprehension.result,
                    ];
                    once.into_iter().for_each(|part| inner(part, loops));
                    let each = [&comprehension.loop_cond, &comprehension.loop_step];
                    each.into_iter().for_each(|part| inner(part, loops + 1));
                }
                Expr::List(list) => list.elements.iter().for_each(|element| inner(element, loops)),
                Expr::Map(map) => map
                    .entries
                    .iter()
                    .for_each(|entry| entry_parts(&entry.expr, |part| inner(part, loops))),
                Expr::Struct(message) => {
                    let entries = message.entries.iter();
                    entries.for_each(|entry| entry_parts(&entry.expr, |part| inner(part, loops)));
                }
                Expr::Select(select) => inner(&select.operand, loops),
                Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
            }
        }
        Ok(cost)
    }

    fn count(&mut self, expression: &Expr, loops: usize) {
        let mut steps = 1;
        match expression {
            Expr::Call(call) => match call.func_name.as_str() {
                "matches" => {
                    steps = REGEX;
                    add(&mut self.texts, loops, 1);
                }
                "contains" | "size" | "string" | "bytes" => add(&mut self.texts, loops, 1),
                // Of texts, or of lists.
                "_+_" => {
                    add(&mut self.texts, loops, 1);
                    self.sums = self.sums.saturating_add(1);
                }
                // It looks at every element.
                "@in" => add(&mut self.steps, loops + 1, 1),
                _ => {}
            },
            Expr::List(list) => self.literal = self.literal.max(list.elements.len() as u64),
            Expr::Map(map) => self.literal = self.literal.max(map.entries.len() as u64),
            _ => {}
        }
        add(&mut self.steps, loops, steps);
    }
}

fn add(by_loops: &mut Vec<u64>, loops: usize, count: u64) {
    if by_loops.len() <= loops {
        by_loops.resize(loops + 1, 0);
    }
    by_loops[loops] = by_loops[loops].saturating_add(count);
}

fn entry_parts<'a>(entry: &'a EntryExpr, mut part: impl FnMut(&'a IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => part(&field.value),
        EntryExpr::MapEntry(entry) => {
            part(&entry.key);
            part(&entry.value);
        }
    }
}

/// Enough of an expression to know it by in an error.
pub(crate) fn start(expression: &str) -> &str {
    &expression[..expression.floor_char_boundary(200)]
}

#[cfg(test)]
mod tests {
    use cel::Context;
    use serde_json::json;

    use super::*;

    fn compile(text: &str) -> Result<Expression, String> {
        Expression::compile(&Env::stdlib(), text)
    }

    fn sizes(value: &Json) -> Sizes {
        let mut sizes = Sizes::default();
        sizes.add(value);
        sizes
    }

    #[test]
    fn the_longest_text_and_list_are_found_at_any_depth() {
        let value = json!({"a": {"b": ["long text", 1, 2, null]}, "c": "short"});
        assert_eq!(sizes(&value), Sizes { elements: 4, text: 9 });
    }

    #[test]
    fn what_would_overflow_a_stack_is_refused() {
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
        ] {
            assert!(compile(&text).is_err(), "{}", start(&text));
        }
        let error = compile(&"a".repeat(MAX_LENGTH + 1)).unwrap_err();
        assert!(error.contains("longer than 8192 bytes"), "{error}");
        let error = compile(&format!("1{}", " + 1".repeat(MAX_DEPTH))).unwrap_err();
        assert!(error.contains("deeper than 100"), "{error}");
    }

    #[test]
    fn the_deepest_expression_that_is_taken_can_be_evaluated() {
        let text = format!("1{} > 1", " + 1".repeat(MAX_DEPTH - 2));
        let expression = compile(&text).unwrap();
        let evaluating = move || expression.program.execute(&Context::default());
        // Twenty times what it takes in builds that are optimised: here each level takes some tens of kilobytes.
        let evaluating = thread::Builder::new().stack_size(8 << 20).spawn(evaluating);
        let result = evaluating.unwrap().join().unwrap();
        assert_eq!(result, Ok(cel::Value::Bool(true)));
    }

    #[test]
    fn long_lists_of_alternatives_are_taken() {
        let either: Vec<String> = (0..150)
            .map(|n| format!("event.type == 'order.kind.{n}'"))
            .collect();
        let expression = compile(&either.join(" || ")).unwrap();
        assert_eq!(expression.check(Sizes::default()), Ok(()));
        let names: Vec<String> = (0..500).map(|n| format!("'kind.{n}'")).collect();
        let expression = compile(&format!("event.type in [{}]", names.join(", "))).unwrap();
        assert_eq!(expression.check(Sizes::default()), Ok(()));
    }

    #[test]
    fn loops_are_bounded_by_what_they_visit() {
        let list = |elements| Sizes { elements, text: 100 };
        let once = compile("event.items.exists(x, x.id == event.source)").unwrap();
        assert_eq!(once.check(list(20_000)), Ok(()));
        let error = once.check(list(1_000_000)).unwrap_err();
        assert!(error.contains("1000000 elements"), "{error}");
        let nested = "event.items.all(x, event.items.exists(y, y.id == x.parent))";
        let nested = compile(nested).unwrap();
        assert_eq!(nested.check(list(100)), Ok(()));
        assert!(nested.check(list(1_000)).is_err());
        let written = compile("[1, 2, 3].all(x, [1, 2, 3].all(y, x * y < 10))").unwrap();
        assert_eq!(written.check(list(0)), Ok(()));
        let growing = format!("(event.items{}).all(x, x > 0)", " + event.items".repeat(90));
        assert!(compile(&growing).unwrap().check(list(1_000)).is_err());
    }

    #[test]
    fn searching_texts_is_bounded_by_their_bytes() {
        let search = compile("event.words.exists(word, event.text.contains(word))").unwrap();
        let of = |elements, text| search.check(Sizes { elements, text });
        assert_eq!(of(100, 100_000), Ok(()));
        let error = of(1_000, 1_000_000).unwrap_err();
        assert!(error.contains("1000000 bytes"), "{error}");
        let once = compile("event.text.matches('^a+$')").unwrap();
        assert_eq!(
            once.check(Sizes {
                elements: 100_000,
                text: 4 << 20
            }),
            Ok(())
        );
    }
}
