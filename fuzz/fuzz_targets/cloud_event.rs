//! CloudEvents from brokers and publishers: no input panics, accepted events keep their members when
//! serialized, and wrapped data can be parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_cloudevents::{Data, Envelope, Event, content_type, member};

fuzz_target!(|text: &[u8]| {
    if let Ok(event) = Event::parse(text) {
        let _read = (event.trace(), event.text(member::ID));
        let written = event.to_bytes();
        let again = Event::parse(&written).expect("the serialized event parses");
        assert!(event.members().eq(again.members()), "the members stay");
        let mut changed = again.clone();
        changed.set(member::TOPIC, "a\"b\u{1}");
        changed.remove(member::DATA_BASE64);
        let changed = changed.to_bytes();
        let changed = Event::parse(&changed).expect("the changed event parses");
        assert_eq!(changed.text(member::TOPIC).as_deref(), Some("a\"b\u{1}"));
        assert!(!matches!(changed.data(), Data::Base64(_)));
    }
    let name = String::from_utf8_lossy(text);
    for content_type in [content_type::JSON, content_type::TEXT, content_type::OCTET_STREAM, &name] {
        let envelope = Envelope {
            id: &name,
            content_type,
            ..Envelope::default()
        };
        let wrapped = envelope.wrap(text);
        let event = Event::parse(&wrapped).expect("an envelope is an event");
        assert_eq!(event.text(member::ID).as_deref(), Some(&*name));
        let is_null = text.trim_ascii() == b"null";
        assert!(is_null || event.data() != Data::None, "a payload stays");
    }
});
