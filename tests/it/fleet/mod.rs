//! The controller's data side against agents, peers and an API of our own making, over real mutual TLS on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod api;
mod certificates;
mod election;
mod played;
mod pulls;
