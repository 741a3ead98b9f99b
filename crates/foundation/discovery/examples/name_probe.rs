//! Command-line probe for any name resolver.
//!
//! `name_probe COMPONENT JSON announce APPID PORT` registers an app until it is interrupted; `name_probe
//! COMPONENT JSON resolve APPID [NAMESPACE]` looks one up. JSON is the configuration of the resolver, for
//! example `{"connectionString": "names.db"}` for `sqlite`.

use std::{env, error::Error, process::ExitCode, sync::Arc};

use outrigger_discovery::{Options, Registration, Resolver, build};

const USAGE: &str = "usage: name_probe COMPONENT JSON announce APPID PORT\n       \
                     name_probe COMPONENT JSON resolve APPID [NAMESPACE]";

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &[&str]) -> Result<(), Box<dyn Error>> {
    match *args {
        [component, json, "announce", app_id, port] => {
            let resolver = start(component, json, app_id, port.parse()?).await?;
            println!("registered {app_id} with {}; interrupt to stop", resolver.name());
            tokio::signal::ctrl_c().await?;
            resolver.close().await;
        }
        [component, json, "resolve", app_id] => resolve(component, json, app_id, "default").await?,
        [component, json, "resolve", app_id, namespace] => {
            resolve(component, json, app_id, namespace).await?
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

async fn resolve(component: &str, json: &str, app_id: &str, namespace: &str) -> Result<(), Box<dyn Error>> {
    let probe = format!("name-probe-{}", std::process::id());
    let resolver = start(component, json, &probe, 50002).await?;
    let found = resolver.resolve(app_id, namespace).await;
    resolver.close().await;
    println!("{:?}", found?);
    Ok(())
}

async fn start(
    component: &str,
    json: &str,
    app_id: &str,
    port: u16,
) -> Result<Arc<dyn Resolver>, Box<dyn Error>> {
    let options = Options {
        component: component.to_owned(),
        version: String::new(),
        configuration: serde_json::from_str(json)?,
        registration: Registration {
            app_id: app_id.to_owned(),
            host_address: "127.0.0.1".to_owned(),
            internal_port: port,
            http_port: 3500,
            app_port: 8080,
            ..Registration::default()
        },
        on_fatal: Arc::new(|error| eprintln!("{error}")),
    };
    Ok(build(options).await?)
}
