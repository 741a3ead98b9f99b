//! Schedulers that share a store: an external etcd, their own etcd, or PostgreSQL.

mod cluster;
pub(crate) mod etcd;
mod etcd_members;
mod full;
pub(crate) mod group;
mod leader_partition;
mod migrate;
mod partition;
pub(crate) mod postgres;
mod restore;
