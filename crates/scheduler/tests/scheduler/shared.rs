//! Schedulers that share a store: an etcd, of the user or run by themselves, or PostgreSQL.

mod cluster;
mod etcd;
mod etcd_members;
mod group;
mod migrate;
mod partition;
mod postgres;
