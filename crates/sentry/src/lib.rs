//! The certificate authority of the control plane.
