//! Schedulers that share a store: an etcd, of the user or run by themselves, or PostgreSQL.

mod cluster;
mod cut_off;
pub(crate) mod etcd;
mod etcd_members;
mod full;
pub(crate) mod group;
mod migrate;
mod partition;
pub(crate) mod postgres;
mod restore;
