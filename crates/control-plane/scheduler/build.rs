//! Compiles `proto/`: the stored messages, and the API of the client port. Neither is part of the wire contract
//! between Dapr's processes, so neither is in `outrigger-wire`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let set = protox::compile(["proto/stored.proto", "proto/etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(set)?;
    Ok(())
}
