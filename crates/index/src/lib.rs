//! Indexes over sorted keys (Schmeißer, Lutz and Markl, *Efficiently Indexing Large Data on GPUs with Fast Interconnects*, section
//! 2.2): binary search, B+tree, Harmonia and RadixSpline.
//!
//! All of them are a [`Search`] over the same [`SortedKeys`] and answer where the first key is that is not smaller than a given one.
//! They differ in what they read on the way. Keys are looked up in batches: while the memory brings what one key needs next, others
//! go on.
//!
//! | index | memory besides the keys | lines of memory that a lookup reads |
//! |---|---|---|
//! | [`BinarySearch`] | none | `log2(n)` |
//! | [`BTree`] | an eighth of the keys or less | one a level with nodes of a line, `log9(n)` levels |
//! | [`Harmonia`] | a thirty-second of the keys | four a level, `log33(n)` levels |
//! | [`RadixSpline`] | a few megabytes if keys are evenly distributed | a table, a spline point and where it points |

//!
//! [`RowIndex`] is an index over rows in memory, [`StoredIndex`] one in a file over rows in files, and [`PlacedIndex`] a copy in memory
//! that kernels of a GPU read.

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod binary_search;
mod btree;
mod harmonia;
mod index;
mod keys;
mod levels;
mod node;
mod placed;
mod radix_spline;
mod ranges;
mod row_index;
mod search;
mod stored;
mod words;

pub use binary_search::BinarySearch;
pub use btree::BTree;
pub use harmonia::Harmonia;
pub use index::Index;
pub use keys::SortedKeys;
pub use overspill_advisor::IndexKind;
pub use placed::PlacedIndex;
pub use radix_spline::RadixSpline;
pub use ranges::WordRanges;
pub use row_index::{RowIndex, RowOrder};
pub use search::{IndexParts, Search};
pub use stored::{
    BLOCK, FoundPlaces, FoundRows, IncludedColumn, IncludedColumns, IndexedFile, StoredDescription, StoredError,
    StoredIndex, StoredIndexWriter, read_description,
};
pub use words::OrderedWords;
