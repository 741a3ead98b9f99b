//! Messages between replicas, as protocol buffers. Replicas may differ by one version: fields are only added.

use std::collections::{BTreeMap, BTreeSet};

use openraft::impls::EmptyNode;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{EntryPayload, Membership, SnapshotMeta, StoredMembership};

use super::Types;

/// A request to another replica.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RaftRequest {
    #[prost(oneof = "RequestKind", tags = "1, 2, 3")]
    pub(super) kind: Option<RequestKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum RequestKind {
    #[prost(message, tag = "1")]
    Append(Append),
    #[prost(message, tag = "2")]
    Vote(Candidate),
    #[prost(message, tag = "3")]
    Snapshot(Snapshot),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RaftResponse {
    /// The vote of the answering replica; for entries, only if it is higher.
    #[prost(message, optional, tag = "1")]
    vote: Option<Vote>,
    /// The vote is granted, or the entries are accepted.
    #[prost(bool, tag = "2")]
    granted: bool,
    /// The last entry of the answering replica; for entries, the last accepted one if not all were.
    #[prost(message, optional, tag = "3")]
    last: Option<LogId>,
    /// Entries were accepted up to `last`.
    #[prost(bool, tag = "4")]
    partial: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Vote {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    node: u64,
    #[prost(bool, tag = "3")]
    committed: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct LogId {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    node: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Append {
    #[prost(message, required, tag = "1")]
    vote: Vote,
    #[prost(message, optional, tag = "2")]
    previous: Option<LogId>,
    #[prost(message, repeated, tag = "3")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "4")]
    committed: Option<LogId>,
}

/// A log entry: empty, or the membership.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(message, required, tag = "1")]
    id: LogId,
    #[prost(message, optional, tag = "2")]
    members: Option<Members>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Members {
    #[prost(uint64, repeated, tag = "1")]
    ids: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Candidate {
    #[prost(message, required, tag = "1")]
    vote: Vote,
    #[prost(message, optional, tag = "2")]
    last: Option<LogId>,
}

/// A snapshot: only the membership.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Snapshot {
    #[prost(message, required, tag = "1")]
    vote: Vote,
    #[prost(message, optional, tag = "2")]
    last: Option<LogId>,
    #[prost(message, optional, tag = "3")]
    members_at: Option<LogId>,
    #[prost(message, required, tag = "4")]
    members: Members,
    #[prost(string, tag = "5")]
    id: String,
}

impl From<openraft::Vote<u64>> for Vote {
    fn from(vote: openraft::Vote<u64>) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }
}

impl From<Vote> for openraft::Vote<u64> {
    fn from(vote: Vote) -> Self {
        match vote.committed {
            true => Self::new_committed(vote.term, vote.node),
            false => Self::new(vote.term, vote.node),
        }
    }
}

impl From<openraft::LogId<u64>> for LogId {
    fn from(id: openraft::LogId<u64>) -> Self {
        Self {
            term: id.leader_id.term,
            node: id.leader_id.node_id,
            index: id.index,
        }
    }
}

impl From<LogId> for openraft::LogId<u64> {
    fn from(id: LogId) -> Self {
        Self::new(openraft::CommittedLeaderId::new(id.term, id.node), id.index)
    }
}

impl From<&Membership<u64, EmptyNode>> for Members {
    fn from(members: &Membership<u64, EmptyNode>) -> Self {
        Self {
            ids: members.voter_ids().collect(),
        }
    }
}

impl From<Members> for Membership<u64, EmptyNode> {
    fn from(members: Members) -> Self {
        let ids: BTreeSet<u64> = members.ids.into_iter().collect();
        let nodes: BTreeMap<u64, EmptyNode> = ids.iter().map(|&id| (id, EmptyNode {})).collect();
        Self::new(vec![ids], nodes)
    }
}

impl From<AppendEntriesRequest<Types>> for Append {
    fn from(request: AppendEntriesRequest<Types>) -> Self {
        let entries = request.entries.into_iter().map(|entry| Entry {
            id: entry.log_id.into(),
            members: match &entry.payload {
                EntryPayload::Membership(members) => Some(members.into()),
                EntryPayload::Blank | EntryPayload::Normal(()) => None,
            },
        });
        Self {
            vote: request.vote.into(),
            previous: request.prev_log_id.map(LogId::from),
            entries: entries.collect(),
            committed: request.leader_commit.map(LogId::from),
        }
    }
}

impl From<Append> for AppendEntriesRequest<Types> {
    fn from(append: Append) -> Self {
        let entries = append.entries.into_iter().map(|entry| openraft::Entry {
            log_id: entry.id.into(),
            payload: match entry.members {
                Some(members) => EntryPayload::Membership(members.into()),
                None => EntryPayload::Blank,
            },
        });
        Self {
            vote: append.vote.into(),
            prev_log_id: append.previous.map(Into::into),
            entries: entries.collect(),
            leader_commit: append.committed.map(Into::into),
        }
    }
}

impl From<VoteRequest<u64>> for Candidate {
    fn from(request: VoteRequest<u64>) -> Self {
        Self {
            vote: request.vote.into(),
            last: request.last_log_id.map(LogId::from),
        }
    }
}

impl From<Candidate> for VoteRequest<u64> {
    fn from(candidate: Candidate) -> Self {
        Self::new(candidate.vote.into(), candidate.last.map(Into::into))
    }
}

impl From<InstallSnapshotRequest<Types>> for Snapshot {
    fn from(request: InstallSnapshotRequest<Types>) -> Self {
        let members = &request.meta.last_membership;
        Self {
            vote: request.vote.into(),
            last: request.meta.last_log_id.map(LogId::from),
            members_at: members.log_id().map(LogId::from),
            members: members.membership().into(),
            id: request.meta.snapshot_id.clone(),
        }
    }
}

impl From<Snapshot> for InstallSnapshotRequest<Types> {
    fn from(snapshot: Snapshot) -> Self {
        let members = snapshot.members.into();
        Self {
            vote: snapshot.vote.into(),
            meta: SnapshotMeta {
                last_log_id: snapshot.last.map(Into::into),
                last_membership: StoredMembership::new(snapshot.members_at.map(Into::into), members),
                snapshot_id: snapshot.id,
            },
            offset: 0,
            data: Vec::new(),
            done: true,
        }
    }
}

impl From<AppendEntriesResponse<u64>> for RaftResponse {
    fn from(response: AppendEntriesResponse<u64>) -> Self {
        match response {
            AppendEntriesResponse::Success => Self {
                granted: true,
                ..Self::default()
            },
            AppendEntriesResponse::PartialSuccess(last) => Self {
                partial: true,
                last: last.map(LogId::from),
                ..Self::default()
            },
            AppendEntriesResponse::Conflict => Self::default(),
            AppendEntriesResponse::HigherVote(vote) => Self {
                vote: Some(vote.into()),
                ..Self::default()
            },
        }
    }
}

impl From<RaftResponse> for AppendEntriesResponse<u64> {
    fn from(answer: RaftResponse) -> Self {
        match answer {
            RaftResponse { granted: true, .. } => Self::Success,
            RaftResponse {
                partial: true, last, ..
            } => Self::PartialSuccess(last.map(Into::into)),
            RaftResponse { vote: Some(vote), .. } => Self::HigherVote(vote.into()),
            RaftResponse { .. } => Self::Conflict,
        }
    }
}

impl From<VoteResponse<u64>> for RaftResponse {
    fn from(response: VoteResponse<u64>) -> Self {
        Self {
            vote: Some(response.vote.into()),
            granted: response.vote_granted,
            last: response.last_log_id.map(LogId::from),
            partial: false,
        }
    }
}

impl From<RaftResponse> for VoteResponse<u64> {
    fn from(answer: RaftResponse) -> Self {
        let vote: openraft::Vote<u64> = answer.vote.unwrap_or_default().into();
        Self::new(vote, answer.last.map(Into::into), answer.granted)
    }
}

impl From<InstallSnapshotResponse<u64>> for RaftResponse {
    fn from(response: InstallSnapshotResponse<u64>) -> Self {
        Self {
            vote: Some(response.vote.into()),
            ..Self::default()
        }
    }
}

impl From<RaftResponse> for InstallSnapshotResponse<u64> {
    fn from(answer: RaftResponse) -> Self {
        Self {
            vote: answer.vote.unwrap_or_default().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn through(kind: RequestKind) -> RequestKind {
        let request = RaftRequest { kind: Some(kind) };
        RaftRequest::decode(request.encode_to_vec().as_slice())
            .unwrap()
            .kind
            .unwrap()
    }

    fn log_id(term: u64, node: u64, index: u64) -> openraft::LogId<u64> {
        LogId { term, node, index }.into()
    }

    #[test]
    fn entries_round_trip() {
        let members: Membership<u64, EmptyNode> = Members { ids: vec![1, 2, 3] }.into();
        let payloads = [EntryPayload::Membership(members), EntryPayload::Blank];
        let entries = payloads
            .into_iter()
            .zip(0..)
            .map(|(payload, index)| openraft::Entry {
                log_id: log_id(4, 2, index),
                payload,
            });
        let request = AppendEntriesRequest::<Types> {
            vote: openraft::Vote::new_committed(4, 2),
            prev_log_id: None,
            entries: entries.collect(),
            leader_commit: Some(log_id(4, 2, 1)),
        };
        let text = format!("{request:?}");
        let RequestKind::Append(append) = through(RequestKind::Append(request.into())) else {
            panic!("another request");
        };
        assert_eq!(format!("{:?}", AppendEntriesRequest::<Types>::from(append)), text);
    }

    #[test]
    fn votes_and_snapshots_round_trip() {
        let request = VoteRequest::new(openraft::Vote::new(7, 3), Some(log_id(6, 1, 9)));
        let RequestKind::Vote(candidate) = through(RequestKind::Vote(request.clone().into())) else {
            panic!("another request");
        };
        assert_eq!(VoteRequest::from(candidate), request);

        let members = Members { ids: vec![1, 2] }.into();
        let request = InstallSnapshotRequest::<Types> {
            vote: openraft::Vote::new_committed(7, 3),
            meta: SnapshotMeta {
                last_log_id: Some(log_id(6, 1, 9)),
                last_membership: StoredMembership::new(Some(log_id(0, 0, 0)), members),
                snapshot_id: "9".to_owned(),
            },
            offset: 0,
            data: Vec::new(),
            done: true,
        };
        let RequestKind::Snapshot(snapshot) = through(RequestKind::Snapshot(request.clone().into())) else {
            panic!("another request");
        };
        assert_eq!(InstallSnapshotRequest::<Types>::from(snapshot), request);
    }

    #[test]
    fn answers_round_trip() {
        let answer = |answer: RaftResponse| RaftResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
        for response in [
            AppendEntriesResponse::Success,
            AppendEntriesResponse::PartialSuccess(Some(log_id(1, 2, 3))),
            AppendEntriesResponse::PartialSuccess(None),
            AppendEntriesResponse::Conflict,
            AppendEntriesResponse::HigherVote(openraft::Vote::new(1, 0)),
        ] {
            let text = format!("{response:?}");
            let response: AppendEntriesResponse<u64> = answer(response.into()).into();
            assert_eq!(format!("{response:?}"), text);
        }
        let response = VoteResponse::new(openraft::Vote::new(2, 5), None, true);
        assert_eq!(VoteResponse::from(answer(response.clone().into())), response);
    }
}
