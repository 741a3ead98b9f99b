use ::redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
    aio::ConnectionLike,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};

use super::settings::Settings;

/// Maximum redirects per command.
const MAX_HOPS: usize = 5;

/// Connections to the nodes of a cluster.
#[derive(Clone)]
pub(super) struct Cluster(pub(super) ClusterConnection);

pub(super) fn client(settings: &Settings) -> RedisResult<ClusterClient> {
    let hosts = settings
        .hosts
        .iter()
        .map(|(host, port)| settings.address(host, *port));
    let mut builder = ClusterClient::builder(hosts)
        .connection_timeout(settings.dial_timeout)
        .tcp_settings(settings.tcp())
        // The driver would repeat commands that may have run; only `Link::attempt` knows which may be
        // repeated.
        .retries(0);
    if let Some(limit) = settings.read_timeout {
        builder = builder.response_timeout(limit);
    }
    if let Some(user) = &settings.account.user {
        builder = builder.username(user);
    }
    if let Some(password) = &settings.account.password {
        builder = builder.password(password);
    }
    if let (Some(mode), Some(tls)) = (settings.tls_mode(), &settings.tls) {
        builder = builder.tls(mode).certs(tls.certificates.clone());
    }
    builder.build()
}

/// Target of a redirect. The node did not run the command.
struct Redirect {
    node: SingleNodeRoutingInfo,
    /// Only for this command, because the slot is being migrated.
    asking: bool,
}

impl Redirect {
    fn read(error: &RedisError) -> Option<Self> {
        let asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let (address, _slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // An empty host means the answering node, whose address the driver does not expose.
        if host.is_empty() {
            return None;
        }
        let node = SingleNodeRoutingInfo::ByAddress {
            host: host.to_owned(),
            port: port.parse().ok()?,
        };
        Some(Self { node, asking })
    }
}

impl Cluster {
    /// Runs `command` on the node of its key, following redirects.
    pub(super) async fn run(mut self, command: &Cmd) -> RedisResult<Value> {
        let mut result = self.0.req_packed_command(command).await;
        for _ in 0..MAX_HOPS {
            let error = match result.and_then(Value::extract_error) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Some(redirect) = Redirect::read(&error) else {
                return Err(error);
            };
            result = self.follow(command, redirect).await;
        }
        result
    }

    async fn follow(&mut self, command: &Cmd, redirect: Redirect) -> RedisResult<Value> {
        if !redirect.asking {
            let route = RoutingInfo::SingleNode(redirect.node);
            return self.0.route_command(command.clone(), route).await;
        }
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let answers = self.0.route_pipeline(both, 0, 2, redirect.node).await?;
        Ok(answers.into_iter().next_back().unwrap_or(Value::Nil))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Option<(String, u16, bool)> {
        let (code, detail) = text.split_once(' ').unwrap();
        let kind = match code {
            "ASK" => ServerErrorKind::Ask,
            _ => ServerErrorKind::Moved,
        };
        let error = RedisError::from((ErrorKind::Server(kind), code, detail.to_owned()));
        let redirect = Redirect::read(&error)?;
        match redirect.node {
            SingleNodeRoutingInfo::ByAddress { host, port } => Some((host, port, redirect.asking)),
            _ => None,
        }
    }

    #[test]
    fn parses_redirects() {
        let node = |host: &str, port, asking| Some((host.to_owned(), port, asking));
        assert_eq!(read("MOVED 3999 10.0.0.1:6381"), node("10.0.0.1", 6381, false));
        assert_eq!(read("ASK 3999 h.x:1"), node("h.x", 1, true));
        assert_eq!(read("MOVED 1 [::1]:1"), node("::1", 1, false));
        for wrong in ["MOVED 3999 :6381", "MOVED 3999", "ASK 1 h:x"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
