//! Row values as JSON, in the forms that Dapr's clients expect.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{Timestamp, tz::TimeZone};
use outrigger_component::{Error, Kind, Result};
use outrigger_go_json::{Html, canonical};
use tokio_postgres::{
    Row,
    types::{FromSql, Kind as TypeKind, Type},
};

/// The server's epoch, 2000-01-01, in Unix microseconds.
const EPOCH: i64 = 946_684_800_000_000;
const DAY: i64 = 86_400_000_000;

type Cause = Box<dyn std::error::Error + Sync + Send>;

/// A value as sent by the server.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Cause> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Appends a row as a JSON array.
///
/// # Errors
/// An unsupported type; the text names the column and a workaround.
pub(super) fn write_row(row: &Row, out: &mut String) -> Result<()> {
    out.push('[');
    for (index, column) in row.columns().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let written = match row.try_get::<_, Option<Raw<'_>>>(index) {
            Ok(None) => {
                out.push_str("null");
                Ok(())
            }
            Ok(Some(raw)) => write(column.type_(), raw.0, out),
            Err(error) => Err(error.into()),
        };
        written.map_err(|error| {
            let (name, kind) = (column.name(), column.type_().name());
            let text = format!("error reading the column {name} of type {kind}; cast it, as in {name}::text");
            Error::new(Kind::InvalidRequest, text).because(error)
        })?;
    }
    out.push(']');
    Ok(())
}

fn write(kind: &Type, raw: &[u8], out: &mut String) -> Result<(), Cause> {
    match kind.kind() {
        TypeKind::Array(element) => return write_array(kind, element, raw, out),
        TypeKind::Domain(inner) => return write(inner, raw, out),
        TypeKind::Enum(_) => return text(std::str::from_utf8(raw)?, out),
        _ => {}
    }
    match *kind {
        Type::BOOL => write!(out, "{}", bool::from_sql(kind, raw)?)?,
        Type::INT2 => write!(out, "{}", i16::from_sql(kind, raw)?)?,
        Type::INT4 => write!(out, "{}", i32::from_sql(kind, raw)?)?,
        Type::INT8 => write!(out, "{}", i64::from_sql(kind, raw)?)?,
        Type::OID | Type::XID | Type::CID => write!(out, "{}", u32::from_be_bytes(raw.try_into()?))?,
        Type::FLOAT4 => float(f32::from_sql(kind, raw)?.to_string(), out),
        Type::FLOAT8 => float(f64::from_sql(kind, raw)?.to_string(), out),
        Type::NUMERIC => float(numeric(raw)?, out),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::XML | Type::CHAR => {
            text(std::str::from_utf8(raw)?, out)?;
        }
        Type::BYTEA => write!(out, "\"{}\"", BASE64_STANDARD.encode(raw))?,
        Type::JSON => json(raw, out)?,
        Type::JSONB => json(raw.strip_prefix(&[1]).ok_or("a newer form of jsonb")?, out)?,
        Type::UUID => write!(out, "{raw:?}")?,
        Type::DATE => {
            let days = i32::from_sql(&Type::INT4, raw)?;
            moment(
                match days {
                    i32::MAX => i64::MAX,
                    i32::MIN => i64::MIN,
                    days => i64::from(days) * DAY,
                },
                &TimeZone::UTC,
                out,
            )?;
        }
        Type::TIMESTAMP => moment(i64::from_sql(&Type::INT8, raw)?, &TimeZone::UTC, out)?,
        Type::TIMESTAMPTZ => moment(i64::from_sql(&Type::INT8, raw)?, &TimeZone::system(), out)?,
        Type::TIME => {
            let micros = i64::from_sql(&Type::INT8, raw)?;
            write!(out, r#"{{"Microseconds":{micros},"Valid":true}}"#)?;
        }
        Type::INTERVAL => interval(raw, out)?,
        Type::INET | Type::CIDR => address(raw, out)?,
        _ if kind.name() == "citext" => text(std::str::from_utf8(raw)?, out)?,
        _ => return Err("values of this type cannot be written as JSON".into()),
    }
    Ok(())
}

fn write_array(kind: &Type, element: &Type, raw: &[u8], out: &mut String) -> Result<(), Cause> {
    out.push('[');
    for (index, item) in Vec::<Option<Raw<'_>>>::from_sql(kind, raw)?.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match item {
            Some(item) => write(element, item.0, out)?,
            None => out.push_str("null"),
        }
    }
    out.push(']');
    Ok(())
}

