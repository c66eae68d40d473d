//! `make demo`: plays the story for people and says at the end whether it happened.

use std::process::ExitCode;

use anyhow::{Context, Result};

mod story;

use story::plan::Plan;
use story::screen::Screen;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match play().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn play() -> Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let image = arguments.next().context("usage: demo IMAGE [SEED]")?;
    let seed = match arguments.next() {
        Some(text) => text.parse().with_context(|| format!("seed `{text}` is not a number"))?,
        None => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64 % 100_000,
    };
    let plan = Plan::draw(seed, &image).with_milder_rungs();
    let client = kube::Client::try_default().await.context("no cluster: run it through `make demo`")?;
    println!("\n{plan}\n");
    println!("The main policy (documented fields only, with times short enough to watch):\n");
    println!("{}", indent(&serde_yaml::to_string(&story::cast::policy(&plan))?));
    println!("The other policies differ in:\n");
    for policy in story::cast::policies(&plan).iter().filter(|policy| policy["metadata"]["name"] != "guarded") {
        println!(
            "    {}: actions {}",
            policy["metadata"]["name"].as_str().unwrap_or_default(),
            policy["spec"]["actions"]
        );
        if let Some(limit) = policy["spec"].get("growthLimit") {
            println!("        growthLimit {limit}");
        }
    }
    // What an earlier performance left would be taken for this one's.
    story::cast::leave(&client, &plan).await?;
    let mut screen = Screen::new();
    let told = story::play(&client, &plan, |frame, story| screen.draw(frame, story)).await?;
    println!("\nWhat happened (seed {seed}):\n");
    let findings = told.findings();
    for finding in &findings {
        println!("  {} {}", if finding.holds { "ok  " } else { "FAIL" }, finding.text);
    }
    let happened = findings.iter().all(|finding| finding.holds);
    println!("\n{}", if happened { "The story happened." } else { "The story did NOT happen." });
    Ok(happened)
}

fn indent(text: &str) -> String {
    text.lines().fold(String::new(), |shown, line| shown + "    " + line + "\n")
}
