//! Bodies, up to a limit.

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// A body of at most `limit` bytes.
pub(crate) async fn read_body(mut response: reqwest::Response, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut contents = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if contents.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge(limit));
        }
        contents.extend_from_slice(&chunk);
    }
    Ok(contents)
}
