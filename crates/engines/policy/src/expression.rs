//! CEL expressions, whose cost is bounded before evaluation: the interpreter is recursive and cannot be
//! interrupted.

use std::thread;

use cel::{
    Env, Program,
    common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue},
};
use serde_json::Value as Json;

use crate::routing::Event;

/// Maximum length of an expression in bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// Maximum nesting of an expression, in levels of its syntax tree.
const MAX_DEPTH: usize = 100;
/// Maximum steps of an evaluation, of some tenths of a microsecond each.
const MAX_STEPS: u64 = 500_000;

/// Stack size for compiling any expression of the maximum length. Only the used part takes memory.
const STACK: usize = 128 * 1024 * 1024;
/// Steps to compile a regular expression, which happens at each use.
const REGEX: u64 = 500;
/// The same for one that is not a literal in the rule.
const FOREIGN_REGEX: u64 = 100_000;
/// Values copied or compared per step.
const VALUES_PER_STEP: u64 = 4;
/// Bytes of text searched, copied or compared per step.
const BYTES_PER_STEP: u64 = 256;

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression(Program);

impl Expression {
    /// # Errors
    /// Why `text` is invalid, for its author.
    pub(crate) fn compile(env: &Env, text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("it is longer than {MAX_LENGTH} bytes"));
        }
        let compile = || {
            let program = env.compile(text).map_err(|error| error.to_string())?;
            check_depth(program.expression())?;
            Ok(Self(program))
        };
        thread::scope(|scope| {
            let compiling = thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, compile);
            let compiling =
                compiling.map_err(|error| format!("cannot start a thread to compile it: {error}"))?;
            compiling
                .join()
                .unwrap_or_else(|_| Err("the compiler failed".to_owned()))
        })
    }

    /// The program; call [`Expression::check`] before running it.
    pub(crate) fn program(&self) -> &Program {
        &self.0
    }

    /// Checks that evaluation with `event` takes at most [`MAX_STEPS`]. Other variables count as numbers.
    ///
    /// # Errors
    /// It may take more.
    pub(crate) fn check(&self, event: &Event) -> Result<(), String> {
        let mut estimate = Estimate {
            event,
            steps: 0,
            scope: Vec::new(),
        };
        match estimate.value(self.0.expression(), 1) {
            Ok(_) => Ok(()),
            Err(TooLong) => Err(format!(
                "with this event it could take more than {MAX_STEPS} steps: it iterates over a long list, or \
                 compares or searches large values"
            )),
        }
    }
}

/// # Errors
/// The nesting exceeds [`MAX_DEPTH`].
fn check_depth(root: &IdedExpr) -> Result<(), String> {
    let mut open = vec![(root, 1)];
    while let Some((expression, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
        }
        let mut inner = |part| open.push((part, depth + 1));
        match &expression.expr {
            Expr::Call(call) => call
                .target
                .as_deref()
                .into_iter()
                .chain(&call.args)
                .for_each(inner),
            Expr::Comprehension(loops) => {
                let ComprehensionExpr {
                    iter_range,
                    accu_init,
                    loop_cond,
                    loop_step,
                    result,
                    ..
                } = &**loops;
                [iter_range, accu_init, loop_cond, loop_step, result]
                    .into_iter()
                    .for_each(inner);
            }
            Expr::List(list) => list.elements.iter().for_each(inner),
            Expr::Map(map) => map.entries.iter().flat_map(entry_parts).for_each(inner),
            Expr::Struct(message) => message.entries.iter().flat_map(entry_parts).for_each(inner),
            Expr::Select(select) => inner(&select.operand),
            Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
        }
    }
    Ok(())
}

fn entry_parts(entry: &IdedEntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (key, value) = match &entry.expr {
        EntryExpr::StructField(field) => (None, &field.value),
        EntryExpr::MapEntry(entry) => (Some(&entry.key), &entry.value),
    };
    key.into_iter().chain([value])
}

/// An upper bound for the size of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    /// Elements of a list or an object.
    elements: u64,
    /// Elements of the longest list or object in it, including itself.
    longest: u64,
    /// Values in it.
    values: u64,
    /// Bytes of all texts in it.
    bytes: u64,
}

impl Size {
    const SCALAR: Self = Self {
        elements: 0,
        longest: 0,
        values: 1,
        bytes: 0,
    };

    fn text(length: usize) -> Self {
        Self {
            bytes: length as u64,
            ..Self::SCALAR
        }
    }

