//! PostgreSQL connection strings in the formats of libpq and pgx, and their TLS settings.

mod connection;
mod dsn;
mod tls;

pub use connection::{Connection, prepares};
pub use dsn::{Pairs, parse};
pub use tls::{Tls, TlsError};
