//! The examples of RFC 7541 appendix C.

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// One `name: value` per line.
fn list(text: &str) -> Vec<Field> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_at(line[1..].find(": ").unwrap() + 1);
            let value = value[2..].to_owned();
            match name {
                ":method" => Field::Method(value.parse().unwrap()),
                ":scheme" => Field::Scheme(value.into()),
                ":authority" => Field::Authority(value.into()),
                ":path" => Field::Path(value.into()),
                ":status" => Field::Status(value.parse().unwrap()),
                _ => header(name, &value),
            }
        })
        .collect()
}

fn block(decoder: &mut Decoder, hex: &str, fields: &str, table: &str, size: usize) {
    let (_, decoded) = decode(decoder, &bytes(hex), NO_LIMIT).unwrap();
    assert_eq!(decoded, list(fields), "{hex}");
    let entries: Vec<Field> = decoder.table().fields().cloned().collect();
    assert_eq!(entries, list(table), "the table after {hex}");
    assert_eq!(decoder.table().size(), size, "the table after {hex}");
}

#[test]
fn c2_header_fields() {
    let one = |hex, fields, table, size| block(&mut Decoder::new(4096), hex, fields, table, size);
    let custom = "custom-key: custom-header";
    one(
        "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
        custom,
        custom,
        55,
    );
    one("040c2f73616d706c652f70617468", ":path: /sample/path", "", 0);
    one("100870617373776f726406736563726574", "password: secret", "", 0);
    one("82", ":method: GET", "", 0);
}

const FIRST_REQUEST: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
const SECOND_REQUEST: &str =
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache";
const THIRD_REQUEST: &str =
    ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value";

fn requests(first: &str, second: &str, third: &str) {
    let mut decoder = Decoder::new(4096);
    let table = ":authority: www.example.com";
    block(&mut decoder, first, FIRST_REQUEST, table, 57);
    let table = format!("cache-control: no-cache\n{table}");
    block(&mut decoder, second, SECOND_REQUEST, &table, 110);
    let table = format!("custom-key: custom-value\n{table}");
    block(&mut decoder, third, THIRD_REQUEST, &table, 164);
}

#[test]
fn c3_requests_without_huffman_coding() {
    requests(
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    );
}

#[test]
fn c4_requests_with_huffman_coding() {
    requests(
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    );
}

const DATE: &str = "date: Mon, 21 Oct 2013 20:13:21 GMT";
const LATER: &str = "date: Mon, 21 Oct 2013 20:13:22 GMT";
const LOCATION: &str = "location: https://www.example.com";
const COOKIE: &str = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";

fn responses(first: &str, second: &str, third: &str) {
    let mut decoder = Decoder::new(4096);
    // The examples assume a table of 256 bytes.
    let first = format!("3fe101{first}");
    let table = format!("{LOCATION}\n{DATE}\ncache-control: private");
    block(
        &mut decoder,
        &first,
        &format!(":status: 302\ncache-control: private\n{DATE}\n{LOCATION}"),
        &format!("{table}\n:status: 302"),
        222,
    );
    block(
        &mut decoder,
        second,
        &format!(":status: 307\ncache-control: private\n{DATE}\n{LOCATION}"),
        &format!(":status: 307\n{table}"),
        222,
    );
    block(
        &mut decoder,
        third,
        &format!(
            ":status: 200\ncache-control: private\n{LATER}\n{LOCATION}\ncontent-encoding: gzip\n{COOKIE}"
        ),
        &format!("{COOKIE}\ncontent-encoding: gzip\n{LATER}"),
        215,
    );
}

#[test]
fn c5_responses_without_huffman_coding() {
    responses(
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54\
         6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
        "4803333037c1c0bf",
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f\
         3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076\
         657273696f6e3d31",
    );
}

#[test]
fn c6_responses_with_huffman_coding() {
    responses(
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f\
         0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df\
         dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    );
}
