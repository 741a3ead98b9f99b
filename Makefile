# Each target checks for missing tools and installs those that a package manager can.

# Evaluated when a target uses them, after the tools were installed. Quoted: the path of a checkout may have spaces.
RELEASE = "$(shell scripts/target)/release"
DEMO = "$(shell scripts/target)/demo"
DIST = "$(shell scripts/target)/dist"
TOOLS = "$(shell conformance/cache)/bin"
# Dapr's binaries of the contract that we speak.
PEER_BIN = $(TOOLS)/1.18
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo test nightly check oracle conformance sdk pluggable cli mixed kubernetes cluster cluster-bench measurekubernetes measure bench benchstate benchpubsub benchblocks benchworkflows cost fuzz faults deny clean-room

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

build: ## release binaries: daprd, sentry, scheduler, placement and the demo; prints how to start the control plane
	@scripts/need cargo cc make
	scripts/build
	@scripts/laptop

demo: ## the CA, a scheduler, placement, two sidecars with mTLS, two apps; every kind of call, state, events, a job, and an actor and a workflow that survive the kill of their sidecars
	@scripts/need cargo cc make python3
	@echo "building daprd, sentry, scheduler, placement and the demo: this takes some minutes the first time"
	scripts/build demo
	@echo
	@$(DEMO)/outrigger-demo run

test: ## every test; reports what it skips and why
	@scripts/test

nightly: ## make test, and SDKs for Go, JavaScript and Java, Pulsar, mixtures with Dapr, Kubernetes (2 hours)
	@scripts/test --nightly

check: ## format, words, lints, documentation
	@scripts/need cargo rustfmt clippy cc make
	cargo fmt --all --check
	scripts/plain-words --max 0.5
	cargo clippy --workspace --all-targets --locked -- -D warnings
	scripts/docs crates
	scripts/docs

oracle: ## differential test of our HTTP/2 against hyper and h2
	@scripts/need cargo cc make
	cargo test -p outrigger-http2 --test http2 --locked differential

conformance: build ## the cases of Dapr's own test suite that are known to pass
	@scripts/need python3 venv git
	conformance/check $(RELEASE)

sdk: build ## Dapr's official SDKs and the examples: Python, Go, and if installed JavaScript and Java
	@scripts/need python3 venv
	conformance/sdk/run $(RELEASE)
	SDK=1.19 conformance/sdk/run $(RELEASE)
	conformance/sdk-go/run $(RELEASE)
	SDK=1.15 conformance/sdk-go/run $(RELEASE)
	! scripts/need node 2>/dev/null || conformance/sdk-js/run $(RELEASE)
	! scripts/need jdk 2>/dev/null || conformance/sdk-java/run $(RELEASE)
	examples/run --binaries $(RELEASE) --all

pluggable: build ## pluggable components built with Dapr's Go SDK
	@scripts/need python3 venv
	conformance/pluggable/run $(RELEASE)

cli: build ## Dapr's official CLI starts, lists, calls and stops our sidecars; the commands of docs/how-to, as printed
	@scripts/need python3 venv
	conformance/cli/run $(RELEASE)
	conformance/recipes $(RELEASE)
	conformance/howto $(RELEASE)

mixed: build ## our sidecars and control plane mixed with Dapr's (builds Dapr's once: 8 minutes, several GB)
	@scripts/need python3 venv redis postgres rabbitmq kafka etcd
	scripts/build checks
	conformance/build reference reference-1.17
	conformance/skew $(RELEASE)
	$(RELEASE)/outrigger-demo matrix --ours $(RELEASE) --peer $(PEER_BIN)
	$(RELEASE)/outrigger-demo matrix --ours $(RELEASE) --peer $(TOOLS)/1.17
	conformance/crossread $(RELEASE) $(PEER_BIN)
	conformance/documents.py $(RELEASE) $(PEER_BIN)
	conformance/groups $(RELEASE) $(PEER_BIN)
	conformance/handover $(RELEASE) $(PEER_BIN)
	conformance/differential/run $(RELEASE) $(PEER_BIN)
	conformance/kubernetes/mixed $(RELEASE) $(PEER_BIN)

kubernetes: ## the chart, control plane and sidecars against a real kube-apiserver, Dapr's chart upgraded to ours (builds one once: 20 minutes, 3 GB)
	@scripts/need cargo cc make python3 venv etcd
	scripts/build checks
	conformance/kubernetes/run $(RELEASE)
	conformance/kubernetes/switch

