//! Takes personal data out of texts: each finding becomes the name of what it is, in angle brackets.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// Whether a match, at its place in a text, is what it looks like.
type Accept = fn(&str, &Range<usize>) -> bool;

/// A kind of personal data.
struct Entity {
    /// What a finding becomes.
    placeholder: &'static str,
    pattern: Regex,
    /// Whether a match is one, with the text around it.
    accept: Accept,
}

const STREETS: &str = "street|st|avenue|ave|road|rd|highway|hwy|square|sq|trail|trl|drive|dr|court|ct|park|parkway\
                       |pkwy|circle|cir|boulevard|blvd";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])";
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
const DIGITS: &str = r"(?:\([0-9]{1,4}\)|[0-9]{1,4})";

/// Of findings that begin at the same place the longest counts, of equally long ones that of the first entity.
static ENTITIES: LazyLock<Vec<Entity>> = LazyLock::new(|| {
    let any: Accept = |_, _| true;
    let list: [(&'static str, String, Accept); 12] = [
        (
            "<EMAIL_ADDRESS>",
            format!(r"[A-Za-z0-9.!#$%&'*+/=?^_{{|}}~-]+@{LABEL}(?:\.{LABEL})+"),
            any,
        ),
        ("<IP>", format!(r"(?:{OCTET}\.){{3}}{OCTET}"), number),
        ("<IP>", "[0-9A-Fa-f:.]{2,45}".to_owned(), ipv6),
        (
            "<MAC_ADDRESS>",
            "(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}".to_owned(),
            word,
        ),
        ("<US_SSN>", "[0-9]{3}-[0-9]{2}-[0-9]{4}".to_owned(), number),
        (
            "<IBAN>",
            "[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?".to_owned(),
            iban,
        ),
        (
            "<ISBN>",
            "97[89](?:[- ]?[0-9]){10}|(?:[0-9][- ]?){9}X".to_owned(),
            number,
        ),
        (
            "<CREDIT_CARD>",
            "[0-9]{4}(?:[ -]?[0-9]{4}){3}|[0-9]{4}[ -]?[0-9]{6}[ -]?[0-9]{5}|[0-9]{16,19}".to_owned(),
            number,
        ),
        (
            "<STREET_ADDRESS>",
            format!(r"\b[0-9]{{1,5}}[A-Za-z]?\s+(?:[\w.'-]+\s+){{0,4}}(?i-u:{STREETS})\b\.?"),
            any,
        ),
        (
            "<PO_BOX>",
            r"\b[Pp]\.?\s?[Oo]\.?\s?(?i-u:box)\s+[0-9]+".to_owned(),
            any,
        ),
        ("<ZIP_CODE>", r"\b[0-9]{5}(?:-[0-9]{4})?\b".to_owned(), any),
        (
            "<PHONE_NUMBER>",
            format!(r"\+?{DIGITS}(?:[ ./-]?{DIGITS}){{1,9}}"),
            phone,
        ),
    ];
    let compiled = list.into_iter().map(|(placeholder, pattern, accept)| Entity {
        placeholder,
        pattern: Regex::new(&pattern).expect("a pattern of this file"),
        accept,
    });
    compiled.collect()
});

/// What is left alone, whatever is in it: links and repositories.
static LINKS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i-u:https?|git|ssh)://[^\s<>]+|git@[\w.-]+:[^\s<>]+").expect("a pattern of this file")
});

/// No digit touches it.
fn number(text: &str, found: &Range<usize>) -> bool {
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    [before, after].iter().flatten().all(|c| !c.is_ascii_digit())
}

/// No letter or digit touches it.
fn word(text: &str, found: &Range<usize>) -> bool {
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    [before, after].iter().flatten().all(|c| !c.is_alphanumeric())
}

fn ipv6(text: &str, found: &Range<usize>) -> bool {
    let found_text = &text[found.clone()];
    found_text.matches(':').count() > 1 && word(text, found) && found_text.parse::<Ipv6Addr>().is_ok()
}

fn iban(text: &str, found: &Range<usize>) -> bool {
    let length = text[found.clone()].bytes().filter(|byte| *byte != b' ').count();
    (15..=34).contains(&length) && word(text, found)
}