fn text(text: &str, out: &mut String) -> Result<(), Cause> {
    json(serde_json::to_string(text)?.as_bytes(), out)
}

fn json(raw: &[u8], out: &mut String) -> Result<(), Cause> {
    out.push_str(std::str::from_utf8(&canonical(raw, Html::Escape)?)?);
    Ok(())
}

/// A number, or the word for a special value.
fn float(shown: String, out: &mut String) {
    match shown.as_str() {
        "NaN" => out.push_str("\"NaN\""),
        "inf" | "Infinity" => out.push_str("\"Infinity\""),
        "-inf" | "-Infinity" => out.push_str("\"-Infinity\""),
        _ => out.push_str(&shown),
    }
}

/// Microseconds since the server's epoch as RFC 3339; infinities are words.
fn moment(micros: i64, zone: &TimeZone, out: &mut String) -> Result<(), Cause> {
    match micros {
        i64::MAX => out.push_str("\"infinity\""),
        i64::MIN => out.push_str("\"-infinity\""),
        micros => {
            let time = Timestamp::from_microsecond(micros.checked_add(EPOCH).ok_or("out of range")?)?;
            let shown = time
                .to_zoned(zone.clone())
                .strftime("%Y-%m-%dT%H:%M:%S%.f%:z")
                .to_string();
            match shown.strip_suffix("+00:00") {
                Some(utc) => write!(out, "\"{utc}Z\"")?,
                None => write!(out, "\"{shown}\"")?,
            }
        }
    }
    Ok(())
}

fn interval(raw: &[u8], out: &mut String) -> Result<(), Cause> {
    let (micros, rest) = raw.split_at_checked(8).ok_or("too short")?;
    let (days, months) = rest.split_at_checked(4).ok_or("too short")?;
    let micros = i64::from_be_bytes(micros.try_into()?);
    let days = i32::from_be_bytes(days.try_into()?);
    let months = i32::from_be_bytes(months.try_into()?);
    write!(
        out,
        r#"{{"Microseconds":{micros},"Days":{days},"Months":{months},"Valid":true}}"#
    )?;
    Ok(())
}

fn address(raw: &[u8], out: &mut String) -> Result<(), Cause> {
    let [_family, bits, _cidr, _length, address @ ..] = raw else {
        return Err("too short".into());
    };
    let address = match address.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(address)?)),
        16 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(address)?)),
        _ => return Err("neither IPv4 nor IPv6".into()),
    };
    write!(out, "\"{address}/{bits}\"")?;
    Ok(())
}

/// A number of any length: groups of four decimal digits, and the position of the point.
fn numeric(raw: &[u8]) -> Result<String, Cause> {
    let words: Vec<u16> = raw
        .chunks_exact(2)
        .map(|word| u16::from_be_bytes([word[0], word[1]]))
        .collect();
    let [_count, weight, sign, scale, groups @ ..] = words.as_slice() else {
        return Err("too short".into());
    };
    let mut shown = String::new();
    match sign {
        0x0000 => {}
        0x4000 => shown.push('-'),
        0xC000 => return Ok("NaN".to_owned()),
        0xD000 => return Ok("Infinity".to_owned()),
        0xF000 => return Ok("-Infinity".to_owned()),
        _ => return Err("an unknown sign".into()),
    }
    let weight = i32::from(weight.cast_signed());
    let group = |position: i32| {
        let index = usize::try_from(weight - position).ok();
        index.and_then(|index| groups.get(index)).copied().unwrap_or(0)
    };
    if weight < 0 {
        shown.push('0');
    }
    for position in (0..=weight).rev() {
        if position == weight {
            write!(shown, "{}", group(position))?;
        } else {
            write!(shown, "{:04}", group(position))?;
        }
    }
    let mut fraction = String::new();
    let scale = usize::from(*scale);
    let mut position = -1;
    while fraction.len() < scale {
        write!(fraction, "{:04}", group(position))?;
        position -= 1;
    }
    fraction.truncate(scale);
    if !fraction.is_empty() {
        write!(shown, ".{fraction}")?;
    }
    Ok(shown)
}
