//! The authority's files in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

use crate::material::{File, MaterialError, MaterialStore};

/// Files that are valid only together.
const SETS: [&[File]; 2] = [
    &[File::Root, File::Issuer, File::IssuerKey],
    &[File::JwtKey, File::Jwks],
];

/// Contents of the authority's files. Missing files are left out, and no file is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents(BTreeMap<File, Zeroizing<Vec<u8>>>);

impl Contents {
    /// Reads all files of a store.
    ///
    /// # Errors
    /// If a certificate file exists and cannot be read.
    pub(crate) fn read(store: &dyn MaterialStore) -> Result<Self, MaterialError> {
        let mut contents = Self::default();
        for file in File::ALL {
            match store.read(file) {
                Ok(Some(read)) => contents.set(file, read),
                Ok(None) => {}
                // If tokens are issued, loading the key reports the error.
                Err(_) if matches!(file, File::JwtKey | File::Jwks) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(contents)
    }

    pub(crate) fn get(&self, file: File) -> Option<&[u8]> {
        self.0.get(&file).map(|contents| contents.as_slice())
    }

    pub(crate) fn set(&mut self, file: File, contents: Vec<u8>) {
        self.0.insert(file, Zeroizing::new(contents));
    }

    pub(crate) fn remove(&mut self, file: File) {
        self.0.remove(&file);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (File, &[u8])> {
        self.0.iter().map(|(file, contents)| (*file, contents.as_slice()))
    }

    /// Restores missing files of a set from `in_use` and returns their names. If the remaining files belong
    /// to another authority, they are being replaced and stay as they are.
    pub(crate) fn refill(&mut self, in_use: &Self) -> Vec<File> {
        let mut refilled = Vec::new();
        for set in SETS {
            let differs = |file: &&File| self.get(**file).is_some() && self.get(**file) != in_use.get(**file);
            if set.iter().any(|file| differs(&file)) {
                continue;
            }
            for file in set {
                if let (None, Some(contents)) = (self.get(*file), in_use.get(*file)) {
                    self.set(*file, contents.to_vec());
                    refilled.push(*file);
                }
            }
        }
        // The record belongs to the certificates.
        let is_same = self.get(File::Issuer) == in_use.get(File::Issuer);
        if let (true, None, Some(record)) = (is_same, self.get(File::Rotation), in_use.get(File::Rotation)) {
            self.set(File::Rotation, record.to_vec());
            refilled.push(File::Rotation);
        }
        refilled
    }
}

/// Omits the contents, because they include keys.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A private in-memory store.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore(Mutex<Contents>);

impl MemoryStore {
    pub(crate) fn new(contents: Contents) -> Self {
        Self(Mutex::new(contents))
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MaterialStore for MemoryStore {
    fn read(&self, file: File) -> Result<Option<Vec<u8>>, MaterialError> {
        Ok(self.lock().get(file).map(<[u8]>::to_vec))
    }

    fn create(&self, files: &[(File, &[u8])]) -> Result<(), MaterialError> {
        files
            .iter()
            .try_for_each(|(file, contents)| self.replace(*file, contents))
    }

    fn replace(&self, file: File, contents: &[u8]) -> Result<(), MaterialError> {
        self.lock().set(file, contents.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(files: &[(File, &str)]) -> Contents {
        let mut contents = Contents::default();
        for (file, text) in files {
            contents.set(*file, text.as_bytes().to_vec());
        }
        contents
    }

    #[test]
    fn restores_only_missing_files() {
        use File::{Issuer, IssuerKey, Jwks, JwtKey, Root, Rotation};
        let in_use = contents(&[
            (Root, "r"),
            (Issuer, "i"),
            (IssuerKey, "k"),
            (JwtKey, "j"),
            (Jwks, "s"),
        ]);
        let mut nothing = Contents::default();
        assert_eq!(nothing.refill(&in_use), File::ALL[..5]);
        assert_eq!(nothing, in_use);
        let mut part = contents(&[(Root, "r"), (JwtKey, "j")]);
        assert_eq!(part.refill(&in_use), [Issuer, IssuerKey, Jwks]);
        assert_eq!(part, in_use);
        let noted = contents(&[(Root, "r"), (Issuer, "i"), (IssuerKey, "k"), (Rotation, "n")]);
        let mut unnoted = noted.clone();
        unnoted.remove(Rotation);
        assert_eq!(unnoted.refill(&noted), [Rotation]);
        assert_eq!(unnoted, noted);
        let others = contents(&[(Issuer, "other"), (JwtKey, "j"), (Jwks, "s")]);
        let mut same = others.clone();
        assert!(same.refill(&in_use).is_empty());
        assert_eq!(same, others);
    }

    #[test]
    fn omits_keys_from_debug_output() {
        let shown = format!("{:?}", contents(&[(File::IssuerKey, "secret")]));
        assert!(
            shown.contains("IssuerKey") && !shown.contains("secret") && !shown.contains("115"),
            "{shown}"
        );
    }
}
