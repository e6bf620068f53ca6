//! Transfer of data from CPU memory to kernels: the eight methods of paper 2, table 1.
//!
//! | method | memory | data is moved by |
//! |---|---|---|
//! | pageable copy | pageable | the driver, through its own buffer |
//! | staged copy | pageable | threads, which copy to pinned slabs, and the GPU, which copies from there |
//! | dynamic pinning | pageable | the GPU, from memory that is pinned just before |
//! | pinned copy | pinned | the GPU's copy engine |
//! | unified prefetch | unified | the driver, before the kernel runs |
//! | unified migration | unified | the kernel, page by page as it touches them |
//! | zero-copy | pinned | the kernel, across the link |
//! | coherence | pageable | the kernel, across a link that keeps caches coherent |
//!
//! The first five push, the rest pull. All are run by one [`TransferPipeline`], which passes the data to the kernel in chunks.
//! While one chunk is processed, the next ones are transferred.

mod host_pool;
mod method;
mod pipeline;
mod rates;

pub use host_pool::{HostPool, PooledBuffer};
pub use method::{Source, SourceMemory, TransferMethod};
pub use pipeline::{PipelineShape, TransferPipeline};
pub use rates::{TransferRate, TransferRates};
