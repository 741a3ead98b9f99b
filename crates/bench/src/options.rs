//! The command line.

use std::path::PathBuf;

use outrigger_flags::{EXIT_USAGE, Flag, Parsed, Values, parse as parse_flags, usage};

use crate::app::Ports;
use crate::plan::{Driver, Plan, Protocol, Resolver, System};
use crate::soak;

const SUMMARY: &str = "usage: outrigger-bench COMMAND [FLAGS]

  run      measures and writes a report
  report   writes the report of a run again from its results.json
  soak     opens and closes connections to a sidecar, and watches its memory
  app      the app that is called: echoes over HTTP/1.1 and gRPC

outrigger-bench COMMAND --help lists the flags of a command.";

const RUN: &[Flag] = &[
    Flag::boolean("quick", "false", "two minutes instead of an hour and a half"),
    Flag::text(
        "bin-dir",
        "",
        "folder with daprd and sentry (default: beside this program, or its dist or release folder)",
    ),
    Flag::text("reference", "", "folder with Dapr's daprd and sentry"),
    Flag::text("output", "bench-report", "folder the report is written to"),
    Flag::list("protocols", "http, grpc (InvokeService), proxy (default all)"),
    Flag::list("systems", "direct, outrigger, reference, nginx (default all)"),
    Flag::text("driver", "own", "load generator of the rounds: own or fortio"),
    Flag::text("fortio", "fortio", "path of Fortio, for --driver fortio"),
    Flag::text("resolver", "mdns", "how sidecars find each other: mdns or sqlite"),
    Flag::text("rounds", "", "rounds at the fixed rate, per system"),
    Flag::text("requests", "", "requests of a round"),
    Flag::text("qps", "", "rate of a round"),
    Flag::text("connections", "", "connections of a round"),
    Flag::text("payload", "", "bytes each way"),
    Flag::text("warmup", "", "seconds of load before anything is measured"),
    Flag::text(
        "saturation",
        "",
        "seconds at full load; 0 leaves it, the curve and the sweeps out",
    ),
    Flag::text(
        "sweep-point",
        "",
        "seconds per size and per number of connections; 0 leaves the sweeps out",
    ),
    Flag::text(
        "curve-point",
        "",
        "seconds per rate of the saturation curve; 0 leaves it out",
    ),
    Flag::list("payloads", "sizes of the payload sweep, in bytes"),
    Flag::list(
        "connection-counts",
        "numbers of connections of the connection sweep",
    ),
    Flag::text(
        "starts",
        "",
        "sidecars started to measure the first call; 0 leaves it out",
    ),
    Flag::text(
        "idle-connections",
        "",
        "idle connections opened to measure their memory; 0 leaves it out",
    ),
    Flag::text("settle", "", "seconds after the load until memory is read again"),
    Flag::text("nginx-workers", "", "worker processes of each nginx"),
];
const APP: &[Flag] = &[
    Flag::int("http", "0", "port of the HTTP/1.1 app; 0 for none"),
    Flag::int("grpc", "0", "port of the gRPC app; 0 for none"),
];
const REPORT: &[Flag] = &[
    Flag::text("results", "bench-report/results.json", "what a run wrote"),
    Flag::text("output", "", "folder to write to (default: that of the results)"),
];
const SOAK: &[Flag] = &[
    Flag::text(
        "bin-dir",
        "",
        "folder with daprd and sentry (default: beside this program, or its dist or release folder)",
    ),
    Flag::text("seconds", "600", "how long"),
    Flag::text(
        "rate",
        "1000",
        "connections opened and closed per second, one call on each",
    ),
    Flag::text("resolver", "mdns", "how sidecars find each other: mdns or sqlite"),
];

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Plan>),
    Report { results: PathBuf, output: PathBuf },
    Soak(soak::Options),
    App(Ports),
}

/// What to print instead of running, and the exit status.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) status: u8,
}

