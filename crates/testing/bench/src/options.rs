//! The command line.

use std::path::PathBuf;

use outrigger_flags::{EXIT_USAGE, Flag, Parsed, Values, parse as parse_flags, see_help, usage};

use crate::app::Ports;
use crate::plan::{Api, Driver, Plan, Protocol, Resolver, StateCall, Store, System, Verb};
use crate::soak;

const SUMMARY: &str = "usage: outrigger-bench COMMAND [FLAGS]

  run      measures service invocation and writes a report
  state    measures get and save of state and writes a report
  report   writes the report of a run again from its results.json
  soak     opens and closes connections to a sidecar, and watches its memory
  app      the app that is called: echoes over HTTP/1.1 and gRPC

outrigger-bench COMMAND --help lists the flags of a command.";

const QUICK: Flag = Flag::boolean(
    "quick",
    "false",
    "about three minutes (state: two) instead of an hour or more",
);
const BIN_DIR: Flag = Flag::text(
    "bin-dir",
    "",
    "folder with daprd and sentry (default: next to this program, or its dist or release folder)",
);
const REFERENCE: Flag = Flag::text("reference", "", "folder with Dapr's daprd and sentry");
const RESOLVER: Flag = Flag::text("resolver", "mdns", "how sidecars find each other: mdns or sqlite");
const ROUNDS: Flag = Flag::text("rounds", "", "rounds at the fixed rate, per system");
const REQUESTS: Flag = Flag::text("requests", "", "requests of a round");
const QPS: Flag = Flag::text("qps", "", "rate of a round");
const CONNECTIONS: Flag = Flag::text("connections", "", "connections of a round");
const WARMUP: Flag = Flag::text("warmup", "", "seconds of load before anything is measured");
const SATURATION: Flag = Flag::text(
    "saturation",
    "",
    "seconds at full load; 0 leaves it, the curve and the sweeps out",
);
const SWEEP_POINT: Flag = Flag::text(
    "sweep-point",
    "",
    "seconds per size and per number of connections; 0 leaves the sweeps out",
);
const CURVE_POINT: Flag = Flag::text(
    "curve-point",
    "",
    "seconds per rate of the saturation curve; 0 leaves it out",
);
const PAYLOADS: Flag = Flag::list("payloads", "sizes of the payload sweep, in bytes");
const CONNECTION_COUNTS: Flag = Flag::list(
    "connection-counts",
    "numbers of connections of the connection sweep",
);
const STARTS: Flag = Flag::text(
    "starts",
    "",
    "sidecars started to measure the first call; 0 leaves it out",
);
const IDLE_CONNECTIONS: Flag = Flag::text(
    "idle-connections",
    "",
    "idle connections opened to measure their memory; 0 leaves it out",
);
const SETTLE: Flag = Flag::text("settle", "", "seconds after the load until memory is read again");

const RUN: &[Flag] = &[
    QUICK,
    BIN_DIR,
    REFERENCE,
    Flag::text("output", "bench-report", "folder the report is written to"),
    Flag::list("protocols", "http, grpc (InvokeService), proxy (default all)"),
    Flag::list(
        "systems",
        "direct, outrigger, reference, envoy, nginx (default all)",
    ),
    Flag::text("driver", "own", "load generator of the rounds: own or fortio"),
    Flag::text("fortio", "fortio", "path of Fortio, for --driver fortio"),
    RESOLVER,
    ROUNDS,
    REQUESTS,
    QPS,
    CONNECTIONS,
    Flag::text("payload", "", "bytes each way"),
    WARMUP,
    SATURATION,
    SWEEP_POINT,
    CURVE_POINT,
    PAYLOADS,
    CONNECTION_COUNTS,
    STARTS,
    IDLE_CONNECTIONS,
    SETTLE,
    Flag::text("envoy", "envoy", "path of Envoy"),
    Flag::text("envoy-workers", "", "worker threads of each Envoy"),
    Flag::text("nginx-workers", "", "worker processes of each nginx"),
];
const STATE: &[Flag] = &[
    QUICK,
    BIN_DIR,
    REFERENCE,
    Flag::text("output", "bench-report/state", "folder the report is written to"),
    Flag::list(
        "stores",
        "memory, redis, postgres (default all that are installed)",
    ),
    Flag::list("calls", "get, save (default both)"),
    Flag::list("apis", "http, grpc (default both)"),
    Flag::list(
        "systems",
        "direct (the store's driver), outrigger, reference (default all)",
    ),
    ROUNDS,
    REQUESTS,
    QPS,
    CONNECTIONS,
    Flag::text("payload", "", "bytes of a value"),
    WARMUP,
    SATURATION,
    SWEEP_POINT,
    CURVE_POINT,
    PAYLOADS,
    CONNECTION_COUNTS,
    STARTS,
    IDLE_CONNECTIONS,
    SETTLE,
];
const APP: &[Flag] = &[
    Flag::int("http", "0", "port of the HTTP/1.1 app; 0 for none"),
    Flag::int("grpc", "0", "port of the gRPC app; 0 for none"),
];
const REPORT: &[Flag] = &[
    Flag::text("results", "bench-report/results.json", "results of a run"),
    Flag::text("output", "", "folder to write to (default: that of the results)"),
];
const SOAK: &[Flag] = &[
    BIN_DIR,
    Flag::text("seconds", "600", "how long"),
    Flag::text(
        "rate",
        "1000",
        "connections opened and closed per second, one call on each",
    ),
    RESOLVER,
];

/// The requested command.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Plan>),
    Report { results: PathBuf, output: PathBuf },
    Soak(soak::Options),
    App(Ports),
}

/// A text to print instead of running, and the exit status.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) status: u8,
}

