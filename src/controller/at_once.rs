//! Requests, a few at a time: a round that asks one by one is old before it is through.

use futures::StreamExt as _;

/// Requests under way at once. One round of one replica is no reason for the API server to make others wait: its fairness
/// gives a flow hundreds of seats on a large cluster, and a few dozen on the smallest.
pub const AT_ONCE: usize = 16;

/// Runs these, a few at a time, and gives what they give in their order.
pub async fn all<Read: Future>(at_once: usize, reads: impl IntoIterator<Item = Read>) -> Vec<Read::Output> {
    futures::stream::iter(reads).buffered(at_once).collect().await
}
