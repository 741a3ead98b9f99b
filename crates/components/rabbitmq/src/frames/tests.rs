use lapin::protocol::basic::parse_properties;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

/// `levels` nested tables.
fn nested_tables(levels: usize) -> Vec<u8> {
    (1..levels).fold(length(&[]).to_vec(), |inner, _| {
        let pair = [&[1, b'a', b'F'][..], &inner].concat();
        [&length(&pair)[..], &pair].concat()
    })
}

/// A table with `levels` of nested arrays.
fn nested_arrays(levels: usize) -> Vec<u8> {
    let array = (2..levels).fold(length(&[]).to_vec(), |inner, _| {
        let item = [&[b'A'][..], &inner].concat();
        [&length(&item)[..], &item].concat()
    });
    let pair = [&[1, b'a', b'A'][..], &array].concat();
    [&length(&pair)[..], &pair].concat()
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let head = [&[kind, 0, 1][..], &length(payload)].concat();
    [&head[..], payload, &[0xce]].concat()
}

fn header(properties: &[u8]) -> Vec<u8> {
    frame(
        HEADER,
        &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], properties].concat(),
    )
}

fn with_headers(table: &[u8]) -> Vec<u8> {
    header(&[&HEADERS.to_be_bytes()[..], table].concat())
}

fn start(table: &[u8]) -> Vec<u8> {
    frame(METHOD, &[&START[..], &[0, 9], table, &[0; 8]].concat())
}

fn deliver(key: &[u8]) -> Vec<u8> {
    let size = u8::try_from(key.len()).unwrap();
    frame(
        METHOD,
        &[&DELIVER[..], &[1, b'c'], &[0; 9], &[1, b'e', size], key].concat(),
    )
}

const LIMITS: Limits = Limits {
    frame: MAX_FRAME,
    body: 3000,
};

/// Sends `sent` in pieces of a size, and returns the bytes that reach the client.
async fn read(sent: &[u8], piece: usize) -> io::Result<Vec<u8>> {
    let (mut broker, client) = duplex(piece);
    let sent = sent.to_vec();
    let sending = tokio::spawn(async move {
        // The client may have closed the connection.
        let _ended = broker.write_all(&sent).await;
    });
    let mut got = Vec::new();
    let read = Frames::new(client, LIMITS).read_to_end(&mut got).await;
    sending.await.unwrap();
    read.map(|_| got)
}

/// The properties of a header frame, parsed by the client.
fn parsed(header: &[u8]) -> BasicProperties {
    let properties = &payload(header)[BEFORE_PROPERTIES..];
    let (rest, properties) = parse_properties(properties).unwrap();
    assert!(rest.is_empty());
    properties
}

#[tokio::test]
async fn valid_frames_pass_unchanged() {
    let frames = [
        b"AMQP\0\0\x09\x01".to_vec(),
        start(&nested_tables(MAX_NESTING)),
        frame(8, b""),
        deliver("é".as_bytes()),
        with_headers(&nested_arrays(MAX_NESTING)),
        header(&[0, 0]),
        frame(3, &[b'x'; 200_000]),
        frame(3, b""),
        frame(METHOD, &[0, 60, 0, 21, 0, 0]),
    ]
    .concat();
    for piece in [1, 7, 8, 4096, 1 << 20] {
        assert!(read(&frames, piece).await.unwrap() == frames, "{piece}");
    }
}

#[tokio::test]
async fn marks_message_with_invalid_properties() {
    let pair = [1, 0xff, b'V'];
    for unreadable in [
        with_headers(&nested_tables(MAX_NESTING + 2)),
        with_headers(&nested_tables(800)),
        with_headers(&nested_arrays(25_000)),
        with_headers(&[&length(&pair)[..], &pair].concat()),
        with_headers(&[0, 0, 0, 9, 1]),
        with_headers(&[0, 0, 0, 3, 1, b'a', b'z']),
        // A content type that is not UTF-8, and bytes after the properties.
        header(&[0x80, 0, 1, 0xff]),
        header(&[0, 0, 1]),
        header(&[]),
    ] {
        let behind = frame(3, b"body");
        let got = read(&[&unreadable[..], &behind].concat(), 4096).await.unwrap();
        let header = got.strip_suffix(&behind[..]).unwrap();
        assert_eq!(size(header), header.len());
        assert_eq!(header[..3], unreadable[..3]);
        assert_eq!(
            payload(header)[..BEFORE_PROPERTIES],
            payload(&unreadable)[..BEFORE_PROPERTIES]
        );
        assert!(refusal(&parsed(header)).unwrap().contains("nest"));
    }
    assert_eq!(refusal(&parsed(&with_headers(&nested_tables(MAX_NESTING)))), None);
}

