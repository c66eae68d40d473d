//! The screen of `top --tui`, drawn into memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use gpumem::plugin::demo::{self, story::Story};
use gpumem::plugin::seen::Seen;
use gpumem::plugin::tui::draw::draw;
use gpumem::plugin::tui::{After, Look, Screen};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use crate::plugin::golden;
use crate::plugin_api::containers;

fn screen() -> Screen {
    let mut screen = Screen::default();
    screen.take(Ok(Seen { containers: containers().containers, is_live: true, ..Seen::default() }));
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..height).map(line).collect()
}

fn press(screen: &mut Screen, keys: &str) -> After {
    keys.chars().map(|key| screen.press(KeyCode::Char(key), KeyModifiers::NONE)).last().unwrap()
}

#[test]
fn the_screen_shows_the_worst_first_and_explains_what_is_chosen() {
    golden("tui", &drawn(&screen(), 120, 24));
}

#[test]
fn a_narrow_or_low_terminal_keeps_the_names_of_pods_and_their_risk() {
    golden("tui-narrow", &drawn(&screen(), 80, 24));
    golden("tui-slim", &drawn(&screen(), 60, 14));
    for (width, height) in [(80, 24), (60, 14)] {
        let text = drawn(&screen(), width, height);
        assert!(text.contains("train-6f9-x2k") && text.contains("High") && text.contains("13m"), "{text}");
    }
}

#[test]
fn a_small_terminal_is_no_reason_to_panic() {
    for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 80)] {
        drawn(&screen(), width, height);
    }
    drawn(&Screen::default(), 80, 24);
}

#[test]
fn keys_choose_sort_filter_and_quit_and_nothing_else() {
    let mut screen = screen();
    press(&mut screen, "jjjj");
    assert_eq!(screen.chosen, 2);
    press(&mut screen, "k");
    assert_eq!(screen.chosen, 1);
    press(&mut screen, "/train");
    assert_eq!((screen.shown().len(), screen.chosen), (1, 0));
    screen.press(KeyCode::Esc, KeyModifiers::NONE);
    assert_eq!(screen.shown().len(), 3);
    press(&mut screen, "ss");
    assert_eq!(screen.shown()[0].pod, "metrics-exporter-with-a-long-name-0");
    assert_eq!(press(&mut screen, "q"), After::Quit);
}

#[test]
fn the_chosen_container_stays_chosen_when_the_order_changes() {
    let mut screen = screen();
    press(&mut screen, "jj");
    let chosen = screen.shown()[2].pod.clone();
    let mut list = containers().containers;
    list.iter_mut().find(|view| view.pod == chosen).unwrap().level = gpumem::api::view::Level::Critical;
    screen.take(Ok(Seen { containers: list, is_live: true, ..Seen::default() }));
    assert_eq!((screen.chosen, screen.shown()[0].pod == chosen), (0, true));
}

#[test]
fn the_demo_says_that_it_is_made_up_and_shows_the_worst_until_somebody_chooses() {
    let mut story = Story::new(1).unwrap();
    let mut screen = Screen::default();
    let mut look = |screen: &mut Screen, at: i64| {
        story.advance(at);
        let Look { seen, banner } = demo::look(&story, 60.0);
        screen.banner = banner;
        screen.take(seen);
    };
    look(&mut screen, 0);
    look(&mut screen, 900);
    golden("tui-demo", &drawn(&screen, 120, 32));
    golden("tui-demo-narrow", &drawn(&screen, 80, 24));
    for (width, height) in [(80, 24), (60, 14)] {
        let text = drawn(&screen, width, height);
        assert!(text.starts_with("DEMO: all made up, no cluster is touched"), "{text}");
        assert!(text.contains("llama-sft") && text.contains("High"), "{text}");
    }
    assert!(!drawn(&screen, 80, 24).contains('…'), "what is said fits on 80 columns");
    assert!(!drawn(&screen, 120, 32).contains("kubectl gpumem explain"), "nobody can ask a cluster about it");
    assert_eq!(screen.shown()[screen.chosen].namespace, "lab");
    press(&mut screen, "j");
    let chosen = screen.shown()[1].pod.clone();
    look(&mut screen, 1800);
    assert_eq!(screen.shown()[screen.chosen].pod, chosen);
}
