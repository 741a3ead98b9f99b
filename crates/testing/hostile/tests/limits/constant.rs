//! Parsing of constants in source text, and of amounts in prose.

/// An amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// A number of things or bytes.
    Count(u64),
    /// Time in milliseconds.
    Time(u64),
}

impl Amount {
    /// Parses the amount at the start of a text: `4 MiB`, `16,384`, `10 s`.
    pub(crate) fn said(text: &str) -> Option<Self> {
        let mut words = text.split(|c: char| c.is_whitespace() || c == ';' || c == ')');
        let number: String = words.next()?.chars().filter(|c| *c != ',').collect();
        let number: u64 = number.parse().ok()?;
        Some(match words.next().unwrap_or_default().trim_end_matches(',') {
            "ms" => Self::Time(number),
            "s" => Self::Time(number * 1000),
            "min" => Self::Time(number * 60_000),
            "h" => Self::Time(number * 3_600_000),
            "KiB" => Self::Count(number << 10),
            "MiB" => Self::Count(number << 20),
            "GiB" => Self::Count(number << 30),
            _ => Self::Count(number),
        })
    }
}

/// Names of the public constants of a source file.
pub(crate) fn public_constants(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split(':').next())
}

/// The value of a constant; `NAME.1` is the second element of a tuple, `NAME.field` a field of a struct.
pub(crate) fn value(text: &str, name: &str) -> Option<Amount> {
    let (name, index) = match name.split_once('.') {
        Some((name, index)) => (name, Some(index)),
        None => (name, None),
    };
    let (_, rest) = text.split_once(&format!("const {name}:"))?;
    let (_, rest) = rest.split_once('=')?;
    let (written, _) = rest.split_once(';')?;
    let mut written = written.trim();
    if let Some(index) = index {
        written = part(written, index)?;
    }
    let mut reader = Reader {
        rest: written,
        file: text,
        time: false,
    };
    let amount = reader.shifted()?;
    match reader.rest.trim() {
        "" if reader.time => Some(Amount::Time(amount)),
        "" => Some(Amount::Count(amount)),
        _ => None,
    }
}

/// An element of a tuple, or a field of a struct.
fn part<'a>(written: &'a str, index: &str) -> Option<&'a str> {
    if let Ok(index) = index.parse::<usize>() {
        let inner = written.strip_prefix('(')?.strip_suffix(')')?;
        return inner.trim_end().trim_end_matches(',').split(", ").nth(index);
    }
    let (_, fields) = written.split_once('{')?;
    let mut fields = fields.lines().map(str::trim);
    fields.find_map(|field| field.strip_prefix(index)?.strip_prefix(": ")?.strip_suffix(','))
}

/// Evaluates an expression of integers and durations, the only forms of limits.
struct Reader<'a> {
    rest: &'a str,
    /// For references to other constants in the file.
    file: &'a str,
    /// Whether a duration was seen; amounts are then in milliseconds.
    time: bool,
}

impl Reader<'_> {
    fn takes(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn shifted(&mut self) -> Option<u64> {
        let mut amount = self.sum()?;
        while self.takes("<<") {
            amount <<= self.sum()?;
        }
        Some(amount)
    }

    fn sum(&mut self) -> Option<u64> {
        let mut amount = self.product()?;
        loop {
            if self.takes("+") {
                amount += self.product()?;
            } else if self.takes("-") {
                amount -= self.product()?;
            } else {
                return Some(amount);
            }
        }
    }

    fn product(&mut self) -> Option<u64> {
        let mut amount = self.cast()?;
        while self.takes("*") {
            amount *= self.cast()?;
        }
        Some(amount)
    }

    fn cast(&mut self) -> Option<u64> {
        let amount = self.factor()?;
        if self.takes("as ") {
            self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        }
        Some(amount)
    }

    fn factor(&mut self) -> Option<u64> {
        for (call, milliseconds) in [("from_secs(", 1000), ("from_millis(", 1), ("from_mins(", 60_000)] {
            if self.takes(&format!("Duration::{call}")) || self.takes(&format!("std::time::Duration::{call}"))
            {
                let amount = self.shifted()?;
                self.time = true;
                return self.takes(")").then_some(amount * milliseconds);
            }
        }
        if self.takes("NonZeroUsize::new(") {
            let amount = self.shifted()?;
            return self.takes(").unwrap()").then_some(amount);
        }
        if self.takes("(") {
            let amount = self.shifted()?;
            return self.takes(")").then_some(amount);
        }
        let rest = self.rest.trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        let digits = word.replace('_', "");
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        number.ok().or_else(|| match value(self.file, word)? {
            Amount::Count(amount) => Some(amount),
            Amount::Time(amount) => {
                self.time = true;
                Some(amount)
            }
        })
    }
}

#[test]
fn parses_constants_and_amounts() {
    let file = "const A: usize = 1 << 4;\npub(super) const B: u64 = 2 * A as u64;\npub const C: (u32, u32) = (1_000, 4 * 4 + 1);\n\
                const D: Duration = Duration::from_secs(5 * 60);\nconst E: &str = \"\";\nconst F: usize = 4 * A;\n\
                const N: NonZeroUsize = NonZeroUsize::new(2 * A).unwrap();\n\
                const L: Limits = Limits {\n    connections: 8,\n    per_source: 2 * A,\n};";
    assert_eq!(public_constants(file).collect::<Vec<_>>(), ["C"]);
    assert_eq!(value(file, "A"), Some(Amount::Count(16)));
    assert_eq!(value(file, "B"), Some(Amount::Count(32)));
    assert_eq!(value(file, "C.0"), Some(Amount::Count(1000)));
    assert_eq!(value(file, "C.1"), Some(Amount::Count(17)));
    assert_eq!(value(file, "D"), Amount::said("5 min, then more"));
    assert_eq!(value(file, "F"), Some(Amount::Count(64)));
    assert_eq!(value(file, "N"), Some(Amount::Count(32)));
    assert_eq!(value(file, "L.per_source"), Some(Amount::Count(32)));
    assert_eq!(value(file, "G"), None);
    assert_eq!(Amount::said("16,384 bytes"), Some(Amount::Count(16_384)));
    assert_eq!(Amount::said("4 MiB"), Some(Amount::Count(4 << 20)));
    assert_eq!(Amount::said("none"), None);
}
