//! Removes personal data from texts: each finding is replaced by its kind in angle brackets.

mod fold;
mod links;

use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use self::fold::Folded;
use self::links::{InLink, Passing};

/// Whether a match at its position in a text is a finding.
type Accept = fn(&str, &Range<usize>) -> bool;

/// A kind of personal data.
struct Entity {
    /// The replacement text.
    placeholder: &'static str,
    pattern: Regex,
    /// Whether a match is a finding, given the text around it.
    accept: Accept,
    /// The part of a match inside a link that is a finding: links contain numbers that are not personal.
    in_link: InLink,
}

const STREETS: &str = "street|st|avenue|ave|road|rd|highway|hwy|square|sq|trail|trl|drive|dr|court|ct|park|parkway\
                       |pkwy|circle|cir|boulevard|blvd";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])";
/// Letters and digits of addresses, in alphabets that separate words by spaces.
const LETTER: &str = "A-Za-z0-9À-ɏͰ-ӿ";
const DIGITS: &str = r"(?:\([0-9]{1,4}\)|[0-9]{1,4})";

/// Of findings that start at the same position the longest wins; among equally long ones, the first entity.
/// Word boundaries are ASCII, because others make the search many times slower on non-ASCII text.
static ENTITIES: LazyLock<Vec<Entity>> = LazyLock::new(|| {
    let any: Accept = |_, _| true;
    let label = format!("[{LETTER}](?:[{LETTER}-]*[{LETTER}])?");
    let list: [(&'static str, String, Accept, InLink); 13] = [
        (
            "<EMAIL_ADDRESS>",
            format!(r"[{LETTER}.!#$%&'*+/=?^_{{|}}~-]+@{label}(?:\.{label})+"),
            mailbox,
            links::mailbox,
        ),
        (
            "<IP>",
            format!(r"(?:{OCTET}\.){{3}}{OCTET}"),
            number,
            links::as_anywhere,
        ),
        ("<IP>", "[0-9A-Fa-f:.]{2,45}".to_owned(), ipv6, links::as_anywhere),
        (
            "<MAC_ADDRESS>",
            "(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}".to_owned(),
            word,
            links::as_anywhere,
        ),
        (
            "<MAC_ADDRESS>",
            r"(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}".to_owned(),
            word,
            links::as_anywhere,
        ),
        (
            "<US_SSN>",
            "[0-9]{3}[-.][0-9]{2}[-.][0-9]{4}".to_owned(),
            number,
            links::as_anywhere,
        ),
        (
            "<IBAN>",
            "[A-Z]{2}[0-9]{2}(?:[ .-]?[A-Z0-9]{4}){2,7}(?:[ .-]?[A-Z0-9]{1,4})?".to_owned(),
            iban,
            links::as_anywhere,
        ),
        (
            "<ISBN>",
            "97[89](?:[- ]?[0-9]){10}|(?:[0-9][- ]?){9}X".to_owned(),
            number,
            links::never,
        ),
        (
            "<CREDIT_CARD>",
            "[0-9]{16,19}|[0-9]{4}(?:[ .-]?[0-9]{4}){3}|[0-9]{4}[ .-]?[0-9]{6}[ .-]?[0-9]{5}".to_owned(),
            number,
            links::card,
        ),
        (
            "<STREET_ADDRESS>",
            format!(r"(?-u:\b)[0-9]{{1,5}}[A-Za-z]?\s+(?:[\w.'-]+\s+){{0,4}}(?i-u:{STREETS})(?-u:\b)\.?"),
            any,
            links::never,
        ),
        (
            "<PO_BOX>",
            r"(?-u:\b)[Pp]\.?\s?[Oo]\.?\s?(?i-u:box)\s+[0-9]+".to_owned(),
            any,
            links::never,
        ),
        (
            "<ZIP_CODE>",
            r"(?-u:\b)[0-9]{5}(?:-[0-9]{4})?(?-u:\b)".to_owned(),
            any,
            links::never,
        ),
        (
            "<PHONE_NUMBER>",
            format!(r"\+?{DIGITS}(?:[ ./-]?{DIGITS}){{1,9}}"),
            phone,
            links::phone,
        ),
    ];
    let compiled = list
        .into_iter()
        .map(|(placeholder, pattern, accept, in_link)| Entity {
            placeholder,
            pattern: Regex::new(&pattern).expect("a pattern of this file"),
            accept,
            in_link,
        });
    compiled.collect()
});

/// Not adjacent to another digit.
fn number(text: &str, found: &Range<usize>) -> bool {
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    [before, after].iter().flatten().all(|c| !c.is_ascii_digit())
}

/// Not adjacent to a letter or digit.
fn word(text: &str, found: &Range<usize>) -> bool {
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    [before, after].iter().flatten().all(|c| !c.is_alphanumeric())
}

/// Excludes the account of a repository (`git@host:path`).
fn mailbox(text: &str, found: &Range<usize>) -> bool {
    !(text[found.clone()].starts_with("git@") && text[found.end..].starts_with(':'))
}

fn ipv6(text: &str, found: &Range<usize>) -> bool {
    let found_text = &text[found.clone()];
    found_text.matches(':').count() > 1 && word(text, found) && found_text.parse::<Ipv6Addr>().is_ok()
}

fn iban(text: &str, found: &Range<usize>) -> bool {
    let length = text[found.clone()]
        .bytes()
        .filter(u8::is_ascii_alphanumeric)
        .count();
    (15..=34).contains(&length) && word(text, found)
}

/// Seven to fifteen digits that are not a date.
fn phone(text: &str, found: &Range<usize>) -> bool {
    let candidate = &text[found.clone()];
    let digits = candidate.bytes().filter(u8::is_ascii_digit).count();
    let parts: Vec<usize> = candidate.split('-').map(str::len).collect();
    (7..=15).contains(&digits) && parts != [4, 2, 2] && number(text, found)
}

/// Positions in a text and the kind found there.
type Findings = Vec<(Range<usize>, &'static str)>;

impl Entity {
    /// Adds all findings. Matches and links both come in text order, so each is visited once.
    fn find(&self, text: &str, links: &mut Passing<'_>, found: &mut Findings) {
        for range in self.pattern.find_iter(text).map(|found| found.range()) {
            let inside = links.are_around(range.start);
            if !(self.accept)(text, &range) {
                continue;
            }
            let range = if inside {
                (self.in_link)(text, range)
            } else {
                Some(range)
            };
            found.extend(range.map(|range| (range, self.placeholder)));
        }
    }
}

/// The text without personal data.
pub(super) fn scrub(text: &str) -> String {
    let folded = Folded::of(text);
    let links = links::find(&folded.text);
    let mut found = Vec::new();
    for entity in ENTITIES.iter() {
        entity.find(&folded.text, &mut Passing::of(&links), &mut found);
    }
    found.sort_by(|(a, _), (b, _)| a.start.cmp(&b.start).then(b.end.cmp(&a.end)));
    let mut scrubbed = String::with_capacity(text.len());
    let mut copied = 0;
    for (range, placeholder) in found {
        let range = folded.original(range.start)..folded.original(range.end);
        if range.end <= copied {
            continue;
        }
        // The part that extends beyond an earlier finding is removed too.
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
    fn replaces_personal_data() {
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
    fn keeps_other_text() {
        for text in [
            "",
            "well hello there",
            "in 2024, on 2024-01-02 at 12:30:45",
            "version 1.2.3 costs 1,000,000 or 12.50",
            "git@github.com:a/b.git and ssh://git@github.com/a/b.git",
            "https://x.org/2024/01/02/98101/80444295 and https://x.org/status/1234567890123456789",
            "https://x.org/550e8400-e29b-41d4-a716-446655440000?v=1.2.3#L10-L20",
            "std::vec::Vec, 12:30:45",
            "999.99.9",
            "naïve café 日本語",
        ] {
            assert_eq!(scrub(text), text);
        }
    }

    #[test]
    fn scrubs_links_but_keeps_them() {
        for (text, expected) in [
            (
                "see https://aavaz.ai/emp/488-23-3729",
                "see https://aavaz.ai/emp/<US_SSN>",
            ),
            (
                "https://x.org/reset?mail=jane.d@example.com&x=1",
                "https://x.org/reset?mail=<EMAIL_ADDRESS>&x=1",
            ),
            (
                "https://x.org/u?m=jane%40example.com",
                "https://x.org/u?m=<EMAIL_ADDRESS>",
            ),
            (
                "https://x.org/jane@example.com/y",
                "https://x.org/<EMAIL_ADDRESS>/y",
            ),
            (
                "[jane@example.com](https://x.org/?p=212-456-7890)",
                "[<EMAIL_ADDRESS>](https://x.org/?p=<PHONE_NUMBER>)",
            ),
            (
                "https://x.org/call?to=%2B12124567890",
                "https://x.org/call?to=<PHONE_NUMBER>",
            ),
            ("https://x.org/?to=2124567890", "https://x.org/?to=<PHONE_NUMBER>"),
            (
                "https://x.org/pay/4263982640269299",
                "https://x.org/pay/<CREDIT_CARD>",
            ),
            (
                "http://10.8.9.1:80/from?ip=10.8.9.2",
                "http://<IP>:80/from?ip=<IP>",
            ),
            (
                "git@github.com:jane@example.com",
                "git@github.com:<EMAIL_ADDRESS>",
            ),
            (
                "<a href=\"https://x.org\">jane@example.com</a>",
                "<a href=\"https://x.org\"><EMAIL_ADDRESS></a>",
            ),
        ] {
            assert_eq!(scrub(text), expected, "{text}");
        }
    }

    #[test]
    fn finds_other_forms_of_characters() {
        for (text, expected) in [
            ("jane＠example.com!", "<EMAIL_ADDRESS>!"),
            ("jane﹫example。com", "<EMAIL_ADDRESS>"),
            ("ｊａｎｅ＠ｅｘａｍｐｌｅ．ｃｏｍ、", "<EMAIL_ADDRESS>、"),
            ("josé@müller.example", "<EMAIL_ADDRESS>"),
            ("SSN 488–23–3729", "SSN <US_SSN>"),
            ("SSN 488\u{2011}23\u{2212}3729", "SSN <US_SSN>"),
            ("４２６３ ９８２６ ４０２６ ９２９９", "<CREDIT_CARD>"),
            ("4263.9826.4026.9299", "<CREDIT_CARD>"),
            ("4263–9826–4026–9299", "<CREDIT_CARD>"),
            ("4263\u{a0}9826\u{202f}4026\u{3000}9299", "<CREDIT_CARD>"),
            ("3782.822463.10005", "<CREDIT_CARD>"),
            ("212–456–7890, 212·456·7890", "<PHONE_NUMBER>, <PHONE_NUMBER>"),
            ("jane\u{200b}@exam\u{ad}ple.com.", "<EMAIL_ADDRESS>."),
            ("٢١٢-٤٥٦-٧٨٩٠", "<PHONE_NUMBER>"),
            ("DE89-3704-0044-0532-0130-00", "<IBAN>"),
            ("001a.2b3c.4d5e", "<MAC_ADDRESS>"),
        ] {
            assert_eq!(scrub(text), expected, "{text}");
        }
        for text in ["１、２－３ ＡＢＣ", "50%20 of 100%", "a–b — c", "％４０"] {
            assert_eq!(scrub(text), text);
        }
    }

    #[test]
    fn visits_links_once() {
        let count = 50_000;
        let text = "http://x.org/a jane@example.com ".repeat(count);
        let scrubbed = scrub(&text);
        assert_eq!(scrubbed.matches("http://x.org/a <EMAIL_ADDRESS> ").count(), count);
        // Each check either passes a link or ends with a match, so there are at most as many checks as links
        // and matches.
        let (links, mailboxes) = (links::find(&text), &ENTITIES[0]);
        assert_eq!(links.len(), count);
        let (mut passing, mut found) = (Passing::of(&links), Vec::new());
        mailboxes.find(&text, &mut passing, &mut found);
        assert_eq!(found.len(), count);
        assert!(passing.looks() <= 2 * count, "{}", passing.looks());
    }

    #[test]
    fn keeps_text_around_findings() {
        assert_eq!(scrub("é test@test.com é 10.0.0.1é"), "é <EMAIL_ADDRESS> é <IP>é");
        assert_eq!(scrub("日本10.8.9.1日本"), "日本<IP>日本");
    }
}
