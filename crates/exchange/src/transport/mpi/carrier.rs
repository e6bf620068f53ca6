//! The thread of a rank that makes all calls of MPI.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use arrow::buffer::{Buffer, MutableBuffer};
use overspill_machine::memory::DevicePlace;

use super::header::{self, Head};
use super::library::{Bytes, MOST_BYTES, Mpi, Request};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::transport::endpoint::Endpoint;
use crate::transport::frame::{Frame, FrameKind};
use crate::transport::message::Message;

/// Tags of messages with heads, and of what follows them.
const HEAD: c_int = 1;
const BODY: c_int = 2;

/// How often the thread lets others run before it sleeps. Ranks may be more than processors.
const TURNS: u32 = 50;

/// How long it sleeps when there is nothing to do: the longer, the longer there was nothing. Frames that leave wake it.
const LEAST_PAUSE: Duration = Duration::from_micros(20);
const MOST_PAUSE: Duration = Duration::from_millis(1);

/// The same while messages are on their way, which move only as MPI is called.
const MOST_PAUSE_ON_THE_WAY: Duration = Duration::from_micros(100);

/// A command to the carrier's thread.
#[derive(Debug)]
pub enum Command {
    Send(Rank, Frame),
    /// Call `MPI_Alltoallv` with this number of bytes for each rank. The sender gets the time that it took.
    AllToAll(usize, Sender<Result<Duration>>),
    /// Send what there is, and end once all ranks do.
    End,
}

pub struct Carrier {
    mpi: Mpi,
    commands: Receiver<Command>,
    endpoint: Weak<Endpoint>,
    sending: Vec<Request>,
    /// For each rank, what it has sent and what is not delivered, in its order.
    arriving: Vec<VecDeque<Arriving>>,
    is_ending: bool,
    barrier: Option<Request>,
}

/// A frame that is there but for some of its message.
struct Arriving {
    head: Head,
    missing: VecDeque<Request>,
    body: Body,
}

/// Where the message of a frame goes that follows its head.
enum Body {
    /// CPU memory: what has come.
    Parts(Vec<MutableBuffer>),
    /// The place in GPU memory that the receiver has for it.
    Placed,
}

impl Carrier {
    pub fn new(mpi: Mpi, commands: Receiver<Command>, endpoint: Weak<Endpoint>) -> Self {
        let arriving = mpi.lowest_of_node.iter().map(|_| VecDeque::new()).collect();
        Self { mpi, commands, endpoint, sending: vec![], arriving, is_ending: false, barrier: None }
    }

    /// Until all ranks end. If MPI fails, all jobs fail here, and the process ends without MPI's end, which makes its launcher end the others.
    pub fn run(mut self) -> Result<()> {
        let ended = catch_unwind(AssertUnwindSafe(|| self.carry()));
        match ended.unwrap_or_else(|_| Err(Error::Mpi("the thread that calls MPI has stopped".to_owned()))) {
            Ok(()) => self.mpi.end(),
            Err(error) => {
                if let Some(endpoint) = self.endpoint.upgrade() {
                    endpoint.lose(self.mpi.rank, &error.to_string());
                }
                Err(error)
            }
        }
    }

    fn carry(&mut self) -> Result<()> {
        let mut idle = 0_u32;
        let mut pause = LEAST_PAUSE;
        loop {
            let has_done = self.take_commands()? | self.receive()? | self.finish_requests()?;
            if self.has_ended()? {
                return Ok(());
            }
            if has_done {
                (idle, pause) = (0, LEAST_PAUSE);
                continue;
            }
            idle += 1;
            if idle < TURNS {
                std::thread::yield_now();
                continue;
            }
            let is_on_the_way = !self.sending.is_empty() || self.arriving.iter().any(|queue| !queue.is_empty());
            let most = if is_on_the_way { MOST_PAUSE_ON_THE_WAY } else { MOST_PAUSE };
            if self.is_ending {
                std::thread::sleep(pause.min(most));
            } else {
                match self.commands.recv_timeout(pause.min(most)) {
                    Ok(command) => self.take(command)?,
                    Err(RecvTimeoutError::Timeout) => (),
                    Err(RecvTimeoutError::Disconnected) => self.is_ending = true,
                }
            }
            pause = (2 * pause).min(MOST_PAUSE);
        }
    }

    fn take_commands(&mut self) -> Result<bool> {
        let mut has_done = false;
        while !self.is_ending {
            match self.commands.try_recv() {
                Ok(command) => self.take(command)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.is_ending = true,
            }
            has_done = true;
        }
        Ok(has_done)
    }

