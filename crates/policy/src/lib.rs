//! Decisions without I/O: retries, timeouts, circuit breakers, access control, API lists, canonical paths.
