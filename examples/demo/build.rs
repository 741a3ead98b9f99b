//! Generates the app's gRPC service without a system `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/echo.proto");
    let files = protox::compile(["echo.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .compile_fds(files)?;
    Ok(())
}