/// Reads a command line without the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, Refusal> {
    let command = arguments.next().unwrap_or_default();
    let table = match &*command {
        "run" => RUN,
        "report" => REPORT,
        "soak" => SOAK,
        "app" => APP,
        "help" | "--help" | "-h" => return Err(shown(SUMMARY.to_owned())),
        _ => return Err(wrong(format!("no such command: {command:?}\n\n{SUMMARY}"))),
    };
    let name = format!("outrigger-bench {command}");
    let values = match parse_flags(table, arguments) {
        Ok(Parsed::Run(values)) => values,
        Ok(Parsed::Help) => return Err(shown(usage(&name, table))),
        Err(error) => return Err(wrong(format!("{error}\n{}", usage(&name, table)))),
    };
    match &*command {
        "run" => run(&values).map(|plan| Command::Run(Box::new(plan))),
        "report" => Ok(report(&values)),
        "soak" => soak_options(&values).map(Command::Soak),
        _ => app(&values),
    }
    .map_err(wrong)
}

fn run(values: &Values) -> Result<Plan, String> {
    let mut plan = if values.boolean("quick") {
        Plan::quick()
    } else {
        Plan::full()
    };
    set(values, "rounds", &mut plan.rounds)?;
    set(values, "requests", &mut plan.requests)?;
    set(values, "qps", &mut plan.qps)?;
    set(values, "connections", &mut plan.connections)?;
    set(values, "payload", &mut plan.payload)?;
    set(values, "warmup", &mut plan.warmup)?;
    set(values, "saturation", &mut plan.saturation)?;
    set(values, "sweep-point", &mut plan.sweep_point)?;
    set(values, "curve-point", &mut plan.curve_point)?;
    set(values, "starts", &mut plan.starts)?;
    set(values, "idle-connections", &mut plan.idle_connections)?;
    set(values, "settle", &mut plan.settle)?;
    set(values, "nginx-workers", &mut plan.nginx_workers)?;
    set_list(values, "payloads", &mut plan.payloads, |text| text.parse().ok())?;
    set_list(values, "connection-counts", &mut plan.connection_counts, |text| {
        text.parse().ok()
    })?;
    set_list(values, "protocols", &mut plan.protocols, |text| {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == text)
    })?;
    set_list(values, "systems", &mut plan.systems, |text| {
        System::ALL.into_iter().find(|system| system.name() == text)
    })?;
    plan.driver = match values.text("driver") {
        "own" => Driver::Own,
        "fortio" => Driver::Fortio(values.text("fortio").into()),
        other => return Err(format!("--driver must be own or fortio, not {other:?}")),
    };
    plan.resolver = resolver(values)?;
    plan.bin_dir = bin_dir(values)?;
    plan.reference = Some(values.text("reference"))
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from);
    plan.output = values.text("output").into();
    check(&plan)?;
    Ok(plan)
}

fn check(plan: &Plan) -> Result<(), String> {
    if plan.rounds == 0 || plan.requests == 0 || plan.connections == 0 {
        return Err("--rounds, --requests and --connections must be at least 1".to_owned());
    }
    if !(0.1..=1e6).contains(&plan.qps) {
        return Err("--qps must be between 0.1 and 1000000".to_owned());
    }
    let times = [
        plan.warmup,
        plan.saturation,
        plan.sweep_point,
        plan.curve_point,
        plan.settle,
    ];
    if !times.iter().all(|seconds| (0.0..=86_400.0).contains(seconds)) {
        return Err("times are seconds between 0 and 86400".to_owned());
    }
    let most = plan.connection_counts.iter().copied().max().unwrap_or_default();
    if plan.connections.max(most).max(plan.idle_connections) > 10_000 {
        return Err("at most 10000 connections".to_owned());
    }
    if plan
        .payload
        .max(plan.payloads.iter().copied().max().unwrap_or_default())
        > 4_000_000
    {
        return Err("payloads are at most 4000000 bytes: sidecars refuse more than 4 MiB".to_owned());
    }
    Ok(())
}

