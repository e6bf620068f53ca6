//! Bringing data from CPU memory to kernels: the eight methods of paper 2, table 1.
//!
//! | method | memory | who moves it |
//! |---|---|---|
//! | pageable copy | pageable | the driver, through a buffer of its own |
//! | staged copy | pageable | threads copy to pinned slabs, the GPU copies from there |
//! | dynamic pinning | pageable | the GPU, from memory that is pinned just before |
//! | pinned copy | pinned | the GPU's copy engine |
//! | unified prefetch | unified | the driver moves pages ahead of the kernel |
//! | unified migration | unified | the kernel, page by page as it touches them |
//! | zero-copy | pinned | the kernel, across the link |
//! | coherence | pageable | the kernel, across a link that keeps caches coherent |
//!
//! The first five push, the rest pull. All are run by one [`TransferPipeline`], which hands the kernel the data chunk by
//! chunk; while a chunk is worked on, the next ones are on their way.

mod method;
mod pipeline;
mod rates;

pub use method::{Source, SourceMemory, TransferMethod};
pub use pipeline::{PipelineShape, TransferPipeline};
pub use rates::{TransferRate, TransferRates};
