//! The rungs below an eviction, as the demo plays them.

use anyhow::Result;

use super::play;
use crate::story::plan::{Plan, Role};
use crate::support::world::World;

#[tokio::test]
async fn a_trainer_that_is_asked_to_save_answers_by_its_sidecar_and_is_evicted_only_then() -> Result<()> {
    let world = World::find().await?;
    play(&world, &Plan::draw(3, &world.image).only(&[Role::Saving]).beside("story-saves", 15)).await
}

#[tokio::test]
async fn a_leaking_job_is_suspended_before_its_oom_and_counts_no_failure() -> Result<()> {
    let world = World::find().await?;
    play(&world, &Plan::draw(4, &world.image).only(&[Role::Job]).beside("story-job", 15)).await
}

#[tokio::test]
async fn a_declared_trainer_that_cannot_fit_is_told_before_it_starts_and_fits_with_the_advice() -> Result<()> {
    let world = World::find().await?;
    play(&world, &Plan::draw(5, &world.image).only(&[Role::Declared]).beside("story-declared", 19)).await
}
