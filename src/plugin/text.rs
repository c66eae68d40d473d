//! Amounts, times, bars and lines as people read them in a terminal. Pure.

use gpumem_engine::quantity::Bytes;

/// What is not known is shown as this, never as 0.
pub const UNKNOWN: &str = "-";

/// `11.2 GiB`, or [`UNKNOWN`].
pub fn bytes(amount: Option<u64>) -> String {
    amount.map_or_else(|| UNKNOWN.to_owned(), |amount| Bytes(amount).to_string())
}

/// A rate: `20 MiB/s`, `3 MiB/min` or `40 MiB/h`, whichever is the first with at least one MiB.
pub fn rate(per_second: Option<f64>) -> String {
    let Some(per_second) = per_second else { return UNKNOWN.to_owned() };
    let sign = if per_second < 0.0 { "-" } else { "+" };
    let units = [(1.0, "s"), (60.0, "min"), (3600.0, "h")];
    let large = |(seconds, _): &(f64, &str)| per_second.abs() * seconds >= 1_048_576.0;
    let (seconds, unit) = units.into_iter().find(large).unwrap_or((3600.0, "h"));
    format!("{sign}{}/{unit}", Bytes::from_f64(per_second.abs() * seconds))
}

/// `42s`, `9m`, `3h`, `4d`: the two largest digits that matter.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s < 0.0 => UNKNOWN.to_owned(),
        s if s < 99.5 => format!("{s:.0}s"),
        s if s < 99.5 * 60.0 => format!("{:.0}m", s / 60.0),
        s if s < 47.5 * 3600.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

/// A probability as a percentage that is never rounded to certainty.
pub fn percent(share: Option<f64>) -> String {
    match share {
        None => UNKNOWN.to_owned(),
        Some(share) if share > 0.0 && share < 0.01 => "<1%".to_owned(),
        Some(share) if share < 1.0 && share > 0.99 => ">99%".to_owned(),
        Some(share) => format!("{:.0}%", share * 100.0),
    }
}

/// Names in a sentence: the first three, and how many more there are.
pub fn few(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 3 { format!("{shown} and {} more", names.len() - 3) } else { shown }
}

/// A bar of `width` cells: the container's own part full, its neighbours' shaded, what is free light.
pub fn bar(own: u64, all: u64, capacity: u64, width: usize) -> String {
    let cells = |amount: u64| ((amount as f64 / capacity.max(1) as f64 * width as f64).round() as usize).min(width);
    let own_cells = if own > 0 { cells(own).max(1) } else { 0 };
    let all_cells = cells(all.max(own)).max(own_cells);
    format!("{}{}{}", "█".repeat(own_cells), "▒".repeat(all_cells - own_cells), "░".repeat(width - all_cells))
}

/// The same history in at most `cells` values: of each stretch its highest, since that is what runs out of memory.
pub fn thinned(values: &[u64], cells: usize) -> Vec<u64> {
    let cells = cells.clamp(1, values.len().max(1));
    let stretch = |cell: usize| values.get(cell * values.len() / cells..(cell + 1) * values.len() / cells);
    (0..cells).filter_map(|cell| stretch(cell)?.iter().max().copied()).collect()
}

/// A line of eighths between the lowest and the highest value; flat values lie in the middle.
pub fn sparkline(values: &[u64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (low, high) = (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
    let span = high - low;
    // Less than half a percent is jitter, and a line that magnified it would frighten.
    let is_flat = span as f64 <= 0.005 * high as f64;
    let step = |value: &u64| {
        let place = if is_flat { 3 } else { ((value - low) as f64 / span as f64 * 7.0).round() as usize };
        STEPS.get(place).copied().unwrap_or('█')
    };
    values.iter().map(step).collect()
}

/// The first `height` lines of `text`, each cut to `width` characters; colours take no room and end with the line. Where
/// lines are left out, the last one says how many.
pub fn cut(text: &str, width: usize, height: usize) -> String {
    let mut out = String::new();
    let count = text.lines().count();
    let kept = if count > height { height.saturating_sub(1) } else { height };
    for line in text.lines().take(kept) {
        let (mut shown, mut is_escape, mut has_color) = (0, false, false);
        for character in line.chars() {
            if character == '\u{1b}' {
                (is_escape, has_color) = (true, true);
            }
            if is_escape {
                is_escape = character != 'm';
                out.push(character);
            } else if shown < width {
                out.push(character);
                shown += 1;
            }
        }
        out.push_str(if has_color { "\u{1b}[0m\n" } else { "\n" });
    }
    if count > kept {
        let more: String = format!("… {} more; --tui scrolls", count - kept).chars().take(width).collect();
        out = out + &more + "\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_read_at_a_glance() {
        assert_eq!([5.2, 600.0, 5700.0, 7200.0, 400_000.0].map(time), ["5s", "10m", "95m", "2h", "5d"]);
        assert_eq!(rate(Some(20.0 * 1_048_576.0)), "+20 MiB/s");
        assert_eq!(rate(Some(-1_048_576.0 / 60.0)), "-1 MiB/min");
        assert_eq!(rate(None), "-");
    }

    #[test]
    fn a_probability_is_never_rounded_to_certainty() {
        assert_eq!(
            [0.0, 0.004, 0.5, 0.995, 1.0].map(|share| percent(Some(share))),
            ["0%", "<1%", "50%", ">99%", "100%"]
        );
    }

    #[test]
    fn a_bar_is_as_wide_as_asked_whatever_the_numbers() {
        for (own, all, capacity) in [(0, 0, 0), (5, 3, 10), (99, 100, 10), (1, 100, 1000)] {
            assert_eq!(bar(own, all, capacity, 10).chars().count(), 10);
        }
        assert_eq!(bar(3, 5, 10, 10), "███▒▒░░░░░");
    }

    #[test]
    fn a_cut_line_keeps_its_colour_and_no_more_than_its_width() {
        assert_eq!(cut("abcdef\nx\n", 3, 2), "abc\nx\n");
        assert_eq!(cut("abcdef\nx\ny\n", 9, 2), "abcdef\n… 2 more;\n");
        assert_eq!(cut("a\u{1b}[31mbcd\u{1b}[0me", 3, 9), "a\u{1b}[31mbc\u{1b}[0m\u{1b}[0m\n");
    }

    #[test]
    fn a_history_that_is_too_long_keeps_its_peaks() {
        assert_eq!(thinned(&[1, 9, 2, 3, 4], 2), [9, 4]);
        assert_eq!(thinned(&[1, 2], 9), [1, 2]);
        assert_eq!(thinned(&[], 9), [0; 0]);
    }

    #[test]
    fn jitter_is_drawn_flat() {
        assert_eq!(sparkline(&[1000, 1001, 1000]), "▄▄▄");
        assert_eq!(sparkline(&[0, 50, 100]), "▁▅█");
        assert_eq!(sparkline(&[]), "");
    }
}
