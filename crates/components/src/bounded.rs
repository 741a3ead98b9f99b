//! Files and bodies, up to a limit.

use std::{io, path::Path};

use tokio::io::AsyncReadExt;

/// A file of at most `limit` bytes.
pub(crate) async fn read_file(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    tokio::fs::File::open(path)
        .await?
        .take(limit as u64 + 1)
        .read_to_end(&mut contents)
        .await?;
    if contents.len() > limit {
        return Err(io::Error::other(format!("the file is larger than {limit} bytes")));
    }
    Ok(contents)
}

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
