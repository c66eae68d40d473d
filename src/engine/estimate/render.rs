//! An answer as a person reads it, and as a program does. Flows in: an [`Answer`]. Flows out: text, or a JSON value.

use std::fmt::Write;

use serde_json::{Value, json};

use super::advice::Remedy;
use super::fit::Verdict;
use super::job::Answer;
use super::{GIB, Interval};

const BAR: usize = 18;

/// The table: terms with bars, the verdict, cards, and what to change. What has columns has at most 79 characters; sentences and
/// settings are as long as they are, for the caller to break below their last column.
pub fn text(answer: &Answer) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(answer, &mut out);
    out.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

fn write_text(answer: &Answer, out: &mut String) -> std::fmt::Result {
    let estimate = &answer.estimate;
    let gib = |bytes: f64| bytes / GIB;
    let total = &estimate.total;
    writeln!(out, "Peak {} on the fullest GPU, GiB (low, median, high)\n", estimate.phase)?;
    // A server takes its whole share: what it would not start without is another number, and the one that cards are asked for.
    let takes_more = estimate.needs.median < 0.99 * total.median;
    let largest = estimate.terms.iter().map(|term| term.bytes.median).fold(1.0, f64::max);
    for term in &estimate.terms {
        let length = (term.bytes.median / largest * BAR as f64).round() as usize;
        let bar = "#".repeat(length.min(BAR));
        let Interval { low, median, high } = term.bytes;
        writeln!(out, "  {:<30} {:>8.2} {:>8.2} {:>8.2}  {bar}", term.name, gib(low), gib(median), gib(high))?;
    }
    let sum = |name: &str, Interval { low, median, high }: &Interval| {
        format!("  {name:<30} {:>8.2} {:>8.2} {:>8.2}", gib(*low), gib(*median), gib(*high))
    };
    writeln!(out, "{}", sum(if takes_more { "total that it takes" } else { "total" }, total))?;
    let margin = |from: f64| 100.0 * (from - total.median) / total.median.max(1.0);
    writeln!(out, "  margin of error {:+.0} % to {:+.0} %", margin(total.low), margin(total.high))?;
    if takes_more {
        writeln!(out, "{}", sum("a card that it starts on", &estimate.needs))?;
    }
    writeln!(out)?;
    if let (Some(verdict), Some(capacity)) = (answer.verdict, answer.capacity) {
        let name = answer.card.map_or("the capacity", |card| card.name);
        let words = match verdict {
            Verdict::Fits => "It fits",
            Verdict::Unsure => "It may not fit",
            Verdict::DoesNotFit => "It will not fit",
        };
        write!(out, "{words} {name}, {:.1} GiB usable. ", gib(capacity))?;
        match answer.largest_batch {
            Some(batch) => writeln!(out, "Largest batch, or sequences of a server, that fit: {batch}.")?,
            None if answer.fits.is_empty() => writeln!(out)?,
            None => writeln!(out, "No batch fits as it runs now.")?,
        }
    }
    if let Some(first) = answer.fits.iter().find(|fit| fit.verdict == Verdict::Fits) {
        let what = if takes_more { "that it starts on" } else { "that holds it" };
        write!(out, "Smallest card or MIG profile {what}: {}", first.card.name)?;
        match answer.fits.iter().find(|fit| fit.verdict == Verdict::Fits && !fit.card.is_mig) {
            Some(whole) if first.card.is_mig => write!(out, "; smallest whole card: {}", whole.card.name)?,
            _ => {}
        }
        let all = answer.fits.iter().find(|fit| answer.card.is_none() && fit.card.usable() >= total.high);
        match all.filter(|_| takes_more) {
            Some(all) => writeln!(out, "; with room for all of the total: {}.", all.card.name)?,
            None => writeln!(out, ".")?,
        }
    } else if !answer.fits.is_empty() {
        let what = if takes_more { "It starts on no" } else { "No" };
        writeln!(out, "{what} card of the table{} on one GPU.", if takes_more { "" } else { " holds it" })?;
    }
    if !answer.plan.is_empty() {
        writeln!(out, "\nDo this, in order:")?;
        for (number, remedy) in answer.plan.iter().enumerate() {
            write_remedy(out, number + 1, remedy)?;
        }
    }
    if !answer.remedies.is_empty() {
        let then = if takes_more { "then the card that it starts on" } else { "then peak" };
        writeln!(out, "\nEach change by itself (saves, {then}, GiB):")?;
        for remedy in answer.remedies.iter().take(10) {
            writeln!(
                out,
                "  {:>7.2} {:>8.2}  {:<12}  {}",
                gib(remedy.saves.median),
                gib(remedy.peak.median),
                remedy.verdict.words(),
                title(remedy)
            )?;
        }
    }
    for (head, lines) in [("Assumed", &estimate.assumptions), ("Not known", &estimate.unknowns)] {
        if !lines.is_empty() {
            writeln!(out, "\n{head}:")?;
        }
        for line in lines {
            writeln!(out, "  - {line}")?;
        }
    }
    Ok(())
}

