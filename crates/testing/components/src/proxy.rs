//! A TCP proxy that can drop data.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use outrigger_component_conformance::Link;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

/// Forwards connections to a server.
pub struct Proxy {
    /// Port on 127.0.0.1.
    pub port: u16,
    shared: Arc<ProxyState>,
    _task: AbortOnDropHandle<()>,
}

struct ProxyState {
    losses: watch::Sender<u32>,
    mute: AtomicBool,
    cut: watch::Sender<bool>,
    held: watch::Sender<bool>,
    silent: AtomicBool,
}

impl Proxy {
    /// Forwards to the port `server`.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self::serve(listener, server)
    }

    /// The same, with a listener of the caller.
    pub fn serve(listener: TcpListener, server: u16) -> Self {
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(ProxyState {
            losses: watch::Sender::new(0),
            mute: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            held: watch::Sender::new(false),
            silent: AtomicBool::new(false),
        });
        let for_all = shared.clone();
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let shared = for_all.clone();
                // Subscribes before checking for silence, so that no loss is missed.
                let losses = shared.losses.subscribe();
                if *shared.cut.borrow() {
                    continue;
                }
                tokio::spawn(async move {
                    if shared.silent.load(Ordering::SeqCst) {
                        let _open = client;
                        return std::future::pending::<()>().await;
                    }
                    shared.passes().await;
                    if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await {
                        shared.forward(client, server, losses).await;
                    }
                });
            }
        });
        Self {
            port,
            shared,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Drops all data of existing connections, in both directions; they stay open.
    pub fn lose(&self) {
        self.shared.losses.send_modify(|count| *count += 1);
    }

    /// A partition without connection errors.
    pub fn silence(&self) -> Silence<'_> {
        Silence(self)
    }

    /// Holds all data, in both directions, until [`Proxy::go_on`]. Connections stay open, and new ones are
    /// accepted.
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    /// Delivers the held data, as after a network partition.
    pub fn go_on(&self) {
        self.shared.held.send_replace(false);
    }

    /// Closes the client's connection instead of delivering the next response.
    pub fn swallow_an_answer(&self) {
        self.shared.mute.store(true, Ordering::SeqCst);
    }
}

impl ProxyState {
    /// Waits until data may pass.
    async fn passes(&self) {
        // The sender exists as long as `self`.
        let _ = self.held.subscribe().wait_for(|held| !*held).await;
    }

    async fn forward(&self, mut client: TcpStream, mut server: TcpStream, mut losses: watch::Receiver<u32>) {
        let mut cut = self.cut.subscribe();
        let (mut asked, mut answered) = (vec![0; 16384], vec![0; 16384]);
        // Data sent after a loss or a cut may be read before it is noticed.
        let lost = losses.clone();
        let lost = || lost.has_changed().unwrap_or(true);
        let ended = cut.clone();
        let ended = || *ended.borrow() || ended.has_changed().unwrap_or(true);
        loop {
            tokio::select! {
                _ = losses.changed() => std::future::pending::<()>().await,
                () = async { drop(cut.wait_for(|cut| *cut).await) } => return,
                count = client.read(&mut asked) => match count {
                    Ok(_) if lost() => std::future::pending::<()>().await,
                    Ok(_) if ended() => return,
                    Ok(count) if count > 0 => {
                        self.passes().await;
                        if server.write_all(&asked[..count]).await.is_err() {
                            return;
                        }
                    }
                    _ => return self.passes().await,
                },
                count = server.read(&mut answered) => match count {
                    Ok(_) if lost() => std::future::pending::<()>().await,
                    Ok(_) if ended() => return,
                    Ok(count) if count > 0 => {
                        self.passes().await;
                        if self.mute.swap(false, Ordering::SeqCst)
                            || client.write_all(&answered[..count]).await.is_err()
                        {
                            return;
                        }
                    }
                    _ => return self.passes().await,
                },
            }
        }
    }
}

/// The server keeps running, but existing and new connections to it are closed.
impl Link for Proxy {
    fn cut(&mut self) {
        self.shared.cut.send_replace(true);
    }

    fn restore(&mut self) {
        self.shared.cut.send_replace(false);
    }
}

/// A partition that drops packets: connections stay open, and no data arrives. Connections that existed
/// during the partition stay dead afterwards, as behind a firewall that has forgotten them. Neither side
/// sees the other's close; each must detect the partition itself.
pub struct Silence<'a>(&'a Proxy);

impl Link for Silence<'_> {
    fn cut(&mut self) {
        self.0.shared.silent.store(true, Ordering::SeqCst);
        self.0.lose();
    }

    fn restore(&mut self) {
        // Connections opened during the partition are not forwarded.
        self.0.shared.silent.store(false, Ordering::SeqCst);
    }
}
