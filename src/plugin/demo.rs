//! `demo`: the product without a cluster, for somebody who just installed the plugin. Flows in: flags, and on a terminal the
//! clock. Flows out: a screen with a summary below it, or the same story as text. It asks no cluster and changes nothing.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::seen::Sort;
use super::table::{Output, Style};
use super::tui::{self, Look};
use crate::cli::Shown;

// Reading order.
pub mod cast;

pub mod fleet;

pub mod guard;

pub mod happening;

pub mod story;

mod print;

use happening::clock;
use story::{LONG, Story};

/// Between two frames of the screen.
const FRAME: Duration = Duration::from_millis(250);
/// Of what happened the screen shows so many, the newest first.
const NEWS: usize = 3;

/// Play a story of a made-up fleet.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How many times as fast as the clock it runs on a terminal.
    #[arg(long, value_parser = speed, default_value = "60")]
    pub speed: f64,
    /// As text, all at once: what a pipe gets.
    #[arg(long)]
    pub plain: bool,
    /// Draws the fleet: the same seed tells the same story.
    #[arg(long, value_parser = seed, default_value = "1")]
    pub seed: u64,
}

/// Why there is no story.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cast is none.
    #[error("the fleet cannot be drawn: {0}")]
    Fleet(String),
    /// No screen.
    #[error(transparent)]
    Screen(#[from] tui::Error),
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.trim_end_matches('x').parse::<f64>().ok();
    speed.filter(|speed| (1.0..=3600.0).contains(speed)).ok_or_else(|| "give a number from 1 to 3600".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("give a whole number from 0 to {}", u64::MAX))
}

/// Runs the command: on a terminal a screen, else text.
pub(super) fn main(args: &Args, output: Output, style: Style) -> Result<Shown, Error> {
    if args.plain || output != Output::Table || !std::io::stdout().is_terminal() {
        return plain(args, output, style);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(tui::Error::Terminal)?;
    runtime.block_on(screen(args, style))
}

/// The whole story at once. Pure.
pub fn plain(args: &Args, output: Output, style: Style) -> Result<Shown, Error> {
    let story = Story::new(args.seed).map_err(Error::Fleet)?;
    Ok(Shown::fine(print::whole(story, output, style)))
}

async fn screen(args: &Args, style: Style) -> Result<Shown, Error> {
    let mut story = Story::new(args.seed).map_err(Error::Fleet)?;
    tui::run(|looks| play(&mut story, args.speed, looks), Sort::Risk, style).await?;
    Ok(Shown::fine(print::summary(&story, style)))
}

/// Lets virtual time run until the story is over, or nobody looks any more.
async fn play(story: &mut Story, speed: f64, looks: mpsc::Sender<Look>) {
    let began = Instant::now();
    while looks.send(look(story, speed)).await.is_ok() && !story.is_over() {
        tokio::time::sleep(FRAME).await;
        story.advance((began.elapsed().as_secs_f64() * speed) as i64);
    }
}

/// What the screen shows now. Pure.
pub fn look(story: &Story, speed: f64) -> Look {
    let mut banner = vec![format!(
        "DEMO: all made up, no cluster is touched   {} of {}, {speed}x as fast",
        clock(story.at()),
        clock(LONG)
    )];
    let news = story.happenings().iter().rev().take(NEWS).map(happening::Happening::short);
    banner.extend(news.chain(std::iter::repeat(String::new())).take(NEWS));
    Look { seen: Ok(story.seen()), banner }
}