/// Parses a command line without the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, Refusal> {
    let command = arguments.next().unwrap_or_default();
    let table = match &*command {
        "run" => RUN,
        "state" => STATE,
        "report" => REPORT,
        "soak" => SOAK,
        "app" => APP,
        "help" | "--help" | "-h" => return Err(shown(SUMMARY.to_owned())),
        _ => return Err(wrong(format!("unknown command {command:?}\n\n{SUMMARY}"))),
    };
    let name = format!("outrigger-bench {command}");
    let values = match parse_flags(table, arguments) {
        Ok(Parsed::Run(values)) => values,
        Ok(Parsed::Help) => return Err(shown(usage(&name, table))),
        Err(error) => return Err(wrong(format!("{error}\n{}", see_help(&name)))),
    };
    match &*command {
        "run" => run(&values).map(|plan| Command::Run(Box::new(plan))),
        "state" => state(&values).map(|plan| Command::Run(Box::new(plan))),
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
    plan.envoy = values.text("envoy").into();
    set(values, "envoy-workers", &mut plan.envoy_workers)?;
    set(values, "nginx-workers", &mut plan.nginx_workers)?;
    set_list(values, "protocols", &mut plan.protocols, |text| {
        by_name(Protocol::INVOCATION, |protocol| protocol.name() == text)
    })?;
    plan.driver = match values.text("driver") {
        "own" => Driver::Own,
        "fortio" => Driver::Fortio(values.text("fortio").into()),
        other => return Err(format!("--driver must be own or fortio, not {other:?}")),
    };
    plan.resolver = resolver(values)?;
    shared(values, plan)
}

fn state(values: &Values) -> Result<Plan, String> {
    let mut plan = if values.boolean("quick") {
        Plan::state_quick()
    } else {
        Plan::state()
    };
    let (mut stores, mut verbs, mut apis) = (Store::ALL.to_vec(), Verb::ALL.to_vec(), Api::ALL.to_vec());
    set_list(values, "stores", &mut stores, |text| {
        by_name(Store::ALL, |store| store.name() == text)
    })?;
    set_list(values, "calls", &mut verbs, |text| {
        by_name(Verb::ALL, |verb| verb.name() == text)
    })?;
    set_list(values, "apis", &mut apis, |text| {
        by_name(Api::ALL, |api| api.name() == text)
    })?;
    plan.protocols = StateCall::product(&stores, &verbs, &apis)
        .map(Protocol::State)
        .collect();
    shared(values, plan)
}

/// Options of all measurements.
fn shared(values: &Values, mut plan: Plan) -> Result<Plan, String> {
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
    set_list(values, "payloads", &mut plan.payloads, |text| text.parse().ok())?;
    set_list(values, "connection-counts", &mut plan.connection_counts, |text| {
        text.parse().ok()
    })?;
    set_list(values, "systems", &mut plan.systems, |text| {
        by_name(System::ALL, |system| system.name() == text)
    })?;
    plan.bin_dir = bin_dir(values)?;
    plan.reference = Some(values.text("reference"))
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from);
    plan.output = values.text("output").into();
    check(&plan)?;
    Ok(plan)
}

fn by_name<T, const N: usize>(all: [T; N], named: impl Fn(&T) -> bool) -> Option<T> {
    all.into_iter().find(|one| named(one))
}

fn check(plan: &Plan) -> Result<(), String> {
    if plan.rounds == 0 || plan.requests == 0 || plan.connections == 0 {
        return Err("--rounds, --requests and --connections must be at least 1".to_owned());
    }
    if plan.envoy_workers == 0 || plan.nginx_workers == 0 {
        return Err("--envoy-workers and --nginx-workers must be at least 1".to_owned());
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

/// The given directory, or the first usual one that contains a sidecar.
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
    use crate::plan::{Driver, Protocol, System};

    fn read(line: &str) -> Result<Command, super::Refusal> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn flags_override_profile() {
        let Ok(Command::Run(plan)) = read("run --quick --protocols http,proxy --qps 50 --driver fortio")
        else {
            panic!("refused");
        };
        assert_eq!(plan.protocols, [Protocol::Http, Protocol::Proxy]);
        assert_eq!((plan.qps, plan.rounds), (50.0, 2));
        assert_eq!(plan.driver, Driver::Fortio("fortio".into()));
    }

    #[test]
    fn selects_systems_by_name() {
        let Ok(Command::Run(plan)) =
            read("run --systems direct,envoy,nginx --envoy bin/envoy --envoy-workers 2")
        else {
            panic!("refused");
        };
        assert_eq!(plan.systems, [System::Direct, System::Envoy, System::Nginx]);
        assert_eq!((plan.envoy, plan.envoy_workers), ("bin/envoy".into(), 2));
    }

    #[test]
    fn selects_state_calls() {
        let Ok(Command::Run(plan)) = read("state --quick --stores redis,memory --calls get") else {
            panic!("refused");
        };
        let names: Vec<String> = plan.protocols.iter().map(|protocol| protocol.name()).collect();
        let expected = [
            "state-redis-get-http",
            "state-redis-get-grpc",
            "state-memory-get-http",
            "state-memory-get-grpc",
        ];
        assert_eq!(names, expected);
        assert!(plan.is_of_state() && plan.qps == 1_000.0);
    }

    #[test]
    fn errors_name_the_flag() {
        for (line, named) in [
            ("run --protocols smtp", "--protocols"),
            ("run --qps 0", "--qps"),
            ("run --envoy-workers 0", "--envoy-workers"),
            ("run --driver wrk", "--driver"),
            ("run --protocols state-memory-get-http", "--protocols"),
            ("state --stores etcd", "--stores"),
            ("state --apis smtp", "--apis"),
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
