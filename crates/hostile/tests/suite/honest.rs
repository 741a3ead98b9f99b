//! The client that has to be served, whatever others do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::listeners::{Protocol, Request};
use crate::peer::{Heard, Peer, Target};
use crate::{h1, h2};

/// How long an honest client waits for an answer. Generous: machines that test are busy.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two calls.
const PAUSE: Duration = Duration::from_millis(30);
/// Bytes of a certificate at least.
const CERTIFICATE: usize = 500;

/// One call on a connection of its own.
pub async fn call(target: &Target) -> Result<(), String> {
    let started = Instant::now();
    let outcome = tokio::time::timeout(TIMEOUT, exchange(target)).await;
    let name = target.listener.name;
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(format!(
            "an honest client of {name}: {why}, after {:?}",
            started.elapsed()
        )),
        Err(_) => Err(format!("an honest client of {name} had no answer in {TIMEOUT:?}")),
    }
}

async fn exchange(target: &Target) -> Result<(), String> {
    let mut peer = target
        .connect()
        .await
        .map_err(|e| format!("connecting failed: {e}"))?;
    let heard = ask(target, &mut peer, "close").await;
    if speaks_http1(target) {
        return match h1::statuses(&heard).first() {
            Some(200..=299) => Ok(()),
            _ => Err(format!("heard {:?}", String::from_utf8_lossy(&heard.bytes))),
        };
    }
    let data = h2::frames(&heard.bytes)
        .iter()
        .filter(|f| f.kind == h2::kind::DATA)
        .map(|f| f.payload.len())
        .sum::<usize>();
    if !h2::is_ok(&heard.bytes, 1) {
        return Err(format!("heard {:?}", h2::frames(&heard.bytes)));
    }
    match target.listener.honest {
        Request::Sign if data < CERTIFICATE => Err("no certificate was issued".to_owned()),
        _ => Ok(()),
    }
}

fn speaks_http1(target: &Target) -> bool {
    matches!(target.listener.honest, Request::Get(_) | Request::Post(..))
        && target.listener.offers(Protocol::Http1)
}

/// Asks what honest clients ask, on a connection on which nothing was said; `connection` is the field of HTTP/1.1.
pub async fn ask(target: &Target, peer: &mut Peer, connection: &str) -> Heard {
    let listener = target.listener;
    if speaks_http1(target) {
        let request = h1::request(listener, &format!("Connection: {connection}\r\n"));
        peer.say(request.as_bytes()).await;
        return peer.hear(TIMEOUT, h1::is_answered).await;
    }
    let words = [h2::hello(&[]), h2::request(listener, 1, &target.signing)].concat();
    peer.say(&words).await;
    peer.hear(TIMEOUT, |bytes| h2::is_over(bytes, 1)).await
}

/// Calls until told to stop, once more after that.
pub async fn keep_calling(target: Target, stop: Arc<AtomicBool>) -> Result<u32, String> {
    let mut answered = 0;
    loop {
        let last = stop.load(Ordering::Acquire);
        call(&target)
            .await
            .map_err(|why| format!("{why}, {answered} calls were answered before"))?;
        answered += 1;
        if last {
            return Ok(answered);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until a server answers; `false` when it does not within `limit`.
pub async fn is_up(target: &Target, limit: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < limit {
        if call(target).await.is_ok() {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}
