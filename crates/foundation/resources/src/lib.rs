//! Dapr's resource kinds: parsing, validation, loading from directories.
//!
//! Follows Dapr 1.18.3. The only I/O is reading the given directories and files; the environment is a
//! closure, and secrets stay references.

pub mod component;
pub mod configuration;
pub mod env_ref;
pub mod glob;
pub mod http_endpoint;
pub mod json;
pub mod load;
pub mod mcp_server;
pub mod meta;
pub mod problem;
pub mod resiliency;
pub mod subscription;
pub mod value;
pub mod workflow_access_policy;
mod yaml;

pub use component::Component;
pub use configuration::Configuration;
pub use http_endpoint::HttpEndpoint;
pub use load::{Kind, Loaded, Request, folders};
pub use mcp_server::McpServer;
pub use meta::{NameValue, SecretKeyRef, Source};
pub use problem::Problem;
pub use resiliency::Resiliency;
pub use subscription::Subscription;
pub use workflow_access_policy::WorkflowAccessPolicy;
