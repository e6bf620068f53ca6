//! Tables of files with `INSERT`s that write aside.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::catalog::TableProvider;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig};

use super::destination::Destination;
use super::format::AsideFormat;

/// A folder of files as the target of an `INSERT`: its new files are moved there when all of them are complete, and get the
/// extension of the existing files. `None` if the table is no [`ListingTable`], is not a local folder, or is such a target
/// already.
pub fn appended_aside(table: &dyn TableProvider) -> Option<ListingTable> {
    let listing = table.downcast_ref::<ListingTable>()?;
    Destination::local_path(listing.table_paths().first()?)?;
    let mut options = listing.options().clone();
    if options.format.is::<AsideFormat>() {
        return None;
    }
    options.format = Arc::new(AsideFormat::of_table(options.format));
    // The last columns are the partition columns.
    let schema = table.schema();
    let of_files = schema.fields().len() - options.table_partition_cols.len();
    let of_files = Schema::new_with_metadata(schema.fields()[..of_files].to_vec(), schema.metadata().clone());
    let config = ListingTableConfig::new_with_multi_paths(listing.table_paths().clone())
        .with_listing_options(options)
        .with_schema(Arc::new(of_files));
    ListingTable::try_new(config).ok()
}
