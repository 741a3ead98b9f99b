//! Encryption and decryption of documents: streams of pieces in both directions.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use outrigger_blocks::crypto::{CryptoError, EncryptOptions, MissingOption, Output};
use outrigger_transport::body::BoxError;
use outrigger_wire::common::v1::StreamPayload;
use outrigger_wire::runtime::v1::{
    DecryptRequest, DecryptRequestOptions, DecryptResponse, EncryptRequest, EncryptRequestOptions,
    EncryptResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Response, Status, Streaming};

use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of(
    "crypto",
    "v1alpha1",
    &["EncryptAlpha1", "DecryptAlpha1"],
)];

/// Timeout of the first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

/// A request message of either stream.
trait Piece: Send + 'static {
    type Options;
    fn parts(self) -> (Option<Self::Options>, Option<StreamPayload>);
}

impl Piece for EncryptRequest {
    type Options = EncryptRequestOptions;
    fn parts(self) -> (Option<Self::Options>, Option<StreamPayload>) {
        (self.options, self.payload)
    }
}

impl Piece for DecryptRequest {
    type Options = DecryptRequestOptions;
    fn parts(self) -> (Option<Self::Options>, Option<StreamPayload>) {
        (self.options, self.payload)
    }
}

impl DaprService {
    pub(super) async fn crypto_encrypt(
        &self,
        mut requests: Streaming<EncryptRequest>,
    ) -> Result<Response<BoxStream<EncryptResponse>>, Status> {
        let output = async {
            let (options, first) = opening(&mut requests).await?;
            let with = EncryptOptions::new(options.key_name, options.key_wrap_algorithm);
            let mut with = with.map_err(missing)?;
            with.cipher = options.data_encryption_cipher;
            with.omit_key = options.omit_decryption_key_name;
            with.decryption_key = options.decryption_key_name;
            let provider = self.blocks.crypto.provider(&options.component_name)?;
            provider.encrypt(&with, payloads(first, requests)).await
        };
        let answer = |payload| EncryptResponse { payload };
        stream(output.await, answer)
    }

    pub(super) async fn crypto_decrypt(
        &self,
        mut requests: Streaming<DecryptRequest>,
    ) -> Result<Response<BoxStream<DecryptResponse>>, Status> {
        let output = async {
            let (options, first) = opening(&mut requests).await?;
            let provider = self.blocks.crypto.provider(&options.component_name)?;
            let input = payloads(first, requests);
            provider.decrypt(&options.key_name, input).await
        };
        let answer = |payload| DecryptResponse { payload };
        stream(output.await, answer)
    }
}

fn missing(option: MissingOption) -> CryptoError {
    let name = match option {
        MissingOption::Key => "keyName",
        MissingOption::Algorithm => "keyWrapAlgorithm",
    };
    CryptoError::BadRequest(format!("missing property '{name}' in the options message"))
}

/// Numbers the pieces of the output. Stream errors are not counted.
fn stream<T: Send + 'static>(
    output: Result<Output, CryptoError>,
    answer: impl Fn(Option<StreamPayload>) -> T + Send + 'static,
) -> Result<Response<BoxStream<T>>, Status> {
    let failed = |error: CryptoError| ApiError::from(error).status();
    let numbered = stream::iter(0_u64..).zip(output.map_err(failed)?);
    let answers = numbered.map(move |(seq, piece)| {
        let data = piece.map_err(failed)?;
        Ok(answer(Some(StreamPayload { data, seq })))
    });
    Ok(Response::new(Box::pin(answers)))
}

/// Reads the first message, which carries the options.
async fn opening<P: Piece>(
    requests: &mut Streaming<P>,
) -> Result<(P::Options, Option<StreamPayload>), CryptoError> {
    let first = tokio::time::timeout(FIRST_MESSAGE, requests.message()).await;
    let first = first.map_err(|_| {
        CryptoError::BadRequest("error waiting for first message: context deadline exceeded".to_owned())
    })?;
    let failed = |cause: &str| CryptoError::Operation(format!("error receiving the first message: {cause}"));
    let first = first
        .map_err(|status| failed(status.message()))?
        .ok_or_else(|| failed("EOF"))?;
    match first.parts() {
        (Some(options), payload) => Ok((options, payload)),
        (None, _) => Err(CryptoError::BadRequest(
            "first message does not contain the required options".to_owned(),
        )),
    }
}

/// The payloads of all messages; fails if their sequence numbers have gaps.
fn payloads<P: Piece>(
    first: Option<StreamPayload>,
    requests: Streaming<P>,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static {
    let first = stream::iter(first.map(Ok));
    let rest = requests.filter_map(|request| async {
        match request.map(P::parts) {
            Ok((None, payload)) => payload.map(Ok),
            Ok((Some(_), _)) => Some(Err("options found in non-leading message".into())),
            Err(status) => Some(Err(
                format!("error receiving message: {}", status.message()).into()
            )),
        }
    });
    let mut expected = 0_u64;
    let checked = first
        .chain(rest)
        .map(move |payload: Result<StreamPayload, BoxError>| {
            let payload = payload?;
            if payload.seq != expected {
                let seq = payload.seq;
                return Err(format!("invalid sequence number received: {seq} (expected: {expected})").into());
            }
            expected += 1;
            Ok(payload.data)
        });
    Box::pin(checked)
}
