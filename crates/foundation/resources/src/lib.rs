//! Dapr's resource kinds: parse, validate, load from folders.
//!
//! Facts follow Dapr 1.17.13. Nothing here does I/O but reading the folders and files it is given; the
//! environment comes in as a closure, secrets stay references.

pub mod component;
pub mod configuration;
pub mod env_ref;
pub mod http_endpoint;
pub mod json;
pub mod load;
pub mod meta;
pub mod problem;
pub mod resiliency;
pub mod subscription;
pub mod value;
mod yaml;

pub use component::Component;
pub use configuration::Configuration;
pub use http_endpoint::HttpEndpoint;
pub use load::{Kind, Loaded, Request, folders};
pub use meta::{NameValue, SecretKeyRef, Source};
pub use problem::Problem;
pub use resiliency::Resiliency;
pub use subscription::Subscription;
