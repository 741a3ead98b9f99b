//! Gives back the space that deleted and compacted keys leave in the file of the etcd that the scheduler runs: etcd itself
//! only uses it again. The thresholds are Dapr's (`scheduler.md`, section 1.3).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::proto::etcd::{DefragmentRequest, StatusRequest};
use crate::storage::StorageError;
use crate::storage::etcd::Client;

const LOG: &str = "dapr.scheduler.etcd";
/// Between two looks at how much of the file is in use.
pub(crate) const EVERY: Duration = Duration::from_secs(600);
/// Until the next look after one that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Size of the file, as a multiple of what is in use, from which on it is made smaller.
const TIMES: i64 = 2;
/// Time for that. The etcd answers nothing meanwhile, and the others of its cluster go on.
const LIMIT: Duration = Duration::from_secs(300);

/// Looks again and again until `stop`. `client` has the scheduler's own etcd as its only member.
pub(crate) async fn run(client: Client, every: Duration, stop: CancellationToken) {
    // Members that were started together do not stand still together.
    let mut wait = every.mul_f64(rand::random_range(0.5..1.0));
    while stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
        let Some(looked) = stop.run_until_cancelled(look(&client)).await else {
            return;
        };
        wait = match looked {
            Ok(()) => every,
            Err(error) => {
                tracing::debug!(target: LOG, "The file of etcd could not be made smaller, it is tried again: {error}");
                RETRY.min(every)
            }
        };
    }
}

/// Makes the file smaller if much of it is not in use.
async fn look(client: &Client) -> Result<(), StorageError> {
    let before = client
        .call(StatusRequest {}, |mut stubs, request| async move {
            stubs.maintenance.status(request).await
        })
        .await?;
    if before.db_size < before.db_size_in_use.saturating_mul(TIMES) {
        return Ok(());
    }
    client
        .call_within(LIMIT, DefragmentRequest {}, |mut stubs, request| async move {
            stubs.maintenance.defragment(request).await
        })
        .await?;
    tracing::info!(
        target: LOG,
        "The file of etcd had {} bytes, of which {} were in use: it was made smaller",
        before.db_size,
        before.db_size_in_use
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::server::Etcd;
    use tonic::transport::Channel;

    use super::*;
    use crate::config::EtcdAccess;
    use crate::proto::etcd::{DeleteRangeRequest, PutRequest, StatusResponse, kv_client::KvClient};

    /// etcd's, which no part of the scheduler asks for.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Compaction {
        #[prost(int64, tag = "1")]
        revision: i64,
        /// Answered once the space is free.
        #[prost(bool, tag = "2")]
        physical: bool,
    }

    async fn channel(etcd: &Etcd) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", etcd.endpoint())).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// Forgets all before a revision.
    async fn compact(etcd: &Etcd, revision: i64) {
        let mut grpc = tonic::client::Grpc::new(channel(etcd).await);
        grpc.ready().await.unwrap();
        let request = tonic::Request::new(Compaction {
            revision,
            physical: true,
        });
        let codec: tonic_prost::ProstCodec<Compaction, ()> = tonic_prost::ProstCodec::default();
        let path = "/etcdserverpb.KV/Compact".parse().unwrap();
        grpc.unary(request, path, codec).await.unwrap();
    }

    fn client(etcd: &Etcd) -> Client {
        let access = EtcdAccess {
            endpoints: vec![etcd.endpoint()],
            ..EtcdAccess::default()
        };
        Client::new(&access).unwrap()
    }

    async fn status(client: &Client) -> StatusResponse {
        let asked = client.call(StatusRequest {}, |mut stubs, request| async move {
            stubs.maintenance.status(request).await
        });
        asked.await.unwrap()
    }

    #[tokio::test]
    async fn the_file_of_an_etcd_whose_jobs_are_gone_becomes_small_again() {
        let Some(etcd) = Etcd::start() else { return };
        let client = client(&etcd);
        let mut kv = KvClient::new(channel(&etcd).await);
        for at in 0_u8..64 {
            let put = PutRequest {
                key: format!("dapr/jobs/{at}").into(),
                value: vec![at; 256 << 10].into(),
                ..PutRequest::default()
            };
            kv.put(put).await.unwrap();
        }
        // It tells what it has written to the file, which is a little later.
        let mut full = status(&client).await;
        while full.db_size < 16 << 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            full = status(&client).await;
        }
        // All of it is in use: it stays as it is.
        look(&client).await.unwrap();
        assert!(status(&client).await.db_size >= full.db_size, "{full:?}");

        let all = DeleteRangeRequest {
            key: "dapr/jobs/".into(),
            range_end: "dapr/jobs0".into(),
            prev_kv: false,
        };
        let deleted = kv.delete_range(all).await.unwrap().into_inner();
        compact(&etcd, deleted.header.unwrap().revision).await;
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(self::client(&etcd), Duration::from_millis(50), stop.clone()));
        let smaller = async {
            while status(&client).await.db_size > 1 << 20 {
                // It counts what is free when it writes the next time.
                let put = PutRequest {
                    key: "dapr/jobs/other".into(),
                    ..PutRequest::default()
                };
                kv.put(put).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(60), smaller).await;
        let left = status(&client).await;
        assert!(within.is_ok(), "{left:?}");
        stop.cancel();
        running.await.unwrap();
    }
}
