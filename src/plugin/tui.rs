//! `top --tui`: a screen that stays. Flows in: keys, and [`Look`]s from whoever looks: at a cluster every two seconds, or at a
//! fleet that is made up. Flows out: frames. It reads and nothing else: no key of it changes the cluster.

use std::io::IsTerminal as _;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::cluster::{Cluster, Error as Unseen};
use super::seen::{self, Seen, Sort};
use super::table::Style;

pub mod draw;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// Histories of more containers than this would be megabytes for each look.
const HISTORIES: usize = 500;

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Output goes into a file or a pipe.
    #[error("--tui needs a terminal; use `top -w` or `top -o json` here")]
    NoTerminal,
    /// The terminal does not play along.
    #[error("the terminal failed: {0}")]
    Terminal(#[from] std::io::Error),
}

/// What is newly seen.
#[derive(Debug)]
pub struct Look {
    /// The containers, or why they are not seen.
    pub seen: Result<Seen, Unseen>,
    /// Lines to put above all else.
    pub banner: Vec<String>,
}

/// What is on the screen.
#[derive(Debug, Default)]
pub struct Screen {
    /// The containers, in their order.
    pub seen: Seen,
    /// Which line is chosen.
    pub chosen: usize,
    /// Order of the lines.
    pub sort: Sort,
    /// Only containers with this in namespace, pod, container or node.
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    /// Why the newest look failed; what is shown is older then.
    pub failure: Option<String>,
    /// Whether anything was seen yet.
    pub has_looked: bool,
    /// With colours.
    pub style: Style,
    /// Lines above all else; there are some only where what is shown is no cluster's.
    pub banner: Vec<String>,
    /// Whether a key has chosen a line.
    pub has_chosen: bool,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Go on.
    Stay,
    /// End.
    Quit,
}

impl Screen {
    /// Takes what was seen. The chosen container stays chosen wherever it moved.
    pub fn take(&mut self, looked: Result<Seen, Unseen>) {
        match looked {
            Err(error) => self.failure = Some(error.line()),
            Ok(seen) => {
                // In a story the worst is what it tells of, until somebody chooses.
                let stays = self.has_chosen || self.banner.is_empty();
                let chosen = self.shown().get(self.chosen).copied().filter(|_| stays);
                let key = chosen.map(|view| (view.pod_uid.clone(), view.container.clone()));
                (self.seen, self.failure, self.has_looked) = (seen, None, true);
                seen::sort(&mut self.seen.containers, self.sort);
                self.choose(key);
            }
        }
    }

    /// The containers that the filter lets through.
    pub fn shown(&self) -> Vec<&crate::api::view::ContainerView> {
        let passes = |view: &&crate::api::view::ContainerView| {
            [&view.namespace, &view.pod, &view.container, &view.node].iter().any(|text| text.contains(&self.filter))
        };
        self.seen.containers.iter().filter(passes).collect()
    }

    /// Takes a key.
    pub fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> After {
        let last = self.shown().len().saturating_sub(1);
        self.has_chosen = true;
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return After::Quit,
            KeyCode::Esc if self.is_typing || !self.filter.is_empty() => {
                (self.is_typing, self.filter) = (false, String::new());
            }
            KeyCode::Enter if self.is_typing => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Char(character) if self.is_typing => {
                self.filter.push(character);
                self.chosen = 0;
            }
            KeyCode::Char('q') | KeyCode::Esc => return After::Quit,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.chosen = (self.chosen + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::PageDown => self.chosen = (self.chosen + 10).min(last),
            KeyCode::PageUp => self.chosen = self.chosen.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => self.chosen = 0,
            KeyCode::End | KeyCode::Char('G') => self.chosen = last,
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Risk => Sort::Used,
                    Sort::Used => Sort::Name,
                    Sort::Name => Sort::Risk,
                };
                seen::sort(&mut self.seen.containers, self.sort);
                self.chosen = 0;
            }
            _ => {}
        }
        self.chosen = self.chosen.min(self.shown().len().saturating_sub(1));
        After::Stay
    }

    fn choose(&mut self, key: Option<(String, String)>) {
        let shown = self.shown();
        let place = key.and_then(|(uid, container)| {
            shown.iter().position(|view| view.pod_uid == uid && view.container == container)
        });
        self.chosen = place.unwrap_or(self.chosen).min(shown.len().saturating_sub(1));
    }
}

/// Runs until q, or until `feed` ends and its last look was shown.
pub async fn run<Feed: Future<Output = ()>>(
    feed: impl FnOnce(mpsc::Sender<Look>) -> Feed,
    sort: Sort,
    style: Style,
) -> Result<(), Error> {
    if !std::io::stdout().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let mut screen = Screen { sort, style, ..Screen::default() };
    // Puts the terminal back on a panic too.
    let mut terminal = ratatui::try_init()?;
    let mut keys = keys();
    let (send, mut looks) = mpsc::channel(1);
    let mut feed = std::pin::pin!(feed(send));
    let mut is_fed = true;
    let ended = loop {
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &screen)) {
            break Err(error.into());
        }
        tokio::select! {
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    if screen.press(key.code, key.modifiers) == After::Quit {
                        break Ok(());
                    }
                }
                // A new size is drawn at the next turn.
                Some(_) => {}
                None => break Ok(()),
            },
            look = looks.recv() => match look {
                Some(Look { seen, banner }) => {
                    screen.banner = banner;
                    screen.take(seen);
                }
                None => break Ok(()),
            },
            () = &mut feed, if is_fed => is_fed = false,
        }
    };
    ratatui::restore();
    ended
}

/// Looks at a cluster again and again, until nobody wants to know.
pub async fn watch(cluster: &Cluster, looks: mpsc::Sender<Look>) {
    let mut with_histories = true;
    loop {
        let seen = look(cluster, with_histories).await;
        with_histories = seen.as_ref().map_or(with_histories, |seen| seen.containers.len() <= HISTORIES);
        if looks.send(Look { seen, banner: Vec::new() }).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn look(cluster: &Cluster, with_histories: bool) -> Result<Seen, Unseen> {
    let mut query: Vec<String> = cluster.namespace.iter().map(|namespace| format!("namespace={namespace}")).collect();
    query.extend(with_histories.then(|| "series=1".to_owned()));
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    seen::containers(cluster, &query).await.map(|(seen, _)| seen)
}

/// Keys, read on a thread of their own: reading blocks.
fn keys() -> mpsc::Receiver<Event> {
    let (send, receive) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receive
}
