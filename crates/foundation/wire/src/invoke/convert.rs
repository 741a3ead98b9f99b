//! Conversion of heads from and to the generated messages, for unary calls.

use std::collections::HashMap;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use prost::Message as _;
use prost_types::Any;

use super::decode::{HTTP_CONTENT_TYPE, append, content_type, header_name, header_value};
use super::head::{Actor, RequestHead, ResponseHead};
use super::{DecodeError, Limits, Verb};
use crate::common::v1::{HttpExtension, InvokeRequest, InvokeResponse};
use crate::internals::v1::{
    Actor as ActorMessage, ApiVersion, InternalInvokeRequest, InternalInvokeResponse, ListStringValue, Status,
};

impl RequestHead {
    /// The head and the body of a request. Fails like [`decode_request`](super::decode_request).
    pub fn from_message(
        request: InternalInvokeRequest,
        limits: &Limits,
    ) -> Result<(Self, Bytes), DecodeError> {
        let message = request.message.ok_or(DecodeError::Missing { field: "message" })?;
        let http = message.http_extension.unwrap_or_default();
        let data = message.data.unwrap_or_default();
        let head = Self {
            method: message.method,
            verb: Verb::try_from(http.verb).unwrap_or_default(),
            query: http.querystring,
            content_type: content_type(message.content_type.into())?,
            type_url: data.type_url,
            http_names: request.metadata.contains_key(HTTP_CONTENT_TYPE),
            metadata: header_map(request.metadata, limits)?,
            actor: request.actor.map(|a| Actor {
                kind: a.actor_type,
                id: a.actor_id,
            }),
        };
        Ok((head, data.value.into()))
    }

    /// The request with this head and the given body.
    pub fn into_message(self, data: Bytes) -> InternalInvokeRequest {
        let mut metadata = metadata_map(&self.metadata);
        if self.http_names
            && let Some(values) = metadata.remove(CONTENT_TYPE.as_str())
        {
            metadata.insert(HTTP_CONTENT_TYPE.to_owned(), values);
        }
        InternalInvokeRequest {
            ver: ApiVersion::V1.into(),
            metadata,
            message: Some(InvokeRequest {
                method: self.method,
                data: Some(Any {
                    type_url: self.type_url,
                    value: data.into(),
                }),
                content_type: optional_text(self.content_type.as_ref()),
                http_extension: Some(HttpExtension {
                    verb: self.verb.into(),
                    querystring: self.query,
                }),
            }),
            actor: self.actor.map(|a| ActorMessage {
                actor_type: a.kind,
                actor_id: a.id,
            }),
        }
    }
}

impl ResponseHead {
    /// The head and the body of a response. Fails like [`decode_response`](super::decode_response).
    pub fn from_message(
        response: InternalInvokeResponse,
        limits: &Limits,
    ) -> Result<(Self, Bytes), DecodeError> {
        let status = response.status.unwrap_or_default();
        let message = response.message.unwrap_or_default();
        let data = message.data.unwrap_or_default();
        let head = Self {
            status_code: status.code,
            status_message: status.message,
            status_details: status.details.iter().map(|d| d.encode_to_vec().into()).collect(),
            headers: header_map(response.headers, limits)?,
            trailers: header_map(response.trailers, limits)?,
            content_type: content_type(message.content_type.into())?,
            type_url: data.type_url,
        };
        Ok((head, data.value.into()))
    }

    /// The response with this head and the given body. Fails if a status detail is not an encoded
    /// `google.protobuf.Any`.
    pub fn into_message(self, data: Bytes) -> Result<InternalInvokeResponse, prost::DecodeError> {
        Ok(InternalInvokeResponse {
            status: Some(Status {
                code: self.status_code,
                message: self.status_message,
                details: self
                    .status_details
                    .into_iter()
                    .map(Any::decode)
                    .collect::<Result<_, _>>()?,
            }),
            headers: metadata_map(&self.headers),
            trailers: metadata_map(&self.trailers),
            message: Some(InvokeResponse {
                data: Some(Any {
                    type_url: self.type_url,
                    value: data.into(),
                }),
                content_type: optional_text(self.content_type.as_ref()),
            }),
        })
    }
}

fn header_map(entries: HashMap<String, ListStringValue>, limits: &Limits) -> Result<HeaderMap, DecodeError> {
    let mut map = HeaderMap::new();
    for (name, list) in entries {
        let header = header_name(&name)?;
        for value in list.values {
            append(&mut map, &header, header_value(&name, value.into())?, limits)?;
        }
    }
    Ok(map)
}

fn metadata_map(headers: &HeaderMap) -> HashMap<String, ListStringValue> {
    let list = |name| ListStringValue {
        values: headers.get_all(name).iter().map(text).collect(),
    };
    headers
        .keys()
        .map(|name| (name.as_str().to_owned(), list(name)))
        .collect()
}

fn optional_text(value: Option<&HeaderValue>) -> String {
    value.map(text).unwrap_or_default()
}

/// The value as a string: UTF-8, or otherwise decoded as ISO 8859-1, like the encoder does.
fn text(value: &HeaderValue) -> String {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => value.as_bytes().iter().map(|&byte| char::from(byte)).collect(),
    }
}
