//! Connection strings of PostgreSQL, as libpq and pgx read them, and the TLS that they ask for.

mod connection;
mod dsn;
mod tls;

pub use connection::{Connection, prepares};
pub use dsn::{Pairs, parse};
pub use tls::{Tls, TlsError};
