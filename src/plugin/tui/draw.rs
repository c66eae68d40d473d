//! Draws the screen. Pure: the same [`Screen`] gives the same frame.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Paint};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::Screen;
use crate::api::view::{ContainerView, Level};
use crate::cli::page::clip;
use crate::plugin::seen::Sort;
use crate::plugin::table::shortened;
use crate::plugin::text::{UNKNOWN, bar, bytes, percent, rate, sparkline, time};

/// How far ahead the mark in the bar shows, in seconds: the default horizon.
const AHEAD: f64 = 900.0;

/// From this width on there is room for the node too.
const ROOMY: u16 = 140;
/// From this width on the keys have the signs of a bar beside them.
const LEGEND: u16 = 96;
/// Below this width the container's name is left out, since its pod's tells more.
const NARROW: u16 = 100;
/// Below this width the namespace is left out too.
const SLIM: u16 = 70;
/// Below this height there is no room for what is known of the chosen line.
const LOW: u16 = 18;
/// From this height on there is room for more than three lines above all else.
const TALL: u16 = 30;

/// One frame.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    // On a low terminal the list is worth more than what is known of one line of it.
    let is_tall = frame.area().height >= TALL;
    let banner: Vec<&str> =
        screen.banner.iter().take(if is_tall { usize::MAX } else { 3 }).map(String::as_str).collect();
    let above = banner.len() as u16;
    // What is made up has no line on where to ask for more.
    let about = if frame.area().height < LOW + above { 0 } else { 10 - above.min(1) };
    let [top, head, body, detail, foot] = Layout::vertical([
        Constraint::Length(above),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(about),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let lines = clip(&banner.join("\n"), top.width.into());
    frame.render_widget(Paragraph::new(lines).style(paint(Level::Elevated, screen)), top);
    frame.render_widget(Paragraph::new(header(screen)), head);
    table(frame, body, screen);
    let shown = screen.shown();
    let block = Block::new().borders(Borders::TOP);
    let text = shown.get(screen.chosen).map_or_else(Vec::new, |view| explain(view, screen, detail.width));
    frame.render_widget(Paragraph::new(text).block(block).wrap(Wrap { trim: false }), detail);
    frame.render_widget(Paragraph::new(footer(screen, foot.width)), foot);
}

fn paint(level: Level, screen: &Screen) -> Paint {
    if !screen.style.color {
        return Paint::new();
    }
    match level {
        Level::Low => Paint::new().fg(Color::Green),
        Level::Unknown => Paint::new().add_modifier(Modifier::DIM),
        Level::Elevated => Paint::new().fg(Color::Yellow),
        Level::High => Paint::new().fg(Color::Red),
        Level::Critical => Paint::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn header(screen: &Screen) -> Line<'static> {
    let mut spans = vec![Span::raw("gpumem  ")];
    for level in [Level::Critical, Level::High, Level::Elevated, Level::Unknown, Level::Low] {
        let count = screen.seen.containers.iter().filter(|view| view.level == level).count();
        if count > 0 {
            spans.push(Span::styled(format!("{count} {}  ", level.name()), paint(level, screen)));
        }
    }
    let sort = match screen.sort {
        Sort::Risk => "risk",
        Sort::Used => "used",
        Sort::Name => "name",
    };
    spans.push(Span::raw(format!("by {sort}")));
    if let Some(note) = screen.failure.as_ref().or(screen.seen.not_seen.first()) {
        spans.push(Span::styled(format!("   {note}"), paint(Level::Elevated, screen)));
    }
    Line::from(spans)
}

fn footer(screen: &Screen, width: u16) -> Line<'static> {
    if screen.is_typing || !screen.filter.is_empty() {
        let cursor = if screen.is_typing { "_" } else { "" };
        return Line::raw(format!("/{}{cursor}   enter keeps it, esc clears it", screen.filter));
    }
    let signs =
        if width < LEGEND { "" } else { "      █ its own  ▒ others  ░ free  › in 15 min  ! past its end" };
    Line::raw(format!("↑↓ choose   s sort   / filter   q quit{signs}"))
}

fn table(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let shown = screen.shown();
    if shown.is_empty() {
        let text = match (&screen.failure, screen.has_looked) {
            (None, false) => "looking …",
            (None, true) => "nothing holds GPU memory here",
            (Some(_), _) => "nothing to be seen",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let (has_namespace, has_container, has_node) = (area.width >= SLIM, area.width >= NARROW, area.width >= ROOMY);
    let least: u16 = if has_container { 20 } else { 10 };
    let longest = |of: fn(&ContainerView) -> &str| {
        shown.iter().map(|view| of(view).chars().count()).max().map_or(9, |length| length.clamp(9, 20) as u16)
    };
    // What the other columns leave, with a blank between each and the mark before the chosen line.
    let fixed: u16 = if has_container { 9 + 20 + 8 + 6 + 6 + 9 } else { 9 + 10 + 8 + 6 + 6 + 8 } + u16::from(has_node);
    let names = |is_shown: bool, of: fn(&ContainerView) -> &str| if is_shown { longest(of) } else { 0 };
    let left = area
        .width
        .saturating_sub(fixed)
        .saturating_sub(names(has_namespace, |view| &view.namespace))
        .saturating_sub(names(has_container, |view| &view.container))
        .saturating_sub(names(has_node, |view| &view.node))
        .max(12);
    // A name far from its numbers is hard to follow: what pods do not need goes to the bars.
    let pod = shown.iter().map(|view| view.pod.chars().count()).max().unwrap_or(0).clamp(12, left.into()) as u16;
    let bar_width = (least + left - pod).min(40);
    let rows = shown.iter().map(|view| {
        let device = match (view.used_bytes, view.capacity_bytes) {
            (Some(used), Some(capacity)) => marked(view, used, capacity, bar_width.into()),
            _ => UNKNOWN.to_owned(),
        };
        let names = [
            (has_namespace, Cell::from(view.namespace.clone())),
            (true, Cell::from(shortened(&view.pod, pod.into()))),
            (has_container, Cell::from(view.container.clone())),
            (has_node, Cell::from(shortened(&view.node, 20))),
        ];
        let numbers = [
            Cell::from(format!("{:>9}", bytes(view.used_bytes))),
            Cell::from(device),
            Cell::from(Span::styled(view.level.name(), paint(view.level, screen))),
            Cell::from(format!("{:>6}", percent(view.probability))),
            Cell::from(format!("{:>6}", view.seconds_to_oom.map_or(UNKNOWN.to_owned(), |oom| time(oom.q50)))),
        ];
        Row::new(names.into_iter().filter_map(|(is_shown, cell)| is_shown.then_some(cell)).chain(numbers))
    });
    let columns = [
        (has_namespace, "NAMESPACE", Constraint::Length(longest(|view| &view.namespace))),
        (true, "POD", Constraint::Length(pod)),
        (has_container, "CONTAINER", Constraint::Length(longest(|view| &view.container))),
        (has_node, "NODE", Constraint::Length(longest(|view| &view.node))),
        (true, "     USED", Constraint::Length(9)),
        (true, "DEVICE", Constraint::Length(bar_width)),
        (true, "RISK", Constraint::Length(8)),
        (true, "P(OOM)", Constraint::Length(6)),
        (true, "OOM IN", Constraint::Length(6)),
    ];
    let columns: Vec<(&str, Constraint)> =
        columns.into_iter().filter_map(|(is_shown, title, width)| is_shown.then_some((title, width))).collect();
    let widths = columns.iter().map(|(_, width)| *width);
    let titles = columns.iter().map(|(title, _)| *title);
    let table = Table::new(rows, widths)
        .header(Row::new(titles).style(Paint::new().add_modifier(Modifier::BOLD)))
        // Not reversed: what a bar says would turn round with it.
        .row_highlight_style(if screen.style.color {
            Paint::new().bg(Color::Indexed(238)).add_modifier(Modifier::BOLD)
        } else {
            Paint::new().add_modifier(Modifier::BOLD)
        })
        .highlight_symbol("▸ ");
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(Some(screen.chosen)));
}

/// The bar, with `›` where growth will have brought the device in a quarter of an hour, `!` where that is past its end.
fn marked(view: &ContainerView, used: u64, capacity: u64, width: usize) -> String {
    let all = view.device_used_bytes.unwrap_or(used);
    let mut cells: Vec<char> = bar(used, all, capacity, width).chars().collect();
    let growth = view.growth_bytes_per_second.filter(|growth| *growth > 0.0);
    // Growth that the forecast does not believe in is not drawn.
    if let (Some(growth), Some(_)) = (growth, view.seconds_to_oom) {
        let ahead = (all as f64 + growth * AHEAD) / capacity.max(1) as f64 * width as f64;
        let place = (ahead as usize).min(width.saturating_sub(1));
        if let Some(cell) = cells.get_mut(place) {
            *cell = if ahead >= width as f64 { '!' } else { '›' };
        }
    }
    cells.into_iter().collect()
}

fn explain(view: &ContainerView, screen: &Screen, width: u16) -> Vec<Line<'static>> {
    let mut lines = vec![
        Line::from(vec![
            Span::raw(format!("{}/{} {}  ", view.namespace, view.pod, view.container)),
            Span::styled(view.level.name(), paint(view.level, screen)),
            Span::raw(format!("  {}  growth {}", view.class, rate(view.growth_bytes_per_second))),
        ]),
        Line::raw(view.reason.clone()),
    ];
    let wide = usize::from(width).saturating_sub(48).clamp(16, 80);
    if let (Some(used), Some(capacity)) = (view.used_bytes, view.capacity_bytes) {
        lines.push(Line::raw(format!(
            "memory   {} {} of {}, peak {}",
            marked(view, used, capacity, wide),
            bytes(Some(used)),
            bytes(Some(capacity)),
            bytes(view.peak_bytes)
        )));
    }
    if let (Some(first), Some(last)) = (view.series.first(), view.series.last()) {
        let values: Vec<u64> = view.series.iter().map(|point| point.used_bytes).collect();
        let span = time(first.age_seconds - last.age_seconds);
        lines.push(Line::raw(format!("history  {} {span}", sparkline(&values))));
    }
    if let Some(oom) = view.seconds_to_oom {
        let between = match (oom.q10, oom.q90) {
            (Some(early), Some(late)) => format!(", 80 % between {} and {}", time(early), time(late)),
            _ => String::new(),
        };
        lines.push(Line::raw(format!("OOM in   {}{between}", time(oom.q50))));
    }
    lines.push(Line::raw(format!(
        "where    {} GPU {} {}, policy {}, sample {} old",
        view.node,
        view.gpu,
        view.model,
        view.policy.as_deref().unwrap_or("none known"),
        view.sample_age_seconds.map_or(UNKNOWN.to_owned(), time)
    )));
    // Nobody can ask a cluster about a pod that is made up.
    if screen.banner.is_empty() {
        lines.push(Line::raw(format!("more     kubectl gpumem explain pod/{} -n {}", view.pod, view.namespace)));
    }
    lines
}