    fn of(json: &Json) -> Self {
        match json {
            Json::String(text) => Self::text(text.len()),
            Json::Array(items) => Self::around(items.len(), items.iter().map(Self::of)),
            Json::Object(members) => {
                let members = members.iter();
                Self::around(
                    members.len(),
                    members.map(|(name, value)| Self::text(name.len()).beside(Self::of(value))),
                )
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => Self::SCALAR,
        }
    }

    /// A list or an object with these parts.
    fn around(elements: usize, parts: impl Iterator<Item = Self>) -> Self {
        let parts = parts.fold(Self::SCALAR, Self::beside);
        let elements = elements as u64;
        Self {
            elements,
            longest: parts.longest.max(elements),
            ..parts
        }
    }

    /// Both values side by side; neither is an element of the result.
    fn beside(self, other: Self) -> Self {
        Self {
            elements: 0,
            longest: self.longest.max(other.longest),
            values: self.values.saturating_add(other.values),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The concatenation of lists or texts.
    fn plus(self, other: Self) -> Self {
        let elements = self.elements.saturating_add(other.elements);
        let both = self.beside(other);
        Self {
            elements,
            longest: both.longest.max(elements),
            ..both
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            elements: self.elements.max(other.elements),
            longest: self.longest.max(other.longest),
            values: self.values.max(other.values),
            bytes: self.bytes.max(other.bytes),
        }
    }

    fn repeated(self, times: u64) -> Self {
        let elements = self.elements.saturating_mul(times);
        Self {
            elements,
            longest: self.longest.max(elements),
            values: self.values.saturating_mul(times),
            bytes: self.bytes.saturating_mul(times),
        }
    }

    /// Any value in it.
    fn inner(self) -> Self {
        Self {
            elements: self.longest,
            ..self
        }
    }

    /// Steps to read, copy or compare it.
    fn steps(self) -> u64 {
        self.values / VALUES_PER_STEP + self.bytes / BYTES_PER_STEP
    }
}

/// Static knowledge about a value.
#[derive(Clone, Copy)]
enum Known<'a> {
    Event,
    Json(&'a Json),
    /// A loop's accumulator: its total size, and that of one element.
    Gathered(Size, Size),
    Size(Size),
}

/// The bound exceeds [`MAX_STEPS`].
struct TooLong;

/// Walks an expression like the interpreter, but visits each loop body once.
struct Estimate<'a> {
    event: &'a Event,
    steps: u64,
    /// Variables of the enclosing loops.
    scope: Vec<(&'a str, Known<'a>)>,
}

impl<'a> Estimate<'a> {
    fn spend(&mut self, steps: u64) -> Result<(), TooLong> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS {
            Err(TooLong)
        } else {
            Ok(())
        }
    }

    /// Measuring takes steps too.
    fn size(&mut self, known: Known<'a>) -> Result<Size, TooLong> {
        let size = match known {
            Known::Size(size) | Known::Gathered(size, _) => return Ok(size),
            Known::Json(json) => Size::of(json),
            Known::Event => Size::around(self.event.len(), self.event.values().map(Size::of)),
        };
        self.spend(size.values / VALUES_PER_STEP)?;
        Ok(size)
    }

    fn member(&mut self, known: Known<'a>, name: &str) -> Result<Known<'a>, TooLong> {
        let found = match known {
            Known::Event => self.event.get(name),
            Known::Json(Json::Object(members)) => members.get(name),
            Known::Json(_) => None,
            Known::Size(size) | Known::Gathered(size, _) => return Ok(Known::Size(size.inner())),
        };
        Ok(found.map_or(Known::Size(Size::SCALAR), Known::Json))
    }

    /// Any element of a list, or any key or value of an object.
    fn element(&mut self, known: Known<'a>) -> Result<Size, TooLong> {
        if let Known::Gathered(_, each) = known {
            return Ok(each);
        }
        if let Known::Json(Json::Array(items)) = known {
            let (mut largest, mut values) = (Size::SCALAR, 0u64);
            for size in items.iter().map(Size::of) {
                largest = largest.or(size);
                values = values.saturating_add(size.values);
            }
            self.spend(values / VALUES_PER_STEP)?;
            return Ok(largest);
        }
        Ok(self.size(known)?.inner())
    }

    /// The value of `expression`, which is evaluated `times` times.
    fn value(&mut self, expression: &'a IdedExpr, times: u64) -> Result<Known<'a>, TooLong> {
        self.spend(times)?;
        Ok(Known::Size(match &expression.expr {
            Expr::Literal(LiteralValue::String(text)) => Size::text(text.inner().len()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Size::text(bytes.inner().len()),
            Expr::Literal(_) | Expr::Unspecified => Size::SCALAR,
            Expr::Ident(name) => {
                let of_loop = self.scope.iter().rev().find(|(known, _)| known == name);
                return Ok(match of_loop {
                    Some((_, known)) => *known,
                    None if name == "event" => Known::Event,
                    None => Known::Size(Size::SCALAR),
                });
            }
            Expr::Select(select) => {
                let operand = self.value(&select.operand, times)?;
                if !select.test {
                    return self.member(operand, &select.field);
                }
                Size::SCALAR
            }
            Expr::List(list) => self.literal(list.elements.len(), list.elements.iter(), times)?,
            Expr::Map(map) => {
                self.literal(map.entries.len(), map.entries.iter().flat_map(entry_parts), times)?
            }
            Expr::Struct(message) => {
                let entries = &message.entries;
                self.literal(entries.len(), entries.iter().flat_map(entry_parts), times)?
            }
            Expr::Call(call) => {
                let operands = call.target.as_deref().into_iter().chain(&call.args);
                let operands: Vec<&IdedExpr> = operands.collect();
                return self.call(&call.func_name, &operands, times);
            }
            Expr::Comprehension(loops) => return self.loops(loops, times),
        }))
    }

    /// A list or object literal.
    fn literal(
        &mut self,
        elements: usize,
        parts: impl Iterator<Item = &'a IdedExpr>,
        times: u64,
    ) -> Result<Size, TooLong> {
        let mut sizes = Vec::new();
        for part in parts {
            let known = self.value(part, times)?;
            sizes.push(self.size(known)?);
        }
        let size = Size::around(elements, sizes.into_iter());
        self.spend(size.steps().saturating_mul(times))?;
        Ok(size)
    }

    fn call(&mut self, name: &str, operands: &[&'a IdedExpr], times: u64) -> Result<Known<'a>, TooLong> {
        let mut known = Vec::with_capacity(operands.len());
        for operand in operands {
            known.push(self.value(operand, times)?);
        }
        match (name, &known[..]) {
            ("_[_]" | "_[?_]", [of, _]) => {
                if let Expr::Literal(LiteralValue::String(key)) = &operands[1].expr {
                    return self.member(*of, key.inner());
                }
                return Ok(Known::Size(self.element(*of)?));
            }
            ("_&&_" | "_||_" | "!_" | "@not_strictly_false", _) => return Ok(Known::Size(Size::SCALAR)),
            _ => {}
        }
        let mut sizes = Vec::with_capacity(known.len());
        for known in known {
            sizes.push(self.size(known)?);
        }
        let all = sizes.iter().copied().fold(Size::default(), Size::plus);
        let (steps, result) = match (name, &sizes[..]) {
            ("_?_:_", [_, yes, no]) => (0, yes.or(*no)),
            ("_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_", [one, other]) => {
                (one.steps().min(other.steps()), Size::SCALAR)
            }
            ("@in", [_, within]) => (within.elements.saturating_add(within.steps()), Size::SCALAR),
            ("matches", [_, _]) => {
                let written = matches!(operands[1].expr, Expr::Literal(_));
                let compiling = if written { REGEX } else { FOREIGN_REGEX };
                (all.steps().saturating_add(compiling), Size::SCALAR)
            }
            ("size" | "contains" | "startsWith" | "endsWith", _) => (all.steps(), Size::SCALAR),
            _ => (all.steps(), all),
        };
        self.spend(steps.saturating_mul(times))?;
        Ok(Known::Size(result))
    }

    /// `all`, `exists`, `map` and similar macros.
    fn loops(&mut self, loops: &'a ComprehensionExpr, times: u64) -> Result<Known<'a>, TooLong> {
        let range = self.value(&loops.iter_range, times)?;
        let size = self.size(range)?;
        let element = Known::Size(self.element(range)?);
        // Each element is copied.
        self.spend(size.steps().saturating_mul(times))?;
        let first = self.value(&loops.accu_init, times)?;
        let first = self.size(first)?;
        let outer = self.scope.len();
        self.scope.push((&loops.iter_var, element));
        if let Some(second) = &loops.iter_var2 {
            self.scope.push((second, element));
        }
        self.scope.push((&loops.accu_var, Known::Size(first)));
        let inner = times.saturating_mul(size.elements);
        self.value(&loops.loop_cond, inner)?;
        let step = self.value(&loops.loop_step, inner)?;
        let step = self.size(step)?;
        self.scope.truncate(outer);
        // The growth of one step is repeated for each element.
        let all = first.plus(step.repeated(size.elements));
        let gathered = Known::Gathered(all, step.or(first).inner());
        self.scope.push((&loops.accu_var, gathered));
        let result = self.value(&loops.result, times);
        self.scope.truncate(outer);
        result
    }
}

/// A prefix of an expression that identifies it in errors.
pub(crate) fn start(expression: &str) -> &str {
    &expression[..expression.floor_char_boundary(200)]
}

#[cfg(test)]
mod tests;
