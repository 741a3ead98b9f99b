//! Schedulers that share a store: an external etcd, their own etcd, or PostgreSQL.

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
