//! The product's main job as a story that is played on a real cluster: two identical leaking trainers, one under a policy
//! in Enforce and one without, beside a plateau trainer and a server with a preallocated pool. The demo shows the milder rungs
//! too: a trainer that is asked to save first, a Job that is suspended, a trainer held to a size beside a neighbour, and one
//! that declares a job that cannot fit, is told so before it starts, and takes the advice.
//!
//! `make demo` plays it for people, `tests/cluster` asserts it. Everything shown is read from the API server, the agents,
//! the controller and the driver, as a user would read it.

#![allow(dead_code)] // shared by the demo and the tests: each uses its part

pub mod cast;
pub mod frame;
pub mod plan;
pub mod scrape;
pub mod screen;
pub mod verdict;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::frame::{Frame, Observer};
use self::plan::Plan;
use self::verdict::Story;

/// Plays the story: puts the cast on stage, then looks once a second until `plan.length` has passed or everything that was
/// to happen has happened. `show` gets every frame.
pub async fn play(client: &kube::Client, plan: &Plan, mut show: impl FnMut(&Frame, &Story)) -> Result<Story> {
    cast::enter(client, plan).await?;
    let observer = Observer::new(client.clone(), plan);
    let mut story = Story::new(plan);
    let curtain = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let frame = observer.look(curtain.elapsed()).await?;
        story.take(&frame);
        if let Some(advice) = story.advice_to_take() {
            let job = cast::take_advice(client, plan, &advice).await?;
            story.took_advice(advice, job);
        }
        show(&frame, &story);
        if story.is_told() || curtain.elapsed() > plan.length {
            return Ok(story);
        }
    }
}
