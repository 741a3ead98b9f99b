//! Frames about streams and the connection: PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE.

use super::shutdown::SHUTDOWN_PING;
use super::windows::BANDWIDTH_PING;
use super::{Phase, Role, State};
use crate::error::{ConnectionError, Reason, StreamError};
use crate::frame::{Head, flag};
use crate::settings::MAX_WINDOW;

impl State {
    pub(super) fn priority(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol("PRIORITY on stream 0"));
        }
        let reason = if payload.len() != 5 {
            Reason::FRAME_SIZE_ERROR
        } else if depends_on(payload) == Some(head.stream) {
            Reason::PROTOCOL_ERROR
        } else {
            return self.charge_idle_frame("too many PRIORITY frames");
        };
        self.charge("too many invalid PRIORITY frames")?;
        self.refuse_frame(head.stream, reason);
        Ok(())
    }

    pub(super) fn rst_stream(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(ConnectionError::size("RST_STREAM with a length other than 4"));
        };
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(ConnectionError::protocol("RST_STREAM on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return self.charge_idle_frame("too many RST_STREAM frames of closed streams");
        };
        let unanswered = stream.sender.is_held() && stream.state.is_send_open();
        let accepted = stream.accepted;
        self.fail_stream(head.stream, StreamError::Reset(Reason(u32::from_be_bytes(code))));
        if accepted {
            self.close_if_unused(head.stream);
        } else {
            self.drop_handles(head.stream);
        }
        if unanswered && self.role == Role::Server {
            self.charge("too many requests that are reset before they are answered")?;
        }
        Ok(())
    }

    pub(super) fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("SETTINGS on a stream other than 0"));
        }
        self.charge("too many SETTINGS frames")?;
        if head.has(flag::ACK) {
            return if payload.is_empty() {
                Ok(())
            } else {
                Err(ConnectionError::size("SETTINGS with ACK and a payload"))
            };
        }
        let before = self.peer;
        self.peer.update(payload)?;
        if self.peer.header_table_size != before.header_table_size {
            self.encoder.set_max_table(self.peer.header_table_size);
        }
        let change = i64::from(self.peer.initial_window_size) - i64::from(before.initial_window_size);
        if change != 0 {
            self.change_windows(change)?;
        }
        if self.peer.max_concurrent_streams > before.max_concurrent_streams {
            self.wake_pending_open();
        }
        // The acknowledgement goes first: a peer may expect it before the DATA that the new windows allow.
        self.output.settings_ack();
        self.send_scheduled();
        Ok(())
    }

    fn change_windows(&mut self, change: i64) -> Result<(), ConnectionError> {
        self.charge_all_streams("too many changes of SETTINGS_INITIAL_WINDOW_SIZE")?;
        let mut able = Vec::new();
        for (id, stream) in &mut self.streams {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            stream.send_window += change;
            if stream.send_window > i64::from(MAX_WINDOW) {
                return Err(ConnectionError::flow(
                    "SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1",
                ));
            }
            if stream.can_send() && !stream.is_scheduled {
                able.push(*id);
            }
        }
        able.sort_unstable();
        for id in able {
            self.schedule(id);
        }
        Ok(())
    }

    pub(super) fn ping(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("PING on a stream other than 0"));
        }
        if payload.len() != 8 {
            return Err(ConnectionError::size("PING with a length other than 8"));
        }
        if !head.has(flag::ACK) {
            self.output.ping_ack(payload);
        } else if payload == SHUTDOWN_PING {
            self.send_final_goaway();
        } else if payload == BANDWIDTH_PING && self.probed() {
            return Ok(());
        }
        self.charge_idle_frame("too many PING frames")
    }

    /// A client that receives GOAWAY opens no new streams; streams in flight up to the last named one
    /// complete. A server answers all requests received.
    pub(super) fn go_away(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("GOAWAY on a stream other than 0"));
        }
        let [l3, l2, l1, l0, r3, r2, r1, r0, ..] = *payload else {
            return Err(ConnectionError::size("GOAWAY with a length below 8"));
        };
        if self.role == Role::Server {
            return self.charge_idle_frame("too many GOAWAY frames");
        }
        let last = u32::from_be_bytes([l3, l2, l1, l0]) & MAX_WINDOW;
        let error = StreamError::GoAway(Reason(u32::from_be_bytes([r3, r2, r1, r0])));
        self.set_phase(Phase::Closing);
        self.charge_all_streams("too many GOAWAY frames")?;
        let refused: Vec<u32> = self.streams.keys().copied().filter(|n| *n > last).collect();
        for id in refused {
            self.fail_stream(id, error);
            self.remove_if_closed(id);
        }
        self.wake_pending_open();
        Ok(())
    }

    pub(super) fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        let Ok(more) = <[u8; 4]>::try_from(payload) else {
            return Err(ConnectionError::size("WINDOW_UPDATE with a length other than 4"));
        };
        let more = i64::from(u32::from_be_bytes(more) & MAX_WINDOW);
        let before = self.output.len();
        if head.stream == 0 {
            self.widen_connection_window(more)?;
        } else if self.is_idle(head.stream) {
            return Err(ConnectionError::protocol("WINDOW_UPDATE on an idle stream"));
        } else {
            self.widen_stream_window(head.stream, more)?;
        }
        if self.output.len() == before {
            self.charge_idle_frame("too many WINDOW_UPDATE frames that allow nothing to be sent")?;
        }
        Ok(())
    }

    fn widen_connection_window(&mut self, more: i64) -> Result<(), ConnectionError> {
        self.send_window += more;
        if more == 0 {
            return Err(ConnectionError::protocol("WINDOW_UPDATE by 0"));
        }
        if self.send_window > i64::from(MAX_WINDOW) {
            return Err(ConnectionError::flow(
                "WINDOW_UPDATE makes the connection's window larger than 2^31-1",
            ));
        }
        self.send_scheduled();
        Ok(())
    }

    fn widen_stream_window(&mut self, id: u32, more: i64) -> Result<(), ConnectionError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.send_window += more;
        let reason = if more == 0 {
            Reason::PROTOCOL_ERROR
        } else if stream.send_window > i64::from(MAX_WINDOW) {
            Reason::FLOW_CONTROL_ERROR
        } else {
            self.schedule(id);
            self.send_scheduled();
            return Ok(());
        };
        self.charge("too many invalid WINDOW_UPDATE frames")?;
        self.reset(id, reason);
        Ok(())
    }
}

/// The stream that a priority depends on.
pub(super) fn depends_on(priority: &[u8]) -> Option<u32> {
    let id = priority.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*id) & MAX_WINDOW)
}
