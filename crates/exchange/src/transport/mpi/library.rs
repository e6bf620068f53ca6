//! The functions of `liboverspill_mpi.so`, which `make mpi` compiles of `crates/exchange/mpi/`.
//!
//! All unsafe code of this crate is here. The C functions are ours, and each says in its file what it does with what it is given.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use arrow::buffer::{Buffer, MutableBuffer};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use overspill_machine::memory::DevicePlace;

use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::transport::message::DeviceMessage;

/// The version of the functions. It is `INTERFACE` of the C file.
const INTERFACE: c_int = 3;

/// The most bytes of one message: MPI counts them in an `int`.
pub const MOST_BYTES: usize = 1 << 30;

type Begin<T> = unsafe extern "C" fn(T, c_int, c_int, c_int, *mut *mut c_void) -> c_int;
type AllToAll =
    unsafe extern "C" fn(*const c_void, *const c_int, *const c_int, *mut c_void, *const c_int, *const c_int) -> c_int;

/// MPI, which has been started. Only the thread that started it may use it, so it cannot be sent to another.
#[derive(Debug)]
pub struct Mpi {
    send: Begin<*const c_void>,
    receive: Begin<*mut c_void>,
    probe: unsafe extern "C" fn(c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int,
    test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int,
    barrier: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    all_to_all: AllToAll,
    error: unsafe extern "C" fn(c_int, *mut c_char, c_int),
    end: unsafe extern "C" fn() -> c_int,
    /// This rank, and for each rank the lowest one of its node.
    pub rank: Rank,
    pub lowest_of_node: Vec<usize>,
    /// Whether MPI takes messages in the memory of a GPU.
    pub takes_gpu_memory: bool,
    /// Neither `Send` nor `Sync`.
    thread: std::marker::PhantomData<*mut ()>,
    /// The functions above are its. It stays loaded, as MPI libraries leave threads and handlers behind.
    _library: ManuallyDrop<Library>,
}

/// A message on its way, or a barrier. MPI reads or writes its bytes until it is done.
#[derive(Debug)]
pub struct Request {
    request: *mut c_void,
    bytes: Bytes,
}

/// The bytes of a request. They lie in the heap and are not moved with it.
#[derive(Debug)]
pub enum Bytes {
    None,
    Sent(Buffer),
    /// GPU memory that MPI sends. MPI gets its address.
    Lent(DeviceMessage),
    /// GPU memory that MPI writes.
    Placed(DevicePlace),
    /// A buffer with room for the message, and the bytes of the message. The buffer is empty until the message is there.
    Received(MutableBuffer, usize),
}

impl Drop for Request {
    fn drop(&mut self) {
        // MPI may still use the bytes, and there is no thread that could wait for it here: they are never given back. Requests
        // are dropped before they are done only when the process ends.
        match std::mem::replace(&mut self.bytes, Bytes::None) {
            Bytes::None => (),
            Bytes::Sent(bytes) => std::mem::forget(bytes),
            Bytes::Lent(part) => std::mem::forget(part),
            Bytes::Placed(place) => std::mem::forget(place),
            Bytes::Received(bytes, _) => std::mem::forget(bytes),
        }
    }
}

/// The bytes of a message as MPI counts them.
fn count(bytes: usize) -> c_int {
    debug_assert!(bytes <= MOST_BYTES);
    bytes as c_int
}

/// What the loader says, which libloading keeps behind its own words.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

impl Mpi {
    /// Loads the library, and starts MPI on this thread.
    ///
    /// # Errors
    /// If the library is not there or another version, or MPI does not start.
    pub fn start(path: &Path) -> Result<Self> {
        let failed = |what: String| {
            Error::Mpi(format!("{what}. `make mpi` compiles {} with the mpicc of this machine", path.display()))
        };
        // SAFETY: the library is ours, or libmpi below it; loading them runs no code that relies on more than a process. A file of
        // that name that somebody else has put there could run anything, as could any library that this program loads. Some MPI
        // libraries load parts of themselves that look for the names of the others, hence RTLD_GLOBAL.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| failed(format!("cannot load {}: {}", path.display(), cause(&error))))?;
        /// A function of the library by its name.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the C file has the function with the type that the field has. Its pointer is kept beside the library.
                *unsafe { library.get($name) }
                    .map_err(|error| failed(format!("{} is not of this version: {error}", path.display())))?
            };
        }
        let interface: unsafe extern "C" fn() -> c_int = function!(b"overspill_mpi_interface");
        // SAFETY: it takes nothing and returns a constant.
        let found = unsafe { interface() };
        if found != INTERFACE {
            return Err(failed(format!("{} has version {found} and not {INTERFACE}", path.display())));
        }
        let start: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = function!(b"overspill_mpi_start");
        let nodes: unsafe extern "C" fn(*mut c_int) -> c_int = function!(b"overspill_mpi_nodes");
        let takes_gpu_memory: unsafe extern "C" fn() -> c_int = function!(b"overspill_mpi_takes_gpu_memory");
        let mut mpi = Self {
            send: function!(b"overspill_mpi_send"),
            receive: function!(b"overspill_mpi_receive"),
            probe: function!(b"overspill_mpi_probe"),
            test: function!(b"overspill_mpi_test"),
            barrier: function!(b"overspill_mpi_barrier"),
            all_to_all: function!(b"overspill_mpi_all_to_all"),
            error: function!(b"overspill_mpi_error"),
            end: function!(b"overspill_mpi_end"),
            rank: 0,
            lowest_of_node: vec![],
            takes_gpu_memory: false,
            thread: std::marker::PhantomData,
            _library: ManuallyDrop::new(library),
        };
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: both are ours for the time of the call.
        mpi.check("MPI does not start", unsafe { start(&mut rank, &mut ranks) })?;
        let mut lowest: Vec<c_int> = vec![0; ranks.max(0) as usize];
        // SAFETY: it writes a number for each rank.
        mpi.check("MPI does not know its nodes", unsafe { nodes(lowest.as_mut_ptr()) })?;
        // SAFETY: it takes nothing, and MPI has been started.
        mpi.takes_gpu_memory = unsafe { takes_gpu_memory() } != 0;
        mpi.rank = rank.max(0) as usize;
        mpi.lowest_of_node = lowest.into_iter().map(|rank| rank.max(0) as usize).collect();
        Ok(mpi)
    }

    /// Begins to send at most [`MOST_BYTES`].
    pub fn send(&self, bytes: Buffer, to: Rank, tag: c_int) -> Result<Request> {
        let mut request = null_mut();
        // SAFETY: the request keeps the bytes until it is done, and a Buffer is not changed while it is kept.
        let code = unsafe { (self.send)(bytes.as_ptr().cast(), count(bytes.len()), to as c_int, tag, &mut request) };
        self.check("a message cannot be sent", code)?;
        Ok(Request { request, bytes: Bytes::Sent(bytes) })
    }

    /// Begins to send a message of at most [`MOST_BYTES`] from GPU memory. MPI must accept addresses of that GPU.
    ///
    /// # Errors
    /// If MPI fails, or the GPU is lost.
    pub fn send_from_gpu(&self, part: DeviceMessage, to: Rank, tag: c_int) -> Result<Request> {
        // MPI copies with the current device of the thread that calls it.
        part.buffer().device().make_current()?;
        let (address, mut request) = (part.buffer().view().address() + part.range().start, null_mut());
        // SAFETY: the part lies within its memory, which the request keeps until it is done. It is complete and nothing writes it, as it is lent.
        let code = unsafe {
            let bytes = std::ptr::with_exposed_provenance(address as usize);
            (self.send)(bytes, count(part.bytes() as usize), to as c_int, tag, &mut request)
        };
        self.check("a message in GPU memory cannot be sent", code)?;
        Ok(Request { request, bytes: Bytes::Lent(part) })
    }

    /// Begins to receive a message into GPU memory. The message fills `place`, which has at most [`MOST_BYTES`]. MPI must accept addresses of that GPU.
    ///
    /// # Errors
    /// If MPI fails, or the GPU is lost.
    pub fn receive_on_gpu(&self, mut place: DevicePlace, from: Rank, tag: c_int) -> Result<Request> {
        place.device().make_current()?;
        let (bytes, address, mut request) = (place.bytes() as usize, place.view_mut().address(), null_mut());
        // SAFETY: the request owns the place until MPI has written it, so that no other code writes or reads these bytes, and the memory stays
        // allocated.
        let code = unsafe {
            let to = std::ptr::with_exposed_provenance_mut(address as usize);
            (self.receive)(to, count(bytes), from as c_int, tag, &mut request)
        };
        self.check("a message cannot be received in GPU memory", code)?;
        Ok(Request { request, bytes: Bytes::Placed(place) })
    }

    /// Begins to receive a message of this many bytes, at most [`MOST_BYTES`].
    pub fn receive(&self, bytes: usize, from: Rank, tag: c_int) -> Result<Request> {
        // Its bytes are not written twice: to write zeros first took half as long as MPI takes to copy them.
        let mut buffer = MutableBuffer::with_capacity(bytes);
        let mut request = null_mut();
        // SAFETY: the buffer has room for this many bytes, and the request owns it until MPI has filled it, so no other code can reach it. Its
        // length is 0 until then.
        let code =
            unsafe { (self.receive)(buffer.as_mut_ptr().cast(), count(bytes), from as c_int, tag, &mut request) };
        self.check("a message cannot be received", code)?;
        Ok(Request { request, bytes: Bytes::Received(buffer, bytes) })
    }

    /// The rank and the bytes of a message with a tag that has come.
    pub fn probe(&self, tag: c_int) -> Result<Option<(Rank, usize)>> {
        let (mut is_there, mut from, mut count) = (0, 0, 0);
        // SAFETY: all are ours for the time of the call.
        self.check("MPI fails", unsafe { (self.probe)(tag, &mut is_there, &mut from, &mut count) })?;
        Ok((is_there != 0).then_some((from.max(0) as usize, count.max(0) as usize)))
    }

    /// The bytes of a request if it is done, or the request again.
    pub fn test(&self, mut request: Request) -> Result<std::result::Result<Bytes, Request>> {
        let (mut is_done, mut count) = (0, 0);
        let receives = matches!(request.bytes, Bytes::Received(..) | Bytes::Placed(_));
        let counted = if receives { &raw mut count } else { null_mut() };
        // SAFETY: `send`, `receive` or `barrier` has begun the request, and this call takes it. The C function frees it only if it is done or
        // has failed; if it has failed, dropping the request never frees its bytes. It counts the bytes of a request that receives.
        self.check("a message does not arrive", unsafe { (self.test)(request.request, &mut is_done, counted) })?;
        if is_done == 0 {
            return Ok(Err(request));
        }
        let mut bytes = std::mem::replace(&mut request.bytes, Bytes::None);
        let expected = match &bytes {
            Bytes::None | Bytes::Sent(_) | Bytes::Lent(_) => return Ok(Ok(bytes)),
            Bytes::Placed(place) => place.bytes() as usize,
            Bytes::Received(_, expected) => *expected,
        };
        if usize::try_from(count) != Ok(expected) {
            return Err(Error::Mpi(format!("a message of {count} bytes came in place of one of {expected}")));
        }
        if let Bytes::Received(buffer, bytes) = &mut bytes {
            // SAFETY: the buffer has room for this many bytes, and MPI has written just as many.
            unsafe { buffer.set_len(*bytes) };
        }
        Ok(Ok(bytes))
    }

    /// Begins to wait until all ranks do.
    pub fn barrier(&self) -> Result<Request> {
        let mut request = null_mut();
        // SAFETY: the pointer is ours for the time of the call.
        self.check("ranks cannot wait for each other", unsafe { (self.barrier)(&mut request) })?;
        Ok(Request { request, bytes: Bytes::None })
    }

    /// Exchanges `bytes` with each rank, for comparison, and says how long it took. It takes all calls of MPI until it is done.
    pub fn all_to_all(&self, bytes: usize) -> Result<Duration> {
        let ranks = self.lowest_of_node.len();
        let Some(all) = bytes.checked_mul(ranks).filter(|all| *all <= MOST_BYTES) else {
            return Err(Error::Mpi(format!("{ranks} ranks cannot exchange {bytes} bytes each at once")));
        };
        let counts = vec![bytes as c_int; ranks];
        let starts: Vec<c_int> = (0..ranks).map(|rank| (rank * bytes) as c_int).collect();
        let (sent, mut received) = (vec![1_u8; all], vec![2_u8; all]);
        let started = Instant::now();
        // SAFETY: both buffers have a part for each rank, where and as large as the counts say; MPI is done with them when it returns.
        let code = unsafe {
            (self.all_to_all)(
                sent.as_ptr().cast(),
                counts.as_ptr(),
                starts.as_ptr(),
                received.as_mut_ptr().cast(),
                counts.as_ptr(),
                starts.as_ptr(),
            )
        };
        let took = started.elapsed();
        self.check("MPI_Alltoallv fails", code)?;
        std::hint::black_box(received);
        Ok(took)
    }

    /// Ends MPI. All ranks do.
    pub fn end(self) -> Result<()> {
        // SAFETY: no request is left: the carrier ends only when all are done.
        self.check("MPI does not end", unsafe { (self.end)() })
    }

    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0; 1024];
        // SAFETY: it writes at most as many bytes as the array has, and a zero behind the last.
        let words = unsafe {
            (self.error)(code, text.as_mut_ptr(), text.len() as c_int);
            CStr::from_ptr(text.as_ptr())
        };
        Err(Error::Mpi(format!("{what}: {}", words.to_string_lossy())))
    }
}
