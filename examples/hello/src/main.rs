//! Serves HTTP/2 with prior knowledge on a port that the system chooses, for protocol checkers: `h2spec -p PORT`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use outrigger_http2::{Config, Incoming, KeepAlive, Reason, Service, Timeouts};

struct Hello;

impl Service for Hello {
    type Body = Full<Bytes>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if let Incoming::Stream(body) = request.into_body() {
            let _cut_or_whole = body.collect().await;
        }
        Response::new(Full::new(Bytes::from_static(b"hello")))
    }

    fn reason(never: std::convert::Infallible) -> Reason {
        match never {}
    }
}

const USAGE: &str = "usage: outrigger-hello\n\n\
    Serves HTTP/2 with prior knowledge on a free port of 127.0.0.1, prints the port, and runs until it is stopped.";

fn main() -> ExitCode {
    let served = match std::env::args().nth(1).as_deref() {
        None => serve(),
        Some("-h" | "--help") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("unknown argument {other:?}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    let config = Config {
        stream_window: 65_535,
        connection_window: 1 << 20,
        max_streams: 100,
        header_list: 16 * 1024,
        send_buffer: 64 * 1024,
        ..Config::DEFAULT
    };
    let times = Timeouts {
        preface: Duration::from_secs(10),
        keep_alive: KeepAlive {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
        },
    };
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = outrigger_http2::serve(
                socket,
                None,
                Arc::new(Hello),
                &config,
                times,
                std::future::pending(),
            )
            .await
            {
                eprintln!("{error}");
            }
        });
    }
}