fn app(values: &Values) -> Result<Command, String> {
    let port = |name| {
        u16::try_from(values.int(name))
            .map_err(|_| format!("--{name} must be a port, not {}", values.int(name)))
    };
    let ports = Ports {
        http: port("http")?,
        grpc: port("grpc")?,
    };
    if ports == (Ports { http: 0, grpc: 0 }) {
        return Err("name a port with --http or --grpc".to_owned());
    }
    Ok(Command::App(ports))
}

fn report(values: &Values) -> Command {
    let results = PathBuf::from(values.text("results"));
    let output = match values.text("output") {
        "" => results.parent().map(PathBuf::from).unwrap_or_default(),
        folder => folder.into(),
    };
    Command::Report { results, output }
}

fn soak_options(values: &Values) -> Result<soak::Options, String> {
    let mut options = soak::Options {
        bin_dir: bin_dir(values)?,
        resolver: resolver(values)?,
        seconds: 0.0,
        rate: 0.0,
    };
    set(values, "seconds", &mut options.seconds)?;
    set(values, "rate", &mut options.rate)?;
    if !(1.0..=86_400.0).contains(&options.seconds) || !(1.0..=20_000.0).contains(&options.rate) {
        return Err("--seconds must be between 1 and 86400, --rate between 1 and 20000".to_owned());
    }
    Ok(options)
}

fn resolver(values: &Values) -> Result<Resolver, String> {
    match values.text("resolver") {
        "mdns" => Ok(Resolver::Mdns),
        "sqlite" => Ok(Resolver::Sqlite),
        other => Err(format!("--resolver must be mdns or sqlite, not {other:?}")),
    }
}

/// The folder named, or the first of the usual ones that holds a sidecar.
fn bin_dir(values: &Values) -> Result<PathBuf, String> {
    if values.given("bin-dir") {
        return Ok(values.text("bin-dir").into());
    }
    let program =
        std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let beside = program.parent().map(PathBuf::from).unwrap_or_default();
    let candidates = [beside.clone(), beside.join("../dist"), beside.join("../release")];
    Ok(candidates
        .into_iter()
        .find(|folder| folder.join("daprd").is_file())
        .unwrap_or(beside))
}

fn set<T: std::str::FromStr>(values: &Values, name: &str, to: &mut T) -> Result<(), String> {
    let text = values.text(name);
    if !text.is_empty() {
        *to = text
            .parse()
            .map_err(|_| format!("--{name} must be a number, not {text:?}"))?;
    }
    Ok(())
}

fn set_list<T>(
    values: &Values,
    name: &str,
    to: &mut Vec<T>,
    read: impl Fn(&str) -> Option<T>,
) -> Result<(), String> {
    let texts = values.list(name);
    if !texts.is_empty() {
        *to = texts
            .iter()
            .map(|text| read(text.trim()).ok_or_else(|| format!("--{name} does not take {text:?}")))
            .collect::<Result<_, _>>()?;
    }
    Ok(())
}

fn shown(text: String) -> Refusal {
    Refusal { text, status: 0 }
}

fn wrong(text: String) -> Refusal {
    Refusal {
        text,
        status: EXIT_USAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, parse};
    use crate::plan::{Driver, Protocol};

    fn read(line: &str) -> Result<Command, super::Refusal> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn a_profile_is_a_start_that_flags_change() {
        let Ok(Command::Run(plan)) = read("run --quick --protocols http,proxy --qps 50 --driver fortio")
        else {
            panic!("refused");
        };
        assert_eq!(plan.protocols, [Protocol::Http, Protocol::Proxy]);
        assert_eq!((plan.qps, plan.rounds), (50.0, 2));
        assert_eq!(plan.driver, Driver::Fortio("fortio".into()));
    }

    #[test]
    fn refusals_name_the_flag() {
        for (line, named) in [
            ("run --protocols smtp", "--protocols"),
            ("run --qps 0", "--qps"),
            ("run --driver wrk", "--driver"),
            ("app", "--http"),
            ("app --http 70000", "--http"),
            ("fly", "fly"),
        ] {
            let refusal = read(line).err();
            assert!(
                refusal.is_some_and(|r| r.text.contains(named) && r.status == 2),
                "{line}"
            );
        }
    }
}
