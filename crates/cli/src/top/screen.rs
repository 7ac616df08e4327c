//! The terminal as long as it is ours. However that ends, it is given back as
//! it was.

use std::{
    io::{self, Stdout},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor,
        event::{self, DisableMouseCapture, EnableMouseCapture, Event as Input},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
};

use super::update::Event;

/// Time that the thread that reads keys may outlive the screen.
const POLL: Duration = Duration::from_millis(100);

pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<Stdout>>,
    done: Arc<AtomicBool>,
    signals: JoinHandle<()>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Screen {
    /// Takes the terminal, and what is typed there.
    pub(crate) fn open() -> io::Result<(Self, mpsc::Receiver<Event>)> {
        restore_on_panic();
        enable_raw_mode()?;
        let taken = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture);
        let terminal = taken.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let terminal = terminal.inspect_err(|_| restore())?;
        let (sender, events) = mpsc::channel(64);
        let done = Arc::new(AtomicBool::new(false));
        let signals = tokio::spawn(wait_for_end(sender.clone()));
        let stop = done.clone();
        let reader = Some(std::thread::spawn(move || read(&sender, &stop)));
        Ok((Self { terminal, done, signals, reader }, events))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.signals.abort();
        // Else it would take the first keys of whoever has the terminal next. It looks
        // every POLL, and whoever it sends to is gone.
        if let Some(reader) = self.reader.take() {
            let _ended = reader.join();
        }
        restore();
    }
}

/// There is nobody to tell when it fails.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), DisableMouseCapture, LeaveAlternateScreen, cursor::Show);
}

/// A message over a screen in disorder is read by nobody.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

fn read(events: &mpsc::Sender<Event>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let event = match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let event = match event {
            Ok(Input::Key(key)) => Event::Key(key),
            Ok(Input::Mouse(mouse)) => Event::Mouse(mouse),
            Ok(Input::Resize(width, height)) => Event::Resize(width, height),
            Ok(_) => continue,
            // The terminal is gone.
            Err(_) => Event::End,
        };
        let last = matches!(event, Event::End);
        if events.blocking_send(event).is_err() || last {
            return;
        }
    }
}

/// A signal from outside ends it as a key does.
async fn wait_for_end(events: mpsc::Sender<Event>) {
    let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
    let [Ok(mut terminate), Ok(mut hangup), Ok(mut interrupt)] = kinds.map(signal) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
        _ = interrupt.recv() => {}
    }
    // Whoever reads has ended already, or will.
    let _ = events.send(Event::End).await;
}