    fn take(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Send(to, frame) if to == self.mpi.rank => self.deliver(to, frame),
            Command::Send(to, frame) => {
                let (head, body) = header::write(frame);
                self.sending.push(self.mpi.send(head, to, HEAD)?);
                if let Some(body) = body {
                    self.send_body(&body, to)?;
                }
            }
            Command::AllToAll(bytes, answer) => {
                let _ = answer.send(self.mpi.all_to_all(bytes));
            }
            Command::End => self.is_ending = true,
        }
        Ok(())
    }

    fn send_body(&mut self, body: &Message, to: Rank) -> Result<()> {
        let bytes = body.bytes() as usize;
        for begin in (0..bytes).step_by(MOST_BYTES) {
            let length = MOST_BYTES.min(bytes - begin);
            self.sending.push(match body {
                Message::Host(body) => self.mpi.send(body.slice_with_length(begin, length), to, BODY)?,
                Message::Device(body) => self.mpi.send_from_gpu(body.slice(begin as u64, length as u64)?, to, BODY)?,
            });
        }
        Ok(())
    }

    /// Begins to receive what follows a head.
    fn receive_body(&self, head: Head, from: Rank) -> Result<Arriving> {
        let (bytes, mut missing) = (head.missing, VecDeque::new());
        if let Some(mut place) = self.place(&head, from) {
            while place.bytes() > MOST_BYTES as u64 {
                let (first, others) = place.split_at(MOST_BYTES as u64)?;
                missing.push_back(self.mpi.receive_on_gpu(first, from, BODY)?);
                place = others;
            }
            missing.push_back(self.mpi.receive_on_gpu(place, from, BODY)?);
            return Ok(Arriving { head, missing, body: Body::Placed });
        }
        for begin in (0..bytes).step_by(MOST_BYTES) {
            missing.push_back(self.mpi.receive(MOST_BYTES.min(bytes - begin), from, BODY)?);
        }
        Ok(Arriving { head, missing, body: Body::Parts(vec![]) })
    }

    /// The place in GPU memory that the receiver of a message has for it, if MPI can write there.
    fn place(&self, head: &Head, from: Rank) -> Option<DevicePlace> {
        let FrameKind::Data(number, _) = head.frame.kind else { return None };
        let endpoint = self.endpoint.upgrade().filter(|_| head.missing > 0)?;
        endpoint.place(from, head.frame.job, number, head.missing as u64)
    }

    /// Takes what has come.
    fn receive(&mut self) -> Result<bool> {
        let mut has_done = false;
        while let Some((from, bytes)) = self.mpi.probe(HEAD)? {
            has_done = true;
            let mut request = self.mpi.receive(bytes, from, HEAD)?;
            // It is there, so this takes no time.
            let head = loop {
                match self.mpi.test(request)? {
                    Ok(Bytes::Received(bytes, _)) => break Buffer::from(bytes),
                    Ok(_) => return Err(Error::Mpi("a message has no bytes".to_owned())),
                    Err(again) => request = again,
                }
            };
            let arriving = self.receive_body(header::read(&head, from)?, from)?;
            self.arriving[from].push_back(arriving);
        }
        Ok(has_done)
    }

    /// Looks which requests are done, and delivers what is complete.
    fn finish_requests(&mut self) -> Result<bool> {
        let before = self.sending.len();
        for request in std::mem::take(&mut self.sending) {
            if let Err(again) = self.mpi.test(request)? {
                self.sending.push(again);
            }
        }
        let mut has_done = self.sending.len() < before;
        for from in 0..self.arriving.len() {
            while let Some(mut first) = self.arriving[from].pop_front() {
                if self.is_complete(&mut first)? {
                    has_done = true;
                    self.deliver_complete(from, first);
                } else {
                    self.arriving[from].push_front(first);
                    break;
                }
            }
        }
        Ok(has_done)
    }

    fn is_complete(&self, arriving: &mut Arriving) -> Result<bool> {
        while let Some(request) = arriving.missing.pop_front() {
            match (self.mpi.test(request)?, &mut arriving.body) {
                (Ok(Bytes::Received(bytes, _)), Body::Parts(parts)) => parts.push(bytes),
                // Who receives the message has the place to itself again.
                (Ok(Bytes::Placed(place)), Body::Placed) => drop(place),
                (Ok(_), _) => return Err(Error::Mpi("a message has no bytes".to_owned())),
                (Err(again), _) => {
                    arriving.missing.push_front(again);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn deliver_complete(&self, from: Rank, Arriving { head: Head { mut frame, missing }, body, .. }: Arriving) {
        if let FrameKind::Data(number, message) = &mut frame.kind
            && missing > 0
        {
            match body {
                Body::Parts(parts) => *message = whole(parts).into(),
                Body::Placed => {
                    if let Some(endpoint) = self.endpoint.upgrade() {
                        endpoint.deliver_placed(from, frame.job, *number, missing as u64);
                    }
                    return;
                }
            }
        }
        self.deliver(from, frame);
    }

    fn deliver(&self, from: Rank, frame: Frame) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.deliver(from, frame);
        }
    }

    /// Whether all ranks have sent all that they wanted to, and received it: what is sent is done when it has been received.
    fn has_ended(&mut self) -> Result<bool> {
        if !self.is_ending || !self.sending.is_empty() || self.arriving.iter().any(|queue| !queue.is_empty()) {
            return Ok(false);
        }
        let barrier = match self.barrier.take() {
            Some(barrier) => barrier,
            None => self.mpi.barrier()?,
        };
        match self.mpi.test(barrier)? {
            Ok(_) => Ok(true),
            Err(again) => {
                self.barrier = Some(again);
                Ok(false)
            }
        }
    }
}

/// The message that came in these parts.
fn whole(parts: Vec<MutableBuffer>) -> Buffer {
    let mut parts = parts.into_iter();
    let mut bytes = parts.next().unwrap_or_default();
    // Only messages of more than a gibibyte have several.
    parts.for_each(|part| bytes.extend_from_slice(&part));
    bytes.into()
}
