//! The trace file: slices on lanes in the trace event format that Chrome and Perfetto read.
//!
//! The format calls lanes threads, and groups of lanes processes. Slices are written when they end, so that little is kept in
//! memory. The file is one array, which both programs also read if its end is missing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use overspill_machine::timeline::nanoseconds;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The number of the first lane. A thread with its process's number would be taken for the main thread.
const FIRST_LANE: usize = 1 << 20;

/// A timeline being written.
pub struct TraceFile {
    state: Mutex<State>,
}

/// A lane on which a span or slice is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(usize);

#[derive(Default)]
struct State {
    /// `None` once the file is finished.
    out: Option<BufWriter<File>>,
    failed: Option<io::Error>,
    is_first: bool,
    /// The last time returned by `now`.
    last: u64,
    groups: HashMap<String, u64>,
    /// Lanes by group and name. Overlapping spans are placed on several lanes of one name.
    lanes: HashMap<(String, String), Vec<Place>>,
    tracks: Vec<Track>,
}

struct Track {
    group: u64,
    /// The open spans, each within the preceding one.
    open: Vec<u64>,
    /// The end of the last slice written by `past`.
    end: u64,
}

/// A complete event of the format. Times are in microseconds.
#[derive(Serialize)]
struct Slice<'a> {
    ph: &'static str,
    name: &'a str,
    pid: u64,
    tid: usize,
    ts: f64,
    dur: f64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: &'a Map<String, Value>,
}

impl Place {
    fn id(self) -> usize {
        FIRST_LANE + self.0
    }
}

impl TraceFile {
    /// Creates the file. An existing timeline is overwritten. Any other existing file, such as a script or a table of the
    /// traced queries, is left unchanged and is an error.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.metadata().is_ok_and(|metadata| metadata.is_file()) && !is_timeline(path)? {
            return Err(io::Error::other("it is there and is no timeline; move it away, or name another file"));
        }
        let mut out = BufWriter::with_capacity(1 << 16, File::create(path)?);
        // Detects an unwritable destination before anything runs.
        out.write_all(b"[")?;
        out.flush()?;
        let state = State { out: Some(out), is_first: true, ..State::default() };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Nanoseconds of the timelines' clock. Values are strictly increasing, so that nested spans begin later than their
    /// parents.
    pub fn now(&self) -> u64 {
        let mut state = self.state.lock();
        state.last = nanoseconds().max(state.last + 1);
        state.last
    }

    /// Begins a span on the first lane of this name that is empty or whose innermost open span is an ancestor.
    pub fn begin(&self, group: &str, lane: &str, span: u64, ancestors: &[u64]) -> Place {
        let mut state = self.state.lock();
        let is_free = |track: &Track| track.open.last().is_none_or(|open| ancestors.contains(open));
        let place = state.place(group, lane, is_free);
        state.tracks[place.0].open.push(span);
        place
    }

    pub fn end(&self, place: Place, span: u64, name: &str, (begin, end): (u64, u64), figures: &Map<String, Value>) {
        let mut state = self.state.lock();
        state.tracks[place.0].open.retain(|open| *open != span);
        state.slice(place, name, (begin, end), figures);
    }

    /// The innermost open span of a lane.
    pub fn innermost(&self, place: Place) -> Option<u64> {
        self.state.lock().tracks[place.0].open.last().copied()
    }

    /// Writes a slice within the open span of a lane.
    pub fn within(&self, place: Place, name: &str, times: (u64, u64), figures: &Map<String, Value>) {
        self.state.lock().slice(place, name, times, figures);
    }

    /// Writes a slice that ran after all earlier slices of its lane, by a clock that differs slightly from that of other
    /// lanes.
    pub fn past(&self, group: &str, lane: &str, name: &str, (begin, end): (u64, u64), figures: &Map<String, Value>) {
        let mut state = self.state.lock();
        let place = state.place(group, lane, |_| true);
        let track = &mut state.tracks[place.0];
        let begin = begin.max(track.end);
        let end = end.max(begin);
        track.end = end;
        state.slice(place, name, (begin, end), figures);
    }

    pub fn thread(&self, name: &str) -> Place {
        self.state.lock().place("CPU threads", name, |_| true)
    }

    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let out = state.out.take();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let Some(mut out) = out else { return Ok(()) };
        out.write_all(b"\n]\n")?;
        out.flush()
    }
}

/// Whether a file was written as a timeline, or is empty.
fn is_timeline(path: &Path) -> io::Result<bool> {
    /// Larger than the first event.
    const BEGINNING: u64 = 4096;
    let mut text = Vec::new();
    File::open(path)?.take(BEGINNING).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    if text.is_empty() {
        return Ok(true);
    }
    let Some(events) = text.strip_prefix('[') else { return Ok(false) };
    // The first event names a group.
    let first = events.trim_start().lines().next().unwrap_or_default().trim_end_matches(',');
    let event: Option<Value> = serde_json::from_str(first).ok();
    Ok(["", "]"].contains(&first) || event.is_some_and(|event| event["ph"] == "M" && event["name"] == "process_name"))
}

impl State {
    fn place(&mut self, group: &str, lane: &str, is_free: impl Fn(&Track) -> bool) -> Place {
        let key = (group.to_owned(), lane.to_owned());
        let siblings = self.lanes.get(&key).map_or(&[][..], Vec::as_slice);
        if let Some(place) = siblings.iter().find(|place| is_free(&self.tracks[place.0])) {
            return *place;
        }
        let name = match siblings.len() {
            0 => lane.to_owned(),
            before => format!("{lane} ({})", before + 1),
        };
        let place = Place(self.tracks.len());
        let pid = match self.groups.get(group) {
            Some(pid) => *pid,
            None => {
                let pid = self.groups.len() as u64 + 1;
                self.groups.insert(group.to_owned(), pid);
                self.name("process", pid, place.id(), group, pid);
                pid
            }
        };
        self.name("thread", pid, place.id(), &name, place.0 as u64);
        self.tracks.push(Track { group: pid, open: Vec::new(), end: 0 });
        self.lanes.entry(key).or_default().push(place);
        place
    }

    /// Names a group or a lane, and sets its position.
    fn name(&mut self, what: &str, pid: u64, tid: usize, name: &str, order: u64) {
        for (kind, args) in [("name", json!({ "name": name })), ("sort_index", json!({ "sort_index": order }))] {
            self.write(&json!({ "ph": "M", "name": format!("{what}_{kind}"), "pid": pid, "tid": tid, "args": args }));
        }
    }

    fn slice(&mut self, place: Place, name: &str, (begin, end): (u64, u64), args: &Map<String, Value>) {
        let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let (pid, tid) = (self.tracks[place.0].group, place.id());
        let (ts, dur) = (micros(begin), micros(end.saturating_sub(begin)));
        self.write(&Slice { ph: "X", name, pid, tid, ts, dur, args });
    }

    fn write(&mut self, event: &impl Serialize) {
        let Some(out) = &mut self.out else { return };
        let separator: &[u8] = if self.is_first { b"\n" } else { b",\n" };
        self.is_first = false;
        let written = out.write_all(separator).and_then(|()| Ok(serde_json::to_writer(out, event)?));
        if let Err(error) = written {
            self.failed = Some(error);
            self.out = None;
        }
    }
}