#[tokio::test]
async fn drops_oversized_body() {
    // Changes the channel of a frame.
    let on = |channel: u8, mut frame: Vec<u8>| {
        frame[2] = channel;
        frame
    };
    let message = |size: usize| {
        let mut header = header(&[0, 0]);
        header[HEAD..][BODY_SIZE].copy_from_slice(&u64::try_from(size).unwrap().to_be_bytes());
        header
    };
    let small = [message(LIMITS.body), frame(BODY, &vec![b's'; LIMITS.body])].concat();
    let part = || frame(BODY, &[b'l'; 1000]);
    let sent = [
        message(LIMITS.body + 1),
        part(),
        on(2, message(LIMITS.body)),
        part(),
        frame(BODY, b""),
        on(2, frame(BODY, &vec![b's'; LIMITS.body])),
        part(),
        frame(8, b""),
        frame(BODY, b"l"),
        small.clone(),
    ]
    .concat();
    for piece in [1, 7, 4096, 1 << 20] {
        let got = read(&sent, piece).await.unwrap();
        let (first, rest) = got.split_at(size(&got));
        assert_eq!(first[..3], sent[..3]);
        assert_eq!(payload(first)[BODY_SIZE], [0; 8]);
        assert!(refusal(&parsed(first)).unwrap().contains("--max-body-size"));
        let expected = [
            on(2, message(LIMITS.body)),
            on(2, frame(BODY, &vec![b's'; LIMITS.body])),
            frame(8, b""),
            small.clone(),
        ];
        assert!(rest == expected.concat(), "{piece}");
    }
}

#[tokio::test]
async fn replaces_invalid_routing_key() {
    let got = read(&deliver(b"a\xff\xfeb"), 4096).await.unwrap();
    assert_eq!(got, deliver(b"a??b"));
}

#[tokio::test]
async fn rejects_hostile_broker() {
    let large = [&[METHOD, 0, 0][..], &u32::MAX.to_be_bytes()].concat();
    for (sent, part) in [
        (start(&nested_tables(800)), "deeper than 32"),
        (start(&[0, 0, 1, 0]), "malformed"),
        (
            frame(METHOD, &[&[0, 60, 0, 20][..], &nested_tables(800)].concat()),
            "table",
        ),
        (large, "frame_max"),
    ] {
        let error = read(&sent, 4096).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// The client parses exactly the frames that pass validation, without overflowing its thread's stack.
#[test]
fn validation_agrees_with_parser() {
    let types: [(u8, &[u8]); 17] = [
        (b't', &[1]),
        (b'b', &[1]),
        (b'B', &[1]),
        (b's', &[0, 1]),
        (b'U', &[0, 1]),
        (b'u', &[0, 1]),
        (b'I', &[0; 4]),
        (b'i', &[0; 4]),
        (b'f', &[0; 4]),
        (b'D', &[0; 5]),
        (b'L', &[0; 8]),
        (b'l', &[0; 8]),
        (b'd', &[0; 8]),
        (b'T', &[0; 8]),
        (b'S', &[0, 0, 0, 1, b'x']),
        (b'x', &[0, 0, 0, 1, b'x']),
        (b'V', &[]),
    ];
    let pairs = types
        .map(|(kind, value)| [&[1, kind, kind], value].concat())
        .concat();
    let table = [&length(&pairs)[..], &pairs].concat();
    let pairs = [
        &[1, b'n', b'F'][..],
        &table,
        &[1, b'a', b'A', 0, 0, 0, 2, b't', 1],
    ]
    .concat();
    let table = [&length(&pairs)[..], &pairs].concat();
    let text = [2, b'a', b'b'];
    let valid = [
        &0xfffc_u16.to_be_bytes()[..],
        &[text, text].concat(),
        &table,
        &[2, 0],
        &[text; 4].concat(),
        &[0; 8],
        &[text; 4].concat(),
    ]
    .concat();
    let agree = |properties: &[u8]| {
        let parsed = parse_properties(properties).is_ok_and(|(rest, _)| rest.is_empty());
        let readable = is_readable_header(payload(&header(properties)));
        assert_eq!(readable, parsed, "{properties:?}");
        readable
    };
    assert!(agree(&valid));
    assert!(agree(
        &payload(&with_headers(&nested_tables(MAX_NESTING)))[BEFORE_PROPERTIES..]
    ));
    for at in 0..valid.len() {
        agree(&valid[..at]);
        for byte in 0..=u8::MAX {
            let mut changed = valid.clone();
            changed[at] = byte;
            agree(&changed);
        }
    }
}
