//! Compression of payloads.

use std::io::{self, Read, Write};

use flate2::{read::ZlibDecoder, write::ZlibEncoder};
use outrigger_component::{Metadata, MetadataError};
use outrigger_offload::offload;
use pulsar::proto::CompressionType;

/// Compression of published payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Lz4,
    Zlib(u32),
    Zstd(i32),
}

impl Compression {
    pub(super) fn read(metadata: &Metadata) -> Result<Self, MetadataError> {
        const LEVEL: &[&str] = &["compressionLevel"];
        const KIND: &[&str] = &["compressionType"];
        // Only for zlib and zstd.
        let (zlib, zstd) = match metadata.filled(LEVEL) {
            None | Some("default") => (6, 3),
            Some("faster") => (1, 1),
            Some("better") => (9, 9),
            Some(_) => return Err(metadata.wrong(LEVEL, "use default, faster or better")),
        };
        match metadata.filled(KIND) {
            None | Some("none") => Ok(Self::None),
            Some("lz4") => Ok(Self::Lz4),
            Some("zlib") => Ok(Self::Zlib(zlib)),
            Some("zstd") => Ok(Self::Zstd(zstd)),
            Some(_) => Err(metadata.wrong(KIND, "use none, lz4, zlib or zstd")),
        }
    }

    /// The type announced to consumers.
    pub(super) fn kind(self) -> CompressionType {
        match self {
            Self::None => CompressionType::None,
            Self::Lz4 => CompressionType::Lz4,
            Self::Zlib(_) => CompressionType::Zlib,
            Self::Zstd(_) => CompressionType::Zstd,
        }
    }

    /// [`Compression::pack`], offloaded if large.
    ///
    /// # Errors
    /// Errors of the compression library.
    pub(super) async fn pack_offloaded(self, data: Vec<u8>) -> io::Result<Vec<u8>> {
        offload(data.len(), move || self.pack(data)).await
    }

    /// # Errors
    /// Errors of the compression library.
    fn pack(self, data: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(match self {
            Self::None => data,
            Self::Lz4 => lz4_flex::block::compress(&data),
            Self::Zlib(level) => {
                let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
                encoder.write_all(&data)?;
                encoder.finish()?
            }
            Self::Zstd(level) => zstd::bulk::compress(&data, level)?,
        })
    }
}

/// Decompresses `data` to `size` bytes.
///
/// # Errors
/// The size differs, or the compression type is unknown.
pub(super) fn unpack(kind: i32, data: &[u8], size: usize) -> Result<Vec<u8>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("its payload cannot be decompressed: {error}");
    let unpacked = match CompressionType::try_from(kind) {
        Ok(CompressionType::Lz4) => lz4_flex::block::decompress(data, size).map_err(|error| wrong(&error))?,
        Ok(CompressionType::Zlib) => {
            let mut unpacked = Vec::with_capacity(size);
            // One extra byte detects content that is too long.
            let most = u64::try_from(size).unwrap_or(u64::MAX).saturating_add(1);
            let mut decoder = ZlibDecoder::new(data).take(most);
            decoder
                .read_to_end(&mut unpacked)
                .map_err(|error| wrong(&error))?;
            unpacked
        }
        Ok(CompressionType::Zstd) => zstd::bulk::decompress(data, size).map_err(|error| wrong(&error))?,
        Ok(CompressionType::Snappy) => return Err(wrong(&"Snappy is not supported")),
        _ => return Err(wrong(&format!("compression {kind} is not known"))),
    };
    if unpacked.len() != size {
        return Err(wrong(&"its length differs from its metadata"));
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    #[tokio::test]
    async fn offloads_compression() {
        for (size, expected) in [(INLINE, true), (INLINE + 1, false)] {
            let (at_once, packed) = done_at_once(Compression::Zlib(9).pack_offloaded(vec![b'x'; size])).await;
            assert_eq!(at_once, expected, "{size}");
            let number = CompressionType::Zlib as i32;
            assert_eq!(unpack(number, &packed.unwrap(), size).unwrap().len(), size);
        }
    }

    fn read(properties: &[(&str, &str)]) -> Result<Compression, MetadataError> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Compression::read(&Metadata::new("broker", owned).unwrap())
    }

    #[test]
    fn compression_round_trip_is_bounded() {
        let data = b"again and again and again and again".repeat(50);
        for kind in ["lz4", "zlib", "zstd"] {
            for level in ["default", "faster", "better"] {
                let compression = read(&[("compressionType", kind), ("compressionLevel", level)]).unwrap();
                let packed = compression.pack(data.clone()).unwrap();
                assert!(packed.len() < data.len() / 2, "{kind}");
                let number = compression.kind() as i32;
                assert_eq!(unpack(number, &packed, data.len()).unwrap(), data, "{kind}");
                for wrong in [data.len() - 1, data.len() + 1, 0] {
                    unpack(number, &packed, wrong).unwrap_err();
                }
                unpack(number, b"nothing of the kind", data.len()).unwrap_err();
            }
        }
    }

    #[test]
    fn names_invalid_level() {
        let error = read(&[("compressionLevel", "best")]).unwrap_err();
        assert!(error.to_string().contains("compressionLevel"), "{error}");
    }
}
