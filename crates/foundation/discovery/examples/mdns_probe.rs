//! Command-line probe for name resolution over multicast DNS.
//!
//! `mdns_probe resolve APPID` prints how long the first answer took, then every change for 5 s. `mdns_probe
//! announce APPID PORT [IP]` announces an app until it is interrupted.

use std::{env, process::ExitCode, time::Duration};

use outrigger_discovery::{Addresses, Mdns, Registration, Resolver};
use tokio::time::{Instant, timeout_at};

const USAGE: &str = "usage: mdns_probe resolve APPID | mdns_probe announce APPID PORT [IP]";

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["resolve", app_id] => resolve(app_id).await,
        ["announce", app_id, port] => announce(app_id, port, "127.0.0.1").await,
        ["announce", app_id, port, ip] => announce(app_id, port, ip).await,
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn resolve(app_id: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mdns = Mdns::browse_only()?;
    let started = Instant::now();
    let found = mdns.resolve(app_id, "").await?;
    print(started, &found);
    let mut watcher = mdns.watch(app_id, "");
    while let Ok(Ok(())) = timeout_at(started + Duration::from_secs(5), watcher.changed()).await {
        print(started, &watcher.borrow_and_update().clone());
    }
    mdns.close().await;
    Ok(())
}

fn print(started: Instant, found: &Addresses) {
    println!("{:>8.1?}  {found:?}", started.elapsed());
}

async fn announce(app_id: &str, port: &str, ip: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mdns = Mdns::start(&Registration {
        app_id: app_id.to_owned(),
        host_address: ip.to_owned(),
        internal_port: port.parse().map_err(|_| USAGE)?,
        ..Registration::default()
    })?;
    println!("announced {app_id} -> {ip}:{port}; interrupt to stop");
    tokio::signal::ctrl_c().await?;
    mdns.close().await;
    Ok(())
}
