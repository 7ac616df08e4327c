//! Printing the same again and again: on a terminal in place, elsewhere what
//! is different.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ratatui::crossterm::{
    event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    terminal,
};
use tokio::sync::mpsc;

use super::args::Watch;
use crate::{Error, Format, commands::show::changes, session::Session};

const PERIOD: Duration = Duration::from_secs(1);
/// Time that a thread that waits for keys may outlive its use.
const POLL: Duration = Duration::from_millis(100);

/// Does it once, or every second until somebody ends it. What prints is told
/// which key was pressed meanwhile.
pub(crate) async fn repeat(
    watch: Watch,
    session: &mut Session<'_>,
    mut frame: impl AsyncFnMut(&mut Session<'_>, Option<char>) -> Result<(), Error>,
) -> Result<(), Error> {
    if !watch.watch {
        return frame(session, None).await;
    }
    let mut keyboard = Keyboard::open(session);
    let mut before = None;
    let mut key = None;
    loop {
        let now = captured(session, key.take(), &mut frame).await?;
        let text = next(before.as_deref(), &now, session, keyboard.is_some());
        session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
        session.io.out.flush().map_err(Error::Output)?;
        before = Some(now);
        match &mut keyboard {
            None => tokio::time::sleep(PERIOD).await,
            Some(keyboard) => match tokio::time::timeout(PERIOD, keyboard.keys.recv()).await {
                Ok(None | Some('q')) => return Ok(()),
                Ok(Some(pressed)) => key = Some(pressed),
                Err(_) => {}
            },
        }
    }
}

/// Returns what a frame prints, warnings included.
async fn captured(
    session: &mut Session<'_>,
    key: Option<char>,
    frame: &mut impl AsyncFnMut(&mut Session<'_>, Option<char>) -> Result<(), Error>,
) -> Result<String, Error> {
    let text = Shared::default();
    let out = std::mem::replace(&mut session.io.out, Box::new(text.clone()));
    let err = std::mem::replace(&mut session.io.err, Box::new(text.clone()));
    let result = frame(session, key).await;
    (session.io.out, session.io.err) = (out, err);
    result?;
    let text = text.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns what has to be written for the reader to see `now`.
fn next(before: Option<&str>, now: &str, session: &Session<'_>, raw: bool) -> String {
    let people = matches!(session.global.output, None | Some(Format::Table | Format::Wide));
    match before {
        _ if session.io.out_is_terminal && people => {
            let size = if raw { terminal::size().ok() } else { None };
            screen(now, size)
        }
        Some(before) if people => changes(before, now),
        _ => now.to_owned(),
    }
}

/// The text over what was on the screen, no more of it than fits.
fn screen(text: &str, size: Option<(u16, u16)>) -> String {
    let (columns, rows) = size.map_or((usize::MAX, usize::MAX), |(columns, rows)| {
        (usize::from(columns), usize::from(rows).saturating_sub(1))
    });
    let mut all = String::from("\x1b[H");
    for line in text.lines().take(rows) {
        // A line with colours is a header; it is short.
        let cut = !line.contains('\x1b');
        all.extend(line.chars().take(if cut { columns } else { usize::MAX }));
        all.push_str("\x1b[K\r\n");
    }
    all + "\x1b[J"
}

/// Keys one by one, without waiting for a line. Dropped, the terminal is as it
/// was.
struct Keyboard {
    keys: mpsc::Receiver<char>,
    done: Arc<AtomicBool>,
}

impl Keyboard {
    /// None where nobody sits at a keyboard.
    fn open(session: &Session<'_>) -> Option<Self> {
        let there = session.io.out_is_terminal && session.io.prompt.is_some();
        if !there || !io::stdin().is_terminal() || terminal::enable_raw_mode().is_err() {
            return None;
        }
        let (sender, keys) = mpsc::channel(16);
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let pressed = match event::poll(POLL) {
                    Ok(true) => event::read().ok().and_then(|event| pressed(&event)),
                    Ok(false) => None,
                    Err(_) => return,
                };
                if pressed.is_some_and(|key| sender.blocking_send(key).is_err()) {
                    return;
                }
            }
        });
        Some(Self { keys, done })
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // Nothing is left to do where the terminal is gone.
        let _ = terminal::disable_raw_mode();
    }
}

fn pressed(event: &Event) -> Option<char> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return None;
    };
    match code {
        KeyCode::Esc => Some('q'),
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some('q'),
        KeyCode::Char(key) => Some(*key),
        _ => None,
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_holds_what_fits() {
        assert_eq!(
            screen("one line\ntwo\nthree\n", Some((4, 3))),
            "\x1b[Hone \x1b[K\r\ntwo\x1b[K\r\n\x1b[J"
        );
        assert_eq!(screen("all of it\n", None), "\x1b[Hall of it\x1b[K\r\n\x1b[J");
    }

    #[test]
    fn keys_that_end_it() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(pressed(&Event::Key(control)), Some('q'));
        let plain = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE);
        assert_eq!(pressed(&Event::Key(plain)), Some('c'));
        assert_eq!(pressed(&Event::Resize(1, 1)), None);
    }
}
