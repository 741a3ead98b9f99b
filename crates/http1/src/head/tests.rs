use super::*;

const LIMITS: Limits = Limits {
    bytes: 400,
    fields: 8,
};

fn head(text: &str) -> Result<Option<Head>, Refused> {
    take(&mut BytesMut::from(text), LIMITS)
}

fn status(text: &str) -> u16 {
    head(text).unwrap_err().status.as_u16()
}

#[test]
fn a_head_is_taken_and_what_is_behind_it_stays() {
    let text =
        "POST /a/b?c=%20 HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two:  2 \r\nContent-Length: 3\r\n\r\nabcGET";
    for end in 0..text.len() - 6 {
        let mut read = BytesMut::from(&text[..end]);
        assert!(take(&mut read, LIMITS).unwrap().is_none());
        assert_eq!(read, &text[..end], "nothing is lost");
    }
    let mut read = BytesMut::from(text);
    let found = take(&mut read, LIMITS).unwrap().unwrap();
    assert_eq!(found.request.method(), Method::POST);
    assert_eq!(found.request.uri(), "/a/b?c=%20");
    let twice: Vec<_> = found.request.headers().get_all("x-two").iter().collect();
    assert_eq!(twice, ["1", "2"]);
    assert!(matches!(found.body, Start::Whole(body) if body == "abc"));
    assert!(found.keep_alive && !found.expects);
    assert_eq!(read, "GET");
}

#[test]
fn a_body_that_is_not_all_here_comes_later() {
    let mut read =
        BytesMut::from("PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\nexpect: 100-Continue\r\n\r\nab");
    let found = take(&mut read, LIMITS).unwrap().unwrap();
    assert!(matches!(found.body, Start::Later(Rest::Bytes(5))));
    assert!(found.expects);
    assert_eq!(read, "ab");
    let chunked = "PUT / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: Chunked\r\n\r\n";
    let found = head(chunked).unwrap().unwrap();
    assert!(matches!(found.body, Start::Later(Rest::Chunks(_))));
}

#[test]
fn connections_last_as_long_as_both_sides_of_the_protocol_say() {
    for (fields, modern, old) in [
        ("", true, false),
        ("connection: Close\r\n", false, false),
        ("connection: x, keep-alive\r\n", true, true),
        ("connection: keep-alive\r\nconnection: x,close\r\n", false, false),
    ] {
        for (version, expected) in [("1.1", modern), ("1.0", old)] {
            let text = format!("GET / HTTP/{version}\r\nhost: h\r\n{fields}\r\n");
            assert_eq!(head(&text).unwrap().unwrap().keep_alive, expected, "{text}");
        }
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n");
    for fields in [
        "content-length: 1\r\ncontent-length: 2\r\n",
        "content-length: 1, 2\r\n",
        "content-length: +1\r\n",
        "content-length: -1\r\n",
        "content-length: 0x1\r\n",
        "content-length: 1 1\r\n",
        "content-length:\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length: 1\r\ntransfer-encoding: chunked\r\n",
        "host: other\r\n",
        "x : y\r\n",
        "x: y\r\n folded\r\n",
        "x: \0\r\n",
        "no field\r\n",
    ] {
        assert_eq!(status(&with(fields)), 400, "{fields}");
    }
    for encoding in [
        "gzip, chunked",
        "chunked, chunked",
        "chunked;q=1",
        "identity",
        "xchunked",
    ] {
        assert_eq!(
            status(&with(&format!("transfer-encoding: {encoding}\r\n"))),
            501,
            "{encoding}"
        );
    }
    let twice = "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n";
    assert_eq!(status(&with(twice)), 501);
    assert_eq!(
        status("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"),
        400
    );
    let same = head(&with("content-length: 0\r\ncontent-length: 0,0\r\n"))
        .unwrap()
        .unwrap();
    assert!(matches!(same.body, Start::Whole(body) if body.is_empty()));
}

#[test]
fn what_is_no_request_is_refused() {
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\nhost: h\r\n\r\n",
        "GET  / HTTP/1.1\r\nhost: h\r\n\r\n",
        "GET /\u{1} HTTP/1.1\r\nhost: h\r\n\r\n",
        "GET h\"o HTTP/1.1\r\nhost: h\r\n\r\n",
        "(GET) / HTTP/1.1\r\nhost: h\r\n\r\n",
        "\0\0\0\0",
    ] {
        assert_eq!(status(text), 400, "{text}");
    }
    assert!(head("GET / HTTP/1.0\r\n\r\n").unwrap().is_some());
    assert!(
        head("\r\nGET http://h/x HTTP/1.1\r\nhost: h\r\n\r\n")
            .unwrap()
            .is_some()
    );
}

#[test]
fn heads_are_bounded() {
    let long = "x".repeat(500);
    assert_eq!(
        status(&format!("GET / HTTP/1.1\r\nhost: h\r\nx: {long}\r\n\r\n")),
        431
    );
    assert_eq!(status(&format!("GET /{long}")), 431);
    let many = "x: y\r\n".repeat(8);
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nhost: h\r\n{many}\r\n")), 431);
    let wide = Limits {
        bytes: 5000,
        fields: 300,
    };
    let many = "x: y\r\n".repeat(299);
    let text = format!("GET / HTTP/1.1\r\nhost: h\r\n{many}\r\n");
    assert!(take(&mut BytesMut::from(&*text), wide).unwrap().is_some());
}