fn title(remedy: &Remedy) -> String {
    if remedy.detail.is_empty() {
        remedy.kind.title().to_owned()
    } else {
        format!("{}: {}", remedy.kind.title(), remedy.detail)
    }
}

fn write_remedy(out: &mut String, number: usize, remedy: &Remedy) -> std::fmt::Result {
    let [low, median, high] = [remedy.peak.low, remedy.peak.median, remedy.peak.high].map(|bytes| bytes / GIB);
    writeln!(out, "  {number}. {}", title(remedy))?;
    writeln!(out, "     then {median:.1} GiB ({low:.1} to {high:.1}), {}; {}", remedy.verdict.words(), remedy.price)?;
    for setting in remedy.settings {
        writeln!(out, "     {:<11} {}", setting.framework, setting.line)?;
    }
    Ok(())
}

/// The same as JSON; amounts are whole bytes.
pub fn json(answer: &Answer) -> Value {
    let estimate = &answer.estimate;
    let remedy = |remedy: &Remedy| {
        let settings: Vec<Value> =
            remedy.settings.iter().map(|one| json!({"framework": one.framework, "line": one.line})).collect();
        json!({
            "title": title(remedy),
            "savesBytes": interval(&remedy.saves),
            "peakBytes": interval(&remedy.peak),
            "verdict": verdict(remedy.verdict),
            "price": remedy.price,
            "settings": settings,
        })
    };
    let terms: Vec<Value> =
        estimate.terms.iter().map(|term| json!({"name": term.name, "bytes": interval(&term.bytes)})).collect();
    let fits: Vec<Value> = answer
        .fits
        .iter()
        .map(|fit| {
            json!({"card": fit.card.name, "usableBytes": whole(fit.card.usable()), "mig": fit.card.is_mig,
            "needsBytes": interval(&fit.needs), "verdict": verdict(fit.verdict)})
        })
        .collect();
    json!({
        "terms": terms,
        "totalBytes": interval(&estimate.total),
        "allocatedBytes": interval(&estimate.allocated),
        "reservedBytes": interval(&estimate.reserved),
        "needsBytes": interval(&estimate.needs),
        "phase": estimate.phase.to_string(),
        "capacityBytes": answer.capacity.map(whole),
        "card": answer.card.map(|card| card.name),
        "verdict": answer.verdict.map(verdict),
        "largestBatch": answer.largest_batch,
        "fits": fits,
        "plan": answer.plan.iter().map(remedy).collect::<Vec<_>>(),
        "remedies": answer.remedies.iter().map(remedy).collect::<Vec<_>>(),
        "assumptions": estimate.assumptions,
        "unknowns": estimate.unknowns,
    })
}

fn interval(interval: &Interval) -> Value {
    json!({"low": whole(interval.low), "median": whole(interval.median), "high": whole(interval.high)})
}

fn whole(bytes: f64) -> u64 {
    crate::quantity::Bytes::from_f64(bytes).0
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fits => "Fits",
        Verdict::Unsure => "Unsure",
        Verdict::DoesNotFit => "DoesNotFit",
    }
}
