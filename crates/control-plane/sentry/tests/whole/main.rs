//! Whole sentries in this process, on ports chosen by the system.

#![allow(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod certificates;
mod crowds;
mod jwks;
mod material;
mod oidc;
mod process;
mod rotation;
mod running;
