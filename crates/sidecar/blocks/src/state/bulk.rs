//! Several operations under one policy: only failed ones are retried.

use std::pin::pin;
use std::time::Instant;

use futures::future::BoxFuture;
use outrigger_component::StateStore;
use outrigger_component::state::BulkError;
use outrigger_policy::resiliency::Outcome;

use super::Store;
use crate::outbound::{Cause, Operation};

/// A call with several requests.
type Call<R> = for<'a> fn(&'a dyn StateStore, &'a [R]) -> BoxFuture<'a, Result<(), BulkError>>;

impl Store {
    /// Calls until all requests succeed or the policy gives up. Requests with an ETag error are not retried.
    pub(super) async fn each<R>(
        &self,
        operation: &Operation,
        requests: Vec<R>,
        call: Call<R>,
    ) -> Result<(), Cause> {
        let started = Instant::now();
        let result = self.attempts(requests, call).await;
        operation.completed(result.is_ok(), started.elapsed());
        result
    }

    async fn attempts<R>(&self, mut requests: Vec<R>, call: Call<R>) -> Result<(), Cause> {
        let mut lost = Vec::new();
        let left = (&mut requests, &mut lost);
        let attempts = self
            .outbound
            .attempts()
            .run_with(left, |(requests, lost), limit| async move {
                let attempt = call(self.component.as_ref(), requests);
                let result = limit.within(pin!(attempt)).await;
                let (cause, outcome) = match result {
                    Some(Ok(())) => (None, Outcome::Success),
                    None => (Some(Cause::Timeout), Outcome::TimedOut),
                    Some(Err(error)) => {
                        let failures = error.failures.into_iter();
                        let failures = failures.map(|(index, error)| (index, self.outbound.cleared(error)));
                        let (etag, other): (Vec<_>, Vec<_>) =
                            failures.partition(|(_, error)| error.is_etag());
                        lost.extend(etag);
                        let left: Vec<usize> = other.iter().map(|(index, _)| *index).collect();
                        if left.is_empty() {
                            (None, Outcome::Final)
                        } else {
                            retain(requests, &left);
                            (
                                Some(Cause::Several(BulkError { failures: other })),
                                Outcome::Failure { code: None },
                            )
                        }
                    }
                };
                ((requests, lost), cause, outcome)
            });
        match attempts.await? {
            None if lost.is_empty() => Ok(()),
            None => Err(Cause::Several(BulkError { failures: lost })),
            Some(Cause::Several(error)) => {
                lost.extend(error.failures);
                Err(Cause::Several(BulkError { failures: lost }))
            }
            Some(cause) => Err(cause),
        }
    }
}

/// Keeps the elements at these ascending indexes.
fn retain<R>(requests: &mut Vec<R>, left: &[usize]) {
    let mut left = left.iter().copied().peekable();
    let mut index = 0;
    requests.retain(|_| {
        let keep = left.next_if_eq(&index).is_some();
        index += 1;
        keep
    });
}

#[cfg(test)]
mod tests {
    use super::retain;

    #[test]
    fn retains_listed_indexes() {
        let mut requests = vec!['a', 'b', 'c', 'd'];
        retain(&mut requests, &[1, 3]);
        assert_eq!(requests, ['b', 'd']);
    }
}