/// Seven to fifteen digits that are no date.
fn phone(text: &str, found: &Range<usize>) -> bool {
    let candidate = &text[found.clone()];
    let digits = candidate.bytes().filter(u8::is_ascii_digit).count();
    let parts: Vec<usize> = candidate.split('-').map(str::len).collect();
    (7..=15).contains(&digits) && parts != [4, 2, 2] && number(text, found)
}

/// The text without personal data.
pub(super) fn scrub(text: &str) -> String {
    let links: Vec<_> = LINKS.find_iter(text).map(|link| link.range()).collect();
    let linked = |range: &Range<usize>| {
        links
            .iter()
            .any(|link| link.start < range.end && range.start < link.end)
    };
    let mut findings: Vec<(Range<usize>, &str)> = Vec::new();
    for entity in ENTITIES.iter() {
        let found = entity.pattern.find_iter(text).map(|found| found.range());
        let real = found.filter(|range| (entity.accept)(text, range) && !linked(range));
        findings.extend(real.map(|range| (range, entity.placeholder)));
    }
    findings.sort_by(|(a, _), (b, _)| a.start.cmp(&b.start).then(b.end.cmp(&a.end)));
    let mut scrubbed = String::with_capacity(text.len());
    let mut copied = 0;
    for (range, placeholder) in findings {
        if range.end <= copied {
            continue;
        }
        // What reaches beyond an earlier finding goes too.
        scrubbed.push_str(&text[copied..range.start.max(copied)]);
        scrubbed.push_str(placeholder);
        copied = range.end;
    }
    scrubbed.push_str(&text[copied..]);
    scrubbed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn personal_data_is_named() {
        for (text, expected) in [
            (
                "my phone number is +2222222222",
                "my phone number is <PHONE_NUMBER>",
            ),
            (
                "my phone number is +4422222222",
                "my phone number is <PHONE_NUMBER>",
            ),
            (
                "call (212)-456-7890 or 06 87 50 96 90",
                "call <PHONE_NUMBER> or <PHONE_NUMBER>",
            ),
            (
                "+33 4 22 84 60 03, +1 212.456.7890.",
                "<PHONE_NUMBER>, <PHONE_NUMBER>.",
            ),
            ("my email is test@test.com", "my email is <EMAIL_ADDRESS>"),
            ("9144520109@gmail.com.", "<EMAIL_ADDRESS>."),
            ("from 10.8.9.1", "from <IP>"),
            (
                "from 192.168.100.200, 2001:db8::1 and ::1",
                "from <IP>, <IP> and <IP>",
            ),
            ("00:1a:2B:3c:4d:5E", "<MAC_ADDRESS>"),
            ("My SSN is488-23-3729.", "My SSN is<US_SSN>."),
            ("DE89 3704 0044 0532 0130 00!", "<IBAN>!"),
            ("GB33BUKB20201555555555", "<IBAN>"),
            ("here, 6011553157232994", "here, <CREDIT_CARD>"),
            (
                "4263 9826 4026 9299 and 3782-822463-10005",
                "<CREDIT_CARD> and <CREDIT_CARD>",
            ),
            ("978-3-16-148410-0, 080442957X", "<ISBN>, <ISBN>"),
            ("at 1379 Nulla St. in", "at <STREET_ADDRESS> in"),
            ("write to P.O. Box 686", "write to <PO_BOX>"),
            ("Seattle 98101-1234", "Seattle <ZIP_CODE>"),
        ] {
            assert_eq!(scrub(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_none_stays() {
        for text in [
            "",
            "well hello there",
            "in 2024, on 2024-01-02 at 12:30:45",
            "version 1.2.3 costs 1,000,000 or 12.50",
            "see https://aavaz.ai/emp/488-23-3729 and git@github.com:a/b.git",
            "std::vec::Vec, 12:30:45",
            "999.99.9",
            "naïve café 日本語",
        ] {
            assert_eq!(scrub(text), text);
        }
    }

    #[test]
    fn text_around_findings_is_kept_whatever_its_alphabet() {
        assert_eq!(scrub("é test@test.com é 10.0.0.1é"), "é <EMAIL_ADDRESS> é <IP>é");
        assert_eq!(scrub("日本10.8.9.1日本"), "日本<IP>日本");
    }
}
