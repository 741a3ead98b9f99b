//! Whole sentries in this process, on ports the system chooses.

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
