//! Dapr's resource kinds: parse, validate, load from folders.
