//! The default port of the internal server: the same at every start of an app, if free.

use std::net::TcpListener;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::Internal;

/// First of 2048 candidate ports.
const FIRST: u16 = 47_300;

/// The stable port of an app on this machine, derived from its id, working directory, user and host name.
pub fn stable_port(app_id: &str) -> u16 {
    let folder = std::env::current_dir().unwrap_or_default();
    let host = hostname::get().unwrap_or_default();
    port_of(app_id, &folder, user_id(), &host.to_string_lossy())
}

/// Adds eleven bits of a hash of the four parts.
fn port_of(app_id: &str, folder: &Path, user: u32, host: &str) -> u16 {
    let hash = Sha256::digest(format!("{app_id}|{}|{user}|{host}", folder.display()));
    FIRST + u16::from(hash[0]) + (u16::from(hash[1] >> 5) << 8)
}

/// The user of this process, from the owner of its `/proc` entry; 0 if there is none.
fn user_id() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").map_or(0, |meta| meta.uid())
}

impl Internal {
    /// The port to use: the configured one; else the stable one, if it is free and not the app's; else any
    /// free one.
    pub fn choose_port(&self, app_id: &str, app_port: u16) -> std::io::Result<u16> {
        if let Some(port) = self.port {
            return Ok(port);
        }
        let stable = stable_port(app_id);
        if stable != app_port && TcpListener::bind(("localhost", stable)).is_ok() {
            return Ok(stable);
        }
        Ok(TcpListener::bind(("localhost", 0))?.local_addr()?.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_port_from_four_parts() {
        // Hash bytes 0 and 1 of "myapp|/srv/app|1000|host-1", computed with sha256sum.
        assert_eq!(port_of("myapp", Path::new("/srv/app"), 1000, "host-1"), 48_562);
        assert_eq!(stable_port("a"), stable_port("a"));
        assert!((FIRST..FIRST + 2048).contains(&stable_port("b")));
    }

    #[test]
    fn uses_given_port_or_avoids_taken_one() {
        let given = Internal {
            port: Some(1234),
            listen_address: String::new(),
        };
        assert_eq!(given.choose_port("app", 0).unwrap(), 1234);
        let app = format!("port-test-{}", std::process::id());
        let Ok(_taken) = TcpListener::bind(("localhost", stable_port(&app))) else {
            return;
        };
        assert_ne!(
            Internal::default().choose_port(&app, 0).unwrap(),
            stable_port(&app)
        );
    }

    #[test]
    fn avoids_app_port() {
        // The app may start to listen after its sidecar.
        let app_port = stable_port("app");
        assert_ne!(
            Internal::default().choose_port("app", app_port).unwrap(),
            app_port
        );
    }
}