cluster: ## as root, Kubernetes clusters with containerd and kubelets: our chart and images, workloads, failures, the switch from Dapr's charts (an hour; builds Kubernetes once: half an hour, 4 GB)
	@[ "$$(id -u)" = 0 ] || { echo "make $@ needs root, for namespaces, mounts and cgroups"; exit 1; }
	@scripts/need cargo cc make python3 venv cluster redis
	scripts/build checks
	conformance/build cluster cli reference reference-1.17
	conformance/cluster/run $(RELEASE) workloads failures recovery cli switch
	DAPR_VERSION=1.17.0 conformance/cluster/run $(RELEASE) switch

cluster-bench: ## as root, the published test between pods of two nodes, with Dapr's sidecars in alternating rounds; both control planes, idle and with 100 pods coming and going (50 minutes)
	@[ "$$(id -u)" = 0 ] || { echo "make $@ needs root, for namespaces, mounts and cgroups"; exit 1; }
	@scripts/need cargo cc make python3 venv cluster
	scripts/build checks
	cargo build --release --locked --bin outrigger-bench
	conformance/build cluster reference
	BENCH_REPORT=bench-report/cluster conformance/cluster/run $(RELEASE) --nodes 2 bench plane
	$(RELEASE)/outrigger-bench report --results bench-report/cluster/results.json

measurekubernetes: ## the operator and the injector at scale, then Dapr's, each on a separate API server (half an hour)
	@scripts/need cargo cc make python3 venv etcd
	scripts/build checks
	conformance/build reference
	scripts/measure-kubernetes $(RELEASE) $(PEER_BIN)

measure: build ## CPU, memory and latency under Fortio, with Dapr in the same run
	@scripts/need python3 venv
	conformance/build fortio reference
	scripts/measure $(RELEASE) $(PEER_BIN)

bench: ## the report, in one run with Dapr, Envoy and nginx if they are installed (two hours; BENCH=--quick: 3 minutes)
	@scripts/need cargo cc make
	@test -x $(TOOLS)/envoy || command -v envoy >/dev/null || echo "Envoy is missing: conformance/build envoy"
	@command -v nginx >/dev/null || echo "nginx, the lower bound, is missing: apt-get update && apt-get install nginx-light"
	@scripts/dist
	envoy=$(TOOLS)/envoy; [ -x "$$envoy" ] || envoy=; \
	  $(DIST)/outrigger-bench run --reference $(PEER_BIN) $${envoy:+--envoy "$$envoy"} $(BENCH)

benchstate: ## get and save of state, in one run with Dapr if it is built (45 minutes; BENCH=--quick: 2 minutes)
	@scripts/need cargo cc make
	@{ command -v redis-server && ls $$(command -v postgres) /usr/lib/postgresql/*/bin/postgres; } >/dev/null 2>&1 || echo "stores that are not installed are skipped; to install them: apt-get update && apt-get install redis-server postgresql"
	@scripts/dist
	$(DIST)/outrigger-bench state --reference $(PEER_BIN) $(BENCH)

benchpubsub: build ## publish/subscribe on one sidecar, with Dapr in the same run: CPU, rates, time to delivery
	@scripts/need python3 venv redis kafka
	conformance/build fortio reference
	scripts/measure-blocks $(RELEASE) $(PEER_BIN) --parts publish,delivery

benchblocks: build ## the same for jobs and actors; the effect on callers of actors when hosts join and leave
	@scripts/need python3 venv
	conformance/build fortio reference
	scripts/measure-blocks $(RELEASE) $(PEER_BIN) --parts jobs,actors
	scripts/measure-rebalance $(RELEASE) $(PEER_BIN)

benchworkflows: build ## workflows with Dapr's Go SDK, with Dapr in the same run: rates, CPU, time of a step, memory
	@scripts/need python3 venv redis postgres
	conformance/build reference
	scripts/measure-workflows $(RELEASE) $(PEER_BIN)

cost: ## instructions and allocations of a call, against crates/testing/cost/budget.toml (COST=--update: a new budget)
	@scripts/need cargo cc make valgrind
	scripts/build checks
	$(RELEASE)/outrigger-cost $(COST)

faults: build ## workflows and events while workers, sidecars, stores, brokers and the control plane are killed; with brokers unreachable for 30 s and placement for a minute (45 minutes)
	@scripts/need cargo cc make python3 venv redis postgres mosquitto rabbitmq nats kafka etcd
	conformance/deliveries $(RELEASE)
	conformance/faults $(RELEASE)
	conformance/faults $(RELEASE) --long 60
	conformance/outages

fuzz: ## the network parsers under libFuzzer, a minute each
	@scripts/fuzz

deny: ## licences, bans and sources of every dependency
	@scripts/need cargo cc venv
	scripts/deny

clean-room: ## .ci/run, make demo and make test on a simulated fresh machine (hours)
	scripts/clean-room
